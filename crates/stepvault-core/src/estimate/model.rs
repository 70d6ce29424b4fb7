//! A model by its numbers, and the tensors that are saved of it.

use super::amount::{plus, total};
use super::dtype::Dtype;
use super::optimizer::{Optimizer, Tensors};
use crate::error::{Error, ErrorKind, Result};

/// A model and its optimizer, by numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    /// How many parameters it has.
    pub parameters: u64,
    /// How many tensors they are in. It counts only for what the format puts around each.
    pub tensors: u64,
    /// What the weights are saved as.
    pub weights: Dtype,
    /// A second copy of the weights that the optimizer keeps, where it is saved.
    pub master: Option<Dtype>,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// With Muon: the parameters that `AdamW` updates.
    pub adamw_parameters: u64,
    /// Bytes of other tensors that are saved once.
    pub extra_bytes: u64,
}

/// Bytes of tensors, nothing around them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Payload {
    /// The weights.
    pub weights_bytes: u64,
    /// The second copy of the weights.
    pub master_bytes: u64,
    /// What the optimizer keeps.
    pub optimizer_bytes: u64,
    /// Other tensors.
    pub extra_bytes: u64,
}

impl Payload {
    /// Everything together.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] where that is more than can be counted.
    pub fn total_bytes(&self) -> Result<u64> {
        total([
            self.weights_bytes,
            self.master_bytes,
            self.optimizer_bytes,
            self.extra_bytes,
        ])
    }
}

impl Model {
    /// Tensors of a model of which nobody has said how many it has: a model of 32 layers has about 300, one of 80 some
    /// 700, and each of them takes some hundred bytes beside its numbers.
    pub const USUAL_TENSORS: u64 = 500;

    /// Refuses what is no model.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] where the numbers contradict each other.
    pub fn check(&self) -> Result<()> {
        let fault = |why: String, hint: &'static str| {
            Err(Error::new(ErrorKind::Usage, "there is no such model")
                .because(why)
                .hint(hint))
        };
        if self.tensors > self.parameters {
            return fault(
                format!("{} parameters are in {} tensors", self.parameters, self.tensors),
                "give --tensors as how many tensors the model itself has, without the optimizer's",
            );
        }
        if self.tensors == 0 && self.parameters > 0 {
            return fault(
                format!("{} parameters are in no tensor", self.parameters),
                "give --tensors at least 1",
            );
        }
        let is_muon = matches!(self.optimizer, Optimizer::Muon(_));
        if self.adamw_parameters > 0 && !is_muon {
            return fault(
                format!("{} leaves no parameters to AdamW", self.optimizer),
                "--adamw-params goes with --optimizer muon",
            );
        }
        if self.adamw_parameters > self.parameters {
            return fault(
                format!(
                    "{} of {} parameters are AdamW's",
                    self.adamw_parameters, self.parameters
                ),
                "give --adamw-params as how many of --params AdamW updates",
            );
        }
        Ok(())
    }

    /// Bytes of the tensors.
    ///
    /// # Errors
    /// As [`Self::check`]; [`ErrorKind::Usage`] where there are more than can be counted.
    pub fn payload(&self) -> Result<Payload> {
        self.check()?;
        let master_bytes = self.master_tensors()?.unwrap_or_default().bytes;
        let optimizer_bytes = self
            .optimizer
            .bytes(self.parameters, self.tensors, self.adamw_parameters)?;
        let payload = Payload {
            weights_bytes: self.weight_tensors()?.bytes,
            master_bytes,
            optimizer_bytes,
            extra_bytes: self.extra_bytes,
        };
        payload.total_bytes()?;
        Ok(payload)
    }

    pub(super) fn weight_tensors(&self) -> Result<Tensors> {
        Ok(Tensors {
            count: self.tensors,
            bytes: self.weights.bytes_of(self.parameters)?,
        })
    }

    pub(super) fn master_tensors(&self) -> Result<Option<Tensors>> {
        self.master
            .map(|dtype| {
                Ok(Tensors {
                    count: self.tensors,
                    bytes: dtype.bytes_of(self.parameters)?,
                })
            })
            .transpose()
    }

    /// What the optimizer keeps for each parameter, its copy of the weights included.
    pub(super) fn state_tensors(&self) -> Result<Vec<Tensors>> {
        let mut states = self
            .optimizer
            .states(self.parameters, self.tensors, self.adamw_parameters)?;
        states.extend(self.master_tensors()?);
        Ok(states)
    }

    pub(super) fn step_tensors(&self) -> Result<Tensors> {
        Ok(self.optimizer.steps(self.tensors)?.unwrap_or_default())
    }

    /// How many tensors the optimizer's file holds, its steps included.
    pub(super) fn state_count(&self) -> Result<u64> {
        let states = self.state_tensors()?;
        plus(
            total(states.iter().map(|state| state.count))?,
            self.step_tensors()?.count,
        )
    }

    /// Whether the optimizer has anything to say: with plain SGD its settings alone.
    pub(super) fn has_optimizer(&self) -> bool {
        self.optimizer.is_saved() || self.master.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> Model {
        Model {
            parameters: 30_000_000_000,
            tensors: 500,
            weights: Dtype::Bf16,
            master: Some(Dtype::Fp32),
            optimizer: Optimizer::Adam(Dtype::Fp32),
            adamw_parameters: 0,
            extra_bytes: 0,
        }
    }

    #[test]
    fn thirty_billion_with_adamw_and_master_weights() {
        let payload = model().payload().unwrap();
        assert_eq!(payload.weights_bytes, 60_000_000_000);
        assert_eq!(payload.master_bytes, 120_000_000_000);
        assert_eq!(payload.optimizer_bytes, 240_000_002_000);
        assert_eq!(payload.total_bytes().unwrap(), 420_000_002_000);
    }

    #[test]
    fn contradictions_are_told() {
        for (change, why) in [
            (
                (|model| model.tensors = 31_000_000_000) as fn(&mut Model),
                "30000000000 parameters are in 31000000000 tensors",
            ),
            (
                |model| model.tensors = 0,
                "30000000000 parameters are in no tensor",
            ),
            (
                |model| model.adamw_parameters = 1,
                "adamw-fp32 leaves no parameters to AdamW",
            ),
            (
                |model| {
                    model.optimizer = Optimizer::Muon(Dtype::Fp32);
                    model.adamw_parameters = 30_000_000_001;
                },
                "30000000001 of 30000000000 parameters are AdamW's",
            ),
        ] {
            let mut model = model();
            change(&mut model);
            let error = model.payload().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage);
            assert_eq!(error.to_string(), format!("there is no such model: {why}"));
        }
    }
}
