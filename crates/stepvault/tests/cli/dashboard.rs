//! `dashboard`: its page and JSON, who may read them, and the page of an agent.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use rustix::process::Signal;
use serde_json::{Value, json};
use stepvault_core::codec::{Record, decode, encode};
use stepvault_core::commit::Commit;
use stepvault_core::keys::RunKeys;
use stepvault_core::records::Claim;
use stepvault_core::starts::{Start, StartHistory, StartedProgram};
use stepvault_core::{Attempt, NodeName, NodeSet, RunName, Step, StepId, Timestamp};
use stepvault_testkit::objects::StoredObject;
use stepvault_testkit::process::PATH;
use stepvault_testkit::s3::StrictS3;
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
        Self::with_keys(place, options, &[])
    }

    fn with_keys(place: &Place, options: &str, keys: &[(&str, &str)]) -> Self {
        let line = format!("exec stepvault dashboard --refresh 1s {options} >&2");
        let mut process = place.shell(&line).envs(keys.iter().copied()).start();
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
    assert_eq!(removed.iter().map(|step| step["step"].as_u64().unwrap()).collect::<Vec<_>>(), [2, 1]);
    assert!(removed.iter().all(|step| step["noticed_at"].is_string()), "{removed:?}");
    // A page that is opened now knows them from the records.
    let later = place.document_here(0, &["dashboard"]);
    let removed = later["runs"][0]["removed"].as_array().unwrap();
    let expected = [2, 1].map(|step| {
        serde_json::json!({ "step": step, "attempt": 1, "remotes": ["file-remote"], "noticed_at": null })
    });
    assert_eq!(*removed, expected);

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

const NODES: usize = 64;
const MANY: u64 = 1_000;

/// A run whose steps 1 to [`MANY`] were pushed by [`NODES`] nodes, of which each has recorded a start, and one more step of
/// one node. All but the last step are records alone, written behind the client's back.
fn with_many_steps(place: &Place, server: &StrictS3, push: impl Fn(u64)) {
    place.checkpoint(&format!("step_{}", MANY + 1), "newest");
    push(MANY + 1);
    let keys = RunKeys::new(RunName::new("demo/a").unwrap());
    let id = |step| StepId::new(Attempt::FIRST, Step::new(step).unwrap());
    let nodes: Vec<NodeName> =
        (0..NODES).map(|node| NodeName::new(format!("node-{node:02}")).unwrap()).collect();
    server.objects().with(|objects| {
        let full = |key: &str| format!("bucket/p/{key}");
        let newest = objects[&full(&keys.commit(id(MANY + 1)))].clone();
        let claim: Claim = decode(&objects[&full(&keys.claim(id(MANY + 1)))].body, "claim").unwrap();
        let commit: Commit = decode(&newest.body, "commit").unwrap();
        let mut put = |key: String, body: Vec<u8>| {
            let (etag, modified) = (format!("{:032x}", objects.len()), SystemTime::now());
            let body = Bytes::from(body);
            let object = StoredObject { etag, modified, body, checksums: BTreeMap::new(), ..newest.clone() };
            objects.insert(full(&key), object);
        };
        let part = |node: &NodeName| {
            let mut part = commit.parts[0].clone();
            part.node = node.clone();
            part
        };
        for step in 1..=MANY {
            let (id, name) = (id(step), format!("step_{step}"));
            let parts = nodes.iter().map(part).collect();
            put(keys.commit(id), record(&Commit { id, name: name.clone(), parts, ..commit.clone() }));
            let nodes = NodeSet::new(nodes.iter().cloned()).unwrap();
            put(keys.claim(id), record(&Claim { id, name, nodes, ..claim.clone() }));
        }
        for node in &nodes {
            let start = Start {
                id: format!("start-{node}"),
                who: StartedProgram::Agent,
                node: node.clone(),
                started_at: Timestamp::from_seconds(1_795_256_160),
                launch: None,
                restored: None,
                process: None,
                trainer: None,
                end: None,
            };
            put(keys.starts(node), record(&StartHistory::of(vec![start])));
        }
    });
}

fn record<R: Record>(record: &R) -> Vec<u8> {
    encode(record).unwrap()
}

/// A watcher of the page: it has the whole content, and reads the changes.
struct Watcher {
    lines: std::io::Lines<BufReader<TcpStream>>,
    document: Value,
    received: usize,
}

impl Watcher {
    /// Takes changes until `is_so`, as the script of the page does.
    fn follow(&mut self, is_so: impl Fn(&Value) -> bool) {
        while !is_so(&self.document) {
            let line = self.lines.next().unwrap().unwrap();
            self.received += line.len() + 1;
            let Some(change) = line.strip_prefix("data: ") else { continue };
            let change: Value = serde_json::from_str(change).unwrap();
            if change["version"].as_u64() <= self.document["version"].as_u64() {
                continue;
            }
            assert_eq!(change["after"], self.document["version"], "no content is left out");
            let members = |to: &mut Value, from: &Value| {
                to.as_object_mut().unwrap().extend(from.as_object().unwrap().clone());
            };
            members(&mut self.document, &change["members"]);
            for change in change["runs"].as_array().unwrap() {
                let run = &mut self.document["runs"][0];
                assert_eq!(run["run"], change["run"]);
                members(run, &change["members"]);
                let steps = run["steps"].as_array_mut().unwrap();
                let (new, gone) = (change["steps"].as_array().unwrap(), change["gone"].as_array().unwrap());
                steps.retain(|step| !new.iter().chain(gone).any(|other| other["step"] == step["step"]));
                steps.extend(new.iter().cloned());
                steps.sort_by_key(|step| std::cmp::Reverse(step["step"].as_u64()));
            }
        }
    }
}

#[test]
fn sixty_four_watchers_of_sixty_four_nodes_and_many_steps_cost_what_has_changed() {
    let (place, server) = (Place::new(), StrictS3::start());
    server.create_bucket("bucket");
    let remote = format!("main=s3://bucket/p?endpoint={}&region=us-east-1", server.endpoint());
    let keys = [("AWS_ACCESS_KEY_ID", server.access_key()), ("AWS_SECRET_ACCESS_KEY", server.secret_key())];
    let command = |arguments: &[&str]| {
        let mut command = place.command(arguments);
        command.args(["--run", "demo/a", "--remote", &remote]).envs(keys).run().expect_code(0);
    };
    with_many_steps(&place, &server, |step| {
        command(&["push", &format!("checkpoints/step_{step}"), "--local", "vault"]);
    });
    let options = format!("--listen 127.0.0.1:0 --run demo/a --remote '{remote}'");
    let dashboard = Dashboard::with_keys(&place, &options, &keys);

    let (page, (_, body)) = (dashboard.get("/", "").1, dashboard.get("/dashboard.json", ""));
    let document: Value = serde_json::from_str(&body).unwrap();
    let run = &document["runs"][0];
    assert_eq!(steps(run).len() as u64, MANY + 1);
    assert_eq!(run["nodes"].as_array().unwrap().len(), NODES);
    assert_eq!(run["restore"]["step"], MANY + 1);
    // 2 MiB for 10,000 steps.
    let limit = page.len() + usize::try_from(MANY + 1).unwrap() * 200;
    assert!(page.len() < 40_000 && body.len() < limit, "{} and {} bytes", page.len(), body.len());

    let listings = || {
        let requests = server.faults().requests();
        requests
            .iter()
            .filter(|request| request.path.contains("list-type=2") && request.path.contains("commits"))
            .count()
    };
    let connected = (0..64).map(|_| {
        let (mut stream, host) = connect(&dashboard.url);
        write!(stream, "GET /events HTTP/1.1\r\nhost: {host}\r\n\r\n").unwrap();
        Watcher { lines: BufReader::new(stream).lines(), document: Value::Null, received: 0 }
    });
    let mut watchers: Vec<Watcher> = connected.collect();
    for watcher in &mut watchers {
        while !watcher.lines.next().unwrap().unwrap().is_empty() {}
    }
    let document = dashboard.document();
    for watcher in &mut watchers {
        watcher.document = document.clone();
    }
    server.faults().clear_requests();
    wait_until("three more listings", || listings() >= 3 * 2);
    let (requests, listings) = (server.faults().requests(), listings());
    let newest = format!("/commits/{:012}.a1.json", MANY + 1);
    let reads = requests
        .iter()
        .filter(|request| request.path.contains("/commits/") && !request.path.contains(&newest));
    assert_eq!(reads.count(), 0, "no commit is read again: {requests:#?}");
    // Two pages of commits, two of claims, and tombstones, retired steps and pins; once the plans are made anew.
    assert!(requests.len() <= 6 * listings + 100, "{} requests: {requests:#?}", requests.len());

    place.checkpoint("step_2000", "one more");
    command(&["push", "checkpoints/step_2000", "--local", "vault"]);
    let is_new = |document: &Value| {
        let run = &document["runs"][0];
        let newest = (&run["steps"][0]["step"], &run["steps"][0]["remotes"], &run["restore"]["step"]);
        newest == (&json!(2000), &json!(["main"]), &json!(2000))
    };
    let now = dashboard.until("the new step", is_new);
    for watcher in &mut watchers {
        watcher.follow(is_new);
        assert!(watcher.received < 64 << 10, "{} bytes for one step", watcher.received);
        assert_eq!(watcher.document["runs"][0]["steps"], now["runs"][0]["steps"]);
    }
}

#[test]
fn uploads_that_nobody_finished_are_shown_and_of_many_the_newest() {
    let place = Place::new();
    place.push_steps(&[1]);
    for step in 2..=301 {
        let claim = format!(
            "{{\"format\":1,\"id\":{{\"attempt\":1,\"step\":{step}}},\"name\":\"step_{step}\",\"nodes\":[\"node-0\"],\"run\":\"demo/a\"}}"
        );
        place.write(&format!("remote/demo/a/.stepvault/attempts/{step:012}.a1.json"), claim);
    }
    let document = place.document_here(0, &["dashboard"]);
    let run = &document["runs"][0];
    assert_eq!(steps(run).len(), 257);
    let incomplete = &run["steps"][0]["incomplete"][0];
    assert_eq!(
        (&incomplete["remote"], &incomplete["missing_nodes"]),
        (&json!("file-remote"), &json!(["node-0"]))
    );
    assert!(incomplete["begun_at"].is_string(), "{incomplete}");
    let warning = run["time_warnings"][0].as_str().unwrap();
    assert!(warning.starts_with("file-remote has 44 older incomplete steps"), "{warning}");
}
