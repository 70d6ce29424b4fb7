//! The multi-node jobs and the image are consistent with themselves, with the programs that start them, and with the
//! repository.

use std::time::Duration;

use crate::place::{read, repository};
use crate::service_configurations::{drain_deadline, own_containers, variables};
use crate::service_files::{BINARY, pattern};
use crate::service_invocations::{tables_with, words};

/// What `sbatch` knows, by its manual, as far as a job may need it.
const SBATCH_OPTIONS: &str = "\
    account array begin comment constraint container cpus-per-gpu cpus-per-task deadline dependency \
    error exclude exclusive export gpus gpus-per-node gpus-per-task gres hint job-name licenses \
    mail-type mail-user mem mem-per-cpu mem-per-gpu network nodelist nodes no-requeue ntasks \
    ntasks-per-node open-mode output partition qos requeue reservation signal switches time time-min tmp";

#[test]
fn every_option_of_the_job_is_one_of_sbatch() {
    let text = read("config/slurm/job.sbatch");
    let options: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("#SBATCH ")).collect();
    assert!(options.len() >= 5, "only {options:?} were found");
    for option in options {
        let name = option.strip_prefix("--").and_then(|option| option.split('=').next());
        let is_known = SBATCH_OPTIONS.split(' ').any(|known| Some(known) == name);
        assert!(is_known, "sbatch has no {option}");
    }
    // Slurm reads them up to the first command, and takes the rest for remarks.
    let is_command = |line: &str| !line.is_empty() && !line.starts_with('#');
    let mut behind = text.lines().skip_while(|line| !is_command(line));
    let late = behind.find(|line| line.starts_with("#SBATCH"));
    assert_eq!(late, None, "an option stands behind a command");
}

#[test]
fn slurm_waits_longer_than_an_agent_drains() {
    let job = read("config/slurm/job.sbatch");
    let drain = drain_deadline(&read("config/slurm/stepvault.toml"));
    for given in ["--wait=([0-9]+)", "--signal=B:USR1@([0-9]+)"] {
        let seconds = pattern(given).captures(&job).unwrap()[1].parse().unwrap();
        assert!(Duration::from_secs(seconds) > drain, "{given}: {seconds} s");
    }
}

#[test]
fn a_job_of_several_nodes_says_the_same_number_everywhere() {
    for name in ["indexed-job", "indexed-job-sidecar", "jobset", "jobset-sidecar"] {
        check_numbers_of_nodes(&read(format!("config/kubernetes/base/{name}/manifest.yaml")));
    }
}

fn check_numbers_of_nodes(text: &str) {
    let budget = tables_with(text, "minAvailable").remove(0);
    let job = tables_with(text, "completions").remove(0);
    let nodes = job["completions"].as_i64().unwrap();
    assert_eq!(job["parallelism"].as_i64(), Some(nodes));
    assert_eq!(budget["minAvailable"].as_i64(), Some(nodes));
    assert_eq!(job["completionMode"].as_str(), Some("Indexed"));
    let pod = &job["template"]["spec"];
    for container in own_containers(pod) {
        assert!(variables(&container).contains("STEPVAULT_LAUNCH="), "{container:?}");
    }
    let trainer = pod["containers"].as_vec().unwrap().last().unwrap();
    assert!(words(&trainer["command"]).contains(&"--nnodes=$(STEPVAULT_NODES)".to_owned()), "{trainer:?}");
    for container in own_containers(pod).iter().chain([trainer]) {
        let variables = variables(container);
        assert!(variables.contains(&format!("STEPVAULT_NODES='{nodes}'")), "{variables}");
    }
}

#[test]
fn the_image_is_built_from_what_is_there() {
    let recipe = read("config/docker/Dockerfile");
    let ignored = read("config/docker/Dockerfile.dockerignore");
    let mut copied = 0;
    for line in recipe.lines().filter_map(|line| line.strip_prefix("COPY ")) {
        let words: Vec<&str> = line.split(' ').filter(|word| !word.starts_with("--")).collect();
        if line.contains("--from=") {
            continue;
        }
        for source in &words[..words.len() - 1] {
            assert!(repository().join(source).exists(), "there is no {source}");
            assert!(ignored.lines().any(|line| line == format!("!{source}")), "{source} is left out");
            copied += 1;
        }
    }
    assert!(copied >= 4, "only {copied} sources were found");
    assert!(recipe.contains(&format!(" {BINARY}\n")), "the image has no {BINARY}");
}
