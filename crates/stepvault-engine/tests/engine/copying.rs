//! A run that is copied from one remote to another: the same steps afterwards, and nothing of a step that is not whole.

use std::collections::BTreeMap;
use std::path::PathBuf;

use stepvault_core::digest::DigestAlgorithm;
use stepvault_core::ids::{NodeName, Step, StepId};
use stepvault_core::launch::LaunchName;
use stepvault_core::nodes::{NodePlace, NodeSet, Writer, ranked};
use stepvault_core::retention::KeepRules;
use stepvault_core::{ErrorKind, RemoteSettings, Result};
use stepvault_engine::copy::{
    CopyChoice, CopyContext, CopyDecision, CopyOutcome, CopyReport, StepCopy, copy_steps, plan_copy,
};
use stepvault_engine::memory::MemoryBudget;
use stepvault_engine::tier::catalog::{pin, pins, read_commit};
use stepvault_engine::tier::leases::leases;
use stepvault_engine::tier::run_remote::RunRemote;
use stepvault_engine::upload::{CommonStore, Uploaded};
use stepvault_engine::verify::{Depth, check_remote};
use stepvault_remote::open::{OpenOptions, open_with};
use stepvault_remote::s3::StaticKeys;
use stepvault_testkit::faults::{FaultAction, FaultRule, Faults};
use stepvault_testkit::gcs::StrictGcs;
use stepvault_testkit::s3::StrictS3;

use crate::harness::{Rig, asked, cut_when, id, in_launch, run_name, snapshot};

const PART: usize = 8 << 20;
/// Of three parts, of one, and of no byte.
const FILES: &[(&str, usize)] = &[("big.bin", 2 * PART + 5), ("sub/small.json", 100), ("empty", 0)];

/// Servers and the rig of a remote on one of them.
struct Place {
    rig: Rig,
    s3: Option<StrictS3>,
    _gcs: Option<StrictGcs>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Directory,
    S3,
    Gcs,
}

impl Place {
    async fn new(kind: Kind) -> Self {
        match kind {
            Kind::Directory => Self { rig: Rig::with_directory().await, s3: None, _gcs: None },
            Kind::S3 => {
                let server = StrictS3::start();
                Self { rig: Rig::with_patient_s3(&server, 30).await, s3: Some(server), _gcs: None }
            }
            Kind::Gcs => {
                let server = StrictGcs::start();
                let mut rig = Rig::new();
                rig.add_gcs("google", &server).await;
                Self { rig, s3: None, _gcs: Some(server) }
            }
        }
    }

    fn faults(&self) -> &Faults {
        self.s3.as_ref().unwrap().faults()
    }

    fn remote(&self) -> &RunRemote {
        &self.rig.remotes[0]
    }
}

fn context(from: &Rig, to: &Rig) -> CopyContext {
    CopyContext {
        from: from.remotes[0].clone(),
        to: to.remotes[0].clone(),
        common: None,
        budget: to.budget.clone(),
        observer: to.observer.clone(),
        choice: CopyChoice::All,
    }
}

async fn run(context: &CopyContext, on: &Rig) -> Result<CopyReport> {
    copy_steps(context, &on.vault, plan_copy(context).await?).await
}

pub(crate) async fn copy(from: &Rig, to: &Rig) -> CopyReport {
    run(&context(from, to), to).await.unwrap()
}

/// What became of each step, the newest first.
fn outcomes(report: &CopyReport) -> Vec<(u64, std::result::Result<CopyOutcome, ErrorKind>)> {
    let outcome = |step: &StepCopy| {
        let result = match &step.result {
            Ok(outcome) => Ok(outcome.clone()),
            Err(error) => Err(error.kind()),
        };
        (u64::from(step.step.id.step), result)
    };
    report.steps.iter().map(outcome).collect()
}

/// Every object of the run on a remote but those of its leases and of its gc, with its bytes.
async fn objects(remote: &RunRemote) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for object in remote.list(&remote.keys.prefix()).await.unwrap() {
        if !object.key.contains("/leases/") && !object.key.contains("/probes/") {
            let bytes = remote.read_small(&object.key).await.unwrap().unwrap();
            found.insert(object.key, bytes);
        }
    }
    found
}

async fn committed(remote: &RunRemote) -> Vec<StepId> {
    stepvault_engine::tier::catalog::committed_ids(remote).await.unwrap().into_keys().collect()
}

fn push_files(rig: &Rig, step: u64, seed: u64) -> PathBuf {
    rig.write_step(step, FILES, seed, step as i64 * 10)
}

async fn a_run_is_copied(from: Kind, to: Kind) {
    let (mut source, mut target) = (Place::new(from).await, Place::new(to).await);
    source.rig.push_durably(&push_files(&source.rig, 100, 1)).await;
    let newest = push_files(&source.rig, 200, 2);
    let written = snapshot(&newest);
    source.rig.push_durably(&newest).await;
    pin(source.remote(), id(1, 100), "the paper's").await.unwrap();
    let report = copy(&source.rig, &target.rig).await;
    let copied = Ok(CopyOutcome::Copied);
    assert_eq!(outcomes(&report), [(200, copied.clone()), (100, copied)]);
    // The same objects, records included.
    let (one, other) = (objects(source.remote()).await, objects(target.remote()).await);
    assert_eq!(one.keys().collect::<Vec<_>>(), other.keys().collect::<Vec<_>>());
    assert!(one == other, "the bytes differ");
    assert!(leases(source.remote()).await.unwrap().is_empty());
    // A later upload of the same step finds it there.
    let remotes = std::mem::replace(&mut source.rig.remotes, target.rig.remotes.clone());
    let pushed = source.rig.push_durably(&newest).await;
    assert!(matches!(pushed.remotes[0].result, Ok(Uploaded::AlreadyDurable)));
    source.rig.remotes = remotes;
    let again = copy(&source.rig, &target.rig).await;
    assert_eq!(outcomes(&again), [(200, Ok(CopyOutcome::Present)), (100, Ok(CopyOutcome::Present))]);
    target.rig.assert_restores(200, &written).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_the_same_on_every_kind_of_store() {
    for from in [Kind::Directory, Kind::S3, Kind::Gcs] {
        for to in [Kind::Directory, Kind::S3, Kind::Gcs] {
            a_run_is_copied(from, to).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_with_other_digests_is_copied_by_them() {
    let (mut source, mut target) = (Place::new(Kind::S3).await, Place::new(Kind::S3).await);
    source.rig.digest = DigestAlgorithm::Blake3;
    let step = push_files(&source.rig, 100, 1);
    let written = snapshot(&step);
    source.rig.push_durably(&step).await;
    assert_eq!(outcomes(&copy(&source.rig, &target.rig).await), [(100, Ok(CopyOutcome::Copied))]);
    assert!(objects(source.remote()).await == objects(target.remote()).await);
    target.rig.assert_restores(100, &written).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_of_several_nodes_is_copied_with_all_its_parts_and_its_launch() {
    let mut rigs = [Rig::with_directory().await, Rig::new()];
    rigs[1].remotes = rigs[0].remotes.clone();
    for (rank, rig) in rigs.iter().enumerate() {
        let files = [(format!("rank_{rank}.distcp"), PART + rank), ("common.json".to_owned(), 200)];
        let files: Vec<(&str, usize)> = files.iter().map(|(path, size)| (path.as_str(), *size)).collect();
        let writer = Writer {
            place: NodePlace::new(ranked(rank).unwrap(), NodeSet::counted(2).unwrap()).unwrap(),
            launch: Some(LaunchName::new("slurm:7").unwrap()),
            shared: false,
        };
        let source = rig.write_step(100, &files, 7, 1_000);
        rig.push_as(in_launch(rig.request_of(writer, &source))).await.unwrap();
    }
    let target = Place::new(Kind::S3).await;
    assert_eq!(outcomes(&copy(&rigs[0], &target.rig).await), [(100, Ok(CopyOutcome::Copied))]);
    let commit = read_commit(target.remote(), id(1, 100)).await.unwrap();
    let nodes: Vec<&NodeName> = commit.parts.iter().map(|part| &part.node).collect();
    assert_eq!(nodes, [&ranked(0).unwrap(), &ranked(1).unwrap()]);
    let health = check_remote(target.remote(), id(1, 100), Depth::Deep, &target.rig.observer).await.unwrap();
    assert_eq!((health.faults, health.proved_files), (Vec::<String>::new(), 4));
    let launches = objects(target.remote()).await.into_keys().filter(|key| key.contains("/launches/"));
    assert_eq!(launches.count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_one_answer_calls_missing_is_not_left_out() {
    let (source, target) = (Place::new(Kind::S3).await, Place::new(Kind::Directory).await);
    source.rig.push_durably(&push_files(&source.rig, 100, 1)).await;
    source.faults().add(FaultRule {
        method: Some("GET".to_owned()),
        path_contains: "/attempts/".to_owned(),
        skip: 0,
        times: 1,
        action: FaultAction::refuse(404, "NoSuchKey"),
    });
    let unproven = copy(&source.rig, &target.rig).await;
    assert_eq!(outcomes(&unproven), [(100, Err(ErrorKind::Unreachable))]);
    assert_eq!(committed(target.remote()).await, []);
    assert_eq!(outcomes(&copy(&source.rig, &target.rig).await), [(100, Ok(CopyOutcome::Copied))]);
    assert_eq!(objects(target.remote()).await, objects(source.remote()).await);
}

fn part_bytes(faults: &Faults, method: &str) -> u64 {
    let requests = faults.requests().into_iter();
    let of_parts = requests.filter(|request| request.method == method && request.path.contains("partNumber"));
    let of_parts = of_parts.filter(|request| request.path.contains("big.bin"));
    of_parts.map(|request| request.body_bytes).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_was_cut_off_inside_a_file_continues_there() {
    let (source, target) = (Place::new(Kind::S3).await, Place::new(Kind::S3).await);
    let files = [("big.bin", 10 * PART), ("small.json", 100)];
    source.rig.push_durably(&source.rig.write_step(100, &files, 1, 1_000)).await;
    let server = target.s3.as_ref().unwrap();
    target.faults().add(FaultRule {
        method: Some("PUT".to_owned()),
        path_contains: "big.bin".to_owned(),
        skip: 6,
        times: u64::MAX,
        action: FaultAction::Hang,
    });
    let acknowledged =
        || server.pending_uploads().iter().map(|upload| upload.part_numbers.len()).sum::<usize>();
    cut_when(target.faults(), copy(&source.rig, &target.rig), || acknowledged() >= 5).await;
    assert_eq!(committed(target.remote()).await, []);
    let there = acknowledged() as u64;
    for place in [&source, &target] {
        place.faults().clear();
        place.faults().clear_requests();
    }
    assert_eq!(outcomes(&copy(&source.rig, &target.rig).await), [(100, Ok(CopyOutcome::Copied))]);
    let sent = part_bytes(target.faults(), "PUT");
    assert!(
        sent <= (10 - there) * PART as u64 + 1024,
        "{sent} bytes were sent again, {there} parts were there"
    );
    let read = asked(source.faults(), "GET", "big.bin") as u64;
    assert!(read <= 10 - there, "{read} parts were read again, {there} were there");
    assert_eq!(asked(target.faults(), "PUT", "small.json"), 0, "it was finished");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_machine_sends_no_finished_file_again() {
    let (source, mut target) = (Place::new(Kind::S3).await, Place::new(Kind::S3).await);
    source.rig.push_durably(&push_files(&source.rig, 100, 1)).await;
    target.faults().inject("PUT", "/parts/", u64::MAX, FaultAction::Hang);
    let writing = || asked(target.faults(), "PUT", "/parts/") > 0;
    cut_when(target.faults(), copy(&source.rig, &target.rig), writing).await;
    for place in [&source, &target] {
        place.faults().clear();
        place.faults().clear_requests();
    }
    // Its journals are gone.
    target.rig.lose_node();
    assert_eq!(outcomes(&copy(&source.rig, &target.rig).await), [(100, Ok(CopyOutcome::Copied))]);
    assert_eq!(asked(source.faults(), "GET", "big.bin"), 0);
    assert_eq!(part_bytes(target.faults(), "PUT"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_ends_at_any_request_leaves_a_whole_step_or_none() {
    let source = Rig::with_directory().await;
    let files = [("big.bin", PART + 5), ("small.json", 100)];
    let written = source.write_step(100, &files, 1, 1_000);
    source.push_durably(&written).await;
    let whole = Place::new(Kind::S3).await;
    copy(&source, &whole.rig).await;
    let requests = whole.faults().requests().len();
    assert!(requests > 20, "{requests}");
    for skip in 0..requests as u64 {
        let mut target = Place::new(Kind::S3).await;
        let (method, path_contains) = (None, String::new());
        let rule = FaultRule { method, path_contains, skip, times: u64::MAX, action: FaultAction::Hang };
        target.faults().add(rule);
        let context = context(&source, &target.rig);
        let hung = async {
            while target.faults().requests().len() as u64 <= skip {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            // The order of concurrent requests varies: some are spared.
            _ = run(&context, &target.rig) => {}
            () = hung => {}
        }
        target.faults().clear();
        let server = target.s3.as_ref().unwrap();
        let was_committed = server.objects().keys().iter().any(|key| key.contains("/commits/"));
        if was_committed {
            let observer = &target.rig.observer;
            let health = check_remote(target.remote(), id(1, 100), Depth::Deep, observer).await.unwrap();
            assert!(health.is_sound(), "{skip}: {:?}", health.faults);
        }
        let report = copy(&source, &target.rig).await;
        let expected = if was_committed { CopyOutcome::Present } else { CopyOutcome::Copied };
        assert_eq!(outcomes(&report), [(100, Ok(expected))], "{skip}");
        target.rig.assert_restores(100, &snapshot(&written)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_was_removed_on_either_side_is_not_copied() {
    let (source, target) = (Rig::with_steps(3).await, Rig::with_directory().await);
    source.tombstone(1).await;
    target.tombstone(2).await;
    let report = copy(&source, &target).await;
    let [newest, removed] = &report.steps[..] else { panic!("{:?}", outcomes(&report)) };
    assert_eq!((newest.step.id, removed.step.id), (id(1, 3), id(1, 2)));
    assert!(
        matches!(&removed.result, Ok(CopyOutcome::Skipped(reason)) if reason.contains("removed from disk"))
    );
    assert_eq!(committed(&target.remotes[0]).await, [id(1, 3)]);
    // Named, it is no success.
    let wanting = |step| CopyContext {
        choice: CopyChoice::Numbers([Step::new(step).unwrap()].into()),
        ..context(&source, &target)
    };
    let refused = run(&wanting(2), &target).await.unwrap();
    assert_eq!(outcomes(&refused), [(2, Err(ErrorKind::Refused))]);
    let error = run(&wanting(1), &target).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("it was removed from it"), "{error}");
    assert_eq!(run(&wanting(7), &target).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(outcomes(&run(&wanting(3), &target).await.unwrap()), [(3, Ok(CopyOutcome::Present))]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_with_other_files_on_the_target_is_a_conflict_and_the_others_are_copied() {
    let (mut source, target) = (Rig::with_steps(3).await, Rig::with_directory().await);
    target.push_durably(&target.write_step(2, &[("x", 100), ("y", 7)], 99, 2_000)).await;
    let before = objects(&target.remotes[0]).await;
    let error = run(&context(&source, &target), &target).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.to_string().contains("the target has another run of that name"), "{error}");
    assert!(before == objects(&target.remotes[0]).await, "nothing was written");
    // A step that both have shows that it is the same run.
    let remotes = std::mem::replace(&mut source.remotes, target.remotes.clone());
    source.push_durably(&source.outputs().join("step_3")).await;
    source.remotes = remotes;
    let report = copy(&source, &target).await;
    let conflict = Err(ErrorKind::Conflict);
    assert_eq!(
        outcomes(&report),
        [(3, Ok(CopyOutcome::Present)), (2, conflict), (1, Ok(CopyOutcome::Copied))]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_writes_nothing_and_counts_what_a_copy_would_send() {
    let (source, target) = (Place::new(Kind::S3).await, Place::new(Kind::S3).await);
    source.rig.push_durably(&push_files(&source.rig, 100, 1)).await;
    for place in [&source, &target] {
        place.faults().clear_requests();
    }
    let plan = plan_copy(&context(&source.rig, &target.rig)).await.unwrap();
    for place in [&source, &target] {
        let wrote = place.faults().requests().into_iter().any(|request| request.method != "GET");
        assert!(!wrote, "{:?}", place.faults().requests());
        place.faults().clear_requests();
    }
    let step = &plan.steps[0];
    assert!(matches!(step.decision, CopyDecision::Copy));
    assert_eq!((step.files, step.bytes), (3, (2 * PART + 105) as u64));
    let (from, to) = step.requests();
    copy(&source.rig, &target.rig).await;
    let planning = 5 + 1;
    let sent = |place: &Place| place.faults().requests().len() as u64;
    assert!(sent(&source) <= from + planning + 2, "{} of {from}", sent(&source));
    // The target was also begun, and probed.
    assert!(sent(&target) <= to + planning + 24, "{} of {to}", sent(&target));
    assert!(sent(&source) + 8 >= from && sent(&target) >= to, "no exaggeration");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_keeps_a_step_while_it_is_copied_and_one_that_is_removed_is_skipped() {
    let (source, target) = (Place::new(Kind::S3).await, Place::new(Kind::S3).await);
    for step in [100, 200] {
        source.rig.push_durably(&push_files(&source.rig, step, step)).await;
    }
    source.faults().inject("GET", "000000000100.a1/step_100/big.bin", u64::MAX, FaultAction::Hang);
    let context = context(&source.rig, &target.rig);
    let removing = async {
        while asked(source.faults(), "GET", "step_100/big.bin") == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        let pruned = source.rig.prune(1).await.unwrap();
        assert!(pruned.removed.is_empty(), "{pruned:?}");
        // As if there had been no right to write a lease.
        source.rig.tombstone(100).await;
        source.faults().clear();
    };
    let (report, ()) = tokio::join!(run(&context, &target.rig), removing);
    let report = report.unwrap();
    let [_, removed] = &report.steps[..] else { panic!("{:?}", outcomes(&report)) };
    assert!(
        matches!(&removed.result, Ok(CopyOutcome::Skipped(reason)) if reason.contains("while it was copied")),
        "{:?}",
        removed.result
    );
    assert_eq!(committed(target.remote()).await, [id(1, 200)]);
}

/// S9: the identity is used up on the target, and its copy says so when it goes on, and to those after it.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_stood_still_for_longer_than_the_grace_period_ends_with_an_error() {
    let (source, target) = (Place::new(Kind::S3).await, Place::new(Kind::S3).await);
    source.rig.push_durably(&push_files(&source.rig, 100, 1)).await;
    let delay = FaultAction::Delay(std::time::Duration::from_secs(6));
    target.faults().inject("PUT", "parts/000000000100", 1, delay);
    let context = context(&source.rig, &target.rig);
    let gc_runs = async {
        while asked(target.faults(), "PUT", "parts/000000000100") == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        // Stores tell times in whole seconds.
        tokio::time::sleep(std::time::Duration::from_millis(1_100)).await;
        for _ in 0..2 {
            target.rig.gc_now().await;
        }
    };
    let (report, ()) = tokio::join!(run(&context, &target.rig), gc_runs);
    let report = report.unwrap();
    assert_eq!(outcomes(&report), [(100, Err(ErrorKind::Refused))]);
    let error = report.steps[0].result.as_ref().unwrap_err();
    assert!(error.to_string().contains("gc removed its unfinished copy"), "{error}");
    assert!(error.hint_text().unwrap().starts_with("copy the run to another prefix"), "{error:?}");
    let again = copy(&source.rig, &target.rig).await;
    assert!(
        matches!(&again.steps[0].result, Ok(CopyOutcome::Skipped(reason)) if reason.contains("never reused there")),
        "{:?}",
        again.steps[0].result
    );
    assert_eq!(committed(target.remote()).await, []);
    let elsewhere = Place::new(Kind::S3).await;
    assert_eq!(outcomes(&copy(&source.rig, &elsewhere.rig).await), [(100, Ok(CopyOutcome::Copied))]);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_right_to_write_the_source_a_warning_stands_for_the_lease() {
    let (source, target) = (Place::new(Kind::S3).await, Place::new(Kind::Directory).await);
    source.rig.push_durably(&push_files(&source.rig, 100, 1)).await;
    source.faults().inject("PUT", "", u64::MAX, FaultAction::refuse(403, "AccessDenied"));
    assert_eq!(outcomes(&copy(&source.rig, &target.rig).await), [(100, Ok(CopyOutcome::Copied))]);
    let warnings = target.rig.recorder.warnings.lock().unwrap().clone();
    assert!(warnings.iter().any(|text| text.contains("without a lease")), "{warnings:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_not_those_saved_are_never_committed() {
    let (source, target) = (Place::new(Kind::S3).await, Place::new(Kind::S3).await);
    for step in [100, 200] {
        source.rig.push_durably(&push_files(&source.rig, step, step)).await;
    }
    let objects = source.s3.as_ref().unwrap().objects();
    let damaged = format!("bucket/pre fix/{}/000000000200.a1/step_200/big.bin", run_name());
    assert!(objects.flip_bit(&damaged, PART + 5));
    let report = copy(&source.rig, &target.rig).await;
    assert_eq!(outcomes(&report), [(200, Err(ErrorKind::Damaged)), (100, Ok(CopyOutcome::Copied))]);
    let error = report.steps[0].result.as_ref().unwrap_err().to_string();
    assert!(error.starts_with("cannot read the source: aws:"), "{error}");
    assert!(error.contains("big.bin"), "{error}");
    assert_eq!(committed(target.remote()).await, [id(1, 100)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_changes_while_it_is_copied_is_not_committed() {
    let (source, mut target) = (Place::new(Kind::S3).await, Place::new(Kind::S3).await);
    let step = push_files(&source.rig, 100, 1);
    source.rig.push_durably(&step).await;
    let flip_each_part = || {
        let objects = source.s3.as_ref().unwrap().objects();
        let key = format!("bucket/pre fix/{}/000000000100.a1/step_100/big.bin", run_name());
        (0..3).for_each(|part| assert!(objects.flip_bit(&key, part * PART + 2)));
    };
    source.faults().add(FaultRule {
        method: Some("GET".to_owned()),
        path_contains: "step_100/big.bin".to_owned(),
        skip: 1,
        times: u64::MAX,
        action: FaultAction::Hang,
    });
    let changing = async {
        while asked(source.faults(), "GET", "step_100/big.bin") < 2 {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        flip_each_part();
        source.faults().clear();
    };
    let context = context(&source.rig, &target.rig);
    let (report, ()) = tokio::join!(run(&context, &target.rig), changing);
    assert_eq!(outcomes(&report.unwrap()), [(100, Err(ErrorKind::Damaged))]);
    assert_eq!(committed(target.remote()).await, []);
    flip_each_part();
    assert_eq!(outcomes(&copy(&source.rig, &target.rig).await), [(100, Ok(CopyOutcome::Copied))]);
    target.rig.assert_restores(100, &snapshot(&step)).await;
}

/// The numbers of the parts of the large file that the target has acknowledged and nobody has completed.
fn acknowledged_parts(target: &Place) -> Vec<Vec<i32>> {
    let uploads = target.s3.as_ref().unwrap().pending_uploads().into_iter();
    uploads.map(|upload| upload.part_numbers.into_iter().collect()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_with_a_wrong_last_byte_is_never_whole_on_the_target() {
    let (source, target) = (Place::new(Kind::S3).await, Place::new(Kind::S3).await);
    source.rig.push_durably(&push_files(&source.rig, 100, 1)).await;
    let objects = source.s3.as_ref().unwrap().objects();
    let key = format!("bucket/pre fix/{}/000000000100.a1/step_100/big.bin", run_name());
    assert!(objects.flip_bit(&key, 2 * PART - 1));
    let report = copy(&source.rig, &target.rig).await;
    assert_eq!(outcomes(&report), [(100, Err(ErrorKind::Damaged))]);
    let error = report.steps[0].result.as_ref().unwrap_err().to_string();
    assert!(error.starts_with("cannot read the source: aws:"), "{error}");
    assert!(error.contains(&format!("bytes {PART} to {} are not those saved", 2 * PART)), "{error}");
    let acknowledged = acknowledged_parts(&target);
    assert!(acknowledged.iter().all(|parts| !parts.contains(&2)), "{acknowledged:?}");
    assert_eq!(asked(source.faults(), "GET", "big.bin"), 4, "the connection may have damaged it");
    assert_eq!(target.rig.recorder.retries(), Vec::<String>::new(), "the target has failed in nothing");
    assert!(objects.flip_bit(&key, 2 * PART - 1));
    assert_eq!(outcomes(&copy(&source.rig, &target.rig).await), [(100, Ok(CopyOutcome::Copied))]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_breaks_off_is_read_on_in_the_same_request_to_the_target() {
    let (source, mut target) = (Place::new(Kind::S3).await, Place::new(Kind::S3).await);
    let step = push_files(&source.rig, 100, 1);
    source.rig.push_durably(&step).await;
    source.faults().inject("GET", "big.bin", 3, FaultAction::CutBody { bytes: 3 << 20 });
    assert_eq!(outcomes(&copy(&source.rig, &target.rig).await), [(100, Ok(CopyOutcome::Copied))]);
    assert_eq!(asked(target.faults(), "PUT", "big.bin"), 3);
    assert_eq!(part_bytes(target.faults(), "PUT"), (2 * PART + 5) as u64);
    target.rig.assert_restores(100, &snapshot(&step)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_the_connection_damaged_are_read_again() {
    let (source, mut target) = (Place::new(Kind::S3).await, Place::new(Kind::S3).await);
    let step = push_files(&source.rig, 100, 1);
    source.rig.push_durably(&step).await;
    source.faults().inject("GET", "big.bin", 1, FaultAction::FlipBit);
    assert_eq!(outcomes(&copy(&source.rig, &target.rig).await), [(100, Ok(CopyOutcome::Copied))]);
    target.rig.assert_restores(100, &snapshot(&step)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_stays_away_in_the_middle_of_a_part_is_the_one_that_failed() {
    let source_server = StrictS3::start();
    let (source, target) = (Rig::with_s3(&source_server).await, Place::new(Kind::S3).await);
    source.push_durably(&push_files(&source, 100, 1)).await;
    let faults = source_server.faults();
    faults.inject("GET", "big.bin", 1, FaultAction::CutBody { bytes: 3 << 20 });
    faults.inject("GET", "big.bin", u64::MAX, FaultAction::refuse(503, "SlowDown"));
    // It waits for the source for longer than the target may be silent.
    let mut patient = target.rig.remotes[0].settings.as_ref().clone();
    patient.stall_timeout_seconds = 1;
    let options =
        OpenOptions { s3_keys: Some(keys_of(target.s3.as_ref().unwrap())), ..OpenOptions::default() };
    let store = open_with(&patient, target.rig.observer.clone(), options).await.unwrap();
    let to = RunRemote::new(store, patient.into(), run_name());
    let report = run(&CopyContext { to, ..context(&source, &target.rig) }, &target.rig).await.unwrap();
    assert_eq!(outcomes(&report), [(100, Err(ErrorKind::Unreachable))]);
    let error = report.steps[0].result.as_ref().unwrap_err().to_string();
    assert!(error.starts_with("cannot read the source: aws:"), "{error}");
    assert_eq!(target.rig.recorder.retries(), Vec::<String>::new(), "the target has failed in nothing");
    assert_ne!(source.recorder.retries(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_refuses_a_part_gets_it_again_from_the_source() {
    let (source, mut target) = (Place::new(Kind::S3).await, Place::new(Kind::S3).await);
    let step = push_files(&source.rig, 100, 1);
    source.rig.push_durably(&step).await;
    target.faults().inject("PUT", "partNumber=1", 1, FaultAction::refuse(503, "SlowDown"));
    target.faults().inject("PUT", "partNumber=2", 1, FaultAction::Reset);
    assert_eq!(outcomes(&copy(&source.rig, &target.rig).await), [(100, Ok(CopyOutcome::Copied))]);
    assert_eq!(target.rig.recorder.retries().len(), 2, "{:?}", target.rig.recorder.retries());
    assert_eq!(source.rig.recorder.retries(), Vec::<String>::new(), "the source has failed in nothing");
    target.rig.assert_restores(100, &snapshot(&step)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_that_are_under_way_take_a_window_of_memory_each() {
    let (source, target) = (Place::new(Kind::S3).await, Place::new(Kind::S3).await);
    source.rig.push_durably(&source.rig.write_step(100, &[("big.bin", 12 * PART)], 1, 1_000)).await;
    // As much memory as eight parts.
    let budget = MemoryBudget::new(8 * PART as u64);
    source.faults().inject("GET", "big.bin", u64::MAX, FaultAction::Hang);
    let context = CopyContext { budget: budget.clone(), ..context(&source.rig, &target.rig) };
    let all_hang = || asked(source.faults(), "GET", "big.bin") >= 8;
    let free = std::cell::Cell::new(false);
    cut_when(source.faults(), run(&context, &target.rig), || {
        // Half of the budget has to be free beside it.
        free.set(budget.take_if_plenty(3 * PART).is_some());
        all_hang()
    })
    .await;
    assert!(free.get(), "eight parts have taken more than one");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_the_rules_keep_is_copied() {
    let (source, target) = (Rig::with_steps(4).await, Rig::with_directory().await);
    let rules = KeepRules { last: Some(2), ..KeepRules::default() };
    let report = run(&CopyContext { choice: CopyChoice::Kept(rules), ..context(&source, &target) }, &target)
        .await
        .unwrap();
    assert_eq!(committed(&target.remotes[0]).await, [id(1, 3), id(1, 4)]);
    let reasons = report.steps.iter().filter(|step| matches!(step.result, Ok(CopyOutcome::Skipped(_))));
    assert_eq!(reasons.count(), 2);
    let none = KeepRules { last: Some(0), ..KeepRules::default() };
    let error = run(&CopyContext { choice: CopyChoice::Kept(none), ..context(&source, &target) }, &target)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pin_is_copied_with_a_step_that_was_there_before() {
    let (source, target) = (Rig::with_steps(1).await, Rig::with_directory().await);
    copy(&source, &target).await;
    pin(&source.remotes[0], id(1, 1), "keep").await.unwrap();
    copy(&source, &target).await;
    assert_eq!(pins(&target.remotes[0]).await.unwrap(), [id(1, 1)].into());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_lists_steps_without_a_marker_is_refused() {
    let (source, target) = (Rig::with_steps(1).await, Rig::with_directory().await);
    let marker = source.remotes[0].keys.marker();
    std::fs::remove_file(source.remote_root().join(&marker)).unwrap();
    let fresh = RunRemote::new(source.stores[0].clone(), source.remotes[0].settings.clone(), run_name());
    let error = run(&CopyContext { from: fresh, ..context(&source, &target) }, &target).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    assert!(error.to_string().contains("cannot read the source: disk"), "{error}");
    assert_eq!(committed(&target.remotes[0]).await, []);
    // Nothing at all is no run.
    let error = run(&context(&target, &source), &source).await.unwrap_err();
    assert_ne!(error.kind(), ErrorKind::Conflict, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_error_names_the_side_that_refuses() {
    let (source, target) = (Place::new(Kind::S3).await, Place::new(Kind::S3).await);
    source.rig.push_durably(&push_files(&source.rig, 100, 1)).await;
    for (denied, text) in [(&source, "cannot read the source: aws"), (&target, "cannot use the target: aws")]
    {
        denied.faults().inject("GET", "", u64::MAX, FaultAction::refuse(403, "AccessDenied"));
        let error = run(&context(&source.rig, &target.rig), &target.rig).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(error.to_string().starts_with(text), "{error}");
        denied.faults().clear();
    }
    for method in ["PUT", "POST"] {
        target.faults().inject(method, "", u64::MAX, FaultAction::refuse(403, "AccessDenied"));
    }
    let error = run(&context(&source.rig, &target.rig), &target.rig).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.to_string().starts_with("cannot use the target: aws"), "{error}");
    assert_eq!(committed(target.remote()).await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_copies_of_a_run_with_one_vault_do_not_share_their_journals() {
    let (source, target) = (Rig::with_steps(1).await, Rig::with_directory().await);
    let lock = target.vault.lock_copies(&run_name(), target.remotes[0].name()).unwrap();
    let error = run(&context(&source, &target), &target).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Held, "{error}");
    drop(lock);
    copy(&source, &target).await;
}

fn keys_of(server: &StrictS3) -> StaticKeys {
    StaticKeys { access_key: server.access_key().to_owned(), secret_key: server.secret_key().to_owned() }
}

/// Copies within one server and returns the bytes of the data that went through this machine.
async fn copied_in_the_store(rig: &mut Rig, url: &str, options: OpenOptions, faults: &Faults) -> CopyReport {
    rig.push_durably(&push_files(rig, 100, 1)).await;
    let from = rig.remotes[0].clone();
    let mut settings: RemoteSettings = (*from.settings).clone();
    settings.name = "moved".parse().unwrap();
    settings.url = url.parse().unwrap();
    let store = open_with(&settings, rig.observer.clone(), options.clone()).await.unwrap();
    let to = RunRemote::new(store, settings.clone().into(), run_name());
    let above = CommonStore::settings(&from.settings, &settings).unwrap();
    let above = open_with(&above, rig.observer.clone(), options).await.unwrap();
    let common = Some(CommonStore::new(above, &from.settings, &settings));
    faults.clear_requests();
    let report = run(&CopyContext { to: to.clone(), common, ..context(rig, rig) }, rig).await.unwrap();
    assert_eq!(outcomes(&report), [(100, Ok(CopyOutcome::Copied))]);
    let health = check_remote(&to, id(1, 100), Depth::Deep, &rig.observer).await.unwrap();
    assert!(health.is_sound(), "{:?}", health.faults);
    report
}

fn data_requests(faults: &Faults) -> Vec<String> {
    let requests = faults.requests().into_iter().filter(|request| {
        (request.method == "GET" || request.body_bytes > 10_000) && request.path.contains("step_100/big.bin")
    });
    requests.map(|request| format!("{} {}", request.method, request.path)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn within_one_s3_bucket_no_byte_goes_through_this_machine() {
    let server = StrictS3::start();
    let mut rig = Rig::with_s3(&server).await;
    let options = OpenOptions { s3_keys: Some(keys_of(&server)), ..OpenOptions::default() };
    let report = copied_in_the_store(&mut rig, "s3://bucket/else where", options, server.faults()).await;
    assert_eq!(report.copied_bytes, (2 * PART + 105) as u64);
    let copies = asked(server.faults(), "PUT", "UploadPartCopy");
    assert_eq!(copies, 3, "{:?}", data_requests(server.faults()));
}

#[tokio::test(flavor = "multi_thread")]
async fn within_one_gcs_bucket_no_byte_goes_through_this_machine() {
    let server = StrictGcs::start();
    let mut rig = Rig::new();
    rig.add_gcs("google", &server).await;
    let options = OpenOptions::default();
    let report = copied_in_the_store(&mut rig, "gs://bucket/elsewhere", options, server.faults()).await;
    assert_eq!(report.copied_bytes, (2 * PART + 105) as u64);
    assert_eq!(asked(server.faults(), "POST", "rewriteTo"), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_store_may_not_copy_is_sent() {
    let server = StrictS3::start();
    let mut rig = Rig::with_s3(&server).await;
    let options = OpenOptions { s3_keys: Some(keys_of(&server)), ..OpenOptions::default() };
    server.faults().inject("PUT", "CopyObject", u64::MAX, FaultAction::refuse(403, "AccessDenied"));
    server.faults().inject("PUT", "UploadPartCopy", u64::MAX, FaultAction::refuse(403, "AccessDenied"));
    let report = copied_in_the_store(&mut rig, "s3://bucket/else where", options, server.faults()).await;
    assert_eq!(report.copied_bytes, 0);
}
