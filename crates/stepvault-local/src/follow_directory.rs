//! The directory of a follower: the steps that it restored there, what it has finished, and the removal of older ones.
//!
//! ```text
//! DIR/000000000100.a1/step_100/…      a followed step, below a name that is never used again
//! DIR/latest                          a link to the newest of them
//! DIR/.stepvault-follow/state.json    what is finished
//! DIR/.stepvault-follow/lock          one follower at a time
//! DIR/.stepvault-follow/incoming/…    a restore in progress
//! DIR/.stepvault-follow/placed/…      one file for each step that was placed, with the entries that it consists of
//! ```
//!
//! A step is restored out of sight and placed by one rename. Only entries that were placed and are unchanged since are
//! ever removed.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType};
use rustix::io::Errno;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use stepvault_core::follow::{FollowRules, FollowedSteps};
use stepvault_core::{Error, ErrorKind, RelativePath, Result, RunName, StepId, Timestamp};

use crate::beneath::{Beneath, Facts, name_of};
use crate::durable::CreateOutcome;
use crate::errors::IoAt as _;
use crate::lock::{self, Lock};
use crate::rename::{self, Place};
use crate::vault::{entries, file_name, is_temporary};
use crate::{durable, remove, tree};

/// The directory of the follower's own files.
const OWN: &str = ".stepvault-follow";
/// The link to the newest step.
pub const LATEST: &str = "latest";
/// Maximum length of a file of the follower: a million entries with long paths.
const MAX_BYTES: u64 = 1 << 30;
const WHAT: &str = "cannot follow into the directory";

/// What is kept of a follower between two starts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct State {
    run: RunName,
    /// The newest finished step. Without `each`, all older ones are finished too.
    #[serde(default)]
    finished: Option<String>,
    /// The steps that were finished one by one, above `all-until`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    each: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    all_until: Option<String>,
    #[serde(default)]
    skipped: Vec<String>,
    /// The last target of the link, and the one before: a killed follower may have written either.
    #[serde(default)]
    latest: Vec<String>,
}

impl State {
    fn followed(&self) -> FollowedSteps {
        let id = |label: &String| StepId::from_label(label);
        let all_until = if self.each.is_empty() { &self.finished } else { &self.all_until };
        FollowedSteps {
            all_until: all_until.as_ref().and_then(id),
            finished: self.each.iter().filter_map(id).collect(),
            skipped: self.skipped.iter().filter_map(id).collect(),
        }
    }
}

/// A step that was placed: the entries that it consists of.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct PlacedStep {
    /// The path that is followed, below the directory.
    path: PathBuf,
    files: Vec<PlacedFile>,
    links: Vec<(RelativePath, String)>,
    directories: Vec<RelativePath>,
}

/// A file by what changes when somebody writes or replaces it.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct PlacedFile {
    path: RelativePath,
    size_bytes: u64,
    mtime: Timestamp,
    inode: u64,
}

/// A step that was removed because newer ones are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemovedStep {
    /// The step.
    pub id: StepId,
    /// Its directory.
    pub path: PathBuf,
    /// Whether the directory stays, because it holds entries that were changed or did not come with the step.
    pub left_others: bool,
}

/// An open directory of a follower, locked for as long as this exists.
#[derive(Debug)]
pub struct FollowDirectory {
    path: PathBuf,
    run: RunName,
    followed: FollowedSteps,
    latest: Vec<String>,
    _lock: Lock,
}

impl FollowDirectory {
    /// Opens the directory for a run, and creates it if it does not exist.
    ///
    /// # Errors
    /// [`ErrorKind::Held`] if another follower uses it; [`ErrorKind::Usage`] if it follows another run.
    pub fn open(path: &Path, run: &RunName) -> Result<Self> {
        durable::create_directories(path)?;
        let path = path.canonicalize().at(WHAT, path)?;
        let own = path.join(OWN);
        durable::create_directories(&own)?;
        let lock_path = own.join("lock");
        let lock = lock::take(&lock_path)?.ok_or_else(|| {
            lock::held(WHAT, &lock_path).hint("let each follower have a directory of its own")
        })?;
        let state = read::<State>(&own.join("state.json"))?;
        if let Some(state) = state.as_ref().filter(|state| state.run != *run) {
            return Err(Error::at(ErrorKind::Usage, WHAT, &path)
                .because(format!("it follows run '{}'", state.run))
                .hint("give another directory with --into"));
        }
        let (followed, latest) = state.map(|state| (state.followed(), state.latest)).unwrap_or_default();
        let directory = Self { path, run: run.clone(), followed, latest, _lock: lock };
        directory.write()?;
        Ok(directory)
    }

    /// Returns the directory, with links resolved.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the steps that need no further work.
    pub fn followed(&self) -> &FollowedSteps {
        &self.followed
    }

    /// Returns the steps that were placed and not removed since.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn placed_steps(&self) -> Result<BTreeSet<StepId>> {
        let paths = entries(&self.own("placed"))?;
        let label = |path: &PathBuf| StepId::from_label(file_name(path).strip_suffix(".json")?);
        Ok(paths.iter().filter(|path| !is_temporary(path)).filter_map(label).collect())
    }

    /// Records that a step is finished.
    ///
    /// # Errors
    /// When the record cannot be written.
    pub fn finish(&mut self, id: StepId, rules: FollowRules) -> Result<()> {
        self.followed.finish(id, rules);
        self.write()
    }

    /// Records that a step cannot be followed.
    ///
    /// # Errors
    /// When the record cannot be written.
    pub fn skip(&mut self, id: StepId) -> Result<()> {
        self.followed.skipped.insert(id);
        self.write()
    }

    /// Returns the path of a step that was placed before, if every entry of it is unchanged.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn unchanged(&self, id: StepId) -> Result<Option<PathBuf>> {
        let Some(placed) = self.placed(id)? else {
            return Ok(None);
        };
        let Ok(beneath) = Beneath::open(&self.step(id)) else {
            return Ok(None);
        };
        for file in &placed.files {
            if !is_same_file(&beneath, file).at(WHAT, &self.step(id))? {
                return Ok(None);
            }
        }
        for (path, target) in &placed.links {
            if !is_same_link(&beneath, path, target).at(WHAT, &self.step(id))? {
                return Ok(None);
            }
        }
        Ok(Some(self.path.join(&placed.path)))
    }

    /// Returns the directory into which a step is restored before it is placed. What was fetched before of this step is
    /// kept; what was fetched of another one is removed.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if something else has the step's name.
    pub fn begin(&self, id: StepId) -> Result<PathBuf> {
        if self.placed(id)?.is_some() {
            self.remove_placed(id)?;
        }
        let step = self.step(id);
        if step.symlink_metadata().is_ok() {
            return Err(Error::at(ErrorKind::Conflict, "cannot place the step", &step)
                .because("something is there that this command did not put there")
                .hint("move it away"));
        }
        let incoming = self.own("incoming");
        let own = incoming.join(id.label());
        if !own.is_dir() {
            remove::tree(&incoming)?;
            durable::create_directories(&incoming)?;
            // With the mode that the process gives to directories: readers of the step may be other users.
            std::fs::create_dir(&own).at(WHAT, &own)?;
        }
        Ok(own)
    }

    /// Places a restored step and returns its path. `restored` is its path in the directory that [`Self::begin`] returned.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if something else has the step's name by now.
    pub fn place(&self, id: StepId, restored: &Path) -> Result<PathBuf> {
        let incoming = self.own("incoming");
        let (own, step) = (incoming.join(id.label()), self.step(id));
        let path = restored.strip_prefix(&incoming).map_err(|_| {
            Error::at(ErrorKind::Failed, WHAT, restored).because("the step was restored to another place")
        })?;
        let found = tree::scan(&own)?;
        let files = found.files.into_iter().map(|file| PlacedFile {
            path: file.path,
            size_bytes: file.size_bytes,
            mtime: file.mtime,
            inode: file.inode,
        });
        let placed = PlacedStep {
            path: path.to_owned(),
            files: files.collect(),
            links: found.symlinks.into_iter().map(|link| (link.path, link.target)).collect(),
            directories: found.directories.into_iter().filter_map(|directory| directory.path).collect(),
        };
        durable::create_directories(&self.own("placed"))?;
        // Before the step: what is placed can always be removed again.
        durable::replace(&self.placed_file(id), &encode(&placed)?)?;
        match durable::rename_new("cannot place the step", &own, &step)? {
            CreateOutcome::Written => {}
            CreateOutcome::Exists => {
                durable::remove_file(&self.placed_file(id))?;
                return Err(Error::at(ErrorKind::Conflict, "cannot place the step", &step)
                    .because("something is there that this command did not put there")
                    .hint("move it away"));
            }
        }
        durable::fsync_directory(&self.path)?;
        Ok(self.path.join(&placed.path))
    }

    /// Lets the link `latest` point to a placed step, unless a newer one is placed. Returns `false`, and changes nothing,
    /// if something else has that name.
    ///
    /// # Errors
    /// When the link cannot be written.
    pub fn point_to(&mut self, id: StepId, path: &Path) -> Result<bool> {
        if self.placed_steps()?.last().is_some_and(|newest| *newest > id) {
            return Ok(true);
        }
        let link = self.path.join(LATEST);
        let target = path.strip_prefix(&self.path).unwrap_or(path).to_string_lossy().into_owned();
        let found = match rustix::fs::readlink(&link, Vec::new()) {
            Ok(found) => Some(found.to_string_lossy().into_owned()),
            Err(Errno::NOENT) => None,
            Err(Errno::INVAL) => return Ok(false),
            Err(error) => return Err(error).at("cannot read the link", &link),
        };
        if found.as_ref() == Some(&target) {
            return Ok(true);
        }
        if let Some(found) = found {
            if !self.latest.contains(&found) {
                return Ok(false);
            }
            self.latest = vec![found];
        } else {
            self.latest.clear();
        }
        self.latest.push(target.clone());
        self.write()?;
        let (own, root) = (self.own(""), &self.path);
        let (own_open, root_open) =
            (Beneath::open(&own).at(WHAT, &own)?, Beneath::open(root).at(WHAT, root)?);
        let by_way_of = Place::new(&own_open, LATEST);
        rename::replace_link(by_way_of, Place::new(&root_open, LATEST), &target)
            .at("cannot write the link", &link)?;
        Ok(true)
    }

    /// Removes all placed steps but the newest `keep`. Returns those that were removed.
    ///
    /// # Invariants
    /// An entry is removed only if it was placed here and is unchanged since.
    ///
    /// # Errors
    /// When an entry cannot be removed.
    pub fn remove_older(&self, keep: usize) -> Result<Vec<RemovedStep>> {
        let steps = self.placed_steps()?;
        let older = steps.len().saturating_sub(keep);
        steps.into_iter().take(older).map(|id| self.remove_placed(id)).collect()
    }

    fn remove_placed(&self, id: StepId) -> Result<RemovedStep> {
        let (step, record) = (self.step(id), self.placed_file(id));
        let placed = self.placed(id)?;
        let beneath = match Beneath::open(&step) {
            Ok(beneath) => Some(beneath),
            // Somebody removed or replaced it.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => None,
            Err(error) => return Err(error).at("cannot remove the step", &step),
        };
        if let (Some(placed), Some(beneath)) = (placed, &beneath) {
            remove_entries(beneath, &placed).at("cannot remove the step", &step)?;
            // Fails if anything else is in it.
            let _ = std::fs::remove_dir(&step);
        }
        durable::fsync_directory(&self.path)?;
        durable::remove_file(&record)?;
        let left_others = step.symlink_metadata().is_ok();
        Ok(RemovedStep { id, path: step, left_others })
    }

    fn own(&self, name: &str) -> PathBuf {
        self.path.join(OWN).join(name)
    }

    fn step(&self, id: StepId) -> PathBuf {
        self.path.join(id.label())
    }

    fn placed_file(&self, id: StepId) -> PathBuf {
        self.own("placed").join(format!("{}.json", id.label()))
    }

    fn placed(&self, id: StepId) -> Result<Option<PlacedStep>> {
        read(&self.placed_file(id))
    }

    fn write(&self) -> Result<()> {
        let state = State {
            run: self.run.clone(),
            finished: self.followed.newest().map(StepId::label),
            each: self.followed.finished.iter().map(|id| id.label()).collect(),
            all_until: self.followed.all_until.map(StepId::label),
            skipped: self.followed.skipped.iter().map(|id| id.label()).collect(),
            latest: self.latest.clone(),
        };
        durable::replace(&self.own("state.json"), &encode(&state)?)
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let Some(bytes) = durable::read_bounded(path, MAX_BYTES)? else {
        return Ok(None);
    };
    serde_json::from_slice(&bytes).map(Some).map_err(|error| {
        Error::at(ErrorKind::Damaged, "cannot read a file of this command", path)
            .caused_by(error)
            .hint("remove it, and the steps in the directory that are no longer needed")
    })
}

fn encode(value: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(value)
        .map_err(|error| Error::new(ErrorKind::Failed, "cannot encode a file").caused_by(error))
}

fn is_same_file(beneath: &Beneath, file: &PlacedFile) -> rustix::io::Result<bool> {
    let Some(facts) = facts_of(beneath, &file.path)? else {
        return Ok(false);
    };
    Ok(facts.kind == FileType::RegularFile
        && (facts.size_bytes, facts.mtime, facts.inode) == (file.size_bytes, file.mtime, file.inode))
}

fn is_same_link(beneath: &Beneath, path: &RelativePath, target: &str) -> rustix::io::Result<bool> {
    if facts_of(beneath, path)?.is_none_or(|facts| facts.kind != FileType::Symlink) {
        return Ok(false);
    }
    let found = rustix::fs::readlinkat(beneath.parent_of(path)?, name_of(path), Vec::new())?;
    Ok(found.as_bytes() == target.as_bytes())
}

/// Returns the metadata of an entry; `None` if it, or a directory above it, is gone or is something else.
fn facts_of(beneath: &Beneath, path: &RelativePath) -> rustix::io::Result<Option<Facts>> {
    match beneath.parent_of(path) {
        Ok(parent) => Facts::at(parent, name_of(path)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes the entries that are unchanged, and the directories that are empty then.
fn remove_entries(beneath: &Beneath, placed: &PlacedStep) -> rustix::io::Result<()> {
    let unlink = |path: &RelativePath, flags: AtFlags| {
        let parent = beneath.parent_of(path)?;
        match rustix::fs::unlinkat(parent.as_fd(), name_of(path), flags) {
            Err(Errno::NOENT) => Ok(()),
            done => done,
        }
    };
    for file in &placed.files {
        if is_same_file(beneath, file)? {
            unlink(&file.path, AtFlags::empty())?;
        }
    }
    for (path, target) in &placed.links {
        if is_same_link(beneath, path, target)? {
            unlink(path, AtFlags::empty())?;
        }
    }
    // Each before the one that holds it.
    for directory in placed.directories.iter().rev() {
        match unlink(directory, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, clippy::unwrap_used)]
mod tests {
    use std::fs;

    use stepvault_core::{Attempt, Step};

    use super::*;

    fn id(step: u64) -> StepId {
        StepId::new(Attempt::FIRST, Step::new(step).unwrap())
    }

    const EACH: FollowRules = FollowRules { each: true, every: None };

    fn open(place: &Path) -> FollowDirectory {
        FollowDirectory::open(&place.join("dir"), &RunName::new("demo/a").unwrap()).unwrap()
    }

    /// Writes a step as a restore would, and places it.
    fn placed(directory: &FollowDirectory, step: u64) -> PathBuf {
        let target = directory.begin(id(step)).unwrap().join(format!("step_{step}"));
        fs::create_dir_all(target.join("sub/empty")).unwrap();
        fs::write(target.join("model.bin"), "weights").unwrap();
        fs::write(target.join("sub/state.json"), "{}").unwrap();
        std::os::unix::fs::symlink("model.bin", target.join("link")).unwrap();
        directory.place(id(step), &target).unwrap()
    }

    #[test]
    fn the_newest_steps_stay_and_older_ones_go() {
        let place = tempfile::tempdir().unwrap();
        let mut directory = open(place.path());
        for step in [1, 2, 3] {
            let path = placed(&directory, step);
            assert_eq!(path, directory.path().join(id(step).label()).join(format!("step_{step}")));
            assert!(directory.point_to(id(step), &path).unwrap());
            directory.finish(id(step), EACH).unwrap();
        }
        let removed = directory.remove_older(2).unwrap();
        assert_eq!(
            removed.iter().map(|step| (step.id, step.left_others)).collect::<Vec<_>>(),
            [(id(1), false)]
        );
        assert!(!directory.step(id(1)).exists() && directory.step(id(2)).exists());
        assert_eq!(fs::read_to_string(directory.path().join("latest/model.bin")).unwrap(), "weights");
        assert_eq!(directory.remove_older(2).unwrap(), []);
        assert_eq!(directory.placed_steps().unwrap(), BTreeSet::from([id(2), id(3)]));
        assert!(directory.unchanged(id(3)).unwrap().is_some());
        drop(directory);
        assert_eq!(open(place.path()).followed().newest(), Some(id(3)));
    }

    #[test]
    fn an_older_step_that_comes_later_is_placed_beside_the_newest() {
        let place = tempfile::tempdir().unwrap();
        let mut directory = open(place.path());
        for step in [3, 1] {
            let path = placed(&directory, step);
            assert!(directory.point_to(id(step), &path).unwrap());
        }
        assert_eq!(
            fs::read_link(directory.path().join(LATEST)).unwrap(),
            Path::new("000000000003.a1/step_3")
        );
        directory.remove_older(1).unwrap();
        assert_eq!(directory.placed_steps().unwrap(), BTreeSet::from([id(3)]));
    }

    #[test]
    fn a_record_of_an_earlier_version_keeps_its_place_and_a_later_one_can_be_read_by_it() {
        let place = tempfile::tempdir().unwrap();
        let mut directory = open(place.path());
        let path = directory.own("state.json");
        drop(directory);
        let record = r#"{"run":"demo/a","finished":"000000000005.a1","skipped":["000000000007.a1"]}"#;
        fs::write(&path, record).unwrap();
        directory = open(place.path());
        let mut expected = FollowedSteps {
            all_until: Some(id(5)),
            skipped: BTreeSet::from([id(7)]),
            ..FollowedSteps::default()
        };
        assert_eq!(*directory.followed(), expected);
        for step in [8, 6] {
            directory.finish(id(step), EACH).unwrap();
            expected.finished.insert(id(step));
        }
        drop(directory);
        assert_eq!(*open(place.path()).followed(), expected);
        let written: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        assert_eq!(written["finished"], "000000000008.a1");
    }

    #[test]
    fn what_was_not_placed_here_or_was_changed_is_never_removed() {
        let place = tempfile::tempdir().unwrap();
        let directory = open(place.path());
        let path = placed(&directory, 1);
        fs::write(path.join("results.json"), "of the evaluation").unwrap();
        fs::write(path.join("sub/state.json"), "changed").unwrap();
        fs::remove_file(path.join("link")).unwrap();
        std::os::unix::fs::symlink("results.json", path.join("link")).unwrap();
        fs::write(directory.path().join("mine.txt"), "mine").unwrap();
        fs::create_dir(directory.path().join("000000000007.a1")).unwrap();
        assert_eq!(directory.unchanged(id(1)).unwrap(), None);
        let removed = directory.remove_older(0).unwrap();
        assert!(removed[0].left_others);
        assert_eq!(removed.len(), 1);
        assert!(!path.join("model.bin").exists() && !path.join("sub/empty").exists());
        for kept in ["results.json", "sub/state.json", "link"] {
            assert!(path.join(kept).exists(), "{kept}");
        }
        assert!(directory.path().join("mine.txt").exists());
        assert!(directory.path().join("000000000007.a1").exists());
        let error = directory.begin(id(7)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict);
    }

    #[test]
    fn a_directory_that_became_a_link_is_not_followed_to_remove_what_it_points_to() {
        let place = tempfile::tempdir().unwrap();
        let directory = open(place.path());
        let path = placed(&directory, 1);
        let elsewhere = place.path().join("elsewhere");
        fs::rename(path.parent().unwrap(), &elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, directory.step(id(1))).unwrap();
        let removed = directory.remove_older(0).unwrap();
        assert!(removed[0].left_others);
        assert!(elsewhere.join("step_1/model.bin").exists());
    }

    #[test]
    fn another_link_or_file_called_latest_is_left() {
        let place = tempfile::tempdir().unwrap();
        let mut directory = open(place.path());
        let path = placed(&directory, 1);
        let latest = directory.path().join(LATEST);
        std::os::unix::fs::symlink("/etc", &latest).unwrap();
        assert!(!directory.point_to(id(1), &path).unwrap());
        assert_eq!(fs::read_link(&latest).unwrap(), Path::new("/etc"));
        fs::remove_file(&latest).unwrap();
        fs::write(&latest, "a file").unwrap();
        assert!(!directory.point_to(id(1), &path).unwrap());
        fs::remove_file(&latest).unwrap();
        assert!(directory.point_to(id(1), &path).unwrap());
        assert_eq!(fs::read_link(&latest).unwrap(), Path::new("000000000001.a1/step_1"));
    }

    #[test]
    fn a_restore_that_was_cut_off_is_continued_or_removed() {
        let place = tempfile::tempdir().unwrap();
        let directory = open(place.path());
        let first = directory.begin(id(1)).unwrap();
        fs::write(first.join("half"), "").unwrap();
        assert_eq!(directory.begin(id(1)).unwrap(), first);
        assert!(first.join("half").exists());
        directory.begin(id(2)).unwrap();
        assert!(!first.exists());
    }

    #[test]
    fn one_follower_and_one_run_use_a_directory() {
        let place = tempfile::tempdir().unwrap();
        let directory = open(place.path());
        let again = |run: &str| FollowDirectory::open(directory.path(), &RunName::new(run).unwrap());
        assert_eq!(again("demo/a").unwrap_err().kind(), ErrorKind::Held);
        let path = directory.path().to_owned();
        drop(directory);
        let error = FollowDirectory::open(&path, &RunName::new("demo/b").unwrap()).unwrap_err();
        assert!(error.to_string().contains("it follows run 'demo/a'"), "{error}");
    }
}
