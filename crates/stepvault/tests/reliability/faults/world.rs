//! A node with its trainer's outputs and its vault, and the remote that it shares with others.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use stepvault_testkit::faults::Faults;
use stepvault_testkit::gcs::StrictGcs;
use stepvault_testkit::objects::{Objects, StoredObject};
use stepvault_testkit::process::{Outcome, TestCommand};
use stepvault_testkit::random::Random;
use stepvault_testkit::s3::StrictS3;
use stepvault_testkit::tree::{FileTree, files_below, read_tree, remove, write_tree};

use crate::PROGRAM;

pub(crate) const RUN: &str = "team/run";
pub(crate) const BUCKET: &str = "bucket";
/// The files of the steps. The largest takes more than one part.
pub(crate) const FILES: [(&str, usize); 4] = [
    ("model.bin", (8 << 20) + 70_000),
    ("optimizer/state.bin", 30_000),
    ("optimizer/rank_0.bin", 1),
    ("empty.json", 0),
];
/// The same without the large one, where nothing depends on it.
pub(crate) const SMALL: [(&str, usize); 3] =
    [("model.bin", 90_000), ("optimizer/state.bin", 30_000), ("empty.json", 0)];

/// Files in which nothing looks damaged.
pub(crate) const SOUND: [(&str, usize); 2] =
    [("model.bin", (8 << 20) + 70_000), ("optimizer/state.bin", 30_000)];

/// The remote of durable steps.
#[derive(Debug)]
pub(crate) enum Store {
    Directory(PathBuf),
    S3(StrictS3),
    Gcs(StrictGcs),
}

impl Store {
    /// A strict S3 with the bucket.
    pub(crate) fn s3() -> Self {
        let server = StrictS3::start();
        server.create_bucket(BUCKET);
        Self::S3(server)
    }

    /// A strict Google Cloud Storage with the bucket.
    pub(crate) fn gcs() -> Self {
        let server = StrictGcs::start();
        server.create_bucket(BUCKET);
        Self::Gcs(server)
    }

    /// Returns its name for the rows of the report.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Directory(_) => "file://",
            Self::S3(_) => "S3",
            Self::Gcs(_) => "GCS",
        }
    }

    /// Returns the address of the server.
    pub(crate) fn address(&self) -> SocketAddr {
        let endpoint = match self {
            Self::Directory(path) => panic!("{} has no address", path.display()),
            Self::S3(server) => server.endpoint(),
            Self::Gcs(server) => server.endpoint(),
        };
        endpoint.trim_start_matches("http://").parse().unwrap()
    }

    /// Returns the server's objects.
    pub(crate) fn objects(&self) -> &Objects {
        match self {
            Self::Directory(path) => panic!("{} has no server", path.display()),
            Self::S3(server) => server.objects(),
            Self::Gcs(server) => server.objects(),
        }
    }

    /// Returns the server's faults, and its log of requests.
    pub(crate) fn faults(&self) -> &Faults {
        match self {
            Self::Directory(path) => panic!("{} has no server", path.display()),
            Self::S3(server) => server.faults(),
            Self::Gcs(server) => server.faults(),
        }
    }

    /// Returns the pending uploads on the server: their keys and bytes.
    pub(crate) fn pending(&self) -> Vec<(String, u64)> {
        match self {
            Self::Directory(path) => panic!("{} has no server", path.display()),
            Self::S3(server) => {
                let pending = server.pending_uploads().into_iter();
                pending.map(|upload| (upload.key, upload.part_bytes)).collect()
            }
            Self::Gcs(server) => {
                let pending = server.pending_uploads().into_iter();
                pending.map(|upload| (upload.key, upload.stored_bytes)).collect()
            }
        }
    }

    /// Makes pending uploads look this much older.
    pub(crate) fn age_pending(&self, by: Duration) {
        match self {
            Self::Directory(path) => panic!("{} has no server", path.display()),
            Self::S3(server) => server.age_multipart_uploads(by),
            Self::Gcs(server) => server.age_multipart_uploads(by),
        }
    }
}

/// A node, its trainer, its vault and its remote.
#[derive(Debug)]
pub(crate) struct World {
    /// The node's working directory. What matters on a disk is below it, unless a test puts it elsewhere.
    pub(crate) root: PathBuf,
    pub(crate) vault: PathBuf,
    pub(crate) store: Store,
    /// The directory of restored steps that are only compared.
    pub(crate) scratch: PathBuf,
    /// The address at which clients find the server, if not its own.
    pub(crate) way: Option<SocketAddr>,
    /// Further options of the remote's URL: `&stall-timeout=2s`.
    pub(crate) options: String,
    files: &'static [(&'static str, usize)],
}

impl World {
    /// Returns a world in `root`, with a directory as the remote.
    pub(crate) fn with_directory(root: &Path, files: &'static [(&'static str, usize)]) -> Self {
        Self::of(root, Store::Directory(root.join("live/disk")), files)
    }

    /// Returns a world in `root`, with a strict S3 as the remote.
    pub(crate) fn with_s3(root: &Path, files: &'static [(&'static str, usize)]) -> Self {
        Self::of(root, Store::s3(), files)
    }

    pub(crate) fn of(root: &Path, store: Store, files: &'static [(&'static str, usize)]) -> Self {
        for directory in ["live/outputs", "scratch"] {
            fs::create_dir_all(root.join(directory)).unwrap();
        }
        Self {
            root: root.join("live"),
            vault: root.join("live/vault"),
            store,
            scratch: root.join("scratch"),
            way: None,
            options: String::new(),
            files,
        }
    }

    /// Returns the remote's name and URL.
    pub(crate) fn remote(&self) -> String {
        let address = || self.way.unwrap_or_else(|| self.store.address());
        let options = &self.options;
        match &self.store {
            Store::Directory(path) => format!("store=file://{}", path.display()),
            Store::S3(_) => format!(
                "store=s3://{BUCKET}/prefix?endpoint=http://{}&region=us-east-1&allow-http=true{options}",
                address()
            ),
            Store::Gcs(_) => format!("store=gs://{BUCKET}/prefix?endpoint=http://{}{options}", address()),
        }
    }

    /// Returns a command that names neither run nor tiers.
    pub(crate) fn order<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> TestCommand {
        let mut order = TestCommand::new(PROGRAM, &self.root).with(arguments);
        if let Store::S3(server) = &self.store {
            order
                .env("AWS_ACCESS_KEY_ID", server.access_key())
                .env("AWS_SECRET_ACCESS_KEY", server.secret_key());
        }
        order
    }

    /// Returns a command on the run, its vault and the remote.
    pub(crate) fn on_run<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> TestCommand {
        let remote = self.remote();
        self.on_vault(arguments).with(["--remote", &remote])
    }

    /// Returns a command on the run and its vault only.
    pub(crate) fn on_vault<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> TestCommand {
        let vault = self.vault.to_str().unwrap();
        self.order(arguments).with(["--run", RUN, "--local", vault])
    }

    /// Returns a command of another node, which has an empty vault.
    pub(crate) fn elsewhere<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> TestCommand {
        let (remote, vault) = (self.remote(), self.scratch.join("vault"));
        self.order(arguments).with(["--run", RUN, "--remote", &remote, "--local", vault.to_str().unwrap()])
    }

    pub(crate) fn push(&self, step: u64) -> TestCommand {
        self.on_run(["push", &format!("outputs/step_{step}")])
    }

    /// Returns what the trainer writes as a step.
    pub(crate) fn step(&self, step: u64) -> FileTree {
        let mut random = Random(step);
        let files = self.files.iter();
        files.map(|(path, bytes)| (PathBuf::from(path), (0o640, random.bytes(*bytes)))).collect()
    }

    /// Returns what a restore into `got` has written for a step.
    pub(crate) fn read_restored(&self, step: u64) -> FileTree {
        read_tree(&self.root.join(format!("got/step_{step}")))
    }

    /// Writes a step below `outputs`, as the trainer does, directly under its name.
    pub(crate) fn write(&self, step: u64) {
        write_tree(&self.root.join(format!("outputs/step_{step}")), &self.step(step));
    }

    /// Writes and pushes steps.
    pub(crate) fn have(&self, steps: &[u64]) {
        for step in steps {
            self.write(*step);
            // The vault has them too, wherever it is.
            let ran = self.push(*step).with(["--copy"]).run();
            assert_eq!(ran.code, 0, "{ran:?}");
        }
    }

    /// Copies the current state.
    pub(crate) fn keep(&self) -> Kept {
        let base = self.root.with_file_name("base");
        remove(&base);
        copy(&self.root, &base);
        let objects = match &self.store {
            Store::Directory(_) => BTreeMap::new(),
            store => store.objects().with(|objects| objects.clone()),
        };
        Kept { base, objects }
    }

    /// Restores a copied state. Uploads that were started since stay.
    pub(crate) fn bring_back(&self, kept: &Kept) {
        remove(&self.root);
        remove(&self.scratch);
        fs::create_dir(&self.scratch).unwrap();
        copy(&kept.base, &self.root);
        if !matches!(self.store, Store::Directory(_)) {
            let objects = self.store.objects();
            objects.with(|objects| objects.clone_from(&kept.objects));
        }
    }

    /// Lets the leases of killed processes expire, as if half an hour had passed.
    pub(crate) fn let_leases_run_out(&self) {
        let before = SystemTime::now() - Duration::from_mins(30);
        match &self.store {
            Store::Directory(path) => {
                for lease in files_below(&path.join(RUN).join(".stepvault/leases")) {
                    let lease = fs::File::options().write(true).open(lease).unwrap();
                    lease.set_modified(before).unwrap();
                }
            }
            store => store.objects().with(|objects| {
                for (key, object) in objects.iter_mut() {
                    if key.contains("/.stepvault/leases/") {
                        object.modified = before;
                    }
                }
            }),
        }
    }

    /// Returns the keys of everything on the remote.
    pub(crate) fn keys(&self) -> Vec<String> {
        match &self.store {
            Store::Directory(root) => {
                let files = files_below(root).into_iter();
                files.map(|path| path.strip_prefix(root).unwrap().to_str().unwrap().to_owned()).collect()
            }
            store => store.objects().keys(),
        }
    }
}

/// The copied state of a world.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) base: PathBuf,
    pub(crate) objects: BTreeMap<String, StoredObject>,
}

/// A vault identifies its files by their inodes, and does not write to files that it has sealed: those files, and the
/// trainer's, are hard-linked. Everything else is copied.
fn copy(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-al").args([from, to]).status().unwrap();
    assert!(status.success());
    for path in files_below(to) {
        let name = path.to_str().unwrap();
        let is_sealed = name.contains("/vault/") && name.contains("/data/");
        if is_sealed || name.contains("/outputs/") || path.is_symlink() {
            continue;
        }
        let (bytes, metadata) = (fs::read(&path).unwrap(), path.metadata().unwrap());
        fs::remove_file(&path).unwrap();
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, metadata.permissions()).unwrap();
        let copy = fs::File::options().write(true).open(&path).unwrap();
        copy.set_modified(metadata.modified().unwrap()).unwrap();
    }
}

/// Returns the steps that a command reported as sealed or, with a remote's name, as durable there. A line that was cut
/// off does not count.
pub(crate) fn acknowledged_steps(ran: &Outcome, tier: &str) -> Vec<u64> {
    let lines = ran.stderr.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    let (start, endings) = match tier {
        "local" => ("local: sealed step ".to_owned(), [" in ", " in "]),
        // With the transfer that made it durable, or alone.
        remote => (format!("{remote}: step "), [") is durable: ", ") is durable\n"]),
    };
    lines
        .filter(|line| endings.iter().any(|ending| line.contains(ending)))
        .filter_map(|line| line.strip_prefix(start.as_str())?.split(' ').next()?.parse().ok())
        .collect()
}

/// Otherwise the other tests of this tier would check no promise at all.
#[test]
fn what_is_acknowledged_is_read_from_each_form_of_the_line() {
    let ran = Outcome {
        code: 0,
        signal: None,
        stdout: String::new(),
        stderr: "local: sealed step 1 (attempt 1): 2 files in 6ms, from /a\n\
                 store: step 1 (attempt 1) done: 1 B in 1s, to file:///b\n\
                 store: step 2 (attempt 1) is durable\n\
                 store: step 3 (attempt 1) is durable: 1 B in 1s, 1 B/s, to file:///b\n\
                 store: step 4 (attempt 1) is durable: 1 B in 1s"
            .to_owned(),
    };
    assert_eq!(acknowledged_steps(&ran, "local"), [1]);
    assert_eq!(acknowledged_steps(&ran, "store"), [2, 3]);
}
