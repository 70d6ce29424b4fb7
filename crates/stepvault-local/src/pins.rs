//! Pins of the local tier: steps that retention must keep.

use std::path::PathBuf;

use stepvault_core::codec::{FORMAT, encode};
use stepvault_core::ids::{RunName, StepId};
use stepvault_core::records::Pin;
use stepvault_core::{Error, ErrorKind, Result};

use crate::durable;
use crate::sealed::read_record;
use crate::vault::{Vault, entries, is_temporary};

impl Vault {
    /// Pins a step, whether or not it is sealed here.
    pub fn pin(&self, run: &RunName, id: StepId, note: &str) -> Result<()> {
        let path = self.pin_path(run, id);
        self.create_directories(durable::parent_of(&path))?;
        durable::replace(
            &path,
            &encode(&Pin { format: FORMAT, run: run.clone(), id, note: note.to_owned() })?,
        )
    }

    /// Removes a pin. Returns `false` when it did not exist.
    pub fn unpin(&self, run: &RunName, id: StepId) -> Result<bool> {
        durable::remove_file(&self.pin_path(run, id))
    }

    /// Returns all pins of a run, sorted by step. An unreadable pin is an error: a caller that deletes steps must not
    /// continue.
    pub fn pins(&self, run: &RunName) -> Result<Vec<Pin>> {
        let mut pins = Vec::new();
        for path in
            entries(&self.run_directory(run).join("pins"))?.into_iter().filter(|path| !is_temporary(path))
        {
            // Unpinned meanwhile.
            let Some(pin) = read_record::<Pin>(&path)? else {
                continue;
            };
            if pin.run != *run || self.pin_path(run, pin.id) != path {
                return Err(Error::at(ErrorKind::Damaged, "cannot read the pin", &path)
                    .because(format!("it belongs to {}, {}", pin.run, pin.id))
                    .hint("pin the step again and delete that file"));
            }
            pins.push(pin);
        }
        pins.sort_unstable_by_key(|pin| pin.id);
        Ok(pins)
    }

    fn pin_path(&self, run: &RunName, id: StepId) -> PathBuf {
        self.run_directory(run).join("pins").join(format!("{}.json", id.label()))
    }
}
