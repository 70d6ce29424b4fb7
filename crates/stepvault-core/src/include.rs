//! Patterns that select files of a checkpoint.

use globset::{Glob, GlobBuilder, GlobSet, GlobSetBuilder};

use crate::{Error, ErrorKind, RelativePath, Result};

/// Maximum number of paths that a message lists.
const LISTED: usize = 5;

/// The patterns of `--include`.
///
/// A pattern is matched against the path inside the checkpoint; `*` matches within one component and `**` across
/// components. A pattern without a slash also matches a file or directory of that name at any depth, and a pattern
/// that matches a directory includes everything in it.
#[derive(Debug, Clone)]
pub struct IncludeFilter {
    patterns: Vec<(String, GlobSet)>,
}

impl IncludeFilter {
    /// Parses the patterns; an empty list includes every file.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] for an invalid pattern.
    pub fn new(patterns: &[String]) -> Result<Self> {
        let patterns = patterns.iter().map(|pattern| Ok((pattern.clone(), compile(pattern)?)));
        Ok(Self { patterns: patterns.collect::<Result<_>>()? })
    }

    /// Returns whether a file is included.
    pub fn takes(&self, path: &RelativePath) -> bool {
        self.patterns.is_empty() || self.patterns.iter().any(|(_, globs)| globs.is_match(path))
    }

    /// Checks that each pattern matches at least one of a step's files.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] with the pattern and some of the files.
    pub fn check(&self, paths: &[&RelativePath]) -> Result<()> {
        let takes_some = |globs: &GlobSet| paths.iter().any(|path| globs.is_match(path));
        let Some((pattern, _)) = self.patterns.iter().find(|(_, globs)| !takes_some(globs)) else {
            return Ok(());
        };
        let mut listed: Vec<&str> = paths.iter().take(LISTED).map(|path| path.as_str()).collect();
        if paths.len() > LISTED {
            listed.push("…");
        }
        Err(Error::new(ErrorKind::Usage, "a pattern of --include matches no file")
            .on(pattern)
            .because(format!("the step has {} files: {}", paths.len(), listed.join(", ")))
            .hint("quote the pattern so that the shell does not expand it; '*' does not match a slash, '**' does"))
    }
}

fn compile(pattern: &str) -> Result<GlobSet> {
    let fault = |why: &dyn std::fmt::Display| {
        Error::new(ErrorKind::Usage, "not a pattern").on(format!("{pattern:?}")).because(why)
    };
    let plain = pattern.trim_end_matches('/');
    if plain.is_empty() {
        return Err(fault(&"it is empty"));
    }
    if plain.starts_with('/') || plain.starts_with("./") {
        return Err(fault(&"paths are relative to the checkpoint and begin with a name"));
    }
    let glob = |text: &str| -> Result<Glob> {
        GlobBuilder::new(text).literal_separator(true).build().map_err(|error| fault(&error.kind()))
    };
    let mut globs = GlobSetBuilder::new();
    globs.add(glob(plain)?).add(glob(&format!("{plain}/**"))?);
    if !plain.contains('/') {
        globs.add(glob(&format!("**/{plain}"))?).add(glob(&format!("**/{plain}/**"))?);
    }
    globs.build().map_err(|error| fault(&error.kind()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(texts: &[&str]) -> Vec<RelativePath> {
        texts.iter().map(|text| RelativePath::new(*text).unwrap()).collect()
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
            let found: Vec<&str> =
                all.iter().filter(|path| filter.takes(path)).map(RelativePath::as_str).collect();
            assert_eq!(found, taken, "{pattern}");
            assert_eq!(filter.check(&all.iter().collect::<Vec<_>>()).is_ok(), !taken.is_empty(), "{pattern}");
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
            ("./a", "not a pattern: \"./a\": paths are relative to the checkpoint and begin with a name"),
            ("a[", "not a pattern: \"a[\": unclosed character class; missing ']'"),
            ("", "not a pattern: \"\": it is empty"),
            ("/a", "not a pattern: \"/a\": paths are relative to the checkpoint and begin with a name"),
        ] {
            assert_eq!(IncludeFilter::new(&[pattern.to_owned()]).unwrap_err().to_string(), text);
        }
    }
}
