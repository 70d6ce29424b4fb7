//! `--metrics-file`: what a command did, for the node exporter's collector of text files.

use crate::support::{Place, damage};

/// Returns the value of a sample whose labels, without those of every sample, are `labels`.
#[track_caller]
fn value(place: &Place, command: &str, sample: &str, labels: &str) -> String {
    let text = place.read("metrics.prom");
    let own = if labels.is_empty() { String::new() } else { format!(",{labels}") };
    let series = format!("stepvault_command_{sample}{{command=\"{command}\",run=\"demo/a\"{own}}} ");
    let line = text.lines().find_map(|line| line.strip_prefix(&series));
    line.unwrap_or_else(|| panic!("no {series} in {text}")).to_owned()
}

#[test]
fn a_command_says_what_it_did_and_how_it_ended() {
    let place = Place::new();
    place.push_steps(&[1, 2]);
    let with_file = |words: &[&str], code| {
        place.run_here(&[words, &["--metrics-file", "metrics.prom"]].concat()).expect_code(code);
    };
    with_file(&["restore", "--into", "again"], 0);
    let restored = "operation=\"restore\",tier=\"file-remote\",outcome=\"success\"";
    assert_eq!(value(&place, "restore", "operations_total", restored), "1");
    let moved = value(&place, "restore", "moved_bytes_total", "tier=\"file-remote\"");
    assert!(moved.parse::<u64>().unwrap() >= 6000, "{moved}");
    let took = "operation=\"restore\",tier=\"file-remote\"";
    assert_eq!(value(&place, "restore", "operation_duration_seconds_count", took), "1");

    damage(&place.remote_file("step_2", "model.bin"));
    with_file(&["verify", "--deep"], 1);
    let verified = |outcome: &str| {
        let labels = format!("tier=\"file-remote\",outcome=\"{outcome}\"");
        value(&place, "verify", "verified_steps_total", &labels)
    };
    assert_eq!((verified("success"), verified("damaged")), ("1".to_owned(), "1".to_owned()));
    assert_eq!(value(&place, "verify", "exit_code", ""), "1");
    let ended = value(&place, "verify", "end_timestamp_seconds", "");
    assert!(ended.parse::<f64>().unwrap() > 1.7e9, "{ended}");

    // The same byte again: the newest step is sound.
    damage(&place.remote_file("step_2", "model.bin"));
    with_file(&["prune", "--keep-last", "1"], 0);
    let removed = "operation=\"removal\",tier=\"file-remote\",outcome=\"success\"";
    assert_eq!(value(&place, "prune", "operations_total", removed), "1");
    assert!(!place.read("metrics.prom").contains("verify"), "the file is replaced");
    // An error counts, too.
    with_file(&["restore", "--into", "other", "--step", "9"], 10);
    assert_eq!(value(&place, "restore", "exit_code", ""), "10");
}

#[test]
fn a_file_that_cannot_be_written_changes_nothing_else() {
    let place = Place::new();
    place.push_steps(&[1]);
    let listed = place.run_here(&["list", "--metrics-file", "no/such/directory/metrics.prom"]).expect_code(0);
    listed.expect_stderr(&["warning: cannot write the metrics"]).expect_stdout(&["file-remote"]);
}
