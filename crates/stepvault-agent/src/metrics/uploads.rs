//! The uploads in progress, by the engine's events.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use stepvault_core::ids::RemoteName;
use stepvault_core::observe::{Event, Operation, OperationKind, Tier};

use crate::messages::UploadProgress;

/// The upload in progress to each remote. Of several at once, as of small steps, it is the one that began last.
#[derive(Debug, Default)]
pub(crate) struct Uploads(Mutex<BTreeMap<RemoteName, UploadProgress>>);

impl Uploads {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<RemoteName, UploadProgress>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the uploads in progress.
    pub(crate) fn all(&self) -> Vec<UploadProgress> {
        self.lock().values().cloned().collect()
    }

    pub(super) fn count(&self, event: &Event<'_>) {
        match event {
            Event::BytesMoved { tier, bytes }
            | Event::BytesCopied { tier, bytes }
            | Event::BytesReused { tier, bytes } => self.progressed(tier, *bytes),
            Event::Started(operation) if operation.kind == OperationKind::Transfer => {
                self.started(operation);
            }
            Event::Finished { operation, .. } | Event::Failed { operation, .. }
                if operation.kind == OperationKind::Transfer =>
            {
                self.ended(operation);
            }
            _ => {}
        }
    }

    fn started(&self, transfer: &Operation<'_>) {
        if let Tier::Remote(remote) = transfer.tier {
            let started = UploadProgress {
                remote: remote.clone(),
                id: transfer.id,
                bytes: transfer.bytes.unwrap_or_default(),
                done_bytes: 0,
            };
            self.lock().insert(remote.clone(), started);
        }
    }

    fn progressed(&self, tier: &Tier, bytes: u64) {
        if let Tier::Remote(remote) = tier
            && let Some(upload) = self.lock().get_mut(remote)
        {
            upload.done_bytes = upload.done_bytes.saturating_add(bytes).min(upload.bytes);
        }
    }

    fn ended(&self, transfer: &Operation<'_>) {
        if let Tier::Remote(remote) = transfer.tier {
            self.lock().retain(|of, upload| of != remote || upload.id != transfer.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upload_counts_until_it_ends() {
        let remote: RemoteName = "main".parse().unwrap();
        let id = stepvault_core::ids::StepId::from_label("000000000007.a1").unwrap();
        let tier = &Tier::Remote(remote);
        let uploads = Uploads::default();
        uploads.count(&Event::BytesMoved { tier, bytes: 1 });
        assert_eq!(uploads.all(), []);
        let operation =
            Operation { kind: OperationKind::Transfer, tier, id, location: "", files: 1, bytes: Some(10) };
        uploads.count(&Event::Started(operation));
        uploads.count(&Event::BytesMoved { tier, bytes: 2 });
        uploads.count(&Event::BytesCopied { tier, bytes: 3 });
        uploads.count(&Event::BytesReused { tier, bytes: 4 });
        let [upload] = uploads.all().try_into().unwrap();
        assert_eq!((upload.id, upload.bytes, upload.done_bytes), (id, 10, 9));
        uploads.count(&Event::Finished { operation, copied_bytes: 3, seconds: 1.0 });
        assert_eq!(uploads.all(), []);
    }
}
