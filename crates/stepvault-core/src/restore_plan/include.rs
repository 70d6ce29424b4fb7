//! Which files of a step to restore.

use globset::{Glob, GlobBuilder, GlobSet, GlobSetBuilder};

use crate::error::{Error, ErrorKind, Result};
use crate::path::RelativePath;

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
        let patterns = patterns
            .iter()
            .map(|pattern| Ok((pattern.clone(), compile(pattern)?)));
        Ok(Self {
            patterns: patterns.collect::<Result<_>>()?,
        })
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
        Error::new(ErrorKind::Usage, "not a pattern")
            .on(format!("{pattern:?}"))
            .because(why)
    };
    let plain = pattern.trim_end_matches('/');
    if plain.is_empty() {
        return Err(fault(&"it is empty"));
    }
    if plain.starts_with('/') || plain.starts_with("./") {
        return Err(fault(
            &"paths are relative to the checkpoint and begin with a name",
        ));
    }
    let glob = |text: &str| -> Result<Glob> {
        GlobBuilder::new(text)
            .literal_separator(true)
            .build()
            .map_err(|error| fault(&error.kind()))
    };
    let mut globs = GlobSetBuilder::new();
    globs.add(glob(plain)?).add(glob(&format!("{plain}/**"))?);
    if !plain.contains('/') {
        globs
            .add(glob(&format!("**/{plain}"))?)
            .add(glob(&format!("**/{plain}/**"))?);
    }
    globs.build().map_err(|error| fault(&error.kind()))
}
