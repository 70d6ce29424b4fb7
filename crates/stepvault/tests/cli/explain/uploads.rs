//! Stalled uploads, and the vault's records of them.

use std::time::{Duration, SystemTime};

use crate::explain::Tmpfs;
use crate::support::Place;

#[test]
fn an_upload_that_stopped_is_told_by_its_journal() {
    let place = Place::new();
    let Some(disk) = Tmpfs::mount(place.path("remote"), "size=1m") else {
        return;
    };
    place.write("out/step_1/a.bin", "small");
    place.write("out/step_1/z.bin", vec![7; 4 << 20]);
    let remote = format!("main=file://{}", disk.0.display());
    place.run(&["push", "out/step_1", "--run", "demo/a", "--remote", &remote]).expect_code(1);
    let journal = place.path(".stepvault/runs/demo%2Fa/journal/000000000001.a1/main.jsonl");
    let file = std::fs::OpenOptions::new().append(true).open(journal).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_hours(1)).unwrap();
    let arguments = ["out", "--run", "demo/a"];
    let found = place.explain(&arguments);
    assert_eq!(found.causes(), ["upload-stalled"], "{found:#?}");
    let evidence = found.evidence("upload-stalled");
    assert!(evidence.contains("step 1 (attempt 1) to main has made no progress for 60 min"), "{evidence}");
    assert_eq!(found.0["resume"]["step"], 1);
}

#[test]
fn what_the_agent_said_last_is_evidence() {
    let place = Place::new();
    place.write("out/step_1/model.bin", "weights");
    let remote = place.remote();
    place.succeed(&["push", "out/step_1", "--run", "demo/a", "--remote", &remote]);
    // As an agent leaves it whose credentials ran out.
    let note = serde_json::json!({
        "format": 1, "node": "node-0", "process_id": 1, "started_at": { "seconds": 1, "nanoseconds": 0 },
        "remotes": [{ "remote": "main", "uploading": null, "failed": [], "lacking_parts": [],
            "last_error": "cannot write: s3://bucket/a: the credentials have expired (ExpiredToken)" }],
        "skipped": [],
    });
    place.write(".stepvault/runs/demo%2Fa/notes/agent.json", note.to_string());
    let found = place.explain(&["out", "--run", "demo/a"]);
    assert_eq!(found.causes(), ["credentials-expired"], "{found:#?}");
    let evidence = found.evidence("credentials-expired");
    assert!(evidence.contains("why the agent last waited for main, for 'demo/a'"), "{evidence}");
}

#[test]
fn nothing_is_written() {
    let place = Place::new();
    place.unpack("hf-trainer-killed");
    let remote = place.remote();
    place.succeed(&["push", "hf-trainer-killed/checkpoint-5", "--run", "a", "--remote", &remote]);
    place.write("a.log", "No space left on device\n");
    let facts = || place.shell("find . -printf '%P %s %m %i %T@ %C@\\n'").run().stdout;
    let before = facts();
    place.explain(&["hf-trainer-killed", "--run", "a", "--remote", &remote, "--log", "a.log"]);
    assert_eq!(facts(), before);
}
