//! Announced steps: they need no quiet time, but all other checks apply.

use std::path::Path;
use std::sync::Arc;

use stepvault_core::{Error, ErrorKind, Result, Step};
use stepvault_engine::inspect::check_source;
use stepvault_formats::check::check_extent;
use stepvault_formats::find::{Extent, FoundStep};
use stepvault_formats::profile::ProfileSet;
use stepvault_formats::step_name;
use stepvault_local::survey::SurveyFiles;
use stepvault_local::{Checkpoint, clock};

use super::{Discovery, Ready, selection};
use crate::announcements::Announcement;

/// Maximum number of a step's faults that are reported.
const MAX_FAULTS: usize = 5;

impl Discovery {
    /// Returns the announced step according to the rules of this directory; `None` if they do not cover it. Blocks.
    ///
    /// # Errors
    /// [`ErrorKind::SourceChanged`] for an incomplete step; [`ErrorKind::Damaged`] for a damaged one.
    pub(crate) fn ready_there(&self, announcement: &Announcement) -> Result<Option<Ready>> {
        let Some(below) = self.path_below(&announcement.path) else {
            return Ok(None);
        };
        if below.is_empty() {
            return Err(Error::at(ErrorKind::Usage, "cannot announce the path", &announcement.path)
                .because("it is the watched directory")
                .hint("announce the step's own path"));
        }
        // An announcement proves as much as a configured rule.
        let Some(profile) = self.choice.profile.as_ref().filter(|profile| profile.names.is_none()) else {
            return Ok(None);
        };
        let is_there = |step: &&FoundStep| step.members.contains(&below);
        let Some(found) = self.seen.found.steps.iter().find(is_there) else {
            return Ok(None);
        };
        let mut faults: Vec<String> = found.reasons().to_vec();
        if faults.is_empty() {
            faults = match SurveyFiles::open(&self.directory) {
                Ok(files) => check_extent(self.extent, found, &self.seen.survey, &files).damage(),
                Err(error) => vec![error.to_string()],
            };
        }
        refuse_faults(&announcement.path, found.is_complete(), &faults)?;
        let identity = selection::identity(profile, &self.directory, found);
        let (step, mut checkpoint) = match (identity, announcement.step) {
            (Ok((step, checkpoint)), given) => (given.or(step), checkpoint),
            (Err(_), Some(given)) => {
                let by_name = Checkpoint::of_path(&announcement.path, name_of(announcement)?);
                let links = selection::links_of(profile, found);
                (Some(given), Checkpoint { links, ..by_name })
            }
            (Err(why), None) => return Err(unnumbered(&announcement.path, &why)),
        };
        if let Some(name) = &announcement.name {
            checkpoint.name.clone_from(name);
        }
        let files = SurveyFiles::open(&self.directory)?;
        let best = self.seen.found.best_of(found, profile, &self.seen.survey, &files);
        selection::add_names(&mut checkpoint, best, &self.seen.found, found);
        ready(announcement, found.path.clone(), step, checkpoint).map(Some)
    }

    /// Returns the path relative to the watched directory, if it is below it.
    fn path_below(&self, path: &Path) -> Option<String> {
        if let Ok(below) = path.strip_prefix(&self.directory) {
            return below.to_str().map(str::to_owned);
        }
        // Either may be reached through a link.
        let directory = self.directory.canonicalize().ok()?;
        let path = path.parent()?.canonicalize().ok()?.join(path.file_name()?);
        path.strip_prefix(directory).ok()?.to_str().map(str::to_owned)
    }

    /// Returns the key in the watched directory of an announced step that the rules know by its name alone.
    pub(crate) fn key_of(&self, path: &Path) -> String {
        self.path_below(path).unwrap_or_default()
    }
}

/// Returns an announced step that no rule of a watched directory covers: everything at its path. Blocks.
///
/// # Errors
/// [`ErrorKind::Damaged`] for a damaged step; [`ErrorKind::Usage`] for one without a number.
pub(crate) fn ready_alone(
    announcement: &Announcement,
    key: String,
    profiles: &ProfileSet,
    profile: Option<&str>,
    extent: Extent,
) -> Result<Ready> {
    let path = &announcement.path;
    let name = name_of(announcement)?.to_owned();
    let checked = check_source(path, profiles, profile, extent, clock::now());
    let mut checkpoint = Checkpoint::of_path(path, name.as_str());
    checkpoint.links = checked.links(checkpoint.links);
    checkpoint.origin.rewritten = checked.origin.rewritten;
    checkpoint.origin.best.clone_from(&checked.origin.best);
    let step = match announcement.step {
        Some(step) => Some(step),
        None if checked.origin.rewritten => checked.stated_step,
        None => {
            let number = step_name::parse(&name);
            let number = number.ok_or_else(|| unnumbered(path, "its name contains no step number"))?;
            Some(Step::new(number)?)
        }
    };
    refuse_faults(path, true, &checked.faults)?;
    ready(announcement, key, step, checkpoint)
}

fn ready(
    announcement: &Announcement,
    key: String,
    step: Option<Step>,
    mut checkpoint: Checkpoint,
) -> Result<Ready> {
    checkpoint.metrics.clone_from(&announcement.metrics);
    Ok(Ready {
        key,
        path: announcement.path.clone(),
        step,
        tree: Arc::new(checkpoint.scan()?),
        checkpoint,
        early: None,
    })
}

fn name_of(announcement: &Announcement) -> Result<&str> {
    let own = || announcement.path.file_name().and_then(|name| name.to_str());
    announcement.name.as_deref().or_else(own).ok_or_else(|| {
        Error::at(ErrorKind::Usage, "cannot name the step", &announcement.path)
            .because("the last component of its path is not UTF-8")
    })
}

fn unnumbered(path: &Path, why: &str) -> Error {
    Error::at(ErrorKind::Usage, "cannot determine the step number", path)
        .because(why)
        .hint("announce it with its step number")
}

fn refuse_faults(path: &Path, is_complete: bool, faults: &[String]) -> Result<()> {
    if faults.is_empty() {
        return Ok(());
    }
    let (kind, what) = if is_complete {
        (ErrorKind::Damaged, "refusing to seal a damaged step")
    } else {
        (ErrorKind::SourceChanged, "refusing to seal an incomplete step")
    };
    let told: Vec<&str> = faults.iter().take(MAX_FAULTS).map(String::as_str).collect();
    let more = match faults.len().saturating_sub(MAX_FAULTS) {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    Err(Error::at(kind, what, path)
        .because(format!("{}{more}", told.join("; ")))
        .hint("save it again, or announce it after the save has finished"))
}
