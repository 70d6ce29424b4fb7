//! Uploads that lost nodes left on a remote.

use std::time::Duration;

use stepvault_testkit::faults::FaultAction;
use stepvault_testkit::gcs::StrictGcs;
use stepvault_testkit::peers::Moto;
use stepvault_testkit::s3::{StrictS3, StrictS3Options};

use crate::doctor::Findings as _;
use crate::doctor::remote_place::{BUCKET, RemotePlace};

/// And a minute: stores tell the time in whole seconds, and a little less than three days is two days and 23 hours.
const THREE_DAYS: Duration = Duration::from_mins(3 * 24 * 60 + 1);
const KEY: &str = "grpo/000000000002.a1/step_2/model.bin";

/// The remedy is the command, as it is pasted.
fn gc_by_remedy(place: &RemotePlace) {
    let ran = place.doctor().expect_code(0);
    let found = ran.finding("leftovers", "main");
    found.expect(
        "warn",
        &format!("1 pending upload, 6.0 MiB in total, the oldest 3days old: {KEY}"),
        "delete those that are older than a day, whose parts are stored and billed: stepvault gc --run grpo",
    );
    let (_, command) = found.remedy.split_once(": ").unwrap();
    place
        .shell(&format!("{command} --dry-run"))
        .expect_code(0)
        .expect_stdout(&["would have aborted 1 upload"]);
    place.shell(command).expect_code(0).expect_stdout(&["aborted 1 upload"]);
}

#[test]
fn an_old_upload_on_s3_is_named_with_the_command_that_drops_it() {
    let server = StrictS3::start();
    let place = RemotePlace::of_s3(&server);
    place.push().expect_code(0);
    place.leave_upload(KEY, 6 << 20);
    let ran = place.doctor().expect_code(0);
    ran.finding("leftovers", "main").expect("pass", "1 pending upload, 6.0 MiB in total, the oldest ", "");
    // Somebody else's in the same bucket, and another run's, are not this run's.
    place.leave_upload("other-run/000000000002.a1/step_2/model.bin", 1);
    place.leave_upload("grpo/notes.txt", 1);
    server.age_multipart_uploads(THREE_DAYS);
    gc_by_remedy(&place);
    assert_eq!(server.pending_uploads().len(), 2);
    let ran = place.doctor().expect_code(0);
    ran.finding("leftovers", "main").expect("pass", "no upload is pending", "");
}

#[test]
fn an_old_upload_on_google_cloud_storage_is_named_with_the_command_that_drops_it() {
    let server = StrictGcs::start();
    let place = RemotePlace::of_gcs(&server);
    place.push().expect_code(0);
    place.leave_upload(KEY, 6 << 20);
    server.age_multipart_uploads(THREE_DAYS);
    gc_by_remedy(&place);
    assert_eq!(server.pending_uploads(), vec![]);
}

#[test]
fn many_uploads_are_counted_over_pages_and_the_oldest_are_measured() {
    let server = StrictS3::start_with(StrictS3Options { max_keys: 8, ..StrictS3Options::default() });
    let place = RemotePlace::of_s3(&server);
    for number in 0..20 {
        place.leave_upload(&format!("grpo/{number:012}.a1/step_{number}/model.bin"), 1024);
    }
    server.age_multipart_uploads(THREE_DAYS);
    let found = place.doctor().expect_code(0).finding("leftovers", "main");
    found.expect("warn", "20 pending uploads, at least 16.0 KiB in total, the oldest 3days old: ", "");
    assert!(found.measured.ends_with(" and 17 more"), "{found:?}");
    // More than is looked at: three pages.
    for number in 20..30 {
        place.leave_upload(&format!("grpo/{number:012}.a1/step_{number}/model.bin"), 1024);
    }
    server.age_multipart_uploads(THREE_DAYS);
    let found = place.doctor().expect_code(0).finding("leftovers", "main");
    found.expect("warn", "more than 24 pending uploads, at least 16.0 KiB in total, ", "");
}

#[test]
fn a_store_that_refuses_to_tell_is_said_to_and_nothing_fails() {
    let server = StrictS3::start();
    let place = RemotePlace::of_s3(&server);
    place.leave_upload(KEY, 1024);
    server.age_multipart_uploads(THREE_DAYS);
    let refuse = |query: &str, status: u16, code: &str| {
        server.faults().clear();
        let refusal = FaultAction::refuse(status, code);
        server.faults().inject("GET", query, u64::MAX, refusal);
        place.doctor().expect_code(0).finding("leftovers", "main")
    };
    refuse("uploadId", 403, "AccessDenied").expect(
        "warn",
        "1 pending upload, of unknown size (cannot list an upload's parts: ",
        "stepvault gc --run grpo",
    );
    refuse("?uploads", 403, "AccessDenied").expect(
        "warn",
        "cannot list pending uploads: ",
        "allow s3:ListBucketMultipartUploads",
    );
    refuse("?uploads", 501, "NotImplemented").expect("pass", "this store does not list pending uploads", "");
}

#[test]
#[ignore = "needs the Python servers that scripts/test installs"]
fn moto_tells_them_too() {
    let server = Moto::start();
    server.create_bucket(BUCKET);
    let place = RemotePlace::at("s3", &server.endpoint(), "any-key", "any-secret");
    place.leave_upload(KEY, 1024);
    // It dates every upload to 2010, and its list of parts is none that the SDK can read. On a busy machine it may answer later
    // than doctor waits for.
    let look = || place.doctor().finding("leftovers", "main");
    let found = (0..2).map(|_| look()).find(|found| found.measured.contains(KEY)).unwrap_or_else(look);
    found.expect(
        "warn",
        "1 pending upload, of unknown size (cannot list an upload's parts: ",
        "stepvault gc",
    );
    assert!(found.measured.contains(KEY), "{found:?}");
}
