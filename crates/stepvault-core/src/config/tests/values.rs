//! Units and single values.

use std::time::Duration;

use super::super::{parse_duration, parse_size};
use super::{loaded, only_fault};

#[test]
fn sizes_take_units_and_nothing_else() {
    for (text, bytes) in
        [("8 MiB", 8 << 20), ("1.5GiB", 3 << 29), ("500 GB", 500_000_000_000), ("512 B", 512), ("0 B", 0)]
    {
        assert_eq!(parse_size(text).unwrap(), bytes, "{text}");
    }
    for (text, why) in [
        ("8", "not a size: \"8\": it has no unit"),
        ("", "not a size: \"\": it is not a size"),
        ("-1 MiB", "not a size: \"-1 MiB\": it is not a size"),
        ("8 Mebibyte", "not a size: \"8 Mebibyte\": 'Mebibyte' is not a unit of size"),
        ("99999999999 TiB", "not a size: \"99999999999 TiB\": it is out of range"),
        ("0.1 B", "not a size: \"0.1 B\": it is out of range"),
        ("1.2.3 GB", "not a size: \"1.2.3 GB\": it is not a size"),
    ] {
        assert_eq!(parse_size(text).expect_err(text).to_string(), why);
    }
    assert_eq!(parse_size("8").unwrap_err().hint_text(), Some("write \"8 B\", \"8 MiB\" or \"8 GiB\""));
}

#[test]
fn durations_take_units_and_nothing_else() {
    for (text, seconds) in [("30s", 30), ("10m", 600), ("2d", 172_800), ("1h 30m", 5_400)] {
        assert_eq!(parse_duration(text).unwrap(), Duration::from_secs(seconds), "{text}");
    }
    for (text, why) in [
        ("30", "not a duration: \"30\": it has no unit"),
        ("", "not a duration: \"\": it is not a duration"),
        ("-5s", "not a duration: \"-5s\": it is not a duration"),
        ("5 fortnights", "not a duration: \"5 fortnights\": 'fortnights' is not a unit of time"),
    ] {
        assert_eq!(parse_duration(text).expect_err(text).to_string(), why);
    }
}

#[test]
fn values_of_the_wrong_kind_are_told_apart() {
    for (text, fault, hint) in [
        ("node = 3", "node: it is a number", "write a string in quotes"),
        ("node = \"\"", "node: it is empty", "remove the key to use its default"),
        (
            "node = \"a b\"",
            "node: not a node name: \"a b\": use 1 to 63 letters, digits and ._-=+; it must not begin with a dot",
            "",
        ),
        (
            "upload.memory-budget = 128",
            "upload.memory-budget: it has no unit",
            "write \"128 B\", \"128 MiB\" or \"128 GiB\"",
        ),
        ("agent.poll-interval = 5", "agent.poll-interval: it has no unit", "write \"5s\", \"5m\" or \"5h\""),
        ("agent.nice = 20", "agent.nice: 20 is too large", "write a number from 0 to 19"),
        (
            "agent.cpu-share-percent = 101",
            "agent.cpu-share-percent: 101 is too large",
            "write a number from 1 to 100",
        ),
        (
            "upload.maximum-backlog-steps = 0",
            "upload.maximum-backlog-steps: 0 is too small",
            "the smallest value is 1",
        ),
        (
            "upload.maximum-backlog-steps = 5_000_000_000",
            "upload.maximum-backlog-steps: 5000000000 is too large",
            "write a smaller number",
        ),
        ("keep.local.last = -1", "keep.local.last: -1 is too small", "the smallest value is 0"),
        (
            "local.links = \"auot\"",
            "local.links: \"auot\" is not a valid value",
            "did you mean \"auto\"? Valid values are \"auto\", \"reflink-or-copy\", \"copy\"",
        ),
        (
            "local.directory = \"~/vault\"",
            "local.directory: it contains '~' or '$', which only a shell expands",
            "write the full path",
        ),
        ("local = 3", "local: it must be a table, not a value", "write it as a table: [local]"),
        (
            "remote.url = \"s3://b\"",
            "remote.url: 'remote' must contain named tables",
            "write [remote.NAME] and put the key below it",
        ),
        (
            "run.r.marker = \"/a\"\nrun.r.complete = \"rename\"",
            "run.r.marker: not a path inside a checkpoint: \"/a\": it is absolute, or has an empty component",
            "write a path relative to the checkpoint's directory",
        ),
        (
            "keep.local.best = [{ metric = \"x\", count = 1 }]",
            "keep.local.best: missing field `prefer`",
            "write best = [{ metric = \"eval_loss\", count = 2, prefer = \"lowest\" }]",
        ),
        ("format = 2", "format: this stepvault reads format 1, not 2", "use a newer stepvault"),
    ] {
        let expected = (format!("/etc/stepvault.toml:1: {fault}"), hint.to_owned());
        assert_eq!(only_fault(text), expected, "{text}");
    }
}

#[test]
fn notices_are_looked_for_where_it_is_said() {
    use super::super::{NoticeSource, Notices};
    let notices = |value: &str| loaded(&format!("[agent]\nnotices = {value}")).agent.notices;
    assert_eq!(notices("[\"auto\"]"), Notices::Auto);
    assert_eq!(notices("[]"), Notices::From(vec![]));
    assert_eq!(
        notices("[\"gce\", \"ec2\", \"gce\", \"azure\"]"),
        Notices::From(vec![NoticeSource::Gce, NoticeSource::Ec2, NoticeSource::Azure])
    );
    for (value, why) in [
        ("[\"aws\"]", "\"aws\" is not a source of notices"),
        ("[\"auto\", \"ec2\"]", "\"auto\" cannot be combined with other values"),
    ] {
        let (fault, hint) = only_fault(&format!("[agent]\nnotices = {value}"));
        assert!(fault.contains("agent.notices") && fault.ends_with(why), "{fault}");
        assert_eq!(hint, "write [\"auto\"], some of [\"ec2\", \"gce\", \"azure\"], or [] to disable notices");
    }
    assert!(loaded("[agent]\nrebalance = \"drain\"").agent.drains_on_rebalance);
}

#[test]
fn a_bandwidth_limit_may_depend_on_the_time_of_day() {
    let limit = |value: &str| {
        let text = format!("[remote.r]\nurl = \"s3://b\"\nbandwidth-limit = {value}");
        loaded(&text).remotes.remove(0).bandwidth_limit.to_string()
    };
    let periods = r#"[{ from = "08:00", limit = "20 MiB" }, { from = "20:30", limit = "none" }]"#;
    assert_eq!(limit(periods), "20.0 MiB/s from 08:00, no limit from 20:30");
    assert_eq!(limit("\"1 MiB\""), "1.0 MiB/s");
    let in_url = loaded("[remote.r]\nurl = \"s3://b?bandwidth-limit=08:00%3D20MiB,20:30%3Dnone\"");
    assert_eq!(in_url.remotes[0].bandwidth_limit.to_string(), limit(periods));
    for (value, why) in [
        ("5", "it has no unit"),
        ("[]", "it has no period, or two that begin at the same time"),
        (r#"[{ from = "8:00", limit = "1 MiB" }]"#, "'8:00' is not a time of day"),
        (r#"[{ from = "24:00", limit = "1 MiB" }]"#, "'24:00' is not a time of day"),
        (r#"[{ from = "08:00", limit = "1" }]"#, "it has no unit"),
        (r#"[{ from = "08:00" }]"#, "one of its periods has not 'from' and 'limit' alone"),
    ] {
        let (fault, hint) = only_fault(&format!("[remote.r]\nurl = \"s3://b\"\nbandwidth-limit = {value}"));
        assert_eq!(fault, format!("/etc/stepvault.toml:3: remote.r.bandwidth-limit: {why}"), "{value}");
        assert!(hint.starts_with("write "), "{hint}");
    }
}
