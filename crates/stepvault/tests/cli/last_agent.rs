//! A round over what a killed agent left, with the configuration, node and launch that this agent was started with.

use stepvault_testkit::tree::files_below;

use crate::support::Place;

#[test]
fn a_round_like_the_last_agent_needs_nothing_but_the_vault() {
    let place = Place::new();
    std::fs::create_dir_all(place.path("out")).unwrap();
    place.write("once.toml", "[run.\"demo/a\"]\nwatch = \"out\"\nquiet-time = \"1h\"\n");
    let arguments = ["--config", "once.toml", "--run", "demo/a", "--local", "vault"];
    let remote = place.remote();
    let options = ["--remote", &remote, "--node", "b", "--nodes", "a,b"];
    let variables = [("STEPVAULT_LAUNCH", "job-7"), ("STEPVAULT_RUN_DEMO_A_PATTERN", "step_1*")];
    let agent = place.start_agent(&[&arguments[..], &options].concat(), &variables);
    place.agent_status(&["--run", "demo/a", "--local", "vault"]);
    agent.kill();
    for step in ["step_1", "step_2"] {
        place.save_into("out", step);
    }
    place.remove("once.toml");
    std::fs::rename(place.path("vault"), place.path("moved")).unwrap();

    let round = ["agent", "--once", "--trainer-ended", "--like-last"];
    let report = place.document(0, &[&round[..], &["--local", "moved"]].concat());
    // Its pattern excludes step_2.
    assert_eq!(report["sealed"]["total"], 1, "{report:#}");
    // Its remote, its launch, and its node among two.
    let records = files_below(&place.path("remote/demo/a/.stepvault"));
    let of = |directory: &str| -> Vec<String> {
        let found = records.iter().filter(|path| path.to_string_lossy().contains(directory));
        found.map(|path| std::fs::read_to_string(path).unwrap()).collect()
    };
    let (claims, parts) = (of("/attempts/"), of("/parts/"));
    let is_of_launch =
        |claim: &String| claim.contains(r#""launch":"job-7""#) && claim.contains(r#"["a","b"]"#);
    assert!(claims.len() == 1 && claims.iter().all(is_of_launch), "{claims:?}");
    let is_of_node = |part: &String| part.contains(r#""node":"b""#);
    assert!(parts.len() == 1 && parts.iter().all(is_of_node), "{parts:?}");
}

#[test]
fn a_round_does_what_a_killed_run_has_left() {
    let place = Place::new();
    let save = "for i in $(seq 1200); do [ -e .stepvault/invocation.json ] && break; sleep 0.05; done; \
                mkdir -p new out && echo weights > new/model.bin && mv new out/step_1 && kill -KILL $PPID";
    let options = ["--into", "out", "--run", "demo/a"];
    let run = ["run", "--remote", &place.remote()];
    let run = [&run[..], &options, &["--", "sh", "-c", save]].concat();
    place.command(run).own_group().run();
    assert!(!place.commit(1, 1).exists());
    place.succeed(&["agent", "--once", "--trainer-ended", "--like-last", "--local", ".stepvault"]);
    assert!(place.commit(1, 1).exists());
}

#[test]
fn a_round_like_no_agent_is_refused() {
    let place = Place::new();
    let round = ["agent", "--once", "--like-last"];
    place
        .run(&round)
        .expect_code(2)
        .expect_stderr(&["cannot use the last agent's configuration: no vault is given"]);
    place
        .run(&[&round[..], &["--local", "vault"]].concat())
        .expect_code(2)
        .expect_stderr(&["vault: it is not a vault"]);
    place.push_steps(&[1]);
    place.checkpoint("step_2", "two");
    place.succeed_here(&["push", "checkpoints/step_2"]);
    place
        .run(&[&round[..], &["--local", ".stepvault"]].concat())
        .expect_code(2)
        .expect_stderr(&["no agent has recorded how it was started"])
        .expect_hint("give the configuration: --config FILE");
    place
        .run(&[&round[..], &["--local", ".stepvault", "--node", "a"]].concat())
        .expect_code(2)
        .expect_stderr(&["--node is given too"]);
    place.run(&["agent", "--like-last", "--local", ".stepvault"]).expect_code(2).expect_stderr(&["--once"]);
}
