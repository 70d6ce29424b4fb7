//! What operations cost on a run of thousands of steps: the requests grow no faster than the steps.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use stepvault_core::codec::{decode, encode};
use stepvault_core::commit::{Commit, FoundPart};
use stepvault_core::digest::Sha256Digest;
use stepvault_core::keys::RunKeys;
use stepvault_core::manifest::PartManifest;
use stepvault_core::records::Claim;
use stepvault_engine::prune::plan_remote;
use stepvault_engine::tier::catalog::pin;
use stepvault_engine::tier::step_state::{visible_and_incomplete, visible_commits};
use stepvault_engine::verify::{Depth, check_steps};
use stepvault_testkit::faults::{FaultAction, Faults};
use stepvault_testkit::objects::StoredObject;
use stepvault_testkit::s3::StrictS3;

use crate::harness::{Rig, asked, id, run_name};

const FEW: u64 = 600;
const MANY: u64 = 1_200;

/// A run of `count` steps of one file: the first was pushed, the others have its objects under their own names, which are
/// written behind the client's back.
async fn with_steps(server: &StrictS3, count: u64) -> Rig {
    let rig = Rig::with_patient_s3(server, 60).await;
    rig.push_durably(&rig.write_step(1, &[("x", 10)], 1, 1_000)).await;
    let keys = RunKeys::new(run_name());
    let node = rig.request(rig.directory.path()).current.writer.place.node().clone();
    let first = id(1, 1);
    server.objects().with(|objects| {
        let full = |objects: &BTreeMap<String, StoredObject>, key: &str| {
            objects.keys().find(|full| full.ends_with(key)).unwrap().clone()
        };
        let marker = full(objects, &keys.marker());
        let prefix = marker.strip_suffix(&keys.marker()).unwrap().to_owned();
        let body = |key: String| objects[&format!("{prefix}{key}")].body.clone();
        let manifest: PartManifest = decode(&body(keys.part(first, &node)), "manifest").unwrap();
        let claim: Claim = decode(&body(keys.claim(first)), "claim").unwrap();
        let data = objects
            [&format!("{prefix}{}", keys.data("step_1", first, &manifest.files[0].path).unwrap())]
            .clone();
        for step in 2..=count {
            let (id, name) = (id(1, step), format!("step_{step}"));
            let record = |bytes: Vec<u8>| StoredObject {
                etag: hex(&bytes),
                body: Bytes::from(bytes),
                modified: SystemTime::now(),
                checksums: BTreeMap::new(),
                ..data.clone()
            };
            let manifest = PartManifest { id, name: name.clone(), ..manifest.clone() };
            let part = encode(&manifest).unwrap();
            let found = FoundPart::of(&manifest, Sha256Digest::of(&part), part.len() as u64);
            let claim = Claim { id, name: name.clone(), ..claim.clone() };
            for (key, object) in [
                (keys.claim(id), record(encode(&claim).unwrap())),
                (keys.part(id, &node), record(part)),
                (keys.commit(id), record(encode(&Commit::of(vec![found]).unwrap()).unwrap())),
                (keys.data(&name, id, &manifest.files[0].path).unwrap(), data.clone()),
            ] {
                objects.insert(format!("{prefix}{key}"), object);
            }
        }
    });
    rig
}

fn hex(bytes: &[u8]) -> String {
    Sha256Digest::of(bytes).to_string()[..32].to_owned()
}

/// The number of requests, and of the listings among them. How often the marker is looked at depends on the time.
fn counts(faults: &Faults) -> (usize, usize) {
    let mut requests = faults.requests();
    requests.retain(|request| !request.path.contains("vault.json"));
    (requests.len(), requests.iter().filter(|request| request.path.contains("list-type=2")).count())
}

/// The requests of each operation on a run of `count` steps: all, and the listings among them.
async fn costs(count: u64) -> Vec<(&'static str, usize, usize)> {
    let server = StrictS3::start();
    let rig = with_steps(&server, count).await;
    let remote = rig.remotes[0].clone().remembered_by(&rig.vault);
    let mut costs = Vec::new();
    let mut note = |what| {
        let (requests, listings) = counts(server.faults());
        costs.push((what, requests, listings));
        server.faults().clear_requests();
    };
    server.faults().clear_requests();
    assert_eq!(visible_commits(&remote).await.unwrap().len() as u64, count);
    note("list, the first time");
    visible_commits(&remote).await.unwrap();
    note("list");
    let one = visible_and_incomplete(&remote, Some(id(1, 7).step)).await.unwrap();
    assert_eq!((one.ids.len() as u64, one.commits.len()), (count, 1));
    note("one step");
    pin(&remote, id(1, 7), "").await.unwrap();
    note("pin");
    let ids: Vec<_> = one.ids.into_iter().collect();
    let mut sound = Vec::new();
    let add =
        |id, health: stepvault_engine::verify::StepHealth| sound.extend(health.is_sound().then_some(id));
    check_steps(&remote, &ids, Depth::Checksums, &rig.observer, add).await.unwrap();
    assert_eq!(sound, ids);
    note("verify");
    rig.gc(Duration::from_secs(3600)).await.unwrap();
    note("gc");
    plan_remote(&rig.remote_prune(10), true).await.unwrap();
    note("plan of a prune");
    assert_eq!(rig.prune(10).await.unwrap().removed.len() as u64, count - 11);
    note("prune");
    costs
}

#[tokio::test(flavor = "multi_thread")]
async fn twice_the_steps_take_at_most_twice_the_requests() {
    let (few, many) = tokio::join!(costs(FEW), costs(MANY));
    for ((what, few, few_lists), (_, many, many_lists)) in few.into_iter().zip(many) {
        // A page more of each listing.
        let limit = 2 * few + 20;
        assert!(many <= limit, "{what}: {few} requests of {FEW} steps, {many} of {MANY}");
        assert!(many_lists <= 2 * few_lists + 20, "{what}: {few_lists} and {many_lists} listings");
        match what {
            "list" | "one step" | "plan of a prune" => assert!(many <= 120, "{what}: {many} requests"),
            "pin" => assert_eq!(many, few, "{what}"),
            "prune" => assert!(many_lists <= 50, "{what}: {many_lists} listings"),
            _ => assert!(many as u64 <= 5 * MANY, "{what}: {many} requests"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn gc_and_verify_read_the_records_of_several_steps_at_once() {
    // As many requests as are sent at once to a store that answers soon.
    const AT_ONCE: usize = 8;
    let server = StrictS3::start();
    let rig = with_steps(&server, 40).await;
    let ids: Vec<_> = (1..=40).map(|step| id(1, step)).collect();
    // No manifest is answered: only as many are asked for as are read at once.
    let silent = FaultAction::Delay(Duration::from_secs(3600));
    server.faults().inject("GET", "/parts/", u64::MAX, silent);
    let waited = async || {
        while asked(server.faults(), "GET", "/parts/00") < AT_ONCE {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let limit = Duration::from_secs(30);
    let verified = check_steps(&rig.remotes[0], &ids, Depth::Listed, &rig.observer, |_, _| {});
    tokio::select! {
        _ = verified => panic!("verified without manifests"),
        all = tokio::time::timeout(limit, waited()) => all.unwrap(),
    }
    server.faults().clear_requests();
    tokio::select! {
        _ = rig.gc_now() => panic!("gc without manifests"),
        all = tokio::time::timeout(limit, waited()) => all.unwrap(),
    }
}
