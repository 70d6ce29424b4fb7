//! docs/reference/control.md: the answers of the control socket, from the page's own requests.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use stepvault_testkit::process::TestProcess;

use crate::generated::check;
use crate::json::plain;
use crate::place::{Place, read};

const PAGE: &str = "docs/reference/control.md";
const BEGIN: &str = "```http\n";
const END: &str = "\n```";
const PATIENCE: Duration = Duration::from_mins(2);

#[test]
fn the_answers_of_the_control_socket_are_those_of_an_agent() {
    let place = Place::new();
    let root = place.path().display().to_string();
    std::fs::create_dir_all(place.path().join("live/step_5")).unwrap();
    std::fs::write(place.path().join("live/step_5/weights.dat"), "weights").unwrap();
    let second = TestProcess::idle();
    let mut agent = Command::new(env!("CARGO_BIN_EXE_stepvault"));
    agent
        .args(["agent", "--quiet", "--run", "my-run", "--node", "node-0", "--local", "vault"])
        .args(["--remote", &format!("main=file://{root}/remote")])
        .args(["--follow", &std::process::id().to_string()])
        .current_dir(place.path())
        .env_clear();
    let agent = TestProcess::start(&mut agent);
    let socket = place.path().join("vault/agent.sock");
    let begun = Instant::now();
    while UnixStream::connect(&socket).is_err() {
        assert!(begun.elapsed() < PATIENCE, "the agent does not listen");
        std::thread::sleep(Duration::from_millis(50));
    }
    // Requests and answers take turns.
    let page = read(PAGE);
    let mut pieces = page.split(BEGIN);
    let mut text = pieces.next().unwrap().to_owned();
    while let (Some(request), Some(answer)) = (pieces.next(), pieces.next()) {
        let (asked, _) = request.split_once(END).unwrap();
        let (_, after) = answer.split_once(END).unwrap();
        let (line, body) = asked.split_once("\n\n").unwrap_or((asked, ""));
        let body = body
            .replace("/data", &root)
            .replace("4711", &std::process::id().to_string())
            .replace("4712", &second.id().to_string());
        let (status, answer) = ask(&socket, line, &body);
        let answer = plain(answer, "", &root);
        write!(text, "{BEGIN}{request}{BEGIN}{status}\n\n{answer:#}{END}{after}").unwrap();
    }
    assert!(agent.wait().is_success());
    check(PAGE, &text);
}

fn ask(socket: &Path, line: &str, body: &str) -> (String, Value) {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "{line} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}", body.len())
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.lines().next().unwrap().to_owned();
    (status, serde_json::from_str(body).unwrap())
}
