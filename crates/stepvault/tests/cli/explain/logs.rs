//! Logs of every kind: long, broken, piped, missing.

use crate::explain::Found;
use crate::support::Place;

#[test]
fn time_outs_of_a_save_are_named_with_their_lines() {
    let place = Place::new();
    let log = "step 57\nLoading weights from disk done\nTraceback (most recent call last):\n\
               TimeoutError: Timeout waiting for key 'root/exp/trial/update_weights_from_disk/57' (NfsNameRecordRepository)\n\
               [rank0]:[E321 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1580)\n";
    place.write("trainer.log", log);
    let found = place.explain(&["--log", "trainer.log"]);
    assert_eq!(found.causes(), ["time-out"], "{found:#?}");
    let lines: Vec<_> = found.cause("time-out")["evidence"]
        .as_array()
        .unwrap()
        .iter()
        .map(|piece| (piece["file"].as_str().unwrap().to_owned(), piece["line"].as_u64()))
        .collect();
    assert!(lines.contains(&("trainer.log".to_owned(), Some(4))), "{lines:?}");
    assert!(lines.contains(&("trainer.log".to_owned(), Some(5))), "{lines:?}");
}

#[test]
fn the_cause_comes_before_what_followed_from_it() {
    let place = Place::new();
    place.write("rank_0.log", "OSError: [Errno 122] Disk quota exceeded: 'step_3'\n");
    place.write(
        "rank_1.log",
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)\n".repeat(500),
    );
    let found = place.explain(&["--log", "rank_0.log", "--log", "rank_1.log"]);
    assert_eq!(found.causes(), ["quota-reached", "time-out"], "{found:#?}");
    assert_eq!(found.cause("time-out")["evidence"][0]["times"], 500);
}

#[test]
fn a_long_log_of_any_bytes_is_read() {
    let place = Place::new();
    let mut log = vec![0xfe_u8; 20 << 20];
    log.extend(b"\nbotocore.exceptions.ClientError: An error occurred (ExpiredToken) when calling the UploadPart operation\n");
    log.extend(b"\x1b[31mRequestTimeTooSkewed\x1b[0m");
    place.write("a.log", log);
    let found = place.explain(&["--log", "a.log"]);
    let mut causes = found.causes();
    causes.sort_unstable();
    assert_eq!(causes, ["clock-wrong", "credentials-expired"], "{found:#?}");
    assert_eq!(found.cause("credentials-expired")["evidence"][0]["line"], 2);
    assert_eq!(found.cause("clock-wrong")["evidence"][0]["quote"], "RequestTimeTooSkewed");
}

#[test]
fn standard_input_is_a_log_too() {
    let place = Place::new();
    let line = "Memory cgroup out of memory: Killed process 4321 (python)\n";
    let explain = place.command(["explain", "--json", "--log", "-"]);
    let found = Found::of(&explain.run_with_input(line).expect_code(0));
    let cause = found.cause("out-of-memory");
    let evidence = cause["evidence"].as_array().unwrap();
    assert!(evidence.iter().any(|piece| piece["file"] == "standard input"), "{found:#?}");
}

#[test]
fn what_is_no_log_is_said() {
    let place = Place::new();
    place
        .run(&["explain", "--log", "none.log"])
        .expect_code(2)
        .expect_stderr(&["cannot read the log: none.log: no such file"]);
    place.run(&["explain"]).expect_code(2).expect_stderr(&["stepvault explain DIR --log FILE"]);
    std::fs::create_dir(place.path("logs")).unwrap();
    place.write("a.log", "CUDA out of memory.\n");
    let partly = place.run(&["explain", "--json", "--log", "logs", "--log", "a.log"]).expect_code(3);
    let found = Found::of(&partly);
    assert_eq!(found.causes(), ["out-of-gpu-memory"]);
    assert_eq!(found.0["not_looked_at"][0]["what"], "logs");
}
