//! Detects that the vault was deleted, unmounted or replaced while the service had it open.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use stepvault_core::{Error, ErrorKind, Result};
use stepvault_engine::blocking::blocking;
use stepvault_local::lock::VaultLock;
use stepvault_local::vault::{Vault, entry_names};
use tokio::time::{Instant, sleep};

/// The interval between checks. Writes in between fail: the vault's own directories are not created again.
const INTERVAL: Duration = Duration::from_secs(1);
/// Interval between checks of what is left of the vault.
const SETTLING: Duration = Duration::from_millis(500);
/// Maximum time to wait for the deletion of a vault to finish before creating a new one.
const SETTLED_WITHIN: Duration = Duration::from_secs(30);

/// An open vault, and the file system that it is on.
#[derive(Debug)]
pub(crate) struct VaultWatch {
    vault: Vault,
    lock: Arc<VaultLock>,
    device: Option<u64>,
}

impl VaultWatch {
    /// Starts with the current state. Holds the lock until dropped. Blocks.
    pub(crate) fn new(vault: Vault, lock: VaultLock) -> Self {
        let device = device_of(vault.root());
        let lock = Arc::new(lock);
        Self { vault, lock, device }
    }

    /// Returns the vault.
    pub(crate) fn vault(&self) -> &Vault {
        &self.vault
    }

    /// Whether the vault, or its lock, is no longer the one that was opened. A failed check is no evidence.
    pub(crate) async fn is_gone(&self) -> bool {
        let (vault, lock) = (self.vault.clone(), Arc::clone(&self.lock));
        let is_well = blocking(move || Ok(vault.is_there()? && lock.is_held()?)).await;
        matches!(is_well, Ok(false))
    }

    /// Returns when the vault is gone.
    pub(crate) async fn until_gone(&self) {
        while !self.is_gone().await {
            sleep(INTERVAL).await;
        }
    }

    /// Waits until the deletion of the vault has finished, and checks whether a new one may be created.
    ///
    /// # Errors
    /// When the vault's file system is no longer mounted: a new vault would fill the disk below the mount point.
    pub(crate) async fn may_begin_anew(&self) -> Result<()> {
        let deadline = Instant::now() + SETTLED_WITHIN;
        let mut before = None;
        loop {
            let root = self.vault.root().to_owned();
            // A directory that cannot be listed is reported when it is opened.
            let now = blocking(move || Ok(entry_names(&root).ok())).await?;
            if before.as_ref() == Some(&now) || Instant::now() >= deadline {
                break;
            }
            before = Some(now);
            sleep(SETTLING).await;
        }
        let (root, device) = (self.vault.root().to_owned(), self.device);
        blocking(move || {
            if device_of(&root) == device {
                return Ok(());
            }
            Err(Error::at(ErrorKind::Failed, "cannot continue without the vault", &root)
                .because("its file system is no longer mounted")
                .hint("mount it and start the agent again; the vault's sealed steps are on that disk"))
        })
        .await
    }
}

/// Returns the device of a directory, or of its nearest existing parent.
fn device_of(path: &Path) -> Option<u64> {
    let there = path.ancestors().find_map(|path| path.metadata().ok());
    there.map(|facts| facts.dev())
}
