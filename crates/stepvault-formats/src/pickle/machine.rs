//! The stack machine that reads a pickle and only records what the pickle requests.

use std::collections::HashMap;
use std::ops::Range;

use super::cursor::Cursor;
use super::store::{Object, Store};
use super::{Keep, MAX_TEXT_BYTES, Pickle, Value, opcode};
use crate::soundness::Fault;
use crate::source::ReadAt;

/// The newest protocol (`pickle.HIGHEST_PROTOCOL`).
const HIGHEST_PROTOCOL: u8 = 5;

pub(super) struct Machine<'a> {
    pub(super) cursor: Cursor<'a>,
    pub(super) store: Store,
    pub(super) stack: Vec<Value>,
    /// The height of the stack at each open mark.
    marks: Vec<usize>,
    pub(super) memo: HashMap<u64, Value>,
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
            store: Store::new(keep),
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
        self.store.kept_bytes
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
        Ok(Pickle {
            root,
            end: self.cursor.position(),
            objects: self.store.objects,
            integers: self.store.integers,
            text: self.store.text,
            kept_bytes: self.store.kept_bytes,
        })
    }

    #[expect(clippy::too_many_lines, reason = "one arm an instruction")]
    fn step(&mut self) -> Result<(), Fault> {
        match self.opcode {
            opcode::PROTO => self.protocol(),
            opcode::FRAME => self.enter_frame(),
            opcode::MARK => {
                self.store.count::<usize>(1)?;
                self.marks.push(self.stack.len());
                Ok(())
            }
            opcode::POP => self.pop_value_or_mark(),
            opcode::POP_MARK => self.pop_to_mark().map(drop),
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
            opcode::BININT1 => {
                let value = self.cursor.byte()?;
                self.push(Value::Integer(i64::from(value)))
            }
            opcode::BININT2 => {
                let value = u16::from_le_bytes(self.cursor.array()?);
                self.push(Value::Integer(i64::from(value)))
            }
            opcode::LONG1 => {
                let length = self.length1()?;
                self.long(length)
            }
            opcode::LONG4 => {
                let length = self.signed_length()?;
                self.long(length)
            }
            opcode::FLOAT => self.decimal_float(),
            opcode::BINFLOAT => {
                self.cursor.skip(8)?;
                self.push(Value::Scalar)
            }
            opcode::STRING => self.quoted_line(),
            opcode::UNICODE => {
                let line = self.cursor.line(MAX_TEXT_BYTES)?;
                self.push_line(line)
            }
            opcode::BINSTRING => {
                let length = self.signed_length()?;
                self.byte_string(length)
            }
            opcode::SHORT_BINSTRING => {
                let length = self.length1()?;
                self.byte_string(length)
            }
            opcode::SHORT_BINUNICODE => {
                let length = self.length1()?;
                self.unicode(length)
            }
            opcode::BINUNICODE => {
                let length = self.length4()?;
                self.unicode(length)
            }
            opcode::BINUNICODE8 => {
                let length = self.length8()?;
                self.unicode(length)
            }
            opcode::SHORT_BINBYTES => {
                let length = self.length1()?;
                self.bytes(length)
            }
            opcode::BINBYTES => {
                let length = self.length4()?;
                self.bytes(length)
            }
            opcode::BINBYTES8 | opcode::BYTEARRAY8 => {
                let length = self.length8()?;
                self.bytes(length)
            }
            opcode::NEXT_BUFFER => self.push(Value::Unknown),
            opcode::READONLY_BUFFER => self.top().map(drop),
            opcode::EMPTY_TUPLE => self.push_object(Object::Tuple(Box::default())),
            opcode::EMPTY_LIST => self.push_object(Object::List(Vec::new())),
            opcode::EMPTY_DICT => self.push_object(Object::Dict(Vec::new())),
            opcode::EMPTY_SET => self.push_object(Object::Set(Vec::new())),
            opcode::TUPLE => {
                let elements = self.pop_to_mark()?;
                let tuple = self.tuple(elements)?;
                self.push(tuple)
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
            opcode::PUT => {
                let index = self.decimal_index()?;
                self.memoize(index)
            }
            opcode::BINPUT => {
                let index = self.length1()?;
                self.memoize(index)
            }
            opcode::LONG_BINPUT => {
                let index = self.length4()?;
                self.memoize(index)
            }
            opcode::MEMOIZE => self.memoize(self.memo.len() as u64),
            opcode::GET => {
                let index = self.decimal_index()?;
                self.recall(index)
            }
            opcode::BINGET => {
                let index = self.length1()?;
                self.recall(index)
            }
            opcode::LONG_BINGET => {
                let index = self.length4()?;
                self.recall(index)
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
            other => Err(Fault::at(
                self.opcode_offset,
                format!("byte 0x{other:02x} is not a pickle instruction"),
            )),
        }
    }

    pub(super) fn protocol(&mut self) -> Result<(), Fault> {
        let protocol = self.cursor.byte()?;
        if protocol > HIGHEST_PROTOCOL {
            return Err(self.fault(&format!(
                "declares pickle protocol {protocol}, and the newest is {HIGHEST_PROTOCOL}"
            )));
        }
        Ok(())
    }

    pub(super) fn enter_frame(&mut self) -> Result<(), Fault> {
        let length = self.length8()?;
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
    pub(super) fn leave_frame(&mut self) -> Result<(), Fault> {
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
        self.store.count::<Value>(1)?;
        self.stack.push(value);
        Ok(())
    }

    pub(super) fn push_object(&mut self, object: Object) -> Result<(), Fault> {
        let value = self.store.object(object)?;
        self.push(value)
    }

    /// Returns the height of the stack at the last mark. Values below it may not be taken without closing the mark.
    pub(super) fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or_default()
    }

    pub(super) fn pop(&mut self) -> Result<Value, Fault> {
        if self.stack.len() <= self.floor() {
            return Err(self.underflow());
        }
        self.store.release::<Value>(1);
        self.stack.pop().ok_or_else(|| self.underflow())
    }

    pub(super) fn top(&self) -> Result<Value, Fault> {
        let above = self.stack.get(self.floor()..).and_then(|values| values.last());
        above.copied().ok_or_else(|| self.underflow())
    }

    pub(super) fn pop_to_mark(&mut self) -> Result<Vec<Value>, Fault> {
        let Some(start) = self.marks.pop() else {
            return Err(self.fault("closes a group that was never opened"));
        };
        self.store.release::<usize>(1);
        let values = self.stack.split_off(start.min(self.stack.len()));
        self.store.release::<Value>(values.len());
        Ok(values)
    }

    pub(super) fn pop_value_or_mark(&mut self) -> Result<(), Fault> {
        if self.stack.len() > self.floor() {
            return self.pop().map(drop);
        }
        self.pop_to_mark().map(drop)
    }

    pub(super) fn underflow(&self) -> Fault {
        self.fault("takes a value from an empty stack")
    }

    /// Returns a fault of the current instruction.
    pub(super) fn fault(&self, why: &str) -> Fault {
        let name = opcode::name_of(self.opcode).unwrap_or("an instruction");
        Fault::at(self.opcode_offset, format!("the pickle's {name} {why}"))
    }
}
