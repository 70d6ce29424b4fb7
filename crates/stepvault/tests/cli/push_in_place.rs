//! `push` copies nothing that it can read where it is.

use std::path::PathBuf;

use stepvault_testkit::tree::{files_below, read_tree};
use tempfile::TempDir;

use crate::support::Place;

/// A vault on another filesystem than the checkpoints, where nothing can be linked.
struct Elsewhere(TempDir);

impl Elsewhere {
    fn new() -> Self {
        Self(tempfile::tempdir_in("/dev/shm").unwrap())
    }

    fn path(&self) -> &str {
        self.0.path().to_str().unwrap()
    }

    /// The files of checkpoints in the vault.
    fn weights(&self) -> Vec<PathBuf> {
        files_below(self.0.path()).into_iter().filter(|path| path.ends_with("model.bin")).collect()
    }

    /// The labels of the sealed steps.
    fn steps(&self) -> Vec<String> {
        let seals = files_below(self.0.path()).into_iter().filter(|path| path.ends_with("seal.json"));
        seals.map(|path| path.parent().unwrap().file_name().unwrap().to_str().unwrap().to_owned()).collect()
    }
}

#[test]
fn a_step_that_cannot_be_linked_is_uploaded_from_where_it_is() {
    let (place, vault) = (Place::on_disk(), Elsewhere::new());
    let source = place.checkpoint("step_1", "one");
    let before = read_tree(&source);
    let push = ["push", "checkpoints/step_1", "--local", vault.path()];
    place.succeed_here(&push);
    // The trainer may change its files now, and nothing of the vault would be damaged by it.
    assert_eq!((vault.weights(), vault.steps()), (vec![], vec![]));
    assert_eq!(place.document_here(0, &push)["remotes"][0]["already_durable"], true);
    assert_eq!(read_tree(&source), before);
    place.succeed_here(&["restore", "--into", "back"]);
    assert_eq!(read_tree(&place.path("back/step_1")), before);
}

#[test]
fn a_copy_is_made_where_it_is_asked_for() {
    let (place, vault) = (Place::on_disk(), Elsewhere::new());
    place.checkpoint("step_1", "one");
    place.succeed_here(&["push", "checkpoints/step_1", "--local", vault.path(), "--copy"]);
    assert_eq!(vault.weights().len(), 1);
    place.checkpoint("step_2", "two");
    let policy = place.write("stepvault.toml", "[local]\nlinks = \"reflink-or-copy\"\n");
    let push = ["push", "checkpoints/step_2", "--local", vault.path(), "--config", policy.to_str().unwrap()];
    place.succeed_here(&push);
    assert_eq!(vault.weights().len(), 2);
}

/// Until every remote has the step, the vault knows where its files are.
#[test]
fn a_failed_push_goes_on_from_where_the_files_are() {
    let (place, vault) = (Place::on_disk(), Elsewhere::new());
    let source = place.checkpoint("step_1", "one");
    let away = format!("away=file://{}", place.path("away/archive").display());
    let push = ["push", "checkpoints/step_1", "--local", vault.path(), "--remote", &away];
    place.run_here(&push).expect_code(3).expect_stderr(&["away"]);
    assert_eq!((vault.weights().len(), vault.steps().len()), (0, 1));
    std::fs::create_dir_all(place.path("away/archive")).unwrap();
    place.run_here(&push).expect_code(0);
    assert!(vault.steps().is_empty());
    for remote in ["remote", "away/archive"] {
        let stored = files_below(&place.path(remote)).into_iter().find(|path| path.ends_with("model.bin"));
        assert_eq!(std::fs::read(stored.unwrap()).unwrap(), std::fs::read(source.join("model.bin")).unwrap());
    }
}

/// What a trainer has changed since cannot be uploaded any more. It is said, and the new content is a step of its own.
#[test]
fn a_step_whose_files_changed_before_it_was_uploaded_is_given_up() {
    let (place, vault) = (Place::on_disk(), Elsewhere::new());
    place.checkpoint("step_1", "one");
    let away = format!("away=file://{}", place.path("away/archive").display());
    let push = ["push", "checkpoints/step_1", "--local", vault.path(), "--remote", &away];
    place.run_here(&push).expect_code(3);
    place.checkpoint("step_1", "changed");
    std::fs::create_dir_all(place.path("away/archive")).unwrap();
    place.run_here(&push).expect_code(0).expect_stderr(&["its files changed, and is given up"]);
    assert!(vault.steps().is_empty());
    place.succeed(&["restore", "--into", "back", "--run", "demo/a", "--remote", &away]);
    assert_eq!(read_tree(&place.path("back/step_1")), read_tree(&place.path("checkpoints/step_1")));
}

/// Only `push` waits for the upload. What an agent calls sealed outlives the trainer's files.
#[test]
fn an_agent_seals_what_a_failed_push_left_in_its_place() {
    let (place, vault) = (Place::on_disk(), Elsewhere::new());
    place.checkpoint("step_1", "one");
    let away = format!("away=file://{}", place.path("away/archive").display());
    let tiers = ["--local", vault.path(), "--remote", &away];
    place.run_here(&[&["push", "checkpoints/step_1"], &tiers[..]].concat()).expect_code(3);
    let config = place.write(
        "stepvault.toml",
        format!(
            "[run.\"demo/a\"]\nwatch = \"{}\"\nquiet-time = \"1s\"\n",
            place.path("checkpoints").display()
        ),
    );
    let agent = ["agent", "--once", "--config", config.to_str().unwrap()];
    place.run_here(&[&agent, &tiers[..]].concat());
    assert_eq!((vault.weights().len(), vault.steps().len()), (1, 1));
}

/// A step that no remote can take now is to outlive the next save; without room for a copy it is better there than lost.
#[test]
fn without_any_remote_an_unknown_trainers_files_are_copied() {
    let (place, vault) = (Place::on_disk(), Elsewhere::new());
    place.checkpoint("step_1", "one");
    let away = format!("file://{}", place.path("away/archive").display());
    let push = ["push", "checkpoints/step_1", "--local", vault.path(), "--run", "demo/a", "--remote", &away];
    place.run(&push).expect_code(12);
    place.checkpoint("step_1", "changed");
    assert_eq!(std::fs::read(&vault.weights()[0]).unwrap(), "one".repeat(1000).as_bytes());
}
