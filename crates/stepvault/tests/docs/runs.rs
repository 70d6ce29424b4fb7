//! Runs every `console` block: each document in its own directory, its blocks in order.
//!
//! A line that starts with `$ ` is a command, run by `sh`; it must succeed, or exit with N if `# exit N` follows it.
//! The lines below a command are its output, on either stream; `…` matches anything within a line, and a line of `…`
//! alone any number of lines.

use crate::markdown::{Block, blocks};
use crate::place::{Place, documents, read};

#[test]
fn every_console_block_runs_and_prints_what_it_says() {
    let mut commands = 0;
    for document in documents() {
        let text = read(&document);
        let mut place = None;
        for block in blocks(&text).into_iter().filter(|block| block.language == "console") {
            let place = place.get_or_insert_with(Place::new);
            commands += run(place, &block, &document.display().to_string());
        }
    }
    assert!(commands >= 20, "only {commands} commands were found");
}

fn run(place: &Place, block: &Block, document: &str) -> usize {
    let mut commands: Vec<(usize, String, Vec<&str>)> = Vec::new();
    for (offset, line) in block.lines.iter().enumerate() {
        if let Some(command) = line.strip_prefix("$ ") {
            commands.push((block.line + offset + 1, command.to_owned(), Vec::new()));
            continue;
        }
        let (_, command, printed) = commands.last_mut().expect("a console block begins with a command");
        if command.ends_with('\\') {
            command.push('\n');
            command.push_str(line);
        } else {
            printed.push(line);
        }
    }
    for (line, command, expected) in &commands {
        let output = place.shell(command);
        let wanted =
            command.rsplit_once("# exit ").map_or(0, |(_, code)| code.trim().parse().expect("an exit code"));
        let mut printed = String::from_utf8_lossy(&output.stdout).into_owned();
        printed.push_str(&String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(wanted), "{document}:{line}: {command}\n{printed}");
        if !expected.is_empty() {
            assert!(
                fits(expected, &printed.lines().collect::<Vec<_>>()),
                "{document}:{line}: {command}\nprints\n{printed}\nand not\n{}",
                expected.join("\n")
            );
        }
    }
    commands.len()
}

/// Whether what was printed is what a document shows.
fn fits(expected: &[&str], printed: &[&str]) -> bool {
    match expected.split_first() {
        None => printed.is_empty(),
        Some((&"…", rest)) => (0..=printed.len()).any(|skipped| fits(rest, &printed[skipped..])),
        Some((line, rest)) => {
            printed.split_first().is_some_and(|(first, more)| fits_line(line, first) && fits(rest, more))
        }
    }
}

fn fits_line(expected: &str, printed: &str) -> bool {
    match expected.split_once('…') {
        None => expected == printed,
        Some((before, after)) => printed.strip_prefix(before).is_some_and(|rest| {
            (0..=rest.len())
                .filter(|end| rest.is_char_boundary(*end))
                .any(|end| fits_line(after, &rest[end..]))
        }),
    }
}

#[test]
fn an_ellipsis_stands_for_anything() {
    assert!(fits_line("a … c…", "a b c d") && !fits_line("a … c", "a b d"));
    assert!(fits(&["…", "b"], &["x", "a", "b"]) && fits(&["a", "…"], &["a"]) && !fits(&["a"], &["a", "b"]));
}
