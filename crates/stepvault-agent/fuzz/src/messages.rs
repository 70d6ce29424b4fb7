//! What is asked and answered on the control socket, and the note that an agent leaves.

use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;
use stepvault_agent::StatusFile;
use stepvault_agent::control::{
    AnnounceAnswer, AnnounceRequest, DrainAnswer, DrainRequest, StatusAnswer, WaitAnswer, WaitRequest,
};
use stepvault_core::document::ErrorAnswer;

/// The bytes as each of them. Whatever is understood is written so that it is understood the same again.
pub fn check(bytes: &[u8]) {
    same::<AnnounceRequest>(bytes);
    same::<WaitRequest>(bytes);
    same::<DrainRequest>(bytes);
    same::<AnnounceAnswer>(bytes);
    same::<WaitAnswer>(bytes);
    same::<DrainAnswer>(bytes);
    same::<StatusAnswer>(bytes);
    same::<StatusFile>(bytes);
    if let Some(answer) = same::<ErrorAnswer>(bytes) {
        let message = answer.error.message.clone();
        assert!(answer.error.into_error().to_string().contains(&message));
    }
}

fn same<T: Serialize + DeserializeOwned + PartialEq + Debug>(bytes: &[u8]) -> Option<T> {
    let read: T = serde_json::from_slice(bytes).ok()?;
    let written = serde_json::to_vec(&read).unwrap();
    let again: T = serde_json::from_slice(&written).unwrap();
    assert_eq!(again, read, "{}", String::from_utf8_lossy(&written));
    Some(read)
}

/// One of each.
pub fn seeds() -> Vec<Vec<u8>> {
    [
        r#"{"run":"grpo/checkpoints","path":"/out/step_7","step":7,"name":"step_7"}"#,
        r#"{"run":null,"step":7,"attempt":2,"for":"durable","timeout_seconds":600}"#,
        r#"{"deadline_seconds":30,"wait":true}"#,
        r#"{"announcement_id":1,"run":"r","path":"/out/step_7","state":"sealed","step":7,"attempt":1,
            "newly_sealed":true,"error":{"kind":"no-space","message":"cannot seal","hint":"free some"}}"#,
        r#"{"for":"staged","outcome":"reached","run":"r","step":7,"attempt":1,"reached":"staged",
            "remotes":[{"remote":"main","required":true,"reached":"uploaded","failed":false,"reason":null}],
            "reason":null,"failed":false}"#,
        r#"{"ended":true,"remaining_seconds":0,"durable":false,"not_durable":[{"run":"r","step":7,"attempt":1,
            "remote":"main","required":true,"failed":false,"missing_bytes":9,"reason":"unreachable"}]}"#,
        r#"{"version":"0.1.0","node":"node-0","process_id":7,"started_at":"2026-11-21T10:16:00Z","stopping":null,
            "healthy":false,"problems":["x"],"runs":[{"run":"r","remotes":[{"remote":"main","uploading":
            {"attempt":1,"step":7},"last_error":null,"failed":[{"attempt":1,"step":6,"reason":"y"}]}],
            "skipped":[{"path":"/out/tmp","reason":"z"}]}],"rates":[{"remote":"main","bytes_per_second":1,
            "next_prune_at":null}]}"#,
        r#"{"error":{"kind":"usage","message":"which run?","hint":null}}"#,
        r#"{"format":1,"node":"node-0","process_id":7,"started_at":{"seconds":1,"nanoseconds":2},"remotes":
            [{"remote":"main","uploading":null,"last_error":"gone","failed":[],"lacking_parts":[]}],
            "skipped":[["/out/tmp","temporary"]]}"#,
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}
