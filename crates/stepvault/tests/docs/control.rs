//! docs/reference/control.md: what the control socket answers, from requests that were made.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::generated::{check, heading};
use crate::json::plain;
use crate::place::Place;

const PATIENCE: Duration = Duration::from_mins(2);

/// Ended with the test.
struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Title, method, path, body, and what there is to say.
type Request = (
    &'static str,
    &'static str,
    &'static str,
    Option<Value>,
    &'static str,
);

fn requests(place: &str) -> Vec<Request> {
    vec![
        (
            "How the agent is",
            "GET",
            "/v1/status",
            None,
            "`stopping` says why the agent was asked to stop, `complaints` what keeps it from its work: the lines of \
             the [health check](metrics.md). `remotes[].failed` are steps that are given up until the agent is started \
             again, `skipped` what was passed over in the watched directory, the latest first, `unfinished` what stands \
             there and is not taken over yet; each list has at most 32 entries.",
        ),
        (
            "Announcing a finished step",
            "POST",
            "/v1/announce",
            Some(json!({"run": "my-run", "path": format!("{place}/live/step_5")})),
            "The step is sealed at once, without waiting until it is quiet. In a watched directory whose steps are told \
             by a profile it is the profile's step that is sealed, with all its paths; elsewhere it is what stands at \
             `path`, which is absolute. `step` gives a number that the name does not have, `name` another name. A step \
             that is not complete (`source-changed`) or broken inside (`damaged`) is refused with 409, and one whose \
             files are sealed already is answered with `newly_sealed` false. What is not sealed within 5 s is answered \
             with 202 and the state `queued`. At most 64 wait; one more is answered with 429.",
        ),
        (
            "What became of an announcement",
            "GET",
            "/v1/announcements/1",
            None,
            "The same answer as above; while the step is `queued` it waits up to 10 s for news. The last 512 \
             announcements are remembered.",
        ),
        (
            "Waiting for a step",
            "POST",
            "/v1/wait",
            Some(json!({"run": "my-run", "step": 5, "for": "durable", "timeout_seconds": 60})),
            "`for` is `staged`, `uploaded` or `durable`. Answered with 200 when the step is there (`reached`), will not \
             get there by waiting (`failed`), or the time is up: `unknown` when no such step was seen, `late` when it is \
             known. `timeout_seconds` is at most 600; 0 looks once. Without `attempt` the newest attempt that has the \
             step counts, unless a later one has left it behind. At most 64 requests wait at once; one more is answered \
             with 429. A step that the vault does not hold is looked for on the remotes every 15 s.",
        ),
        (
            "When it is not there",
            "POST",
            "/v1/wait",
            Some(json!({"step": 6, "attempt": 2, "for": "staged", "timeout_seconds": 0})),
            "`run` may be left out everywhere when the agent serves one run.",
        ),
        (
            "An error",
            "POST",
            "/v1/wait",
            Some(json!({"step": 6, "until": "durable"})),
            "Every answer but 2xx is this document. A member that is not known is an error, so that a misspelt one is not \
             passed over.",
        ),
        (
            "Draining",
            "POST",
            "/v1/drain",
            Some(json!({"deadline_seconds": 60, "wait": true})),
            "The agent seals nothing more, goes on uploading until all is durable or the deadline is reached, and ends. \
             Without `deadline_seconds` it is `agent.drain-deadline`; an earlier one that was asked for before is never \
             put off. Without `wait` it is answered with 202 at once; with it when the agent has ended, with at most 100 \
             of the steps that are not durable, those on required remotes first.",
        ),
    ]
}

#[test]
fn the_reference_of_the_control_socket_is_what_it_answers() {
    let place = Place::new();
    let root = place.path().display().to_string();
    std::fs::create_dir_all(place.path().join("live/step_5")).unwrap();
    std::fs::write(place.path().join("live/step_5/weights.dat"), "weights").unwrap();
    let agent = Command::new(env!("CARGO_BIN_EXE_stepvault"))
        .args([
            "agent", "--quiet", "--run", "my-run", "--node", "node-0", "--local", "vault",
        ])
        .args(["--remote", &format!("main=file://{root}/remote")])
        .current_dir(place.path())
        .env_clear()
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut agent = Agent(agent);
    let socket = place.path().join("vault/agent.sock");
    let begun = Instant::now();
    while UnixStream::connect(&socket).is_err() {
        assert!(begun.elapsed() < PATIENCE, "the agent does not listen");
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut text = heading("The control socket", "requests to a running agent");
    text.push_str(INTRODUCTION);
    for (title, method, path, body, words) in requests(&root) {
        let (status, answer) = ask(&socket, method, path, body.as_ref());
        write!(text, "\n## {title}\n\n{words}\n\n```http\n{method} {path}\n").unwrap();
        if let Some(body) = body {
            let body = plain(body, "", &root);
            write!(text, "\n{body:#}\n").unwrap();
        }
        let answer = plain(answer, "", &root);
        write!(text, "```\n\n```http\n{status}\n\n{answer:#}\n```\n").unwrap();
    }
    assert!(agent.0.wait().unwrap().success());
    check("docs/reference/control.md", &text);
}

const INTRODUCTION: &str = "While the agent runs it listens on a Unix socket: `agent.sock` in its vault, another path with \
`agent.control-socket`, none with `\"off\"`; `agent --once` has none. Commands use it: `announce`, `wait`, `drain` and \
`status`. So can any program that speaks HTTP/1.1: `curl --unix-socket /mnt/nvme/stepvault/agent.sock \
http://localhost/v1/status`.

The socket has mode 0600, and whoever connects must be the agent's own user or root; others are answered with 403. A path \
of more than 107 bytes is more than the system takes: the agent then says so and works without a socket. One that a killed \
agent left behind is replaced.

A request and its answer are JSON, one for each connection. A head of at most 16 KiB has 5 s to come, a body of at most 64 \
KiB as long again. 128 connections are served at once; one more is closed. Within version 1, members may be added to \
answers; none is removed or changes its meaning. `error.kind` is one of those that `--json` documents have.

The examples come from a real agent; paths and what differs from start to start are replaced.
";

fn ask(socket: &Path, method: &str, path: &str, body: Option<&Value>) -> (String, Value) {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let body = body.map(Value::to_string).unwrap_or_default();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.lines().next().unwrap().to_owned();
    (status, serde_json::from_str(body).unwrap())
}
