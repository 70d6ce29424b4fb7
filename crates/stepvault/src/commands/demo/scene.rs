//! Where the demo plays: two nodes with local disks, and a directory that is the remote.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use stepvault_core::config::{FlagOverride, Sources};
use stepvault_core::ids::{RunName, StepId};
use stepvault_core::keys::RunKeys;
use stepvault_core::path::RelativePath;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_engine::blocking::blocking;
use stepvault_local::durable;
use tempfile::TempDir;

use super::node::Node;
use crate::commands::Session;
use crate::context::{DefaultVault, Settings, Tiers, vault_beside};
use crate::output::Output;

const RUN: &str = "demo";
/// The steps and their losses. The best is not among the last two, so that keeping it is a rule of its own.
pub(super) const LOSSES: [(u64, f64); 5] = [(10, 2.91), (20, 2.35), (30, 1.98), (40, 2.05), (50, 2.01)];
const NEWEST: &str = "000000000050.a1";
const NEWEST_NAME: &str = "step_50";
pub(super) const NEWEST_VALID_STEP: u64 = 40;
pub(super) const REMAINING_STEPS: [u64; 3] = [50, 40, 30];

/// The place.
#[derive(Debug)]
pub(super) struct Scene {
    root: PathBuf,
    temporary: Option<TempDir>,
}

pub(super) fn fault(what: &str, path: &Path, error: std::io::Error) -> Error {
    Error::new(ErrorKind::Failed, what)
        .on(path.display())
        .caused_by(error)
}

impl Scene {
    /// In a directory of its own, or in `keep`, which has to be empty.
    pub(super) async fn set(keep: Option<PathBuf>) -> Result<Self> {
        blocking(move || {
            let Some(directory) = keep else {
                let temporary = tempfile::Builder::new().prefix("stepvault-demo-").tempdir();
                let temporary = temporary
                    .map_err(|error| fault("cannot make a directory", &std::env::temp_dir(), error))?;
                return Ok(Self {
                    root: temporary.path().to_owned(),
                    temporary: Some(temporary),
                });
            };
            durable::create_directories(&directory)?;
            let root =
                std::path::absolute(&directory).map_err(|error| fault("not a path", &directory, error))?;
            let mut entries = std::fs::read_dir(&root).map_err(|error| fault("cannot list", &root, error))?;
            if entries.next().is_some() {
                return Err(Error::new(ErrorKind::Usage, "will not play here")
                    .on(root.display())
                    .because("the directory is not empty")
                    .hint("name an empty directory, or one that does not exist yet"));
            }
            Ok(Self {
                root,
                temporary: None,
            })
        })
        .await
    }

    /// Leaves everything where it is.
    pub(super) fn leave(self) -> PathBuf {
        self.temporary.map_or(self.root, TempDir::keep)
    }

    /// Removes everything, unless it was to be kept.
    pub(super) fn clear(self) -> Result<Option<PathBuf>> {
        match self.temporary {
            Some(temporary) => temporary
                .close()
                .map(|()| None)
                .map_err(|error| fault("cannot remove the demo's directory", &self.root, error)),
            None => Ok(Some(self.root)),
        }
    }

    fn remote(&self) -> PathBuf {
        self.root.join("remote")
    }

    /// The node that trains, with a vault.
    pub(super) async fn first_node(&self, session: &Session) -> Result<Node> {
        self.node("node-1-", session, DefaultVault::Created).await
    }

    /// The node that takes over, with nothing on its disk.
    pub(super) async fn second_node(&self, session: &Session) -> Result<Node> {
        self.node("node-2-", session, DefaultVault::Existing).await
    }

    async fn node(&self, name: &str, session: &Session, vault: fn(PathBuf) -> DefaultVault) -> Result<Node> {
        let disk = tempfile::Builder::new().prefix(name).tempdir_in(&self.root);
        let disk = disk.map_err(|error| fault("cannot make a node's disk", &self.root, error))?;
        let checkpoints = disk.path().join("checkpoints");
        let settings = Settings::of(&self.sources(), RunName::new(RUN)?)?;
        let vault = vault(vault_beside(&checkpoints.join("step"))?);
        // The stages tell what happens; bars between them would not help.
        let silent = Output::new(session.output.is_json(), true);
        let tiers = Tiers::open(&settings, vault, &silent).await?;
        Ok(Node {
            disk: Some(disk),
            checkpoints,
            tiers,
            written: BTreeMap::new(),
        })
    }

    /// The configuration, as a file would give it.
    fn sources(&self) -> Sources {
        let keys = [
            ("remote.demo.url", file_url(&self.remote())),
            ("run.demo.metrics-file", "trainer_state.json".to_owned()),
        ];
        let text = |(key, value): (&str, String)| (key.to_owned(), toml::Value::String(value));
        let mut metrics = toml::Table::new();
        metrics.insert("loss".to_owned(), toml::Value::String("/loss".to_owned()));
        let metrics = ("run.demo.metrics".to_owned(), toml::Value::Table(metrics));
        let flags = keys.into_iter().map(text).chain([metrics]);
        let flags = flags.map(|(key, value)| FlagOverride {
            key,
            value,
            flag: "demo".to_owned(),
        });
        Sources {
            file: None,
            environment: Vec::new(),
            flags: flags.collect(),
        }
    }

    /// Flips a byte in the middle of the newest step's model, on the remote.
    pub(super) fn damage_newest(&self) -> Result<String> {
        let id = StepId::from_label(NEWEST)
            .ok_or_else(|| Error::new(ErrorKind::Failed, "not a label").on(NEWEST))?;
        let keys = RunKeys::new(RunName::new(RUN)?);
        let path =
            self.remote()
                .join(keys.data(NEWEST_NAME, id, &RelativePath::new("model.safetensors")?)?);
        let flip = || -> std::io::Result<u64> {
            let mut file = OpenOptions::new().read(true).write(true).open(&path)?;
            let middle = file.metadata()?.len() / 2;
            let mut byte = [0];
            file.seek(SeekFrom::Start(middle))?;
            file.read_exact(&mut byte)?;
            file.seek(SeekFrom::Start(middle))?;
            file.write_all(&[!byte[0]])?;
            Ok(middle)
        };
        let position = flip().map_err(|error| fault("cannot damage the remote copy", &path, error))?;
        Ok(format!(
            "byte {position} of {NEWEST_NAME}/model.safetensors is flipped"
        ))
    }
}

/// A directory as a URL.
fn file_url(directory: &Path) -> String {
    let mut url = "file://".to_owned();
    for byte in directory.as_os_str().as_encoded_bytes() {
        if byte.is_ascii_alphanumeric() || b"/._-".contains(byte) {
            url.push(char::from(*byte));
        } else {
            url.extend(format!("%{byte:02X}").chars());
        }
    }
    url
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_directory_is_a_url() {
        assert_eq!(file_url(Path::new("/tmp/a b%/ü")), "file:///tmp/a%20b%25/%C3%BC");
    }
}
