//! The fixtures: archives of checkpoints that real frameworks wrote, with their known properties.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::tree::{Entry, Snapshot, sha256, snapshot};

/// Returns the directory of the archives.
pub fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures")
}

/// Returns `MANIFEST.json`, which describes the archives.
pub fn manifest() -> Value {
    let bytes = std::fs::read(directory().join("MANIFEST.json")).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

/// Returns the manifest's entries of all fixtures, in its order.
pub fn entries() -> Vec<Value> {
    manifest()["fixtures"].as_array().unwrap().clone()
}

/// Returns the names of all fixtures, in the manifest's order.
pub fn names() -> Vec<String> {
    entries().iter().map(|entry| text(&entry["name"])).collect()
}

/// Returns the manifest's entry of a fixture.
pub fn entry(name: &str) -> Value {
    let mut entries = entries().into_iter();
    entries.find(|entry| entry["name"] == name).expect("a fixture")
}

/// Unpacks an archive into `directory`, and returns the root of what was in it.
pub fn unpack_into(name: &str, directory: &Path) -> PathBuf {
    let archive = self::directory().join(text(&entry(name)["archive"]));
    // Sub-second times are in extended headers, which GNU tar reads.
    let output = Command::new("tar")
        .args(["--extract", "--preserve-permissions", "--no-same-owner", "--file"])
        .arg(&archive)
        .arg("--directory")
        .arg(directory)
        .output()
        .expect("tar runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    directory.join(name)
}

/// A step as the manifest lists it.
#[derive(Debug)]
pub struct FixtureStep {
    /// Its path in the fixture.
    pub path: String,
    /// Its number, if it is a step of a series.
    pub step: Option<u64>,
}

/// An unpacked fixture. It is removed when dropped.
#[derive(Debug)]
pub struct Fixture {
    /// The directory that the framework wrote.
    pub root: PathBuf,
    /// The steps in it, complete or not.
    pub steps: Vec<FixtureStep>,
    /// The symbolic links in it, with their targets.
    pub symlinks: Vec<(String, String)>,
    entry: Value,
    _directory: TempDir,
}

impl Fixture {
    /// Unpacks a fixture, and fails unless what comes out is what the manifest says.
    pub fn unpack(name: &str) -> Self {
        let entry = entry(name);
        let archive = std::fs::read(directory().join(text(&entry["archive"]))).unwrap();
        assert_eq!(sha256(&archive), text(&entry["archive_sha256"]), "{name}");
        let unpacked = tempfile::tempdir().unwrap();
        let steps = entry["steps"].as_array().unwrap().iter();
        let links = entry["symlinks"].as_object().unwrap().iter();
        let fixture = Self {
            root: unpack_into(name, unpacked.path()),
            steps: steps
                .map(|step| FixtureStep { path: text(&step["path"]), step: step["step"].as_u64() })
                .collect(),
            symlinks: links.map(|(path, target)| (path.clone(), text(target))).collect(),
            entry,
            _directory: unpacked,
        };
        fixture.assert_true_to_manifest();
        fixture
    }

    /// Returns the paths of the complete steps.
    pub fn complete_steps(&self) -> Vec<String> {
        let steps = self.entry["steps"].as_array().unwrap().iter();
        let complete = steps.filter(|step| step["complete"] == true);
        complete.map(|step| text(&step["path"])).collect()
    }

    /// The bytes that the framework wrote are what round trips are compared with.
    fn assert_true_to_manifest(&self) {
        let mut found: Snapshot = snapshot(&self.root);
        found.remove(Path::new(""));
        let mut take = |path: &str, wanted: Entry| {
            let path = path.trim_end_matches('/');
            assert_eq!(found.remove(Path::new(path)), Some(wanted), "{path}");
        };
        for (path, known) in self.entry["files"].as_object().unwrap() {
            take(
                path,
                Entry::File {
                    size_bytes: known["size"].as_u64().unwrap(),
                    sha256: text(&known["sha256"]),
                    mode: mode(known),
                    mtime_nanoseconds: mtime(known),
                },
            );
        }
        for (path, known) in self.entry["dirs"].as_object().unwrap() {
            take(path, Entry::Directory { mode: mode(known), mtime_nanoseconds: mtime(known) });
        }
        for (path, target) in &self.symlinks {
            let target = PathBuf::from(target);
            take(path, Entry::Symlink { target });
        }
        assert_eq!(found, Snapshot::new(), "not in the manifest");
    }
}

fn text(value: &Value) -> String {
    let text = value.as_str();
    text.unwrap_or_else(|| panic!("no text: {value}")).to_owned()
}

fn mode(known: &Value) -> u32 {
    u32::from_str_radix(known["mode"].as_str().unwrap(), 8).unwrap()
}

fn mtime(known: &Value) -> i128 {
    i128::from(known["mtime_ns"].as_i64().unwrap())
}
