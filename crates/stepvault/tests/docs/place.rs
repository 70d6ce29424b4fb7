//! A directory in which documented commands run, and access to the repository.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// The repository's root.
pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Every Markdown document under test, by its path in the repository.
pub(crate) fn documents() -> Vec<PathBuf> {
    let mut documents = vec![PathBuf::from("README.md")];
    let mut pending = vec![PathBuf::from("docs")];
    while let Some(directory) = pending.pop() {
        for entry in std::fs::read_dir(repository().join(&directory)).unwrap() {
            let entry = entry.unwrap();
            let path = directory.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                pending.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                documents.push(path);
            }
        }
    }
    documents.sort();
    documents
}

/// Reads a file of the repository.
pub(crate) fn read(path: impl AsRef<Path>) -> String {
    let path = repository().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// An empty directory with a home of its own, and links to the repository's `scripts` and `config`.
#[derive(Debug)]
pub(crate) struct Place {
    directory: TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        for name in ["scripts", "config"] {
            std::os::unix::fs::symlink(repository().join(name), directory.path().join(name)).unwrap();
        }
        std::fs::create_dir(directory.path().join(".home")).unwrap();
        Self { directory }
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Runs a line in a shell that finds the built binary, with nothing of this machine's set-up in its environment.
    pub(crate) fn shell(&self, line: &str) -> Output {
        let binary = Path::new(env!("CARGO_BIN_EXE_stepvault"));
        let path = std::env::var("PATH").unwrap_or_default();
        Command::new("sh")
            .args(["-c", &format!("umask 022; {line}")])
            .current_dir(self.path())
            .env_clear()
            .env("PATH", format!("{}:{path}", binary.parent().unwrap().display()))
            .env("HOME", self.path().join(".home"))
            .env("AWS_EC2_METADATA_DISABLED", "true")
            .env("GCE_METADATA_HOST", "127.0.0.1:1")
            .env("AZURE_POD_IDENTITY_AUTHORITY_HOST", "http://127.0.0.1:1")
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .output()
            .unwrap()
    }

    /// The standard output of a line that has to succeed.
    pub(crate) fn output(&self, line: &str) -> String {
        let output = self.shell(line);
        assert!(output.status.success(), "{line}\n{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }
}

/// The standard output of the binary.
pub(crate) fn stepvault(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_stepvault"))
        .args(arguments)
        .env_remove("COLUMNS")
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
