//! Arbitrary bytes: no panic, and no more is read or kept than their length allows.

use std::sync::LazyLock;

use proptest::prelude::*;
use stepvault_formats::pickle::{KEPT_BYTES_PER_INPUT_BYTE, Keep, read, read_whole};
use stepvault_formats::soundness::Fault;
use stepvault_formats::structure::{dcp, deepspeed, torch, torch_legacy, torch_zip};
use stepvault_formats::tree::ReadAt;

use super::support::{Check, Counting, Fixture, InMemory};

/// The number of bytes that a check may read of a file: a few times its length, and a little more.
fn limit_bytes(length: usize) -> u64 {
    4 * length as u64 + 64 * 1024
}

const CHECKS: [Check; 5] = [torch::check, torch_zip::check, torch_legacy::check, metadata, partition_count];

fn metadata(source: &dyn ReadAt) -> Result<(), Fault> {
    dcp::read_metadata(source).map(drop)
}

fn partition_count(source: &dyn ReadAt) -> Result<(), Fault> {
    deepspeed::read_partition_count(source).map(drop)
}

fn try_all(bytes: &[u8]) {
    for check in CHECKS {
        let counted = Counting::new(bytes.to_vec());
        // The medium is memory, so a read fault would come from the check.
        assert!(!matches!(check(&counted), Err(Fault::Read(_))));
        let read_bytes = counted.read_bytes();
        assert!(read_bytes <= 2 * limit_bytes(bytes.len()), "{read_bytes} of {} bytes", bytes.len());
    }
    for keep in [Keep::Values, Keep::Shape] {
        let counted = Counting::new(bytes.to_vec());
        if let Ok(pickle) = read(&counted, 0..bytes.len() as u64, keep) {
            assert!(pickle.kept_bytes <= KEPT_BYTES_PER_INPUT_BYTE * bytes.len() as u64);
        }
        assert!(counted.read_bytes() <= limit_bytes(bytes.len()));
    }
}

/// Small files of each format.
static REAL: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let formats = Fixture::unpack("torch-formats");
    let step = Fixture::unpack("dcp-2rank-zero-byte-shard");
    let ranks = Fixture::unpack("deepspeed-zero1");
    vec![
        formats.read("no_tensor.pt"),
        formats.read("odd.pt"),
        formats.read("zip_nocrc.pt"),
        formats.read("legacy.pt"),
        step.read("step_1/.metadata"),
        step.read("step_1/__0_0.distcp"),
        ranks.read("global_step10/mp_rank_00_model_states.pt"),
    ]
});

static STEP: LazyLock<InMemory> =
    LazyLock::new(|| InMemory::of(&Fixture::unpack("dcp-2rank-zero-byte-shard"), "step_1"));

/// Instructions of pickles, more often than at random, and small operands.
fn instructions() -> impl Strategy<Value = Vec<u8>> {
    let opcodes =
        b"(.012FIJKLMNPQRSTUVXabc}eghilj]opqr)stuGBC\x80\x81\x82\x83\x84\x85\x86\x87\x88\x89\x8a\x8b\x8c\
                    \x8d\x8e\x8f\x90\x91\x92\x93\x94\x95\x96\x97\x98";
    prop::collection::vec(
        prop_oneof![
            6 => prop::sample::select(opcodes.to_vec()),
            2 => 0_u8..4,
            1 => Just(b'\n'),
            1 => any::<u8>(),
        ],
        0..300,
    )
}

/// A long text that is shared by many values, where each mention could cost its length.
#[test]
fn long_texts_that_are_shared_do_not_multiply_the_work() {
    const MENTIONS: usize = 200_000;
    let long = "x".repeat(60_000);
    let mut storages = format!("(Vstorage\nctorch\nFloatStorage\nV{long}\nVcpu\nI1\ntp0\n0]").into_bytes();
    storages.extend(b"h\x00Qa".repeat(MENTIONS));
    storages.push(b'.');
    let archive = super::archive::small_archive(&storages).finish(b"");
    assert!(torch::check(&archive).is_err());

    let class = "ctorch.distributed.checkpoint.filesystem\n_StorageInfo\n)R";
    let keys: Vec<String> = (0..60).map(|index| format!("V{}{index}\nNs", &long[..1000])).collect();
    let keys = keys.concat();
    let mut metadata = format!(
        "{class}(d{keys}Vrelative_path\nV{}\nsVoffset\nI0\nsVlength\nI1\nsbp0\n0ctorch.distributed.checkpoint.metadata\n\
         Metadata\n)R(dVstate_dict_metadata\n(dsVstorage_data\n(d",
        &long[..1000]
    )
    .into_bytes();
    metadata.extend(b"Nh\x00s".repeat(MENTIONS));
    metadata.extend(b"sb.");
    let items = dcp::read_metadata(&metadata).unwrap();
    assert_eq!(items.len(), MENTIONS);
    assert!(std::sync::Arc::ptr_eq(&items[0].relative_path, &items[MENTIONS - 1].relative_path));
}

proptest! {
    #![proptest_config(ProptestConfig::default())]

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        try_all(&bytes);
    }

    #[test]
    fn any_instructions(bytes in instructions()) {
        try_all(&bytes);
        let whole = |keep| read_whole(&bytes, 0..bytes.len() as u64, keep).is_ok();
        // The values that are kept do not change whether the bytes are a pickle.
        prop_assert_eq!(whole(Keep::Values), whole(Keep::Shape));
    }

    #[test]
    fn real_files_with_other_bytes(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        from_end in prop::collection::vec((0_usize..200, any::<u8>()), 0..3),
        length in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = which.get(&REAL).clone();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        // The end of an archive locates everything else.
        for (back, byte) in from_end {
            let at = bytes.len() - 1 - back;
            bytes[at] = byte;
        }
        if let Some(length) = length {
            bytes.truncate(length.index(bytes.len()));
        }
        try_all(&bytes);
    }

    #[test]
    fn steps_with_other_bytes(
        in_table in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        in_shard in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let mut files = STEP.clone();
        for (path, changes) in [(".metadata", in_table), ("__0_0.distcp", in_shard)] {
            let bytes = files.bytes(path);
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
        }
        let findings = dcp::check(&files.tree(), "", &files);
        prop_assert!(findings.is_ok_and(|findings| !findings.is_empty()));
    }
}
