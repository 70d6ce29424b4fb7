//! A configuration: a file, variables and flags, laid over each other as the program does it.

use std::path::PathBuf;

use stepvault_core::config::{FileText, FlagOverride, Report, Sources, check as check_sources, load};
use stepvault_core::{ErrorKind, ids::RunName};

use super::urls::CANARY;

/// What stands between the file, the variables and the flags.
const NEXT: &str = "\n--\n";
/// What stands in place of a secret: such a value is not what was given.
const MASK: &str = "****";

/// A file, lines of variables and lines of flags.
pub fn check(text: &str) {
    let sources = sources(text);
    let report = check_sources(&sources);
    assert_eq!(report.config.is_some(), report.faults.is_empty(), "{:?}", report.faults);
    check_loaded(&sources, &report);
    check_shown(&sources, &report);
    check_secrets(text, &sources);
}

fn sources(text: &str) -> Sources {
    let mut pieces = text.splitn(3, NEXT);
    let file = pieces.next().unwrap_or_default();
    let pairs = |lines: Option<&str>| -> Vec<(String, String)> {
        let lines = lines.unwrap_or_default().lines();
        let pairs = lines.filter_map(|line| line.split_once('='));
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    };
    let environment = pairs(pieces.next());
    let flags = pairs(pieces.next())
        .into_iter()
        .map(|(key, value)| FlagOverride {
            key,
            value: toml::Value::String(value),
            flag: "--flag".to_owned(),
        })
        .collect();
    Sources { file: Some(file_of(file.to_owned())), environment, flags, run: None }
}

fn file_of(text: String) -> FileText {
    FileText { path: PathBuf::from("/etc/stepvault.toml"), text }
}

/// An error names every fault, and says that something is refused only where nothing else is wrong.
fn check_loaded(sources: &Sources, report: &Report) {
    match load(sources) {
        Ok(config) => {
            assert_eq!(Some(&config), report.config.as_ref(), "twice the same");
            for run in &config.runs {
                assert_eq!(config.run(&run.name).name, run.name);
            }
            let _ = config.run(&RunName::new("of-nobody").unwrap());
        }
        Err(error) => {
            let refused = report.faults.iter().all(|fault| fault.kind == ErrorKind::Refused);
            assert_eq!(error.kind() == ErrorKind::Refused, refused, "{error}");
            for fault in &report.faults {
                assert!(error.to_string().contains(&fault.why), "{error}");
            }
        }
    }
}

/// What `config show` prints means the same when it is the file.
fn check_shown(sources: &Sources, report: &Report) {
    let Some(config) = &report.config else { return };
    if config.profiles.is_some() || config.explained.iter().any(|entry| entry.value.contains(MASK)) {
        return;
    }
    let lines = config.explained.iter();
    let text: String = lines.map(|entry| format!("{} = {}\n", entry.key, entry.value)).collect();
    let shown = check_sources(&Sources {
        file: sources.file.as_ref().map(|_| file_of(text.clone())),
        ..Sources::default()
    });
    let again = shown.config.unwrap_or_else(|| panic!("{text}\n{:?}", shown.faults));
    let values = |config: &stepvault_core::config::Config| -> Vec<(String, String)> {
        let entries = config.explained.iter();
        entries.map(|entry| (entry.key.clone(), entry.value.clone())).collect()
    };
    let sorted = |mut values: Vec<(String, String)>| {
        values.sort();
        values
    };
    assert_eq!(sorted(values(&again)), sorted(values(config)), "{text}");
}

/// Secrets where none belong, beside anything else: in no finding, and in no value that is shown.
fn check_secrets(text: &str, sources: &Sources) {
    // Where it stands for something else as well, it may be shown.
    if text.contains(CANARY) {
        return;
    }
    let line = text.lines().next().unwrap_or_default().replace(['/', '?', '#', '\\', '"'], "");
    let flag = |key: &str, value: String| FlagOverride {
        key: key.to_owned(),
        value: toml::Value::String(value),
        flag: "--flag".to_owned(),
    };
    let mut sources = sources.clone();
    sources.flags.extend([
        flag("remote.c.url", format!("s3://{line}:{CANARY}@bucket/p?secret-access-key={CANARY}")),
        flag("remote.d.url", "s3://bucket/p".to_owned()),
        flag("remote.d.endpoint", format!("https://{line}:{CANARY}@host")),
        flag("remote.d.secret-access-key", CANARY.to_owned()),
        flag("remote.e.url", format!("s3://bucket/p?session-token={CANARY}")),
    ]);
    sources.environment.push(("STEPVAULT_REMOTE_D_TOKEN".to_owned(), CANARY.to_owned()));
    if let Some(file) = &mut sources.file {
        file.text = format!("{}\n[remote.f]\naccess-key = \"{CANARY}\"\n", file.text);
    }
    let report = check_sources(&sources);
    assert!(report.config.is_none());
    let told = format!("{:?} {:?} {:?}", report.faults, report.warnings, load(&sources));
    assert!(!told.contains(CANARY), "{told}");
}

/// The reference file with every key, and small ones.
pub fn seeds() -> Vec<Vec<u8>> {
    let reference = include_str!("../../../../config/stepvault.toml");
    let all: String = reference
        .lines()
        .map(|line| line.strip_prefix("# ").filter(|line| line.contains(" = ")).unwrap_or(line))
        .map(|line| format!("{line}\n"))
        .collect();
    [
        reference.to_owned(),
        all,
        "[local]\ndirectory = \"v\"\n[remote.main]\nurl = \"s3://b/p?region=x\"\n[run.\"a/b\"]\nwatch = \"out\"\n\
         pattern = \"step_{step}\"\nkeep.local.last = 2\n--\nSTEPVAULT_REMOTE_MAIN_REQUIRED=false\n\
         STEPVAULT_KEEP_LOCAL_BEST=loss:2:lowest\n--\nremote.main.tags=x\nupload.memory-budget=1 GiB"
            .to_owned(),
        "keep.remote.within = \"2d\"\nkeep.local.last = 0\n--\nSTEPVAULT_LOCAL_DIRECTORY=/v".to_owned(),
    ]
    .map(String::into_bytes)
    .to_vec()
}
