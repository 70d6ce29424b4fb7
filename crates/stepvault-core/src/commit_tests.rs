use super::*;
use crate::codec::{decode, encode};
use crate::ids::{Attempt, Step};
use crate::manifest::{DirectoryEntry, FileEntry};
use crate::path::RelativePath;
use proptest::prelude::*;

type Damage<T> = fn(&mut T);

fn part(node: &str) -> CommittedPart {
    CommittedPart {
        digest: DigestAlgorithm::Sha256,
        node: NodeName::new(node).unwrap(),
        manifest_sha256: Sha256Digest::of(b""),
        manifest_bytes: 0,
        data_bytes: 0,
        file_count: 0,
        imported: None,
        trusted_files: 0,
    }
}

fn commit(metric: f64) -> Commit {
    Commit {
        amends: false,
        began: None,
        best: Vec::new(),
        format: FORMAT,
        run: RunName::new("run").unwrap(),
        id: StepId::new(Attempt::FIRST, Step::new(1).unwrap()),
        name: "step_1".to_owned(),
        shape: Shape::Directory,
        parts: vec![part("node-0")],
        written_at: Timestamp::default(),
        metrics: BTreeMap::from([("loss".to_owned(), metric)]),
        unnumbered: false,
    }
}

/// Returns the part of a node that saved files of these sizes.
fn manifest_of(node: &str, sizes_bytes: &[u64]) -> PartManifest {
    let file = |(index, size_bytes): (usize, &u64)| {
        let mut digest = crate::digest::PartDigest::of(b"x");
        digest.size_bytes = *size_bytes;
        let path = RelativePath::new(format!("{node}-{index}")).unwrap();
        FileEntry::from_parts(path, 0o644, Timestamp::default(), &[digest]).unwrap()
    };
    PartManifest {
        format: FORMAT,
        digest: DigestAlgorithm::Sha256,
        run: RunName::new("run").unwrap(),
        id: StepId::new(Attempt::FIRST, Step::new(1).unwrap()),
        node: NodeName::new(node).unwrap(),
        name: "step_1".to_owned(),
        shape: Shape::Directory,
        written_at: Timestamp::from_seconds(100),
        metrics: BTreeMap::new(),
        shared_tree_sha256: None,
        files: sizes_bytes.iter().enumerate().map(file).collect(),
        directories: vec![DirectoryEntry { path: None, mode: 0o755, mtime: Timestamp::default() }],
        symlinks: Vec::new(),
        imported: None,
        members: Vec::new(),
        origin: crate::step_origin::StepOrigin::default(),
    }
}

fn found(manifest: &PartManifest) -> FoundPart {
    FoundPart::of(manifest, Sha256Digest::of(manifest.node.as_str().as_bytes()), 7)
}

proptest! {
    #[test]
    fn every_finite_metric_is_read_back_to_the_bit(bits: u64) {
        let metric = f64::from_bits(bits);
        prop_assume!(metric.is_finite());
        let bytes = encode(&commit(metric)).unwrap();
        let back: Commit = decode(&bytes, "commit").unwrap();
        prop_assert_eq!(back.metrics["loss"].to_bits(), metric.to_bits());
    }

    #[test]
    fn a_loss_of_the_usual_size_is_read_back(metric in 0.5_f64..3.5) {
        prop_assert!(decode::<Commit>(&encode(&commit(metric)).unwrap(), "commit").is_ok());
    }
}

#[test]
fn a_metric_that_a_fast_parser_gets_wrong_by_a_bit() {
    let bytes = encode(&commit(1.910_790_522_567_343_8)).unwrap();
    decode::<Commit>(&bytes, "commit").unwrap();
}

#[test]
fn a_commit_says_the_same_by_whichever_node_it_is_written() {
    let mut first = manifest_of("node-0", &[5, 7]);
    first.metrics.insert("loss".to_owned(), 1.0);
    let mut second = manifest_of("node-1", &[11]);
    second.written_at = Timestamp::from_seconds(300);
    second.metrics.extend([("loss".to_owned(), 2.0), ("reward".to_owned(), 3.0)]);
    let [first, second, third] = [first, second, manifest_of("node-2", &[])].map(|part| found(&part));
    let commit = Commit::of(vec![second.clone(), third.clone(), first.clone()]).unwrap();
    commit.check().unwrap();
    assert_eq!(commit, Commit::of(vec![first, second, third]).unwrap());
    let told: Vec<_> =
        commit.parts.iter().map(|part| (part.node.to_string(), part.data_bytes, part.file_count)).collect();
    assert_eq!(
        told,
        [("node-0".to_owned(), 12, 2), ("node-1".to_owned(), 11, 1), ("node-2".to_owned(), 0, 0),]
    );
    assert_eq!(commit.parts[1].manifest_sha256, Sha256Digest::of(b"node-1"));
    assert_eq!(commit.parts[1].manifest_bytes, 7);
    assert_eq!((commit.data_bytes(), commit.file_count()), (23, 3));
    assert_eq!(commit.written_at, Timestamp::from_seconds(300));
    // The first node's value counts if both have one.
    assert_eq!(commit.metrics, BTreeMap::from([("loss".to_owned(), 1.0), ("reward".to_owned(), 3.0)]));
}

/// A revision that only some nodes amended lacks files of the others: retention must not take it for the whole of the one
/// before it.
#[test]
fn a_commit_amends_the_one_before_if_every_part_does() {
    let of = |origins: [(bool, bool); 2]| {
        let parts = ["node-0", "node-1"].into_iter().zip(origins).map(|(node, (amends, unnumbered))| {
            let mut manifest = manifest_of(node, &[1]);
            (manifest.origin.amends, manifest.origin.unnumbered) = (amends, unnumbered);
            found(&manifest)
        });
        let commit = Commit::of(parts.collect()).unwrap();
        (commit.amends, commit.unnumbered)
    };
    assert_eq!(of([(true, false), (true, false)]), (true, false));
    assert_eq!(of([(true, false), (false, true)]), (false, true));
    assert_eq!(of([(false, true), (true, false)]), (false, true));
    assert_eq!(of([(false, true), (false, true)]), (false, true));
}

#[test]
fn parts_of_different_steps_are_never_committed_together() {
    let one = || found(&manifest_of("node-0", &[1]));
    let damaged: [(&str, Damage<PartManifest>); 6] = [
        ("the step they belong to", |part| {
            part.run = RunName::new("other").unwrap();
        }),
        ("the step they belong to", |part| {
            part.id = StepId::new(Attempt::FIRST, Step::new(2).unwrap());
        }),
        ("the step they belong to", |part| {
            part.id = StepId::new(Attempt::new(2).unwrap(), Step::new(1).unwrap());
        }),
        ("the name of the step's directory", |part| {
            part.name = "step_2".to_owned();
        }),
        ("whether the step is a directory or a file", |part| {
            part.shape = Shape::File;
        }),
        ("the content of the shared directory", |part| {
            part.shared_tree_sha256 = Some(Sha256Digest::of(b"tree"));
        }),
    ];
    for (what, damage) in damaged {
        let mut other = manifest_of("node-1", &[1]);
        damage(&mut other);
        let error = Commit::of(vec![one(), found(&other)]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict);
        let text = error.to_string();
        assert!(text.ends_with(&format!("node-0 and node-1: they differ in {what}")), "{text}");
    }
    assert_eq!(Commit::of(Vec::new()).unwrap_err().kind(), ErrorKind::Failed);
}

#[test]
fn totals_that_no_number_holds_stop_at_the_largest() {
    let large = CommittedPart { data_bytes: u64::MAX, file_count: u64::MAX, ..part("node-1") };
    let small = CommittedPart { data_bytes: 2, file_count: 3, ..part("node-2") };
    let commit = |parts| Commit { parts, ..commit(1.0) };
    let both = commit(vec![small.clone(), large]);
    assert_eq!((both.data_bytes(), both.file_count()), (u64::MAX, u64::MAX));
    let twice = commit(vec![small.clone(), small]);
    assert_eq!((twice.data_bytes(), twice.file_count()), (4, 6));
}

#[test]
fn a_commit_that_contradicts_itself_is_refused() {
    let nodes = |count: usize| (0..count).map(|rank| part(&format!("node-{rank:05}"))).collect();
    let late = |nanoseconds| Timestamp { seconds: 0, nanoseconds };
    let good = [
        commit(1.0),
        Commit { parts: nodes(MAX_NODES), ..commit(1.0) },
        Commit { written_at: late(999_999_999), ..commit(1.0) },
    ];
    for commit in good {
        commit.check().unwrap();
    }
    let bad = [
        ("its format is not known", Commit { format: FORMAT + 1, ..commit(1.0) }),
        (
            "it must be a single path component other than '.stepvault'",
            Commit { name: "a/b".to_owned(), ..commit(1.0) },
        ),
        ("it has no part, or more than 65,536", Commit { parts: Vec::new(), ..commit(1.0) }),
        ("it has no part, or more than 65,536", Commit { parts: nodes(MAX_NODES + 1), ..commit(1.0) }),
        (
            "its parts are not sorted by node, or one is listed twice",
            Commit { parts: vec![part("node-1"), part("node-0")], ..commit(1.0) },
        ),
        (
            "its parts are not sorted by node, or one is listed twice",
            Commit { parts: vec![part("node-0"), part("node-0")], ..commit(1.0) },
        ),
        (
            "the nanoseconds of its time are not below one second",
            Commit { written_at: late(1_000_000_000), ..commit(1.0) },
        ),
        ("a metric is not a finite number", commit(f64::NAN)),
        ("a metric is not a finite number", commit(f64::INFINITY)),
    ];
    for (why, commit) in bad {
        let text = commit.check().unwrap_err().to_string();
        assert!(text.ends_with(why), "{text}: {why}");
    }
}

#[test]
fn a_commit_has_the_best_steps_that_any_part_names() {
    let naming = |node: &str, names: &[&str]| {
        let mut manifest = manifest_of(node, &[1]);
        manifest.origin.best =
            names.iter().map(|&name| BestName { name: name.to_owned(), step: None }).collect();
        manifest
    };
    let parts = [naming("node-0", &["b", "c"]), naming("node-1", &[]), naming("node-2", &["a", "b"])];
    let found = parts.iter().map(|part| FoundPart::of(part, Sha256Digest::of(b""), 1));
    let best = Commit::of(found.collect()).unwrap().best;
    let names: Vec<&str> = best.iter().map(|best| best.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    for names in [&["b", "a"][..], &["a", "a"], &["a/b"], &[""], &["x"; MAX_BEST + 1]] {
        let part = naming("node-0", names);
        assert!(part.check().is_err(), "{names:?}");
        let commit = Commit { best: part.origin.best, ..commit(1.0) };
        assert!(commit.check().is_err(), "{names:?}");
    }
}

#[test]
fn the_commit_of_an_imported_step_says_so_and_has_the_format_of_its_part() {
    let mut manifest = manifest_of("import", &[5]);
    let prefix = Some(RelativePath::new("old/step_1").unwrap());
    manifest.imported = Some(Imported { prefix });
    manifest.format = FORMAT_OF_IMPORTED;
    let commit = Commit::of(vec![FoundPart::of(&manifest, Sha256Digest::of(b"x"), 1)]).unwrap();
    assert!(commit.is_imported());
    commit.check().unwrap();
    assert_eq!(commit.parts[0].imported, manifest.imported);
    for wrong in [
        Commit { format: FORMAT, ..commit.clone() },
        Commit { format: FORMAT_OF_IMPORTED, parts: vec![part("node-0")], ..commit.clone() },
    ] {
        assert!(wrong.check().unwrap_err().to_string().ends_with("its format is not known"));
    }
    let mut trusted = commit;
    trusted.parts[0].trusted_files = 1;
    assert!(trusted.check().is_err());
    trusted.format = FORMAT_OF_TRUSTED;
    trusted.check().unwrap();
    assert_eq!(decode::<Commit>(&encode(&trusted).unwrap(), "commit").unwrap(), trusted);
    trusted.parts[0].imported = None;
    assert!(trusted.check().is_err());
}
