//! Tests of file patterns.

use super::*;
use crate::path::RelativePath;

fn paths(texts: &[&str]) -> Vec<RelativePath> {
    texts
        .iter()
        .map(|text| RelativePath::new(*text).unwrap())
        .collect()
}

#[test]
fn include_takes_names_paths_and_directories() {
    let all = paths(&["model.safetensors", "a/x.safetensors", "a/b/y.pt", "config.json"]);
    for (pattern, taken) in [
        ("*.safetensors", vec!["model.safetensors", "a/x.safetensors"]),
        ("a/*", vec!["a/x.safetensors", "a/b/y.pt"]),
        ("a/*.pt", vec![]),
        ("a/**/*.pt", vec!["a/b/y.pt"]),
        ("b/", vec!["a/b/y.pt"]),
        ("a", vec!["a/x.safetensors", "a/b/y.pt"]),
        ("{config,model}.*", vec!["model.safetensors", "config.json"]),
    ] {
        let filter = IncludeFilter::new(&[pattern.to_owned()]).unwrap();
        let found: Vec<&str> = all
            .iter()
            .filter(|path| filter.takes(path))
            .map(RelativePath::as_str)
            .collect();
        assert_eq!(found, taken, "{pattern}");
        assert_eq!(
            filter.check(&all.iter().collect::<Vec<_>>()).is_ok(),
            !taken.is_empty(),
            "{pattern}"
        );
    }
    assert!(IncludeFilter::new(&[]).unwrap().takes(&all[0]));
}

#[test]
fn a_pattern_that_takes_nothing_or_is_none_is_a_usage_error() {
    let all = paths(&["1", "2", "3", "4", "5", "6"]);
    let filter = IncludeFilter::new(&["1".to_owned(), "*.pt".to_owned()]).unwrap();
    let error = filter.check(&all.iter().collect::<Vec<_>>()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert_eq!(
        error.to_string(),
        "a pattern of --include matches no file: *.pt: the step has 6 files: 1, 2, 3, 4, 5, …"
    );
    let error = filter.check(&all.iter().take(5).collect::<Vec<_>>()).unwrap_err();
    assert!(error.to_string().ends_with("5 files: 1, 2, 3, 4, 5"), "{error}");
    for (pattern, text) in [
        (
            "./a",
            "not a pattern: \"./a\": paths are relative to the checkpoint and begin with a name",
        ),
        (
            "a[",
            "not a pattern: \"a[\": unclosed character class; missing ']'",
        ),
        ("", "not a pattern: \"\": it is empty"),
        (
            "/a",
            "not a pattern: \"/a\": paths are relative to the checkpoint and begin with a name",
        ),
    ] {
        assert_eq!(
            IncludeFilter::new(&[pattern.to_owned()]).unwrap_err().to_string(),
            text
        );
    }
}
