//! A trainer: it writes whole checkpoints, with its own clock.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use stepvault_core::ids::Step;

use crate::content::{self, Content};
use crate::store::BEGINNING_SECONDS;

#[derive(Debug)]
pub struct Trainer {
    pub outputs: PathBuf,
    /// The step saved last.
    pub step: u64,
    numbers: fastrand::Rng,
    /// Whether its files are large now and then: enough for several parts.
    large_once: bool,
    /// Whether it writes every step over the previous one, in the same files.
    pub overwrites: bool,
}

/// The only directory of a trainer that overwrites.
pub const OVERWRITTEN: &str = "last";

const FILES: [&str; 4] = ["model.bin", "config.json", "rank_0/optim.bin", "rank_1/optim.bin"];
/// The number of newest steps that stay in its directory.
const KEPT: usize = 3;
/// The size of two parts.
const LARGE_BYTES: usize = (8 << 20) + 17;

impl Trainer {
    pub fn new(outputs: &Path, numbers: fastrand::Rng, large_once: bool, overwrites: bool) -> Self {
        Self { outputs: outputs.to_owned(), step: 0, numbers, large_once, overwrites }
    }

    /// Goes back to an earlier step, as a restart does.
    pub fn go_back(&mut self) {
        self.step = self.step.saturating_sub(10 * self.numbers.u64(1..4));
    }

    /// Writes the next step, or the last one once more.
    pub fn save(&mut self, elapsed: Duration, clock_off_seconds: i64, again: bool) -> (Step, Content) {
        if !again || self.step == 0 {
            self.step += 10;
        }
        let seconds = i64::try_from(BEGINNING_SECONDS + elapsed.as_secs()).unwrap() + clock_off_seconds;
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap());
        let unfinished = self.outputs.join(format!(".saving_{}", self.step));
        let _ = std::fs::remove_dir_all(&unfinished);
        std::fs::create_dir_all(&unfinished).unwrap();
        let count = self.numbers.usize(1..=FILES.len());
        for (index, name) in FILES[..count].iter().enumerate() {
            let path = unfinished.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            let size = if index == 0 && std::mem::take(&mut self.large_once) {
                LARGE_BYTES
            } else {
                self.numbers.usize(0..600)
            };
            let mut bytes = vec![0; size];
            self.numbers.fill(&mut bytes);
            std::fs::write(&path, bytes).unwrap();
            set(&path, 0o644, time);
        }
        // The directories' own times go into the manifest as well.
        for directory in ["rank_0", "rank_1", "."] {
            let path = unfinished.join(directory);
            if path.is_dir() {
                set(&path, 0o755, time);
            }
        }
        let content = content::of_directory(&unfinished);
        if self.overwrites {
            self.overwrite(&unfinished, time);
            return (Step::new(self.step).unwrap(), content);
        }
        let path = self.path(self.step);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::rename(&unfinished, &path).unwrap();
        self.forget_old();
        (Step::new(self.step).unwrap(), content)
    }

    /// Writes the files of `unfinished` over those of the previous step.
    fn overwrite(&self, unfinished: &Path, time: SystemTime) {
        let last = self.outputs.join(OVERWRITTEN);
        for name in FILES {
            let (from, to) = (unfinished.join(name), last.join(name));
            if from.is_file() {
                std::fs::create_dir_all(to.parent().unwrap()).unwrap();
                std::fs::write(&to, std::fs::read(from).unwrap()).unwrap();
                set(&to, 0o644, time);
            } else if to.is_file() {
                std::fs::remove_file(to).unwrap();
            }
        }
        for directory in ["rank_0", "rank_1", "."] {
            let path = last.join(directory);
            // A directory that is empty now was not saved.
            if path.is_dir() && std::fs::remove_dir(&path).is_err() {
                set(&path, 0o755, time);
            }
        }
        std::fs::remove_dir_all(unfinished).unwrap();
    }

    /// Writes this node's files of a step that several nodes write together; `common` is the same on all of them.
    pub fn save_part(
        &mut self,
        elapsed: Duration,
        clock_off_seconds: i64,
        step: u64,
        rank: usize,
        common: &[u8],
    ) -> (Step, Content) {
        self.step = step;
        let seconds = i64::try_from(BEGINNING_SECONDS + elapsed.as_secs()).unwrap() + clock_off_seconds;
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap());
        let unfinished = self.outputs.join(format!(".saving_{step}"));
        let _ = std::fs::remove_dir_all(&unfinished);
        std::fs::create_dir_all(&unfinished).unwrap();
        let mut own = vec![0; self.numbers.usize(1..600)];
        self.numbers.fill(&mut own);
        for (name, bytes) in
            [(format!("rank_{rank}.bin"), own.as_slice()), ("common.json".to_owned(), common)]
        {
            let path = unfinished.join(name);
            std::fs::write(&path, bytes).unwrap();
            set(&path, 0o644, time);
        }
        set(&unfinished, 0o755, time);
        let content = content::of_directory(&unfinished);
        let path = self.path(step);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::rename(&unfinished, &path).unwrap();
        self.forget_old();
        (Step::new(step).unwrap(), content)
    }

    fn path(&self, step: u64) -> PathBuf {
        self.outputs.join(format!("step_{step}"))
    }

    /// Returns the checkpoints in the trainer's directory, sorted.
    pub fn checkpoints(outputs: &Path) -> Vec<PathBuf> {
        let Ok(entries) = std::fs::read_dir(outputs) else {
            return Vec::new();
        };
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        paths.retain(|path| {
            let name = path.file_name().unwrap().to_str().unwrap();
            name.starts_with("step_") || name == OVERWRITTEN
        });
        paths.sort();
        paths
    }

    /// Returns the step that a checkpoint's name tells.
    pub fn step_of(path: &Path) -> Option<u64> {
        let name = path.file_name()?.to_str()?;
        name.strip_prefix("step_")?.parse().ok()
    }

    fn forget_old(&self) {
        let mut steps: Vec<u64> = Self::checkpoints(&self.outputs)
            .iter()
            .filter_map(|path| Self::step_of(path))
            .filter(|step| *step != self.step)
            .collect();
        steps.sort_unstable();
        for step in steps.iter().rev().skip(KEPT) {
            std::fs::remove_dir_all(self.path(*step)).unwrap();
        }
    }
}

fn set(path: &Path, mode: u32, time: SystemTime) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    let file = std::fs::File::open(path).unwrap();
    file.set_modified(time).unwrap();
}
