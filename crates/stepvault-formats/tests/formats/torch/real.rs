//! Files that frameworks wrote: sound if they load, broken for the right reason if they do not.

use stepvault_formats::soundness::Soundness;
use stepvault_formats::structure::{dcp, deepspeed, torch};

use super::support::{Fixture, verdict, why_broken};

/// Fixtures, and the endings of the names of the files in them that torch wrote and that can be checked alone.
const FIXTURES: [&str; 27] = [
    "accelerate-1rank",
    "accelerate-2rank",
    "cycling-utils-killed",
    "cycling-utils-sync",
    "dcp-1rank",
    "dcp-2rank",
    "dcp-2rank-zero-byte-shard",
    "dcp-killed-before-metadata",
    "deepspeed-latest-too-early",
    "deepspeed-zero1",
    "enospc-torch-save",
    "hf-trainer-1rank",
    "hf-trainer-2rank",
    "hf-trainer-killed",
    "killed-torch-save",
    "killed-torch-save-small",
    "lightning-last-copy",
    "lightning-last-link",
    "megatron-torch-dist",
    "orbax-killed",
    "orbax-ocdbt",
    "orbax-zarr-plain",
    "prime-rl-checkpoints",
    "sigterm-torch-save",
    "timm-saver",
    "torch-formats",
    "verl-fsdp",
];
const ENDINGS: [&str; 6] = [".pt", ".pth", ".bin", ".pkl", ".ckpt", ".tar"];

/// The files that a cut-off save left behind, and their faults.
const BROKEN: [(&str, &str, &str); 4] = [
    (
        "enospc-torch-save",
        "step_2.pt",
        "the archive has no end record in its last bytes: the save was cut off",
    ),
    (
        "killed-torch-save",
        "step_2.pt",
        "the archive has no end record in its last bytes: the save was cut off",
    ),
    (
        "killed-torch-save-small",
        "step_3.pt",
        "the archive has no end record in its last bytes: the save was cut off",
    ),
    (
        "sigterm-torch-save",
        "step_3.pt",
        "data.pkl names storage 39 of 800 bytes, and the archive has no data/39: the save was cut off",
    ),
];

#[test]
fn every_file_of_torch_is_sound_or_broken_for_the_right_reason() {
    let mut sound = 0;
    for name in FIXTURES {
        let fixture = Fixture::unpack(name);
        let tree = &fixture.tree;
        for (path, _) in tree.files().filter(|(path, _)| ENDINGS.iter().any(|ending| path.ends_with(ending)))
        {
            let said = verdict(torch::check, &fixture.read(path));
            match BROKEN.iter().find(|(fixture, broken, _)| (*fixture, *broken) == (name, path)) {
                None => {
                    assert_eq!(said, Soundness::Sound, "{name}/{path}");
                    sound += 1;
                }
                Some((_, _, why)) => {
                    assert!(
                        matches!(&said, Soundness::Broken { why: said, .. } if said == why),
                        "{path}: {said:?}"
                    );
                }
            }
        }
    }
    assert_eq!(sound, 131);
}

#[test]
fn every_whole_directory_of_dcp_is_sound() {
    for (name, directories) in [
        ("dcp-1rank", ["step_5", "step_10"].as_slice()),
        ("dcp-2rank", &["step-100", "step-200", "step-300"]),
        ("dcp-2rank-zero-byte-shard", &["step_1", "step_2"]),
        ("dcp-killed-before-metadata", &["step_10", "step_20"]),
        ("megatron-torch-dist", &["iter_0000010", "iter_0000020"]),
        (
            "prime-rl-checkpoints",
            &["checkpoints/step_10/trainer", "checkpoints/step_20/trainer", "checkpoints/step_30/trainer"],
        ),
    ] {
        let fixture = Fixture::unpack(name);
        for directory in directories {
            let findings = dcp::check(&fixture.tree, directory, &fixture).unwrap();
            assert!(findings.len() >= 2, "{name}/{directory}: {findings:?}");
            for finding in findings {
                assert_eq!(finding.soundness, Soundness::Sound, "{name}/{}", finding.path);
            }
        }
    }
}

#[test]
fn a_directory_of_dcp_without_its_metadata_is_not_finished() {
    let fixture = Fixture::unpack("dcp-killed-before-metadata");
    let findings = dcp::check(&fixture.tree, "step_30", &fixture).unwrap();
    let [finding] = findings.as_slice() else { panic!("{findings:?}") };
    assert_eq!(finding.path, "step_30/.metadata");
    assert_eq!(
        finding.soundness,
        Soundness::Broken {
            offset: None,
            why: "the directory has no .metadata, which DCP writes last: the save was cut off or is still in progress"
                .to_owned()
        }
    );
}

#[test]
fn deepspeed_says_how_many_shards_there_must_be() {
    let fixture = Fixture::unpack("deepspeed-zero1");
    let files = &fixture;
    for directory in ["global_step10", "global_step20"] {
        assert_eq!(deepspeed::check(&fixture.tree, directory, files).unwrap(), []);
    }
    let optimizer = fixture.read("global_step10/zero_pp_rank_1_mp_rank_00_optim_states.pt");
    assert_eq!(deepspeed::read_partition_count(&optimizer).unwrap(), Some(2));

    let fixture = Fixture::unpack("deepspeed-latest-too-early");
    let files = &fixture;
    assert_eq!(deepspeed::check(&fixture.tree, "global_step10", files).unwrap(), []);
    let findings = deepspeed::check(&fixture.tree, "global_step20", files).unwrap();
    let [finding] = findings.as_slice() else { panic!("{findings:?}") };
    assert_eq!(finding.path, "global_step20/zero_pp_rank_1_mp_rank_00_optim_states.pt");
    assert_eq!(
        finding.soundness,
        Soundness::Broken {
            offset: None,
            why: "it is missing: global_step20/mp_rank_00_model_states.pt gives dp_world_size 2 and mp_world_size \
                1, and 1 of 2 such files exist"
                .to_owned()
        }
    );
}

#[test]
fn what_is_no_file_of_torch_at_all() {
    assert_eq!(why_broken(torch::check, b""), "the file is empty: it was created and never written");
    assert_eq!(
        why_broken(torch::check, &[0; 5000]),
        "the file begins with zeros: its space was reserved and never written"
    );
    assert_eq!(why_broken(torch::check, b"\xff\xff"), "byte 0xff is not a pickle instruction");
    let mut tar = vec![b'a'; 512];
    tar[257..262].copy_from_slice(b"ustar");
    assert_eq!(
        verdict(torch::check, &tar),
        Soundness::Unknown { why: "the file is a tar archive, which torch wrote before 0.1.10".to_owned() }
    );
}
