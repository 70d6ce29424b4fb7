//! Properties of every model and every run.

use proptest::prelude::*;
use stepvault_core::forecast::Taken;

use super::*;

fn models() -> impl Strategy<Value = Model> {
    let optimizers = prop::sample::select(vec![
        Optimizer::None,
        Optimizer::Sgd,
        Optimizer::SgdMomentum(Dtype::Fp32),
        Optimizer::Adam(Dtype::Fp32),
        Optimizer::Adam(Dtype::Bf16),
        Optimizer::Adam8Bit,
        Optimizer::Adafactor,
        Optimizer::Lion(Dtype::Fp32),
        Optimizer::Muon(Dtype::Fp32),
    ]);
    let dtypes = values::<Dtype>();
    let master = prop::option::of(Just(Dtype::Fp32));
    let sizes = prop_oneof![0..100_000_u64, any::<u64>()];
    (sizes, any::<u64>(), dtypes, master, optimizers, prop_oneof![Just(0), any::<u64>()]).prop_map(
        |(parameters, tensors, weights, master, optimizer, extra_bytes)| Model {
            parameters,
            tensors: if parameters == 0 { 0 } else { 1 + tensors % parameters.min(5_000) },
            weights,
            master,
            optimizer,
            adamw_parameters: 0,
            extra_bytes,
        },
    )
}

fn values<T: Named + std::fmt::Debug>() -> impl Strategy<Value = T> {
    prop::sample::select(T::VARIANTS)
}

proptest! {
    #[test]
    fn no_number_makes_it_panic_and_tensors_are_never_forgotten(
        model in models(),
        layout in values::<Layout>(),
        sharding in values::<Sharding>(),
        nodes in prop_oneof![1..64_u64, any::<u64>()],
        ranks in prop_oneof![1..16_u64, any::<u64>()],
        largest_file_bytes in any::<u64>(),
    ) {
        let Ok(ranks) = Ranks::new(nodes, ranks) else { return Ok(()) };
        let Ok(step) = written(&model, layout, sharding, ranks, largest_file_bytes) else { return Ok(()) };
        // Numbers that are too large are rejected.
        let Ok(payload) = layout.payload(&model).and_then(|payload| payload.total_bytes()) else { return Ok(()) };
        if step.bytes().is_err() || step.files().is_err() { return Ok(()) }
        // Optax has one step counter, and so has a flattened group.
        let may_lack = 4 * model.tensors;
        prop_assert!(step.bytes()? + may_lack >= payload, "{} of {payload}", step.bytes()?);
        let first = step.on_first_node()?;
        prop_assert!(first.bytes <= step.bytes()? && first.files <= step.files()?);
        if let Some(other) = step.on_other_nodes()? {
            prop_assert!(other.bytes <= first.bytes);
            let all = u128::from(first.bytes) + u128::from(other.bytes) * u128::from(nodes - 1);
            prop_assert!(all >= u128::from(step.bytes()?));
        }
    }

    #[test]
    fn more_parameters_are_never_fewer_bytes(model in models(), layout in values::<Layout>(), more in any::<u64>()) {
        let Some(parameters) = model.parameters.checked_add(more) else { return Ok(()) };
        prop_assume!(model.tensors > 0);
        let larger = Model { parameters, ..model.clone() };
        let bytes = |model: &Model| layout.payload(model).and_then(|payload| payload.total_bytes());
        if let (Ok(small), Ok(large)) = (bytes(&model), bytes(&larger)) {
            prop_assert!(large >= small);
        }
    }

    #[test]
    fn the_peak_is_at_least_what_there_is_after(
        bytes in 0..1_000_000_u64,
        files in 1..100_u64,
        saves in 1..60_u64,
        last in 1..20_u32,
        trainer in 0..10_u64,
        copy in values::<VaultCopy>(),
    ) {
        let rules = stepvault_core::retention::KeepRules { last: Some(last), ..Default::default() };
        let tier = TierRules {
            tier: &stepvault_core::observe::Tier::Local,
            rules: &rules,
            limits: stepvault_core::retention::LocalLimits::default(),
            has_remote: true,
        };
        let saves = Saves::new(saves, 1, None)?;
        let kept = held(saves, bytes, tier)?;
        prop_assert_eq!(kept.len() as u64, saves.count().min(u64::from(last)));
        let before = saves.before_last().map(|saves| held(saves, bytes, tier)).transpose()?.unwrap_or_default();
        let step = Taken { bytes, files, directories: 1 };
        let peak = saving(step, saves.count() - 1, &before, trainer, copy, 1, false)?;
        if copy != VaultCopy::None {
            prop_assert!(peak.peak_bytes >= bytes * kept.len() as u64);
        }
        prop_assert!(peak.peak_inodes >= step.inodes());
        prop_assert!(peak.steps_in_both <= peak.vault_steps.min(peak.trainer_steps));
    }

    #[test]
    fn counts_are_read_as_they_are_written(number in any::<u64>()) {
        prop_assert_eq!(parse_count(&number.to_string())?, number);
        prop_assert_eq!(parse_count(&format!("{number}e0"))?, number);
    }

    #[test]
    fn no_text_makes_it_panic(text in ".{0,40}") {
        let _ = parse_count(&text);
        let _ = text.parse::<Optimizer>();
        let _ = text.parse::<Overhead>();
    }
}
