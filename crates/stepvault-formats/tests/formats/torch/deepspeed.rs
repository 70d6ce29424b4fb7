//! Steps of DeepSpeed with files missing.

use stepvault_formats::soundness::Soundness;
use stepvault_formats::structure::deepspeed::{check, read_partition_count};

use super::archive::small_archive;
use super::support::{Fixture, InMemory};

/// Returns a model file that states these numbers of ranks, and whose optimizer state is in other files.
fn model(data_parallel: u64, model_parallel: u64) -> Vec<u8> {
    let pickle = format!(
        "(dVdp_world_size\nI{data_parallel}\nsVmp_world_size\nI{model_parallel}\nsVoptimizer\nNsVds_config\n\
         (dVzero_optimization\n(dVstage\nI1\nsss."
    );
    small_archive(pickle.as_bytes()).finish(b"")
}

fn optimizer(partition_count: &str) -> Vec<u8> {
    let pickle = format!("(dVoptimizer_state_dict\n(dVpartition_count\n{partition_count}ss.");
    small_archive(pickle.as_bytes()).finish(b"")
}

fn directory(files: &[(String, Vec<u8>)]) -> InMemory {
    let file = |(name, bytes): &(String, Vec<u8>)| (name.clone(), (bytes.clone(), 0));
    InMemory(files.iter().map(file).collect())
}

/// Two data-parallel times two model-parallel ranks.
fn square() -> InMemory {
    let mut files = Vec::new();
    for model_rank in 0..2 {
        files.push((format!("mp_rank_{model_rank:02}_model_states.pt"), model(2, 2)));
        for data_rank in 0..2 {
            let name = format!("bf16_zero_pp_rank_{data_rank}_mp_rank_{model_rank:02}_optim_states.pt");
            files.push((name, optimizer("(lI2\naI2\na")));
        }
    }
    directory(&files)
}

fn findings(files: &InMemory) -> Vec<(String, Soundness)> {
    let findings = check(&files.tree(), "", files).unwrap();
    findings.into_iter().map(|finding| (finding.path, finding.soundness)).collect()
}

fn broken(why: &str) -> Soundness {
    Soundness::Broken { offset: None, why: why.to_owned() }
}

#[test]
fn each_missing_file_is_named() {
    assert_eq!(findings(&square()), []);
    for name in square().0.keys() {
        let mut files = square();
        files.0.remove(name);
        let first = files.0.keys().find(|name| name.ends_with("model_states.pt")).unwrap();
        let (there, wanted) = if name.ends_with("model_states.pt") { (1, 2) } else { (3, 4) };
        let why = format!(
            "it is missing: {first} gives dp_world_size 2 and mp_world_size 2, and {there} of {wanted} such files \
             exist"
        );
        assert_eq!(findings(&files), [(name.clone(), broken(&why))]);
    }
}

#[test]
fn optimizer_files_that_are_all_missing_are_missed() {
    let mut files = square();
    files.0.retain(|name, _| !name.ends_with("optim_states.pt"));
    let said = findings(&files);
    assert_eq!(said.len(), 4);
    assert_eq!(said[0].0, "zero_pp_rank_0_mp_rank_00_optim_states.pt");
    // Without ZeRO, the model file holds the optimizer's state.
    let pickle = b"(dVdp_world_size\nI2\nsVmp_world_size\nI1\nsVoptimizer\n(ds.";
    let plain = directory(&[("mp_rank_00_model_states.pt".to_owned(), small_archive(pickle).finish(b""))]);
    assert_eq!(findings(&plain), []);
}

#[test]
fn zero_3_has_a_model_file_for_every_rank() {
    let name = |rank: u64, kind: &str| format!("zero_pp_rank_{rank}_mp_rank_00_{kind}_states.pt");
    let mut files = Vec::new();
    for rank in 0..3 {
        files.push((name(rank, "model"), model(3, 1)));
        files.push((name(rank, "optim"), optimizer("I3\n")));
    }
    let whole = directory(&files);
    assert_eq!(findings(&whole), []);
    for (missing, _) in &files {
        let mut files = whole.clone();
        files.0.remove(missing);
        let said = findings(&files);
        assert!(matches!(said.as_slice(), [(path, Soundness::Broken { .. })] if path == missing), "{said:?}");
    }
}

#[test]
fn numbers_that_cannot_be_or_are_not_there() {
    let only = |bytes| directory(&[("mp_rank_00_model_states.pt".to_owned(), bytes)]);
    let first = "mp_rank_00_model_states.pt".to_owned();
    for (data, model_ranks) in [(0, 1), (1, 0), (u64::MAX >> 1, 4), (1 << 21, 1)] {
        let why =
            format!("it gives dp_world_size {data} and mp_world_size {model_ranks}, which is impossible");
        assert_eq!(findings(&only(model(data, model_ranks))), [(first.clone(), broken(&why))]);
    }
    assert_eq!(
        findings(&only(small_archive(b"(d.").finish(b""))),
        [(
            first.clone(),
            Soundness::Unknown {
                why: "it lacks dp_world_size and mp_world_size, so the number of files is unknown".to_owned()
            }
        )]
    );
    // A million ranks and one file must not give a million findings.
    let said = findings(&only(model(1 << 20, 1)));
    assert_eq!(said.len(), 16);
    assert_eq!(
        findings(&InMemory::default()),
        [(first.clone(), broken("it and every other model file are missing: the save was cut off"))]
    );
    assert_eq!(
        findings(&only(Vec::new())),
        [(first, Soundness::Unknown { why: "the file was not written by torch.save".to_owned() })]
    );
}

#[test]
fn partitions_that_contradict_the_ranks_are_told() {
    let mut files = square();
    let name = "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt";
    *files.bytes(name) = optimizer("(lI4\naI1\na");
    assert_eq!(read_partition_count(&files.0[name].0).unwrap(), Some(4));
    assert_eq!(
        findings(&files),
        [(
            name.to_owned(),
            Soundness::Unknown {
                why: "it gives 4 partitions, and the model file gives dp_world_size 2 and mp_world_size 2"
                    .to_owned()
            }
        )]
    );
}

#[test]
fn a_real_step_without_any_one_of_its_files_is_broken() {
    let fixture = Fixture::unpack("deepspeed-zero1");
    let whole = InMemory::of(&fixture, "global_step10");
    for name in whole.0.keys() {
        let mut files = whole.clone();
        files.0.remove(name);
        let said = findings(&files);
        assert!(
            matches!(said.as_slice(), [(path, Soundness::Broken { .. })] if path == name),
            "{name}: {said:?}"
        );
    }
}
