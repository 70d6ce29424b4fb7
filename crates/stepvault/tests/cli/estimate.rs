//! `estimate`: sizes from numbers.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde_json::Value;
use stepvault_testkit::tree::{entries_below, files_below};

use crate::support::Place;

#[track_caller]
fn estimated(place: &Place, line: &str) -> Value {
    let mut estimate = place.command(["estimate"]);
    estimate.args(line.split_whitespace()).document(0)
}

/// Bytes and number of the inodes of regular files, and the number of directories, below some paths.
fn taken(roots: &[&Path]) -> (u64, u64, u64) {
    let mut files: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    let mut directories = 0;
    for path in roots.iter().flat_map(|root| [vec![root.to_path_buf()], entries_below(root)].concat()) {
        let facts = path.symlink_metadata().unwrap();
        if facts.is_dir() {
            directories += 1;
        } else {
            files.insert((facts.dev(), facts.ino()), facts.len());
        }
    }
    (files.values().sum(), files.len() as u64, directories)
}

#[test]
fn thirty_billion_parameters_over_four_nodes() {
    let place = Place::new();
    let model = "--params 30e9 --weights bf16 --optimizer adamw-fp32 --master fp32";
    let document = estimated(&place, &format!("{model} --nodes 4 --ranks-per-node 8"));
    assert_eq!(document["model"]["weights_bytes"], 60_000_000_000_u64);
    assert_eq!(document["model"]["master_bytes"], 120_000_000_000_u64);
    assert_eq!(document["model"]["optimizer_bytes"], 240_000_002_000_u64);
    assert_eq!(
        (&document["model"]["layout"], &document["model"]["sharding"]),
        (&"dcp".into(), &"sharded".into())
    );
    let bytes = |document: &Value, member: &str| document[member]["bytes"].as_u64().unwrap();
    let all = document["bytes"].as_u64().unwrap();
    assert!((420_000_000_000..420_420_000_000).contains(&all), "{document:#}");
    assert_eq!(bytes(&document, "first_node") / 1_000_000_000, 105);
    assert_eq!(bytes(&document, "other_nodes") / 1_000_000_000, 105);
    // The same copy on each node.
    let document = estimated(&place, &format!("{model} --nodes 4 --sharding replicated"));
    assert_eq!(document["bytes"].as_u64().unwrap() / 1_000_000_000, 1680);
    assert_eq!(bytes(&document, "first_node") / 1_000_000_000, 420);
    // By one rank.
    let document = estimated(&place, &format!("{model} --nodes 4 --sharding rank-zero"));
    assert_eq!(bytes(&document, "other_nodes"), 0);
    let text = place.run(&["estimate", "--params", "7B", "--optimizer", "none"]).expect_code(0).stdout;
    assert!(
        text.starts_with(
            "7000000000 parameters in 500 tensors: weights as bf16, none; layout torch, rank-zero, 1 rank\n"
        ),
        "{text}"
    );
    assert!(text.contains("weights       13.0 GiB"), "{text}");
}

#[test]
fn the_shuffle_buffer_that_filled_a_disk() {
    let place = Place::new();
    let document = estimated(&place, "--shuffle-buffer 250000 --sample 500KB");
    let buffer = &document["shuffle_buffer"];
    assert_eq!(buffer["payload_bytes"], 125_000_000_000_u64);
    assert_eq!(buffer["bytes"], 187_500_000_000_u64);
    assert_eq!(buffer["smaller"]["samples"], 10_000);
    assert_eq!(buffer["smaller"]["payload_bytes"], 5_000_000_000_u64);
    assert_eq!(document["bytes"], 187_500_000_000_u64);
    let text = place
        .run(&["estimate", "--shuffle-buffer", "250000", "--sample", "500KB", "--through-tmpdir"])
        .expect_code(0)
        .stdout;
    for line in ["250000 of 488.3 KiB  116.4 GiB  174.6 GiB", "10000 of 488.3 KiB     4.7 GiB    7.0 GiB"] {
        assert!(text.contains(line), "{text}");
    }
    // The old step, the new one, and the new one in TMPDIR.
    assert!(text.contains("523.9 GiB"), "{text}");
    // Each node's loader has its own, beside the model.
    let both = estimated(
        &place,
        "--params 1e9 --optimizer none --nodes 2 --shuffle-buffer 1000 --sample 1MB --buffer-overhead 1",
    );
    assert_eq!(both["parts"].as_array().unwrap().last().unwrap()["bytes"], 2_000_000_000_u64);
    assert_eq!(both["shuffle_buffer"]["smaller"], Value::Null);
}

#[test]
fn what_the_local_tier_takes_is_what_it_takes() {
    let place = Place::new();
    for step in [1, 2] {
        let path = place.checkpoint(&format!("step_{step}"), "x");
        std::fs::create_dir(path.join("inner")).unwrap();
        std::fs::write(path.join("inner/more.bin"), [7; 100]).unwrap();
    }
    for links in ["copy", "auto"] {
        let run = |arguments: &[&str]| {
            let mut command = place.command(arguments);
            command.env("STEPVAULT_LOCAL_LINKS", links).run().expect_code(0)
        };
        // What is durable already would not be sealed.
        let remote = format!("{}-{links}", place.remote());
        let vault = place.path(links);
        let local = vault.to_str().unwrap();
        let common = ["--run", "demo/a", "--remote", &remote, "--local", local];
        for step in ["checkpoints/step_1", "checkpoints/step_2"] {
            run(&[&["push", step][..], &common].concat());
        }
        let (bytes, files, directories) = {
            let (steps, checkpoints) = (vault.join("runs/demo%2Fa/steps"), place.path("checkpoints"));
            let (bytes, files, directories) = taken(&[&steps, &checkpoints]);
            // Records are counted as inodes, not as bytes.
            let records: u64 = records(&steps);
            // The directories that hold the steps are none of theirs.
            (bytes - records, files, directories - 2)
        };
        // A hard link where the filesystem has no reflinks.
        let trained = place.path("checkpoints/step_1/model.bin");
        let is_linked = trained.metadata().unwrap().nlink() > 1;
        let vault_flag = if links == "copy" {
            vec![]
        } else if is_linked {
            vec!["--vault", "hard-link"]
        } else {
            vec!["--vault", "reflink"]
        };
        let estimate = ["estimate", "checkpoints/step_2", "--json", "--steps", "2", "--every", "1"];
        let keep = ["--keep", "5", "--trainer-keep", "5"];
        let document = run(&[&estimate[..], &keep, &common, &vault_flag].concat()).json();
        let saving = &document["saving"];
        if links == "copy" {
            assert_eq!(saving["vault"], "copy");
        }
        if links == "copy" || is_linked {
            assert_eq!(saving["peak_bytes"], bytes, "{document:#}");
        }
        assert_eq!(saving["peak_inodes"], files + directories, "{document:#}");
    }
}

/// Bytes of what the vault has beside the data.
fn records(steps: &Path) -> u64 {
    let is_data = |path: &PathBuf| {
        let inside = path.strip_prefix(steps).unwrap();
        inside.components().nth(1).is_some_and(|name| name.as_os_str() == "data")
    };
    let records = files_below(steps).into_iter().filter(|path| !is_data(path));
    records.map(|path| path.metadata().unwrap().len()).sum()
}

#[test]
fn retention_in_force_is_the_configurations_or_the_flags() {
    let place = Place::new();
    std::fs::write(
        place.path("stepvault.toml"),
        "[remote.main]\nurl = \"s3://bucket/prefix\"\n[remote.second]\nurl = \"gs://bucket\"\n\
         [run.\"a\"]\nwatch = \"checkpoints\"\n[keep.local]\nlast = 2\n[keep.remote]\nlast = 3\nevery-steps = 1000\n",
    )
    .unwrap();
    let line = "--params 1B --weights bf16 --optimizer none --layout torch --steps 5000 --every 100";
    let tiers = |document: &Value| -> Vec<(String, u64)> {
        let tiers = document["run"]["tiers"].as_array().unwrap().iter();
        tiers
            .map(|tier| (tier["tier"].as_str().unwrap().to_owned(), tier["steps"].as_u64().unwrap()))
            .collect()
    };
    let document = estimated(&place, line);
    let named = |local, remote| {
        vec![("local".to_owned(), local), ("main".to_owned(), remote), ("second".to_owned(), remote)]
    };
    // Of 1000 to 5000 the last is among the newest three.
    assert_eq!(tiers(&document), named(2, 7));
    assert_eq!(document["run"]["saves"], 50);
    let document = estimated(&place, &format!("{line} --keep 4 --keep-remote 1"));
    assert_eq!(tiers(&document), named(4, 1));
    let step_bytes = document["bytes"].as_u64().unwrap();
    assert_eq!(document["run"]["tiers"][0]["bytes"], 4 * step_bytes);
    // Four in the vault, one of them the trainer's as well, and the new one.
    assert_eq!(document["saving"]["peak_bytes"], 5 * step_bytes);
    let document = estimated(&place, &format!("{line} --keep 4 --vault copy --trainer-keep 2"));
    assert_eq!(document["saving"]["peak_bytes"], (4 + 2 + 1 + 1) * step_bytes);
}

#[test]
fn a_selective_remote_counts_with_what_its_rules_select() {
    let place = Place::new();
    let configure = |select: &str| {
        let text = format!(
            "[remote.main]\nurl = \"s3://bucket/prefix\"\n[remote.cold]\nurl = \"gs://bucket\"\nfrom = \"main\"\n{select}\n\
             [run.\"a\"]\nwatch = \"checkpoints\"\n[keep.remote]\nlast = 3\n"
        );
        place.write("stepvault.toml", text);
    };
    let line = "--params 1B --weights bf16 --optimizer none --layout torch --steps 5000 --every 100";
    for (select, steps) in [
        ("select.every-steps = 1000", 5),
        ("select = { every-steps = 2000, final = true }", 3),
        ("after = \"24h\"", 50),
    ] {
        configure(select);
        let document = estimated(&place, line);
        let tiers = document["run"]["tiers"].as_array().unwrap();
        let of = |name: &str| tiers.iter().find(|tier| tier["tier"] == name).unwrap()["steps"].as_u64();
        assert_eq!((of("main"), of("cold")), (Some(3), Some(steps)), "{select}");
        let notes = document["notes"].as_array().unwrap();
        assert!(
            notes.iter().any(|note| note.as_str().unwrap().contains("its rules select at the end")),
            "{notes:?}"
        );
    }
}

#[test]
fn wrong_numbers_say_what_to_write() {
    let place = Place::new();
    std::fs::write(place.path("file.bin"), "x").unwrap();
    for (line, text) in [
        ("", "nothing to estimate\n  hint: give a PATH, a model with --params 30e9"),
        ("file.bin --params 7B", "cannot be used with"),
        (
            "--params seven",
            "not a count: \"seven\": it is not a number (write 250000, 30e9, 7B, 1.5T or 350M)",
        ),
        ("--params 7B --weights float32", "write one of fp64, fp32"),
        ("--params 7B --optimizer adamw-fp33", "not an optimizer: \"adamw-fp33\""),
        ("--params 7B --layout pickle", "not a layout: \"pickle\""),
        ("--params 7B --tensors 8B", "7000000000 parameters are in 8000000000 tensors"),
        ("--params 1e19 --weights fp64", "it is more bytes or files than a 64-bit number can hold"),
        ("--params 7B --layout hf-trainer --sharding sharded", "layout hf-trainer cannot be sharded"),
        ("--params 7B --ranks-per-node 0", "at least one rank must write a step"),
        ("--params 7B --steps 1e12 --every 1", "at most 100000 saves can be simulated"),
        ("--params 7B --steps 10", "--every"),
        ("--params 7B --keep 0", "the keep rules would delete everything"),
        ("--shuffle-buffer 250000", "--sample"),
        ("--shuffle-buffer 1e19 --sample 1GB", "it is more bytes"),
        ("--shuffle-buffer 250000 --sample 500", "write \"500 B\", \"500 MiB\" or \"500 GiB\""),
        ("nothing-there", "cannot determine the size: nothing-there"),
    ] {
        let mut estimate = place.command(["estimate"]);
        let outcome = estimate.args(line.split_whitespace()).run();
        assert_ne!(outcome.code, 0, "{line}: {outcome:#?}");
        assert!(outcome.stderr.contains(text), "{line}: {outcome:#?}");
        outcome.assert_no_panic();
    }
}

#[test]
fn what_a_framework_may_overwrite_is_counted_as_copied() {
    let place = Place::new();
    place.checkpoint("step_1", "a");
    let estimate = |more: &[&str]| {
        let line = [&["estimate", "checkpoints", "--json"], more].concat();
        place.run(&line).expect_code(0).json()
    };
    let document = estimate(&[]);
    assert_eq!(document["saving"]["vault"], "copy");
    let notes = document["notes"].as_array().unwrap();
    let says_why = |note: &Value| {
        let text = note.as_str().unwrap();
        text.starts_with("by profile 'generic' finished files may be overwritten in place")
    };
    assert!(notes.iter().any(says_why), "{document:#}");
    assert_eq!(estimate(&["--vault", "reflink"])["saving"]["vault"], "reflink");

    let step = place.path("checkpoints/checkpoint-5");
    std::fs::rename(place.path("checkpoints/step_1"), &step).unwrap();
    std::fs::write(step.join("trainer_state.json"), "{\"global_step\": 5}").unwrap();
    let document = estimate(&[]);
    assert_eq!(document["saving"]["vault"], "hard-link", "{document:#}");
}
