//! Names, calls, states and persistent ids: recorded, never executed.

use super::machine::Machine;
use super::store::{Call, Object};
use super::{MAX_TEXT_BYTES, Value};
use crate::soundness::Fault;

impl Machine<'_> {
    pub(super) fn global_of_lines(&mut self) -> Result<Value, Fault> {
        let module = self.cursor.line(MAX_TEXT_BYTES)?;
        let name = self.cursor.line(MAX_TEXT_BYTES)?;
        let (Some(module), Some(name)) = (module, name) else {
            return Err(self.fault("names a class by a name that is too long"));
        };
        if module.is_empty() || name.is_empty() {
            return Err(self.fault("names a class by an empty name"));
        }
        let (Ok(module), Ok(name)) = (str::from_utf8(&module), str::from_utf8(&name)) else {
            return Err(self.fault("names a class by a name that is not UTF-8 text"));
        };
        let module = self.store.text(module)?;
        let name = self.store.text(name)?;
        self.store.object(Object::Global { module, name })
    }

    pub(super) fn global_of_stack(&mut self) -> Result<(), Fault> {
        let name = self.pop()?;
        let module = self.pop()?;
        let (Value::Text(module), Value::Text(name)) = (module, name) else {
            return Err(self.fault("names a class by values that are not two strings"));
        };
        self.push_object(Object::Global { module, name })
    }

    pub(super) fn extension(&mut self, length: u64) -> Result<(), Fault> {
        self.cursor.skip(length)?;
        self.push(Value::Unknown)
    }

    pub(super) fn persistent(&mut self) -> Result<(), Fault> {
        let id = self.pop()?;
        self.push_object(Object::Persistent(id))
    }

    pub(super) fn call(&mut self, callable: Value, arguments: Value) -> Result<(), Fault> {
        if !self.may_be(callable, |object| matches!(object, Object::Global { .. })) {
            return Err(self.fault("calls a value that is not a class or function"));
        }
        if !self.may_be(arguments, |object| matches!(object, Object::Tuple(_))) {
            return Err(self.fault("calls with arguments that are not a tuple"));
        }
        self.push_object(Object::Call(Box::new(Call {
            callable,
            arguments,
            state: Value::None,
            items: Vec::new(),
            entries: Vec::new(),
        })))
    }

    pub(super) fn new_object_with_keywords(&mut self) -> Result<(), Fault> {
        let keywords = self.pop()?;
        let arguments = self.pop()?;
        let class = self.pop()?;
        if !self.may_be(keywords, |object| matches!(object, Object::Dict(_))) {
            return Err(self.fault("creates an object with keyword arguments that are not a dictionary"));
        }
        self.call(class, arguments)
    }

    pub(super) fn object_of_mark(&mut self) -> Result<(), Fault> {
        let mut arguments = self.pop_to_mark()?;
        if arguments.is_empty() {
            return Err(self.fault("creates an object without a class"));
        }
        let class = arguments.remove(0);
        let arguments = self.tuple(arguments)?;
        self.call(class, arguments)
    }

    /// Handles `BUILD`, which sets attributes, also on an object that is filled like a dictionary: a `state_dict` is
    /// an `OrderedDict` with a `_metadata`.
    pub(super) fn build(&mut self) -> Result<(), Fault> {
        let state = self.pop()?;
        let target = self.top()?;
        if !self.may_be(target, |_| false) {
            return Err(self.fault("sets the state of a value that has none"));
        }
        if self.store.keeps_values()
            && let Some(Object::Call(call)) = self.store.get_mut(target)
        {
            call.state = state;
        }
        Ok(())
    }

    /// Returns whether a value is what `expected` accepts, or could become so if the pickle were executed.
    pub(super) fn may_be(&self, value: Value, expected: fn(&Object) -> bool) -> bool {
        match self.store.get(value) {
            None => value == Value::Unknown,
            Some(Object::Call(_) | Object::Persistent(_)) => true,
            Some(object) => expected(object),
        }
    }
}
