//! Words that people, launchers and file names give: names, numbers with units, node lists, ranks.

use std::str::FromStr;

use stepvault_core::config::{nearest, parse_duration, parse_size};
use stepvault_core::ids::{NodeName, RemoteName, RunName, StepId};
use stepvault_core::include::IncludeFilter;
use stepvault_core::launch::LaunchName;
use stepvault_core::launcher::Launcher;
use stepvault_core::links::check_links;
use stepvault_core::manifest::{SymlinkEntry, check_link_target};
use stepvault_core::nodes::NodeSet;
use stepvault_core::path::RelativePath;
use stepvault_core::timestamp::Timestamp;

/// What a launcher says of its nodes, in this order, a line each.
const VARIABLES: [&str; 8] = [
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "SLURM_NODEID",
    "SLURM_JOB_NUM_NODES",
    "SLURM_JOB_ID",
    "SLURM_RESTART_COUNT",
    "TORCHELASTIC_RUN_ID",
    "JOB_COMPLETION_INDEX",
];

/// The text as each of them.
pub fn check(text: &str) {
    check_names(text);
    check_numbers(text);
    check_launcher(text);
    check_paths(text);
    let _ = nearest(text, ["last", "within"]);
}

/// A name that is taken is printed as it is given.
fn check_names(text: &str) {
    fn same<T: FromStr + ToString>(text: &str) {
        if let Ok(name) = text.parse::<T>() {
            assert_eq!(name.to_string(), text);
        }
    }
    same::<RunName>(text);
    same::<NodeName>(text);
    same::<RemoteName>(text);
    same::<LaunchName>(text);
    if let Some(id) = StepId::from_label(text) {
        assert_eq!(id.label(), text);
    }
    if let Ok(nodes) = text.parse::<NodeSet>() {
        let listed: Vec<&str> = nodes.iter().map(NodeName::as_str).collect();
        assert_eq!(listed.join(",").parse::<NodeSet>().unwrap(), nodes);
    }
}

fn check_numbers(text: &str) {
    if let Ok(size) = parse_size(text) {
        // Numbers above this are rounded by their own unit.
        let again = parse_size(&format!("{size} B"));
        assert!(size > 1 << 53 || again.is_ok_and(|again| again == size), "{text:?}");
    }
    if let Ok(duration) = parse_duration(text) {
        let milliseconds = duration.as_millis();
        assert!(milliseconds > 0 || duration.subsec_nanos() > 0 || text.contains('0'), "{text:?}");
    }
    if let Ok(seconds) = text.trim().parse() {
        let _ = Timestamp::from_seconds(seconds).to_rfc3339();
    }
}

fn check_launcher(text: &str) {
    let lines: Vec<&str> = text.lines().collect();
    let variable = |name: &str| {
        let index = VARIABLES.iter().position(|known| *known == name)?;
        let line = *lines.get(index)?;
        (!line.is_empty()).then(|| line.to_owned())
    };
    let Ok(launcher) = Launcher::read(&variable) else {
        return;
    };
    if let (Some(node), Some(nodes)) = (launcher.node, launcher.nodes) {
        assert!(nodes.contains(&node));
    }
}

fn check_paths(text: &str) {
    if let Ok(filter) = IncludeFilter::new(&[text.to_owned()]) {
        let _ = filter.takes(&RelativePath::new("a/b/model.safetensors").unwrap());
    }
    let pairs = text.lines().filter_map(|line| line.split_once(" -> "));
    let links: Vec<SymlinkEntry> = pairs
        .filter_map(|(path, target)| {
            let path = RelativePath::new(path).ok()?;
            let target = target.to_owned();
            check_link_target(&path, &target).is_ok().then_some(SymlinkEntry { path, target })
        })
        .collect();
    let _ = check_links(&links);
}

/// Some of each.
pub fn seeds() -> Vec<Vec<u8>> {
    [
        "grpo-30b/checkpoints",
        "000000000100.a2",
        "a,b, c",
        "65536",
        "1.5 GiB",
        "1h 30m",
        "0\n2\n\n\n17\n1\nnone",
        "\n\n1\n4\nx:y",
        "**/*.safetensors",
        "a/b/up -> ../..\nin -> a/b/up/x",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}
