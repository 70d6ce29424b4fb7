//! What the store that gets copies of store 0 is owed.

use std::collections::BTreeSet;

use stepvault_core::ids::StepId;

use super::{Judge, Name, StoreFacts, describe};

impl Judge {
    /// Whether the rules of the selective store select a step, however many others there are.
    fn is_selected(&self, id: StepId) -> bool {
        let selection = self.fed.as_ref().and_then(|fed| fed.selection.as_ref());
        let every = selection.and_then(|selection| selection.rules.every_steps);
        every.is_some_and(|every| id.step.number().is_multiple_of(every))
    }

    /// Whether the selective store may still get a step of store 0.
    pub fn awaits(&self, name: Name) -> bool {
        let Some(fed) = self.fed.as_ref().filter(|_| self.is_selected(name.1)) else {
            return false;
        };
        let (source, target) = (&self.stores[0], &self.stores[fed.store]);
        let digest = |facts: &StoreFacts| facts.ever.get(&name).map(|(digest, ..)| *digest);
        let is_copied = target.commits.contains_key(&name) && digest(source) == digest(target);
        !is_copied && !target.tombstones.contains_key(&name)
    }

    /// Whether the selective store gets a step of store 0 in any case and never had it: no later attempt or revision can
    /// have replaced it.
    pub(super) fn is_owed_to_fed(&self, name: Name) -> bool {
        let Some(fed) = self.fed.as_ref().filter(|_| self.is_selected(name.1)) else {
            return false;
        };
        let mut others = self.stores[0].ever.keys().filter(|other| other.0 == name.0);
        let is_replaced = others.any(|other| {
            other.1.attempt > name.1.attempt || other.1.is_revision_of(name.1) && other.1 > name.1
        });
        let target = &self.stores[fed.store];
        let had_it = target.ever.contains_key(&name) || target.tombstones.contains_key(&name);
        !is_replaced && !had_it && !self.copies_are_lost
    }

    /// Returns a step of store 0 that the other store lacks, although it gets it and has not removed it.
    pub fn missing_copy(&self, run: usize) -> Option<StepId> {
        let fed = self.fed.as_ref()?;
        let (there, removed) = (self.visible(fed.store, run), self.removed(fed.store, run));
        let is_wanted = |id: StepId| fed.selection.is_none() || self.is_owed_to_fed((run, id));
        let mut ids = self.visible(0, run).into_keys();
        ids.find(|id| is_wanted(*id) && !there.contains_key(id) && !removed.contains(id))
    }

    /// Returns the steps that were removed from a store.
    pub fn removed(&self, store: usize, run: usize) -> BTreeSet<StepId> {
        let removed = self.stores[store].tombstones.keys();
        removed.filter(|name| name.0 == run).map(|name| name.1).collect()
    }

    /// Somebody was told that a step is copied to a store, or was there already. `was_removed` from there when the copy
    /// began.
    pub fn acknowledge_copy(&mut self, store: usize, name: Name, was_removed: bool) {
        let text = describe(store, name);
        if was_removed && self.stores[store].tombstones.contains_key(&name) {
            return self.broken("S9", format!("{text} was copied under a name that was used before"));
        }
        match self.stores[0].ever.get(&name) {
            Some((_, content, _)) => self.acknowledge(store, name, content.clone(), Vec::new()),
            None => self.broken("S3", format!("{text} was copied, and store 0 never had it")),
        }
    }
}
