//! Tuples, lists, sets, dictionaries, and the memo that shares values.

use super::machine::Machine;
use super::store::Object;
use super::{Value, opcode};
use crate::soundness::Fault;

impl Machine<'_> {
    pub(super) fn tuple_of_last(&mut self, length: usize) -> Result<(), Fault> {
        let floor = self.floor();
        let Some(start) = self
            .stack
            .len()
            .checked_sub(length)
            .filter(|start| *start >= floor)
        else {
            return Err(self.underflow());
        };
        let elements = self.stack.split_off(start);
        self.store.release::<Value>(elements.len());
        let tuple = self.tuple(elements)?;
        self.push(tuple)
    }

    pub(super) fn tuple(&mut self, elements: Vec<Value>) -> Result<Value, Fault> {
        self.store.object(Object::Tuple(elements.into_boxed_slice()))
    }

    /// Creates a container of the values above the last mark.
    pub(super) fn container_of_mark(&mut self, empty: Object) -> Result<(), Fault> {
        let parts = self.pop_to_mark()?;
        self.push_object(empty)?;
        if self.opcode == opcode::DICT {
            self.add_entries(&parts)
        } else {
            self.add_items(&parts)
        }
    }

    pub(super) fn add_items(&mut self, new: &[Value]) -> Result<(), Fault> {
        let target = self.top()?;
        let expected: fn(&Object) -> bool = if self.opcode == opcode::ADDITEMS {
            |object| matches!(object, Object::Set(_))
        } else {
            |object| matches!(object, Object::List(_) | Object::Set(_))
        };
        if !self.may_be(target, expected) {
            return Err(self.fault("adds items to a value that is not a list or set"));
        }
        if !self.store.keeps_values() {
            return Ok(());
        }
        self.store.count::<Value>(new.len())?;
        match self.store.get_mut(target) {
            Some(Object::List(items) | Object::Set(items)) => items.extend_from_slice(new),
            Some(Object::Call(call)) => call.items.extend_from_slice(new),
            _ => {}
        }
        Ok(())
    }

    pub(super) fn add_entries(&mut self, pairs: &[Value]) -> Result<(), Fault> {
        let target = self.top()?;
        if !self.may_be(target, |object| matches!(object, Object::Dict(_))) {
            return Err(self.fault("adds entries to a value that is not a dictionary"));
        }
        let (pairs, odd) = pairs.as_chunks::<2>();
        if !odd.is_empty() {
            return Err(self.fault("has a key without a value"));
        }
        if !self.store.keeps_values() {
            return Ok(());
        }
        self.store.count::<(Value, Value)>(pairs.len())?;
        let new = pairs.iter().map(|[key, value]| (*key, *value));
        match self.store.get_mut(target) {
            Some(Object::Dict(entries)) => entries.extend(new),
            Some(Object::Call(call)) => call.entries.extend(new),
            _ => {}
        }
        Ok(())
    }

    pub(super) fn memoize(&mut self, index: u64) -> Result<(), Fault> {
        let value = self.top()?;
        if self.memo.insert(index, value).is_none() {
            self.store.count::<(u64, Value, u64)>(1)?;
        }
        Ok(())
    }

    pub(super) fn recall(&mut self, index: u64) -> Result<(), Fault> {
        let Some(value) = self.memo.get(&index).copied() else {
            return Err(self.fault(&format!("reads memo slot {index}, which was never written")));
        };
        self.push(value)
    }
}
