//! Remotes that cannot be used, each with its own line, code and remedy.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use stepvault_testkit::s3::{StrictS3, StrictS3Options};

use crate::doctor::Findings as _;
use crate::doctor::remote_place::RemotePlace;

#[test]
fn a_clock_that_is_off_by_an_hour_is_a_line_of_its_own_and_transfers_go_on() {
    let server =
        StrictS3::start_with(StrictS3Options { clock_ahead_seconds: -3_600, ..StrictS3Options::default() });
    let place = RemotePlace::of_s3(&server);
    let ran = place.doctor().expect_code(14);
    ran.finding("clock", "main").expect(
        "fail",
        "behind this machine's: the store refuses requests when they differ by 15 minutes or more; stepvault signs \
         again by the store's clock",
        "set this machine's clock, by NTP if possible",
    );
    ran.finding("put", "main").expect("pass", "", "");
    place.push().expect_code(0);
    place
        .stepvault(&["list", "--run", "grpo", "--remote", &place.remote])
        .expect_code(0)
        .expect_stdout(&["main"]);
}

#[test]
fn wrong_keys_fail_as_credentials() {
    let server = StrictS3::start();
    let mut place = RemotePlace::of_s3(&server);
    place.secret_key = "another-secret".to_owned();
    let ran = place.doctor().expect_code(14);
    ran.finding("credentials", "main").expect(
        "fail",
        "from the environment (AWS_ACCESS_KEY_ID); cannot list objects: ",
        "check AWS_SECRET_ACCESS_KEY or the profile for a wrong or truncated secret",
    );
    place.access_key = String::new();
    place.secret_key = String::new();
    let ran = place.doctor().expect_code(14);
    ran.finding("credentials", "main").expect(
        "fail",
        "no credentials were found",
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    );
}

#[test]
fn another_region_is_named_as_it_has_to_be_set() {
    let server = StrictS3::start_with(StrictS3Options {
        only_region: Some("eu-central-1".to_owned()),
        ..StrictS3Options::default()
    });
    let mut place = RemotePlace::of_s3(&server);
    place.doctor().expect_code(14).finding("region", "main").expect(
        "fail",
        "the bucket is in another region (AuthorizationHeaderMalformed: ",
        "set it: [remote.main] region = \"eu-central-1\"",
    );
    place.remote += "&region=eu-central-1";
    let ran = place.doctor().expect_code(0);
    ran.finding("bucket", "main").expect("pass", "was listed", "");
}

#[test]
fn a_missing_bucket_is_named() {
    let server = StrictS3::start();
    let mut place = RemotePlace::of_s3(&server);
    place.remote = place.remote.replace("bucket/team", "elsewhere/team");
    place.doctor().expect_code(14).finding("bucket", "main").expect(
        "fail",
        "the bucket does not exist (NoSuchBucket: ",
        "create it, or correct the remote's URL",
    );
}

#[test]
fn an_address_that_takes_no_connection_is_given_up_in_its_time() {
    let (_full, address) = full_listener();
    for scheme in ["s3", "gs"] {
        let place = RemotePlace::at(scheme, &format!("http://{address}"), "key", "secret");
        let ran = place.doctor().expect_code(14);
        ran.finding("network", "main").expect("fail", " (tried for ", "check the ");
        let document = ran.json();
        let seconds = document["seconds"].as_f64().unwrap();
        let longest = stepvault_engine::doctor::remote::LONGEST.as_secs_f64();
        assert!(seconds < longest, "the bound is the promise: {document:#}");
    }
}

/// A listener that takes no more connections: its queue is full, and nobody takes one out of it.
fn full_listener() -> ((TcpListener, Vec<TcpStream>), SocketAddr) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let mut waiting = Vec::new();
    while let Ok(connection) = TcpStream::connect_timeout(&address, Duration::from_secs(1)) {
        waiting.push(connection);
        assert!(waiting.len() < 20_000, "the queue has no end");
    }
    ((listener, waiting), address)
}

#[test]
fn a_store_that_ignores_what_was_asked_for_is_not_used() {
    let server = StrictS3::start_with(StrictS3Options {
        ignores_attributes: true,
        no_batch_deletes: true,
        ..StrictS3Options::default()
    });
    let mut place = RemotePlace::of_s3(&server);
    let bare = place.remote.clone();
    place.remote += "&server-side-encryption=aws:kms&kms-key=alias/k&tags=team%3Da";
    let ignored = "server-side-encryption = \"aws:kms\" is ignored: the store reports \"AES256\"";
    let ran = place.doctor().expect_code(14);
    ran.finding("attributes", "main").expect("fail", ignored, "set attributes = \"if-supported\"");
    ran.finding("batch delete", "main").expect(
        "warn",
        "refuses to delete several objects with one request",
        "nothing has to be done",
    );
    place.push().expect_code(2).expect_stderr(&["cannot use the remote", ignored, "kms-key", "tags"]);
    place.remote += "&attributes=if-supported";
    let ran = place.doctor().expect_code(0);
    ran.finding("attributes", "main").expect("warn", ignored, "accepts it");
    place.push().expect_code(0).expect_stderr(&[ignored]);
    // Nothing asked for, nothing said.
    place.remote = bare;
    assert!(!place.doctor().stdout.contains("attributes"));
}

#[test]
fn a_store_that_lets_writers_collide_is_named_by_each_command() {
    let server =
        StrictS3::start_with(StrictS3Options { refuse_create_only: true, ..StrictS3Options::default() });
    let place = RemotePlace::of_s3(&server);
    let said = "does not refuse to overwrite an object";
    place.push().expect_code(0).expect_stderr(&[said]);
    // Remembered, and not asked again.
    let show =
        place.stepvault(&["show", "1", "--run", "grpo", "--remote", &place.remote, "--local", "vault"]);
    show.expect_code(0).expect_stdout(&["main does not refuse to overwrite an object"]);
}

#[test]
fn a_missing_bucket_ends_every_command_with_the_same_code() {
    let server = StrictS3::start();
    let mut place = RemotePlace::of_s3(&server);
    place.remote = place.remote.replace("bucket/team", "elsewhere/team");
    let why = "the bucket does not exist";
    place.push().expect_code(2).expect_stderr(&[why]);
    let commands: [&[&str]; 8] = [
        &["list"],
        &["show", "1"],
        &["verify"],
        &["restore", "--as", "restored"],
        &["prune", "--keep-last", "1"],
        &["gc"],
        &["pin", "1"],
        &["unpin", "1"],
    ];
    for command in commands {
        let mut arguments = command.to_vec();
        arguments.extend(["--run", "grpo", "--remote", &place.remote]);
        let ran = place.stepvault(&arguments);
        ran.expect_code(2).expect_stderr(&[why]);
    }
}
