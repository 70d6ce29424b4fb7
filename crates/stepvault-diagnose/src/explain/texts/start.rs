//! Texts about starts and ends: commands that fail at once, loops, and jobs that are stopped.

use super::recogniser::{Recogniser, text};
use crate::explain::Cause;

pub(super) const TEXTS: &[Recogniser] = &[
    text(Cause::PathExists, 55, "git clone")
        .pattern(r"destination path '[^']*' already exists and is not an empty directory")
        .example("fatal: destination path 'AReaL' already exists and is not an empty directory."),
    text(Cause::PathExists, 35, "mkdir and ln")
        .pattern(r"cannot create (directory|symbolic link) .*File exists|failed to create symbolic link .*File exists")
        .example("mkdir: cannot create directory '/workspace/outputs': File exists"),
    text(Cause::PathExists, 40, "Python, EEXIST")
        .pattern(r"\[Errno 17\] File exists")
        .example("FileExistsError: [Errno 17] File exists: '/out/exp/30000.orbax-checkpoint-tmp-0'"),
    text(Cause::PathExists, 45, "Orbax")
        .pattern(r"StepAlreadyExistsError|Destination \S+ already exists\.|Checkpoint for step \d+ already exists")
        .example("ValueError: Destination /out/exp/30000 already exists."),
    text(Cause::RestartLoop, 55, "stepvault")
        .pattern(r"restart loop: the (trainer|agent) (of '[^']+' )?was started")
        .example("warning: restart loop: the trainer of 'grpo' was started 5 times within 10 min on node-0; the last starts ended with: exit 128"),
    text(Cause::RestartLoop, 55, "Kubernetes and systemd")
        .pattern(r"CrashLoopBackOff|Back-off restarting failed container|[Ss]tart request repeated too quickly")
        .example("Back-off restarting failed container trainer in pod trainer-0_default"),
    text(Cause::RestartLoop, 25, "systemd and torchrun")
        .pattern(r"Scheduled restart job, restart counter is at \d+|\d+/\d+ attempts left; will restart worker group")
        .example("[default] Worker group FAILED. 3/3 attempts left; will restart worker group"),
    text(Cause::TakenAway, 60, "Slurm")
        .pattern(r"CANCELLED AT \S+ DUE TO (PREEMPTION|TIME LIMIT|NODE FAILURE)|DUE TO TIME LIMIT")
        .example("slurmstepd: error: *** JOB 4711 ON node-3 CANCELLED AT 2026-11-21T10:16:00 DUE TO PREEMPTION ***"),
    text(Cause::TakenAway, 35, "torchrun")
        .pattern(r"Received (15|Signals\.SIGTERM|SIGTERM) death signal|Signal 15 \(SIGTERM\)|died with <Signals\.SIGTERM")
        .example("W1121 10:16:00 torch/distributed/elastic/agent/server/api.py:741] Received 15 death signal, shutting down workers"),
    text(Cause::TakenAway, 50, "stepvault, EC2 and Compute Engine")
        .pattern(r"an? (EC2 spot|Compute Engine preemption) notice|Spot interruption notice|instance is being preempted")
        .example("stepvault: told to stop by an EC2 spot notice"),
];
