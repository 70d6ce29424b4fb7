//! Every key, its kind and its default, as [the functions that read them](super::tables) name them.

use super::key::KeyPath;
use super::value::Kind;

/// Stands for the users' names of remotes and runs.
pub(super) const ANY_NAME: &str = "NAME";
/// The tables of the users' own profiles, which another crate reads.
pub(super) const PROFILE: &str = "profile";

/// A key.
#[derive(Debug, Clone)]
pub(super) struct Key {
    pub(super) path: KeyPath,
    pub(super) kind: Kind,
    /// The text of its default, if it has one.
    pub(super) default: Option<&'static str>,
}

/// Every key, in the order of the reference, with [`ANY_NAME`] in place of the users' names.
#[derive(Debug, Default)]
pub(super) struct Schema(pub(super) Vec<Key>);

impl Schema {
    /// Returns the key of this path.
    pub(super) fn find(&self, path: &KeyPath) -> Option<&Key> {
        let path = path.with_user_name(ANY_NAME);
        self.0.iter().find(|key| key.path == path)
    }

    /// Returns the names that may stand in a table, in order.
    pub(super) fn members(&self, table: &KeyPath) -> Vec<&str> {
        let table = table.with_user_name(ANY_NAME);
        let mut names: Vec<&str> = Vec::new();
        for key in &self.0 {
            let below = key.path.segments().strip_prefix(table.segments());
            if let Some([name, ..]) = below
                && !names.contains(&name.as_str())
            {
                names.push(name);
            }
        }
        if table.segments().is_empty() {
            names.push(PROFILE);
        }
        names
    }

    /// Returns every key for these names of remotes and runs.
    pub(super) fn keys<'a>(&self, names: impl Fn(&str) -> &'a [String]) -> Vec<Key> {
        let expand = |key: &Key| match key.path.user_name() {
            None => vec![key.clone()],
            Some((table, _)) => {
                let paths = names(table).iter().map(|name| key.path.with_user_name(name));
                paths.map(|path| Key { path, ..key.clone() }).collect()
            }
        };
        self.0.iter().flat_map(expand).collect()
    }
}
