//! The text output of an estimate.

use super::document::{
    BufferDocument, EstimateDocument, FoundDocument, HeaderDocument, ModelDocument, RunDocument,
    SavingDocument, StepDocument,
};
use crate::output::wrap::{UNLIMITED, fit};
use crate::output::{Report, human, table};

impl Report for EstimateDocument {
    fn human(&self) -> String {
        self.fitted(UNLIMITED)
    }

    fn fitted(&self, width: usize) -> String {
        let mut blocks = Vec::new();
        blocks.extend(self.found.as_ref().map(found));
        blocks.extend(headers(&self.headers));
        blocks.extend(self.model.as_ref().map(|described| model(described, width)));
        blocks.extend(self.shuffle_buffer.as_ref().map(buffer));
        blocks.push(files(&self.step));
        blocks.extend(self.saving.as_ref().map(saving));
        blocks.extend(self.run.as_ref().map(run));
        let unread = self.unreadable_headers.iter();
        let mut notes: Vec<String> =
            unread.map(|header| format!("note: cannot read {}: {}", header.path, header.reason)).collect();
        notes.extend(self.notes.iter().map(|note| format!("note: {note}")));
        if !notes.is_empty() {
            blocks.push(fit(&notes.join("\n"), width));
        }
        blocks.join("\n\n")
    }
}

fn found(found: &FoundDocument) -> String {
    let path = found.path.display();
    let mut lines = vec![match &found.step {
        Some(step) => format!("{path}: step {step}"),
        None => path.to_string(),
    }];
    let directories = match found.directories {
        0 => String::new(),
        directories => format!(" in {}", human::count(directories, "directory")),
    };
    lines.push(format!(
        "{} ({} bytes), {}{directories}, {}",
        human::bytes(found.bytes),
        found.bytes,
        human::count(found.files, "file"),
        human::count(found.inodes, "inode"),
    ));
    if let Some(allocated) = found.allocated_bytes {
        lines.push(format!("{} on disk", human::bytes(allocated)));
    }
    lines.join("\n")
}

fn headers(headers: &[HeaderDocument]) -> Option<String> {
    if headers.is_empty() {
        return None;
    }
    let row = |header: &HeaderDocument| {
        let mut expected = header.files.iter().map(|file| file.expected_bytes);
        let expected = expected.try_fold(0_u64, |sum, bytes| sum.checked_add(bytes?));
        let there = header.files.iter().filter_map(|file| file.bytes);
        let missing = header.files.iter().filter(|file| file.bytes.is_none());
        let size = |bytes: Option<u64>| bytes.map_or_else(|| "unknown".to_owned(), human::bytes);
        [
            header.path.clone(),
            header.kind.to_owned(),
            header.entries.to_string(),
            size(header.payload_bytes),
            header.files.len().to_string(),
            missing.count().to_string(),
            size(expected),
            human::bytes(there.fold(0, u64::saturating_add)),
        ]
    };
    let headings = ["header", "kind", "entries", "tensors", "files", "missing", "expected", "found"];
    Some(table::text(&headings, &[2, 3, 4, 5, 6, 7], headers.iter().map(row)))
}

fn model(model: &ModelDocument, width: usize) -> String {
    let master =
        model.master.as_ref().map_or_else(String::new, |dtype| format!(", a copy of them as {dtype}"));
    let head = format!(
        "{} parameters in {}: weights as {}{master}, {}; layout {}, {}, {}",
        model.parameters,
        human::count(model.tensors, "tensor"),
        model.weights,
        model.optimizer,
        model.layout,
        model.sharding,
        human::count(model.ranks, "rank"),
    );
    let rows = [
        ("weights", model.payload.weights_bytes),
        ("copy of the weights", model.payload.master_bytes),
        ("optimizer", model.payload.optimizer_bytes),
        ("other tensors", model.payload.extra_bytes),
        ("file format", model.format_bytes),
    ];
    let rows = rows.into_iter().filter(|(_, bytes)| *bytes > 0);
    let rows = rows.map(|(what, bytes)| [what.to_owned(), human::bytes(bytes)]);
    let tensors = table::text(&["tensors", "size"], &[1], rows);
    let copies = match model.copies {
        1 => String::new(),
        copies => format!("\nthe tensors are written {copies} times"),
    };
    format!("{}\n\n{tensors}{copies}", fit(&head, width))
}

fn buffer(buffer: &BufferDocument) -> String {
    let smaller = buffer.smaller.as_deref();
    let rows = std::iter::once(buffer).chain(smaller).map(|buffer| {
        [
            format!("{} of {}", buffer.samples, human::bytes(buffer.sample_bytes)),
            human::bytes(buffer.payload_bytes),
            human::bytes(buffer.bytes),
        ]
    });
    let second =
        smaller.map(|smaller| format!("\nthe second line is for a buffer of {} samples", smaller.samples));
    table::text(&["shuffle buffer", "samples", "on disk"], &[1, 2], rows) + &second.unwrap_or_default()
}

fn files(step: &StepDocument) -> String {
    let row = |what: &str, bytes, files: u64, on: &str| {
        [what.to_owned(), human::bytes(bytes), files.to_string(), on.to_owned()]
    };
    let parts = step.parts.iter().map(|part| {
        let on = match (step.nodes, part.on_all_nodes) {
            (1, _) => "",
            (_, true) => "all nodes",
            (_, false) => "the first node",
        };
        row(part.what, part.bytes, part.files, on)
    });
    let rows = parts.chain([row("total", step.bytes, step.files, "")]);
    let text = table::text(&["part", "size", "files", "on"], &[1, 2], rows);
    let others = match step.nodes.saturating_sub(1) {
        0 => return text,
        1 => "the other".to_owned(),
        others => format!("each of {others} others"),
    };
    let others = step.other_nodes.iter().map(|size| (others.as_str(), size));
    let nodes = std::iter::once(("the first", &step.first_node)).chain(others);
    let nodes = nodes.map(|(node, size)| [node.to_owned(), human::bytes(size.bytes), size.files.to_string()]);
    format!("{text}\n\n{}", table::text(&["node", "size", "files"], &[1, 2], nodes))
}

fn saving(document: &SavingDocument) -> String {
    let SavingDocument { vault, saving } = document;
    let mut rows = Vec::new();
    let mut add = |what: String, bytes: u64| rows.push([what, human::bytes(bytes)]);
    let in_both = match (*vault, saving.steps_in_both) {
        (_, 0) => String::new(),
        ("copy", both) => format!(", {both} of them in both"),
        (_, both) => format!(", {both} of them shared"),
    };
    let has_vault = *vault != "none";
    let in_vault =
        if has_vault { format!(", {} in the vault{in_both}", saving.vault_steps) } else { String::new() };
    add(format!("older steps: {} of the trainer{in_vault}", saving.trainer_steps), saving.old_bytes);
    add("the new step".to_owned(), saving.new_bytes);
    if has_vault {
        add(format!("its copy in the vault, by {vault}"), saving.vault_copy_bytes);
    }
    if saving.temporary_bytes > 0 {
        add("in TMPDIR".to_owned(), saving.temporary_bytes);
    }
    add(format!("peak, in {} inodes", saving.peak_inodes), saving.peak_bytes);
    table::text(&["local tier while a step is saved", "size"], &[1], rows)
}

fn run(run: &RunDocument) -> String {
    let tiers = run.tiers.iter().map(|tier| {
        [tier.tier.clone(), tier.steps.to_string(), human::bytes(tier.bytes), tier.inodes.to_string()]
    });
    let headings = ["tier after the run", "steps", "size", "inodes or objects"];
    let (saves, written) = (human::count(run.saves, "save"), human::bytes(run.written_bytes));
    format!("{}\n{saves}: {written} written in total", table::text(&headings, &[1, 2, 3], tiers))
}
