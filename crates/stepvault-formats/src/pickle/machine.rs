//! The stack machine that reads a pickle and only records what the pickle requests.

use std::collections::HashMap;
use std::ops::Range;

use super::opcode::Cursor;
use super::store::{Call, Object};
use super::{Keep, MAX_TEXT_BYTES, Pickle, Value, opcode};
use crate::soundness::{Fault, broken_at};
use crate::tree::ReadAt;

/// The newest protocol (`pickle.HIGHEST_PROTOCOL`).
const HIGHEST_PROTOCOL: u8 = 5;

pub(super) struct Machine<'a> {
    pub(super) cursor: Cursor<'a>,
    /// What has been read so far.
    pub(super) pickle: Pickle,
    stack: Vec<Value>,
    /// The height of the stack at each open mark.
    marks: Vec<usize>,
    memo: HashMap<u64, Value>,
    /// The end of the current frame.
    frame_end: Option<u64>,
    /// The current instruction and its offset.
    pub(super) opcode: u8,
    opcode_offset: u64,
}

impl<'a> Machine<'a> {
    pub(super) fn new(source: &'a dyn ReadAt, range: Range<u64>, keep: Keep) -> Result<Self, Fault> {
        let opcode_offset = range.start;
        Ok(Self {
            cursor: Cursor::new(source, range)?,
            pickle: Pickle::new(keep),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: HashMap::new(),
            frame_end: None,
            opcode: opcode::STOP,
            opcode_offset,
        })
    }

    /// Reads up to and including `STOP`.
    pub(super) fn run(mut self) -> Result<Pickle, Fault> {
        self.run_to_stop()?;
        self.finish()
    }

    fn run_to_stop(&mut self) -> Result<(), Fault> {
        loop {
            self.opcode_offset = self.cursor.position();
            self.opcode = self.cursor.byte()?;
            if self.opcode == opcode::STOP {
                return Ok(());
            }
            self.step()?;
            self.leave_frame()?;
        }
    }

    /// Returns the bytes that are kept at the end of a pickle that has no `STOP`.
    #[cfg(test)]
    pub(super) fn kept_bytes_when_cut_off(&mut self) -> u64 {
        assert!(self.run_to_stop().is_err());
        assert_eq!(self.cursor.left_bytes(), 0);
        self.pickle.kept_bytes
    }

    fn finish(mut self) -> Result<Pickle, Fault> {
        self.leave_frame()?;
        if self.frame_end.is_some() {
            return Err(self.fault("ends the pickle inside an unfinished frame"));
        }
        let root = self.pop()?;
        if !self.stack.is_empty() || !self.marks.is_empty() {
            let left = self.stack.len().saturating_add(self.marks.len());
            return Err(self.fault(&format!("ends the pickle with {left} values left over")));
        }
        self.pickle.root = root;
        self.pickle.end = self.cursor.position();
        Ok(self.pickle)
    }

    #[expect(clippy::too_many_lines, reason = "one arm an instruction")]
    fn step(&mut self) -> Result<(), Fault> {
        match self.opcode {
            opcode::PROTO => self.protocol(),
            opcode::FRAME => self.enter_frame(),
            opcode::MARK => {
                self.pickle.count::<usize>(1)?;
                self.marks.push(self.stack.len());
                Ok(())
            }
            opcode::POP if self.stack.len() > self.floor() => self.pop().map(drop),
            opcode::POP | opcode::POP_MARK => self.pop_to_mark().map(drop),
            opcode::DUP => {
                let top = self.top()?;
                self.push(top)
            }
            opcode::NONE => self.push(Value::None),
            opcode::NEWTRUE => self.push(Value::Bool(true)),
            opcode::NEWFALSE => self.push(Value::Bool(false)),
            opcode::INT => self.decimal_int(),
            opcode::LONG => self.decimal_long(),
            opcode::BININT => {
                let value = i32::from_le_bytes(self.cursor.array()?);
                self.push(Value::Integer(i64::from(value)))
            }
            opcode::BININT1 | opcode::BININT2 => {
                let value = self.operand()?;
                self.push(Value::Integer(value.cast_signed()))
            }
            opcode::LONG1 | opcode::LONG4 => self.long(),
            opcode::FLOAT => self.decimal_float(),
            opcode::BINFLOAT => self.skip(8),
            opcode::STRING => self.quoted_line(),
            opcode::UNICODE => {
                let line = self.cursor.line(MAX_TEXT_BYTES)?;
                self.push_line(line)
            }
            opcode::SHORT_BINSTRING | opcode::BINSTRING => self.byte_string(),
            opcode::SHORT_BINUNICODE | opcode::BINUNICODE | opcode::BINUNICODE8 => self.unicode(),
            opcode::SHORT_BINBYTES | opcode::BINBYTES | opcode::BINBYTES8 | opcode::BYTEARRAY8 => {
                let length = self.operand()?;
                self.skip(length)
            }
            opcode::NEXT_BUFFER => self.push(Value::Unknown),
            opcode::READONLY_BUFFER => self.top().map(drop),
            opcode::EMPTY_TUPLE => self.push_object(Object::Tuple(Box::default())),
            opcode::EMPTY_LIST => self.push_object(Object::List(Vec::new())),
            opcode::EMPTY_DICT => self.push_object(Object::Dict(Vec::new())),
            opcode::EMPTY_SET => self.push_object(Object::Set(Vec::new())),
            opcode::TUPLE => {
                let elements = self.pop_to_mark()?;
                self.push_object(Object::Tuple(elements.into()))
            }
            opcode::TUPLE1 => self.tuple_of_last(1),
            opcode::TUPLE2 => self.tuple_of_last(2),
            opcode::TUPLE3 => self.tuple_of_last(3),
            opcode::LIST => self.container_of_mark(Object::List(Vec::new())),
            opcode::FROZENSET => self.container_of_mark(Object::Set(Vec::new())),
            opcode::DICT => self.container_of_mark(Object::Dict(Vec::new())),
            opcode::APPEND => {
                let item = self.pop()?;
                self.add_items(&[item])
            }
            opcode::APPENDS | opcode::ADDITEMS => {
                let items = self.pop_to_mark()?;
                self.add_items(&items)
            }
            opcode::SETITEM => {
                let value = self.pop()?;
                let key = self.pop()?;
                self.add_entries(&[key, value])
            }
            opcode::SETITEMS => {
                let pairs = self.pop_to_mark()?;
                self.add_entries(&pairs)
            }
            opcode::PUT | opcode::BINPUT | opcode::LONG_BINPUT => {
                let index = self.operand()?;
                self.memoize(index)
            }
            opcode::MEMOIZE => self.memoize(self.memo.len() as u64),
            opcode::GET | opcode::BINGET | opcode::LONG_BINGET => {
                let index = self.operand()?;
                let Some(value) = self.memo.get(&index).copied() else {
                    return Err(self.fault(&format!("reads memo slot {index}, which was never written")));
                };
                self.push(value)
            }
            opcode::PERSID => {
                let line = self.cursor.line(MAX_TEXT_BYTES)?;
                self.push_line(line)?;
                self.persistent()
            }
            opcode::BINPERSID => self.persistent(),
            opcode::GLOBAL => {
                let class = self.global_of_lines()?;
                self.push(class)
            }
            opcode::STACK_GLOBAL => self.global_of_stack(),
            opcode::EXT1 => self.extension(1),
            opcode::EXT2 => self.extension(2),
            opcode::EXT4 => self.extension(4),
            opcode::REDUCE | opcode::NEWOBJ => {
                let arguments = self.pop()?;
                let callable = self.pop()?;
                self.call(callable, arguments)
            }
            opcode::NEWOBJ_EX => self.new_object_with_keywords(),
            opcode::INST => {
                let arguments = self.pop_to_mark()?;
                let class = self.global_of_lines()?;
                let arguments = self.tuple(arguments)?;
                self.call(class, arguments)
            }
            opcode::OBJ => self.object_of_mark(),
            opcode::BUILD => self.build(),
            other => Err(broken_at!(self.opcode_offset, "byte 0x{other:02x} is not a pickle instruction")),
        }
    }

    fn protocol(&mut self) -> Result<(), Fault> {
        let protocol = self.cursor.byte()?;
        if protocol > HIGHEST_PROTOCOL {
            return Err(self.fault(&format!(
                "declares pickle protocol {protocol}, and the newest is {HIGHEST_PROTOCOL}"
            )));
        }
        Ok(())
    }

    fn enter_frame(&mut self) -> Result<(), Fault> {
        let length = self.operand()?;
        let left_bytes = self.cursor.left_bytes();
        if length > left_bytes {
            return Err(self.fault(&format!(
                "needs {length} more bytes, and {left_bytes} remain: the pickle is cut off"
            )));
        }
        if self.frame_end.is_some() {
            return Err(self.fault("begins a frame inside another"));
        }
        self.frame_end = self.cursor.position().checked_add(length);
        Ok(())
    }

    /// Checks that an instruction does not extend beyond the end of its frame. It may end the frame.
    fn leave_frame(&mut self) -> Result<(), Fault> {
        let Some(end) = self.frame_end else { return Ok(()) };
        if self.cursor.position() > end {
            return Err(self.fault(&format!("extends beyond the end of its frame at byte {end}")));
        }
        if self.cursor.position() == end {
            self.frame_end = None;
        }
        Ok(())
    }

    pub(super) fn push(&mut self, value: Value) -> Result<(), Fault> {
        self.pickle.count::<Value>(1)?;
        self.stack.push(value);
        Ok(())
    }

    fn push_object(&mut self, object: Object) -> Result<(), Fault> {
        let value = self.pickle.add_object(object)?;
        self.push(value)
    }

    /// Returns the height of the stack at the last mark. Values below it may not be taken without closing the mark.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or_default()
    }

    fn pop(&mut self) -> Result<Value, Fault> {
        if self.stack.len() <= self.floor() {
            return Err(self.underflow());
        }
        self.pickle.release::<Value>(1);
        self.stack.pop().ok_or_else(|| self.underflow())
    }

    fn top(&self) -> Result<Value, Fault> {
        let above = self.stack.get(self.floor()..).and_then(|values| values.last());
        above.copied().ok_or_else(|| self.underflow())
    }

    fn pop_to_mark(&mut self) -> Result<Vec<Value>, Fault> {
        let Some(start) = self.marks.pop() else {
            return Err(self.fault("closes a group that was never opened"));
        };
        self.pickle.release::<usize>(1);
        let values = self.stack.split_off(start.min(self.stack.len()));
        self.pickle.release::<Value>(values.len());
        Ok(values)
    }

    fn underflow(&self) -> Fault {
        self.fault("takes a value from an empty stack")
    }

    /// Returns a fault of the current instruction.
    pub(super) fn fault(&self, why: &str) -> Fault {
        let name = opcode::name_of(self.opcode).unwrap_or("an instruction");
        broken_at!(self.opcode_offset, "the pickle's {name} {why}")
    }

    fn tuple_of_last(&mut self, length: usize) -> Result<(), Fault> {
        if self.stack.len() < self.floor().saturating_add(length) {
            return Err(self.underflow());
        }
        let elements = self.stack.split_off(self.stack.len() - length);
        self.pickle.release::<Value>(length);
        self.push_object(Object::Tuple(elements.into()))
    }

    fn tuple(&mut self, elements: Vec<Value>) -> Result<Value, Fault> {
        self.pickle.add_object(Object::Tuple(elements.into()))
    }

    /// Creates a container of the values above the last mark.
    fn container_of_mark(&mut self, empty: Object) -> Result<(), Fault> {
        let parts = self.pop_to_mark()?;
        self.push_object(empty)?;
        if self.opcode == opcode::DICT { self.add_entries(&parts) } else { self.add_items(&parts) }
    }

    fn add_items(&mut self, new: &[Value]) -> Result<(), Fault> {
        let target = self.top()?;
        let expected: fn(&Object) -> bool = if self.opcode == opcode::ADDITEMS {
            |object| matches!(object, Object::Set(_))
        } else {
            |object| matches!(object, Object::List(_) | Object::Set(_))
        };
        if !self.may_be(target, expected) {
            return Err(self.fault("adds items to a value that is not a list or set"));
        }
        if !self.pickle.keeps_values() {
            return Ok(());
        }
        self.pickle.count::<Value>(new.len())?;
        match self.pickle.object_mut(target) {
            Some(Object::List(items) | Object::Set(items)) => items.extend_from_slice(new),
            Some(Object::Call(call)) => call.items.extend_from_slice(new),
            _ => {}
        }
        Ok(())
    }

    fn add_entries(&mut self, pairs: &[Value]) -> Result<(), Fault> {
        let target = self.top()?;
        if !self.may_be(target, |object| matches!(object, Object::Dict(_))) {
            return Err(self.fault("adds entries to a value that is not a dictionary"));
        }
        let (pairs, odd) = pairs.as_chunks::<2>();
        if !odd.is_empty() {
            return Err(self.fault("has a key without a value"));
        }
        if !self.pickle.keeps_values() {
            return Ok(());
        }
        self.pickle.count::<(Value, Value)>(pairs.len())?;
        let new = pairs.iter().map(|[key, value]| (*key, *value));
        match self.pickle.object_mut(target) {
            Some(Object::Dict(entries)) => entries.extend(new),
            Some(Object::Call(call)) => call.entries.extend(new),
            _ => {}
        }
        Ok(())
    }

    fn memoize(&mut self, index: u64) -> Result<(), Fault> {
        let value = self.top()?;
        if self.memo.insert(index, value).is_none() {
            self.pickle.count::<(u64, Value, u64)>(1)?;
        }
        Ok(())
    }

    fn global_of_stack(&mut self) -> Result<(), Fault> {
        let name = self.pop()?;
        let module = self.pop()?;
        let (Value::Text(module), Value::Text(name)) = (module, name) else {
            return Err(self.fault("names a class by values that are not two strings"));
        };
        self.push_object(Object::Global { module, name })
    }

    fn extension(&mut self, length: u64) -> Result<(), Fault> {
        self.cursor.skip(length)?;
        self.push(Value::Unknown)
    }

    fn persistent(&mut self) -> Result<(), Fault> {
        let id = self.pop()?;
        self.push_object(Object::Persistent(id))
    }

    fn call(&mut self, callable: Value, arguments: Value) -> Result<(), Fault> {
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

    fn new_object_with_keywords(&mut self) -> Result<(), Fault> {
        let keywords = self.pop()?;
        let arguments = self.pop()?;
        let class = self.pop()?;
        if !self.may_be(keywords, |object| matches!(object, Object::Dict(_))) {
            return Err(self.fault("creates an object with keyword arguments that are not a dictionary"));
        }
        self.call(class, arguments)
    }

    fn object_of_mark(&mut self) -> Result<(), Fault> {
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
    fn build(&mut self) -> Result<(), Fault> {
        let state = self.pop()?;
        let target = self.top()?;
        if !self.may_be(target, |_| false) {
            return Err(self.fault("sets the state of a value that has none"));
        }
        if self.pickle.keeps_values()
            && let Some(Object::Call(call)) = self.pickle.object_mut(target)
        {
            call.state = state;
        }
        Ok(())
    }

    /// Returns whether a value is what `expected` accepts, or could become so if the pickle were executed.
    fn may_be(&self, value: Value, expected: fn(&Object) -> bool) -> bool {
        match self.pickle.object(value) {
            None => value == Value::Unknown,
            Some(Object::Call(_) | Object::Persistent(_)) => true,
            Some(object) => expected(object),
        }
    }
}
