//! docs/reference/profiles.md: the built-in profiles of frameworks.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use stepvault_formats::profile::{
    Complete, Links, PathGlob, Pointer, PointerKind, PointerRole, Profile, Proof, Series, StepKind, builtin,
};

use crate::generated::check_generated;
use crate::place::read;

#[test]
fn the_profiles_page_says_what_the_profiles_say() {
    let mut page = String::new();
    let mut profiles: Vec<&Profile> = builtin().iter().collect();
    profiles.sort_by_key(|profile| &profile.name);
    for profile in profiles {
        page.push_str(&section(profile));
    }
    page.push_str(&blind_spots());
    check_generated("docs/reference/profiles.md", &page);
}

fn section(profile: &Profile) -> String {
    let mut text = format!("## {}\n\n{}.\n\n", profile.name, profile.description);
    for series in &profile.series {
        writeln!(text, "- {}", steps(series)).unwrap();
    }
    if !profile.temporary.is_empty() {
        let names = profile.temporary.iter().map(|name| code(name.text()));
        writeln!(text, "- **Temporary names:** {}", list(names)).unwrap();
    }
    if !profile.ignored.is_empty() {
        let names = profile.ignored.iter().map(|name| code(name.text()));
        writeln!(text, "- **Never a step:** {}", list(names)).unwrap();
    }
    for pointer in &profile.pointer {
        writeln!(text, "- {}", points(pointer)).unwrap();
    }
    if !profile.best.is_empty() {
        let keys: BTreeSet<_> = profile.best.iter().map(|best| code(&best.key)).collect();
        writeln!(text, "- **Best step:** what {} in a step names", list(keys.into_iter())).unwrap();
    }
    writeln!(text, "- **To resume:** {}", code(&profile.resume.text.to_string())).unwrap();
    for hazard in &profile.hazard {
        writeln!(text, "- **Must not be created:** {}: {}", code(hazard.path.text()), hazard.words).unwrap();
    }
    let links = match profile.links {
        Links::Hard => "by reflink, hard link or copy: the trainer does not change finished files",
        Links::CopyOrReflink => "by reflink or copy: the trainer overwrites finished files in place",
    };
    writeln!(text, "- **Sealed** {links}").unwrap();
    text.push('\n');
    text
}

fn steps(series: &Series) -> String {
    let kind = match series.kind {
        StepKind::Directory => "directory",
        StepKind::File => "file",
        StepKind::Either => "directory or file",
    };
    let mut text = format!("**{}:** {kind} {}", series.name, code(series.path.text()));
    if !series.holds.is_empty() {
        write!(text, " with {}", alternatives(series.holds.iter().map(PathGlob::text))).unwrap();
    }
    if !series.resumable {
        text.push_str(", from which the trainer cannot resume");
    }
    if let Some(counts) = &series.counts {
        write!(text, ", whose numbers count {counts}").unwrap();
    }
    if series.alias {
        text.push_str(", if no other step has its bytes or its number");
    }
    if series.rewritten {
        text.push_str(", each content of which is a step");
    }
    let stated: Vec<_> = series.number.iter().map(|number| code(&number.key)).collect();
    if !stated.is_empty() {
        write!(text, ", whose number is {} in it", stated.join(", else ")).unwrap();
    }
    let others: Vec<_> = series.with.iter().map(|path| code(&path.to_string())).collect();
    if !others.is_empty() {
        write!(text, ", together with {}", others.join(", ")).unwrap();
    }
    write!(text, "; complete {}", complete(&series.complete)).unwrap();
    text
}

fn complete(rule: &Complete) -> String {
    let mut text = match &rule.proof {
        Proof::Rename => "by its name".to_owned(),
        Proof::Marker(files) => format!("by {}", alternatives(files.iter().map(PathGlob::text))),
        Proof::MarkerRemoved(suffix) => {
            format!("when its name followed by {} no longer exists", code(suffix))
        }
        Proof::Pointer => "when the pointer names it or a newer one".to_owned(),
        Proof::PointerOrQuiet => {
            "when the pointer names it or a newer one, or without a pointer when quiet".to_owned()
        }
        Proof::Quiet => "when quiet".to_owned(),
    };
    for required in &rule.required {
        write!(text, ", with {}", alternatives(required.any.iter().map(PathGlob::text))).unwrap();
        if let Some(when) = &required.when {
            write!(text, " if {} exists", code(when.text())).unwrap();
        }
    }
    for file in &rule.as_before {
        write!(text, ", with {} if an earlier step has it", code(file.text())).unwrap();
    }
    for set in &rule.ranks {
        write!(text, ", with {} of every rank ({})", set.what, code(set.files.text())).unwrap();
    }
    for file in &rule.refused {
        write!(text, ", without {}", code(file.text())).unwrap();
    }
    for newest in &rule.newest {
        write!(text, ", with {} no older than {}", code(newest.file.text()), code(newest.than.text()))
            .unwrap();
    }
    text
}

fn points(pointer: &Pointer) -> String {
    let kind = match pointer.kind {
        PointerKind::Text => "a file that contains",
        PointerKind::RelativeSymlink => "a relative link to",
        PointerKind::PathSymlink => "a link that holds the path the trainer was given,",
        PointerKind::Copy => "a copy of",
        PointerKind::CopyOrSymlink => "a copy of, or a link to,",
    };
    let role = match pointer.role {
        PointerRole::Resume => "Pointer",
        PointerRole::Best => "Pointer to the best step",
    };
    format!("**{role}:** {}, {kind} {}", code(&pointer.path.to_string()), code(&pointer.says.to_string()))
}

/// The blind spots that the profiles' own documentation names.
fn blind_spots() -> String {
    let source = read("crates/stepvault-formats/src/profile/mod.rs");
    let lines = source.lines().map_while(|line| line.strip_prefix("//!"));
    let lines = lines.skip_while(|line| line.trim() != "# Blind spots").skip(2);
    let lines: Vec<&str> = lines.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect();
    assert!(!lines.is_empty(), "the profiles name no blind spots");
    format!("## What no profile can tell\n\n{}\n", lines.join("\n"))
}

fn code(text: &str) -> String {
    format!("`{text}`")
}

fn list(names: impl Iterator<Item = String>) -> String {
    names.collect::<Vec<_>>().join(", ")
}

fn alternatives<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.map(code).collect::<Vec<_>>().join(" or ")
}
