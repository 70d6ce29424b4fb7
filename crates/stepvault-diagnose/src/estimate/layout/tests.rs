use super::super::dtype::Dtype;
use super::super::optimizer::Optimizer;
use super::*;

const FILE_BYTES: u64 = 50_000_000_000;

fn thirty_billion() -> Model {
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
fn what_stands_around_large_tensors_is_next_to_nothing() {
    let model = thirty_billion();
    let ranks = Ranks::new(4, 8).unwrap();
    for layout in Layout::VARIANTS.iter().copied().filter(|layout| *layout != Layout::DcpHf) {
        let name = layout.name();
        let step = written(&model, layout, layout.usual_sharding(), ranks, FILE_BYTES).unwrap();
        let payload = layout.payload(&model).unwrap().total_bytes().unwrap();
        let over = step.bytes().unwrap() - payload.min(step.bytes().unwrap());
        assert!(over < payload / 1000, "{name}: {over} of {payload}");
        assert!(step.bytes().unwrap() + 2_000 >= payload, "{name}");
    }
}

#[test]
fn shards_are_shared_out_and_copies_are_not() {
    let model = thirty_billion();
    let ranks = Ranks::new(4, 8).unwrap();
    let size = |layout, sharding| {
        let step = written(&model, layout, sharding, ranks, FILE_BYTES).unwrap();
        let sizes = [
            step.bytes().unwrap(),
            step.on_first_node().unwrap().bytes,
            step.on_other_nodes().unwrap().unwrap().bytes,
        ];
        sizes.map(|bytes| bytes / 1_000_000_000)
    };
    assert_eq!(size(Layout::Dcp, Sharding::Sharded), [420, 105, 105]);
    assert_eq!(size(Layout::Torch, Sharding::Sharded), [420, 105, 105]);
    assert_eq!(size(Layout::Torch, Sharding::RankZero), [420, 420, 0]);
    assert_eq!(size(Layout::Torch, Sharding::Replicated), [1680, 420, 420]);
    // The module is written once, the optimizer with its copy of the weights by every rank.
    assert_eq!(size(Layout::DeepSpeed, Sharding::Sharded), [420, 150, 90]);
    assert_eq!(size(Layout::DeepSpeedZero3, Sharding::Sharded), [360, 90, 90]);
}

#[test]
fn weights_are_split_into_files() {
    let ranks = Ranks::new(1, 1).unwrap();
    let step =
        written(&thirty_billion(), Layout::Safetensors, Sharding::RankZero, ranks, 5_000_000_000).unwrap();
    let files = |what: &str| step.parts.iter().find(|part| part.what == what).map(|part| part.files);
    assert_eq!((files("weights"), files("index")), (Some(12), Some(1)));
    assert_eq!(files("optimizer"), None);
    assert_eq!(step.on_other_nodes().unwrap(), None);
}

#[test]
fn what_no_framework_writes_is_refused() {
    let error = written(
        &thirty_billion(),
        Layout::HfTrainer,
        Sharding::Sharded,
        Ranks::new(2, 8).unwrap(),
        FILE_BYTES,
    )
    .unwrap_err();
    assert_eq!(error.to_string(), "no framework writes such a step: layout hf-trainer cannot be sharded");
    assert_eq!(
        error.hint_text(),
        Some("use rank-zero; for FSDP and ZeRO use layout dcp, deepspeed or fsdp-files")
    );
}

#[test]
fn files_of_each_node_are_added() {
    let mut step = Written::nothing(3);
    step.add_on_each_node("shuffle buffer", 2, 10).unwrap();
    assert_eq!((step.bytes().unwrap(), step.files().unwrap()), (30, 6));
    let each = Taken { bytes: 10, files: 2, directories: 1 };
    assert_eq!(step.on_first_node().unwrap(), each);
    assert_eq!(step.on_other_nodes().unwrap(), Some(each));
}
