//! Selective remotes.

use super::{loaded, only_fault, report};
use crate::RemoteName;
use crate::ids::RunName;
use crate::retention::KeepRules;

const HOT: &str = "[remote.hot]\nurl = \"s3://hot\"\n[remote.cold]\nurl = \"s3://cold\"\n";

fn with(keys: &str) -> String {
    format!("{HOT}{keys}")
}

#[test]
fn a_remote_with_from_gets_selected_steps() {
    let config = loaded(&with(
        "from = \"hot\"\nafter = \"24h\"\nselect = { every-steps = 10000, last = 2, best = [{ metric = \"loss\", count = 3, prefer = \"lowest\" }], final = true }",
    ));
    let cold = config.remote(&RemoteName::new("cold").unwrap()).unwrap();
    let selection = cold.selection.as_ref().unwrap();
    assert_eq!((selection.from.as_str(), selection.after_seconds), ("hot", 86_400));
    assert!(selection.includes_newest && cold.is_fed_by(&RemoteName::new("hot").unwrap()));
    assert_eq!((selection.rules.every_steps, selection.rules.last), (Some(10_000), Some(2)));
    assert_eq!(selection.rules.best[0].count, 3);
    let all = loaded(&with("from = \"hot\"\n"));
    let selection = all.remotes[1].selection.as_ref().unwrap();
    assert!(selection.rules.is_unset() && !selection.includes_newest && selection.after_seconds == 0);
    assert_eq!(loaded(HOT).remotes[1].selection, None);
}

#[test]
fn steps_are_neither_uploaded_to_it_nor_removed_from_it_by_the_rules_for_remotes() {
    let text = "[remote.cold]\nurl = \"s3://cold\"\nfrom = \"hot\"\n[remote.hot]\nurl = \"s3://hot\"\n[keep.remote]\nlast = 5";
    let config = loaded(text);
    let run = config.run(&RunName::new("r").unwrap());
    let names = |remotes: Vec<&crate::RemoteSettings>| -> Vec<String> {
        remotes.iter().map(|remote| remote.name.to_string()).collect()
    };
    assert_eq!(names(config.remotes_of(&run)), ["hot", "cold"], "reads prefer the one that has every step");
    assert_eq!(names(config.upload_remotes_of(&run)), ["hot"]);
    assert_eq!(config.required_remotes_of(&run), [RemoteName::new("hot").unwrap()]);
    assert_eq!(run.keep_on(&config.remotes[0]), KeepRules::default());
    assert_eq!(run.keep_on(&config.remotes[1]).last, Some(5));
}

#[test]
fn what_selects_nothing_or_has_no_source_is_refused() {
    for (keys, key, why) in [
        (
            "after = \"1h\"",
            "cold.after",
            "it has no effect without from: every step is uploaded to the remote",
        ),
        (
            "select = { last = 1 }",
            "cold.select",
            "it has no effect without from: every step is uploaded to the remote",
        ),
        ("from = \"cold\"", "cold.from", "it names the remote itself"),
        ("from = \"hto\"", "cold.from", "there is no remote 'hto'"),
        ("from = \"hot\"\nselect = { last = 0 }", "cold.select", "it selects no step"),
        (
            "from = \"hot\"\n[remote.ice]\nurl = \"s3://ice\"\nfrom = \"cold\"",
            "ice.from",
            "'cold' gets its own steps from another remote",
        ),
    ] {
        let (fault, hint) = only_fault(&with(keys));
        assert!(fault.ends_with(&format!("remote.{key}: {why}")) && !hint.is_empty(), "{keys}: {fault}");
    }
    let (fault, _) = only_fault(&with("from = \"hot\"\n[run.r]\nremotes = [\"cold\"]"));
    assert!(
        fault.ends_with("run.r.remotes: 'cold' gets its steps from 'hot', which is not among them"),
        "{fault}"
    );
}

#[test]
fn the_newest_step_without_a_delay_causes_a_warning() {
    let warned = |keys: &str| report(&with(keys)).warnings.len();
    assert_eq!(warned("from = \"hot\"\nselect = { final = true }"), 1);
    assert_eq!(warned("from = \"hot\"\nafter = \"1h\"\nselect = { final = true }"), 0);
}

#[test]
fn the_url_takes_the_keys_but_not_the_table() {
    let config = loaded(
        "[remote.hot]\nurl = \"s3://hot\"\n[remote.cold]\nurl = \"s3://cold?from=hot&after=2h\"\nselect.last = 3",
    );
    let selection = config.remotes[1].selection.as_ref().unwrap();
    assert_eq!((selection.after_seconds, selection.rules.last), (7_200, Some(3)));
    let (fault, _) = only_fault("[remote.hot]\nurl = \"s3://hot?select=all\"");
    assert!(fault.contains("there is no option 'select'"), "{fault}");
}
