//! Assigns the identity of a sealed step, after sealing or again later.
//!
//! While the attempt is provisional, the name of the step's directory is authoritative; once it is final, `seal.json`
//! holds the same value. Each change is one rename or one replaced record, so a process that ends in between leaves a
//! readable step whose attempt is still provisional.

use rustix::io::Errno;
use stepvault_core::codec::encode;
use stepvault_core::ids::{RunName, StepId};
use stepvault_core::step_origin::StepOrigin;
use stepvault_core::{Error, ErrorKind, Result};

use crate::durable;
use crate::errors;
use crate::kept;
use crate::remove;
use crate::rename::{self, Place};
use crate::seal_record::AttemptState;
use crate::sealed::{SEAL, SealedStep};
use crate::vault::Vault;

const WHAT: &str = "cannot assign an attempt to the step";

impl Vault {
    /// Assigns the final attempt and revision to a provisional step, with what its origin says of them. Durable when it
    /// returns.
    ///
    /// The caller holds the vault's lock, and no part of the step is being sent.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] when another step is already sealed under that identity; [`ErrorKind::NotFound`] when the
    /// step no longer exists.
    pub fn place(&self, step: &SealedStep, id: StepId, origin: StepOrigin) -> Result<SealedStep> {
        let before = step.id();
        let renamed = self.rename_provisional(step, id)?;
        let mut record = renamed.record().clone();
        record.attempt.state = AttemptState::Placed;
        record.origin = origin;
        let placed = reseal(SealedStep::new(renamed.directory().to_owned(), record))?;
        if before != placed.id() {
            remove::tree(&self.journal_directory(placed.run(), before))?;
        }
        Ok(placed)
    }

    /// Assigns another provisional identity to a provisional step. Durable when it returns.
    ///
    /// # Errors
    /// As for [`Self::place`].
    pub fn rename_provisional(&self, step: &SealedStep, id: StepId) -> Result<SealedStep> {
        let mut record = step.record().clone();
        let before = record.id;
        if before == id {
            return Ok(step.clone());
        }
        let destination = self.step_directory(&record.run, id);
        self.pin_alike(&record.run, before, id)?;
        rename::no_replace(Place::path(step.directory()), Place::path(&destination)).map_err(|error| {
            match error {
                Errno::EXIST | Errno::NOTEMPTY => Error::at(ErrorKind::Conflict, WHAT, &destination)
                    .because("another step is already sealed under that identity"),
                other => errors::io(WHAT, step.directory(), other),
            }
        })?;
        durable::fsync_directory(&self.steps_directory(&record.run))?;
        if before.attempt != id.attempt {
            record.attempt.remember(before.attempt);
        }
        record.id = id;
        Ok(SealedStep::new(destination, record))
    }

    /// Keeps a pinned step pinned under its new name. The pin of the former name stays: it may have meant the step that
    /// now has that name.
    fn pin_alike(&self, run: &RunName, before: StepId, id: StepId) -> Result<()> {
        match self.pins(run)?.into_iter().find(|pin| pin.id == before) {
            Some(pin) => self.pin(run, id, &pin.note),
            None => Ok(()),
        }
    }

    /// Makes the identity of a step provisional again, because another step holds it. Durable when it returns.
    ///
    /// The caller holds the vault's lock, and no part of the step is being sent.
    pub fn make_provisional_again(&self, step: &SealedStep) -> Result<SealedStep> {
        let mut record = step.record().clone();
        record.attempt.lost.push(record.id);
        record.attempt.state = AttemptState::Provisional;
        reseal(SealedStep::new(step.directory().to_owned(), record))
    }
}

/// Rewrites the record. A journal of the previous record does not apply to the new one.
fn reseal(step: SealedStep) -> Result<SealedStep> {
    let bytes = kept::with_digest(encode(step.record())?);
    durable::replace(&step.directory().join(SEAL), &bytes)?;
    Ok(step)
}
