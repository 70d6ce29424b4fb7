//! docs/reference/exit-codes.md: what the help says, and for each code how a command comes to it.

use std::fmt::Write as _;

use crate::generated::{check, heading};
use crate::place::stepvault;

/// When each code is returned, and by what. A code without a line here fails the test.
const WHEN: [(u8, &str); 10] = [
    (
        0,
        "The command did what it was asked to do. `push`: the step is durable on every required remote. `agent`: every sealed step is durable on every required remote. `verify`: nothing is damaged. `prune` of an empty vault. `wait`: the step is there. `drain --wait`: every sealed step is durable on every required remote. `explain`: everything was looked at, whatever was found.",
    ),
    (
        1,
        "Anything without a code of its own: damage found by `verify`, a guard that refused, no rights, a full disk, a source that changed while it was read, a name that is taken. `wait`: the step was given up, or put into quarantine. `announce`: the step is broken or not complete. `run` before the trainer's start: the same. The message and `error.kind` in the JSON document tell them apart.",
    ),
    (
        2,
        "Wrong arguments, environment or configuration; an unknown URL scheme; a bucket that does not exist; something in a checkpoint that cannot be kept; no such SRC. `run`: the trainer's program cannot be started.",
    ),
    (
        3,
        "`push`: durable on some required remotes and not on others. `agent`, `drain --wait`: a sealed step is not durable on a required remote. `list`, `prune`, `gc`, `pin`, `unpin`: done on some tiers, failed on others. `inspect`: the newest step is not complete and sound, and an older one is. `explain`: something that was named could not be looked at, or a tier could not be asked.",
    ),
    (
        10,
        "No tier has such a step. `inspect`: there is no step. `wait`: no such step was seen by the end of the time. `run`: no such step was found for `--step` or `--attempt`.",
    ),
    (
        11,
        "`restore`, `run`: there are steps, and none could be restored. `verify`: no copy of any step that was checked is sound. `inspect`: no step is complete and sound.",
    ),
    (
        12,
        "A remote did not answer within its `retry-deadline`, and nothing else went wrong. What was sealed or fetched before is kept. `wait`, `announce --wait-for`: the time was up, and the step is known and not there yet, or nobody could be asked. `announce`, `drain`: no agent answers.",
    ),
    (
        13,
        "Another process holds the vault's lock, another prune or sweep the run's lease, or another restore works on the same target. `run`: the trainer of an earlier start still runs.",
    ),
    (
        14,
        "Reserved for checks before the work. No command of this version returns it.",
    ),
    (
        130,
        "SIGINT or SIGTERM. What was finished is kept, and the same command goes on from there. The `agent` ends in order instead, with 0 or 3; a second signal ends it with 130. Once `run` has started the trainer, the code is the trainer's, whichever it is: 128 and the signal when one ended it.",
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
