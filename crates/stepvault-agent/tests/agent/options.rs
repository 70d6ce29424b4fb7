//! What the service refuses to begin with, and how a configuration becomes its options.

use std::path::PathBuf;
use std::time::Duration;

use stepvault_agent::AgentOptions;
use stepvault_core::ErrorKind;
use stepvault_core::config::{Completion, FileText, Sources, load};
use stepvault_core::ids::{NodeName, RemoteName};
use stepvault_core::nodes::Writer;

use crate::harness::Node;
use crate::support::text;

/// Makes options contradict each other.
type Contradiction = fn(&mut AgentOptions);

#[tokio::test]
async fn contradictions_are_refused_before_anything_is_touched() {
    let node = Node::new();
    let good = node.disk_options().await;

    let cases: [(Contradiction, &str); 4] = [
        (
            |options| {
                let elsewhere = RemoteName::new("elsewhere").unwrap();
                options.runs[0].remotes.as_mut().unwrap().push(elsewhere);
            },
            "cannot serve the run: grpo/checkpoints: its remote 'elsewhere' is not configured | ",
        ),
        (
            |options| options.runs[0].remotes.as_mut().unwrap().clear(),
            "cannot serve the run: grpo/checkpoints: it has no remote | add a table [remote.NAME] with its url",
        ),
        (
            |options| options.runs.push(options.runs[0].clone()),
            "cannot serve the run: grpo/checkpoints: it is configured twice | ",
        ),
        (
            |options| options.runs.clear(),
            "the agent has nothing to do: no run is configured | add a table [run.\"NAME\"] with the directory to \
             watch",
        ),
    ];
    for (contradict, expected) in cases {
        let mut options = good.clone();
        contradict(&mut options);
        assert_eq!(text(&node.start(options).ended().unwrap_err()), expected);
    }

    let mut options = good;
    options.runs[0].pattern = Some("step_[".to_owned());
    let error = node.start(options).ended().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert!(
        text(&error).starts_with("cannot serve the run: grpo/checkpoints: \"step_[\" is not a glob: "),
        "{error}"
    );
    assert!(!node.vault_directory().exists());
}

#[tokio::test]
async fn a_configuration_becomes_options() {
    let node = Node::new();
    let file = r#"
        [local]
        directory = "/data/vault"
        links = "copy"
        [upload]
        maximum-backlog-steps = 5
        [agent]
        poll-interval = "2s"
        [remote.disk]
        url = "file:///archive"
        [run.a]
        watch = "/data/a"
        complete = "marker"
        marker = ".metadata"
        [run.b]
    "#;
    let sources = Sources {
        file: Some(FileText { path: PathBuf::from("/etc/stepvault.toml"), text: file.to_owned() }),
        ..Sources::default()
    };
    let config = load(&sources).unwrap();
    let remotes = vec![node.directory_remote("disk").await];
    let name = NodeName::new("n").unwrap();
    let options =
        AgentOptions::from_config(&config, Writer::single_node(name.clone()), None, remotes.clone(), true)
            .unwrap();
    assert_eq!(options.vault_directory, PathBuf::from("/data/vault"));
    assert_eq!(
        (options.upload.maximum_backlog_steps, options.agent.poll_interval),
        (5, Duration::from_secs(2))
    );
    assert_eq!(options.runs.len(), 2);
    assert_eq!(options.runs[0].watch, Some(PathBuf::from("/data/a")));
    assert!(matches!(&options.runs[0].complete, Completion::Marker(file) if file.as_str() == ".metadata"));
    assert_eq!(options.runs[1].watch, None);
    assert!(options.lifecycle.once);

    let error =
        AgentOptions::from_config(&config, Writer::single_node(name.clone()), None, Vec::new(), false)
            .unwrap_err();
    assert_eq!(text(&error), "cannot serve the run: a: its remote 'disk' is not configured | ");
    let mut homeless = config;
    homeless.local.directory = None;
    let error =
        AgentOptions::from_config(&homeless, Writer::single_node(name), None, remotes, false).unwrap_err();
    assert_eq!(
        text(&error),
        "the agent has no vault: local.directory is not set | name a directory on the disk that the trainer writes \
         to: local.directory = \"/data/vault\""
    );
}
