//! The scripts for Slurm and Docker, run in a simulated environment.

use std::os::unix::fs::PermissionsExt;
use std::process::Output;

use crate::place::Place;

/// Says what it is called with, and knows one command.
const STAND_IN: &str =
    "#!/bin/sh\nif [ \"$2\" = --help ]; then [ \"$1\" = agent ]; exit; fi\necho \"called: $*\"\n";

/// Runs a line with the stand-in for stepvault before everything else on the path.
fn run(place: &Place, line: &str) -> Output {
    let directory = place.path().join("bin");
    if !directory.exists() {
        std::fs::create_dir(&directory).unwrap();
        let program = directory.join("stepvault");
        std::fs::write(&program, STAND_IN).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    place.shell(&format!("PATH=$PWD/bin:$PATH; {line}"))
}

#[test]
fn the_entrypoint_tells_commands_from_trainers() {
    let place = Place::new();
    for (words, called) in [
        ("agent --once", "called: agent --once\n"),
        ("--version", "called: --version\n"),
        ("", "called: --help\n"),
        ("torchrun train.py --name 'a b'", "called: run --into cp -- torchrun train.py --name a b\n"),
        ("./agent", "called: run --into cp -- ./agent\n"),
    ] {
        let output = run(&place, &format!("CHECKPOINTS=cp config/docker/entrypoint.sh {words}"));
        assert_eq!(String::from_utf8_lossy(&output.stdout), called, "{words}");
        assert!(output.status.success(), "{words}");
    }
}

#[test]
fn slurm_never_loses_a_node_to_them() {
    let place = Place::new();
    for script in ["prolog.sh", "epilog.sh"] {
        for variables in [
            "JOB_SCRATCH=$PWD/jobs",
            "JOB_SCRATCH=$PWD/jobs SLURM_JOB_ID=7",
            "JOB_SCRATCH=$PWD/jobs SLURM_JOB_ID=../x SLURM_JOB_UID=0",
            "JOB_SCRATCH=$PWD/jobs SLURM_JOB_ID=7 SLURM_JOB_UID=4294967294",
            "JOB_SCRATCH=$PWD/none SLURM_JOB_ID=7 SLURM_JOB_UID=0",
        ] {
            let line = format!("mkdir -p jobs; {variables} config/slurm/{script}");
            let output = run(&place, &line);
            assert_eq!(output.status.code(), Some(0), "{line}");
        }
    }
    let left: Vec<_> = std::fs::read_dir(place.path().join("jobs")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    assert!(!place.path().join("x").exists() && !place.path().join("none").exists());
}

#[test]
fn the_epilog_leaves_alone_what_no_configuration_explains() {
    let place = Place::new();
    let line = "mkdir -p jobs/7 jobs/8 && touch jobs/7/weights && \
                for job in 7 8; do JOB_SCRATCH=$PWD/jobs SLURM_JOB_ID=$job config/slurm/epilog.sh || exit; done";
    assert!(run(&place, line).status.success());
    assert!(place.path().join("jobs/7/weights").exists());
    assert!(!place.path().join("jobs/8").exists(), "nobody has used it");
}

/// Writes programs to the place's `bin`, which comes first on the scripts' path.
fn write_programs(place: &Place, programs: &[(&str, &str)]) {
    run(place, "true");
    for (name, text) in programs {
        let program = place.path().join("bin").join(name);
        std::fs::write(&program, text).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
}

#[test]
fn a_job_that_runs_out_of_time_ends_its_step_and_is_queued_again() {
    for (overlaps, told) in
        [("\"$@\"", "scontrol requeue 7\n"), ("false", "scontrol requeue 7\nscancel --signal=TERM 7.0\n")]
    {
        let place = Place::new();
        // The process whose ID stands in `run.pid` is the first srun itself.
        let srun = format!(
            "#!/bin/bash\ncase \"$*\" in --overlap*) while [[ $1 == --* ]]; do shift; done; {overlaps}; exit;; esac\n\
             while [[ $1 == --* ]]; do shift; done\nSLURM_NODEID=0 \"$@\"; echo $$ >$scratch/7/run.pid\n\
             trap 'sleep 1; exit 3' TERM; touch ready; for i in $(seq 1200); do sleep 0.05; done\n"
        );
        let scancel =
            "#!/bin/sh\nkill -TERM \"$(cat $scratch/7/run.pid)\"; sleep 1.5; echo scancel $* >>told\n";
        let scontrol = "#!/bin/sh\n[ \"$1\" = show ] && echo n0 || echo scontrol $* >>told\n";
        write_programs(&place, &[("srun", &srun), ("scancel", scancel), ("scontrol", scontrol)]);
        let output = run(
            &place,
            "mkdir -p jobs/7 && sed \"s#/mnt/nvme/jobs#$PWD/jobs#\" config/slurm/job.sbatch >job && \
             export SLURM_JOB_ID=7 SLURM_NNODES=4 SLURM_JOB_NODELIST=n0 SLURM_SUBMIT_DIR=$PWD/config/slurm && \
             { bash job & } && job=$! && \
             for i in $(seq 1200); do [ -e ready ] && break; sleep 0.05; done; kill -USR1 $job; wait $job; \
             code=$?; sleep 1; exit $code",
        );
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            printed
                .starts_with("called: run --into checkpoints --config stepvault.toml -- torchrun --nnodes=4"),
            "{printed}"
        );
        assert_eq!(output.status.code(), Some(3), "{printed}");
        assert_eq!(std::fs::read_to_string(place.path().join("told")).unwrap(), told);
        let launch = std::fs::read_to_string(place.path().join("jobs/7/launch")).unwrap();
        assert!(launch.contains("export SLURM_NODEID=0\n"), "{launch}");
    }
}

/// A directory that a killed job left, with the program itself on the script's own path; `None` where it cannot become the
/// job's user.
fn killed_job(place: &Place, remote: &str) -> Option<std::path::PathBuf> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only the superuser runs epilogs");
        return None;
    }
    let job = place.path().join("jobs/7");
    std::fs::create_dir_all(job.join("checkpoints/step_1")).unwrap();
    std::fs::create_dir_all(place.path().join("bin")).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_stepvault"), place.path().join("bin/stepvault")).unwrap();
    std::fs::write(job.join("checkpoints/step_1/model.bin"), "weights").unwrap();
    write_configuration(&job, "my-run", remote);
    Some(job)
}

/// The same, whose remote is the place's directory.
fn killed_job_here(place: &Place) -> Option<std::path::PathBuf> {
    let remote = place.path().join("remote");
    let job = killed_job(place, &format!("file://{}", remote.display()))?;
    std::fs::create_dir(remote).unwrap();
    Some(job)
}

fn write_configuration(job: &std::path::Path, run: &str, remote: &str) {
    let text = format!(
        "[local]\ndirectory = \"vault\"\n[remote.main]\nurl = \"{remote}\"\n[run.\"{run}\"]\n\
         watch = \"checkpoints\"\ncomplete = \"rename\"\n"
    );
    std::fs::write(job.join("stepvault.toml"), text).unwrap();
}

/// Runs the part of the epilog that outlives it.
fn finish(place: &Place) {
    let output = place.shell(
        "sed \"s#^PATH=#PATH=$PWD/bin:#\" config/slurm/epilog.sh >epilog && \
         JOB_SCRATCH=$PWD/jobs bash epilog finish $PWD/jobs/7",
    );
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[test]
fn the_epilog_removes_only_what_is_durable() {
    let place = Place::new();
    let gone = "s3://bucket/prefix?endpoint=http://127.0.0.1:1&retry-deadline=1s";
    let Some(job) = killed_job(&place, gone) else {
        return;
    };
    finish(&place);
    assert!(job.join("vault").exists(), "nothing was durable");

    // The remote answers again, and the run was renamed: its step is still nowhere else.
    let remote = format!("file://{}", place.path().join("remote").display());
    std::fs::create_dir(place.path().join("remote")).unwrap();
    std::fs::remove_dir_all(job.join("checkpoints/step_1")).unwrap();
    write_configuration(&job, "renamed", &remote);
    finish(&place);
    assert!(job.join("vault").exists(), "the old run's step is in the vault alone");

    // A vault that the configuration does not name.
    std::fs::rename(job.join("vault"), job.join("other")).unwrap();
    finish(&place);
    assert!(job.join("other").exists(), "so is the step in another vault");

    // As the hint says.
    let upload =
        "cd jobs/7 && ../../bin/stepvault agent --once --config stepvault.toml --local other --run my-run";
    assert_eq!(place.shell(upload).status.code(), Some(0));
    finish(&place);
    assert!(!job.exists(), "everything is durable");
}

#[test]
fn the_epilog_uploads_what_an_agent_without_a_file_left_and_removes_it_only_with_the_jobs_leave() {
    let place = Place::new();
    let Some(job) = killed_job_here(&place) else {
        return;
    };
    let killed = "cd jobs/7 && { ../../bin/stepvault agent --config stepvault.toml & } && agent=$! && \
                  for i in $(seq 1200); do [ -e vault/invocation.json ] && break; sleep 0.05; done; \
                  kill -KILL $agent; rm stepvault.toml; \
                  mkdir checkpoints/step_2 && echo more >checkpoints/step_2/model.bin";
    assert_eq!(place.shell(killed).status.code(), Some(0));
    finish(&place);
    let commit = "remote/my-run/.stepvault/commits/000000000002.a1.json";
    assert!(place.path().join(commit).exists());
    let uploaded = place.path().join("jobs/7.uploaded");
    assert!(job.exists() && uploaded.exists(), "it may hold other results");
    std::fs::write(job.join("remove-when-durable"), "").unwrap();
    finish(&place);
    assert!(!job.exists() && !uploaded.exists());
}

#[test]
fn what_jobs_left_on_a_node_is_uploaded_and_removed_unless_slurm_has_the_job_there() {
    let place = Place::new();
    let Some(job) = killed_job_here(&place) else {
        return;
    };
    std::fs::create_dir_all(place.path().join("jobs/8")).unwrap();
    std::fs::write(place.path().join("jobs/8/weights"), "nobody explains it").unwrap();
    std::fs::create_dir(place.path().join("jobs/9")).unwrap();
    let programs = |jobs: &str| {
        let squeue = format!("#!/bin/sh\n{jobs}\n");
        // In place of systemd, where it runs.
        let here = "#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\nexec \"$@\"\n";
        let other = "#!/bin/sh\nexit 0\n";
        write_programs(
            &place,
            &[("squeue", &squeue), ("scontrol", other), ("systemd-run", here), ("logger", other)],
        );
        let output = place.shell(
            "sed \"s#^PATH=#PATH=$PWD/bin:#\" config/slurm/epilog.sh >epilog && chmod +x epilog && \
             JOB_SCRATCH=$PWD/jobs ./epilog reclaim",
        );
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    };
    programs("echo '   7'; echo 9");
    assert!(job.exists(), "the job is on this node");
    assert!(place.path().join("jobs/9").exists(), "so is this one");
    programs("exit 1");
    assert!(job.exists(), "Slurm does not say");
    // The job comes to the node between the two questions.
    programs("test -e asked && echo 7; touch asked");
    assert!(job.exists(), "the job is on this node by now");
    programs("echo 70");
    assert!(!job.exists(), "nobody needs it");
    assert!(!place.path().join("jobs/9").exists(), "nobody has used it");
    assert!(place.path().join("remote").read_dir().unwrap().count() > 0);
    assert!(place.path().join("jobs/8/weights").exists());
}
