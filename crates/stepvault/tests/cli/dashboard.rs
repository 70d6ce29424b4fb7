//! `dashboard`: its page and JSON, who may read them, and the page of an agent.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use stepvault_testkit::process::PATH;
use stepvault_testkit::tls::Authority;

use crate::support::{Place, TestProcess, wait_until};

const JSON: &str = "accept: application/json\r\n";

/// A running dashboard. What it prints goes to standard error.
struct Dashboard {
    process: TestProcess,
    url: String,
}

impl Dashboard {
    fn start(place: &Place, options: &str) -> Self {
        let line = format!("exec stepvault dashboard --refresh 1s {options} >&2");
        let mut process = place.shell(&line).start();
        let url = url_in(&mut process);
        Self { process, url }
    }

    fn of_remote(place: &Place, options: &str) -> Self {
        Self::start(place, &format!("--listen 127.0.0.1:0 --remote {} {options}", place.remote()))
    }

    fn get(&self, path: &str, headers: &str) -> (String, String) {
        get(&self.url, "GET", path, headers)
    }

    fn document(&self) -> Value {
        let (head, body) = self.get("/dashboard.json", "");
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        serde_json::from_str(&body).unwrap()
    }

    fn until(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let mut document = Value::Null;
        wait_until(what, || {
            document = self.document();
            is_so(&document)
        });
        document
    }
}

fn url_in(process: &mut TestProcess) -> String {
    process.wait_for_log("dashboard: http");
    process.wait_for_log("/");
    let log = process.logged();
    let url = log.split("dashboard: ").nth(1).unwrap().split_whitespace().next().unwrap();
    url.to_owned()
}

fn connect(url: &str) -> (TcpStream, String) {
    let host = url.split("://").nth(1).unwrap().split('/').next().unwrap().to_owned();
    let stream = TcpStream::connect(&host).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    (stream, host)
}

/// Head and body of an answer, in which chunks are not put together.
fn get(url: &str, method: &str, path: &str, headers: &str) -> (String, String) {
    let (mut stream, host) = connect(url);
    let host = if headers.contains("host:") { String::new() } else { format!("host: {host}\r\n") };
    write!(stream, "{method} {path} HTTP/1.1\r\n{host}{headers}\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_ascii_lowercase().replace("http/1.1", "HTTP/1.1"), body.to_owned())
}

fn steps(run: &Value) -> Vec<u64> {
    run["steps"].as_array().unwrap().iter().map(|step| step["step"].as_u64().unwrap()).collect()
}

#[test]
fn the_page_and_its_json_show_what_a_remote_holds_and_follow_it() {
    let place = Place::new();
    place.push_steps(&[1, 2]);
    let mut dashboard = Dashboard::of_remote(&place, "");
    let (head, page) = dashboard.get("/", "accept: text/html\r\n");
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("content-type: text/html"), "{head}");
    for header in
        ["cache-control: no-store", "x-content-type-options: nosniff", "referrer-policy: no-referrer"]
    {
        assert!(head.contains(header), "{head}");
    }
    let nonce = head.split("script-src 'nonce-").nth(1).unwrap().split('\'').next().unwrap();
    assert_eq!(page.matches(&format!("nonce=\"{nonce}\"")).count(), 2, "its style and its script");
    assert!(page.trim_end().ends_with("</html>") && !page.contains("NONCE"), "the whole page");
    assert!(!page.contains("src=\"") && !page.contains("https://"), "nothing comes from elsewhere");
    assert_ne!(dashboard.get("/", "").0, head, "each answer has a nonce of its own");

    let (head, body) = dashboard.get("/", JSON);
    assert!(head.contains("content-type: application/json"), "{head}");
    let document: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(place.document_here(0, &["dashboard"])["runs"][0]["steps"], document["runs"][0]["steps"]);
    let run = &document["runs"][0];
    assert_eq!((run["run"].as_str(), steps(run)), (Some("demo/a"), vec![2, 1]), "{document}");
    assert_eq!(run["steps"][0]["remotes"], serde_json::json!(["file-remote"]));
    assert_eq!((run["restore"]["step"].as_u64(), run["status"].is_null()), (Some(2), true));
    assert_eq!(run["steps"][0]["metrics"]["loss"], 0.2);

    // A browser learns of news by an event, and asks for them.
    let (mut stream, host) = connect(&dashboard.url);
    write!(stream, "GET /events HTTP/1.1\r\nhost: {host}\r\n\r\n").unwrap();
    let mut lines = BufReader::new(stream).lines();
    assert!(lines.any(|line| line.unwrap().starts_with("data: ")), "an event");

    place.push_steps(&[3]);
    let document = dashboard.until("the new step", |document| steps(&document["runs"][0]) == [3, 2, 1]);
    assert_eq!(document["runs"][0]["restore"]["step"], 3);
    place.succeed_here(&["prune", "--keep-last", "1"]);
    let document = dashboard.until("the removal", |document| steps(&document["runs"][0]) == [3]);
    let removed = document["runs"][0]["removed"].as_array().unwrap();
    assert_eq!(removed.iter().map(|step| step["step"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2]);

    for (method, path, status) in
        [("GET", "/v1/status", "404"), ("POST", "/", "405"), ("GET", "/../etc", "404")]
    {
        let (head, _) = get(&dashboard.url, method, path, "");
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{method} {path}: {head}");
    }
    dashboard.process.signal(Signal::TERM);
    dashboard.process.wait_until("nothing", || true);
    dashboard.process.wait().expect_code(0);
}

#[test]
fn a_page_of_another_site_cannot_read_one_of_this_machine() {
    let place = Place::new();
    place.push_steps(&[1]);
    let dashboard = Dashboard::of_remote(&place, "");
    for (host, status) in [
        ("evil.example", "403"),
        ("127.0.0.1.evil.example:80", "403"),
        ("10.0.0.7", "403"),
        ("", "403"),
        ("localhost", "200"),
        ("LOCALHOST:1", "200"),
        ("[::1]:8465", "200"),
        ("127.0.0.2:8465", "200"),
    ] {
        let (head, body) = dashboard.get("/dashboard.json", &format!("host: {host}\r\n"));
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{host}: {head}");
        assert_eq!(body.contains("demo/a"), status == "200", "{host}");
    }
}

#[test]
fn other_machines_need_the_token() {
    let place = Place::new();
    place.push_steps(&[1]);
    let remote = place.remote();
    let refused = place.run(&["dashboard", "--listen", "0.0.0.0:0", "--remote", &remote]).expect_code(2);
    refused.expect_stderr(&["other machines could reach it without TLS", "--allow-http"]);

    let mut dashboard =
        Dashboard::start(&place, &format!("--listen 0.0.0.0:0 --allow-http --remote {remote}"));
    let secret = dashboard.url.split("?token=").nth(1).unwrap().to_owned();
    assert_eq!(secret.len(), 32);
    dashboard.url = dashboard.url.replace("0.0.0.0", "127.0.0.1");
    let status = |path: &str, headers: &str| dashboard.get(path, headers).0[9..12].to_owned();
    for path in ["/", "/dashboard.json", "/events", "/other", "/?token=wrong", "/?token="] {
        assert_eq!(status(path, ""), "401", "{path}");
    }
    assert_eq!(status("/", "authorization: Bearer wrong\r\n"), "401");
    assert_eq!(status("/", "cookie: stepvault-token=wrong\r\n"), "401");
    assert_eq!(status("/dashboard.json", &format!("authorization: Bearer {secret}\r\n")), "200");
    let (head, _) = dashboard.get(&format!("/?token={secret}"), "");
    assert!(head.starts_with("HTTP/1.1 303") && head.contains("location: /\r\n"), "{head}");
    let cookie = head.split("set-cookie: ").nth(1).unwrap().lines().next().unwrap();
    assert!(cookie.contains("httponly") && cookie.contains("samesite=strict"), "{cookie}");
    let pair = cookie.split(';').next().unwrap();
    assert_eq!(status("/", &format!("cookie: other=1; {pair}\r\n")), "200");
    assert_eq!(dashboard.process.logged().matches(&secret).count(), 1, "shown once");
}

#[test]
fn with_a_certificate_it_is_served_by_tls_alone() {
    let place = Place::new();
    place.push_steps(&[1]);
    Authority::new().write_client(&place.path("certificate.pem"), &place.path("key.pem"));
    let remote = place.remote();
    let options = format!("--listen 127.0.0.1:0 --remote {remote} --tls-certificate certificate.pem");
    let wrong = place.shell(&format!("stepvault dashboard {options} --tls-key certificate.pem")).run();
    wrong.expect_code(2).expect_stderr(&["cannot use the file for TLS: certificate.pem"]);
    let dashboard = Dashboard::start(&place, &format!("{options} --tls-key key.pem"));
    assert!(dashboard.url.starts_with("https://127.0.0.1:"), "{}", dashboard.url);
    let script = "import ssl, sys, urllib.request\n\
                  context = ssl._create_unverified_context()\n\
                  print(urllib.request.urlopen(sys.argv[1] + 'dashboard.json', context=context).read().decode())";
    let mut client = place.command(["-c", script, &dashboard.url]);
    client.program("python3").env("PATH", PATH);
    client.run().expect_code(0).expect_stdout(&["\"run\":\"demo/a\""]);
    let (mut stream, _) = connect(&dashboard.url);
    stream.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
}

#[test]
fn a_page_beside_an_agent_shows_its_vault() {
    let place = Place::new();
    place.write("checkpoints/.keep", "");
    let remote = place.remote();
    let configuration = format!(
        "[local]\ndirectory = \"vault\"\n[remote.main]\nurl = \"{remote}\"\n[run.\"demo/a\"]\nwatch = \"checkpoints\"\n\
         complete = \"rename\"\n"
    );
    place.write("stepvault.toml", configuration);
    let mut agent = place.start_agent(&["--dashboard", "127.0.0.1:0", "--refresh", "1s"], &[]);
    let url = url_in(&mut agent);
    place.save_into("checkpoints", "step_7");
    let mut document = Value::Null;
    wait_until("the step is durable", || {
        document = serde_json::from_str(&get(&url, "GET", "/dashboard.json", "").1).unwrap();
        let step = &document["runs"][0]["steps"][0];
        step["remotes"][0] == "main" && step["local"] == "durable"
    });
    let run = &document["runs"][0];
    assert_eq!(run["status"]["agent"]["healthy"], true, "{document}");
    assert_eq!(
        (run["steps"][0]["local"].as_str(), run["next_step_bytes"].as_u64() > Some(0)),
        (Some("durable"), true)
    );
    assert!(run["status"]["disk_free_bytes"].as_u64() > Some(0));
    agent.signal(Signal::TERM);
    agent.wait().expect_code(0);
    assert!(TcpStream::connect(url.trim_start_matches("http://").trim_end_matches('/')).is_err());
}

#[test]
fn what_cannot_be_shown_is_said() {
    let place = Place::new();
    let nothing = place.run(&["dashboard", "--listen", "127.0.0.1:0"]).expect_code(2);
    nothing.expect_stderr(&["nothing to show", "--remote URL"]);
    // Of an empty bucket and of a remote that is away.
    let dashboard = Dashboard::of_remote(&place, "--remote away=s3://bucket/p?endpoint=http://127.0.0.1:9");
    let document = dashboard.document();
    assert_eq!(document["runs"], serde_json::json!([]));
    assert_eq!(document["failed"][0]["tier"], "away");
}
