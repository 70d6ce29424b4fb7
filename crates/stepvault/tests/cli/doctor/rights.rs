//! The requests that each command sends to a store, against the rights that docs/guides/buckets-and-rights.md lists
//! for it.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use stepvault_testkit::faults::{FaultAction, Faults, RequestRecord};
use stepvault_testkit::gcs::StrictGcs;
use stepvault_testkit::s3::StrictS3;

use crate::doctor::remote_place::{RUN, RemotePlace};
use crate::support::{Outcome, file_below};

/// Each command as the document calls it, with its arguments.
const COMMANDS: [(&str, &str); 14] = [
    ("push", "push run/step_3 --local vault"),
    ("list", "list"),
    ("show", "show 2"),
    ("verify", "verify --deep"),
    ("restore", "restore --into out"),
    ("follow", "follow --into followed --once --timeout 0s"),
    ("copy", "copy --from main --to ELSEWHERE --local vault"),
    ("pin", "pin 1"),
    ("unpin", "unpin 2"),
    ("prune --dry-run", "prune --dry-run --keep-last 1 --tier remote"),
    ("prune", "prune --keep-last 1 --tier remote"),
    // Without a directory, so that no disk is measured.
    ("doctor", "doctor"),
    ("gc --dry-run", "gc --grace 0s --dry-run"),
    ("gc", "gc --grace 0s"),
];

/// What a probe leaves that may not delete.
const ORPHAN: &str = "grpo/.stepvault/probes/0123456789abcdef0123456789abcdef-whole";

/// One row of the document's table.
struct Right {
    s3: Vec<String>,
    gcs: Vec<String>,
    /// Who sends a request that takes it; nobody where all do.
    sent_by: Vec<String>,
    goes_on_without: Vec<String>,
}

impl Right {
    fn is_sent_by(&self, command: &str) -> bool {
        self.sent_by.is_empty() || self.sent_by.iter().any(|name| name == command)
    }
}

fn rights() -> Vec<Right> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guides/buckets-and-rights.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (_, table) = text.split_once("| S3 | Google Cloud Storage | Used by |").unwrap();
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let spans = |cell: &str| -> Vec<String> {
        let quoted = cell.split('`').skip(1).step_by(2);
        quoted.map(str::to_owned).collect()
    };
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').collect();
        assert!(cells[3].contains('`') || cells[3].trim() == "every command", "{row}");
        Right {
            s3: spans(cells[1]),
            gcs: spans(cells[2]),
            sent_by: spans(cells[3]),
            goes_on_without: spans(cells[4]),
        }
    })
    .collect()
}

/// Two steps, one of them pinned, an upload that was left three days ago, and a third step to push.
fn furnish(place: &RemotePlace, age_uploads: impl Fn(Duration)) {
    for number in [1, 2] {
        let step = format!("step_{number}");
        place.place.save_in_run(&step, 1000 + number, 0);
        run(place, &format!("push run/{step} --local vault")).expect_code(0);
    }
    run(place, "pin 2").expect_code(0);
    // What was found out about the store counts for a day.
    let known = file_below(&place.place.path("vault"), "notes/guarantees-main");
    std::fs::remove_file(known).unwrap();
    place.place.save_in_run("step_3", 3000, 0);
    place.leave_upload("grpo/000000000009.a1/step_9/model.bin", 1024);
    age_uploads(Duration::from_hours(72));
}

/// An orphan that gc has seen, so that the next one removes it.
fn leave_orphan(place: &RemotePlace) {
    place.leave_object(ORPHAN);
    // Some times are told in whole seconds: by those it comes from the future for a moment.
    let marks = || {
        let ran = run(place, "gc --grace 0s").expect_code(0);
        ran.stdout.contains("1 orphan marked")
    };
    assert!((0..1000).any(|_| marks()), "the orphan stays too young");
}

fn run(place: &RemotePlace, arguments: &str) -> Outcome {
    let common = ["--run", RUN, "--remote", &place.remote];
    let elsewhere = place.remote.replace("main=", "moved=").replace("/team", "/moved");
    let words = arguments.split(' ').map(|word| if word == "ELSEWHERE" { &elsewhere } else { word });
    let words: Vec<&str> = words.chain(common).collect();
    place.stepvault(&words)
}

/// The right that S3 wants for a request.
fn right_on_s3(request: &RequestRecord) -> &'static str {
    let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
    let of_bucket = !path.trim_matches('/').contains('/');
    let asks = |name: &str| {
        let mut members = query.split('&');
        members.any(|member| member.split('=').next() == Some(name))
    };
    match request.method.as_str() {
        "GET" if of_bucket && asks("uploads") => "s3:ListBucketMultipartUploads",
        "GET" if of_bucket && asks("versioning") => "s3:GetBucketVersioning",
        "GET" if of_bucket && asks("lifecycle") => "s3:GetLifecycleConfiguration",
        "GET" if of_bucket => "s3:ListBucket",
        "GET" if asks("uploadId") => "s3:ListMultipartUploadParts",
        "GET" | "HEAD" => "s3:GetObject",
        "DELETE" if asks("uploadId") => "s3:AbortMultipartUpload",
        "DELETE" => "s3:DeleteObject",
        "POST" if asks("delete") => "s3:DeleteObject",
        "PUT" | "POST" => "s3:PutObject",
        _ => panic!("{request:?}"),
    }
}

/// Those that Google Cloud Storage wants.
fn rights_on_gcs(request: &RequestRecord) -> &'static [&'static str] {
    let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
    if path.starts_with("/storage/v1/b/") && !path.contains("/o") {
        return &["storage.buckets.get"];
    }
    let of_bucket = !path.trim_matches('/').contains('/') || path.ends_with("/o");
    let asks = |name: &str| {
        let mut members = query.split('&');
        members.any(|member| member.split('=').next() == Some(name))
    };
    match request.method.as_str() {
        "GET" if of_bucket && asks("uploads") => &["storage.multipartUploads.list"],
        "GET" if of_bucket => &["storage.objects.list"],
        "GET" if asks("uploadId") => &["storage.multipartUploads.listParts"],
        "GET" | "HEAD" => &["storage.objects.get"],
        "DELETE" if asks("uploadId") => &["storage.multipartUploads.abort"],
        "DELETE" => &["storage.objects.delete"],
        "PUT" | "POST" if asks("uploads") || asks("uploadId") => {
            &["storage.multipartUploads.create", "storage.objects.create"]
        }
        "PUT" | "POST" => &["storage.objects.create"],
        _ => panic!("{request:?}"),
    }
}

/// What the document says that a command asks for.
fn documented(rights: &[Right], command: &str, of: impl Fn(&Right) -> &Vec<String>) -> BTreeSet<String> {
    let asked = rights.iter().filter(|right| right.is_sent_by(command));
    asked.flat_map(|right| of(right).clone()).collect()
}

/// Runs each command, and holds the rights that its requests take against those that are documented for it.
fn assert_documented(
    place: &RemotePlace,
    faults: &Faults,
    taken: impl Fn(&RequestRecord) -> Vec<&'static str>,
    of: impl Fn(&Right) -> &Vec<String>,
) {
    let rights = rights();
    for (command, arguments) in COMMANDS {
        faults.clear_requests();
        let ran = run(place, arguments).expect_code(0);
        let requests = faults.requests();
        let asked = requests.iter().flat_map(&taken);
        let asked: BTreeSet<String> = asked.map(str::to_owned).collect();
        assert_eq!(asked, documented(&rights, command, &of), "{command}: {ran:?}");
    }
}

#[test]
fn each_command_asks_s3_for_what_is_documented() {
    let server = StrictS3::start();
    let place = RemotePlace::of_s3(&server);
    furnish(&place, |age| server.age_multipart_uploads(age));
    assert_documented(&place, server.faults(), |one| vec![right_on_s3(one)], |right| &right.s3);
}

#[test]
fn each_command_asks_google_cloud_storage_for_what_is_documented() {
    let server = StrictGcs::start();
    let place = RemotePlace::of_gcs(&server);
    furnish(&place, |age| server.age_multipart_uploads(age));
    assert_documented(&place, server.faults(), |one| rights_on_gcs(one).to_vec(), |right| &right.gcs);
}

/// Refuses every request that takes the right.
fn refuse(server: &StrictS3, right: &str) {
    let requests: &[(&str, &str)] = match right {
        "s3:ListBucket" => &[("GET", "list-type=2")],
        // An object's, not the bucket's.
        "s3:GetObject" => &[("GET", "x-id=GetObject"), ("HEAD", "")],
        "s3:PutObject" => &[("PUT", ""), ("POST", "?uploads"), ("POST", "uploadId")],
        "s3:AbortMultipartUpload" => &[("DELETE", "uploadId")],
        "s3:DeleteObject" => &[("DELETE", "x-id=DeleteObject"), ("POST", "?delete")],
        "s3:ListBucketMultipartUploads" => &[("GET", "?uploads")],
        "s3:ListMultipartUploadParts" => &[("GET", "uploadId")],
        "s3:GetBucketVersioning" => &[("GET", "versioning")],
        "s3:GetLifecycleConfiguration" => &[("GET", "lifecycle")],
        _ => panic!("{right} is refused to nobody"),
    };
    for (method, part) in requests {
        let refusal = FaultAction::refuse(403, "AccessDenied");
        server.faults().inject(method, part, u64::MAX, refusal);
    }
}

#[test]
fn what_goes_on_without_a_right_is_what_is_documented() {
    let rights = rights();
    std::thread::scope(|scope| {
        for right in &rights {
            for name in &right.s3 {
                scope.spawn(move || go_on_without(right, name));
            }
        }
    });
}

/// Each command that asks for the right, on a store of its own that refuses it.
fn go_on_without(right: &Right, name: &str) {
    let asking = COMMANDS.iter().filter(|(command, _)| right.is_sent_by(command));
    for (command, arguments) in asking {
        let server = StrictS3::start();
        let place = RemotePlace::of_s3(&server);
        furnish(&place, |age| server.age_multipart_uploads(age));
        if *command == "gc" && name == "s3:DeleteObject" {
            leave_orphan(&place);
        }
        server.faults().clear_requests();
        refuse(&server, name);
        let ran = run(&place, arguments);
        let goes_on = right.goes_on_without.iter().any(|one| one == command);
        assert_eq!(ran.code == 0, goes_on, "{command} without {name}: {ran:#?}");
        let requests = server.faults().requests();
        let asked = requests.iter().any(|one| right_on_s3(one) == name);
        assert!(asked, "{command} never asked for {name}");
    }
}
