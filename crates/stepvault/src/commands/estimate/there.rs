//! Estimates a step from its files and headers.

use std::path::Path;
use std::sync::Arc;

use stepvault_core::Result;
use stepvault_core::clock::Clock as _;
use stepvault_diagnose::estimate::{Part, Written};
use stepvault_engine::blocking::blocking;
use stepvault_engine::inspect::InspectRequest;
use stepvault_engine::size::measure;
use stepvault_formats::find::FindOptions;
use stepvault_formats::profile::Profile;
use stepvault_formats::sizes::{HeaderFile, HeaderKind, HeaderSizes};
use stepvault_local::clock::SystemClock;

use super::document::{EstimateDocument, FoundDocument, HeaderDocument, HeaderFileDocument, UnreadDocument};
use crate::context::Settings;

/// Maximum number of doubts about completeness to report; `stepvault inspect` shows all.
const MAX_DOUBTS: usize = 4;

/// Returns the present and the expected files of the step, and the profile of its framework if that may overwrite
/// finished files.
pub(super) async fn measured(
    path: &Path,
    settings: &Settings,
    document: &mut EstimateDocument,
) -> Result<(Written, Option<String>)> {
    let (looked_at, profiles) = (path.to_owned(), settings.profiles()?);
    let known = Arc::clone(&profiles);
    let measured = blocking(move || {
        let request = InspectRequest {
            profiles: &profiles,
            profile: None,
            reads_best: false,
            deep: None,
            options: FindOptions::default(),
        };
        measure(&looked_at, &request, SystemClock.now())
    })
    .await?;
    let mut lacking = Lacking::default();
    measured.told.iter().for_each(|told| lacking.add(told));
    let overwritten_by = measured
        .profile
        .clone()
        .filter(|name| known.get(name).is_some_and(Profile::overwrites_finished_files));
    let mut step = Written::nothing(1);
    step.directories = measured.directories;
    let part = |what, files, bytes| Part { what, files, bytes, on_all_nodes: false };
    step.parts.push(part("files", measured.files, measured.bytes));
    if lacking.bytes > 0 || lacking.files > 0 {
        step.parts.push(part("missing", lacking.files, lacking.bytes));
    }
    // Check for overflow before anything is computed from it.
    step.bytes()?;
    let doubts = measured.doubts.iter().take(MAX_DOUBTS);
    document.notes.extend(doubts.map(|doubt| format!("the step may be incomplete: {doubt}")));
    document.notes.extend(lacking.notes);
    document.headers = measured.told.into_iter().map(header).collect();
    let unread = measured.unread.into_iter();
    document.unreadable_headers = unread.map(|(path, reason)| UnreadDocument { path, reason }).collect();
    document.found = Some(FoundDocument {
        path: path.to_owned(),
        step: measured.chosen,
        bytes: measured.bytes,
        allocated_bytes: measured.allocated_bytes,
        files: measured.files,
        directories: measured.directories,
        inodes: measured.files.saturating_add(measured.directories),
    });
    Ok((step, overwritten_by))
}

fn header(told: HeaderSizes) -> HeaderDocument {
    let file = |HeaderFile { path, expected_bytes, real_bytes, .. }| HeaderFileDocument {
        path,
        expected_bytes,
        bytes: real_bytes,
    };
    HeaderDocument {
        path: told.path,
        kind: told.kind.name(),
        entries: told.entries,
        payload_bytes: told.payload_bytes,
        files: told.files.into_iter().map(file).collect(),
    }
}

/// What headers describe and is missing.
#[derive(Debug, Default)]
struct Lacking {
    bytes: u64,
    files: u64,
    notes: Vec<String>,
}

impl Lacking {
    fn add(&mut self, told: &HeaderSizes) {
        let mut without_header = 0_u64;
        let mut there_bytes = 0_u64;
        for file in &told.files {
            let real_bytes = file.real_bytes.unwrap_or_default();
            there_bytes = there_bytes.saturating_add(file.payload_bytes.unwrap_or(real_bytes));
            match (file.real_bytes, file.expected_bytes) {
                (None, None) => without_header += 1,
                (None, Some(_)) => self.notes.push(format!("{} is missing", file.path)),
                (Some(real), Some(expected)) if real != expected => {
                    let path = &file.path;
                    self.notes.push(format!("{path} has {real} bytes, but its header says {expected}"));
                }
                (Some(_), _) => {}
            }
            self.files += u64::from(file.real_bytes.is_none());
            let expected = file.expected_bytes.unwrap_or(real_bytes);
            self.bytes = self.bytes.saturating_add(expected.saturating_sub(real_bytes));
        }
        if without_header == 0 {
            return;
        }
        let missing = told.files.iter().filter(|file| file.real_bytes.is_none());
        let names: Vec<&str> = missing.map(|file| file.path.as_str()).collect();
        let names = stepvault_core::words::first_of(&names, 4, 0);
        let rest = match (told.kind, told.payload_bytes) {
            (HeaderKind::Index, Some(payload)) => {
                let rest = payload.saturating_sub(there_bytes);
                self.bytes = self.bytes.saturating_add(rest);
                "their size is the rest of the index's total_size, without their headers"
            }
            _ => "their size is unknown: the step is larger than this",
        };
        let path = &told.path;
        self.notes.push(format!("{path}: missing: {names}: {rest}"));
    }
}
