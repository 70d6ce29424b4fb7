//! Whatever connects to the control socket, the service goes on.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use stepvault_agent::control::{Client, WaitRequest};
use stepvault_agent::step_progress::Goal;
use stepvault_core::ids::Step;

use crate::harness::{Node, PATIENCE, Service};

async fn controlled() -> (Node, Service, Client) {
    let node = Node::new();
    let options = node.disk_options().await;
    let (service, client) = node.start_controlled(options).await;
    (node, service, client)
}

/// Writes bytes and gives what comes back before the connection is closed.
fn exchange(socket: &Path, bytes: &[u8]) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // It may be closed before all is written.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn post(path: &str, body: &str) -> Vec<u8> {
    format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

fn status_line(answer: &str) -> &str {
    answer.lines().next().unwrap_or_default()
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_in_words() {
    let (node, service, client) = controlled().await;
    let socket = node.socket();
    let large = format!("{{\"path\": \"/{}\"}}", "x".repeat(100 << 10));
    for (request, status, text) in [
        (post("/v1/announce", &large), "413", "more than 65536 bytes"),
        (post("/v1/announce", "{"), "400", "EOF while parsing"),
        (post("/v1/announce", "[]"), "400", "cannot read the request"),
        (post("/v1/announce", "{\"path\": 7}"), "400", "invalid type"),
        (post("/v1/announce", "{\"path\": \"/a\", \"steps\": 7}"), "400", "unknown field `steps`"),
        (
            post("/v1/wait", "{\"step\": 1, \"for\": \"safe\", \"timeout_seconds\": 0}"),
            "400",
            "unknown variant `safe`",
        ),
        (
            post("/v1/wait", "{\"step\": -1, \"for\": \"durable\", \"timeout_seconds\": 0}"),
            "400",
            "invalid value",
        ),
        (post("/v1/drain", "{\"deadline_seconds\": 1.5}"), "400", "floating point"),
        (post("/v1/status", ""), "405", "use GET"),
        (b"PUT /v1/status HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(), "405", "use GET"),
        (b"GET /v1/drain HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(), "405", "use POST"),
        (post("/v2/status", ""), "404", "unknown path"),
        (b"GET /v1/announcements/99 HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(), "404", "no such announcement"),
        (
            b"GET /v1/announcements/x HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(),
            "400",
            "invalid announcement number",
        ),
    ] {
        let answer = exchange(&socket, &request);
        assert!(status_line(&answer).contains(status), "{answer}");
        assert_eq!(status == "405", answer.contains("\r\nallow: "), "{answer}");
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        let document: serde_json::Value = serde_json::from_str(body).unwrap();
        let error = &document["error"];
        let said = format!("{} {}", error["message"], error["hint"]);
        assert!(said.contains(text), "{said}");
        assert_eq!(document["format"], 1);
        assert!(error["kind"].is_string());
    }
    assert!(client.status(PATIENCE).await.is_ok());
    service.stop();
}

#[tokio::test]
async fn bytes_that_are_no_request_end_the_connection_and_nothing_else() {
    let (node, service, client) = controlled().await;
    let socket = node.socket();
    let headers = format!("GET /v1/status HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(1 << 20));
    let many = "a: b\r\n".repeat(10_000);
    for bytes in [
        vec![0_u8; 100_000],
        vec![0xff; 100_000],
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".repeat(1000),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        b"GET /v1/status HTTP/9.9\r\n\r\n".to_vec(),
        b"POST /v1/drain HTTP/1.1\r\ncontent-length: -5\r\n\r\n".to_vec(),
        b"POST /v1/drain HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n".to_vec(),
        headers.into_bytes(),
        format!("GET /v1/status HTTP/1.1\r\n{many}\r\n").into_bytes(),
    ] {
        let answer = exchange(&socket, &bytes);
        assert!(!answer.contains("200 OK"), "{answer}");
    }
    let status = client.status(PATIENCE).await.unwrap();
    assert_eq!(status.process.stopping, None);
    service.stop();
}

/// Each says less than a request and stays.
#[tokio::test]
async fn a_thousand_that_say_nothing_keep_nobody_out_for_long() {
    let (node, service, client) = controlled().await;
    let mut silent = Vec::new();
    for number in 0..1000 {
        let mut stream = UnixStream::connect(node.socket()).unwrap();
        if number % 2 == 0 {
            // Some are closed already.
            let _ = stream.write_all(b"POST /v1/announce HTTP/1.1\r\n");
        }
        silent.push(stream);
    }
    node.save_small(1, 5);
    node.until_durable("disk", 1).await;
    let begun = std::time::Instant::now();
    while client.status(Duration::from_secs(1)).await.is_err() {
        assert!(begun.elapsed() < PATIENCE, "nobody gets in any more");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    drop(silent);
    service.stop();
}

#[tokio::test]
async fn a_body_that_does_not_come_is_not_waited_for() {
    let (node, service, client) = controlled().await;
    let slow = b"POST /v1/announce HTTP/1.1\r\nhost: x\r\ncontent-length: 50\r\n\r\n{\"path\"";
    let socket = node.socket();
    let answer = tokio::task::spawn_blocking(move || exchange(&socket, slow)).await.unwrap();
    assert!(status_line(&answer).contains("408"), "{answer}");
    assert!(client.status(PATIENCE).await.is_ok());
    service.stop();
}

#[tokio::test]
async fn only_so_many_wait_and_the_end_does_not_wait_for_them() {
    let (_node, service, client) = controlled().await;
    let request = WaitRequest {
        run: None,
        step: Step::new(1).unwrap(),
        attempt: None,
        goal: Goal::Durable,
        timeout_seconds: 600,
    };
    let waits = (0..80).map(|_| {
        let (client, request) = (client.clone(), request.clone());
        tokio::spawn(async move { client.wait(&request, PATIENCE).await })
    });
    let mut waits: Vec<_> = waits.collect();
    let mut refused = 0;
    let begun = std::time::Instant::now();
    while refused < 16 {
        assert!(begun.elapsed() < PATIENCE, "only {refused} were sent away");
        tokio::time::sleep(Duration::from_millis(20)).await;
        let mut left = Vec::new();
        for wait in waits {
            if wait.is_finished() {
                let error = wait.await.unwrap().unwrap_err();
                assert!(error.to_string().contains("too many waiting requests"), "{error}");
                refused += 1;
            } else {
                left.push(wait);
            }
        }
        waits = left;
    }
    assert_eq!(waits.len(), 64);
    assert!(client.status(PATIENCE).await.is_ok(), "a short question is no wait");
    tokio::task::spawn_blocking(move || service.stop()).await.unwrap();
    for wait in waits {
        let answer = wait.await.unwrap().unwrap();
        assert_eq!(answer.outcome, stepvault_agent::step_progress::Outcome::Unknown);
    }
}
