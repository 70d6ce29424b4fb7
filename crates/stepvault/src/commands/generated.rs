//! `man` and `completions`: what is generated from the definition of the command line.

use std::path::{Path, PathBuf};

use clap::{Args, Command, CommandFactory as _};
use clap_complete::Shell;
use clap_mangen::Man;
use itertools::Itertools as _;
use schemars::JsonSchema;
use serde::Serialize;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::durable;

use crate::arguments::Arguments;
use crate::exit_code::ExitCode;
use crate::output::Report;
use crate::session::Session;

/// Write the manual pages
///
/// Writes one page for each command to DIR; without DIR, prints the main page.
#[derive(Debug, Args)]
pub(crate) struct ManArguments {
    /// Directory for the pages
    directory: Option<PathBuf>,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct ManReport {
    /// The written manual pages.
    pages: Vec<PathBuf>,
}

impl Report for ManReport {
    fn human(&self) -> String {
        let pages = self.pages.iter();
        pages.map(|page| format!("wrote {}", page.display())).join("\n")
    }
}

/// Writes or prints the manual pages.
pub(crate) fn man(session: &Session, arguments: &ManArguments) -> Result<ExitCode> {
    let mut command = Arguments::command();
    command.build();
    let Some(directory) = &arguments.directory else {
        session.output.text(&String::from_utf8_lossy(&page(&command)?))?;
        return Ok(ExitCode::Done);
    };
    durable::create_directories(directory)?;
    let mut pages = Vec::new();
    write_pages(&command, directory, &mut pages)?;
    session.output.result(&ManReport { pages })?;
    Ok(ExitCode::Done)
}

fn write_pages(command: &Command, directory: &Path, pages: &mut Vec<PathBuf>) -> Result<()> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let path = directory.join(format!("{name}.1"));
    durable::replace(&path, &page(command)?)?;
    pages.push(path);
    let documented =
        command.get_subcommands().filter(|inner| inner.get_name() != "help" && !inner.is_hide_set());
    for inner in documented {
        write_pages(inner, directory, pages)?;
    }
    Ok(())
}

fn page(command: &Command) -> Result<Vec<u8>> {
    let mut page = Vec::new();
    Man::new(command.clone())
        .render(&mut page)
        .map_err(|error| Error::new(ErrorKind::Failed, "cannot write the manual page").caused_by(error))?;
    Ok(page)
}

/// Print a completion script for a shell
///
/// For bash: stepvault completions bash > stepvault.bash; source stepvault.bash
#[derive(Debug, Args)]
pub(crate) struct CompletionsArguments {
    /// Shell to print the script for
    shell: Shell,
}

/// Prints the completion script.
pub(crate) fn completions(session: &Session, arguments: &CompletionsArguments) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Arguments::command(), "stepvault", &mut script);
    session.output.text(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_has_a_page_of_its_own_name() {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Arguments::command();
        command.build();
        let mut pages = Vec::new();
        write_pages(&command, directory.path(), &mut pages).unwrap();
        let names: Vec<&str> = pages.iter().filter_map(|page| page.file_name()?.to_str()).collect();
        for name in ["stepvault.1", "stepvault-push.1", "stepvault-config-check.1"] {
            assert!(names.contains(&name), "{names:?}");
        }
        let page = std::fs::read_to_string(directory.path().join("stepvault-push.1")).unwrap();
        assert!(page.contains("stepvault push") && page.contains("SRC"), "{page}");
    }
}
