//! Every input results in a configuration or in faults.

use proptest::prelude::*;

use super::super::{Sources, check, variable_name};
use super::{flag, sources};

/// Generates text that resembles a configuration enough to reach the checks.
fn almost() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        Just("[remote.r]".to_owned()),
        Just("[run.\"a/b\".keep.local]".to_owned()),
        Just("[keep]".to_owned()),
        Just("url = \"s3://b?region=x\"".to_owned()),
        Just("local.last = [0]".to_owned()),
        Just("last = 9223372036854775807".to_owned()),
        Just("within = \"99999999999999y\"".to_owned()),
        Just("format = -1".to_owned()),
        "[a-z.\"]{1,8} = [0-9\"{}\\[\\]a-z]{1,8}",
        any::<String>(),
    ];
    prop::collection::vec(word, 0..8).prop_map(|lines| lines.join("\n"))
}

proptest! {
    #[test]
    fn nothing_panics(text in almost(), key in any::<String>(), value in any::<String>(), url in any::<String>()) {
        let environment = vec![(variable_name(&key), value.clone()), ("STEPVAULT_KEEP_LOCAL_BEST".to_owned(), value.clone())];
        let flags = vec![flag(&key, value.clone()), flag("remote.x.url", url.clone())];
        let report = check(&Sources { environment, flags, ..sources(&text) });
        prop_assert_eq!(report.config.is_some(), report.faults.is_empty());
        let flags = vec![flag("remote.x.url", format!("s3://{url}?{key}={value}"))];
        let _ = check(&Sources { flags, ..Sources::default() });
    }
}
