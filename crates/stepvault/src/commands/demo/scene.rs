//! The setup of the demo: two nodes with local disks, and a directory that serves as the remote.

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
use crate::context::{DefaultVault, Settings, Tiers, vault_beside};
use crate::output::Output;
use crate::session::Session;

const RUN: &str = "demo";
/// The steps and their losses. The best is not among the last two, so that only the rule for the best keeps it.
pub(super) const LOSSES: [(u64, f64); 5] = [(10, 2.91), (20, 2.35), (30, 1.98), (40, 2.05), (50, 2.01)];
const NEWEST: &str = "000000000050.a1";
const NEWEST_NAME: &str = "step_50";
pub(super) const NEWEST_VALID_STEP: u64 = 40;
pub(super) const REMAINING_STEPS: [u64; 3] = [50, 40, 30];

/// The directory of the demo.
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
    /// Creates the setup in a temporary directory, or in `keep`, which must be empty.
    pub(super) async fn set(keep: Option<PathBuf>) -> Result<Self> {
        blocking(move || {
            let Some(directory) = keep else {
                let temporary = tempfile::Builder::new().prefix("stepvault-demo-").tempdir();
                let temporary = temporary
                    .map_err(|error| fault("cannot create a directory", &std::env::temp_dir(), error))?;
                return Ok(Self {
                    root: temporary.path().to_owned(),
                    temporary: Some(temporary),
                });
            };
            durable::create_directories(&directory)?;
            let root =
                std::path::absolute(&directory).map_err(|error| fault("invalid path", &directory, error))?;
            let mut entries = std::fs::read_dir(&root).map_err(|error| fault("cannot list", &root, error))?;
            if entries.next().is_some() {
                return Err(Error::new(ErrorKind::Usage, "refusing to run the demo here")
                    .on(root.display())
                    .because("the directory is not empty")
                    .hint("give an empty directory, or one that does not exist yet"));
            }
            Ok(Self {
                root,
                temporary: None,
            })
        })
        .await
    }

    /// Keeps all files and returns their directory.
    pub(super) fn leave(self) -> PathBuf {
        self.temporary.map_or(self.root, TempDir::keep)
    }

    /// Removes all files, unless they are to be kept; returns their directory then.
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

    /// The replacement node, with an empty disk.
    pub(super) async fn second_node(&self, session: &Session) -> Result<Node> {
        self.node("node-2-", session, DefaultVault::Existing).await
    }

    async fn node(&self, name: &str, session: &Session, vault: fn(PathBuf) -> DefaultVault) -> Result<Node> {
        let disk = tempfile::Builder::new().prefix(name).tempdir_in(&self.root);
        let disk = disk.map_err(|error| fault("cannot create a node's disk", &self.root, error))?;
        let checkpoints = disk.path().join("checkpoints");
        let settings = Settings::of(&self.sources(), RunName::new(RUN)?)?;
        let vault = vault(vault_beside(&checkpoints.join("step"))?);
        // The stages are logged, so no progress is shown.
        let silent = Output::new(session.output.is_json(), true);
        let tiers = Tiers::open(&settings, vault, &silent).await?;
        Ok(Node {
            disk: Some(disk),
            checkpoints,
            tiers,
            written: BTreeMap::new(),
        })
    }

    /// Returns the configuration, with the keys that a file would set.
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
            run: None,
        }
    }

    /// Flips a byte in the middle of the newest step's model on the remote.
    pub(super) fn damage_newest(&self) -> Result<String> {
        let id = StepId::from_label(NEWEST)
            .ok_or_else(|| Error::new(ErrorKind::Failed, "invalid step label").on(NEWEST))?;
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

/// Returns the URL of a directory.
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
