//! Traces of steps, as a collector receives them.

use serde_json::Value;
use stepvault_testkit::webhook::{WebhookAnswer, WebhookReceiver};

use crate::support::{Outcome, Place, TestCommand};

/// A span as a collector shows it.
#[derive(Debug, Clone)]
struct Span(Value);

impl Span {
    fn text(&self, member: &str) -> &str {
        self.0[member].as_str().unwrap_or_else(|| panic!("no {member}: {:#}", self.0))
    }

    fn nanoseconds(&self, member: &str) -> u64 {
        self.text(member).parse().unwrap()
    }

    fn attribute(&self, name: &str) -> String {
        attribute(&self.0, name)
    }

    /// Its name, and the remote of what was done there.
    fn name(&self) -> String {
        let tier = self.0["attributes"].as_array().unwrap().iter().find(|one| one["key"] == "stepvault.tier");
        let tier = tier.map(|tier| tier["value"]["stringValue"].as_str().unwrap());
        [Some(self.text("name")), tier].into_iter().flatten().collect::<Vec<_>>().join(" ")
    }
}

fn attribute(of: &Value, name: &str) -> String {
    let found = of["attributes"].as_array().unwrap().iter().find(|attribute| attribute["key"] == name);
    let value = &found.unwrap_or_else(|| panic!("no {name}: {of:#}"))["value"];
    value["stringValue"].as_str().or(value["intValue"].as_str()).unwrap().to_owned()
}

/// All spans so far, after the resource and the times of each were looked at.
fn spans(receiver: &WebhookReceiver) -> Vec<Span> {
    let mut spans = Vec::new();
    for document in receiver.documents() {
        for resource in document["resourceSpans"].as_array().unwrap() {
            assert_eq!(attribute(&resource["resource"], "service.name"), "stepvault");
            assert_eq!(attribute(&resource["resource"], "stepvault.node"), "node-0");
            for scope in resource["scopeSpans"].as_array().unwrap() {
                spans.extend(scope["spans"].as_array().unwrap().iter().cloned().map(Span));
            }
        }
    }
    for span in &spans {
        let is_hex = |text: &str| text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let (trace, id) = (span.text("traceId"), span.text("spanId"));
        assert!(trace.len() == 32 && is_hex(trace) && id.len() == 16 && is_hex(id), "{span:?}");
        assert!(span.nanoseconds("startTimeUnixNano") <= span.nanoseconds("endTimeUnixNano"), "{span:?}");
    }
    spans
}

#[track_caller]
fn only<'a>(spans: &'a [Span], name: &str) -> &'a Span {
    let found: Vec<&Span> = spans.iter().filter(|span| span.name() == name).collect();
    assert_eq!(found.len(), 1, "{name}: {spans:#?}");
    found[0]
}

fn names(spans: &[Span]) -> Vec<String> {
    let mut names: Vec<String> = spans.iter().map(Span::name).collect();
    names.sort_unstable();
    names
}

const CONFIGURATION: &str =
    "[run.\"demo/a\"]\nwatch = \"out\"\ncomplete = \"rename\"\n[local]\ndirectory = \"vault\"\n";

/// A place with a finished step and two remotes, the second of which fails as long as there is a file `blocked`.
fn place() -> Place {
    let place = Place::new();
    let second = place.path("blocked/remote");
    let remotes = format!(
        "[remote.one]\nurl = \"{}\"\n[remote.two]\nurl = \"file://{}\"\nretry-deadline = \"1s\"\n",
        place.remote(),
        second.display()
    );
    place.write("stepvault.toml", format!("{CONFIGURATION}{remotes}"));
    std::fs::create_dir(place.path("out")).unwrap();
    place.save_into("out", "step_7");
    place
}

fn command(place: &Place, arguments: &[&str]) -> TestCommand {
    place.command(arguments).with(["--node", "node-0"])
}

/// Runs a command whose traces go to the receiver.
fn traced(place: &Place, receiver: &WebhookReceiver, arguments: &[&str]) -> Outcome {
    command(place, arguments).env("STEPVAULT_TRACES", receiver.url("/v1/traces")).run()
}

#[test]
fn a_step_has_one_trace_from_its_save_until_it_is_durable() {
    let (place, receiver) = (place(), WebhookReceiver::start());
    std::fs::create_dir_all(place.path("blocked/remote")).unwrap();
    let mut agent = command(&place, &["agent", "--once"]);
    agent.env("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url(""));
    agent
        .env("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20s3cr3t")
        .env("STEPVAULT_AGENT_LOG_FORMAT", "json");
    let outcome = agent.run().expect_code(0);
    for request in receiver.requests() {
        assert_eq!((request.method.as_str(), request.path.as_str()), ("POST", "/v1/traces"));
        assert_eq!(request.headers["authorization"], "Bearer s3cr3t");
    }
    let spans = spans(&receiver);
    let expected = [
        "commit one",
        "commit two",
        "save-to-durable",
        "seal local",
        "send one",
        "send two",
        "upload one",
        "upload two",
    ];
    assert_eq!(names(&spans), expected);
    let logged = outcome.stderr.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let traces: Vec<Value> = logged.map(|line| line["trace_id"].clone()).filter(|id| !id.is_null()).collect();
    assert!(!traces.is_empty() && traces.iter().all(|trace| *trace == traces[0]), "{traces:?}");
    let root = only(&spans, "save-to-durable");
    assert_eq!(root.text("parentSpanId"), "");
    for span in &spans {
        assert_eq!(span.text("traceId"), traces[0], "{span:?}");
        assert_eq!(span.attribute("stepvault.run"), "demo/a");
        assert_eq!(
            (span.attribute("stepvault.step"), span.attribute("stepvault.attempt")),
            ("7".into(), "1".into())
        );
        assert!(span.nanoseconds("startTimeUnixNano") >= root.nanoseconds("startTimeUnixNano"), "{span:?}");
        assert_eq!(span.0["status"], serde_json::json!({}));
    }
    for (name, parent) in [
        ("seal local", root),
        ("upload one", root),
        ("upload two", root),
        ("send one", only(&spans, "upload one")),
        ("commit two", only(&spans, "upload two")),
    ] {
        assert_eq!(only(&spans, name).text("parentSpanId"), parent.text("spanId"), "{name}");
    }
    let bytes = only(&spans, "upload one").attribute("stepvault.bytes");
    assert!(bytes.parse::<u64>().unwrap() > 6000 && root.attribute("stepvault.bytes") == bytes, "{bytes}");
    // A later restore belongs to the trace, and is no part of the time until the step was durable.
    traced(&place, &receiver, &["restore", "--into", "again", "--run", "demo/a"]).expect_code(0);
    let restored = only(&self::spans(&receiver), "restore local").clone();
    assert_eq!((restored.text("traceId"), restored.text("parentSpanId")), (root.text("traceId"), ""));
}

#[test]
fn a_later_process_ends_the_trace_that_another_one_began() {
    let (place, receiver) = (place(), WebhookReceiver::start());
    place.write("blocked", "");
    traced(&place, &receiver, &["agent", "--once"]);
    let first = spans(&receiver);
    assert!(!names(&first).contains(&"save-to-durable".to_owned()), "{first:#?}");
    let seal = only(&first, "seal local");
    place.remove("blocked");
    std::fs::create_dir_all(place.path("blocked/remote")).unwrap();
    let later = WebhookReceiver::start();
    traced(&place, &later, &["agent", "--once"]).expect_code(0);
    let later = spans(&later);
    assert_eq!(names(&later), ["commit two", "save-to-durable", "send two", "upload two"]);
    let root = only(&later, "save-to-durable");
    assert_eq!(
        (root.text("traceId"), root.text("spanId")),
        (seal.text("traceId"), seal.text("parentSpanId"))
    );
}

#[test]
fn a_collector_that_fails_or_hangs_changes_no_result_and_its_url_is_told_nowhere() {
    for answer in [WebhookAnswer::Status(404), WebhookAnswer::Hang] {
        let (place, receiver) = (Place::new(), WebhookReceiver::start());
        receiver.answer_always(answer);
        place.checkpoint("step_3", "x");
        let remote = place.remote();
        let mut push =
            command(&place, &["push", "checkpoints/step_3", "--run", "demo/a", "--remote", &remote, "-vvv"]);
        let outcome = push.env("STEPVAULT_TRACES", receiver.url("/s3cr3t?key=s3cr3t")).run().expect_code(0);
        let outcome = outcome.expect_stderr(&[
            "warning: cannot send every span of the traces: http://127.0.0.1:",
            "5 spans dropped",
        ]);
        assert!(!format!("{outcome:?}").contains("s3cr3t"), "{outcome:?}");
    }
    let place = Place::new();
    let shown = |url: &str| command(&place, &["config", "show"]).env("STEPVAULT_TRACES", url).run();
    shown("https://host/s3cr3t").expect_code(0).expect_stdout(&["\"https://host/…\""]);
    let refused = shown("host/s3cr3t").expect_code(2);
    assert!(!format!("{refused:?}").contains("s3cr3t"), "{refused:?}");
    // What is wrong with a variable that may be meant for others does not stop a command.
    place.push_steps(&[1]);
    let remote = place.remote();
    let mut list = command(&place, &["list", "--run", "demo", "--remote", &remote]);
    let listed = list.env("OTEL_EXPORTER_OTLP_ENDPOINT", "collector/s3cr3t").run().expect_code(0);
    let listed =
        listed.expect_stderr(&["warning: cannot use the URL: OTEL_EXPORTER_OTLP_ENDPOINT: it is not a URL"]);
    assert!(!format!("{listed:?}").contains("s3cr3t"), "{listed:?}");
}
