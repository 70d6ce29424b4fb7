//! The text output of an estimate.

use stepvault_diagnose::estimate::Spread;

use super::document::{
    BufferDocument, EstimateDocument, FoundDocument, HeaderDocument, ModelDocument, RunDocument,
    SavingDocument,
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
        blocks.push(files(self));
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
    let headings = ["header", "kind", "entries", "tensors", "files", "missing", "expected", "found"];
    let mut rows = table::table(&headings, &[2, 3, 4, 5, 6, 7]);
    for header in headers {
        let mut expected = header.files.iter().map(|file| file.expected_bytes);
        let expected = expected.try_fold(0_u64, |sum, bytes| sum.checked_add(bytes?));
        let there = header.files.iter().filter_map(|file| file.bytes);
        let missing = header.files.iter().filter(|file| file.bytes.is_none());
        let size = |bytes: Option<u64>| bytes.map_or_else(|| "unknown".to_owned(), human::bytes);
        rows.add_row([
            header.path.clone(),
            header.kind.to_owned(),
            header.entries.to_string(),
            size(header.payload_bytes),
            header.files.len().to_string(),
            missing.count().to_string(),
            size(expected),
            human::bytes(there.fold(0, u64::saturating_add)),
        ]);
    }
    Some(table::text(&rows))
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
    let mut rows = table::table(&["tensors", "size"], &[1]);
    for (what, bytes) in [
        ("weights", model.payload.weights_bytes),
        ("copy of the weights", model.payload.master_bytes),
        ("optimizer", model.payload.optimizer_bytes),
        ("other tensors", model.payload.extra_bytes),
        ("file format", model.format_bytes),
    ] {
        if bytes > 0 {
            rows.add_row([what.to_owned(), human::bytes(bytes)]);
        }
    }
    let copies = match model.copies {
        1 => String::new(),
        copies => format!("\nthe tensors are written {copies} times"),
    };
    format!("{}\n\n{}{copies}", fit(&head, width), table::text(&rows))
}

fn buffer(buffer: &BufferDocument) -> String {
    let mut rows = table::table(&["shuffle buffer", "samples", "on disk"], &[1, 2]);
    let mut add = |buffer: &BufferDocument| {
        rows.add_row([
            format!("{} of {}", buffer.samples, human::bytes(buffer.sample_bytes)),
            human::bytes(buffer.payload_bytes),
            human::bytes(buffer.bytes),
        ]);
    };
    add(buffer);
    if let Some(smaller) = &buffer.smaller {
        add(smaller);
    }
    let smaller = buffer.smaller.as_ref();
    let second =
        smaller.map(|smaller| format!("\nthe second line is for a buffer of {} samples", smaller.samples));
    table::text(&rows) + &second.unwrap_or_default()
}

fn files(document: &EstimateDocument) -> String {
    let step = &document.step;
    // Overflow was already checked when the document was created.
    let total = step.bytes().unwrap_or_default();
    let mut rows = table::table(&["part", "size", "files", "on"], &[1, 2]);
    for part in &step.parts {
        rows.add_row([
            part.what.to_owned(),
            human::bytes(part.bytes),
            part.files.to_string(),
            match (step.nodes, part.spread) {
                (1, _) => "",
                (_, Spread::AllNodes) => "all nodes",
                (_, Spread::FirstNode) => "the first node",
            }
            .to_owned(),
        ]);
    }
    rows.add_row([
        "total".to_owned(),
        human::bytes(total),
        step.files().unwrap_or_default().to_string(),
        String::new(),
    ]);
    let text = table::text(&rows);
    let others = match step.nodes.saturating_sub(1) {
        0 => return text,
        1 => "the other".to_owned(),
        others => format!("each of {others} others"),
    };
    let mut nodes = table::table(&["node", "size", "files"], &[1, 2]);
    let first = ("the first".to_owned(), step.on_first_node().ok());
    for (node, size) in [first, (others, step.on_other_nodes().ok().flatten())] {
        let size = size.unwrap_or_default();
        nodes.add_row([node, human::bytes(size.bytes), size.files.to_string()]);
    }
    format!("{text}\n\n{}", table::text(&nodes))
}

fn saving(document: &SavingDocument) -> String {
    let SavingDocument { vault, saving } = document;
    let mut rows = table::table(&["local tier while a step is saved", "size"], &[1]);
    let mut add = |what: String, bytes: u64| {
        rows.add_row([what, human::bytes(bytes)]);
    };
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
    table::text(&rows)
}

fn run(run: &RunDocument) -> String {
    let headings = ["tier after the run", "steps", "size", "inodes or objects"];
    let mut rows = table::table(&headings, &[1, 2, 3]);
    for tier in &run.tiers {
        rows.add_row([
            tier.tier.clone(),
            tier.steps.to_string(),
            human::bytes(tier.bytes),
            tier.inodes.to_string(),
        ]);
    }
    format!(
        "{}\n{}: {} written in total",
        table::text(&rows),
        human::count(run.saves, "save"),
        human::bytes(run.written_bytes)
    )
}
