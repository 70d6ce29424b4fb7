//! Responses with status 200 and an error in their body, as S3 gives them to completions, copies and batch deletions.

use stepvault_testkit::faults::FaultAction;
use stepvault_testkit::process::TestCommand;
use stepvault_testkit::tree::{FileTree, fast_directory, write_tree};

use crate::faults::check::{Harm, holds, stored};
use crate::faults::settings::{Settings, of_environment};
use crate::faults::tally::Tally;
use crate::faults::world::{FILES, Store, World};

/// A request that may get such a response.
struct Lie {
    what: &'static str,
    method: &'static str,
    path: &'static str,
    order: fn(&World) -> TestCommand,
    after: fn(&World) -> Result<(), Harm>,
}

/// Returns step 3: as step 2, but with other bytes at the end of its large file, in a second part.
fn nearly_the_same(world: &World) -> FileTree {
    let mut tree = world.step(2);
    let (_, bytes) = tree.get_mut(std::path::Path::new("model.bin")).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    tree
}

fn push(world: &World) -> TestCommand {
    write_tree(&world.root.join("outputs/step_3"), &nearly_the_same(world));
    world.push(3)
}

fn pushed(world: &World) -> Result<(), Harm> {
    stored(world, 3, 1, &nearly_the_same(world))?;
    stored(world, 2, 1, &world.step(2))
}

fn prune(world: &World) -> TestCommand {
    world.on_run(["prune", "--tier", "store", "--keep-last", "1"])
}

fn pruned(world: &World) -> Result<(), Harm> {
    let left: Vec<_> = world.keys().into_iter().filter(|key| key.contains("/step_1/")).collect();
    if !left.is_empty() {
        return Err(Harm::Stuck(format!("{left:?} are still there")));
    }
    holds(world, "store", &[2].into()).map(|_| ())
}

const COMPLETION: Lie =
    Lie { what: "completion of an upload", method: "POST", path: "uploadId", order: push, after: pushed };

fn on_s3() -> Vec<Lie> {
    vec![
        COMPLETION,
        Lie {
            what: "copy of an object",
            method: "PUT",
            path: "/000000000003.a1/step_3/optimizer/state.bin",
            ..COMPLETION
        },
        Lie { what: "copy of a part", method: "PUT", path: "partNumber=1", ..COMPLETION },
        Lie { what: "deletion of a batch", method: "POST", path: "delete", order: prune, after: pruned },
    ]
}

fn on_gcs() -> Vec<Lie> {
    vec![COMPLETION, Lie { what: "rewrite of an object", method: "POST", path: "rewriteTo", ..COMPLETION }]
}

fn answered(store: fn() -> Store, lies: &[Lie], settings: &Settings) {
    let place = fast_directory();
    let world = World::of(place.path(), store(), &FILES);
    world.have(&[1, 2]);
    let kept = world.keep();
    let mut tallies = Vec::new();
    for lie in lies {
        let what = format!("{} on {}", lie.what, world.store.name());
        let mut tally = Tally::new("200 with an error in its body", &what, 0);
        let (mut most, mut undisturbed) = (0, 0);
        let faults = world.store.faults();
        // No lies at first, for comparison.
        for times in (0..=3_u64).cycle().take(settings.times(2, 40).max(2)) {
            world.bring_back(&kept);
            let order = (lie.order)(&world);
            faults.clear_requests();
            let code = "InternalError".to_owned();
            faults.inject(lie.method, lie.path, times, FaultAction::OkWithError { code });
            let ran = order.run();
            faults.clear();
            let requests = faults.requests();
            let met = requests
                .iter()
                .filter(|request| request.method == lie.method && request.path.contains(lie.path))
                .count();
            tally.runs += 1;
            tally.acknowledged += 2;
            tally.faults += met.min(usize::try_from(times).unwrap());
            if times == 0 {
                undisturbed = requests.len();
            } else {
                most = most.max(requests.len().saturating_sub(undisturbed));
            }
            let outcome = match ran.code {
                0 if met > 0 => (lie.after)(&world),
                0 => Err(Harm::Stuck(format!("no {} {} was sent", lie.method, lie.path))),
                _ => Err(Harm::Stuck(format!("{ran:?}"))),
            };
            tally.record(&format!("{times} times"), outcome);
        }
        tally.note = format!(
            "up to 3 times in a row; at most {most} more requests than the {undisturbed} undisturbed"
        );
        tally.report();
        tallies.push(tally);
    }
    tallies.iter().for_each(Tally::assert_no_harm);
}

#[test]
fn s3_is_not_believed_when_its_200_holds_an_error() {
    answered(Store::s3, &on_s3(), &of_environment());
}

#[test]
fn gcs_is_not_believed_when_its_200_holds_an_error() {
    answered(Store::gcs, &on_gcs(), &of_environment());
}
