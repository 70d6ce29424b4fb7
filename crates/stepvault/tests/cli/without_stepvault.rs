//! What `docs/guides/without-stepvault.md` says: the AWS command line alone gets a step back, and the reader of the format
//! proves it.

use std::path::Path;
use std::process::Command;

use stepvault_testkit::peers::{PYTHON_VARIABLE, aws_program};
use stepvault_testkit::s3::StrictS3;
use stepvault_testkit::tree;

use crate::support::Place;

/// Runs one of the guide's commands, and returns what it prints.
fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{command:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
#[ignore = "needs the AWS command line that scripts/test installs"]
fn a_step_comes_back_with_the_aws_command_line_alone() {
    let (place, server) = (Place::new(), StrictS3::start());
    server.create_bucket("bucket");
    let variables =
        [("AWS_ACCESS_KEY_ID", server.access_key()), ("AWS_SECRET_ACCESS_KEY", server.secret_key())];
    let step = place.checkpoint("checkpoint-1000", "weights");
    tree::write(&step.join("shards/large.bin"), vec![7; 20 << 20]);
    let remote = format!("s3://bucket/prefix?endpoint={}&region=us-east-1", server.endpoint());
    let push = ["push", "checkpoints/checkpoint-1000", "--run", "demo/a", "--remote", &remote];
    place.command(push).envs(variables).run().expect_code(0);
    let aws = |arguments: &[&str]| {
        let mut command = Command::new(aws_program());
        let region = ("AWS_DEFAULT_REGION", "us-east-1");
        command.args(["--endpoint-url", &server.endpoint(), "s3"]).args(arguments);
        output(command.envs(variables).envs([region]).current_dir(place.root()))
    };
    let commits = aws(&["ls", "s3://bucket/prefix/demo/a/.stepvault/commits/"]);
    assert!(commits.trim_end().ends_with(" 000000001000.a1.json"), "{commits}");
    let url = "s3://bucket/prefix/demo/a/000000001000.a1/checkpoint-1000";
    aws(&["cp", "--recursive", url, "restored/checkpoint-1000"]);
    // Megabytes are not printed.
    assert!(tree::read_tree(&place.path("restored/checkpoint-1000")) == tree::read_tree(&step));

    aws(&["cp", "--recursive", "s3://bucket/prefix/demo/a", "copy/demo/a"]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/read-store.py");
    let url = format!("file://{}", place.path("copy").display());
    let python = std::env::var(PYTHON_VARIABLE).unwrap();
    output(Command::new(python).arg(script).args([&url, "demo/a", "proved"]).current_dir(place.root()));
    assert!(tree::read_tree(&place.path("proved/checkpoint-1000")) == tree::read_tree(&step));
}
