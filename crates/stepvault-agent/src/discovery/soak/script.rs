//! A trainer's future actions and their times, as data.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

/// A trainer's action in one instant. Paths are relative to the watched directory.
#[derive(Debug, Clone)]
pub(super) enum Act {
    /// Creates a directory that does not exist yet.
    Directory(String),
    /// Opens a file for writing, which empties it.
    Begin(String),
    /// Appends to a file.
    Append(String, Vec<u8>),
    /// Renames a path over an existing one.
    Rename(String, String),
    /// Creates a link under a temporary name and renames it into place.
    Link(String, String),
    /// Removes a file.
    RemoveFile(String),
    /// Removes an empty directory.
    RemoveDirectory(String),
    /// Every byte of the step exists at these paths: the world records it. Takes no time.
    Whole(Vec<String>),
    /// The save is over: from now on the step may be sealed. Takes no time.
    Finished(String),
}

/// An event some time after the previous one.
#[derive(Debug, Clone)]
pub(super) struct Event {
    pub(super) wait: Duration,
    pub(super) act: Act,
}

/// Builder of a trainer's events.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) events: VecDeque<Event>,
    pub(super) random: Random,
    files: BTreeSet<String>,
    directories: BTreeSet<String>,
    wait: Duration,
    writes: u64,
}

impl Script {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            events: VecDeque::new(),
            random: Random(seed),
            files: BTreeSet::new(),
            directories: BTreeSet::new(),
            wait: Duration::ZERO,
            writes: 0,
        }
    }

    /// Adds a pause of at most this long.
    pub(super) fn pause(&mut self, most: Duration) {
        self.wait += most.mul_f64(self.random.share());
    }

    /// Adds a pause of exactly this long.
    pub(super) fn wait(&mut self, pause: Duration) {
        self.wait += pause;
    }

    /// Returns a text that was never written before, of up to three thousand letters.
    pub(super) fn text(&mut self) -> String {
        self.writes += 1;
        let length = 10 + self.random.below(3000);
        format!("{:016}", self.writes).repeat(length / 16 + 1)
    }

    pub(super) fn directory(&mut self, path: &str) {
        if self.directories.insert(path.to_owned()) {
            self.act(Act::Directory(path.to_owned()));
        }
    }

    /// Writes a file in a few pieces, replacing an existing one, with a stall of at most `stall` before each.
    pub(super) fn write(&mut self, path: &str, bytes: &[u8], stall: Duration) {
        self.files.insert(path.to_owned());
        self.pause(stall);
        self.act(Act::Begin(path.to_owned()));
        let pieces = 1 + self.random.below(3);
        for piece in bytes.chunks(bytes.len().div_ceil(pieces)) {
            self.pause(stall);
            self.act(Act::Append(path.to_owned(), piece.to_vec()));
        }
    }

    /// Whether such a file exists by now.
    pub(super) fn is_file(&self, path: &str) -> bool {
        self.files.contains(path)
    }

    pub(super) fn rename(&mut self, from: &str, to: &str) {
        for paths in [&mut self.files, &mut self.directories] {
            let moved = |path: &String| {
                let rest = path.strip_prefix(from)?;
                (rest.is_empty() || rest.starts_with('/')).then(|| format!("{to}{rest}"))
            };
            *paths = paths.iter().map(|path| moved(path).unwrap_or(path.clone())).collect();
        }
        self.act(Act::Rename(from.to_owned(), to.to_owned()));
    }

    pub(super) fn link(&mut self, path: &str, target: &str) {
        self.act(Act::Link(path.to_owned(), target.to_owned()));
    }

    /// Deletes a file, or a directory file by file, as `rmtree` does.
    pub(super) fn remove(&mut self, path: &str, stall: Duration) {
        let prefix = format!("{path}/");
        let is_in = |other: &String| other == path || other.starts_with(&prefix);
        let files: Vec<String> = self.files.iter().filter(|other| is_in(other)).cloned().collect();
        let directories: Vec<String> =
            self.directories.iter().filter(|other| is_in(other)).cloned().collect();
        for file in files {
            self.pause(stall);
            self.files.remove(&file);
            self.act(Act::RemoveFile(file));
        }
        for directory in directories.into_iter().rev() {
            self.pause(stall);
            self.directories.remove(&directory);
            self.act(Act::RemoveDirectory(directory));
        }
    }

    /// Begins to delete a step and is killed: the step stays, without its first file.
    pub(super) fn begin_to_remove(&mut self, path: &str) {
        let prefix = format!("{path}/");
        let first = self.files.iter().find(|other| other.starts_with(&prefix)).cloned();
        if let Some(first) = first {
            self.files.remove(&first);
            self.act(Act::RemoveFile(first));
        }
    }

    pub(super) fn whole(&mut self, path: &str) {
        self.whole_members(&[path]);
    }

    pub(super) fn whole_members(&mut self, paths: &[&str]) {
        let paths = paths.iter().map(|path| (*path).to_owned());
        self.at_once(Act::Whole(paths.collect()));
    }

    pub(super) fn finished(&mut self, path: &str) {
        self.at_once(Act::Finished(path.to_owned()));
    }

    fn at_once(&mut self, act: Act) {
        let wait = Duration::ZERO;
        self.events.push_back(Event { wait, act });
    }

    fn act(&mut self, act: Act) {
        // No two events in one instant: files are stamped with it.
        let wait = std::mem::take(&mut self.wait) + Duration::from_millis(1);
        self.events.push_back(Event { wait, act });
    }
}

/// Random numbers, the same for the same seed.
#[derive(Debug)]
pub(super) struct Random(u64);

impl Random {
    fn draw(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(super) fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.draw() >> 33).unwrap() % limit
    }

    /// Returns true once in so many times, on average.
    pub(super) fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// Returns a number from 0 to 1.
    fn share(&mut self) -> f64 {
        f64::from(u32::try_from(self.draw() >> 32).unwrap()) / f64::from(u32::MAX)
    }
}
