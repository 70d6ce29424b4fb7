//! Records that can be read and say something else than those beside them.

use stepvault_core::ErrorKind;
use stepvault_core::codec::{decode, encode};
use stepvault_core::commit::Commit;
use stepvault_core::digest::Sha256Digest;
use stepvault_core::ids::{NodeName, RunName};
use stepvault_core::launch::LaunchName;
use stepvault_core::manifest::{PartManifest, Shape};
use stepvault_core::nodes::{NodePlace, NodeSet, Writer, ranked};
use stepvault_engine::tier::catalog::{read_commit, read_part_manifest};

use crate::harness::{Rig, id, run_name, snapshot, text};

/// Two steps on a directory remote.
async fn rig() -> Rig {
    let rig = Rig::with_directory().await;
    for step in [100, 200_u64] {
        rig.push_durably(&rig.write_step(step, &[("x", 100), ("y", 7)], step, step as i64)).await;
    }
    rig
}

fn read(rig: &Rig, key: &str) -> Vec<u8> {
    std::fs::read(rig.remote_root().join(key)).unwrap()
}

#[tokio::test]
async fn a_commit_of_another_step_or_run_is_no_commit_of_this_one() {
    let rig = rig().await;
    let (remote, wanted) = (&rig.remotes[0], id(1, 200));
    let own: Commit = decode(&read(&rig, &remote.keys.commit(wanted)), "commit").unwrap();
    let others = [
        Commit { id: id(1, 100), ..own.clone() },
        Commit { id: id(2, 200), ..own.clone() },
        Commit { run: RunName::new("other").unwrap(), ..own },
    ];
    for other in others {
        rig.write_object(&remote.keys.commit(wanted), &encode(&other).unwrap());
        let (error, message) = text(read_commit(remote, wanted).await);
        assert_eq!(error.kind(), ErrorKind::Damaged, "{message}");
        assert!(message.ends_with(&format!("it belongs to {}, run {}", other.id, other.run)), "{message}");
    }
    assert_eq!(rig.restore().await.unwrap().plan.id, wanted, "from the vault");
}

#[tokio::test]
async fn a_manifest_is_the_one_that_the_commit_names() {
    let rig = rig().await;
    let remote = &rig.remotes[0];
    let commit = read_commit(remote, id(1, 200)).await.unwrap();
    read_part_manifest(remote, &commit, &commit.parts[0]).await.unwrap();
    let mut other_digest = commit.parts[0].clone();
    other_digest.manifest_sha256 = Sha256Digest::of(b"other");
    let mut longer = commit.parts[0].clone();
    longer.manifest_bytes += 1;
    for part in [other_digest, longer] {
        let (error, message) = text(read_part_manifest(remote, &commit, &part).await);
        assert_eq!(error.kind(), ErrorKind::Damaged);
        assert!(message.ends_with("its digest is not the one in the commit"), "{message}");
    }
}

#[tokio::test]
async fn a_manifest_that_contradicts_its_commit_is_not_used() {
    let rig = rig().await;
    let remote = &rig.remotes[0];
    let commit = read_commit(remote, id(1, 200)).await.unwrap();
    let key = remote.keys.part(id(1, 200), &commit.parts[0].node);
    let own: PartManifest = decode(&read(&rig, &key), "manifest").unwrap();
    let of_commit: [fn(&mut Commit); 4] = [
        |commit| commit.name = "step_201".to_owned(),
        |commit| commit.shape = Shape::File,
        |commit| commit.parts[0].data_bytes += 1,
        |commit| commit.parts[0].file_count += 1,
    ];
    let of_manifest: [fn(&mut PartManifest); 3] = [
        |manifest| manifest.run = RunName::new("other").unwrap(),
        |manifest| manifest.id = id(1, 100),
        |manifest| manifest.node = NodeName::new("node-9").unwrap(),
    ];
    let mut pairs = Vec::new();
    for damage in of_commit {
        let mut commit = commit.clone();
        damage(&mut commit);
        pairs.push((commit, own.clone()));
    }
    for damage in of_manifest {
        let (mut commit, mut manifest) = (commit.clone(), own.clone());
        damage(&mut manifest);
        let bytes = encode(&manifest).unwrap();
        commit.parts[0].manifest_sha256 = Sha256Digest::of(&bytes);
        commit.parts[0].manifest_bytes = bytes.len() as u64;
        pairs.push((commit, manifest));
    }
    for (commit, manifest) in pairs {
        rig.write_object(&key, &encode(&manifest).unwrap());
        let (error, message) = text(read_part_manifest(remote, &commit, &commit.parts[0]).await);
        assert_eq!(error.kind(), ErrorKind::Damaged);
        assert!(message.ends_with("it contradicts its commit"), "{message}");
    }
}

#[tokio::test]
async fn a_part_that_is_not_what_its_key_says_is_not_committed() {
    let rig = Rig::with_directory().await;
    let remote = &rig.remotes[0];
    let source = rig.write_step(100, &[("x", 100)], 1, 1_000);
    let request = || {
        let writer = Writer {
            place: NodePlace::new(ranked(0).unwrap(), NodeSet::counted(2).unwrap()).unwrap(),
            launch: Some(LaunchName::new("first").unwrap()),
            shared: false,
        };
        rig.request_of(writer, &source)
    };
    rig.push_as(request()).await.unwrap().remotes[0].result.as_ref().unwrap();
    let bytes = read(&rig, &remote.keys.part(id(1, 100), &ranked(0).unwrap()));
    let own: PartManifest = decode(&bytes, "manifest").unwrap();
    let second = PartManifest { node: ranked(1).unwrap(), ..own };
    let damaged: [fn(&mut PartManifest); 3] = [
        |part| part.id = id(1, 200),
        |part| part.node = NodeName::new("node-9").unwrap(),
        |part| part.run = RunName::new("other").unwrap(),
    ];
    for damage in damaged {
        let mut part = second.clone();
        damage(&mut part);
        rig.write_object(&remote.keys.part(id(1, 100), &ranked(1).unwrap()), &encode(&part).unwrap());
        let report = rig.push_as(request()).await.unwrap();
        let error = report.remotes[0].result.as_ref().expect_err("another's part");
        assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
        assert!(error.to_string().ends_with(&format!("it belongs to {}, {}", part.node, part.id)), "{error}");
        let commit = read_commit(remote, id(1, 100)).await;
        assert_eq!(text(commit).0.kind(), ErrorKind::NotFound);
    }
}

#[tokio::test]
async fn a_sealed_copy_that_is_another_than_the_commits_is_no_copy_of_the_step() {
    let mut rig = rig().await;
    let committed = snapshot(&rig.write_step(200, &[("x", 100), ("y", 7)], 200, 200));
    rig.lose_node();
    let remotes = std::mem::take(&mut rig.remotes);
    let other = rig.write_step(200, &[("x", 100), ("y", 7)], 201, 200);
    assert_eq!(rig.push(&other).await.unwrap().id, id(1, 200));
    rig.remotes = remotes;
    let sealed = || rig.vault.step(&run_name(), id(1, 200)).unwrap().is_some();
    assert!(sealed());
    let restored = rig.restore().await.unwrap().plan;
    assert_eq!(restored.sources, [rig.remotes[0].tier.clone()]);
    assert_eq!(snapshot(&restored.path), committed);
    assert!(sealed(), "it is the only copy of what this node has saved");
}
