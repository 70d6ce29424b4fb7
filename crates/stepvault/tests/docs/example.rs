//! The worked example of docs/format.md: written by the program, shown with every byte.

use std::fmt::Write as _;
use std::fs::{File, FileTimes};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use crate::generated::check_generated;
use crate::place::Place;

const DOCUMENT: &str = "docs/format.md";
const PUSH: &str = "stepvault push checkpoints/step_100 --run my-run --remote main=file://$PWD/remote --node node-0 \
                    --metric loss=1.98";
/// What the documents show in place of the marker's random identity.
const IDENTITY: &str = "0123456789abcdef0123456789abcdef";

const FILES: [(&str, &str, u32); 3] = [
    ("model.safetensors", "weights of step 100\n", 0o640),
    ("optimizer/empty.bin", "", 0o644),
    ("trainer_state.json", "{\"loss\":1.98}", 0o644),
];

/// Writes the example's checkpoint, with fixed modes and times.
pub(crate) fn write_checkpoint(place: &Path, step: u64) {
    let root = place.join(format!("checkpoints/step_{step}"));
    std::fs::create_dir_all(root.join("optimizer")).unwrap();
    for (path, text, mode) in FILES {
        std::fs::write(root.join(path), text.replace("100", &step.to_string())).unwrap();
        std::fs::set_permissions(root.join(path), PermissionsExt::from_mode(mode)).unwrap();
    }
    std::os::unix::fs::symlink("model.safetensors", root.join("latest.safetensors")).unwrap();
    // 2026-01-02T03:04:05.678901234Z for step 100, a second more for each step after it.
    let time = UNIX_EPOCH + Duration::new(1_767_323_045 + step - 100, 678_901_234);
    let directories = [root.join("optimizer"), root.clone()];
    for path in FILES.iter().map(|(path, ..)| root.join(path)).chain(directories) {
        if path.is_dir() {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        }
        File::open(&path).unwrap().set_times(FileTimes::new().set_modified(time)).unwrap();
    }
}

fn files_below(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(files_below(&path));
        } else {
            files.push(path);
        }
    }
    files.sort();
    files
}

#[test]
fn the_example_of_the_format_is_what_a_push_writes() {
    let place = Place::new();
    write_checkpoint(place.path(), 100);
    place.output(PUSH);
    let remote = place.path().join("remote");
    let mut text =
        String::from("The checkpoint, with every modification time at 2026-01-02T03:04:05.678901234Z:\n\n");
    text.push_str("| Path | Bytes | Mode |\n|---|---|---|\n| `step_100/` | | 0755 |\n");
    for (path, bytes, mode) in FILES {
        let shown =
            if bytes.is_empty() { "none".to_owned() } else { format!("`{}`", bytes.replace('\n', "\\n")) };
        writeln!(text, "| `step_100/{path}` | {shown} | 0{mode:o} |").unwrap();
        if path == FILES[0].0 {
            text.push_str("| `step_100/latest.safetensors` | link to `model.safetensors` | |\n");
            text.push_str("| `step_100/optimizer/` | | 0755 |\n");
        }
    }
    let command = PUSH.replace(" --node", " \\\n      --node");
    write!(text, "\n```sh\n{command}\n```\n\nThe remote holds then:\n\n```text\n").unwrap();
    let relative = |path: &Path| path.strip_prefix(&remote).unwrap().display().to_string();
    let files = files_below(&remote);
    for path in &files {
        writeln!(text, "{}", relative(path)).unwrap();
    }
    text.push_str("```\n");
    for path in files.iter().filter(|path| path.components().any(|part| part.as_os_str() == ".stepvault")) {
        let mut record = std::fs::read_to_string(path).unwrap();
        if path.ends_with("vault.json") {
            let marker: serde_json::Value = serde_json::from_str(&record).unwrap();
            record = record.replace(marker["vault"].as_str().unwrap(), IDENTITY);
        }
        write!(text, "\n`{}`, {} bytes:\n\n```json\n{record}\n```\n", relative(path), record.len()).unwrap();
    }
    check_generated(DOCUMENT, &text);
}

#[test]
fn the_reader_that_follows_the_document_restores_the_example() {
    let place = Place::new();
    for step in [100, 101] {
        write_checkpoint(place.path(), step);
        place.output(&format!(
            "stepvault push checkpoints/step_{step} --run my-run --remote file://$PWD/remote"
        ));
    }
    place.output(
        "printf x | dd of=remote/my-run/000000000101.a1/step_101/model.safetensors conv=notrunc 2>/dev/null",
    );
    let printed = place.output("python3 scripts/read-store.py file://$PWD/remote my-run restored");
    assert_eq!(printed.trim(), "restored/step_100", "the damaged step is skipped");
    place.output("diff -r checkpoints/step_100 restored/step_100");
    let facts = "find . -type f -printf '%P %m %T@\\n' -o -type d -mindepth 1 -printf '%P %m %T@\\n' | sort";
    let of = |directory: &str| place.output(&format!("cd {directory} && {facts}"));
    assert_eq!(of("checkpoints/step_100"), of("restored/step_100"), "modes and times are the trainer's");
    assert_eq!(place.output("readlink restored/step_100/latest.safetensors").trim(), "model.safetensors");
}

#[test]
fn the_reader_puts_each_path_of_a_step_where_the_trainer_had_it() {
    let place = Place::new();
    place.output(
        "mkdir -p trainer/actor/recover_checkpoint trainer/recover_info && cd trainer && \
         printf '\\002\\0\\0\\0\\0\\0\\0\\0{}' > actor/recover_checkpoint/model.safetensors && cd recover_info && \
         echo '{\"global_step\": 120}' > step_info.json && \
         for name in saver evaluator stats_logger checkpoint; do echo {} > ${name}_info.json; done && \
         printf '\\200\\004N.' > dataloader_info.pkl",
    );
    place.output(
        "printf '[run.\"my-run\"]\\nwatch = \"trainer\"\\nquiet-time = \"1s\"\\n' > agent.toml && \
         stepvault agent --once --config agent.toml --local vault --remote file://$PWD/remote",
    );
    let printed = place.output("python3 scripts/read-store.py file://$PWD/remote my-run restored");
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(
        lines,
        ["restored/actor/recover_checkpoint", "restored/recover_info"],
        "what tells the trainer of the step comes last"
    );
    place.output("diff -r trainer restored");
    let again = place.shell("python3 scripts/read-store.py file://$PWD/remote my-run restored");
    assert_eq!(again.status.code(), Some(1), "it replaces nothing");
}

#[test]
fn the_reader_makes_the_links_by_which_the_trainer_finds_a_step() {
    let place = Place::new();
    place.output("mkdir -p trainer/step_5 && echo weights > trainer/step_5/model.bin");
    place.output("ln -s step_5 trainer/newest");
    place.output(
        "printf '[run.\"my-run\"]\nwatch = \"trainer\"\nquiet-time = \"1s\"\n' > agent.toml && \
         stepvault agent --once --config agent.toml --local vault --remote file://$PWD/remote",
    );
    place.output("python3 scripts/read-store.py file://$PWD/remote my-run restored");
    place.output("diff -r --no-dereference trainer restored");
}

#[test]
fn the_reader_restores_the_newest_revision_of_a_step() {
    let place = Place::new();
    write_checkpoint(place.path(), 100);
    let push = "stepvault push checkpoints/step_100 --run my-run --remote file://$PWD/remote";
    place.output(push);
    place.output("echo '# A model' > checkpoints/step_100/README.md");
    place.output(push);
    place.output("test -e remote/my-run/.stepvault/commits/000000000100.a1r2.json");
    place.output("python3 scripts/read-store.py file://$PWD/remote my-run restored");
    place.output("diff -r checkpoints/step_100 restored/step_100");
}

#[test]
fn the_reader_finds_the_objects_of_an_imported_step() {
    let place = Place::new();
    place.output("mkdir -p remote/old/step_5 && echo weights > remote/old/step_5/model.dat");
    place.output("echo weights > remote/old/step_6.dat");
    place.output(
        "stepvault import file://$PWD/remote/old --run my-run --remote file://$PWD/remote --quiet-time 0s",
    );
    for (step, name) in [(5, "step_5"), (6, "step_6.dat")] {
        let printed =
            place.output(&format!("python3 scripts/read-store.py file://$PWD/remote my-run restored {step}"));
        assert_eq!(printed.trim(), format!("restored/{name}"));
        place.output(&format!("diff -r remote/old/{name} restored/{name}"));
    }
}

#[test]
fn the_reader_takes_blake3_digests_where_python_has_them() {
    let place = Place::new();
    place.output("mkdir checkpoints && head -c 20000000 /dev/urandom > checkpoints/step_7.pt");
    place.output("printf '[run.\"my-run\"]\\ndigest = \"blake3\"\\n' > stepvault.toml");
    place.output(
        "stepvault push checkpoints/step_7.pt --config stepvault.toml --run my-run --remote file://$PWD/remote",
    );
    let has_blake3 = place.shell("python3 -c 'import blake3'").status.success();
    let read = place.shell("python3 scripts/read-store.py file://$PWD/remote my-run restored");
    if has_blake3 {
        place.output("cmp checkpoints/step_7.pt restored/step_7.pt");
    } else {
        let said = String::from_utf8_lossy(&read.stderr);
        assert!(said.contains("install the Python package blake3"), "{said}");
        place.output("! test -e restored/step_7.pt");
    }
}

#[test]
fn the_reader_takes_files_of_several_parts_and_single_files() {
    let place = Place::new();
    place.output("mkdir checkpoints && head -c 20000000 /dev/urandom > checkpoints/step_7.pt");
    place.output("stepvault push checkpoints/step_7.pt --run my-run --remote file://$PWD/remote");
    place.output("python3 scripts/read-store.py file://$PWD/remote my-run restored 7");
    place.output("cmp checkpoints/step_7.pt restored/step_7.pt");
    let missing = place.shell("python3 scripts/read-store.py file://$PWD/remote my-run restored 8");
    assert_eq!(missing.status.code(), Some(1));
}
