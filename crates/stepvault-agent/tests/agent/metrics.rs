//! Metrics and the health check as a monitoring system reads them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use stepvault_agent::AgentOptions;
use stepvault_testkit::faults::FaultAction;
use stepvault_testkit::s3::{StrictS3, StrictS3Options};

use crate::harness::{Node, PATIENCE};
use crate::support::{fail_all, keep_last, text};

/// Has the service serve metrics on a free port.
pub(crate) fn serve_metrics(options: &mut AgentOptions) -> SocketAddr {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    options.agent.metrics.listen = Some(address);
    address
}

/// Head and body; metrics in the format that the recent Prometheus asks for.
fn get(address: SocketAddr, method: &str, path: &str) -> Option<(String, String)> {
    get_with(address, method, path, "accept: application/openmetrics-text;version=1.0.0\r\n")
}

fn get_with(address: SocketAddr, method: &str, path: &str, headers: &str) -> Option<(String, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "{method} {path} HTTP/1.1\r\nhost: {address}\r\n{headers}\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.to_owned(), body.to_owned()))
}

/// Every sample by its name and labels but the node's, after each line was looked at.
fn parse(body: &str) -> BTreeMap<String, f64> {
    let mut samples = BTreeMap::new();
    let (mut described, mut typed) = (BTreeMap::new(), BTreeMap::new());
    assert!(body.ends_with("# EOF\n"), "{body}");
    for line in body.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            assert!(described.insert(name, help).is_none(), "{line}");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(["counter", "gauge", "histogram", "info"].contains(&kind), "{line}");
            typed.insert(name, kind);
        } else if line != "# EOF" {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let node = ["{node=\"node-0\"}", "node=\"node-0\","];
            assert!(node.iter().any(|label| series.contains(label)), "{line}");
            let series = node.iter().fold(series.to_owned(), |series, label| series.replace(label, ""));
            let name = series.split('{').next().unwrap();
            let suffixes = ["_total", "_info", "_bucket", "_sum", "_count"];
            let ends = suffixes.iter().filter_map(|suffix| name.strip_suffix(suffix));
            let family = ends.into_iter().find(|family| typed.contains_key(family)).unwrap_or(name);
            let kind = typed.get(family).unwrap_or_else(|| panic!("no type: {line}"));
            assert!(described.contains_key(family), "{line}");
            assert_eq!(*kind == "counter", name.ends_with("_total"), "{line}");
            assert!(name.starts_with("stepvault_"), "{line}");
            if let Some((_, labels)) = series.split_once('{') {
                for label in labels.trim_end_matches('}').split(',') {
                    let (label, _) = label.split_once('=').unwrap();
                    assert!(
                        ["run", "remote", "tier", "version", "kind", "operation", "outcome", "le"]
                            .contains(&label),
                        "{line}"
                    );
                }
            }
            let value: f64 = value.parse().unwrap();
            assert!(value.is_finite(), "{line}");
            assert!(samples.insert(series.clone(), value).is_none(), "{line}");
        }
    }
    samples
}

pub(crate) fn scrape(address: SocketAddr) -> BTreeMap<String, f64> {
    parse(&get(address, "GET", "/metrics").unwrap().1)
}

const HERE: &str = "{run=\"grpo/checkpoints\",remote=\"disk\"}";

#[tokio::test]
async fn what_happened_is_counted_and_what_waits_is_measured() {
    let (node, server) = (Node::new(), StrictS3::start());
    fail_all(&server, &FaultAction::refuse(503, "SlowDown"));
    let remotes = node.disk_and_s3(&server, 1).await;
    let secret = server.secret_key().to_owned();
    let mut options = node.options(remotes);
    let address = serve_metrics(&mut options);
    let (service, client) = node.start_controlled(options).await;
    let (head, body) = get(address, "GET", "/metrics").unwrap();
    assert!(head.contains("content-type: application/openmetrics-text; version=1.0.0"), "{head}");
    let (head, body_for_people) = get_with(address, "GET", "/metrics", "").unwrap();
    assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    assert!(body_for_people.contains("# TYPE stepvault_sealed_steps_total counter\n"), "{body_for_people}");
    let before = parse(&body);
    assert_eq!(before["stepvault_sealed_steps_total"], 0.0);
    assert_eq!(before["stepvault_uploaded_bytes_total{remote=\"disk\"}"], 0.0);
    assert_eq!(before["stepvault_copied_bytes_total{remote=\"disk\"}"], 0.0);
    assert_eq!(before[&format!("stepvault_steps_waiting{HERE}")], 0.0);
    assert!(!before.contains_key(&format!("stepvault_durable_step{HERE}")));

    node.save_small(40, 9);
    node.save_small(50, 8);
    node.until_durable("disk", 40).await;
    node.until_durable("disk", 50).await;
    let failing = "stepvault_upload_failures_total{run=\"grpo/checkpoints\",remote=\"s3\"}";
    let fresh = "stepvault_vault_steps{run=\"grpo/checkpoints\"}";
    let mut after = BTreeMap::new();
    node.until("the numbers", || {
        after = scrape(address);
        after[failing] > 0.0
            && after[fresh] == 2.0
            && after.get(&format!("stepvault_durable_step{HERE}")) == Some(&50.0)
            && after[&format!("stepvault_steps_waiting{HERE}")] == 0.0
    })
    .await;
    let is = |series: &str| after[series];
    assert_eq!(is("stepvault_sealed_steps_total"), 2.0);
    assert_eq!(is("stepvault_uploaded_bytes_total{remote=\"disk\"}"), 2600.0);
    assert_eq!(is("stepvault_durable_steps_total{remote=\"disk\"}"), 2.0);
    assert_eq!(is("stepvault_vault_bytes"), 2600.0);
    assert!(is("stepvault_disk_free_bytes") > 0.0);
    assert_eq!(is("stepvault_newest_step{run=\"grpo/checkpoints\"}"), 50.0);
    let on_s3 = |name: &str| after[&format!("stepvault_{name}{{run=\"grpo/checkpoints\",remote=\"s3\"}}")];
    assert_eq!((on_s3("steps_waiting"), on_s3("waiting_bytes")), (2.0, 2600.0));
    assert!(on_s3("oldest_waiting_age_seconds") >= 9.0);
    assert_eq!(on_s3("remote_failing"), 1.0);
    assert_eq!(is(&format!("stepvault_remote_failing{HERE}")), 0.0);
    let durable_at = is(&format!("stepvault_last_durable_timestamp_seconds{HERE}"));
    assert!(durable_at >= is("stepvault_agent_start_timestamp_seconds"));
    assert_eq!(is("stepvault_agent_healthy"), 1.0);
    let errors = |remote: &str| {
        let labels = format!("{{run=\"grpo/checkpoints\",remote=\"{remote}\",kind=\"unreachable\"}}");
        after[&format!("stepvault_upload_errors{labels}")]
    };
    assert_eq!((errors("s3"), errors("disk")), (1.0, 0.0));
    assert_eq!(
        is(
            "stepvault_operations_total{run=\"grpo/checkpoints\",operation=\"upload\",tier=\"disk\",outcome=\"success\"}"
        ),
        2.0
    );
    let sealed = "stepvault_operation_duration_seconds_count{run=\"grpo/checkpoints\",operation=\"seal\",tier=\"local\"}";
    assert_eq!(is(sealed), 2.0);
    assert_eq!(is("stepvault_clock_offset_seconds{remote=\"disk\"}"), 0.0);
    assert!(!after.contains_key("stepvault_clock_offset_seconds{remote=\"s3\"}"), "it acknowledged no write");
    assert_eq!(is(&format!("stepvault_save_to_durable_seconds_count{HERE}")), 2.0);
    assert!(is(&format!("stepvault_durable_step_age_seconds{HERE}")) >= 8.0);
    let asked = |name: &str, remote: &str| is(&format!("stepvault_{name}_total{{remote=\"{remote}\"}}"));
    assert!(asked("requests", "disk") > 0.0 && asked("retries", "disk") == 0.0);
    assert!(asked("retries", "s3") > 0.0 && asked("requests", "s3") > asked("retries", "s3"));
    assert_eq!(on_s3("remote_needs_operator"), 0.0);
    assert!(is("stepvault_warnings_total") >= 1.0);
    assert!(is("stepvault_disk_total_bytes") >= is("stepvault_disk_free_bytes"));
    assert!(after.keys().any(|series| series.starts_with("stepvault_build_info{version=\"")));

    let (_, body) = get(address, "GET", "/metrics").unwrap();
    let status = serde_json::to_string(&client.status(PATIENCE).await.unwrap()).unwrap();
    assert!(!body.contains(&secret) && !status.contains(&secret));
    service.stop();
    assert!(get(address, "GET", "/metrics").is_none(), "the port is closed at the end");
}

#[tokio::test]
async fn the_health_check_and_other_paths() {
    let node = Node::new();
    let mut options = node.disk_options().await;
    let address = serve_metrics(&mut options);
    let (service, _client) = node.start_controlled(options.clone()).await;
    let (head, body) = get(address, "GET", "/healthz").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert_eq!(body, "well\n");
    for (method, path, status) in [
        ("GET", "/", "404"),
        ("GET", "/v1/status", "404"),
        ("POST", "/v1/drain", "405"),
        ("POST", "/metrics", "405"),
        ("HEAD", "/metrics", "200"),
    ] {
        let (head, _) = get(address, method, path).unwrap();
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{method} {path}: {head}");
    }
    // Two agents cannot have one port; that it was asked for makes it an error.
    let other = Node::new();
    let mut second = other.disk_options().await;
    second.agent.metrics.listen = Some(address);
    let error = other.start(second.clone()).ended().unwrap_err();
    assert!(text(&error).contains("set agent.metrics-listen to a free port"), "{error}");
    service.stop();
}

#[tokio::test]
async fn with_a_token_others_learn_only_whether_it_is_well() {
    const SECRET: &str = "0123456789abcdef";
    let (node, server) = (Node::new(), StrictS3::start());
    fail_all(&server, &FaultAction::refuse(403, "AccessDenied"));
    let mut options = node.options(vec![node.s3_remote("s3", &server, 1).await]);
    let address = serve_metrics(&mut options);
    let token = node.outputs().join("../token");
    options.agent.metrics.token_file = Some(token.clone());
    for (secret, why) in
        [("", "at least 16 characters"), ("short", "at least 16"), ("a b c d e f g h i j", "one word")]
    {
        std::fs::write(&token, secret).unwrap();
        let error = node.start(options.clone()).ended().unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    }
    std::fs::write(&token, format!("{SECRET}\n")).unwrap();
    let (service, _client) = node.start_controlled(options).await;
    for (headers, status) in [
        ("", "401"),
        ("authorization: Bearer 0123456789abcdeX\r\n", "401"),
        ("authorization: Basic 0123456789abcdef\r\n", "401"),
        ("authorization: bearer 0123456789abcdef\r\n", "200"),
    ] {
        let (head, body) = get_with(address, "GET", "/metrics", headers).unwrap();
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{headers}: {head}");
        assert_eq!(body.contains("grpo/checkpoints"), status == "200", "{headers}");
    }
    assert_eq!(get(address, "GET", "/healthz").unwrap().1, "well\n");
    service.stop();
}

/// Returns the file's samples, as every scraper reads them.
fn samples_of(text: &str) -> Vec<&str> {
    text.lines().filter(|line| !line.starts_with('#')).collect()
}

#[tokio::test]
async fn the_metrics_file_is_there_from_the_start_and_says_how_it_ended() {
    let node = Node::new();
    let mut options = node.disk_options().await;
    let file = node.outputs().join("../stepvault.prom");
    options.agent.metrics.file = Some(file.clone());
    let service = node.start(options);
    node.until("the file", || file.exists()).await;
    let sealed = |count: u32| format!("stepvault_sealed_steps_total{{node=\"node-0\"}} {count}");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(samples_of(&text).contains(&sealed(0).as_str()), "{text}");
    node.save_small(40, 9);
    node.until_durable("disk", 40).await;
    service.stop();
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(samples_of(&text).contains(&sealed(1).as_str()), "{text}");
    assert!(text.contains("# TYPE stepvault_save_to_durable_seconds histogram\n") && !text.contains("# EOF"));
    promtool_accepts(&text);
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o644, "the exporter is another user");
    for (name, value) in [("retention_blocked", "0"), ("next_step_bytes", "1300")] {
        assert!(
            text.lines().any(|line| line.contains(name) && line.ends_with(&format!(" {value}"))),
            "{name}: {text}"
        );
    }
}

/// Lets `promtool` check the text, where it is installed.
fn promtool_accepts(text: &str) {
    let checking = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut checking = match checking {
        Ok(checking) => checking,
        Err(error) if std::env::var_os("PROMTOOL_REQUIRED").is_none() => {
            eprintln!("skipped: promtool cannot be started: {error}");
            return;
        }
        Err(error) => panic!("promtool: {error}"),
    };
    checking.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let checked = checking.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.success() && said.is_empty(), "{said}");
}

#[tokio::test]
async fn what_a_person_has_to_mend_and_what_retention_removes_is_counted() {
    let (node, server) = (Node::new(), StrictS3::start());
    let denied = FaultAction::refuse(403, "AccessDenied");
    server.faults().inject("PUT", "", u64::MAX, denied);
    let mut options = node.options(node.disk_and_s3(&server, 1).await);
    options.runs[0].keep_remote = keep_last(1);
    let address = serve_metrics(&mut options);
    let service = node.start(options);
    for step in [40, 50] {
        node.save_small(step, 60 - step);
        node.until_durable("disk", step).await;
    }
    let on_s3 = |name: &str| format!("stepvault_{name}{{run=\"grpo/checkpoints\",remote=\"s3\"");
    node.until("the numbers", || {
        let Some((_, body)) = get(address, "GET", "/metrics") else {
            return false;
        };
        let samples = parse(&body);
        samples[&(on_s3("remote_needs_operator") + "}")] == 1.0
            && samples.get(&(on_s3("upload_errors") + ",kind=\"denied\"}")) == Some(&1.0)
            && samples["stepvault_removed_steps_total{tier=\"disk\"}"] == 1.0
            && samples["stepvault_removed_steps_total{tier=\"local\"}"] == 0.0
    })
    .await;
    service.stop();
}

#[tokio::test]
async fn what_the_store_copies_is_counted_apart_from_what_is_sent() {
    let (node, server) = (Node::new(), StrictS3::start());
    let mut options = node.options(vec![node.s3_remote("s3", &server, 60).await]);
    let address = serve_metrics(&mut options);
    let (service, _client) = node.start_controlled(options).await;
    let first = node.save_small(40, 9);
    node.until_durable("s3", 40).await;
    let next = node.outputs().join("tmp_step_50");
    std::fs::create_dir_all(next.join("optimizer")).unwrap();
    for file in ["model.safetensors", "optimizer/state.pt"] {
        std::fs::copy(first.join(file), next.join(file)).unwrap();
    }
    server.faults().clear_requests();
    std::fs::rename(&next, node.outputs().join("step_50")).unwrap();
    node.until_durable("s3", 50).await;
    let numbers = scrape(address);
    let bytes = |name: &str| numbers[&format!("stepvault_{name}_bytes_total{{remote=\"s3\"}}")];
    assert_eq!((bytes("uploaded"), bytes("copied")), (1300.0, 1300.0));
    let requests = server.faults().requests();
    let data = requests.iter().filter(|request| request.path.contains("/step_50/"));
    assert_eq!(data.map(|request| request.body_bytes).sum::<u64>(), 0);
    service.stop();
}

#[tokio::test]
async fn the_clock_of_a_store_is_compared_with_this_machines() {
    for ahead_seconds in [3600, -120] {
        let node = Node::new();
        let server = StrictS3::start_with(StrictS3Options {
            clock_ahead_seconds: ahead_seconds,
            ..StrictS3Options::default()
        });
        let mut options = node.options(vec![node.s3_remote("s3", &server, 60).await]);
        let address = serve_metrics(&mut options);
        let (service, _client) = node.start_controlled(options).await;
        node.save_small(40, 9);
        node.until_durable("s3", 40).await;
        let measured = scrape(address)["stepvault_clock_offset_seconds{remote=\"s3\"}"];
        #[expect(clippy::cast_precision_loss, reason = "they are small")]
        let expected = ahead_seconds as f64;
        assert!((measured - expected).abs() <= 2.0, "{measured} {expected}");
        service.stop();
    }
}

#[tokio::test]
async fn the_durable_step_is_known_after_its_copy_was_evicted() {
    let (node, server) = (Node::new(), StrictS3::start());
    let mut options = node.options(vec![node.s3_remote("s3", &server, 1).await]);
    options.runs[0].keep_local = keep_last(1);
    let address = serve_metrics(&mut options);
    let (service, _client) = node.start_controlled(options).await;
    node.save_small(40, 9);
    node.until_durable("s3", 40).await;
    server.faults().inject("PUT", "", u64::MAX, FaultAction::refuse(403, "AccessDenied"));
    node.save_small(50, 8);
    node.until_heard("removed from local: step 40").await;
    let of_run = "{run=\"grpo/checkpoints\",remote=\"s3\"}";
    let mut numbers = BTreeMap::new();
    node.until("the numbers", || {
        numbers = scrape(address);
        numbers["stepvault_vault_steps{run=\"grpo/checkpoints\"}"] == 1.0
    })
    .await;
    assert_eq!(numbers[&format!("stepvault_steps_waiting{of_run}")], 1.0);
    assert_eq!(numbers[&format!("stepvault_durable_step{of_run}")], 40.0);
    assert!(numbers[&format!("stepvault_durable_step_age_seconds{of_run}")] >= 9.0);
    service.stop();
}

/// Every name in the reference, and no other.
#[tokio::test]
async fn every_metric_is_documented() {
    let node = Node::new();
    node.save_small(1, 5);
    let mut options = node.disk_options().await;
    let address = serve_metrics(&mut options);
    let (service, _client) = node.start_controlled(options).await;
    node.until_durable("disk", 1).await;
    let mut rows = BTreeSet::new();
    node.until("all metrics", || {
        let (_, body) = get(address, "GET", "/metrics").unwrap();
        let samples = parse(&body);
        rows = table_rows(&body, &samples);
        samples.contains_key(&format!("stepvault_durable_step{HERE}"))
            && samples.contains_key(&format!("stepvault_last_durable_timestamp_seconds{HERE}"))
    })
    .await;
    service.stop();
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/metrics.md");
    let document = std::fs::read_to_string(&place).unwrap_or_default();
    let documented: BTreeSet<String> =
        document.lines().filter(|line| line.starts_with("| `stepvault_")).map(str::to_owned).collect();
    if std::env::var_os("STEPVAULT_BLESS").is_some() {
        let (head, tail) = (document.split("| `stepvault_").next().unwrap(), {
            let last = document
                .rfind("| `stepvault_")
                .map_or(document.len(), |at| at + document[at..].find('\n').map_or(0, |end| end + 1));
            &document[last..]
        });
        let rows: Vec<String> = rows.iter().map(|row| format!("{row}\n")).collect();
        let rows = rows.concat();
        std::fs::write(&place, format!("{head}{rows}{tail}")).unwrap();
        return;
    }
    assert_eq!(
        documented, rows,
        "`STEPVAULT_BLESS=1 cargo test -p stepvault-agent --test agent every_metric` writes them anew"
    );
}

/// Name, type, labels and meaning of each metric.
fn table_rows(body: &str, samples: &BTreeMap<String, f64>) -> BTreeSet<String> {
    let types: BTreeMap<&str, &str> =
        body.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
    let helps = body.lines().filter_map(|line| line.strip_prefix("# HELP ")?.split_once(' '));
    let row = |(name, help): (&str, &str)| {
        let kind = types[name];
        let suffix = match kind {
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        let name = format!("{name}{suffix}");
        let sample = if kind == "histogram" { format!("{name}_count") } else { name.clone() };
        let series = samples
            .keys()
            .find(|series| series.split('{').next() == Some(sample.as_str()))
            .unwrap_or_else(|| panic!("no sample of {name}"));
        let labels: Vec<&str> = match series.split_once('{') {
            Some((_, labels)) => labels.split(',').map(|label| label.split('=').next().unwrap()).collect(),
            None => Vec::new(),
        };
        let help = help.trim_end_matches('.');
        format!("| `{name}` | {kind} | {} | {help} |", labels.join(", "))
    };
    helps.map(row).collect()
}
