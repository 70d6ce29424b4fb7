//! Selective remotes, by the command line: `tier`, and what the other commands make of them.

use serde_json::{Value, json};
use stepvault_testkit::s3::StrictS3;

use crate::support::{Place, assert_members, list};

/// Every third step of `hot` goes to `cold`; on `hot` the newest one stays.
fn place(select: &str) -> Place {
    let place = Place::new();
    let (hot, cold) = (place.remote(), place.path("cold"));
    // Reads prefer the remote that has every step, whatever their order.
    let text = format!(
        "[remote.cold]\nurl = \"file://{}\"\nfrom = \"hot\"\n{select}\n[remote.hot]\nurl = \"{hot}\"\n\
         [keep.remote]\nlast = 1\n[run.\"demo/a\"]\n",
        cold.display()
    );
    place.write("stepvault.toml", text);
    std::fs::create_dir(cold).unwrap();
    place
}

const EVERY_THIRD: &str = "select.every-steps = 3";

fn push(place: &Place, steps: impl IntoIterator<Item = u64>) -> Vec<Value> {
    let one = |step| {
        let name = format!("step_{step}");
        place.checkpoint(&name, &name);
        place.document(0, &["push", &format!("checkpoints/{name}")])
    };
    steps.into_iter().map(one).collect()
}

/// What became of each step, the newest first.
fn states(tier: &Value) -> Vec<(u64, &str)> {
    let steps = list(&tier["remotes"][0]["runs"][0], "steps").iter();
    steps.map(|step| (step["step"].as_u64().unwrap(), step["state"].as_str().unwrap())).collect()
}

/// The remotes that have each step, and those that wait for it, the newest first.
fn where_listed(place: &Place) -> Vec<(u64, Vec<String>, Vec<String>)> {
    let names = |values: &[Value], of: fn(&Value) -> &Value| -> Vec<String> {
        values.iter().map(|value| of(value).as_str().unwrap().to_owned()).collect()
    };
    let listed = place.document(0, &["list"]);
    let row = |step: &Value| {
        let planned = step["planned"].as_array().cloned().unwrap_or_default();
        let planned = names(&planned, |on| &on["remote"]);
        (step["step"].as_u64().unwrap(), names(list(step, "remotes"), |name| name), planned)
    };
    list(&listed, "steps").iter().map(row).collect()
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[test]
fn selected_steps_are_copied_and_then_removed_where_they_came_from() {
    let place = place(EVERY_THIRD);
    for pushed in push(&place, 1..=4) {
        let remotes = list(&pushed, "remotes");
        assert_eq!(remotes.len(), 1, "{pushed:#}");
        assert_members(&remotes[0], &json!({ "remote": "hot", "durable": true }));
    }
    assert_eq!(std::fs::read_dir(place.path("cold")).unwrap().count(), 0, "nothing is uploaded to it");
    place.succeed(&["wait", "4", "--for", "durable", "--timeout", "0s"]);
    assert_eq!(where_listed(&place)[1], (3, words(&["hot"]), words(&["cold"])));
    place.run(&["list"]).expect_code(0).expect_stdout(&["local, hot, cold (planned)"]);

    let planned = place.document(0, &["tier", "--dry-run"]);
    assert_eq!(states(&planned), [(4, "skipped"), (3, "copy"), (2, "skipped"), (1, "skipped")]);
    assert_members(&planned["remotes"][0], &json!({ "from": "hot", "to": "cold", "dry_run": true }));
    assert_eq!(std::fs::read_dir(place.path("cold")).unwrap().count(), 0);

    place.run(&["prune", "--tier", "remote"]).expect_code(0).expect_stdout(&["waits to be copied to cold"]);
    let tier = place.document(0, &["tier"]);
    assert_eq!(states(&tier), [(4, "skipped"), (3, "copied")]);
    let run = &tier["remotes"][0]["runs"][0];
    assert_eq!(run["vault_bytes"], run["bytes"], "{run:#}");
    assert_eq!(states(&place.document(0, &["tier", "--all-runs"])), [(4, "skipped"), (3, "present")]);
    place.succeed(&["prune", "--tier", "remote"]);
    place.succeed(&["prune", "--tier", "local", "--keep-last", "1", "--local", ".stepvault"]);
    assert_eq!(where_listed(&place), [(4, words(&["hot"]), Vec::new()), (3, words(&["cold"]), Vec::new())]);

    place.succeed(&["restore", "--step", "3", "--into", "restored"]);
    assert_eq!(place.read("restored/step_3/model.bin"), place.read("checkpoints/step_3/model.bin"));
    for command in [&["verify", "--deep"][..], &["show", "3"], &["gc"]] {
        place.succeed(command);
    }
    // The rules for remotes do not apply to it; given ones do.
    push(&place, 5..=6);
    place.succeed(&["tier"]);
    place
        .run(&["prune", "--tier", "cold", "--keep-last", "1"])
        .expect_code(0)
        .expect_stdout(&["removed 1 step"]);
    assert_eq!(states(&place.document(0, &["tier"]))[0], (6, "present"));
}

#[test]
fn a_step_that_is_not_old_enough_waits() {
    let place = place("after = \"1h\"");
    push(&place, [1]);
    let tier = place.document(0, &["tier"]);
    assert_eq!(states(&tier), [(1, "planned")]);
    assert!(tier["remotes"][0]["runs"][0]["steps"][0]["due_at"].is_string(), "{tier:#}");
    place.run(&["tier"]).expect_code(0).expect_stdout(&["0 steps", "1 planned"]);
}

#[test]
fn what_cannot_be_copied_or_uploaded_is_refused_with_the_reason() {
    let place = place(EVERY_THIRD);
    place.checkpoint("step_3", "three");
    place
        .run(&["push", "checkpoints/step_3", "--remote", "cold"])
        .expect_code(2)
        .expect_error("it is a selective remote: steps are copied to it from another one");
    place.run(&["tier", "--remote", "hot"]).expect_code(2).expect_error("no selective remote");
    place.run(&["tier", "--all-runs", "--run", "demo/a"]).expect_code(2).expect_error("--run and --all-runs");
    push(&place, [3]);
    // A selective remote that is away costs only itself.
    std::fs::remove_dir(place.path("cold")).unwrap();
    std::fs::write(place.path("cold"), "no directory").unwrap();
    push(&place, [4]);
    assert!(!place.run(&["tier"]).is_success());
    place.run(&["prune", "--tier", "hot"]).expect_stdout(&["waits to be copied to cold"]);
}

#[test]
fn a_selective_remote_alone_can_be_followed() {
    let place = place(EVERY_THIRD);
    push(&place, 1..=4);
    let follow = ["follow", "--remote", "cold", "--into", "followed", "--once", "--timeout", "0s"];
    place.run(&follow).expect_code(10);
    place.succeed(&["tier"]);
    place.run(&follow).expect_code(0).expect_stdout(&["000000000003.a1/step_3"]);
    // With the remote that has every step, that one decides.
    let both = ["follow", "--into", "all", "--once", "--timeout", "0s"];
    place.run(&both).expect_code(0).expect_stdout(&["000000000004.a1/step_4"]);
}

#[test]
fn a_listing_lists_each_remote_once_selective_or_not() {
    let (place, server) = (Place::new(), StrictS3::start());
    server.create_bucket("hot");
    server.create_bucket("cold");
    let url = |bucket| format!("s3://{bucket}?endpoint={}&region=us-east-1", server.endpoint());
    let text = format!(
        "[remote.hot]\nurl = \"{}\"\n[remote.cold]\nurl = \"{}\"\nfrom = \"hot\"\nselect.every-steps = 2\n\
         [run.\"demo/a\"]\n",
        url("hot"),
        url("cold")
    );
    place.write("stepvault.toml", text);
    let keys = [("AWS_ACCESS_KEY_ID", server.access_key()), ("AWS_SECRET_ACCESS_KEY", server.secret_key())];
    let run = |arguments: &[&str]| place.command(arguments).envs(keys).run().expect_code(0);
    for step in 1..=2 {
        place.checkpoint(&format!("step_{step}"), "content");
        run(&["push", &format!("checkpoints/step_{step}")]);
    }
    server.faults().clear_requests();
    let listed = run(&["list"]);
    listed.expect_stdout(&["hot, cold (planned)", "hot, cold (not selected)"]);
    let requests = server.faults().requests();
    for bucket in ["/hot/?", "/cold/?"] {
        let of_commits =
            |path: &str| path.starts_with(bucket) && path.contains("list-type=2") && path.contains("commits");
        let count = requests.iter().filter(|request| of_commits(&request.path)).count();
        assert_eq!(count, 1, "{bucket}: {requests:#?}");
    }
}
