//! The configurations in the service files: each is valid with the variables that it is used with, and the service
//! manager gives the agent enough time to drain.

use std::path::Path;
use std::time::Duration;

use yaml_rust2::Yaml;

use crate::place::{Place, read};
use crate::service_files::{BARE, CONFIGURATION, value_of};
use crate::service_invocations::{manifests, rendered_manifests, runs_stepvault, service_files, tables_with};

#[test]
fn every_configuration_is_right_beside_the_variables_it_is_used_with() {
    let mut checked = 0;
    for file in service_files() {
        let text = read(&file);
        if file.extension().is_some_and(|extension| extension == "toml") {
            check_configuration(&text, "", &file);
            checked += 1;
        }
        if file.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        for pod in tables_with(&text, "containers") {
            for container in own_containers(&pod) {
                check_configuration(
                    &configuration_of(&text, &pod, &container),
                    &variables(&container),
                    &file,
                );
                checked += 1;
            }
        }
    }
    assert!(checked >= 4, "only {checked} configurations were found");
}

fn check_configuration(text: &str, variables: &str, file: &Path) {
    let place = Place::new();
    std::fs::write(place.path().join("stepvault.toml"), text).unwrap();
    let printed = place.output(&format!("{variables} stepvault config check --json"));
    let document: serde_json::Value = serde_json::from_str(&printed).unwrap();
    for findings in ["faults", "warnings"] {
        let found = document[findings].as_array().unwrap();
        assert!(found.is_empty(), "{}: {found:?}", file.display());
    }
}

/// The containers and init containers of a pod that run stepvault.
pub(crate) fn own_containers(pod: &Yaml) -> Vec<Yaml> {
    let all = ["initContainers", "containers"].map(|key| pod[key].as_vec().cloned().unwrap_or_default());
    all.concat().into_iter().filter(runs_stepvault).collect()
}

/// The configuration that a container finds where it looks for one.
pub(crate) fn configuration_of(manifest: &str, pod: &Yaml, container: &Yaml) -> String {
    let named = |list: &Yaml, key: &str, value: &str| {
        let found = list
            .as_vec()
            .and_then(|items| items.iter().find(|item| item[key].as_str() == Some(value)).cloned());
        found.unwrap_or_else(|| panic!("nothing has {key} {value} in {list:?}"))
    };
    let directory = Path::new(CONFIGURATION).parent().unwrap().to_str().unwrap();
    let mount = named(&container["volumeMounts"], "mountPath", directory);
    let volume = named(&pod["volumes"], "name", mount["name"].as_str().unwrap());
    let name = volume["configMap"]["name"].as_str();
    let map = manifests(manifest)
        .into_iter()
        .find(|document| {
            document["kind"].as_str() == Some("ConfigMap") && document["metadata"]["name"].as_str() == name
        })
        .expect("the volume is of a map of the same file");
    map["data"]["stepvault.toml"].as_str().expect("the map holds the file").to_owned()
}

/// The variables of a container, as a shell is told them; what only the cluster knows gets a stand-in.
pub(crate) fn variables(container: &Yaml) -> String {
    let list = container["env"].as_vec().cloned().unwrap_or_default();
    let assignments = list.iter().map(|variable| {
        let name = variable["name"].as_str().expect("a variable has a name");
        format!("{name}='{}'", variable["value"].as_str().unwrap_or("stand-in"))
    });
    assignments.collect::<Vec<_>>().join(" ")
}

#[test]
fn a_service_manager_waits_longer_than_an_agent_drains() {
    let unit = read("config/systemd/stepvault-agent.service");
    let stop = value_of(&unit, "TimeoutStopSec=");
    assert!(humantime::parse_duration(&stop).unwrap() > drain_deadline(BARE), "TimeoutStopSec={stop}");
    let mut agents = 0;
    for file in rendered_manifests() {
        let text = read(&file);
        for pod in tables_with(&text, "containers") {
            for agent in own_containers(&pod).iter().filter(|container| {
                let command = container["args"][0].as_str().or(container["command"][1].as_str());
                matches!(command, Some("agent" | "run"))
            }) {
                let grace = pod["terminationGracePeriodSeconds"].as_i64().unwrap_or(30);
                let drain = drain_deadline(&configuration_of(&text, &pod, agent));
                assert!(grace > i64::try_from(drain.as_secs()).unwrap(), "{}: {grace} s", file.display());
                agents += 1;
            }
        }
    }
    assert!(agents >= 7, "only {agents} agents were found");
    // kustomize computes nothing: the overlay states the period beside its own configuration.
    let overlay = read("config/kubernetes/overlay/kustomization.yaml");
    let (_, patch) = overlay.split_once("terminationGracePeriodSeconds\n        value: ").unwrap();
    let grace: u64 = patch.lines().next().unwrap().parse().unwrap();
    let drain = drain_deadline(&read("config/kubernetes/overlay/stepvault.toml")).as_secs();
    assert_eq!(grace, drain + 30.max(drain / 10), "the overlay");
}

/// How long an agent with this configuration drains.
pub(crate) fn drain_deadline(configuration: &str) -> Duration {
    let place = Place::new();
    std::fs::write(place.path().join("stepvault.toml"), configuration).unwrap();
    let shown: serde_json::Value =
        serde_json::from_str(&place.output("stepvault config show --json")).unwrap();
    let values = shown["values"].as_array().unwrap();
    let deadline = values.iter().find(|value| value["key"] == "agent.drain-deadline").unwrap();
    humantime::parse_duration(deadline["value"].as_str().unwrap().trim_matches('"')).unwrap()
}
