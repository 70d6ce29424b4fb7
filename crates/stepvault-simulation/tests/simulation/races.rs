//! Races that the seeds have found, each reproduced by hand.

use std::sync::Arc;
use std::time::Duration;

use stepvault_core::ids::{Attempt, Step, StepId};
use stepvault_engine::tier::catalog;
use tokio::time::sleep;

use crate::actor::Role;
use crate::faults::Hold;
use crate::invariants::Violation;
use crate::seeds::on_this_thread;
use crate::world::World;

const MINUTE: Duration = Duration::from_mins(1);

fn id(step: u64) -> StepId {
    StepId::new(Attempt::FIRST, Step::new(step).unwrap())
}

/// Returns a world without faults with this number of steps in its first run.
async fn calm_world(steps: usize) -> World {
    let mut world = World::new(0, None);
    world.weather.clear_up();
    for _ in 0..steps {
        world.save_at(0, false);
        sleep(MINUTE).await;
    }
    world
}

async fn ended(mut world: World, kept: u64) -> (Option<Violation>, bool) {
    world.settle().await;
    let is_there = world.judge.lock().unwrap().visible(0, 0).contains_key(&id(kept));
    (world.violation(), is_there)
}

/// The writer was told that nobody had tombstoned its step, and then gc did.
#[test]
fn a_step_that_is_committed_while_gc_tombstones_it_stays() {
    let outcome = on_this_thread(0, async || {
        let mut world = calm_world(1).await;
        let (grace, other) = (world.grace, Arc::clone(&world.others[0]));
        world.weather.hold(Hold { role: Role::Agent, key: "/parts/000000000020", time: grace + 12 * MINUTE });
        world.weather.hold(Hold { role: Role::Gc, key: "/tombstones/000000000020", time: 4 * MINUTE });
        world.save_at(0, false);
        sleep(grace + 5 * MINUTE).await;
        world.run_gc(&other, 0, 0).await.unwrap();
        sleep(5 * MINUTE).await;
        world.run_gc(&other, 0, 0).await.unwrap();
        ended(world, 20).await
    });
    assert_eq!(outcome, (None, true));
}

/// The pruner had checked for pins before the pin existed.
#[test]
fn a_pin_that_comes_right_before_the_tombstone_holds() {
    let outcome = on_this_thread(0, async || {
        let mut world = calm_world(5).await;
        let (here, there) = (Arc::clone(&world.others[0]), Arc::clone(&world.others[1]));
        world.weather.hold(Hold { role: Role::Pruner, key: "/tombstones/000000000010", time: 2 * MINUTE });
        let pruning = world.prune(&here, 0, 0, Role::Pruner);
        let actor = world.process(&there, Role::Pinner);
        let remote = world.remotes(&there, &actor, 0).swap_remove(0);
        let pinning = async {
            sleep(MINUTE).await;
            catalog::pin(&remote, id(10), "").await.unwrap();
            world.judge.lock().unwrap().pin(0, (0, id(10)));
        };
        let (done, ()) = tokio::join!(pruning, pinning);
        done.unwrap();
        ended(world, 10).await
    });
    assert_eq!(outcome, (None, true));
}
