//! `init`, `config show`, `config check`, and the sources of values.

use serde_json::Value;

use crate::support::{Place, list};

#[test]
fn init_writes_a_file_that_is_right_and_never_over_another() {
    let place = Place::new();
    place.succeed(&["init"]);
    let written = place.read("stepvault.toml");
    assert!(written.contains("[upload]"), "{written}");
    place.succeed(&["config", "check"]);

    place.write("stepvault.toml", "# mine\n");
    place
        .run(&["init"])
        .expect_code(1)
        .expect_error("refusing to overwrite the file")
        .expect_hint("give another PATH, or overwrite the file with --force");
    assert_eq!(place.read("stepvault.toml"), "# mine\n");
    place.succeed(&["init", "--force"]);
    assert_eq!(place.read("stepvault.toml"), written);

    std::fs::create_dir(place.path("etc")).unwrap();
    let document = place.document(0, &["init", "etc"]);
    assert_eq!(document["path"], place.path("etc/stepvault.toml").to_str().unwrap());
}

#[test]
fn an_unknown_key_is_refused_with_the_one_that_was_meant() {
    let place = Place::new();
    std::fs::write(place.path("stepvault.toml"), "[upload]\nmemory-budgte = \"64 MiB\"\n").unwrap();
    place
        .run(&["config", "check"])
        .expect_code(2)
        .expect_stdout(&["stepvault.toml:2: upload.memory-budgte", "memory-budget"]);

    let document = place.document(2, &["config", "check"]);
    assert_eq!(document["faults"][0]["source"]["line"], 2);
    assert!(document["faults"][0]["hint"].as_str().unwrap().contains("memory-budget"));

    place.run(&["list", "--run", "a"]).expect_code(2).expect_error("memory-budgte");
}

fn value<'a>(document: &'a Value, key: &str) -> &'a Value {
    let values = list(document, "values");
    values
        .iter()
        .find(|value| value["key"] == key)
        .unwrap_or_else(|| panic!("{key} is missing: {document:#}"))
}

#[test]
fn flags_win_over_variables_which_win_over_the_file() {
    let place = Place::new();
    let file = "[local]\ndirectory = \"from-file\"\n[upload]\nmemory-budget = \"32 MiB\"\n";
    place.write("stepvault.toml", file);
    let show = |variables: &[(&str, &str)], arguments: &[&str]| {
        let mut show = place.command(["config", "show"]);
        show.envs(variables.iter().copied()).args(arguments).document(0)
    };
    let document = show(&[], &[]);
    assert_eq!(value(&document, "local.directory")["source"]["from"], "file");
    assert_eq!(value(&document, "local.directory")["source"]["line"], 2);
    assert_eq!(value(&document, "agent.poll-interval")["source"]["from"], "default");

    let local = ("STEPVAULT_LOCAL", "from-variable");
    let document = show(&[local, ("STEPVAULT_UPLOAD_MEMORY_BUDGET", "64 MiB")], &[]);
    let expected = format!("{:?}", place.path("from-variable").to_str().unwrap());
    assert_eq!(value(&document, "local.directory")["value"], expected);
    assert_eq!(value(&document, "local.directory")["source"]["flag"], "STEPVAULT_LOCAL");
    assert_eq!(
        value(&document, "upload.memory-budget")["source"]["variable"],
        "STEPVAULT_UPLOAD_MEMORY_BUDGET"
    );

    let document = show(&[local], &["--local", "from-flag", "--node", "n1"]);
    assert_eq!(value(&document, "local.directory")["source"]["flag"], "--local");
    assert_eq!(value(&document, "node")["value"], "\"n1\"");
}

#[test]
fn a_configured_run_and_remote_need_no_flags() {
    let place = Place::new();
    let remote = place.remote();
    let file = format!(
        "[local]\ndirectory = \"vault\"\n[remote.main]\nurl = \"{remote}\"\n\
         [run.only]\nmetrics-file = \"state.json\"\nmetrics = {{ loss = \"/loss\" }}\n"
    );
    place.write("stepvault.toml", file);
    place.checkpoint("step_1", "x");
    place.succeed(&["push", "checkpoints/step_1"]);
    let document = place.document(0, &["list"]);
    assert_eq!(document["steps"][0]["local"], "durable");
    assert_eq!(document["steps"][0]["remotes"], serde_json::json!(["main"]));
    assert_eq!(document["steps"][0]["metrics"]["loss"], 1.0);
    // By its name or by its URL it is the same remote.
    for given in ["main", remote.as_str()] {
        let document = place.document(0, &["status", "--remote", given]);
        assert_eq!(document["remotes"][0]["durable_steps"], 1, "{given}");
    }
    place
        .run(&["list", "--remote", "mian"])
        .expect_code(2)
        .expect_error("give one of the configured remotes (main) or a URL");
    place
        .run(&["agent", "--once"])
        .expect_code(0)
        .expect_stdout(&["every sealed step is durable on every remote"]);
}

#[test]
fn profiles_are_checked_with_the_rest_and_the_agent_refuses_wrong_ones() {
    let place = Place::new();
    let write = |text: &str| {
        let text = format!("[local]\ndirectory = \"vault\"\n{text}");
        place.write("stepvault.toml", text);
    };
    write("[run.r]\nprofile = \"hf-trianer\"\n");
    let outcome = place.run(&["config", "check"]).expect_code(2);
    let told = "stepvault.toml:4: run.r.profile: there is no profile 'hf-trianer'\n  hint: did you mean 'hf-trainer'?\n";
    outcome.expect_stdout(&[told]);
    place.run(&["agent", "--once"]).expect_code(2).expect_error("there is no profile 'hf-trianer'");

    write("[run.r]\n[[profile]]\nname = \"mine\"\nlinks = \"soft\"\n");
    let document = place.document(2, &["config", "check"]);
    assert_eq!(document["faults"][0]["key"], "profile");
    assert_eq!(document["faults"][0]["source"]["line"], 6, "{document:#}");

    write("[run.r]\nprofile = \"prime-rl\"\nseries = [\"weights\"]\n");
    place.succeed(&["config", "check"]);
    let document = place.document(0, &["config", "show"]);
    assert_eq!(value(&document, "run.r.complete")["value"], "\"auto\"");
    assert_eq!(value(&document, "run.r.profile")["value"], "\"prime-rl\"");
    assert_eq!(value(&document, "run.r.quiet-time")["value"], "\"60s\"");
}
