//! What a restore writes, moves aside and reports, and what a clean-up may remove.

use stepvault_core::step_origin::BestName;
use stepvault_formats::find::{FindOptions, find_steps};
use stepvault_formats::pointer::{PointerContent, PointerWrite, pointer_after_restore};
use stepvault_formats::profile::{Effect, Hazard, Profile, ProfileSet};
use stepvault_formats::prunable::prunable;
use stepvault_formats::resume::{Resumed, moved_aside_before_restore, resume_text, resumed_by_framework};

use crate::directory::memory::Memory;

fn profile(name: &str) -> Profile {
    ProfileSet::default().get(name).unwrap().clone()
}

fn resumed(name: &str, memory: &Memory) -> Resumed {
    resumed_by_framework(&profile(name), &memory.tree(), memory)
}

fn step(path: &str) -> Resumed {
    Resumed::Step(path.to_owned())
}

fn aside(name: &str, memory: &Memory, step: &str) -> Vec<String> {
    moved_aside_before_restore(&profile(name), &memory.tree(), memory, step)
}

fn pointers(name: &str, memory: &Memory, paths: &[&str]) -> Vec<PointerWrite> {
    let paths: Vec<_> = paths.iter().map(|path| (*path).to_owned()).collect();
    pointer_after_restore(&profile(name), &memory.tree(), "/data/run/", &paths)
}

fn write(path: &str, content: PointerContent) -> PointerWrite {
    let path = path.to_owned();
    PointerWrite { path, content }
}

fn text(text: &str) -> PointerContent {
    PointerContent::Text(text.to_owned())
}

fn link(target: &str) -> PointerContent {
    PointerContent::Symlink(target.to_owned())
}

fn copy(of: &str) -> PointerContent {
    PointerContent::CopyOf(of.to_owned())
}

#[test]
fn each_shard_has_a_pointer_of_its_own_and_no_other() {
    let empty = Memory::default();
    let shards = ["checkpoint_2_400-shard0.pt", "checkpoint_2_400-shard1.pt"];
    assert_eq!(
        pointers("fairseq", &empty, &shards),
        [
            write("checkpoint_last-shard0.pt", copy(shards[0])),
            write("checkpoint_last-shard1.pt", copy(shards[1])),
        ]
    );
    let whole = "checkpoint_2_400.pt";
    assert_eq!(pointers("fairseq", &empty, &[whole]), [write("checkpoint_last.pt", copy(whole))]);
}

#[test]
fn pointers_are_what_the_trainer_wrote_itself() {
    let empty = Memory::default();
    for (name, path, expected) in [
        ("deepspeed", "global_step10", write("latest", text("global_step10"))),
        ("megatron", "iter_0000010", write("latest_checkpointed_iteration.txt", text("10"))),
        ("verl", "global_step_10", write("latest_checkpointed_iteration.txt", text("10"))),
        ("composer", "ep0-ba10-rank0.pt", write("latest-rank0.pt", link("ep0-ba10-rank0.pt"))),
        ("composer", "ep0-ba10", write("latest-rank0.pt", link("ep0-ba10"))),
        (
            "cycling-utils",
            "run7_checkpoint_4_force",
            write("run7.latest_checkpoint", link("/data/run/run7_checkpoint_4_force")),
        ),
        ("stepvault", "step_5", write("latest", link("step_5"))),
        (
            "lightning",
            "checkpoints/epoch=1-step=9.ckpt",
            write("checkpoints/last.ckpt", copy("checkpoints/epoch=1-step=9.ckpt")),
        ),
        ("timm", "checkpoint-3.pth.tar", write("last.pth.tar", copy("checkpoint-3.pth.tar"))),
    ] {
        assert_eq!(pointers(name, &empty, &[path]), [expected], "{name}");
    }
    for (name, path) in [
        ("hf-trainer", "checkpoint-5"),
        ("prime-rl", "checkpoints/step_5"),
        ("orbax", "40"),
        ("ultralytics", "weights/last.pt"),
        ("lightning", "last.ckpt"),
    ] {
        assert_eq!(pointers(name, &empty, &[path]), [], "{name}");
    }
}

#[test]
fn the_trainers_own_way_of_writing_a_pointer_is_kept() {
    let relative = Memory::new(&["A.latest_checkpoint -> out/A_checkpoint_7"]);
    assert_eq!(
        pointers("cycling-utils", &relative, &["A_checkpoint_3"]),
        [write("A.latest_checkpoint", link("out/A_checkpoint_3"))]
    );
    let linked = Memory::new(&["last.ckpt -> epoch=1-step=9.ckpt"]);
    assert_eq!(
        pointers("lightning", &linked, &["epoch=0-step=5.ckpt"]),
        [write("last.ckpt", link("epoch=0-step=5.ckpt"))]
    );
}

#[test]
fn every_rank_has_its_pointer() {
    assert_eq!(
        pointers("composer", &Memory::default(), &["ep0-ba10-rank0.pt", "ep0-ba10-rank1.pt"]),
        [
            write("latest-rank0.pt", link("ep0-ba10-rank0.pt")),
            write("latest-rank1.pt", link("ep0-ba10-rank1.pt")),
        ]
    );
    assert_eq!(
        pointers("cycling-utils", &Memory::default(), &["A_rank_0_checkpoint_3", "A_rank_1_checkpoint_3"]),
        [
            write("A_rank_0.latest_checkpoint", link("/data/run/A_rank_0_checkpoint_3")),
            write("A_rank_1.latest_checkpoint", link("/data/run/A_rank_1_checkpoint_3")),
        ]
    );
}

#[test]
fn a_newer_step_that_the_trainer_would_take_is_moved_aside() {
    for (name, newer, restored, valid) in [
        ("hf-trainer", "checkpoint-15", "checkpoint-10", "checkpoint-15/model.safetensors"),
        (
            "prime-rl",
            "checkpoints/step_30",
            "checkpoints/step_20",
            "checkpoints/step_30/trainer/__0_0.distcp",
        ),
        ("orbax", "40", "30", "40/default/"),
        ("openpi-jax", "40", "30", "40/params/x"),
        ("openpi-pytorch", "40", "30", "40/model.safetensors"),
        ("torchtitan", "checkpoint/step-40", "checkpoint/step-30", "checkpoint/step-40/.metadata"),
        ("torchtune", "epoch_4", "epoch_3", "epoch_4/model.pt"),
        (
            "accelerate",
            "checkpoints/checkpoint_4",
            "checkpoints/checkpoint_3",
            "checkpoints/checkpoint_4/model.safetensors",
        ),
        ("maxtext", "checkpoints/40", "checkpoints/30", "checkpoints/40/items/c/99"),
    ] {
        let mut memory = Memory::new(&[valid]);
        memory.write(&format!("{restored}/"));
        assert_eq!(aside(name, &memory, restored), [newer], "{name}");
        assert_eq!(resumed(name, &memory), step(newer), "{name}");
        // Once it is moved aside, the trainer loads the restored one.
        let mut cleared = memory.clone();
        cleared.write(&format!("- {newer}"));
        cleared.write(&format!("{restored}/.metadata"));
        assert_eq!(resumed(name, &cleared), step(restored), "{name}");
        assert_eq!(aside(name, &cleared, restored), Vec::<String>::new(), "{name}");
    }
}

#[test]
fn what_the_trainers_scan_passes_over_is_left_alone() {
    let husk = Memory::new(&["checkpoint/step-40/__0_0.distcp", "checkpoint/step-30/.metadata"]);
    assert_eq!(resumed("torchtitan", &husk), step("checkpoint/step-30"));
    assert!(aside("torchtitan", &husk, "checkpoint/step-30").is_empty());
    let temporary = Memory::new(&["40.orbax-checkpoint-tmp/x", "30/x", "step_50/x.txt", "040/x"]);
    assert_eq!(resumed("openpi-jax", &temporary), step("30"));
    assert!(aside("openpi-jax", &temporary, "30").is_empty());
}

#[test]
fn lightning_takes_the_newest_of_those_called_last() {
    let mut memory = Memory::new(&["epoch=0-step=5.ckpt = five", "last.ckpt -> epoch=0-step=5.ckpt"]);
    assert_eq!(resumed("lightning", &memory), step("epoch=0-step=5.ckpt"));
    memory.write("last-v1.ckpt = other");
    assert_eq!(resumed("lightning", &memory), step("last-v1.ckpt"));
    assert_eq!(aside("lightning", &memory, "epoch=0-step=5.ckpt"), ["last-v1.ckpt"]);
}

#[test]
fn levanter_goes_by_the_time_inside() {
    let json = |step: u32, day: u32| {
        format!("{{\"step\": {step}, \"timestamp\": \"2026-01-{day:02}T00:00:00\", \"is_temporary\": false}}")
    };
    let mut memory = Memory::default();
    memory.write(&format!("run/step-20/metadata.json = {}", json(20, 1)));
    memory.write(&format!("run/step-10/metadata.json = {}", json(10, 2)));
    memory.write("run/step-30/model/");
    assert_eq!(resumed("levanter", &memory), step("run/step-10"));
}

#[test]
fn a_pointer_to_nothing_makes_the_trainer_fail() {
    let memory = Memory::new(&["latest = global_step9", "global_step5/mp_rank_00_model_states.pt"]);
    assert_eq!(
        resumed("deepspeed", &memory),
        Resumed::Fails {
            path: "latest".to_owned(),
            words: "it names \"global_step9\", and no such step exists".to_owned()
        }
    );
    assert_eq!(resumed("megatron", &Memory::new(&["iter_0000010/.metadata"])), Resumed::Nothing);
}

/// Table 0b: names that the frameworks' scans mishandle.
#[test]
fn names_that_must_never_be_created() {
    for (name, path, effect) in [
        ("prime-rl", "checkpoints/step_5.partial", Effect::Fails),
        ("prime-rl", "step_5_tmp", Effect::Fails),
        ("torchtitan", "checkpoint/.tier-step-100", Effect::Counted),
        ("torchtitan", "checkpoint/step-100.tmp", Effect::Counted),
        ("hf-trainer", "checkpoint-500.partial", Effect::Removed),
        ("accelerate", "checkpoints/tmp", Effect::Fails),
        ("accelerate", "checkpoints/tmp_5", Effect::Removed),
        ("torchtune", "epoch_1.partial", Effect::Fails),
        ("orbax", "40", Effect::Counted),
        ("levanter", "run/.tmp/metadata.json", Effect::Counted),
        ("nemo", "checkpoints/x-last", Effect::Counted),
        ("lightning", "checkpoints/last-partial.ckpt", Effect::Counted),
        ("lightning", "hpc_ckpt_tmp.ckpt", Effect::Fails),
        ("megatron", "iter_0000100.tmp", Effect::Fails),
        ("cycling-utils", "A.latest_checkpoint_temp", Effect::Fails),
        ("cycling-utils", "A_checkpoint_9", Effect::Removed),
        ("ultralytics", "weights/last.partial.pt", Effect::Counted),
    ] {
        let profile = profile(name);
        let hazard = hazard_of(&profile, path).unwrap_or_else(|| panic!("{name}: {path}"));
        assert_eq!(hazard.effect, effect, "{name}: {path}");
        assert!(!hazard.words.is_empty());
    }
    for (name, path) in [
        ("prime-rl", "checkpoints/step_5"),
        ("prime-rl", "checkpoints/.step_5.partial"),
        ("torchtitan", "checkpoint/step-100"),
        ("hf-trainer", "checkpoint-500"),
        ("hf-trainer", ".stepvault-restore"),
        ("accelerate", "checkpoints/checkpoint_5/random_states_0.pkl"),
        ("torchtune", "epoch_1"),
        ("megatron", "iter_0000100"),
        ("lightning", "checkpoints/last.ckpt"),
    ] {
        let effect = hazard_of(&profile(name), path).map(|hazard| hazard.effect);
        assert_ne!(effect, Some(Effect::Fails), "{name}: {path}");
        if name != "accelerate" {
            assert_eq!(effect, None, "{name}: {path}");
        }
    }
}

fn hazard_of<'a>(profile: &'a Profile, path: &str) -> Option<&'a Hazard> {
    profile.hazard.iter().find(|hazard| hazard.path.is_match(path))
}

#[test]
fn what_a_trainer_fails_over_is_moved_aside() {
    let memory = Memory::new(&["step_10/trainer/.metadata", "step_5.partial/x"]);
    assert!(matches!(resumed("prime-rl", &memory), Resumed::Fails { path, .. } if path == "step_5.partial"));
    assert_eq!(aside("prime-rl", &memory, "step_10"), ["step_5.partial"]);
}

#[test]
fn how_to_go_on_is_said_with_the_step() {
    assert_eq!(
        resume_text(&profile("deepspeed"), "/data/run/", "global_step10").as_deref(),
        Some(
            "call engine.load_checkpoint(\"/data/run\"), which reads /data/run/latest, or pass tag=\"global_step10\""
        )
    );
    for profile in ProfileSet::default().iter() {
        let example = match profile.name.as_str() {
            "prime-rl" => "checkpoints/step_10",
            "areal" => "actor/recover_checkpoint",
            "openpi-jax" | "openpi-pytorch" | "orbax" | "maxtext" => "10",
            "torchtitan" | "levanter" => "step-10",
            "hf-trainer" | "trl" => "checkpoint-10",
            "accelerate" => "checkpoints/checkpoint_10",
            "lightning" => "epoch=0-step=10.ckpt",
            "megatron" => "iter_0000010",
            "verl" => "global_step_10",
            "torchtune" => "epoch_10",
            "composer" => "ep0-ba10-rank0.pt",
            "cycling-utils" => "A_checkpoint_10",
            "timm" => "checkpoint-10.pth.tar",
            "ultralytics" => "weights/last.pt",
            "fairseq" => "checkpoint10.pt",
            "keras" => "backup/latest.weights.h5",
            _ => "step_10",
        };
        let text = resume_text(profile, "/data/run", example);
        assert!(text.is_some_and(|text| !text.is_empty() && !text.contains('{')), "{}", profile.name);
    }
}

fn removable(name: &str, memory: &Memory) -> Vec<String> {
    let profile = profile(name);
    let options = FindOptions::default();
    let found = find_steps(&profile, &memory.tree(), memory, memory.settled(), &options);
    prunable(&profile, &memory.tree(), memory, &found).into_iter().map(|step| step.path.clone()).collect()
}

#[test]
fn the_newest_and_what_is_named_stay() {
    let mut memory = Memory::default();
    for step in [10, 20, 30] {
        memory.write(&format!("global_step{step}/mp_rank_00_model_states.pt"));
    }
    memory.write("latest = global_step20");
    assert_eq!(removable("deepspeed", &memory), ["global_step10"]);
    memory.write("latest = global_step99");
    assert_eq!(removable("deepspeed", &memory), Vec::<String>::new());
}

#[test]
fn the_best_model_of_a_hugging_face_run_stays() {
    let mut memory = Memory::default();
    for (step, best) in
        [(5, "null"), (10, "\"/mnt/x/out/checkpoint-10\""), (15, "\"/mnt/x/out/checkpoint-10\"")]
    {
        memory.write(&format!("checkpoint-{step}/model.safetensors"));
        memory
            .write(&format!("checkpoint-{step}/trainer_state.json = {{\"best_model_checkpoint\": {best}}}"));
    }
    memory.write("checkpoint-20/model.safetensors");
    assert_eq!(removable("hf-trainer", &memory), ["checkpoint-5"]);
    memory.write("checkpoint-15/trainer_state.json = {\"best_model");
    assert_eq!(removable("hf-trainer", &memory), Vec::<String>::new());
}

/// The names and numbers of the best steps according to the last step.
fn best(name: &str, memory: &Memory) -> Vec<String> {
    let profile = profile(name);
    let options = FindOptions::default();
    let found = find_steps(&profile, &memory.tree(), memory, memory.settled(), &options);
    let newest = found.steps.iter().max_by_key(|step| step.step).unwrap();
    let best = found.best_of(newest, &profile, &memory.tree(), memory);
    let number = |best: &BestName| best.step.map_or(String::new(), |step| format!(" {step}"));
    best.iter().map(|best| format!("{}{}", best.name, number(best))).collect()
}

#[test]
fn a_step_names_the_best() {
    let mut memory = Memory::default();
    let hugging_face = |memory: &mut Memory, step: u64, named: &str| {
        memory.write(&format!("checkpoint-{step}/model.safetensors"));
        memory.write(&format!(
            "checkpoint-{step}/trainer_state.json = {{\"loss\": NaN, \"best_model_checkpoint\": {named}}}"
        ));
    };
    hugging_face(&mut memory, 5, "null");
    assert!(best("hf-trainer", &memory).is_empty());
    hugging_face(&mut memory, 10, "\"out/checkpoint-5/\"");
    assert_eq!(best("trl", &memory), ["checkpoint-5 5"]);
    hugging_face(&mut memory, 15, "\"checkpoint-15\"");
    assert_eq!(best("hf-trainer", &memory), ["checkpoint-15 15"], "its own name is not left out");
    for strange in ["\"\"", "\"/\"", "\"..\"", "7", "[\"checkpoint-5\"]", "{\"a\": \"b\"}"] {
        hugging_face(&mut memory, 15, strange);
        assert!(best("hf-trainer", &memory).is_empty(), "{strange}");
    }
    memory.write("checkpoint-15/trainer_state.json = {\"best_model_checkpoint\": \"checkpoint-5\"");
    assert!(best("hf-trainer", &memory).is_empty());

    let shards = |epoch: u32| {
        let names = [0, 1].map(|shard| format!("checkpoint{epoch}-shard{shard}.pt"));
        names.map(|name| format!("{name} = weights of epoch {epoch}"))
    };
    let mut memory = Memory::default();
    for line in [shards(1), shards(2)].concat() {
        memory.write(&line);
    }
    memory.write("checkpoint_best-shard0.pt = weights of epoch 1");
    assert_eq!(best("fairseq", &memory), Vec::<String>::new(), "the profile has no such pointer");
    let memory = Memory::new(&["checkpoint1.pt = one", "checkpoint2.pt = two", "checkpoint_best.pt = one"]);
    assert_eq!(best("fairseq", &memory), ["checkpoint1.pt 1"]);
}

#[test]
fn what_a_trainer_deletes_itself_stays_if_it_would_fail_without() {
    let memory =
        Memory::new(&["ep0-ba10-rank0.pt", "ep0-ba20-rank0.pt", "latest-rank0.pt -> ep0-ba20-rank0.pt"]);
    assert_eq!(removable("composer", &memory), Vec::<String>::new());
}

#[test]
fn what_is_incomplete_stays() {
    let memory = Memory::new(&[
        "checkpoint/step-10/__0_0.distcp",
        "checkpoint/step-20/__0_0.distcp",
        "checkpoint/step-20/.metadata",
        "checkpoint/step-30/__0_0.distcp",
        "checkpoint/step-30/.metadata",
        "checkpoint/step-40/__0_0.distcp",
    ]);
    assert_eq!(removable("torchtitan", &memory), ["checkpoint/step-20"]);
}
