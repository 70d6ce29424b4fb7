//! A model described by numbers, and its saved tensors.

use schemars::JsonSchema;
use serde::Serialize;

use super::amount::total;
use super::dtype::Dtype;
use super::optimizer::{Optimizer, Tensors};
use stepvault_core::error::{Error, ErrorKind, Result};

/// A model and its optimizer, described by numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    /// Number of parameters.
    pub parameters: u64,
    /// Number of tensors. It matters only for the format's overhead for each tensor.
    pub tensors: u64,
    /// The data type of the saved weights.
    pub weights: Dtype,
    /// The data type of the optimizer's copy of the weights, if that copy is saved.
    pub master: Option<Dtype>,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// With Muon: the number of parameters that `AdamW` updates.
    pub adamw_parameters: u64,
    /// Bytes of other tensors that are saved once.
    pub extra_bytes: u64,
}

/// Bytes of tensors, without overhead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Payload {
    /// Bytes of the weights, once.
    pub weights_bytes: u64,
    /// Bytes of the optimizer's copy of the weights, once.
    pub master_bytes: u64,
    /// Bytes of the optimizer's states, once.
    pub optimizer_bytes: u64,
    /// `--extra`.
    pub extra_bytes: u64,
}

impl Payload {
    /// Returns the sum.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if the number is too large.
    pub fn total_bytes(&self) -> Result<u64> {
        total([self.weights_bytes, self.master_bytes, self.optimizer_bytes, self.extra_bytes])
    }
}

impl Model {
    /// Default number of tensors: a model of 32 layers has about 300, one of 80 some 700, and each adds a few hundred
    /// bytes of overhead.
    pub const USUAL_TENSORS: u64 = 500;

    /// Rejects an impossible model.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if the numbers contradict each other.
    pub fn check(&self) -> Result<()> {
        let fault = |why: String, hint: &'static str| {
            Err(Error::new(ErrorKind::Usage, "the numbers describe no possible model")
                .because(why)
                .hint(hint))
        };
        if self.tensors > self.parameters {
            return fault(
                format!("{} parameters are in {} tensors", self.parameters, self.tensors),
                "set --tensors to the number of tensors of the model itself, without the optimizer's",
            );
        }
        if self.tensors == 0 && self.parameters > 0 {
            return fault(
                format!("{} parameters are in no tensor", self.parameters),
                "set --tensors to at least 1",
            );
        }
        let is_muon = matches!(self.optimizer, Optimizer::Muon(_));
        if self.adamw_parameters > 0 && !is_muon {
            return fault(
                format!("{} leaves no parameters to AdamW", self.optimizer),
                "use --adamw-params only with --optimizer muon",
            );
        }
        if self.adamw_parameters > self.parameters {
            return fault(
                format!("{} of {} parameters are AdamW's", self.adamw_parameters, self.parameters),
                "set --adamw-params to the number of --params that AdamW updates",
            );
        }
        Ok(())
    }

    /// Returns the bytes of the tensors.
    ///
    /// # Errors
    /// The errors of [`Self::check`]; [`ErrorKind::Usage`] if a number is too large.
    pub fn payload(&self) -> Result<Payload> {
        self.check()?;
        let payload = Payload {
            weights_bytes: self.weight_tensors()?.bytes,
            master_bytes: self.master_tensors()?.unwrap_or_default().bytes,
            optimizer_bytes: (self.optimizer).bytes(self.parameters, self.tensors, self.adamw_parameters)?,
            extra_bytes: self.extra_bytes,
        };
        payload.total_bytes()?;
        Ok(payload)
    }

    /// Returns the tensors of the model as this type.
    fn tensors_as(&self, dtype: Dtype) -> Result<Tensors> {
        Ok(Tensors::of(self.tensors, dtype.bytes_of(self.parameters)?))
    }

    pub(super) fn weight_tensors(&self) -> Result<Tensors> {
        self.tensors_as(self.weights)
    }

    pub(super) fn master_tensors(&self) -> Result<Option<Tensors>> {
        self.master.map(|dtype| self.tensors_as(dtype)).transpose()
    }

    pub(super) fn optimizer_states(&self) -> Result<Vec<Tensors>> {
        self.optimizer.states(self.parameters, self.tensors, self.adamw_parameters)
    }

    /// Returns the optimizer's state for each parameter, including its copy of the weights.
    pub(super) fn state_tensors(&self) -> Result<Vec<Tensors>> {
        let mut states = self.optimizer_states()?;
        states.extend(self.master_tensors()?);
        Ok(states)
    }

    pub(super) fn step_tensors(&self) -> Result<Tensors> {
        self.optimizer.steps(self.tensors)
    }

    /// Returns the number of tensors in the optimizer's file, including its steps.
    pub(super) fn state_count(&self) -> Result<u64> {
        let states = self.state_tensors()?;
        total(states.iter().chain([&self.step_tensors()?]).map(|state| state.count))
    }

    /// Returns whether the optimizer has a state; plain SGD has only settings.
    pub(super) fn has_optimizer(&self) -> bool {
        self.optimizer != Optimizer::None || self.master.is_some()
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
            (|model| model.tensors = 0, "30000000000 parameters are in no tensor"),
            (|model| model.adamw_parameters = 1, "adamw-fp32 leaves no parameters to AdamW"),
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
            assert_eq!(error.to_string(), format!("the numbers describe no possible model: {why}"));
        }
    }
}
