//! docs/reference/commands.md: the help of every command.

use crate::generated::check_generated;
use crate::place::stepvault;

const OTHERS: &str = "Options of every command";

#[test]
fn the_reference_of_commands_is_the_help() {
    let help = stepvault(&["--help"]);
    let whole = help.split(OTHERS).next().unwrap_or_default();
    let mut text = section("stepvault", whole);
    for command in subcommands(&help) {
        let help = stepvault(&[&command, "--help"]);
        text.push_str(&section(&format!("stepvault {command}"), without_global(&help)));
        for inner in subcommands(&help) {
            let help = stepvault(&[&command, &inner, "--help"]);
            text.push_str(&section(&format!("stepvault {command} {inner}"), without_global(&help)));
        }
    }
    text.push_str(&section("stepvault help options", &stepvault(&["help", "options"])));
    check_generated("docs/reference/commands.md", &text);
}

fn section(title: &str, help: &str) -> String {
    let lines: Vec<&str> = help.trim_end().lines().map(str::trim_end).collect();
    format!("\n## {title}\n\n```text\n{}\n```\n", lines.join("\n"))
}

fn without_global(help: &str) -> &str {
    help.split(OTHERS).next().unwrap_or_default()
}

/// The commands that a help lists, `help` itself left out.
pub(crate) fn subcommands(help: &str) -> Vec<String> {
    let Some((_, after)) = help.split_once("\nCommands:\n") else {
        return Vec::new();
    };
    after
        .lines()
        .take_while(|line| !line.trim().is_empty())
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect()
}
