//! Which layer has precedence, and how the source of a value is reported.

use super::super::{Sources, check, load, variable_name};
use super::{flag, loaded, only_fault, report, sources};
use crate::bandwidth::BandwidthLimit;

fn environment(text: &str, pairs: &[(&str, &str)]) -> Sources {
    let pairs = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Sources { environment: pairs.collect(), ..sources(text) }
}

/// Returns key, value and source as `config show` prints them.
fn shown(sources: &Sources, key: &str) -> String {
    let config = load(sources).unwrap_or_else(|error| panic!("{error}"));
    let entry = config.explained.iter().find(|entry| entry.key == key).unwrap_or_else(|| panic!("{key}"));
    format!("{} from {}", entry.value, entry.source)
}

#[test]
fn flags_win_over_the_environment_over_the_file_over_the_defaults() {
    let key = "upload.maximum-backlog-steps";
    let file = "\n[upload]\nmaximum-backlog-steps = 3";
    let variable = ("STEPVAULT_UPLOAD_MAXIMUM_BACKLOG_STEPS", "4");
    assert_eq!(shown(&sources(""), key), "16 from default");
    assert_eq!(shown(&sources(file), key), "3 from /etc/stepvault.toml:3");
    let mut all = environment(file, &[variable]);
    assert_eq!(shown(&all, key), "4 from STEPVAULT_UPLOAD_MAXIMUM_BACKLOG_STEPS");
    all.flags.push(flag(key, 5));
    assert_eq!(shown(&all, key), "5 from --flag");
    assert_eq!(load(&all).unwrap().upload.maximum_backlog_steps, 5);
}

#[test]
fn every_kind_of_value_can_come_from_the_environment() {
    let text =
        "[remote.s3-main]\nurl = \"s3://b\"\n[remote.b]\nurl = \"s3://c\"\n[run.\"a/b\"]\nwatch = \"/w\"";
    let config = load(&environment(
        text,
        &[
            ("STEPVAULT_NODE", "n1"),
            ("STEPVAULT_UPLOAD_MEMORY_BUDGET", "64 MiB"),
            ("STEPVAULT_REMOTE_S3_MAIN_REQUIRED", "false"),
            ("STEPVAULT_REMOTE_S3_MAIN_TAGS", "a=1, b=2"),
            ("STEPVAULT_RUN_A_B_REMOTES", "b"),
            ("STEPVAULT_RUN_A_B_KEEP_REMOTE_BEST", "x:y:2:highest"),
            ("STEPVAULT_KEEP_LOCAL_WITHIN", "2d"),
            ("PATH", "/bin"),
        ],
    ))
    .unwrap();
    assert_eq!(config.node.as_ref().unwrap().as_str(), "n1");
    assert_eq!(config.upload.memory_budget_bytes, 64 << 20);
    assert!(!config.remotes[0].required);
    assert_eq!(config.remotes[0].tags["b"], "2");
    let run = &config.runs[0];
    assert_eq!(run.remotes.as_ref().unwrap()[0].as_str(), "b");
    assert_eq!((run.keep_remote.best[0].metric.as_str(), run.keep_remote.best[0].count), ("x:y", 2));
    assert_eq!(run.keep_local.within_seconds, Some(172_800));
}

#[test]
fn unknown_variables_are_warned_of_and_bad_values_are_faults() {
    let report = check(&environment(
        "",
        &[
            ("STEPVAULT_UPLOAD_MEMORY_BUGDET", "1"),
            ("STEPVAULT_RUN", "x"),
            ("STEPVAULT_RESTORED_STEP", "7"),
            ("STEPVAULT_RESTORED_PATH", ""),
            ("STEPVAULT_PROGRAM", "/opt/bin/stepvault"),
            ("STEPVAULT_AGENT_POLL_INTERVAL", "5"),
        ],
    ));
    let warning = &report.warnings[0];
    assert_eq!(warning.to_string(), "STEPVAULT_UPLOAD_MEMORY_BUGDET: unknown variable: it has no effect");
    assert_eq!(warning.hint.as_deref(), Some("did you mean STEPVAULT_UPLOAD_MEMORY_BUDGET?"));
    assert_eq!(report.warnings.len(), 1);
    let fault = &report.faults[0];
    assert_eq!(fault.to_string(), "STEPVAULT_AGENT_POLL_INTERVAL: agent.poll-interval: it has no unit");
    assert_eq!(fault.hint.as_deref(), Some("write \"5s\", \"5m\" or \"5h\""));
    let empty = check(&environment("", &[("STEPVAULT_NODE", "")]));
    assert_eq!(empty.faults[0].to_string(), "STEPVAULT_NODE: node: it is empty");
}

#[test]
fn a_variable_that_could_mean_two_keys_is_a_fault() {
    let text = "[remote.a-b]\nurl = \"s3://b\"\n[remote.a_b]\nurl = \"s3://c\"";
    let report = check(&environment(text, &[("STEPVAULT_REMOTE_A_B_REGION", "x")]));
    let fault =
        "STEPVAULT_REMOTE_A_B_REGION: it matches more than one key: remote.a-b.region, remote.a_b.region";
    assert_eq!(report.faults[0].to_string(), fault);
}

#[test]
fn variables_are_named_after_their_keys() {
    assert_eq!(variable_name("upload.memory-budget"), "STEPVAULT_UPLOAD_MEMORY_BUDGET");
    assert_eq!(variable_name("run.\"a/b\".watch"), "STEPVAULT_RUN_A_B_WATCH");
}

#[test]
fn a_remote_can_come_from_flags_alone_and_comes_after_those_of_the_file() {
    let mut sources = sources("[remote.z]\nurl = \"s3://z\"\n[remote.a]\nurl = \"s3://a\"");
    sources.flags = vec![flag("remote.extra.url", "s3://b/p?region=r"), flag("run.\"a/b\".watch", "w")];
    let config = load(&sources).unwrap();
    let names: Vec<&str> = config.remotes.iter().map(|remote| remote.name.as_str()).collect();
    assert_eq!(names, ["z", "a", "extra"]);
    assert_eq!(config.remotes[2].region.as_deref(), Some("r"));
    assert_eq!(config.runs[0].watch.as_deref(), Some(std::path::Path::new("w")));
    sources.flags = vec![flag("no such key", 1), flag("upload.nothing", 1)];
    let faults: Vec<String> = check(&sources).faults.iter().map(ToString::to_string).collect();
    assert_eq!(
        faults,
        ["--flag: no such key: it is not a valid dotted key", "--flag: upload.nothing: there is no such key"]
    );
}

#[test]
fn options_of_a_url_are_keys_of_the_layer_that_gave_the_url() {
    let text = "[remote.r]\nurl = \"s3://b/p?region=one&endpoint=http://127.0.0.1:9000\"\nprofile = \"p\"";
    let config = loaded(text);
    assert_eq!(config.remotes[0].region.as_deref(), Some("one"));
    assert_eq!(config.remotes[0].profile.as_deref(), Some("p"));
    assert_eq!(shown(&sources(text), "remote.r.url"), "\"s3://b/p\" from /etc/stepvault.toml:2");
    let stronger = environment(text, &[("STEPVAULT_REMOTE_R_REGION", "two")]);
    assert_eq!(shown(&stronger, "remote.r.region"), "\"two\" from STEPVAULT_REMOTE_R_REGION");
    let (fault, _) = only_fault("[remote.r]\nurl = \"s3://b/p?region=one\"\nregion = \"two\"");
    assert_eq!(fault, "/etc/stepvault.toml:2: remote.r.region: it is given twice");
    let (fault, hint) = only_fault("[remote.r]\nurl = \"s3://b/p?regoin=one\"");
    assert_eq!(fault, "/etc/stepvault.toml:2: remote.r.url: there is no option 'regoin'");
    assert_eq!(hint, "did you mean 'region'?");
}

#[test]
fn every_option_may_stand_in_the_url() {
    let remote = |url: &str| {
        let mut config = load(&Sources { flags: vec![flag("remote.r.url", url)], ..Sources::default() })?;
        Ok::<_, crate::Error>(config.remotes.remove(0))
    };
    let url = "s3://b/p?required=false&stall-timeout=5s&bandwidth-limit=1MiB&tags=a%3Db&read-back=always&copy-unchanged=false";
    let settings = remote(url).unwrap();
    assert_eq!((settings.required, settings.stall_timeout_seconds), (false, 5));
    assert!(!settings.copy_unchanged);
    assert_eq!(settings.bandwidth_limit, BandwidthLimit::all_day(1 << 20));
    assert_eq!((settings.tags["a"].as_str(), settings.url.to_string().as_str()), ("b", "s3://b/p"));
    for (url, text) in [
        (
            "s3://b?reqired=false",
            "the configuration is invalid: --flag: remote.r.url: there is no option 'reqired'",
        ),
        (
            "s3://b?stall-timeout=5",
            "the configuration is invalid: --flag: remote.r.stall-timeout: it has no unit",
        ),
        (
            "nothing",
            "the configuration is invalid: --flag: remote.r.url: not a remote's URL: nothing: it has no scheme",
        ),
        (
            "s3://b?endpoint=http://minio:9000",
            "the configuration is invalid: --flag: remote.r.endpoint: plain http to another machine would expose every byte on the \
             network",
        ),
        (
            "file:///d?region=x",
            "the configuration is invalid: --flag: remote.r.region: it does not apply to a file:// remote",
        ),
    ] {
        assert_eq!(remote(url).expect_err(url).to_string(), text);
    }
    let password = "s3://b?endpoint=http://user:s3&cr3t@host";
    let error = remote(password).expect_err(password);
    assert!(!error.to_string().contains("cr3t"), "{error}");
    for same in
        ["file:///data/my%20vault", "file:///data/50%25", "s3://b/a%3Fb", "s3://b/a%20", "file:///a%5Cb"]
    {
        let parsed = crate::remote_settings::RemoteUrl::parse(same).unwrap().0;
        assert_eq!(remote(same).unwrap().url, parsed, "{same}");
    }
}

#[test]
fn keep_rules_of_a_run_fall_back_key_by_key() {
    let text = "[keep.local]\nlast = 3\nevery-steps = 1000\n[run.a.keep.local]\nlast = 5\n[run.b.keep.local]\nevery-steps = 0";
    let config = loaded(text);
    assert_eq!(
        (config.runs[0].keep_local.last, config.runs[0].keep_local.every_steps),
        (Some(5), Some(1000))
    );
    assert_eq!((config.runs[1].keep_local.last, config.runs[1].keep_local.every_steps), (Some(3), Some(0)));
    assert_eq!(config.run(&"other".parse().unwrap()).keep_local.last, Some(3));
}

#[test]
fn paths_of_the_file_start_at_the_file() {
    let config = loaded("[local]\ndirectory = \"../vault\"");
    assert_eq!(config.local.directory.as_deref(), Some(std::path::Path::new("/etc/../vault")));
    let flagged = Sources { flags: vec![flag("local.directory", "v/./x")], ..Sources::default() };
    assert_eq!(load(&flagged).unwrap().local.directory.as_deref(), Some(std::path::Path::new("v/x")));
}

#[test]
fn what_is_shown_hides_what_should_not_be_there() {
    for text in
        ["url = \"s3://key:s3cr3t@b/p\"", "url = \"s3://b\"\nendpoint = \"http://u:s3cr3t@127.0.0.1\""]
    {
        let report = report(&format!("[remote.r]\n{text}"));
        assert_eq!(report.faults.len(), 1);
        assert!(!format!("{:?}", report.faults).contains("s3cr3t"), "{:?}", report.faults);
    }
}
