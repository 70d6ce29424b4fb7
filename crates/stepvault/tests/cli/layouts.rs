//! Directories of trainers that no profile describes, and of tools that write beside them: what the last save wrote comes
//! back, or the exit code says that it is not stored.

use std::path::Path;
use std::time::{Duration, SystemTime};

use stepvault_testkit::torch::state;
use stepvault_testkit::tree::read_tree;

use crate::support::{Place, at_once, list};
use crate::watched::{configured, lose_the_node, on};

/// Returns a file of weights in the format of safetensors.
fn safetensors(seed: &str) -> Vec<u8> {
    let header = br#"{"w":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header);
    bytes.extend(seed.bytes().chain([0; 8]).take(8));
    bytes
}

/// Returns content that the name of a file promises, different for each `seed`.
fn content(name: &str, seed: &str, newest: &str) -> Vec<u8> {
    let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
    match (name, extension) {
        ("latest", _) => newest.as_bytes().to_vec(),
        ("checkpoint" | "last_checkpoint", _) => format!("path: \"{newest}\"\n").into_bytes(),
        (_, "pt" | "pth" | "th" | "ckpt") => state(&[], seed),
        (_, "safetensors") => safetensors(seed),
        (_, "gguf") => [b"GGUF\x03\0\0\0".as_slice(), &[0; 16]].concat(),
        (_, "json" | "yaml" | "txt") => format!("{{\"seed\": \"{seed}\"}}").into_bytes(),
        _ => format!("\x07\x01{seed}").repeat(50).into_bytes(),
    }
}

/// Writes a save: paths with `{}` for a number.
fn save(place: &Place, paths: &str, number: &str, seconds: u64) -> Vec<String> {
    let paths = paths.replace("{}", number);
    let newest = paths.split([' ', '/']).next().unwrap_or_default().to_owned();
    let newest = newest.rsplit_once('.').map_or(newest.clone(), |(stem, _)| stem.to_owned());
    let mut written = Vec::new();
    for path in paths.split(' ') {
        let at = place.path("out").join(path);
        std::fs::create_dir_all(at.parent().unwrap()).unwrap();
        let name = at.file_name().unwrap().to_str().unwrap();
        std::fs::write(&at, content(name, &format!("{path}-{number}"), &newest)).unwrap();
        let time = SystemTime::now() - Duration::from_secs(3600 - seconds);
        std::fs::File::open(&at).unwrap().set_modified(time).unwrap();
        written.push(path.to_owned());
    }
    written
}

/// Saves with these numbers, lets the agent make one round, loses the node and restores. Returns the paths of the last save
/// that did not come back as they were, and what the round reported as not sealed.
fn lost(paths: &str, numbers: &[&str]) -> (Vec<String>, String) {
    let place = configured();
    let mut last = Vec::new();
    for (index, number) in numbers.iter().enumerate() {
        last = save(&place, paths, number, 60 * index as u64);
    }
    let outcome = place.command(["agent", "--once", "--config", "n.toml", "--json"]).run();
    let document = outcome.json();
    let unsealed = list(&document, "unsealed").to_vec();
    assert_eq!(outcome.code == 3, !unsealed.is_empty(), "{paths}: {document:#}");
    let saved = read_tree(&place.path("out"));
    lose_the_node(&place);
    let restored = on(&place, &["restore", "--into", "out"]);
    let back = (restored.code == 0).then(|| read_tree(&place.path("out")));
    let back = back.unwrap_or_default();
    last.retain(|path| back.get(Path::new(path)) != saved.get(Path::new(path)));
    (last, serde_json::to_string(&unsealed).unwrap())
}

/// Every file of the last save comes back.
#[track_caller]
fn all_come_back(layouts: &[(&str, &[&str])]) {
    at_once(layouts, |(paths, numbers)| {
        let (lost, unsealed) = lost(paths, numbers);
        assert!(lost.is_empty(), "{paths}: {lost:?} did not come back; {unsealed}");
    });
}

/// What does not come back is named.
#[track_caller]
fn nothing_is_lost_in_silence(layouts: &[(&str, &[&str])]) {
    at_once(layouts, |(paths, numbers)| {
        let (lost, unsealed) = lost(paths, numbers);
        assert!(!lost.is_empty(), "{paths}: all come back, so this is the wrong list");
        for path in lost {
            let outermost = path.split('/').next().unwrap_or_default();
            assert!(unsealed.contains(outermost), "{paths}: {path} is lost in silence; {unsealed}");
        }
    });
}

const STEPS: &[&str] = &["1000", "2000"];

#[test]
fn several_files_of_one_number() {
    all_come_back(&[
        ("G_{}.pth D_{}.pth", STEPS),
        ("netG_epoch_{}.pth netD_epoch_{}.pth", &["1", "2"]),
        ("g_0000{} do_0000{}", STEPS),
        ("ema_0.9999_01{}.pt model01{}.pt opt01{}.pt", STEPS),
        ("model_state_epoch_{}.th training_state_epoch_{}.th best.th", &["1", "2"]),
        ("net_iter_{}.caffemodel net_iter_{}.solverstate", STEPS),
        ("epoch_{}.pdparams epoch_{}.pdopt", &["1", "2"]),
        ("rl_model_{}_steps.zip.bin rl_model_replay_buffer_{}_steps.pkl", STEPS),
        ("model_{}.bin optim_{}.bin ema_{}.bin", STEPS),
        ("ckpt_{}_rank_0.pt ckpt_{}_rank_1.pt", STEPS),
    ]);
}

#[test]
fn a_path_without_a_number_that_each_save_writes_too() {
    all_come_back(&[
        ("{}epoch.pth checkpoint.pth", &["1", "2"]),
        ("checkpoint0{}.pth checkpoint.pth", STEPS),
        ("{}.ckpt best.ckpt latest.ckpt", STEPS),
        ("{}_net_G.pth {}_net_D.pth latest_net_G.pth latest_net_D.pth", &["5", "10"]),
        ("params.0{} params.best", STEPS),
        ("checkpoint_{}.pth best_model_{}.pth best_model.pth", STEPS),
        ("step_{}/model.pt step_{}/optimizer.pt final.pt", STEPS),
    ]);
}

#[test]
fn a_text_that_names_the_newest_step() {
    all_come_back(&[
        ("ckpt-{}.index ckpt-{}.data-00000-of-00001 checkpoint", &["1", "2"]),
        ("model.ckpt-{}.index model.ckpt-{}.meta checkpoint", STEPS),
        ("epoch_{}.pth last_checkpoint", &["1", "2"]),
        ("model_000{}.pth last_checkpoint", STEPS),
        (
            "global_step{}/mp_rank_00_model_states.pt global_step{}_universal/mp_rank_00_model_states.pt latest",
            STEPS,
        ),
    ]);
}

#[test]
fn files_with_any_extension_or_none() {
    all_come_back(&[
        ("model_{}.ubj", STEPS),
        ("model_epoch{}.joblib", STEPS),
        ("model.txt.snapshot_iter_{}", STEPS),
        ("model_{}.txt", STEPS),
        ("state_{}.pkl.gz", STEPS),
        ("step_{}.pt.zst", STEPS),
        ("checkpoint_{}", STEPS),
        ("{}.mdl", STEPS),
        ("model_{}.jld2", STEPS),
        ("checkpoint.bv-0000{} checkpoint.bv", STEPS),
        ("last_ep_{}_rew_5.3.pth", STEPS),
        ("yolov4_{}.weights", STEPS),
    ]);
}

#[test]
fn what_has_no_number_at_all() {
    all_come_back(&[
        ("snapshot.cbsnapshot", &[""]),
        ("ppo.cleanrl_model", &[""]),
        ("model.checkpoint replay_buffer.pkl", &[""]),
        ("model-last/meta.json model-last/tok2vec/model", &[""]),
        ("checkpoint_latest.pth checkpoint_best.pth", &[""]),
        ("encoder-5-{}.pkl decoder-5-{}.pkl", STEPS),
        ("CKPT+2026-11-26+1{}-00+00/brain.bin", &["2-00", "3-00"]),
        ("weights/last.pt weights/best.pt", &[""]),
    ]);
}

#[test]
fn a_conversion_beside_a_step() {
    all_come_back(&[
        ("step_{}/model.pt step_{}/optimizer.pt step_{}_hf/model.safetensors step_{}_hf/config.json", STEPS),
        ("step_{}/model.pt step_{}/optimizer.pt hf_step_{}/model.safetensors", STEPS),
        ("step_{}/model.pt step_{}/optimizer.pt step_{}.gguf", STEPS),
        ("step_{}/model.pt step_{}/optimizer.pt step_{}_fp16.safetensors", STEPS),
        ("step{}/model.pt step{}/optim.pt step{}-unsharded/model.pt", STEPS),
        ("epoch=1-step={}.ckpt epoch=1-step={}-EMA.ckpt", STEPS),
    ]);
}

#[test]
fn what_is_not_stored_is_named() {
    nothing_is_lost_in_silence(&[
        ("models/net_g_{}.pth training_states/{}.state", STEPS),
        ("trial_3/model_{}.pt", STEPS),
        ("fold_0/checkpoint_final.pth", &[""]),
        ("run1/checkpoints/step_{}.pt", STEPS),
        (
            "checkpoint-{}/adapter_model.safetensors checkpoint-{}/optimizer.pt checkpoint-{}/trainer_state.json",
            STEPS,
        ),
        ("step_{}.pt swa_1000_{}.pt", STEPS),
        ("step_{}.pt ema/step_{}.pt", STEPS),
    ]);
}
