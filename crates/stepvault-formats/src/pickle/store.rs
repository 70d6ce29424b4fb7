//! The contents of a pickle, as flat data.

use super::{Keep, MAX_KEPT_BYTES};
use crate::soundness::{Fault, unknown};

/// The position of a text's bytes in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Span {
    start: u32,
    length_bytes: u32,
}

/// The index of a large integer in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct IntegerId(u32);

/// The index of an object in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ObjectId(u32);

/// One value of a pickle. It is only valid for the [`Pickle`] that it comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Value {
    /// `None`.
    None,
    /// `True` or `False`.
    Bool(bool),
    /// An integer that fits in 64 bits.
    Integer(i64),
    /// A larger one, of at most 128 bits: see [`Pickle::integer`].
    LargeInteger(IntegerId),
    /// A text: see [`Pickle::text`].
    Text(Span),
    /// A float, bytes, an integer of more bits, or a text that is too long to keep or not UTF-8.
    Scalar,
    /// A value that only the process that wrote it knows: an extension code, an out-of-band buffer.
    Unknown,
    /// A container, a name or a call: see [`Pickle::object`].
    Object(ObjectId),
}

/// A value with parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Object {
    /// A tuple.
    Tuple(Box<[Value]>),
    /// A list.
    List(Vec<Value>),
    /// A set or a frozen set.
    Set(Vec<Value>),
    /// A dictionary, in insertion order.
    Dict(Vec<(Value, Value)>),
    /// The name of a class or function. Nothing is imported.
    Global {
        /// The module, a text.
        module: Span,
        /// The name in it, a text.
        name: Span,
    },
    /// The object that a call or a class would create if it were executed.
    Call(Box<Call>),
    /// The object that a persistent id stands for; holds the id.
    Persistent(Value),
}

/// A call that a pickle requests. It is never executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The callable.
    pub callable: Value,
    /// Its arguments.
    pub arguments: Value,
    /// The state that would be set after the call, or [`Value::None`].
    pub state: Value,
    /// The items that would be appended after the call.
    pub items: Vec<Value>,
    /// The entries that would be added after the call.
    pub entries: Vec<(Value, Value)>,
}

/// A pickle that has been read.
#[derive(Debug, Clone)]
pub struct Pickle {
    keep: Keep,
    /// The root value.
    pub root: Value,
    /// The offset in the file right after its `STOP`.
    pub end: u64,
    objects: Vec<Object>,
    integers: Vec<i128>,
    text: String,
    /// An upper bound on the bytes that its values took while it was read.
    pub kept_bytes: u64,
}

impl Pickle {
    /// Returns every object, in the order of creation.
    pub fn objects(&self) -> impl Iterator<Item = &Object> {
        self.objects.iter()
    }

    /// Returns the object that a value is, if it is one.
    pub fn object(&self, value: Value) -> Option<&Object> {
        let Value::Object(ObjectId(index)) = value else {
            return None;
        };
        self.objects.get(usize::try_from(index).ok()?)
    }

    /// Returns the text that a value is, if it is one.
    pub fn text(&self, value: Value) -> Option<&str> {
        let Value::Text(span) = value else { return None };
        self.span(span)
    }

    /// Returns the integer that a value is, if it is one of at most 128 bits.
    pub fn integer(&self, value: Value) -> Option<i128> {
        match value {
            Value::Integer(integer) => Some(i128::from(integer)),
            Value::LargeInteger(IntegerId(index)) => self.integers.get(usize::try_from(index).ok()?).copied(),
            _ => None,
        }
    }

    /// Returns the integer that a value is, if it is one and not negative.
    pub fn unsigned(&self, value: Value) -> Option<u64> {
        u64::try_from(self.integer(value)?).ok()
    }

    /// Returns module and name, if a value is the name of a class or function.
    pub fn global(&self, value: Value) -> Option<(&str, &str)> {
        let Object::Global { module, name } = self.object(value)? else {
            return None;
        };
        Some((self.span(*module)?, self.span(*name)?))
    }

    /// Returns the call that a value is, if it is one.
    pub fn call(&self, value: Value) -> Option<&Call> {
        match self.object(value)? {
            Object::Call(call) => Some(call),
            _ => None,
        }
    }

    /// Returns the entries of a dictionary, or of a call that would create one: pairs of key and value.
    pub fn entries(&self, value: Value) -> Option<&[(Value, Value)]> {
        match self.object(value)? {
            Object::Dict(entries) => Some(entries),
            Object::Call(call) => Some(&call.entries),
            _ => None,
        }
    }

    /// Returns the value of a text key in a dictionary; of several, the last.
    pub fn entry(&self, value: Value, key: &str) -> Option<Value> {
        let found = |(other, _): &&(Value, Value)| self.text(*other) == Some(key);
        self.entries(value)?.iter().rev().find(found).map(|(_, value)| *value)
    }

    /// Returns the elements of a tuple or a list.
    pub fn elements(&self, value: Value) -> Option<&[Value]> {
        match self.object(value)? {
            Object::Tuple(elements) => Some(elements),
            Object::List(elements) => Some(elements),
            _ => None,
        }
    }

    fn span(&self, span: Span) -> Option<&str> {
        let start = usize::try_from(span.start).ok()?;
        let length = usize::try_from(span.length_bytes).ok()?;
        self.text.get(start..start.checked_add(length)?)
    }
}

/// Stores values while the pickle is read, and checks each against the limit first.
impl Pickle {
    pub(super) fn new(keep: Keep) -> Self {
        Self {
            keep,
            root: Value::None,
            end: 0,
            objects: Vec::new(),
            integers: Vec::new(),
            text: String::new(),
            kept_bytes: 0,
        }
    }

    /// Returns whether containers keep the values that are added to them.
    pub(super) fn keeps_values(&self) -> bool {
        self.keep == Keep::Values
    }

    /// Counts elements of a type as kept.
    pub(super) fn count<T>(&mut self, elements: usize) -> Result<(), Fault> {
        let bytes = (size_of::<T>() as u64).saturating_mul(elements as u64);
        self.kept_bytes = self.kept_bytes.saturating_add(bytes);
        if self.kept_bytes > MAX_KEPT_BYTES {
            return Err(unknown!(
                "the pickle holds too many values to check: they would take more than {MAX_KEPT_BYTES} bytes"
            ));
        }
        Ok(())
    }

    /// Uncounts elements that are no longer held.
    pub(super) fn release<T>(&mut self, elements: usize) {
        let bytes = (size_of::<T>() as u64).saturating_mul(elements as u64);
        self.kept_bytes = self.kept_bytes.saturating_sub(bytes);
    }

    /// Stores a text. Where values are not kept, one text stands for all.
    pub(super) fn add_text(&mut self, text: &str) -> Result<Span, Fault> {
        if !self.keeps_values() {
            return Ok(Span::default());
        }
        self.count::<u8>(text.len())?;
        let too_much = |_| unknown!("the pickle holds too much text to check");
        let span = Span {
            start: u32::try_from(self.text.len()).map_err(too_much)?,
            length_bytes: u32::try_from(text.len()).map_err(too_much)?,
        };
        self.text.push_str(text);
        Ok(span)
    }

    /// Stores an integer, separately if it is large and values are kept.
    pub(super) fn add_integer(&mut self, integer: i128) -> Result<Value, Fault> {
        if let Ok(narrow) = i64::try_from(integer) {
            return Ok(Value::Integer(narrow));
        }
        if !self.keeps_values() {
            return Ok(Value::Scalar);
        }
        self.count::<i128>(1)?;
        let index = u32::try_from(self.integers.len())
            .map_err(|_| unknown!("the pickle holds too many integers to check"))?;
        self.integers.push(integer);
        Ok(Value::LargeInteger(IntegerId(index)))
    }

    /// Stores an object. Where values are not kept, one object of each kind stands for all.
    pub(super) fn add_object(&mut self, object: Object) -> Result<Value, Fault> {
        if !self.keeps_values()
            && let Some(index) = self
                .objects
                .iter()
                .position(|other| std::mem::discriminant(other) == std::mem::discriminant(&object))
        {
            return Ok(Value::Object(ObjectId(u32::try_from(index).unwrap_or_default())));
        }
        self.count::<Object>(1)?;
        match &object {
            Object::Call(_) => self.count::<Call>(1)?,
            Object::Tuple(elements) => self.count::<Value>(elements.len())?,
            _ => {}
        }
        let index = u32::try_from(self.objects.len())
            .map_err(|_| unknown!("the pickle holds too many objects to check"))?;
        self.objects.push(object);
        Ok(Value::Object(ObjectId(index)))
    }

    pub(super) fn object_mut(&mut self, value: Value) -> Option<&mut Object> {
        let Value::Object(ObjectId(index)) = value else {
            return None;
        };
        self.objects.get_mut(usize::try_from(index).ok()?)
    }
}
