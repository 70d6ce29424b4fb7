//! Settings that contradict each other, unknown keys, and how they are reported.

use super::super::{Sources, load};
use super::{loaded, only_fault, report, sources};
use crate::error::ErrorKind;

#[test]
fn unknown_keys_are_refused_with_the_nearest_known_one() {
    for (text, fault, hint) in [
        (
            "[upload]\nmemory_budget = \"1 GiB\"",
            "2: upload.memory_budget",
            "did you mean 'upload.memory-budget'?",
        ),
        ("\n[remots.x]\nurl = \"s3://b\"", "2: remots", "did you mean 'remote'?"),
        ("[keep.local]\nlsat = 3", "2: keep.local.lsat", "did you mean 'keep.local.last'?"),
        ("[run.r]\npoll-interval = \"1s\"", "2: run.r.poll-interval", "did you mean 'agent.poll-interval'?"),
        (
            "[upload]\nxyzzy = 1",
            "2: upload.xyzzy",
            "the keys of this table are memory-budget, maximum-backlog-steps, incomplete-after",
        ),
        (
            "[remote.r]\nurl = \"s3://b\"\nsecret_access_key = \"x\"",
            "3: remote.r.secret_access_key",
            "do not write credentials here: provide them through the provider's own mechanism (environment, profile, \
             instance identity)",
        ),
    ] {
        let expected = (format!("/etc/stepvault.toml:{fault}: there is no such key"), hint.to_owned());
        assert_eq!(only_fault(text), expected, "{text}");
    }
}

#[test]
fn a_secret_that_was_written_by_mistake_is_in_no_fault_warning_or_error() {
    const SECRETS: [&str; 4] = [
        "AKIAcAnArYaCcEsSkEy1",
        "cAnArYsIgNaTuReInAqUeRy",
        "cAnArYpAsSwOrD",
        "cAnArY+secret/key=must_not_sing",
    ];
    let [access_key, signature, password, secret_key] = SECRETS;
    let plain = "[remote.main]\nurl = \"file:///nowhere/at/all\"";
    for text in [
        format!("[remote.aws]\nurl = \"s3://{access_key}:{signature}@bucket/prefix\""),
        format!("[remote.aws]\nurl = \"s3://bucket/prefix?X-Amz-Signature={signature}\""),
        format!("[remote.aws]\nurl = \"s3://bucket/prefix\"\nendpoint = \"https://user:{password}@host\""),
        format!("[remote.aws]\nurl = \"s3://bucket/prefix\"\nendpoint = \"https://host/?sig={signature}\""),
        format!("[remote.aws]\nurl = \"s3://bucket/prefix\"\nsecret-access-key = \"{secret_key}\""),
        format!("[remote.aws]\nurl = \"s3://bucket/prefix\"\nsecret-access-key = \"{secret_key}"),
        format!("{plain}\nrequired = \"{secret_key}\""),
        format!("{plain}\n[secrets]\naws = {{ key = \"{access_key}\", secret = \"{secret_key}\" }}"),
        format!("{plain}\n{secret_key}\n"),
    ] {
        let (report, error) = (report(&text), load(&sources(&text)).unwrap_err());
        assert_eq!(error.kind(), ErrorKind::Usage);
        // `config check` prints the findings, and every other command the error.
        let findings = serde_json::to_string(&(&report.faults, &report.warnings)).unwrap();
        let told = format!("{findings}{:?}{:?}{error}{error:?}", report.faults, report.warnings);
        for secret in SECRETS {
            assert!(!told.contains(secret), "{text}: {told}");
        }
    }
}

#[test]
fn broken_toml_names_its_line() {
    let (fault, _) = only_fault("format = 1\n[local\n");
    assert!(fault.starts_with("/etc/stepvault.toml:2: "), "{fault}");
    let (fault, _) = only_fault("[upload]\nmaximum-backlog-steps = 99999999999999999999\n");
    assert!(fault.starts_with("/etc/stepvault.toml:2: "), "{fault}");
    let (fault, _) = only_fault("format = 1\nformat = 1\n");
    assert!(fault.starts_with("/etc/stepvault.toml:2: ") && fault.contains("duplicate"), "{fault}");
}

#[test]
fn all_faults_are_told_at_once_in_the_order_of_the_file() {
    let text = "nod = 1\n[upload]\nmemory-budget = 5\n[run.r]\ncomplete = \"marker\"\nremotes = [\"gone\"]";
    let error = load(&sources(text)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert_eq!(
        error.to_string(),
        "the configuration is invalid: 4 problems:\n  /etc/stepvault.toml:1: nod: there is no such key (did you mean \
         'node'?)\n  /etc/stepvault.toml:3: upload.memory-budget: it has no unit (write \"5 B\", \"5 MiB\" or \"5 \
         GiB\")\n  /etc/stepvault.toml:4: run.r.marker: complete = \"marker\" requires the marker's name (write \
         marker = \".metadata\", the file that the trainer writes last)\n  /etc/stepvault.toml:6: run.r.remotes: \
         there is no remote 'gone' (add a table [remote.gone])"
    );
}

#[test]
fn a_single_fault_lends_the_error_its_hint() {
    let error = load(&sources("[upload]\nmemory-budget = \"1 MiB\"")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the configuration is invalid: /etc/stepvault.toml:2: upload.memory-budget: it is smaller than two parts of \
         the smallest size"
    );
    assert_eq!(error.hint_text(), Some("set it to at least \"16 MiB\""));
}

#[test]
fn rules_that_delete_everything_are_refused() {
    for text in [
        "[keep.remote]\nlast = 0",
        "[keep.local]\nlast = 0\nwithin = \"0s\"\nbest = [{ metric = \"x\", count = 0, prefer = \"lowest\" }]",
        "[keep.local]\nlast = 2\n[run.r.keep.local]\nlast = 0",
    ] {
        let error = load(&sources(text)).expect_err(text);
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        assert!(
            error.to_string().contains("the keep rules would delete everything: every given rule is 0"),
            "{error}"
        );
    }
    loaded("[keep.local]\nlast = 0\ndaily = 1");
    assert_eq!(loaded("[keep.local]\nwithin = \"200ms\"").keep_local.within_seconds, Some(1));
}

const REMOTE: &str = "[remote.r]\nurl = \"s3://b/p\"\n";

#[test]
fn settings_that_contradict_each_other_are_found() {
    for (text, fault) in [
        ("[local]\nfree-space-high = \"1 GB\"", "2: local.free-space-high: the low mark is not set"),
        (
            "[local]\nfree-space-low = \"2 GB\"\nfree-space-high = \"1 GB\"",
            "3: local.free-space-high: it is lower than local.free-space-low",
        ),
        ("[agent]\npoll-interval = \"0s\"", "2: agent.poll-interval: it is zero"),
        (
            "[remote.a]\nurl = \"s3://b/p\"\n[remote.b]\nurl = \"s3://b/p/\"",
            "4: remote.b.url: the remote 'a' has this URL already",
        ),
        (
            "[remote.local]\nurl = \"s3://b\"",
            "1: remote.local: not a remote's name: \"local\": use 1 to 63 letters, digits and ._-=+; it must not \
             begin with a dot, and must not be 'local' or 'all'",
        ),
        ("[remote.r]\nregion = \"x\"", "1: remote.r.url: the remote has no URL"),
        (
            "[remote.r]\nurl = \"s3://b\"\nstall-timeout = \"100ms\"",
            "3: remote.r.stall-timeout: it must be a whole number of seconds, at least one",
        ),
        (
            "[remote.r]\nurl = \"s3://b\"\nkms-key = \"k\"",
            "3: remote.r.kms-key: it has no effect without aws:kms encryption",
        ),
        (
            "[remote.r]\nurl = \"gs://b\"\nserver-side-encryption = \"aws:kms\"",
            "3: remote.r.server-side-encryption: it does not apply to a gs:// remote",
        ),
        (
            "[remote.r]\nurl = \"s3://b\"\ntransport = \"json\"",
            "3: remote.r.transport: it does not apply to a s3:// remote",
        ),
        (
            "[remote.r]\nurl = \"s3://b\"\nendpoint = \"http://10.0.0.1:9000\"",
            "3: remote.r.endpoint: plain http to another machine would expose every byte on the network",
        ),
        ("[remote.r]\nurl = \"s3://b\"\nendpoint = \"minio:9000\"", "3: remote.r.endpoint: it has no host"),
        (
            "[run.\"a b\"]\nwatch = \"/w\"",
            "1: run.\"a b\": not a run name: \"a b\": a segment between slashes may contain only letters, digits and \
             ._-=+ and must not begin with a dot",
        ),
        (
            "[run.r]\nquiet-time = \"0s\"",
            "2: run.r.quiet-time: it is zero: a step would be sealed while it is still being written",
        ),
        ("[run.r]\npattern = \"a/b\"", "2: run.r.pattern: it contains a slash"),
        (
            "[run.r]\npattern = \"a[\"",
            "2: run.r.pattern: it is not a pattern: unclosed character class; missing ']'",
        ),
        ("[run.r]\nmetrics = { x = \"/x\" }", "2: run.r.metrics: there is no metrics-file to read them from"),
        (
            "[run.r]\nmetrics-file = \"m.json\"\nmetrics = { x = \"x\" }",
            "3: run.r.metrics: 'x' for 'x' is not a JSON pointer",
        ),
        (
            "[run.r]\nremotes = []",
            "2: run.r.remotes: it is empty: no step of the run would ever become durable",
        ),
        ("[run.r]\nseries = []", "2: run.r.series: it is empty: no step would be sealed"),
        ("profile = \"mine\"", "1: profile: it is not a list of tables"),
        (
            "[run.a]\nwatch = \"/w\"\n[run.b]\nwatch = \"/x/../w\"",
            "4: run.b.watch: run 'a' already watches this directory with the same pattern",
        ),
    ] {
        assert_eq!(only_fault(text).0, format!("/etc/stepvault.toml:{fault}"), "{text}");
    }
    let text = format!("{REMOTE}[run.r]\nremotes = [\"q\"]");
    assert_eq!(only_fault(&text).1, "the remotes are r");
}

#[test]
fn the_trainers_own_steps_go_by_rules_that_are_there() {
    for (text, fault) in [
        (
            "[run.r]\nclean-source = true\nkeep.local.last = 2",
            "2: run.r.clean-source: no remote of the run is required: no step would ever be removed",
        ),
        (
            "[remote.a]\nurl = \"file:///r\"\n[run.r]\nclean-source = true",
            "4: run.r.clean-source: the local tier keeps every step, so none of the trainer's own steps would ever \
             be removed",
        ),
        (
            "[remote.a]\nurl = \"file:///r\"\n[keep.local]\nlast = 2\n[run.r]\ncomplete = \"rename\"\nclean-source = true",
            "7: run.r.clean-source: it requires a profile, which defines what the trainer can do without",
        ),
    ] {
        assert_eq!(only_fault(text).0, format!("/etc/stepvault.toml:{fault}"), "{text}");
    }
}

#[test]
fn endpoints_on_this_machine_or_allowed_by_name_may_be_plain() {
    for endpoint in
        ["http://127.0.0.1:9000", "http://localhost:9000", "http://[::1]:9000", "https://example.com"]
    {
        loaded(&format!("{REMOTE}endpoint = \"{endpoint}\""));
    }
    loaded(&format!("{REMOTE}endpoint = \"http://minio:9000\"\nallow-http = true"));
}

#[test]
fn directories_must_not_lie_in_each_other() {
    for (vault, watch, remote, fault) in [
        ("/w/vault", "/w", "/r", "run.r.watch: the local vault lies inside it (/w/vault)"),
        ("/v", "/v/w", "/r", "run.r.watch: it lies inside the local vault (/v)"),
        ("/w", "/w", "/r", "run.r.watch: it is also the local vault"),
        ("/v", "/w", "/v/r", "remote.r.url: it lies inside the local vault (/v)"),
        ("/v", "/w", "/w/r", "run.r.watch: the remote 'r' lies inside it (/w/r)"),
    ] {
        let text = format!(
            "local.directory = \"{vault}\"\nremote.r.url = \"file://{remote}\"\nrun.r.watch = \"{watch}\""
        );
        let (found, _) = only_fault(&text);
        assert_eq!(found.split_once(": ").unwrap().1, fault, "{text}");
    }
    loaded("local.directory = \"/a/vault\"\nremote.r.url = \"file:///a/vaults\"\nrun.r.watch = \"/a/w\"");
}

#[test]
fn settings_without_effect_are_warned_of() {
    for (text, warning) in [
        ("[run.r]\nmarker = \"m\"", "2: run.r.marker: it is not used"),
        ("[run.r]\ncomplete = \"rename\"\nquiet-time = \"1s\"", "3: run.r.quiet-time: it is not used"),
        (
            "[run.r]\npattern = \"step_*\"\ncomplete = \"quiet\"\nprofile = \"verl\"",
            "4: run.r.profile: it is not used",
        ),
        ("[run.r]\nmetrics-file = \"m.json\"", "2: run.r.metrics-file: no metrics are read from it"),
        (
            "[run.r]\nmetrics-file = \"m\"\nmetrics = { x = \"/x\" }\nkeep.local.best = [{ metric = \"y\", count = 1, prefer = \"lowest\" }]",
            "3: run.r.metrics: the metric 'y' is not configured: the rule then keeps only steps whose push gave this \
             metric",
        ),
    ] {
        let report = report(text);
        assert_eq!(report.faults, []);
        let warnings: Vec<String> = report.warnings.iter().map(ToString::to_string).collect();
        assert_eq!(warnings, [format!("/etc/stepvault.toml:{warning}")], "{text}");
    }
}

#[test]
fn nothing_at_all_is_a_configuration() {
    let config = load(&Sources::default()).unwrap();
    assert!(config.remotes.is_empty() && config.warnings.is_empty());
}
