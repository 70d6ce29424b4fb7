//! Limits of the process: too few open files, too small a file.

use stepvault_testkit::process::Outcome;

use crate::faults::check::Harm;
use crate::faults::operations::Operation;
use crate::faults::settings::{Settings, not_run, settings};
use crate::faults::sweep::sweep_each;
use crate::faults::tally::Tally;

/// A limit, as an argument of `prlimit`, and the expected error when it is reached.
struct Limit {
    what: &'static str,
    option: &'static str,
    values: &'static [u64],
    says: &'static str,
    hint: &'static str,
}

const FILES: Limit = Limit {
    what: "few open files (EMFILE)",
    option: "--nofile",
    values: &[10, 12, 14, 16, 18, 20, 24, 28, 32, 40],
    says: "too many files are open",
    hint: "raise the limit on open files",
};
const SIZE: Limit = Limit {
    what: "small files only (EFBIG)",
    option: "--fsize",
    values: &[1, 200, 1_000, 20_000, 60_000, 100_000],
    says: "the file would exceed the allowed size",
    hint: "raise the limit on file sizes",
};

fn said(limit: &Limit, ran: &Outcome) -> Result<(), Harm> {
    let text = format!("{}\n{}", ran.stdout, ran.stderr);
    let broke_down = text.contains("panicked at") || ran.signal.is_some();
    let told = text.contains(limit.says) && text.contains(limit.hint);
    if broke_down || ran.code != 0 && !told {
        return Err(Harm::Stuck(format!("{:?} is not said: {ran:?}", limit.says)));
    }
    Ok(())
}

fn under(limit: &Limit, operation: &Operation, settings: Settings) -> Tally {
    let mut tally = Tally::new("Limits", &format!("{}, {}", operation.name, limit.what), settings.seed);
    let reference = operation.reference();
    let mut met = 0;
    // The small tier runs every third.
    let every = if settings.full { 1 } else { 3 };
    let values: Vec<u64> = limit.values.iter().copied().step_by(every).collect();
    for value in &values {
        operation.world.bring_back(&reference.kept);
        let option = format!("{}={value}:{value}", limit.option);
        let ran = operation.order.clone().under(["prlimit", &option]).run();
        tally.runs += 1;
        tally.faults += 1;
        met += usize::from(ran.code != 0);
        let outcome = said(limit, &ran)
            .and_then(|()| operation.held(&reference, &ran, &mut tally))
            .and_then(|()| operation.goes_on(&reference).map(|_| ()));
        tally.record(&option, outcome);
    }
    tally.note = format!("limits {values:?}; {met} were too low for the command");
    tally
}

fn limited(limit: &Limit) {
    let Some(settings) = settings("tracing") else {
        return;
    };
    if let Err(why) = crate::faults::image::run("prlimit", &["--version"]) {
        return not_run("limits of a process", &why);
    }
    let names =
        ["push to file://", "agent --once to file://", "restore from file://", "restore from the vault"];
    sweep_each(&names, |operation| vec![under(limit, operation, settings)]);
}

/// Regression: a restore that could open no more files treated intact steps as damaged, and skipped them for older
/// ones.
#[test]
fn with_few_open_files_it_works_or_says_so() {
    limited(&FILES);
}

/// Regression: the kernel's signal ended the process before it could report anything.
#[test]
fn with_small_files_only_it_works_or_says_so() {
    limited(&SIZE);
}
