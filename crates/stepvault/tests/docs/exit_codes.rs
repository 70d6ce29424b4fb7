//! docs/reference/exit-codes.md: the exit codes of the help, and when a command returns each of them.

use std::fmt::Write as _;

use crate::generated::{check, heading};
use crate::place::stepvault;

/// When each code is returned, and by which commands. A code without an entry here fails the test.
const WHEN: [(u8, &str); 10] = [
    (
        0,
        "The command succeeded. `push`: the step is durable on every required remote. `agent`: every finished step is sealed, and every sealed step of any run in the vault is durable on every required remote. `verify`: nothing is damaged. `prune` of an empty vault. `wait`: the step has reached the state. `drain --wait`: the same as `agent`. `explain`: every source was read, whatever was found.",
    ),
    (
        1,
        "Any error without its own code: damage found by `verify`, a refusing guard, missing permissions, a full disk, a source that changed while it was read, a name that is taken. `wait`: the step cannot reach the state without an operator, or it is quarantined. `announce`: the step is damaged or incomplete. `run` before the trainer's start: the same. The message and `error.kind` in the JSON document distinguish these errors.",
    ),
    (
        2,
        "Invalid arguments, environment or configuration; an unknown URL scheme; a bucket that does not exist; an entry in a checkpoint that cannot be stored; a missing SRC. `run`: the trainer's program cannot be started.",
    ),
    (
        3,
        "`push`: durable on some required remotes, but not on others. `agent`, `drain --wait`: a finished step could not be sealed, or a sealed step of any run in the vault, including runs that the agent does not serve, is not durable on a required remote or cannot be read. `list`, `prune`, `gc`, `pin`, `unpin`: succeeded on some tiers, failed on others. `inspect`: the newest step is not complete and sound, but an older one is. `explain`: a given source could not be read, or a tier could not be listed.",
    ),
    (
        10,
        "No tier has such a step. `inspect`: there is no step. `wait`: no such step was found in time. `run`: no such step was found for `--step` or `--attempt`.",
    ),
    (
        11,
        "`restore`, `run`: steps exist, but none could be restored. `verify`: no copy of any checked step is sound. `inspect`: no step is complete and sound.",
    ),
    (
        12,
        "A remote did not answer within its `retry-deadline`, its directory or its marker is missing, or a disk cannot be read, and there is no other error. Steps sealed and bytes fetched before are kept. `restore`, `run`: the same, or a step exists but cannot be read, and `--allow-older` is not given; nothing is restored, and no trainer is started. `wait`, `announce --wait-for`: at the timeout the step is known but has not reached the state, or nothing could be queried. `announce`, `drain`: no agent answers.",
    ),
    (
        13,
        "Another process holds the vault's lock, another prune or gc the run's lease, or another restore works on the same target. `push` to an exclusive run: another training job writes it. `run`: the trainer of an earlier start still runs.",
    ),
    (14, "`doctor`: a check failed."),
    (
        130,
        "SIGINT or SIGTERM. Finished work is kept; run the same command again to continue. The `agent` instead drains and exits with 0 or 3; a second signal ends it with 130. Once `run` has started the trainer, it returns the trainer's code: 128 plus the signal number if a signal ended it.",
    ),
];

#[test]
fn the_reference_of_exit_codes_is_the_help() {
    let help = stepvault(&["--help"]);
    let (_, list) = help
        .split_once("Exit status:\n")
        .expect("the help lists the exit codes");
    let mut text = heading("Exit codes", "`stepvault --help`");
    text.push_str("| Code | Meaning | When |\n|---|---|---|\n");
    let mut codes = Vec::new();
    for line in list.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (code, meaning) = line.split_once(' ').expect("a code and its meaning");
        let code: u8 = code.parse().expect("a number");
        let when = WHEN.iter().find(|(known, _)| *known == code);
        let (_, when) = when.unwrap_or_else(|| panic!("nothing says when the code {code} is returned"));
        writeln!(text, "| {code} | {} | {when} |", meaning.trim()).unwrap();
        codes.push(code);
    }
    assert_eq!(
        codes,
        WHEN.map(|(code, _)| code),
        "a code is described that the program does not have"
    );
    check("docs/reference/exit-codes.md", &text);
}
