//! docs/reference/json.md: the documents that `--json` prints, from real commands.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde_json::{Map, Value};

use crate::example::write_checkpoint;
use crate::generated::{check, heading};
use crate::json_meanings::meaning;
use crate::place::Place;

/// What goes with every command below.
const COMMON: &str = "--json --run my-run --remote main=file://$PWD/remote --local $PWD/vault --node node-0";
/// Most entries of a list that are shown.
const SHOWN: usize = 2;

/// A remote that answers nobody.
const GONE: &str =
    "--remote main=file://$PWD/remote --remote 'gone=s3://b/p?endpoint=http://127.0.0.1:1&retry-deadline=1s'";

/// The same remote with another URL, where nothing is.
const MOVED: &str = "--remote main=file://$PWD/remote --remote gone=file://$PWD/elsewhere";

/// Each document's name, and the commands whose documents have that shape; the first is shown.
const DOCUMENTS: [(&str, &[&str]); 26] = [
    (
        "push",
        &[
            "push checkpoints/step_101 --metric loss=1.98",
            "push checkpoints/step_102 --remote other=file://$PWD/no/such/place",
        ],
    ),
    ("list", &["list", "list GONE", "list --run drained MOVED"]),
    ("show", &["show 101", "show 101 GONE"]),
    (
        "status",
        &[
            "status",
            "status --run drained MOVED",
            "status --config looped.toml --run looped --local looped-vault",
            "status --local $PWD/live-vault",
        ],
    ),
    (
        "wait",
        &["wait 101 --for durable", "wait 9 --for durable --timeout 0s"],
    ),
    (
        "inspect",
        &["inspect checkpoints --quiet-time 0s", "inspect megatron"],
    ),
    (
        "estimate",
        &[
            "estimate --params 30e9 --master fp32 --nodes 2 --ranks-per-node 8 --steps 5000 --every 500 --keep 2 --keep-remote 3",
            "estimate sized --shuffle-buffer 250000 --sample 500kB",
        ],
    ),
    (
        "doctor",
        &["doctor checkpoints --config doctor.toml --step-size 1MB --save-interval 10m"],
    ),
    (
        "explain",
        &[
            "explain broken --log trainer.log --elsewhere --run torn --local none",
            "explain broken --log broken --elsewhere --local none --remote main=file://$PWD/nothing",
            "explain whole --elsewhere --local none --remote main=file://$PWD/nothing",
        ],
    ),
    ("verify", &["verify --deep", "verify GONE"]),
    ("pin", &["pin 100 --note baseline"]),
    ("unpin", &["unpin 100"]),
    (
        "prune",
        &[
            "prune --dry-run --keep-last 1",
            "prune --keep-last 1",
            "prune --keep-last 1 --remote none=file://$PWD/none",
        ],
    ),
    ("gc", &["gc --dry-run", "gc --remote none=file://$PWD/none"]),
    ("damage", &[]),
    (
        "remote forget",
        &["remote forget main --run looped --local looped-vault"],
    ),
    (
        "restore",
        &[
            "restore --into restored",
            "restore --into restored --plan",
            "restore --into other --local none GONE",
            "restore --into trainer --run zero --local none",
        ],
    ),
    ("stage", &["stage --in saved --step 7"]),
    ("commit", &["commit save/step_7", "commit save/step_7"]),
    ("config show", &["config show"]),
    (
        "config check",
        &["config check", "config check --config wrong.toml"],
    ),
    ("init", &["init"]),
    (
        "agent",
        &[
            "agent --once --config agent.toml",
            "agent --once --config agent.toml GONE",
        ],
    ),
    (
        "announce",
        &["announce live/step_5 --wait-for durable --local $PWD/live-vault"],
    ),
    ("drain", &["drain --wait --local $PWD/live-vault"]),
    ("error", &["show 9", "list --run a/../b"]),
];

#[test]
fn the_reference_of_json_documents_is_what_is_printed() {
    let place = Place::new();
    for step in [100, 101, 102] {
        write_checkpoint(place.path(), step);
    }
    place.output(&format!("stepvault push checkpoints/step_100 {COMMON}"));
    place.output("mkdir elsewhere none nothing");
    place.output(
        "printf '[local]\\nlinks = \"soft\"\\n' > wrong.toml; mkdir -p watched/step_5 watched/step_x; \
                  echo weights > watched/step_5/model.pt; mkdir -p megatron/iter_0000010; \
                  echo x > megatron/iter_0000010/metadata.json; \
                  printf 10 > megatron/latest_checkpointed_iteration.txt",
    );
    place.output(
        "printf '[run.\"my-run\"]\\nwatch = \"watched\"\\ncomplete = \"rename\"\\npattern = \"step_*\"\\n\
         [keep.remote]\\nlast = 1\\n[keep.local]\\nlast = 1\\n' > agent.toml",
    );
    place.output("printf '[doctor]\\nrequired-environment = [\"OUTPUT_PATH\"]\\n' > doctor.toml");
    // A step that was given up.
    place.output(
        "mkdir -p vault/runs/my-run/notes; printf '{\"format\":1,\"more\":0,\"node\":\"node-0\",\"run\":\"my-run\",\
         \"steps\":[{\"bytes\":33,\"durable_on\":[\"main\"],\"given_up_at\":{\"nanoseconds\":0,\"seconds\":1767330000},\
         \"id\":{\"attempt\":1,\"step\":50}}]}' > vault/runs/my-run/notes/given-up.json",
    );
    // A step that a drain left, on a remote that did not answer; told once the remote is elsewhere.
    place.output(&format!(
        "export STEPVAULT_AGENT_DRAIN_DEADLINE=3s; \
         stepvault push checkpoints/step_100 --run drained --node node-0 --local $PWD/vault {GONE} 2>/dev/null; \
         stepvault agent --run drained --local $PWD/vault --node node-0 {GONE} 2>drained.log >/dev/null & \
         until grep -q 'is not durable on gone' drained.log; do sleep 0.1; done; kill -TERM $!; wait $! || true",
    ));
    // A header alone, an index of weights that are not there, and what is no header.
    place.output(
        "mkdir -p sized; \
         printf '\\065\\0\\0\\0\\0\\0\\0\\0{\"w\":{\"dtype\":\"U8\",\"shape\":[9],\"data_offsets\":[0,9]}}' > sized/a.safetensors; \
         echo '{\"metadata\":{\"total_size\":40},\"weight_map\":{\"v\":\"m.safetensors\"}}' > sized/m.safetensors.index.json; \
         echo none > sized/none.safetensors",
    );
    // A step with a pointer, and something in the pointer's place.
    place.output(
        "mkdir -p zero/global_step10 trainer/latest; echo weights > zero/global_step10/mp_rank_00_model_states.pt; \
         stepvault push zero/global_step10 --run zero --local zero-vault --remote main=file://$PWD/remote",
    );
    place.output(
        "staged=$(stepvault stage --in saved --step 7) && echo weights > $staged/model.pt && \
         ln -s ${staged%/*} save",
    );
    place.output(
        "mkdir -p looped/step_1; echo weights > looped/step_1/model.pt; \
         here=\"--run looped --local looped-vault --node node-0 --remote main=file://$PWD/remote\"; \
         printf '[restart]\\nloop-starts = 2\\ndemote-after = 1\\n' > looped.toml; stepvault push looped/step_1 $here; \
         stepvault run --into looped $here -- false; stepvault run --into looped $here -- false; true",
    );
    // A step whose commit cannot be read, one that was cut off, and the log of it.
    place.output(
        "mkdir -p torn broken whole/step_3; echo weights > whole/step_3/model.bin; for step in 1 2; do mkdir torn/step_$step; echo weights > torn/step_$step/model.pt; \
         stepvault push torn/step_$step --run torn --local torn-vault --remote main=file://$PWD/remote; done; \
         printf x > remote/torn/.stepvault/commits/000000000002.a1.json; printf 'PK\\003\\004' > broken/step_2.pt; \
         printf 'step 1\\nOSError: [Errno 28] No space left on device\\n' > trainer.log",
    );
    // An agent with a vault of its own. It ends with the last document but one, or with its time.
    place.output(
        "mkdir -p live/step_5 && echo weights > live/step_5/weights.dat; timeout 300 stepvault agent --quiet \
         --run my-run --remote main=file://$PWD/live-remote --local $PWD/live-vault --node node-0 \
         > agent.log 2>&1 & for try in $(seq 300); do [ -S live-vault/agent.sock ] && exit; sleep 0.1; done; exit 1",
    );
    let mut text = heading("JSON documents", "what the commands print with `--json`");
    text.push_str(INTRODUCTION);
    for (name, commands) in DOCUMENTS {
        if name == "damage" {
            // Both copies of the newest step, so that a restore passes over it.
            place.output("for file in remote/my-run/000000000102.a1/step_102/model.safetensors vault/runs/my-run/steps/*102.a1/data/model.safetensors; do \
                          if [ -e $file ]; then printf x | dd of=$file conv=notrunc 2>/dev/null; fi; done");
            continue;
        }
        let documents: Vec<Value> = commands.iter().map(|command| printed(&place, command)).collect();
        write!(text, "\n## {name}\n\n{}", section(name, &documents)).unwrap();
    }
    check("docs/reference/json.md", &text);
}

const INTRODUCTION: &str = "With `--json` a command prints one JSON document on standard output and nothing else; \
progress, warnings and errors go to standard error. Every document has `format`, 1 in this version. Within a format \
members may be added, so programs should ignore unknown members; none is removed or changes its meaning. Numbers have \
their unit in the name or are bytes; times are strings in RFC 3339, in UTC, or objects of seconds and nanoseconds since \
1970.

A command that fails before it has a result prints the document `error` instead. A command that has a result prints it; \
the [exit code](exit-codes.md) reports how complete the result is.

`completions` and `man` without a directory always print text; `run` and `status --watch` refuse `--json`. `demo` prints \
a document that is not described here, because nothing should depend on it. The examples below come from real runs; \
paths, durations and disk sizes are replaced, lists are cut to two entries, and members are sorted by name.
";

fn printed(place: &Place, command: &str) -> Value {
    // A flag of the command's own takes the place of the common one.
    let command = &command.replace("GONE", GONE).replace("MOVED", MOVED);
    let common: Vec<&str> = COMMON.split_whitespace().collect();
    let common: String = common
        .iter()
        .enumerate()
        .filter(|(index, word)| {
            let flag = if word.starts_with("--") {
                word
            } else {
                &common[index - 1]
            };
            !command.split_whitespace().any(|own| own == *flag)
        })
        .fold(String::new(), |line, (_, word)| line + " " + word);
    let output = place.shell(&format!("stepvault {command}{common}"));
    let text = String::from_utf8(output.stdout).unwrap();
    let document = serde_json::from_str(&text).unwrap_or_else(|error| {
        panic!(
            "{command}: {error}: {text}{}",
            String::from_utf8_lossy(&output.stderr)
        )
    });
    plain(document, "", &place.path().display().to_string())
}

/// Replaces what differs from run to run.
pub(crate) fn plain(value: Value, name: &str, place: &str) -> Value {
    match value {
        Value::Object(members) => Value::Object(
            plain_finding(members)
                .into_iter()
                .map(|(key, inner)| (key.clone(), plain(inner, &key, place)))
                .collect(),
        ),
        Value::Array(entries) => Value::Array(
            entries
                .into_iter()
                .map(|entry| plain(entry, name, place))
                .collect(),
        ),
        Value::Number(_) if name == "seconds" => Value::from(0.5),
        Value::Number(_) if name == "allocated_bytes" => Value::from(12_288),
        Value::Number(_) if name == "process_id" => Value::from(4711),
        Value::String(_) if name == "started_at" => Value::from("2026-05-04T10:00:00Z"),
        Value::Number(_) if name == "disk_free_bytes" => Value::from(600_000_000_000_u64),
        Value::Number(_) if name == "disk_total_bytes" => Value::from(1_000_000_000_000_u64),
        Value::String(_) if name == "ended_at" => Value::from("2026-11-21T10:16:00Z"),
        Value::String(text) => Value::String(plain_text(&text, place)),
        other => other,
    }
}

/// What `doctor` measured is another on every machine. What it tried in a directory, or of a variable, is the same.
fn plain_finding(mut members: Map<String, Value>) -> Map<String, Value> {
    let check = members.get("check").and_then(Value::as_str).unwrap_or_default();
    let (outcome, measured, remedy) = match check {
        "" | "directory" | "variable" => return members,
        "filesystem" => ("pass", "ext4, /dev/nvme0n1 on /data", None),
        "save and seal" => (
            "pass",
            "a step of 976.6 KiB is written and linked into the vault in 9ms; a step is saved every 10m",
            None,
        ),
        "upload" => (
            "warn",
            "a step of 976.6 KiB is uploaded in 12m; a step is saved every 10m",
            Some("save less often"),
        ),
        _ => ("pass", "as measured", None),
    };
    members.insert("outcome".to_owned(), Value::from(outcome));
    members.insert("measured".to_owned(), Value::from(measured));
    members.insert("remedy".to_owned(), Value::from(remedy));
    members
}

/// The key of a directory of saves is a digest of the directory's path, which is another in every test.
fn plain_text(text: &str, place: &str) -> String {
    let text = text.replace(place, "/data");
    match text.split_once("/saves/") {
        Some((before, rest)) if rest.contains('/') => {
            let (_, rest) = rest.split_once('/').unwrap();
            format!("{before}/saves/989548c4a92feb4c/{rest}")
        }
        _ => text,
    }
}

fn section(name: &str, documents: &[Value]) -> String {
    let mut types = Vec::new();
    for document in documents {
        collect(document, "", &mut types);
    }
    let mut text = String::from("| Member | Type | Meaning |\n|---|---|---|\n");
    let mut kinds: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    let mut order: Vec<String> = Vec::new();
    for (path, kind) in types {
        if !order.contains(&path) {
            order.push(path.clone());
        }
        kinds.entry(path).or_default().insert(kind);
    }
    for path in order {
        let kinds: Vec<&str> = kinds[&path].iter().copied().collect();
        writeln!(
            text,
            "| `{path}` | {} | {} |",
            kinds.join(" or "),
            meaning(name, &path)
        )
        .unwrap();
    }
    let shown = serde_json::to_string_pretty(&cut(documents[0].clone())).unwrap();
    write!(text, "\n```json\n{shown}\n```\n").unwrap();
    text
}

fn collect(value: &Value, path: &str, types: &mut Vec<(String, &'static str)>) {
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "text",
        Value::Array(_) => "list",
        Value::Object(_) => "object",
    };
    if !path.is_empty() {
        types.push((path.to_owned(), kind));
    }
    match value {
        Value::Object(members) => {
            let free_names = path.ends_with("metrics");
            for (key, inner) in members {
                let key = if free_names { "NAME" } else { key };
                let path = if path.is_empty() {
                    key.to_owned()
                } else {
                    format!("{path}.{key}")
                };
                collect(inner, &path, types);
            }
        }
        Value::Array(entries) => {
            for entry in entries.iter().filter(|entry| entry.is_object()) {
                collect_members(entry, &format!("{path}[]"), types);
            }
        }
        _ => {}
    }
}

fn collect_members(entry: &Value, path: &str, types: &mut Vec<(String, &'static str)>) {
    for (key, inner) in entry.as_object().into_iter().flat_map(Map::iter) {
        collect(inner, &format!("{path}.{key}"), types);
    }
}

fn cut(value: Value) -> Value {
    match value {
        Value::Object(members) => Value::Object(
            members
                .into_iter()
                .map(|(key, inner)| (key, cut(inner)))
                .collect(),
        ),
        Value::Array(entries) => Value::Array(entries.into_iter().take(SHOWN).map(cut).collect()),
        other => other,
    }
}
