//! Divides the files of a directory that all nodes see among them, so that each file is sent once.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use crate::manifest::SymlinkEntry;
use crate::{NodeName, NodeSet, RelativePath, Sha256Digest};

/// Returns the files of a shared tree that `node` sends, if all `nodes` see the tree. The result depends on the paths
/// and sizes alone, so that nodes that see the same tree need not communicate: the largest remaining file goes to the
/// node with the least data so far.
pub fn own_share(files: &[(&RelativePath, u64)], nodes: &NodeSet, node: &NodeName) -> BTreeSet<RelativePath> {
    let mut largest_first: Vec<_> = files.to_vec();
    largest_first.sort_by(|left, right| (Reverse(left.1), left.0).cmp(&(Reverse(right.1), right.0)));
    // Ordered by bytes, files and name, so that a tree of empty files is divided too.
    let mut loads: BinaryHeap<Reverse<(u64, u64, &NodeName)>> =
        nodes.iter().map(|node| Reverse((0, 0, node))).collect();
    let mut own = BTreeSet::new();
    for (path, size_bytes) in largest_first {
        let Some(Reverse((bytes, count, least))) = loads.pop() else {
            break;
        };
        if least == node {
            own.insert(path.clone());
        }
        loads.push(Reverse((bytes.saturating_add(size_bytes), count + 1, least)));
    }
    own
}

/// Returns the digest of everything that nodes must see alike before they may divide a tree: its paths, sizes and
/// links.
pub fn tree_sha256(files: &[(&RelativePath, u64)], symlinks: &[SymlinkEntry]) -> Sha256Digest {
    let mut lines: Vec<String> = files
        .iter()
        .map(|(path, size_bytes)| format!("{size_bytes} {path}\n"))
        .chain(symlinks.iter().map(|link| format!("-> {} {}\n", link.target, link.path)))
        .collect();
    lines.sort_unstable();
    Sha256Digest::of(lines.concat().as_bytes())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::nodes::ranked;

    proptest! {
        #[test]
        fn each_file_is_sent_by_one_node_and_nobody_sends_twice_as_much_as_it_must(
            sizes in proptest::collection::vec(0_u64..1000, 0..60),
            count in 1_usize..9,
        ) {
            let paths: Vec<RelativePath> = (0..sizes.len())
                .map(|index| RelativePath::new(format!("f{index}")).unwrap())
                .collect();
            let files: Vec<_> = paths.iter().zip(sizes.iter().copied()).collect();
            let nodes = NodeSet::counted(count).unwrap();
            let total: u64 = sizes.iter().sum();
            let largest = sizes.iter().copied().max().unwrap_or(0);
            let mut sent = 0;
            for rank in 0..count {
                let share = own_share(&files, &nodes, &ranked(rank).unwrap());
                sent += share.len();
                let bytes: u64 = files.iter().filter(|(path, _)| share.contains(path)).map(|(_, size)| size).sum();
                prop_assert!(bytes <= total / count as u64 + largest);
            }
            prop_assert_eq!(sent, files.len());
        }
    }

    #[test]
    fn another_tree_has_another_digest() {
        let (a, b) = (RelativePath::new("a").unwrap(), RelativePath::new("b").unwrap());
        let link = SymlinkEntry { path: b.clone(), target: "a".to_owned() };
        let digest = tree_sha256(&[(&a, 1), (&b, 2)], &[]);
        assert_eq!(digest, tree_sha256(&[(&b, 2), (&a, 1)], &[]));
        assert_ne!(digest, tree_sha256(&[(&a, 1), (&b, 3)], &[]));
        assert_ne!(tree_sha256(&[(&a, 1)], &[]), tree_sha256(&[(&a, 1)], &[link]));
    }
}
