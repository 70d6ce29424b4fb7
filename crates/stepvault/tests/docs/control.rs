//! docs/reference/control.md: the responses of the control socket, from real requests.

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

/// Killed at the end of the test.
struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Title, method, path, body and description.
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
            "Agent status",
            "GET",
            "/v1/status",
            None,
            "`stopping` is the reason why the agent was asked to stop, `problems` lists the problems that keep it from \
             working: the lines of the [health check](metrics.md). `remotes[].failed` lists steps whose last upload \
             failed: each is retried, and `needs_operator` is true if only an operator can resolve the reason. `unsealed` \
             lists finished steps that could not be sealed, `other_writers` other training jobs that were seen writing the \
             run within the last hour, `skipped` the skipped entries of the watched directory, the latest first, and \
             `unfinished` its entries that are not sealed yet; each list has at most 32 entries.",
        ),
        (
            "Announcing a finished step",
            "POST",
            "/v1/announce",
            Some(json!({"run": "my-run", "path": format!("{place}/live/step_5")})),
            "The agent seals the step at once, without a quiet time. In a watched directory with a profile, it seals the \
             profile's step with all its paths; elsewhere, the files at `path`, which must be absolute. `step` sets the \
             number if the name has none, `name` sets another name. An incomplete step (`source-changed`) or a damaged \
             one (`damaged`) is refused with 409. For a step whose files are already sealed, `newly_sealed` is false. A \
             step that is not sealed within 5 s is answered with 202 and the state `queued`. At most 64 announcements \
             are queued; a further one is answered with 429.",
        ),
        (
            "Result of an announcement",
            "GET",
            "/v1/announcements/1",
            None,
            "The same response as above; while the step is `queued`, the request waits up to 10 s for a change. The agent \
             remembers the last 512 announcements.",
        ),
        (
            "Waiting for a step",
            "POST",
            "/v1/wait",
            Some(json!({"run": "my-run", "step": 5, "for": "durable", "timeout_seconds": 60})),
            "`for` is `staged`, `uploaded` or `durable`. The response is 200 when the step has reached the state \
             (`reached`), will not reach it by waiting (`failed`), or at the timeout: `unknown` if no such step was \
             found, `late` if it is known. `timeout_seconds` is at most 600; 0 checks once. Without `attempt` the newest \
             attempt that has the step counts, unless a later attempt has abandoned the step. At most 64 requests wait at \
             once; a further one is answered with 429. For a step that the vault does not hold, the agent checks the \
             remotes every 15 s.",
        ),
        (
            "Waiting for an unknown step",
            "POST",
            "/v1/wait",
            Some(json!({"step": 6, "attempt": 2, "for": "staged", "timeout_seconds": 0})),
            "`run` is optional in all requests if the agent serves exactly one run.",
        ),
        (
            "An error",
            "POST",
            "/v1/wait",
            Some(json!({"step": 6, "until": "durable"})),
            "Every response other than 2xx has this document. An unknown member is an error, so that a misspelt one is not \
             ignored.",
        ),
        (
            "Draining",
            "POST",
            "/v1/drain",
            Some(json!({"deadline_seconds": 60, "wait": true})),
            "The agent seals the steps that are complete now, but no later ones, continues to upload until all steps are \
             durable or the deadline is reached, and exits. The default of `deadline_seconds` is `agent.drain-deadline`; \
             an earlier deadline of a previous request is never extended. Without `wait` the response is 202 at once; with \
             it, the response comes when the agent has finished, with at most 100 of the steps that are not durable, those \
             on required remotes first.",
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

const INTRODUCTION: &str = "While the agent runs it listens on a Unix socket: `agent.sock` in its vault, or the path in \
`agent.control-socket`; with `\"off\"` and for `agent --once` there is no socket. The commands `announce`, `wait`, `drain` \
and `status` use it. So can any program that speaks HTTP/1.1: `curl --unix-socket /mnt/nvme/stepvault/agent.sock \
http://localhost/v1/status`.

The socket has mode 0600, and only the agent's own user and root may connect; others are answered with 403. The system \
limits its path to 107 bytes: for a longer path the agent prints a warning and works without a socket. The agent replaces a \
socket that a killed agent left behind.

Requests and responses are JSON, one of each per connection. A request head of at most 16 KiB must arrive within 5 s, and a \
body of at most 64 KiB within another 5 s. The agent serves 128 connections at once and closes further ones. Within version \
1, members may be added to responses; none is removed or changes its meaning. `error.kind` has the same values as in \
`--json` documents.

The examples come from a real agent; paths and values that differ from start to start are replaced.
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
