//! The state that an optimizer keeps for each parameter.

use std::fmt;
use std::str::FromStr;

use super::amount::{Named as _, plus, scaled, times, total};
use super::dtype::Dtype;
use stepvault_core::error::{Error, ErrorKind, Result};

/// Parameters that share one scale in an 8-bit state: `blocksize` in bitsandbytes/optim/optimizer.py, as of 0.50.1.
/// Before 0.44 it was 2048, with an eighth of the scales: 0.014 bytes per parameter less.
const BLOCK_PARAMETERS: u64 = 256;
/// The scale of such a block is an fp32, one for each of the two states.
const SCALE_BYTES: u64 = 4;
/// The two tables of 256 fp32 values that decode 8-bit states; all tensors share them.
const TABLES_BYTES: u64 = 2 * 256 * 4;
/// `step`, which torch stores as an fp32 for each tensor.
const STEP_BYTES: u64 = 4;

/// An optimizer and the data type of its states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Optimizer {
    /// Its state is not saved.
    None,
    /// No state at all.
    Sgd,
    /// One momentum.
    SgdMomentum(Dtype),
    /// Two moments and a step, as in torch. `AdamW` keeps the same.
    Adam(Dtype),
    /// Two moments of 8 bits with a scale for every 256 parameters, as in bitsandbytes. It stores tensors of fewer
    /// than 4096 elements as fp32, which the estimate ignores.
    Adam8Bit,
    /// A row and a column of second moments for each matrix, without momentum. The estimate assumes that every tensor
    /// is a square matrix, which has the fewest rows and columns.
    Adafactor,
    /// One momentum.
    Lion(Dtype),
    /// One momentum of each parameter in hidden matrices. In practice `AdamW` updates the other parameters
    /// (embeddings, head, norms), with two moments; their number must be given.
    Muon(Dtype),
}

/// Tensors of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Tensors {
    /// The number of tensors.
    pub(super) count: u64,
    /// The total bytes.
    pub(super) bytes: u64,
}

impl Tensors {
    /// Returns this many tensors of these bytes in total.
    pub(super) const fn of(count: u64, bytes: u64) -> Self {
        Self { count, bytes }
    }
}

impl Optimizer {
    /// The names, with the default data type of each.
    const NAMES: [(&str, Self); 10] = [
        ("none", Self::None),
        ("sgd", Self::Sgd),
        ("sgd-momentum", Self::SgdMomentum(Dtype::Fp32)),
        ("adam", Self::Adam(Dtype::Fp32)),
        ("adamw", Self::Adam(Dtype::Fp32)),
        ("adam-8bit", Self::Adam8Bit),
        ("adamw-8bit", Self::Adam8Bit),
        ("adafactor", Self::Adafactor),
        ("lion", Self::Lion(Dtype::Fp32)),
        ("muon", Self::Muon(Dtype::Fp32)),
    ];

    /// Returns the states: one entry for each state of a parameter. `others` is the number of parameters that `AdamW`
    /// updates with Muon.
    pub(super) fn states(self, parameters: u64, tensors: u64, others: u64) -> Result<Vec<Tensors>> {
        let of_each = |dtype: Dtype| Ok(Tensors::of(tensors, dtype.bytes_of(parameters)?));
        Ok(match self {
            Self::None | Self::Sgd => Vec::new(),
            Self::SgdMomentum(dtype) | Self::Lion(dtype) => vec![of_each(dtype)?],
            Self::Adam(dtype) => vec![of_each(dtype)?; 2],
            Self::Adam8Bit => {
                let blocks = parameters.div_ceil(BLOCK_PARAMETERS);
                let scales = Tensors::of(tensors, times(blocks, SCALE_BYTES)?);
                let tables = Tensors::of(2, TABLES_BYTES);
                let state = of_each(Dtype::Int8)?;
                vec![state, state, scales, scales, tables]
            }
            Self::Adafactor => {
                let side = parameters.checked_div(tensors).unwrap_or_default().isqrt();
                let rows_bytes = Dtype::Fp32.bytes_of(times(side, tensors)?)?;
                vec![Tensors::of(tensors, rows_bytes); 2]
            }
            Self::Muon(dtype) => {
                let count = scaled(tensors, others, parameters.max(1))?;
                let second = Tensors::of(count, dtype.bytes_of(others)?);
                let mut states = vec![of_each(dtype)?];
                states.extend((others > 0).then_some(second));
                states
            }
        })
    }

    /// Returns the step counters of the tensors.
    pub(super) fn steps(self, tensors: u64) -> Result<Tensors> {
        if !matches!(self, Self::Adam(_)) {
            return Ok(Tensors::default());
        }
        Ok(Tensors::of(tensors, times(tensors, STEP_BYTES)?))
    }

    /// Returns the bytes of all states and steps.
    pub(super) fn bytes(self, parameters: u64, tensors: u64, others: u64) -> Result<u64> {
        let states = self.states(parameters, tensors, others)?;
        let steps = self.steps(tensors)?;
        plus(total(states.iter().map(|state| state.bytes))?, steps.bytes)
    }
}

impl fmt::Display for Optimizer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => out.write_str("none"),
            Self::Sgd => out.write_str("sgd"),
            Self::SgdMomentum(dtype) => write!(out, "sgd-momentum-{}", dtype.name()),
            Self::Adam(dtype) => write!(out, "adamw-{}", dtype.name()),
            Self::Adam8Bit => out.write_str("adamw-8bit"),
            Self::Adafactor => out.write_str("adafactor"),
            Self::Lion(dtype) => write!(out, "lion-{}", dtype.name()),
            Self::Muon(dtype) => write!(out, "muon-{}", dtype.name()),
        }
    }
}

impl FromStr for Optimizer {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = |name: &str| Self::NAMES.iter().find(|(known, _)| *known == name);
        if let Some((_, optimizer)) = found(text) {
            return Ok(*optimizer);
        }
        let fault = || {
            let names = Self::NAMES.map(|(name, _)| name).join(", ");
            Error::new(ErrorKind::Usage, "not an optimizer").on(format!("{text:?}")).hint(format!(
                "write one of {names}; those that keep full moments accept a dtype: adamw-bf16"
            ))
        };
        let (name, dtype) = text.rsplit_once('-').ok_or_else(fault)?;
        let dtype = Dtype::from_name(dtype).map_err(|_| fault())?;
        match found(name) {
            Some((_, Self::SgdMomentum(_))) => Ok(Self::SgdMomentum(dtype)),
            Some((_, Self::Adam(_))) => Ok(Self::Adam(dtype)),
            Some((_, Self::Lion(_))) => Ok(Self::Lion(dtype)),
            Some((_, Self::Muon(_))) => Ok(Self::Muon(dtype)),
            _ => Err(fault()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(name: &str, parameters: u64, tensors: u64) -> u64 {
        let optimizer: Optimizer = name.parse().unwrap();
        optimizer.bytes(parameters, tensors, 0).unwrap()
    }

    #[test]
    fn bytes_of_each() {
        for (name, expected) in [
            ("none", 0),
            ("sgd", 0),
            ("sgd-momentum", 4_000_000),
            ("sgd-momentum-bf16", 2_000_000),
            ("adam", 8_000_040),
            ("adamw-fp32", 8_000_040),
            ("adamw-bf16", 4_000_040),
            // Two bytes of each parameter, two scales of 4 bytes for 3,907 blocks, two tables.
            ("adamw-8bit", 2_000_000 + 2 * 4 * 3_907 + 2_048),
            // Ten matrices of 316 by 316.
            ("adafactor", 2 * 316 * 10 * 4),
            ("lion", 4_000_000),
            ("lion-bf16", 2_000_000),
            ("muon", 4_000_000),
        ] {
            assert_eq!(bytes(name, 1_000_000, 10), expected, "{name}");
        }
        let muon: Optimizer = "muon-bf16".parse().unwrap();
        assert_eq!(muon.bytes(1_000_000, 10, 300_000).unwrap(), 2_600_000);
    }

    #[test]
    fn names_are_read_back_and_others_refused() {
        for (name, _) in Optimizer::NAMES {
            let optimizer: Optimizer = name.parse().unwrap();
            assert_eq!(optimizer.to_string().parse::<Optimizer>().unwrap(), optimizer);
        }
        for wrong in ["adam8", "sgd-fp32", "adafactor-bf16", "adamw-", "none-fp32", "adamw-8bit-fp32"] {
            let error = wrong.parse::<Optimizer>().unwrap_err();
            assert_eq!(error.to_string(), format!("not an optimizer: {wrong:?}"));
            assert!(error.hint_text().unwrap().contains("adamw-bf16"));
        }
    }

    #[test]
    fn too_many_parameters_are_wrong_use() {
        for name in Optimizer::NAMES.map(|(name, _)| name).into_iter().skip(2) {
            let optimizer: Optimizer = name.parse().unwrap();
            let outcome = optimizer.bytes(u64::MAX, 1, u64::MAX);
            // Rows and columns of one matrix of that size fit.
            assert_eq!(outcome.is_err(), optimizer != Optimizer::Adafactor, "{name}");
        }
        assert_eq!(bytes("adafactor", 0, 0), 0);
    }
}
