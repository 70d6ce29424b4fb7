//! The rights that the pages of the clouds give to an agent with retention are those of the table of rights, and no others.

use std::collections::BTreeSet;

use crate::place::read;
use crate::service_files::pattern;

/// What an agent with rules under `[keep.remote]` does, by the page of the table.
const COMMANDS: [&str; 3] = ["every command", "`push`", "`prune`"];

#[test]
fn the_pages_of_clouds_give_the_rights_of_an_agent() {
    let table = read("docs/guides/buckets-and-rights.md");
    let rows: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split('|').map(str::trim).collect::<Vec<_>>())
        .filter(|cells| cells.len() == 6 && COMMANDS.iter().any(|command| cells[3].contains(command)))
        .collect();
    assert!(rows.len() >= 4, "{rows:?}");
    for (page, right, column) in
        [("eks", "s3:[A-Z][A-Za-z]+", 1), ("gke", r"storage\.[a-zA-Z]+\.[a-z][a-zA-Z]+", 2)]
    {
        let right = pattern(right);
        let of = |text: &str| -> BTreeSet<String> {
            right.find_iter(text).map(|found| found.as_str().to_owned()).collect()
        };
        let needed: BTreeSet<String> = rows.iter().flat_map(|cells| of(cells[column])).collect();
        let text = read(format!("docs/guides/{page}.md"));
        // In the blocks of commands, not where the text speaks of leaving one out.
        let blocks: String = text.split("```").skip(1).step_by(2).collect();
        assert_eq!(of(&blocks), needed, "{page}");
        assert!(needed.len() >= 5, "{needed:?}");
    }
}
