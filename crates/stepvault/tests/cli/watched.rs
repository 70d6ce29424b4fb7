//! A run whose directory the agent watches, on a node that can be lost.

use serde_json::Value;

use crate::support::{Outcome, Place};

/// Configures a run that watches `out`.
pub(crate) fn configured() -> Place {
    let place = Place::new();
    let text = format!(
        "node = \"n\"\n[local]\ndirectory = \"vault\"\n[agent]\npoll-interval = \"200ms\"\n[remote.main]\nurl = \"{}\"\n\
         [run.\"demo/a\"]\nwatch = \"out\"\nquiet-time = \"1s\"\n",
        place.remote()
    );
    place.write("n.toml", text);
    place
}

pub(crate) fn on(place: &Place, arguments: &[&str]) -> Outcome {
    place.run(&[arguments, &["--config", "n.toml"]].concat())
}

/// One round of the agent, after which all is durable.
#[track_caller]
pub(crate) fn round(place: &Place) -> Value {
    let document = place.command(["agent", "--once", "--config", "n.toml"]).document(0);
    assert_eq!(document["durable"], true, "{document:#}");
    document
}

/// Removes the trainer's directory and everything else on this node but its configuration.
pub(crate) fn lose_the_node(place: &Place) {
    for name in ["out", "vault", ".stepvault"] {
        place.remove(name);
    }
}
