//! How trainers of each kind save, rotate and restart.

use std::time::Duration;

use stepvault_testkit::torch::state;

use super::QUIET;
use super::payload::{distributed, json, safetensors, torch};
use super::script::Script;

const SAVES: usize = 20;
/// Time between saves; some are followed by the next before they can be known to be finished.
const TRAINING: Duration = Duration::from_mins(4);

/// A stall too short to be mistaken for the end of a save.
fn short() -> Duration {
    QUIET * 3 / 4
}

/// A stall long enough to be, where only the quiet time is trusted.
fn long() -> Duration {
    QUIET * 3
}

/// Returns the next step: usually the next number, sometimes an earlier one that still exists, after a restart.
fn next(script: &mut Script, kept: &[u64], last: u64) -> u64 {
    match kept {
        [first, .., _] if script.random.once_in(3) => *first,
        _ => last + 10,
    }
}

/// Returns the steps of the run after a save, without those that rotation deletes now.
fn rotate(script: &mut Script, kept: &mut Vec<u64>, step: u64, most: usize, path: impl Fn(u64) -> String) {
    kept.retain(|other| *other != step);
    kept.push(step);
    kept.sort_unstable();
    while kept.len() > most {
        let oldest = path(kept.remove(0));
        if script.random.once_in(4) {
            script.begin_to_remove(&oldest);
        } else {
            script.remove(&oldest, short());
        }
    }
}

/// Directories overwritten in place after going back, `save_total_limit=2`.
pub(super) fn hugging_face(script: &mut Script) {
    let path = |step: u64| format!("checkpoint-{step}");
    let (mut kept, mut last) = (Vec::new(), 0);
    for _ in 0..SAVES {
        last = next(script, &kept, last);
        let step = path(last);
        script.directory(&step);
        let text = script.text();
        script.write(&format!("{step}/model.safetensors"), &safetensors(&text), short());
        for name in ["training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth"] {
            let text = script.text();
            script.write(&format!("{step}/{name}"), &torch(&text), short());
        }
        let text = script.text();
        script.write(&format!("{step}/trainer_state.json"), &json(&text), short());
        script.whole(&step);
        script.finished(&step);
        rotate(script, &mut kept, last, 2, path);
        script.pause(TRAINING);
    }
}

/// Saves after each `between` and deletes all but `kept` older steps half of it later.
pub(super) fn hasty(script: &mut Script, kept: u64, between: Duration) {
    let path = |step: u64| format!("checkpoint-{step}");
    for save in 1..=u64::try_from(SAVES).unwrap() {
        let step = path(save * 10);
        script.directory(&step);
        let text = script.text();
        script.write(&format!("{step}/model.safetensors"), &safetensors(&text), Duration::ZERO);
        for name in ["training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth"] {
            let text = script.text();
            script.write(&format!("{step}/{name}"), &torch(&text), Duration::ZERO);
        }
        let text = script.text();
        script.write(&format!("{step}/trainer_state.json"), &json(&text), Duration::ZERO);
        script.whole(&step);
        script.finished(&step);
        script.wait(between / 2);
        if save > kept {
            script.remove(&path((save - kept) * 10), Duration::from_millis(20));
        }
        script.wait(between / 2);
    }
}

/// One file for each step, whose writing may stall for long: the structure shows an incomplete archive. `last.ckpt` is
/// a copy, overwritten in place, and `save_top_k=1` deletes the step before.
pub(super) fn lightning(script: &mut Script) {
    let path = |step: u64| format!("checkpoints/epoch=0-step={step}.ckpt");
    let (mut kept, mut last) = (Vec::new(), 0);
    script.directory("checkpoints");
    for _ in 0..SAVES {
        last += 10;
        let step = path(last);
        let bytes = torch(&script.text());
        script.write(&step, &bytes, long());
        script.whole(&step);
        script.finished(&step);
        script.write("checkpoints/last.ckpt", &bytes, long());
        script.pause(short());
        rotate(script, &mut kept, last, 1, path);
        script.pause(TRAINING);
    }
}

/// A temporary directory that is renamed, after any stall; `max_to_keep=2`.
pub(super) fn orbax(script: &mut Script) {
    let path = |step: u64| step.to_string();
    let (mut kept, mut last) = (Vec::new(), 0);
    for _ in 0..SAVES {
        last += 10;
        let temporary = format!("{last}.orbax-checkpoint-tmp");
        script.directory(&temporary);
        script.directory(&format!("{temporary}/state"));
        for name in ["_METADATA", "_sharding"] {
            let text = script.text();
            script.write(&format!("{temporary}/state/{name}"), &json(&text), long());
        }
        let text = script.text();
        script.write(&format!("{temporary}/state/params.safetensors"), &safetensors(&text), long());
        script.pause(long());
        script.rename(&temporary, &path(last));
        script.whole(&path(last));
        script.finished(&path(last));
        rotate(script, &mut kept, last, 2, path);
        script.pause(TRAINING);
    }
}

/// `latest` is moved before the last rank is done.
pub(super) fn deepspeed(script: &mut Script) {
    let path = |step: u64| format!("global_step{step}");
    let (mut kept, mut last) = (Vec::new(), 0);
    for _ in 0..SAVES {
        last = next(script, &kept, last);
        let step = path(last);
        script.directory(&step);
        let mut names = vec!["mp_rank_00_model_states.pt".to_owned()];
        names.extend((0..3).map(|rank| format!("zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")));
        for name in names {
            if name.contains("rank_2") {
                script.write("latest", step.as_bytes(), Duration::ZERO);
            }
            let text = script.text();
            script.write(&format!("{step}/{name}"), &torch(&text), short());
        }
        script.whole(&step);
        script.finished(&step);
        rotate(script, &mut kept, last, 3, path);
        script.pause(TRAINING);
    }
}

/// The tracker is written once every rank is done, and stays ahead of a run that has gone back.
pub(super) fn megatron(script: &mut Script) {
    const TRACKER: &str = "latest_checkpointed_iteration.txt";
    let path = |step: u64| format!("iter_{step:07}");
    let (mut kept, mut last) = (Vec::new(), 0);
    for _ in 0..SAVES {
        let before = last;
        last = next(script, &kept, last);
        let stall = if last > before { long() } else { short() };
        let step = path(last);
        script.directory(&step);
        for rank in 0..2 {
            let rank = format!("{step}/mp_rank_0{rank}");
            script.directory(&rank);
            let text = script.text();
            script.write(&format!("{rank}/model_optim_rng.pt"), &torch(&text), stall);
        }
        script.whole(&step);
        script.pause(stall);
        script.write(TRACKER, last.to_string().as_bytes(), Duration::ZERO);
        script.finished(&step);
        rotate(script, &mut kept, last, 3, path);
        script.pause(TRAINING);
    }
}

/// `.metadata` is renamed into place once all data exists, after any stall, also over an earlier save of the step.
pub(super) fn distributed_checkpoint(script: &mut Script) {
    let files = distributed();
    let path = |step: u64| format!("step-{step}");
    let (mut kept, mut last) = (Vec::new(), 0);
    for _ in 0..SAVES {
        last = next(script, &kept, last);
        let step = path(last);
        script.directory(&step);
        for (name, bytes) in files.iter().filter(|(name, _)| name.ends_with(".distcp")) {
            script.write(&format!("{step}/{name}"), bytes, long());
        }
        // Distinguishes one save from another.
        let text = script.text();
        script.write(&format!("{step}/state.json"), &json(&text), long());
        for (name, bytes) in files.iter().filter(|(name, _)| !name.ends_with(".distcp")) {
            let temporary = format!("{step}/{name}.tmp");
            script.write(&temporary, bytes, long());
            script.pause(long());
            script.rename(&temporary, &format!("{step}/{name}"));
        }
        script.whole(&step);
        script.finished(&step);
        rotate(script, &mut kept, last, 3, path);
        script.pause(TRAINING);
    }
}

/// `torch.save` by hand, to the path of the step and to a path that is always the same.
pub(super) fn overwritten_file(script: &mut Script) {
    let path = |step: u64| format!("ckpt_step_{step}.pt");
    let (mut kept, mut last) = (Vec::new(), 0);
    for _ in 0..SAVES {
        last = next(script, &kept, last);
        let step = path(last);
        let bytes = torch(&script.text());
        script.write(&step, &bytes, long());
        script.whole(&step);
        script.finished(&step);
        script.write("last.pt", &bytes, long());
        script.whole("last.pt");
        rotate(script, &mut kept, last, 3, path);
        script.pause(TRAINING);
    }
}

/// `torch.save` to one path, in place, after any stall: each content is a step, which goes back now and then.
pub(super) fn one_path(script: &mut Script) {
    let mut step = 0;
    for _ in 0..SAVES {
        step = if script.random.once_in(4) { step / 2 } else { step + 10 };
        let bytes = state(&[("global_step", step)], &script.text());
        script.write("checkpoint.pt", &bytes, long());
        script.whole("checkpoint.pt");
        script.finished("checkpoint.pt");
        script.pause(TRAINING);
    }
}

/// A file that states nothing, written beside its path and renamed over it.
pub(super) fn renamed_path(script: &mut Script) {
    for _ in 0..SAVES {
        let bytes = torch(&script.text());
        script.write("latest.pt.tmp", &bytes, long());
        script.rename("latest.pt.tmp", "latest.pt");
        script.whole("latest.pt");
        script.finished("latest.pt");
        script.pause(TRAINING);
    }
}

/// `last.pt` at each epoch, and `best.pt` right after it if it improved; at the end both without the optimizer.
pub(super) fn last_and_best(script: &mut Script) {
    const LAST: &str = "weights/last.pt";
    const BEST: &str = "weights/best.pt";
    const STALL: Duration = Duration::from_millis(500);
    script.directory("weights");
    script.write("args.yaml", b"model: yolo", STALL);
    for epoch in 0..20 {
        let epoch = if epoch < 19 { epoch } else { -1 };
        let bytes = state(&[("epoch", epoch)], &script.text());
        script.write(LAST, &bytes, STALL);
        if epoch <= 0 || script.random.once_in(3) {
            script.write(BEST, &bytes, STALL);
        }
        script.whole_members(&[LAST, BEST]);
        script.finished(LAST);
        script.pause(TRAINING);
    }
}

/// A directory for each step, complete once the link names it. An interrupted save is deleted before the next.
pub(super) fn atomic_link(script: &mut Script) {
    let path = |step: u64| format!("AtomicDirectory_checkpoint_{step}");
    let (mut kept, mut last) = (Vec::new(), 0);
    for _ in 0..SAVES {
        let step = path(last + 1);
        script.remove(&step, short());
        script.directory(&step);
        for rank in 0..2 {
            let text = script.text();
            script.write(&format!("{step}/rank_{rank}.pt"), &torch(&text), long());
            if script.random.once_in(10) {
                break;
            }
        }
        if script.is_file(&format!("{step}/rank_1.pt")) {
            script.whole(&step);
            script.pause(long());
            script.link("AtomicDirectory.latest_checkpoint", &format!("/ckpt/{step}"));
            script.finished(&step);
            last += 1;
            rotate(script, &mut kept, last, 2, path);
        }
        script.pause(TRAINING);
    }
}

/// A fixed path for each of two directories, overwritten in place at each save: the weights, then the file with the
/// step number.
pub(super) fn areal(script: &mut Script) {
    const WEIGHTS: &str = "trial/actor/recover_checkpoint";
    const INFO: &str = "trial/recover_info";
    for path in ["trial", "trial/actor", WEIGHTS, INFO] {
        script.directory(path);
    }
    for save in 1..=SAVES {
        let text = script.text();
        script.write(&format!("{WEIGHTS}/model.safetensors"), &safetensors(&text), short());
        let step = format!("{{\"global_step\": {}}}", save * 10);
        script.write(&format!("{INFO}/step_info.json"), step.as_bytes(), short());
        for name in ["saver_info", "evaluator_info", "stats_logger_info", "checkpoint_info"] {
            let text = script.text();
            script.write(&format!("{INFO}/{name}.json"), &json(&text), short());
        }
        // An empty pickle.
        script.write(&format!("{INFO}/dataloader_info.pkl"), b"\x80\x04N.", short());
        script.whole_members(&[WEIGHTS, INFO]);
        script.finished(WEIGHTS);
        script.pause(TRAINING);
    }
}
