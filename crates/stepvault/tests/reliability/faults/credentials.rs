//! Credentials that expire in the middle of an upload.
//!
//! From some moment on the server refuses the old key, as S3 does (400, `ExpiredToken`), whatever expiry the key's
//! source states. The fresh key comes a second later from the same source: a program that the profile names
//! (`credential_process`), the shared credentials file that a job rewrites, or the instance's metadata service. Parts
//! that were on the store when the key expired must not be sent again. If no fresh key comes, the push ends with one
//! error that says so, and the next push, with a fresh key, does not resend those parts either.
//!
//! Google's tokens are not tested: on an endpoint of this machine none are used.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use stepvault_testkit::metadata::FakeMetadata;
use stepvault_testkit::network::Network;
use stepvault_testkit::process::{Outcome, TestCommand};
use stepvault_testkit::random::Random;
use stepvault_testkit::s3::StrictS3;
use stepvault_testkit::tree::{FileTree, fast_directory, remove, write_tree};

use crate::faults::check::{Harm, stored};
use crate::faults::settings::{Settings, of_environment};
use crate::faults::tally::Tally;
use crate::faults::world::{Store, World};

/// 8 and 3 parts.
const FILES: [(&str, usize); 2] = [("model.bin", 64 << 20), ("optimizer/state.bin", (16 << 20) + 5)];
const PARTS: usize = 11;
/// Slow enough that the key expires in the middle.
const BYTES_PER_SECOND: u64 = 64 << 20;
const SECRET: &str = "another/secret+key/that-opens-nothing-else";
/// The expiry that the sources state: later than the real one.
const SAID_END: &str = "2100-01-01T00:00:00Z";

#[derive(Clone, Copy)]
enum Source {
    Program,
    File,
    Instance,
}

struct Bench {
    world: World,
    network: Network,
    metadata: FakeMetadata,
    source: Source,
    /// The number of keys so far.
    keys: usize,
}

impl Source {
    fn name(self) -> &'static str {
        match self {
            Self::Program => "credential_process",
            Self::File => "shared credentials file",
            Self::Instance => "instance metadata",
        }
    }
}

impl Bench {
    fn new(root: &std::path::Path, source: Source) -> Self {
        remove(&root.join("live/vault"));
        let mut world = World::of(root, Store::s3(), &FILES);
        let network = Network::to(world.store.address());
        network.limit(Some(BYTES_PER_SECOND), None);
        world.way = Some(network.address());
        "&max-concurrent-requests=4".clone_into(&mut world.options);
        fs::create_dir_all(world.root.join(".aws")).unwrap();
        let mut bench = Self { world, network, metadata: FakeMetadata::ec2(), source, keys: 0 };
        bench.fresh_key();
        bench
    }

    fn server(&self) -> &StrictS3 {
        match &self.world.store {
            Store::S3(server) => server,
            other => panic!("{} is no S3", other.name()),
        }
    }

    fn key(&self) -> String {
        format!("AKIAFRESHKEY{:08}", self.keys)
    }

    /// Gives the server another key, and the source returns it.
    fn fresh_key(&mut self) {
        self.keys += 1;
        let (key, home) = (self.key(), self.world.root.join(".aws"));
        self.server().issue_key(&key, SECRET);
        let said = format!("\"SecretAccessKey\":\"{SECRET}\",\"Expiration\":\"{SAID_END}\"");
        // Write it atomically, so that nobody reads half of it.
        let write = |name: &str, text: String| {
            fs::write(home.join("new"), text).unwrap();
            fs::rename(home.join("new"), home.join(name)).unwrap();
        };
        match self.source {
            Source::Program => {
                let answer = home.join("answer.json");
                write(
                    "answer.json",
                    format!("{{\"Version\":1,\"AccessKeyId\":\"{key}\",\"SessionToken\":\"t\",{said}}}"),
                );
                write("config", format!("[default]\ncredential_process = cat {}\n", answer.display()));
            }
            Source::File => write(
                "credentials",
                format!(
                    "[default]\naws_access_key_id = {key}\naws_secret_access_key = {SECRET}\naws_session_token = t\n"
                ),
            ),
            Source::Instance => self.metadata.give_credentials(format!(
                "{{\"Code\":\"Success\",\"LastUpdated\":\"2026-01-01T00:00:00Z\",\"Type\":\"AWS-HMAC\",\
                 \"AccessKeyId\":\"{key}\",\"Token\":\"t\",{said}}}"
            )),
        }
    }

    /// Returns a push that gets its key from the source.
    fn push(&self) -> TestCommand {
        let mut order = self.world.push(1);
        let disabled = if matches!(self.source, Source::Instance) { "false" } else { "true" };
        order
            .env_remove("AWS_ACCESS_KEY_ID")
            .env_remove("AWS_SECRET_ACCESS_KEY")
            .env("AWS_EC2_METADATA_DISABLED", disabled)
            .env("AWS_EC2_METADATA_SERVICE_ENDPOINT", self.metadata.endpoint());
        order
    }

    /// Returns the parts on the server, as `key partNumber=N`.
    fn parts(&self) -> BTreeSet<String> {
        let pending = self.server().pending_uploads().into_iter();
        pending
            .flat_map(|upload| {
                let numbers = upload.part_numbers.into_iter();
                numbers.map(move |number| format!("{} {number}", upload.key))
            })
            .collect()
    }

    /// Returns how many of these parts were sent after a request.
    fn sent_again(&self, parts: &BTreeSet<String>, since: usize) -> usize {
        let requests = self.server().faults().requests_after(since).into_iter();
        requests
            .filter(|request| request.method == "PUT")
            .filter(|request| {
                parts.iter().any(|part| {
                    let (key, number) = part.rsplit_once(' ').unwrap();
                    let numbered =
                        request.path.split(['?', '&']).any(|word| word == format!("partNumber={number}"));
                    numbered && request.path.contains(&format!("/{key}?"))
                })
            })
            .count()
    }

    /// Expires the key once the server has this many parts; returns the parts it has then, and the number of requests
    /// so far.
    fn end_key_at(
        &self,
        parts: usize,
        push: &std::thread::JoinHandle<Outcome>,
    ) -> Result<(BTreeSet<String>, usize), Harm> {
        while self.parts().len() < parts {
            if push.is_finished() {
                return Err(Harm::Stuck("the push ended before its key did".to_owned()));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.server().expire_key(&self.key());
        // Keep this order: requests that are repeated must come after both.
        let parts = self.parts();
        Ok((parts, self.server().faults().requests().len()))
    }
}

fn start(order: TestCommand) -> std::thread::JoinHandle<Outcome> {
    std::thread::spawn(move || order.run())
}

/// Returns how many finished parts were sent again.
fn fresh_ones_come(bench: &mut Bench, tree: &FileTree, at: usize, after: Duration) -> Result<usize, Harm> {
    let push = start(bench.push());
    let ended = bench.end_key_at(at, &push);
    std::thread::sleep(after);
    bench.fresh_key();
    let ran = push.join().unwrap();
    let (parts, since) = ended.map_err(|harm| Harm::Stuck(format!("{harm:?}: {ran:?}")))?;
    if ran.code != 0 {
        return Err(Harm::Stuck(format!("{ran:?}")));
    }
    stored(&bench.world, 1, 1, tree)?;
    Ok(bench.sent_again(&parts, since))
}

fn none_come(bench: &mut Bench, tree: &FileTree, at: usize) -> Result<usize, Harm> {
    bench.world.options.push_str("&retry-deadline=3s");
    let push = start(bench.push());
    let ended = bench.end_key_at(at, &push);
    let ran = push.join().unwrap();
    let (parts, _) = ended.map_err(|harm| Harm::Stuck(format!("{harm:?}: {ran:?}")))?;
    let said: Vec<&str> = ran
        .stderr
        .lines()
        .filter(|line| line.starts_with("error: ") && line.contains("the credentials have expired"))
        .collect();
    if ran.code == 0 || said.len() != 1 || !ran.stderr.contains("renew them") {
        return Err(Harm::Stuck(format!("not one error that says so: {ran:?}")));
    }
    // The store may have received parts that were under way when the key expired, without this push's knowledge.
    let since = bench.server().faults().requests().len();
    bench.fresh_key();
    bench.network.limit(None, None);
    let ran = bench.push().run();
    if ran.code != 0 {
        return Err(Harm::Stuck(format!("the next push: {ran:?}")));
    }
    stored(&bench.world, 1, 1, tree)?;
    Ok(bench.sent_again(&parts, since))
}

fn ended(source: Source, comes: bool, settings: &Settings) -> Tally {
    let place = fast_directory();
    let what = format!(
        "{}, {}",
        source.name(),
        if comes { "a fresh key comes" } else { "none comes until the next push" }
    );
    let mut tally = Tally::new("Expired credentials", &what, settings.seed);
    let mut random = Random(settings.seed ^ what.len() as u64);
    let tree = World::of(place.path(), Store::s3(), &FILES).step(1);
    write_tree(&place.path().join("live/outputs/step_1"), &tree);
    let mut again = 0;
    for run in 0..settings.times(1, 20) {
        let mut bench = Bench::new(place.path(), source);
        let at = 1 + random.index(PARTS - 5);
        let after = Duration::from_millis(random.number() % 2000);
        (tally.runs, tally.faults, tally.acknowledged) = (run + 1, run + 1, run + 1);
        let outcome = if comes {
            fresh_ones_come(&mut bench, &tree, at, after)
        } else {
            none_come(&mut bench, &tree, at)
        };
        match outcome {
            Ok(0) => {}
            Ok(sent) => {
                again += sent;
                tally.harmed("finished parts", Harm::Stuck(format!("{sent} were sent again")));
            }
            Err(harm) => tally.harmed(&format!("seed {}, at {at} parts", settings.seed), harm),
        }
    }
    tally.note = format!("{PARTS} parts; {again} finished parts sent again");
    tally
}

fn renewed(source: Source, comes: bool) {
    let tally = ended(source, comes, &of_environment());
    tally.report();
    tally.assert_no_harm();
}

#[test]
fn a_key_from_a_program_that_ends_is_followed_by_the_next() {
    renewed(Source::Program, true);
}

#[test]
fn a_key_from_a_file_that_ends_is_followed_by_the_next() {
    renewed(Source::File, true);
}

#[test]
fn a_key_of_an_instance_that_ends_is_followed_by_the_next() {
    renewed(Source::Instance, true);
}

#[test]
fn a_key_that_ends_without_another_is_one_error_and_costs_no_finished_part() {
    renewed(Source::File, false);
}
