//! One trainer, one watched directory, one vault, and a clock that stands still between two events.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use stepvault_core::ErrorKind;
use stepvault_core::config::{Completion, LinkPolicy, RunSettings};
use stepvault_core::ids::{Attempt, NodeName, RunName, Step, StepId};
use stepvault_core::manifest::Shape;
use stepvault_core::timestamp::Timestamp;
use stepvault_formats::find::Extent;
use stepvault_local::seal::{SealRequest, seal};
use stepvault_local::sealed::SealedStep;
use stepvault_local::source::SourceFile;
use stepvault_local::vault::Vault;
use tokio::time::Instant;

use super::script::{Act, Event, Random, Script};
use crate::discovery::{Discovery, EarlyPlace, Ready, ScanMode};
use crate::pause::LONGEST;

const POLL: Duration = Duration::from_secs(5);
/// A save that exists for this long after its end must be sealed: its quiet time, two scans, the minute for which a
/// handled step is not scanned, and a pause after a race.
const ENOUGH: Duration = Duration::from_mins(2);

type Files = BTreeMap<String, Vec<u8>>;

/// One save of a step.
#[derive(Debug)]
struct Version {
    members: Vec<String>,
    files: Files,
    finished: Option<Instant>,
    /// When the trainer began to overwrite or delete it.
    ended: Option<Instant>,
    sealed: bool,
}

/// Counts what happened.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) sealed: usize,
    pub(super) uploaded: usize,
}

pub(super) struct World {
    _place: tempfile::TempDir,
    root: PathBuf,
    vault: Vault,
    discovery: Discovery,
    events: VecDeque<Event>,
    random: Random,
    next_event: Instant,
    versions: BTreeMap<String, Vec<Version>>,
    waiting: Vec<(SealedStep, Files)>,
    skipped: Vec<String>,
    begun: (Instant, SystemTime),
    tally: Tally,
    poll: Duration,
    enough: Duration,
}

impl World {
    /// Scans as often as a kernel that reports each change, and requires every save to be sealed.
    pub(super) fn watched_closely(self) -> Self {
        Self { poll: Duration::from_millis(100), enough: Duration::ZERO, ..self }
    }

    pub(super) fn new(script: Script, completion: &Completion, pattern: Option<&str>) -> Self {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("outputs");
        std::fs::create_dir(&root).unwrap();
        let mut run = RunSettings::new(run_name());
        run.watch = Some(root.clone());
        run.complete = completion.clone();
        run.pattern = pattern.map(str::to_owned);
        // In the past, so that sealing need not wait for the clock of the real files to tick.
        let begun = SystemTime::now() - Duration::from_hours(1000);
        let vault = Vault::open_or_create(&place.path().join("vault")).unwrap();
        let discovery = Discovery::new(&run, &Arc::default(), ScanMode::Continuous, Extent::Whole);
        let mut discovery = discovery.unwrap().unwrap();
        discovery.link_early(EarlyPlace { vault: vault.clone(), links: LinkPolicy::Auto, low_bytes: None });
        Self {
            vault,
            discovery,
            poll: POLL,
            enough: ENOUGH,
            next_event: Instant::now(),
            events: script.events,
            random: script.random,
            versions: BTreeMap::new(),
            waiting: Vec::new(),
            skipped: Vec::new(),
            begun: (Instant::now(), begun),
            tally: Tally::default(),
            root,
            _place: place,
        }
    }

    /// Runs until nothing happens any more, and checks that nothing was missed.
    pub(super) async fn live(mut self) -> Tally {
        let mut next_look = Instant::now();
        let mut end = None;
        while end.is_none_or(|end| Instant::now() < end) {
            let event = (!self.events.is_empty()).then_some(self.next_event);
            if event.is_none() {
                end = end.or(Some(Instant::now() + ENOUGH + self.poll));
            }
            let target = event.map_or(next_look, |event| event.min(next_look));
            tokio::time::advance(target.saturating_duration_since(Instant::now())).await;
            if event.is_some_and(|event| event <= Instant::now()) {
                self.act();
            } else {
                next_look = self.look().await;
            }
        }
        while !self.waiting.is_empty() {
            self.upload_one();
        }
        for (path, versions) in &self.versions {
            for version in versions {
                let Some(finished) = version.finished else {
                    continue;
                };
                let stayed = version.ended.unwrap_or_else(Instant::now) - finished;
                assert!(
                    version.sealed || stayed < self.enough,
                    "{path} was whole for {stayed:?} and not sealed; skipped: {:#?}",
                    self.skipped
                );
            }
        }
        self.tally
    }

    /// Scans; returns the latest time of the next scan.
    async fn look(&mut self) -> Instant {
        let now = Timestamp::from(self.now());
        let vault = self.vault.clone();
        let sealed = || vault.steps(&run_name()).unwrap().steps;
        let look = self.discovery.scan(now, sealed);
        assert!(look.fault.is_none(), "{:?}", look.fault);
        let said = look.skipped.into_iter();
        self.skipped.extend(said.map(|(path, why)| format!("{}: {why}", path.display())));
        for ready in &look.ready {
            self.take_over(ready).await;
        }
        if self.random.once_in(3) && !self.waiting.is_empty() {
            self.upload_one();
        }
        let regular = Instant::now() + self.poll;
        let next = [look.again_at, self.discovery.next_try()].into_iter().flatten().min();
        let shortest = Instant::now() + Duration::from_millis(50);
        next.map_or(regular, |next| next.min(regular)).max(shortest)
    }

    /// Seals as the agent does, while the trainer continues from time to time.
    async fn take_over(&mut self, ready: &Ready) {
        self.race().await;
        self.race().await;
        let attempts = self.vault.steps(&run_name()).unwrap().steps;
        let next = || {
            let numbers = attempts.iter().map(|step| step.id().step.number());
            Step::new(numbers.max().unwrap_or_default() + 1).unwrap()
        };
        let number = ready.step.unwrap_or_else(next);
        let earlier = attempts.iter().filter(|step| step.id().step == number).count();
        let request = SealRequest {
            run: run_name(),
            attempt: stepvault_local::seal_record::AttemptOrigin::default(),
            id: StepId::new(Attempt::new(u32::try_from(earlier + 1).unwrap()).unwrap(), number),
            writer: stepvault_core::nodes::Writer::single_node(NodeName::new("node-0").unwrap()),
            checkpoint: ready.checkpoint.clone(),
            digest: stepvault_core::digest::DigestAlgorithm::Sha256,
            expected: Some(Arc::clone(&ready.tree)),
            completes: None,
        };
        match seal(&self.vault, &request) {
            Ok(sealed) => {
                self.check(ready, sealed.step);
                self.discovery.handled(ready);
            }
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::SourceChanged | ErrorKind::NotFound), "{error}");
                self.discovery.failed(ready, LONGEST, error.to_string());
            }
        }
    }

    /// Checks that the sealed step is a save that was complete.
    fn check(&mut self, ready: &Ready, step: SealedStep) {
        let files = match step.record().shape {
            Shape::File => files_of(&step.data_root().join(step.name())),
            Shape::Directory => files_of(&step.data_root()),
        };
        // A path without a number is stored together with the newest numbered step.
        let is_several = !step.record().members.is_empty();
        let is_version = |version: &&mut Version| {
            let is_own = |path: &&String| {
                let mut members = version.members.iter();
                !is_several
                    || members.any(|member| {
                        let rest = path.strip_prefix(member.as_str());
                        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
                    })
            };
            files.iter().filter(|(path, _)| is_own(path)).eq(&version.files)
        };
        let versions = self.versions.get_mut(&ready.key);
        let same = versions.and_then(|versions| versions.iter_mut().find(is_version));
        let Some(version) = same else {
            let sizes: Vec<_> = files.iter().map(|(path, bytes)| (path, bytes.len())).collect();
            panic!("{} was sealed, and was never whole like this: {sizes:?}", ready.key);
        };
        version.sealed = true;
        self.tally.sealed += 1;
        self.waiting.push((step, files));
    }

    /// Reads a sealed step as an upload does, some time later: it reads what was sealed, or detects the change.
    fn upload_one(&mut self) {
        let (step, sealed) = self.waiting.remove(0);
        let mut changed = false;
        for file in &step.record().files {
            let read = SourceFile::open(&step.file_path(&file.path), file).and_then(|source| {
                let mut bytes = vec![0; usize::try_from(file.size_bytes).unwrap()];
                source.read_at(0, &mut bytes)?;
                source.check_unchanged()?;
                Ok(bytes)
            });
            match read {
                Ok(bytes) => assert_eq!(Some(&bytes), sealed.get(file.path.as_str()), "{}", file.path),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::SourceChanged, "{error}");
                    changed = true;
                }
            }
        }
        // Data that the trainer overwrote through a hard link is lost, and that is detected.
        self.tally.uploaded += usize::from(!changed);
    }

    /// Lets the trainer be quicker than the agent.
    async fn race(&mut self) {
        if self.random.once_in(4) && !self.events.is_empty() {
            tokio::time::advance(Duration::from_millis(1)).await;
            self.act();
        }
    }

    /// Runs the next event, and those after it that take no time.
    fn act(&mut self) {
        if let Some(event) = self.events.pop_front() {
            self.apply(&event.act);
        }
        while let Some(event) = self.events.pop_front_if(|event| event.wait.is_zero()) {
            self.apply(&event.act);
        }
        self.next_event = Instant::now() + self.events.front().map_or(Duration::ZERO, |event| event.wait);
    }

    fn apply(&mut self, act: &Act) {
        let at = |path: &str| self.root.join(path);
        let touched: &[&str] = match act {
            Act::Directory(path) => {
                std::fs::create_dir(at(path)).unwrap();
                &[path]
            }
            Act::Begin(path) => {
                std::fs::write(at(path), "").unwrap();
                &[path]
            }
            Act::Append(path, bytes) => {
                let mut file = std::fs::File::options().append(true).open(at(path)).unwrap();
                std::io::Write::write_all(&mut file, bytes).unwrap();
                &[path]
            }
            Act::Rename(from, to) => {
                std::fs::rename(at(from), at(to)).unwrap();
                &[from, to]
            }
            Act::Link(path, target) => {
                let temporary = format!("{path}_temp");
                std::os::unix::fs::symlink(target, at(&temporary)).unwrap();
                std::fs::rename(at(&temporary), at(path)).unwrap();
                &[]
            }
            Act::RemoveFile(path) => {
                std::fs::remove_file(at(path)).unwrap();
                &[path]
            }
            Act::RemoveDirectory(path) => {
                std::fs::remove_dir(at(path)).unwrap();
                &[path]
            }
            Act::Whole(members) => {
                let files = match members.as_slice() {
                    [path] => files_of(&at(path)),
                    _ => self.files_of_members(members),
                };
                self.versions.entry(members[0].clone()).or_default().push(Version {
                    members: members.clone(),
                    files,
                    finished: None,
                    ended: None,
                    sealed: false,
                });
                return;
            }
            Act::Finished(path) => {
                let version = self.versions.get_mut(path).and_then(|versions| versions.last_mut()).unwrap();
                version.finished = Some(Instant::now());
                return;
            }
        };
        for path in touched {
            self.stamp(path, matches!(act, Act::Rename(..)));
            for version in self.versions.values_mut().filter_map(|versions| versions.last_mut()) {
                let is_in = |member: &String| {
                    let rest = path.strip_prefix(member.as_str());
                    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
                };
                if version.members.iter().any(is_in) {
                    version.ended.get_or_insert_with(Instant::now);
                }
            }
        }
    }

    /// Returns them by their paths in the watched directory.
    fn files_of_members(&self, members: &[String]) -> Files {
        let inside = |member: &String| {
            if self.root.join(member).is_file() {
                let bytes = std::fs::read(self.root.join(member)).unwrap();
                return vec![(member.clone(), bytes)];
            }
            let files = files_of(&self.root.join(member)).into_iter();
            files.map(|(path, bytes)| (format!("{member}/{path}"), bytes)).collect::<Vec<_>>()
        };
        members.iter().flat_map(inside).collect()
    }

    /// Sets the current time on what was written and on its directory. A rename changes only the directory's time.
    fn stamp(&self, path: &str, renamed: bool) {
        let path = self.root.join(path);
        let mut written = vec![path.parent().unwrap()];
        if path.is_file() && !renamed {
            written.push(&path);
        }
        for path in written {
            std::fs::File::open(path).unwrap().set_modified(self.now()).unwrap();
        }
    }

    fn now(&self) -> SystemTime {
        let (instant, time) = self.begun;
        time + instant.elapsed()
    }
}

fn run_name() -> RunName {
    RunName::new("soak").unwrap()
}

/// Returns the files of a directory, or the single file, by path.
fn files_of(root: &Path) -> Files {
    let mut files = Files::new();
    let mut left = vec![root.to_owned()];
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let inside = path.strip_prefix(root).unwrap();
        let name = if inside.as_os_str().is_empty() { Path::new(path.file_name().unwrap()) } else { inside };
        files.insert(name.display().to_string(), std::fs::read(&path).unwrap());
    }
    files
}
