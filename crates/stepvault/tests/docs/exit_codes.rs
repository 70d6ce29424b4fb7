//! docs/reference/exit-codes.md has the exit codes of the help, with their meaning.

use crate::place::{read, stepvault};

#[test]
fn the_table_of_exit_codes_has_those_of_the_help() {
    let help = stepvault(&["--help"]);
    let (_, list) = help.split_once("Exit status:\n").expect("the help lists the exit codes");
    let of_help: Vec<(&str, &str)> = list
        .lines()
        .filter_map(|line| line.trim().split_once(' '))
        .map(|(code, meaning)| (code, meaning.trim()))
        .collect();
    let page = read("docs/reference/exit-codes.md");
    let of_page: Vec<(&str, &str)> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split_once(" | "))
        .filter_map(|(code, rest)| Some((code, rest.split_once(" | ")?.0)))
        .filter(|(code, _)| *code != "Code")
        .collect();
    assert_eq!(of_page, of_help);
}
