//! One node of the tree: keys in order, each with a value (in a leaf) or a child (in an inner node).

use super::file_table::{self, DataFile, NODE_MAGIC};
use super::store::{Budget, Location};
use crate::soundness::{Fault, broken};
use crate::structure::cursor::{Cursor, shared_bytes};

/// The longest key (tensorstore's `kMaxKeyLength`).
const MAX_KEY_BYTES: usize = 65_535;
/// The maximum number of entries of a node (tensorstore's `kMaxNodeArity`).
const MAX_ENTRIES: usize = 1 << 20;

/// What a reference states about the tree that it points to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Statistics {
    /// The number of its keys.
    pub(super) keys: u64,
    /// The bytes of its nodes in the files.
    pub(super) tree_bytes: u64,
    /// The bytes of the values in data files.
    pub(super) value_bytes: u64,
}

impl Statistics {
    fn add(&mut self, other: Self) {
        self.keys = self.keys.saturating_add(other.keys);
        self.tree_bytes = self.tree_bytes.saturating_add(other.tree_bytes);
        self.value_bytes = self.value_bytes.saturating_add(other.value_bytes);
    }
}

/// The location of a value.
#[derive(Debug, Clone, Copy)]
pub(super) enum Value<'a> {
    /// In the leaf itself.
    Inline(&'a [u8]),
    /// In a data file.
    Stored(&'a DataFile, Location),
}

/// A reference to a node one level down.
#[derive(Debug, Clone)]
pub(super) struct Child {
    pub(super) file: DataFile,
    pub(super) location: Location,
    pub(super) statistics: Statistics,
    /// The prefix of every key below.
    pub(super) prefix: Vec<u8>,
    /// The rest of the smallest key below.
    pub(super) first_key: Vec<u8>,
}

/// The contents of a node.
pub(super) struct Outcome {
    /// The nodes one level down; none for a leaf.
    pub(super) children: Vec<Child>,
    /// What the node states about the tree below it, itself included.
    pub(super) statistics: Statistics,
}

/// What a node must agree with.
pub(super) struct Expected<'a> {
    pub(super) height: u8,
    pub(super) base: &'a str,
    pub(super) prefix: &'a [u8],
    pub(super) first_key: &'a [u8],
}

/// A callback for each key and its value.
pub(super) type Visit<'v> = dyn FnMut(&[u8], Value<'_>, &mut Budget) -> Result<(), Fault> + 'v;

/// Reads a node, passes a leaf's keys to `visit`, and returns its children and statistics.
pub(super) fn read(
    encoded: &[u8],
    expected: &Expected<'_>,
    what: &str,
    budget: &mut Budget,
    visit: &mut Visit<'_>,
) -> Result<Outcome, Fault> {
    let body = file_table::unpack(encoded, NODE_MAGIC, what, budget)?;
    let mut cursor = Cursor::new(&body, what);
    let height = cursor.byte("height")?;
    if height != expected.height {
        return Err(broken!("{what} is on level {height} instead of level {}", expected.height));
    }
    let files = file_table::read(&mut cursor, expected.base, what, budget)?;
    let count = cursor.count("number of entries", 4)?;
    if count == 0 || count > MAX_ENTRIES {
        return Err(cursor.damaged(format_args!("it holds {count} entries")));
    }
    let mut node = Reader { cursor, count, files: &files, what, budget };
    let mut outcome = if height == 0 { node.leaf(expected, visit)? } else { node.interior(expected)? };
    if !node.cursor.is_empty() {
        return Err(node.cursor.damaged("bytes follow its last entry"));
    }
    outcome.statistics.add(Statistics { tree_bytes: encoded.len() as u64, ..Statistics::default() });
    Ok(outcome)
}

/// A key, as the length of the prefix that it shares with the previous key, and the rest.
struct Key<'a> {
    shared: usize,
    suffix: &'a [u8],
}

struct Reader<'a, 'c> {
    cursor: Cursor<'c>,
    count: usize,
    files: &'a [DataFile],
    what: &'a str,
    budget: &'a mut Budget,
}

impl<'c> Reader<'_, 'c> {
    /// Reads the lengths of the keys: of the prefix shared with the previous key, and of the rest.
    fn key_lengths(&mut self) -> Result<Vec<(u64, u64)>, Fault> {
        let shared = self.cursor.column_after_first(self.count, "key prefix length")?;
        let suffixes = self.cursor.rows(self.count, ["key suffix length"])?;
        Ok(shared.into_iter().zip(suffixes.into_iter().flatten()).collect())
    }

    fn keys(&mut self, lengths: Vec<(u64, u64)>) -> Result<Vec<Key<'c>>, Fault> {
        let mut keys = Vec::with_capacity(self.count);
        let mut before_bytes = 0;
        for (shared, suffix) in lengths {
            let shared = shared_bytes(shared, before_bytes).ok_or_else(|| {
                self.cursor.damaged("a key shares more bytes with the previous key than that key has")
            })?;
            let suffix = self.cursor.take(suffix, "keys")?;
            before_bytes = shared + suffix.len();
            if before_bytes > MAX_KEY_BYTES {
                return Err(self.cursor.damaged("a key is longer than the limit"));
            }
            keys.push(Key { shared, suffix });
        }
        Ok(keys)
    }

    fn leaf(&mut self, expected: &Expected<'_>, visit: &mut Visit<'_>) -> Result<Outcome, Fault> {
        let lengths = self.key_lengths()?;
        let keys = self.keys(lengths)?;
        let lengths = self.cursor.rows(self.count, ["value length"])?;
        let kinds = self.cursor.take(self.count as u64, "value kinds")?;
        let stored = match kinds.iter().find(|kind| **kind > 1) {
            None => kinds.iter().map(|kind| usize::from(*kind)).sum(),
            Some(_) => return Err(self.cursor.damaged("a value is of an unknown kind")),
        };
        let places = self.cursor.rows(stored, ["data file of a value", "offset of a value"])?;
        let mut places = places.into_iter();
        let mut statistics = Statistics { keys: keys.len() as u64, ..Statistics::default() };
        let mut full = FullKey::new(expected);
        for ((key, [length_bytes]), kind) in keys.iter().zip(lengths).zip(kinds) {
            full.go_on(key).map_err(|why| self.cursor.damaged(why))?;
            let value = if *kind == 0 {
                Value::Inline(self.cursor.take(length_bytes, "inline values")?)
            } else {
                let Some([number, offset]) = places.next() else {
                    return Err(self.cursor.damaged("a value has no location"));
                };
                statistics.value_bytes = statistics.value_bytes.saturating_add(length_bytes);
                let location = Location { offset, length_bytes };
                Value::Stored(file_table::at(self.files, number, self.what)?, location)
            };
            visit(&full.bytes, value, self.budget)?;
        }
        Ok(Outcome { children: Vec::new(), statistics })
    }

    fn interior(&mut self, expected: &Expected<'_>) -> Result<Outcome, Fault> {
        let lengths = self.key_lengths()?;
        let subtrees = self.cursor.rows(self.count, ["subtree prefix length"])?;
        let keys = self.keys(lengths)?;
        let fields = [
            "data file of a child",
            "offset of a child",
            "length of a child",
            "number of keys of a child",
            "size of a child",
            "size of the values of a child",
        ];
        let rows = self.cursor.rows(self.count, fields)?;
        let mut total = Statistics::default();
        let mut full = FullKey::new(expected);
        let mut children = Vec::new();
        for ((key, [subtree]), row) in keys.iter().zip(subtrees).zip(rows) {
            let [number, offset, length_bytes, keys, tree_bytes, value_bytes] = row;
            full.go_on(key).map_err(|why| self.cursor.damaged(why))?;
            let split = usize::try_from(subtree)
                .ok()
                .and_then(|length| full.bytes.split_at_checked(length.checked_add(full.prefix_bytes)?));
            let (prefix, first_key) = split.ok_or_else(|| {
                self.cursor.damaged("the prefix of a child's keys is longer than its first key")
            })?;
            self.budget.spend((full.bytes.len() + size_of::<Child>()) as u64, self.what)?;
            let statistics = Statistics { keys, tree_bytes, value_bytes };
            total.add(statistics);
            children.push(Child {
                file: file_table::at(self.files, number, self.what)?.clone(),
                location: Location { offset, length_bytes },
                statistics,
                prefix: prefix.to_vec(),
                first_key: first_key.to_vec(),
            });
        }
        Ok(Outcome { children, statistics: total })
    }
}

/// The last key that was read, in full.
struct FullKey<'a> {
    bytes: Vec<u8>,
    prefix_bytes: usize,
    first_key: Option<&'a [u8]>,
}

impl<'a> FullKey<'a> {
    fn new(expected: &Expected<'a>) -> Self {
        Self {
            bytes: expected.prefix.to_vec(),
            prefix_bytes: expected.prefix.len(),
            first_key: Some(expected.first_key),
        }
    }

    fn go_on(&mut self, key: &Key<'_>) -> Result<(), &'static str> {
        let kept = self.prefix_bytes + key.shared;
        let in_order = match self.first_key.take() {
            // The parent may state a smaller key than the first existing one.
            Some(first) => key.suffix >= first,
            None => self.bytes.get(kept..).is_some_and(|before| before < key.suffix),
        };
        if !in_order {
            return Err("its keys are out of order");
        }
        self.bytes.truncate(kept);
        if kept + key.suffix.len() > MAX_KEY_BYTES {
            return Err("a key is longer than the limit");
        }
        self.bytes.extend_from_slice(key.suffix);
        Ok(())
    }
}
