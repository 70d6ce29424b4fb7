//! `stepvault doctor` with real faults: full disks, disks without inodes, read-only mounts, other users, dead mounts,
//! memory limits.
//!
//! The tests mount in their own mount namespace, which ends with the command. Where that is not possible, a test prints
//! so and is skipped.

use crate::support::{Outcome, Place, TestCommand, list};

mod disks;
mod feasible;
mod leftovers;
mod limits;
mod mounts;
mod notices;
pub(crate) mod remote_place;
mod remotes;
mod rights;
mod uploads;
mod users;
mod variables;

/// The exit code of the script when something cannot be mounted here.
const NOT_HERE: i32 = 99;

/// A place with `run`, where a trainer writes, and room for a vault.
fn place() -> Place {
    let place = Place::on_disk();
    for name in ["run", "vault"] {
        std::fs::create_dir(place.path(name)).unwrap();
    }
    place
}

impl Place {
    /// A complete step: a file of so many bytes, and as many small ones as wanted.
    pub(crate) fn save_in_run(&self, name: &str, bytes: usize, small_files: usize) {
        let step = format!("run/{name}");
        self.write(&format!("{step}/model.bin"), vec![7; bytes]);
        for number in 0..small_files {
            self.write(&format!("{step}/{number}.json"), "{}");
        }
    }

    /// `doctor` with these arguments, on a machine whose provider is looked for.
    fn doctor_command(&self, arguments: &[&str]) -> TestCommand {
        let mut doctor = self.command(["doctor"]).with(arguments);
        for variable in [
            "AWS_EC2_METADATA_DISABLED",
            "AWS_EC2_METADATA_SERVICE_ENDPOINT",
            "GCE_METADATA_HOST",
            "AZURE_POD_IDENTITY_AUTHORITY_HOST",
        ] {
            doctor.env_remove(variable);
        }
        doctor
    }

    /// Looks at `run` with the vault in `vault`.
    fn doctor(&self, arguments: &[&str]) -> Outcome {
        self.doctor_on_run(arguments).run()
    }

    fn doctor_on_run(&self, arguments: &[&str]) -> TestCommand {
        let common = ["run", "--local", "vault", "--json"];
        self.doctor_command(&[&common[..], arguments].concat())
    }

    /// The same, after `setup` has been run by a shell in a mount namespace of its own; `None`, and reports it, where that
    /// cannot be had.
    fn doctor_after(&self, setup: &str, arguments: &[&str]) -> Option<Outcome> {
        run_after(setup, &mut self.doctor_on_run(arguments))
    }
}

/// The same with another command.
fn run_after(setup: &str, command: &mut TestCommand) -> Option<Outcome> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not run: only the superuser can mount what this test needs");
        return None;
    }
    let script = format!("{setup}\n\"$@\"");
    let ran = command.under(["unshare", "--mount", "sh", "-c", &script, "sh"]).run();
    if ran.code == NOT_HERE || ran.stderr.contains("unshare failed") {
        eprintln!("not run: it cannot be mounted here: {}", ran.stderr);
        return None;
    }
    Some(ran)
}

/// The findings in doctor's document.
trait Findings {
    /// The finding of this check whose subject holds this text.
    fn finding(&self, check: &str, subject: &str) -> Found;
}

impl Findings for Outcome {
    #[track_caller]
    fn finding(&self, check: &str, subject: &str) -> Found {
        let document = self.json();
        let mut all = list(&document, "findings").iter().chain(list(&document, "feasibility"));
        let found = all.find(|finding| {
            finding["check"] == check && finding["subject"].as_str().unwrap().contains(subject)
        });
        let found = found.unwrap_or_else(|| panic!("nothing of {check} on {subject}: {document:#}"));
        let text = |member: &str| found[member].as_str().unwrap_or_default().to_owned();
        Found { outcome: text("outcome"), measured: text("measured"), remedy: text("remedy") }
    }
}

/// A finding.
#[derive(Debug)]
struct Found {
    outcome: String,
    measured: String,
    remedy: String,
}

impl Found {
    /// It came out so, and says this of what was measured and of what to do.
    #[track_caller]
    fn expect(&self, outcome: &str, measured: &str, remedy: &str) {
        assert_eq!(self.outcome, outcome, "{self:#?}");
        assert!(self.measured.contains(measured), "{self:#?}");
        assert!(self.remedy.contains(remedy), "{self:#?}");
    }
}
