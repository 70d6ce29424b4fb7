//! The JSON Schema of the documents that `--json` prints, from their types and doc comments.
//!
//! `docs/reference/json.schema.json` is compared with it; with `STEPVAULT_BLESS` set it is written.

use std::path::Path;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};
use stepvault_agent::control::DrainAnswer;
use stepvault_agent::notifications::Notification;
use stepvault_core::document::Document;
use stepvault_engine::save::CommitReport;
use stepvault_local::durable;

use super::{
    agent, announce, config, copy, dashboard, doctor, du, estimate, explain, follow, gc, generated, import,
    init, inspect, list, pin, prune, push, remote, restore, runs, save, show, status, tier, verify, wait,
};
use crate::output::ErrorDocument;

const FILE: &str = "docs/reference/json.schema.json";

fn of<Body: JsonSchema>(generator: &mut SchemaGenerator) -> Value {
    Document::<Body>::json_schema(generator).to_value()
}

/// Returns the schema of each document by its name in the file, and the schemas of what they contain.
fn schemas() -> (Vec<(&'static str, Value)>, Map<String, Value>) {
    let mut generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let to = &mut generator;
    let documents = vec![
        ("push", of::<push::PushDocument>(to)),
        ("runs", of::<runs::RunsDocument>(to)),
        ("du", of::<du::DuDocument>(to)),
        ("list", of::<list::ListDocument>(to)),
        ("show", of::<show::ShowDocument>(to)),
        ("status", of::<status::StatusDocument>(to)),
        ("dashboard", of::<dashboard::snapshot::DashboardDocument>(to)),
        ("wait", of::<wait::WaitDocument>(to)),
        ("inspect", of::<inspect::InspectDocument>(to)),
        ("estimate", of::<estimate::document::EstimateDocument>(to)),
        ("doctor", of::<doctor::DoctorDocument>(to)),
        ("explain", of::<explain::document::ExplainDocument>(to)),
        ("verify", of::<verify::VerifyDocument>(to)),
        ("copy", of::<copy::CopyDocument>(to)),
        ("tier", of::<tier::TierDocument>(to)),
        ("pin", of::<pin::PinDocument>(to)),
        ("unpin", of::<pin::PinDocument>(to)),
        ("prune", of::<prune::PruneDocument>(to)),
        ("gc", of::<gc::GcDocument>(to)),
        ("remote-forget", of::<remote::ForgetDocument>(to)),
        ("import", of::<import::ImportDocument>(to)),
        ("follow", of::<follow::FollowDocument>(to)),
        ("restore", of::<restore::document::RestoreDocument>(to)),
        ("stage", of::<save::StageDocument>(to)),
        ("commit", of::<CommitReport>(to)),
        ("config-show", of::<config::ShowReport<'_>>(to)),
        ("config-check", of::<config::CheckReport>(to)),
        ("init", of::<init::InitReport>(to)),
        ("man", of::<generated::ManReport>(to)),
        ("agent", of::<agent::AgentDocument>(to)),
        ("announce", of::<announce::AnnounceDocument>(to)),
        ("drain", of::<DrainAnswer>(to)),
        ("notification", of::<Notification>(to)),
        ("error", of::<ErrorDocument>(to)),
    ];
    (documents, generator.take_definitions(true))
}

/// Adds the members of a schema that have no description. The tag of a variant is described with the variant.
fn undescribed(name: &str, schema: &Value, found: &mut Vec<String>) {
    match schema {
        Value::Object(members) => {
            for (key, member) in members.get("properties").and_then(Value::as_object).into_iter().flatten() {
                let is_tag = member["const"].is_string();
                if !is_tag && member["description"].as_str().is_none_or(str::is_empty) {
                    found.push(format!("{name}.{key}"));
                }
            }
            for inner in members.values() {
                undescribed(name, inner, found);
            }
        }
        Value::Array(entries) => {
            for inner in entries {
                undescribed(name, inner, found);
            }
        }
        _ => {}
    }
}

#[test]
fn every_member_of_a_document_is_described_in_the_schema() {
    let (documents, mut definitions) = schemas();
    let any: Vec<Value> =
        documents.iter().map(|(name, _)| json!({ "$ref": format!("#/$defs/{name}") })).collect();
    for (name, schema) in documents {
        assert!(definitions.insert(name.to_owned(), schema).is_none(), "two schemas called {name}");
    }
    let mut missing = Vec::new();
    for (name, schema) in &definitions {
        undescribed(name, schema, &mut missing);
    }
    assert!(missing.is_empty(), "members without a doc comment: {}", missing.join(", "));
    let schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The documents that stepvault prints with --json",
        "anyOf": any,
        "$defs": definitions,
    });
    let expected = format!("{schema:#}\n");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(FILE);
    if std::env::var_os("STEPVAULT_BLESS").is_some_and(|value| !value.is_empty()) {
        durable::replace(&path, expected.as_bytes()).unwrap();
        return;
    }
    assert_eq!(
        std::fs::read_to_string(path).unwrap(),
        expected,
        "{FILE} is out of date: `STEPVAULT_BLESS=1 cargo test -p stepvault --bin stepvault --test docs` writes it"
    );
}
