//! Which bytes of a step a remote already has under the keys of an earlier step, so that they need not be sent again.

use std::collections::{BTreeSet, HashMap};

use stepvault_core::Result;
use stepvault_core::digest::{ContentDigest, Crc32c, FileDigest, PartDigest};
use stepvault_core::keys::RunKeys;
use stepvault_core::manifest::PartManifest;

/// The files of an earlier step, indexed by content. Of two files with the same content, the first by path counts.
///
/// Paths are ignored, because some trainers include the step number in them. A file matches if it has the same size,
/// is divided at the same offsets, and has the same bytes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Copies {
    /// The object keys of the files.
    keys: Vec<String>,
    files: HashMap<(u64, ContentDigest), (usize, Crc32c)>,
    parts: HashMap<Place, usize>,
}

/// A part of a file of a given size, and its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Place {
    file_size_bytes: u64,
    index: u32,
    content: ContentDigest,
}

impl Copies {
    /// Returns what files of `wanted_sizes_bytes` can have in common with those of `earlier`, which is on the remote.
    ///
    /// # Errors
    /// When a path of the manifest yields no valid key.
    pub(crate) fn plan(
        wanted_sizes_bytes: &BTreeSet<u64>,
        earlier: &PartManifest,
        keys: &RunKeys,
    ) -> Result<Self> {
        let mut copies = Self::default();
        for file in &earlier.files {
            let size = file.size_bytes;
            if size == 0 || !wanted_sizes_bytes.contains(&size) {
                continue;
            }
            let source = copies.keys.len();
            copies.keys.push(keys.data(&earlier.name, earlier.id, &file.path)?);
            copies.files.entry((size, file.content)).or_insert((source, file.crc32c));
            // A file with one part is copied as a whole.
            if file.parts_content.len() > 1 {
                for (index, content) in (0..).zip(&file.parts_content) {
                    let place = Place { file_size_bytes: size, index, content: *content };
                    copies.parts.entry(place).or_insert(source);
                }
            }
        }
        Ok(copies)
    }

    /// Returns whether there is nothing to copy from.
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Returns the key of a file with exactly these bytes.
    pub(crate) fn of_file(&self, digest: &FileDigest) -> Option<&str> {
        let (source, crc32c) = self.files.get(&(digest.size_bytes, digest.content))?;
        (*crc32c == digest.crc32c).then(|| self.keys[*source].as_str())
    }

    /// Returns the key of a multipart file of that size that has these bytes as its part `index`.
    pub(crate) fn of_part(&self, file_size_bytes: u64, index: u32, digest: &PartDigest) -> Option<&str> {
        let place = Place { file_size_bytes, index, content: digest.content };
        self.parts.get(&place).map(|source| self.keys[*source].as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use stepvault_core::ids::{Attempt, NodeName, RunName, Step, StepId};
    use stepvault_core::manifest::{FileEntry, Shape};
    use stepvault_core::path::RelativePath;
    use stepvault_core::timestamp::Timestamp;

    const PART_BYTES: u64 = 8 << 20;

    /// Parts of a file by a letter each: equal letters, equal bytes.
    fn parts(letters: &str, last_bytes: u64) -> Vec<PartDigest> {
        let last = letters.len() - 1;
        let of = |(index, letter): (usize, char)| PartDigest {
            size_bytes: if index == last { last_bytes } else { PART_BYTES },
            ..PartDigest::of(letter.to_string().as_bytes())
        };
        letters.chars().enumerate().map(of).collect()
    }

    fn manifest(files: &[(&str, &str, u64)]) -> PartManifest {
        let file = |(path, letters, last_bytes): &(&str, &str, u64)| {
            let path = RelativePath::new(*path).unwrap();
            FileEntry::from_parts(path, 0o644, Timestamp::default(), &parts(letters, *last_bytes)).unwrap()
        };
        PartManifest {
            digest: stepvault_core::digest::DigestAlgorithm::Sha256,
            format: 1,
            run: RunName::new("run").unwrap(),
            id: StepId::new(Attempt::new(2).unwrap(), Step::new(100).unwrap()),
            node: NodeName::new("node-0").unwrap(),
            name: "step_100".to_owned(),
            shape: Shape::Directory,
            written_at: Timestamp::default(),
            metrics: BTreeMap::new(),
            shared_tree_sha256: None,
            files: files.iter().map(file).collect(),
            directories: Vec::new(),
            symlinks: Vec::new(),
            members: Vec::new(),
            origin: stepvault_core::step_origin::StepOrigin::default(),
        }
    }

    fn plan(sizes: &[u64], files: &[(&str, &str, u64)]) -> Copies {
        let keys = RunKeys::new(RunName::new("run").unwrap());
        Copies::plan(&sizes.iter().copied().collect(), &manifest(files), &keys).unwrap()
    }

    fn file(letters: &str, last_bytes: u64) -> FileDigest {
        FileDigest::from_parts(&parts(letters, last_bytes))
    }

    #[test]
    fn a_file_is_found_by_its_bytes_whatever_its_path() {
        let copies = plan(&[20], &[("global_step100/x", "a", 20), ("y", "b", 20)]);
        assert_eq!(copies.of_file(&file("a", 20)), Some("run/000000000100.a2/step_100/global_step100/x"));
        assert_eq!(copies.of_file(&file("b", 20)), Some("run/000000000100.a2/step_100/y"));
        assert_eq!(copies.of_file(&file("c", 20)), None);
        assert_eq!(copies.of_file(&file("a", 21)), None, "another size");
        let other_crc = FileDigest { crc32c: Crc32c(7), ..file("a", 20) };
        assert_eq!(copies.of_file(&other_crc), None, "two digests that disagree prove nothing");
    }

    #[test]
    fn of_two_files_with_the_same_bytes_the_first_counts() {
        let copies = plan(&[20], &[("x", "a", 20), ("y", "a", 20)]);
        assert_eq!(copies.of_file(&file("a", 20)), Some("run/000000000100.a2/step_100/x"));
    }

    #[test]
    fn parts_are_found_at_the_same_place_of_a_file_of_the_same_size() {
        let size = 2 * PART_BYTES + 5;
        let copies = plan(&[size], &[("x", "abc", 5), ("y", "dec", 5)]);
        let (abc, dec) = (parts("abc", 5), parts("dec", 5));
        assert_eq!(copies.of_part(size, 0, &abc[0]), Some("run/000000000100.a2/step_100/x"));
        assert_eq!(copies.of_part(size, 1, &dec[1]), Some("run/000000000100.a2/step_100/y"));
        assert_eq!(copies.of_part(size, 2, &dec[2]), Some("run/000000000100.a2/step_100/x"));
        assert_eq!(copies.of_part(size, 1, &abc[0]), None, "another place");
        assert_eq!(copies.of_part(size + 1, 0, &abc[0]), None, "another size");
        assert_eq!(copies.of_file(&file("aec", 5)), None, "no one file has them all");
    }

    #[test]
    fn what_nobody_asks_for_is_not_kept_and_nothing_is_copied_for_no_bytes() {
        let copies = plan(&[0, 20], &[("empty", "a", 0), ("other", "b", 21)]);
        assert!(copies.is_empty());
        assert_eq!(copies.of_file(&file("a", 0)), None);
        assert!(!plan(&[21], &[("other", "b", 21)]).is_empty());
    }
}
