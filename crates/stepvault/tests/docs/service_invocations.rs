//! The commands that the service files under `config/` run: in units, manifests, scripts, the Dockerfile, and their
//! comments.

use std::path::{Path, PathBuf};

use yaml_rust2::{Yaml, YamlLoader};

use crate::markdown::code_spans;
use crate::mentions::invocations;
use crate::place::repository;

/// The directories of service files.
const DIRECTORIES: [&str; 5] = ["systemd", "kubernetes", "slurm", "docker", "skypilot"];
/// Where a container may run another program than its image does.
const HOOKS: [&[&str]; 5] = [
    &["startupProbe"],
    &["readinessProbe"],
    &["livenessProbe"],
    &["lifecycle", "preStop"],
    &["lifecycle", "postStart"],
];

/// What is no service file itself: the chart, whose renderings are beside it, and the lists of them for kustomize.
const SOURCES: [&str; 2] = ["chart", "kustomization.yaml"];

/// Every service file, by its path in the repository.
pub(crate) fn service_files() -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut pending: Vec<PathBuf> = DIRECTORIES.iter().map(|name| Path::new("config").join(name)).collect();
    while let Some(directory) = pending.pop() {
        for entry in std::fs::read_dir(repository().join(&directory)).unwrap() {
            let entry = entry.unwrap();
            if SOURCES.iter().any(|source| entry.file_name() == *source) {
                continue;
            }
            let is_directory = entry.file_type().unwrap().is_dir();
            let into = if is_directory { &mut pending } else { &mut files };
            into.push(directory.join(entry.file_name()));
        }
    }
    files.sort();
    files
}

/// The manifests that the chart renders.
pub(crate) fn rendered_manifests() -> Vec<PathBuf> {
    let mut files = service_files();
    files.retain(|file| file.starts_with("config/kubernetes/base"));
    assert!(files.len() >= 8, "only {files:?} were found");
    files
}

/// The words behind `stepvault` in each call that a file makes or mentions, those of another program left out.
pub(crate) fn calls(path: &Path, text: &str) -> Vec<Vec<String>> {
    let mut calls: Vec<Vec<String>> = text
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix('#'))
        .flat_map(|comment| code_spans(comment).into_iter().flat_map(invocations))
        .collect();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let extension = path.extension().unwrap_or_default().to_string_lossy();
    calls.extend(match (extension.as_ref(), name.as_ref()) {
        ("service", _) => {
            text.lines().filter(|line| line.starts_with("Exec")).flat_map(invocations).collect()
        }
        ("sh" | "sbatch", _) => shell_calls(text),
        ("yaml", "task.yaml") => ["setup", "run"]
            .iter()
            .filter_map(|part| manifests(text)[0][*part].as_str().map(shell_calls))
            .flatten()
            .collect(),
        ("yaml", _) => containers(text).iter().flat_map(container_calls).collect(),
        (_, "Dockerfile") => text
            .lines()
            .filter_map(|line| line.strip_prefix("CMD "))
            .map(|words| serde_json::from_str(words).expect("a list of words"))
            .collect(),
        ("timer" | "toml" | "dockerignore", _) => Vec::new(),
        _ => panic!("{}: no rule says what this file calls", path.display()),
    });
    calls.iter().filter_map(|words| own_words(words)).collect()
}

/// Up to what belongs to a trainer, with something in the place of what is only known later. `None` for a script that
/// passes its own words on.
fn own_words(words: &[String]) -> Option<Vec<String>> {
    let words: Vec<String> = words
        .iter()
        .map(|word| word.trim_matches(['"', '\'']))
        .take_while(|word| *word != "--" && !word.starts_with(['>', '<']) && !word.starts_with("2>"))
        .map(|word| word.replace("%I", "my-run"))
        .collect();
    words.first().is_some_and(|first| !first.starts_with('$')).then_some(words)
}

/// The calls in the code of a shell script.
pub(crate) fn shell_calls(script: &str) -> Vec<Vec<String>> {
    let joined = script.replace("\\\n", " ");
    joined.lines().filter(|line| !line.trim_start().starts_with('#')).flat_map(invocations).collect()
}

/// The documents of a manifest.
pub(crate) fn manifests(text: &str) -> Vec<Yaml> {
    YamlLoader::load_from_str(text).expect("a manifest is YAML")
}

/// Every part of a manifest that is a table with this key.
pub(crate) fn tables_with(text: &str, key: &str) -> Vec<Yaml> {
    fn search(node: &Yaml, key: &str, found: &mut Vec<Yaml>) {
        match node {
            Yaml::Hash(table) => {
                if !node[key].is_badvalue() {
                    found.push(node.clone());
                }
                for value in table.values() {
                    search(value, key, found);
                }
            }
            Yaml::Array(items) => {
                for item in items {
                    search(item, key, found);
                }
            }
            _ => {}
        }
    }
    let mut found = Vec::new();
    for document in &manifests(text) {
        search(document, key, &mut found);
    }
    found
}

/// The containers of a manifest that run stepvault.
pub(crate) fn containers(text: &str) -> Vec<Yaml> {
    let mut containers = tables_with(text, "image");
    containers.retain(runs_stepvault);
    containers
}

/// Whether a container runs stepvault: it has its image, or one of a trainer with stepvault in it.
pub(crate) fn runs_stepvault(container: &Yaml) -> bool {
    let image = container["image"].as_str().expect("an image has a name");
    image.starts_with("stepvault:") || container["command"][0].as_str() == Some("stepvault")
}

/// What a container calls: its program, then its hooks.
fn container_calls(container: &Yaml) -> Vec<Vec<String>> {
    let mut calls = program(&words(&container["command"]), &words(&container["args"]));
    assert!(!calls.is_empty(), "a container calls nothing: {container:?}");
    for hook in HOOKS {
        let hook = hook.iter().fold(container, |node, key| &node[*key]);
        if !hook.is_badvalue() {
            calls.extend(program(&words(&hook["exec"]["command"]), &[]));
        }
    }
    calls
}

fn program(command: &[String], arguments: &[String]) -> Vec<Vec<String>> {
    let all: Vec<&str> = command.iter().chain(arguments).map(String::as_str).collect();
    match all.as_slice() {
        _ if command.is_empty() => vec![arguments.to_vec()],
        ["stepvault", ..] => vec![all[1..].iter().map(|word| (*word).to_owned()).collect()],
        ["/bin/sh", "-c", script] => shell_calls(script),
        other => panic!("no rule says what this calls: {other:?}"),
    }
}

pub(crate) fn words(list: &Yaml) -> Vec<String> {
    let items = list.as_vec().map(Vec::as_slice).unwrap_or_default();
    items.iter().map(|word| word.as_str().expect("words are texts").to_owned()).collect()
}

#[test]
fn calls_are_found_wherever_they_stand() {
    let of = |name: &str, text: &str| {
        let calls = calls(Path::new(name), text);
        calls.iter().map(|words| words.join(" ")).collect::<Vec<_>>()
    };
    let unit = "# see `stepvault list --json`, stepvault\nExecStart=/usr/local/bin/stepvault gc --run %I\n";
    assert_eq!(of("a.service", unit), ["list --json", "gc --run my-run"]);
    let script = "# stepvault none\nexec stepvault \"$@\"\nexec stepvault run \\\n  --into \"$d\" -- train >x\n\
                  stepvault agent 2>&1 && stepvault prune >/dev/null";
    assert_eq!(of("a.sh", script), ["run --into $d", "agent", "prune"]);
    let manifest = "a:\n- image: other:1\n  args: [x]\n- image: stepvault:1\n  command: [stepvault, gc]\n  \
                    args: [--grace, 1h]\n- &same\n  image: stepvault:1\n  args: [agent]\n  lifecycle:\n    preStop:\n      \
                    exec: {command: [stepvault, status]}\n- *same\n- image: stepvault:1\n  command: [/bin/sh, -c]\n  \
                    args:\n  - |\n    stepvault list\n    true\n";
    assert_eq!(of("a.yaml", manifest), ["gc --grace 1h", "agent", "status", "agent", "status", "list"]);
    assert_eq!(of("Dockerfile", "RUN x\nCMD [\"agent\", \"--once\"]\n"), ["agent --once"]);
}
