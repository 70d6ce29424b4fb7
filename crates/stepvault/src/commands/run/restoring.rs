//! Restores a step before the trainer starts, and the place that it is restored to.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use stepvault_agent::notifications::{Notifier, Occurrence};
use stepvault_core::config::{Config, NotifyEvent, RestoreSync};
use stepvault_core::starts::{StartedProgram, demoted, restart_loop};
use stepvault_core::{Clock as _, Error, ErrorKind, Result, StepId};
use stepvault_engine::restore::{RestoreRequest, Target, WantedSteps, restore};
use stepvault_local::clock::SystemClock;
use stepvault_local::probe::mounts::{Mounts, lost_with_machine};
use stepvault_remote::store::ArchivePlace;

use super::RunArguments;
use super::history::StartNote;
use super::uploads::wait_for_uploads;
use crate::commands::agent::served;
use crate::commands::notify::restored_older;
use crate::commands::restore::document::restored;
use crate::commands::restore::{existing, handoff_options, restore_context};
use crate::commands::starts::known_starts;
use crate::context::{DefaultVault, Settings, Tiers, absolute, vault_beside};
use crate::output::Report as _;
use crate::session::Session;

/// The step that a trainer resumes from.
#[derive(Debug, Clone)]
pub(super) struct RestoredStep {
    /// The step.
    pub(super) id: StepId,
    /// The step's path.
    pub(super) path: PathBuf,
    /// Whether the trainer's directory holds a newer step that no tier has, from which the trainer resumes instead.
    pub(super) is_outrun: bool,
}

/// Creates the directories of remotes that this vault has never seen, beside other files: the first start of a run on a
/// new machine. What cannot be created is reported by the restore.
async fn begin_new_archives(session: &Session, tiers: &Tiers) {
    let Some(vault) = &tiers.vault else { return };
    for remote in &tiers.remotes {
        match remote.begin(vault, ArchivePlace::BesideFiles).await {
            Ok(false) => {}
            Ok(true) => {
                session.output.warn(&remote.created_text());
            }
            Err(error) => tracing::debug!(%error, "cannot prepare the remote"),
        }
    }
}

/// Restores the step that the trainer resumes from; returns `None` if no step exists yet.
///
/// # Errors
/// If a step may exist but cannot be restored: starting from scratch would be worse than not starting.
pub(super) async fn restore_step(
    session: &Session,
    arguments: &RunArguments,
    place: &Place,
    tiers: &Tiers,
    note: &StartNote,
    notifier: &Notifier,
) -> Result<Option<RestoredStep>> {
    let demoted = look_back(tiers, note, notifier).await;
    if arguments.step.is_none() && arguments.attempt.is_none() {
        wait_for_uploads(session, tiers, place.settings.config.restart.wait_for_uploads).await;
    }
    begin_new_archives(session, tiers).await;
    name_needless_syncs(session, place, tiers);
    let request = RestoreRequest {
        wanted: WantedSteps { step: arguments.step, attempt: arguments.attempt, revision: None },
        resumes: true,
        existing: existing(arguments.replace),
        handoff: Some(handoff_options(tiers, arguments.profile.clone(), arguments.no_pointer)?),
        demoted,
        allow_older: arguments.allow_older,
        thaw: arguments.archive.options(),
        ..arguments.nodes.request(tiers, Target::Into(place.directory.clone()))
    };
    let report = match restore(&restore_context(tiers), &request).await {
        Ok(report) => report,
        Err(error) if error.kind() == ErrorKind::NotFound && request.wanted.are_newest() => {
            // A vault that cannot be read may hold steps that no remote has.
            if let Some(fault) = &place.vault_fault {
                return Err(fault.clone());
            }
            tell(session, "no checkpoint exists yet: this is the first start");
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    if let Some(occurrence) = restored_older(tiers.run_name(), &report.plan) {
        notifier.notify(occurrence);
    }
    let handoff = report.plan.handoff.as_ref();
    let restored_step = RestoredStep {
        id: report.plan.id,
        path: report.plan.path.clone(),
        is_outrun: handoff.is_some_and(|handoff| handoff.kept.is_some()),
    };
    let mut document = restored(tiers.run_name(), report);
    document.ask_given_up(tiers).await;
    tell(session, &document.human());
    Ok(Some(restored_step))
}

/// Says that a restore waits for a disk that is lost with its machine, and how it would not.
fn name_needless_syncs(session: &Session, place: &Place, tiers: &Tiers) {
    let mounts = Mounts::read();
    let lost = mounts.by_name(&place.directory).and_then(lost_with_machine);
    if let Some(lost) = lost.filter(|_| tiers.settings.config.restore_sync == RestoreSync::Full) {
        let text = format!(
            "{} is {lost} and lost with this machine: with restore.sync = \"none\", no restore waits for it",
            place.directory.display()
        );
        tell(session, &text);
    }
}

/// Checks earlier starts: warns of a restart loop, and returns the steps from which the trainer crashes.
async fn look_back(tiers: &Tiers, note: &StartNote, notifier: &Notifier) -> BTreeMap<StepId, String> {
    let rules = tiers.settings.config.restart;
    let known = known_starts(tiers).await;
    note.adopt(&known).await;
    let now = SystemClock.now();
    if let Some(found) = restart_loop(
        &known,
        tiers.run_name(),
        tiers.writer.place.node(),
        StartedProgram::Trainer,
        rules.restart_loop,
        now,
    ) {
        tiers.output.warn(&found.to_string());
        let occurrence = Occurrence::new(NotifyEvent::RestartLoop, tiers.run_name(), found.to_string());
        notifier.notify(occurrence.cause("restart loop of the trainer"));
    }
    demoted(&known, rules.demotion)
}

/// Prints text on stderr, because stdout belongs to the trainer.
pub(super) fn tell(session: &Session, text: &str) {
    if !session.output.quiet {
        for line in text.lines() {
            session.output.line(line);
        }
    }
}

/// Adds the hint for a start that is refused because checkpoints may exist.
pub(super) fn refused(error: Error) -> Error {
    let own = error.hint_text().map_or_else(String::new, |hint| format!("{hint}; "));
    error.hint(format!(
        "{own}the trainer was not started, because it might start from scratch although checkpoints exist; give \
         --start-anyway to start it anyway"
    ))
}

/// The trainer's directory, with its effective configuration.
pub(super) struct Place {
    pub(super) settings: Settings,
    /// The directory that the trainer writes steps to and resumes from.
    pub(super) directory: PathBuf,
    /// The configuration for the agent.
    pub(super) served: Config,
    /// Why the vault cannot be used, if so.
    vault_fault: Option<Error>,
}

impl Place {
    /// Determines the directory from the command line and the configuration.
    pub(super) fn find(session: &Session, into: Option<&Path>) -> Result<Self> {
        let mut settings = Settings::load(session)?.patient();
        let run = settings.run()?;
        let directory = into.map(Path::to_path_buf).or_else(|| run.watch.clone());
        let directory = directory.ok_or_else(|| {
            Error::new(ErrorKind::Usage, "no directory for the trainer's steps")
                .on(format!("run '{}'", run.name))
                .because("no directory is given, and the run has no 'watch'")
                .hint("give --into DIR")
        })?;
        let directory = PathBuf::from(absolute(&directory)?);
        if settings.config.local.directory.is_none() {
            let vault = vault_beside(&directory.join("step"))?;
            settings.record_path("local.directory", &vault);
            settings.config.local.directory = Some(vault);
        }
        let mut served = served(&settings)?;
        if let Some(run) = served.runs.iter_mut().find(|other| other.name == run.name) {
            if run.watch.is_none() {
                settings.record_path(&format!("run.\"{}\".watch", run.name), &directory);
            }
            let watched = run.watch.get_or_insert_with(|| directory.clone());
            if std::path::absolute(&*watched).ok().as_deref() != Some(&*directory) {
                session.output.warn(&format!(
                    "the step is restored into {}, but the agent watches {}",
                    directory.display(),
                    watched.display()
                ));
            }
        }
        Ok(Self { settings, directory, served, vault_fault: None })
    }

    /// Opens the tiers; without the vault if that cannot be used.
    pub(super) async fn open(&mut self, session: &Session) -> Result<Tiers> {
        let vault = self.settings.local_directory().unwrap_or_default();
        let default = DefaultVault::Created(vault);
        let fault = match Tiers::open(&self.settings, default, &session.output).await {
            Ok(tiers) => return Ok(tiers),
            // Another user's vault, or a directory that is not a vault: it must not be used, so the user has to decide.
            Err(fault) if fault.kind() == ErrorKind::Refused => return Err(fault),
            Err(fault) => fault,
        };
        let mut without = self.settings.clone();
        without.config.local.directory = None;
        let tiers = Tiers::open(&without, DefaultVault::None, &session.output).await;
        match tiers {
            Ok(tiers) => {
                session.output.warn(&format!("continuing without the vault: {fault}"));
                self.vault_fault = Some(fault);
                Ok(tiers)
            }
            // The vault is not the cause.
            Err(_) => Err(fault),
        }
    }
}
