//! Checks the simulation's store and link against the contract of every store.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use stepvault_testkit::conformance;

use crate::actor::Actor;
use crate::faults::Weather;
use crate::invariants::Judge;
use crate::link::Link;
use crate::machine::Machine;
use crate::store::Cloud;
use crate::trace::Trace;

#[test]
fn the_store_of_the_simulation_keeps_the_contract_of_every_store() {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let judge = Judge::new(Vec::new(), 1, 1, Duration::ZERO);
        let weather = Weather::new(fastrand::Rng::with_seed(1));
        weather.clear_up();
        let link = Link {
            cloud: Arc::new(Cloud::new(0, true, Arc::new(Mutex::new(judge)), Arc::new(Trace::new()))),
            weather: Arc::new(weather),
            machine: Machine::new("machine", 0),
            actor: Actor::somebody(),
            url: "memory://store-0".to_owned(),
            bug: None,
            copies_from: None,
            held: Arc::default(),
            forgotten: Arc::default(),
        };
        conformance::run(Arc::new(link), &[]).await;
    });
}
