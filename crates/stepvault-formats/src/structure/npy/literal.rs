//! The Python literal in an `.npy` header, parsed with its own grammar and never evaluated.

/// The maximum nesting: a dtype of dtypes of dtypes has a handful of levels.
const DEEPEST_NESTING: u32 = 16;

/// A literal of the few kinds that describe an array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Literal {
    Text(String),
    Number(u64),
    Truth(bool),
    Tuple(Vec<Literal>),
    List(Vec<Literal>),
    Dictionary(Vec<(Literal, Literal)>),
}

/// The position of a syntax error, and its reason.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Flaw {
    /// The offset in the text.
    pub(super) at: usize,
    pub(super) why: &'static str,
}

/// Parses a text that is one literal, surrounded only by white space.
pub(super) fn parse(text: &[u8]) -> Result<Literal, Flaw> {
    let mut parser = Parser { text, at: 0 };
    let literal = parser.literal(0)?;
    match parser.peek() {
        None => Ok(literal),
        Some(_) => Err(parser.flaw("something follows the description of the array")),
    }
}

struct Parser<'a> {
    text: &'a [u8],
    at: usize,
}

impl Parser<'_> {
    fn flaw(&self, why: &'static str) -> Flaw {
        Flaw { at: self.at, why }
    }

    fn peek(&mut self) -> Option<u8> {
        while self.next_byte().is_some_and(|byte| byte.is_ascii_whitespace()) {
            self.at += 1;
        }
        self.next_byte()
    }

    fn next_byte(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    /// Consumes the byte if it comes next.
    fn take(&mut self, byte: u8) -> bool {
        let comes = self.peek() == Some(byte);
        self.at += usize::from(comes);
        comes
    }

    fn word(&mut self, word: &str) -> bool {
        let comes = self.text.get(self.at..).is_some_and(|rest| rest.starts_with(word.as_bytes()));
        if comes {
            self.at += word.len();
        }
        comes
    }

    fn literal(&mut self, depth: u32) -> Result<Literal, Flaw> {
        if depth == DEEPEST_NESTING {
            return Err(self.flaw("the description is nested too deep"));
        }
        match self.peek() {
            Some(b'{') => self.dictionary(depth),
            Some(b'(') => self.tuple(depth),
            Some(b'[') => {
                self.at += 1;
                Ok(Literal::List(self.items(b']', depth)?.0))
            }
            Some(b'\'' | b'"') => self.string(),
            Some(b'0'..=b'9') => self.number(),
            // Python 2 wrote `u'...'`.
            Some(b'u') if matches!(self.text.get(self.at + 1), Some(b'\'' | b'"')) => {
                self.at += 1;
                self.string()
            }
            Some(b'T') if self.word("True") => Ok(Literal::Truth(true)),
            Some(b'F') if self.word("False") => Ok(Literal::Truth(false)),
            Some(_) => Err(self.flaw("this value cannot describe an array")),
            None => Err(self.flaw("the description ends in the middle")),
        }
    }

    fn dictionary(&mut self, depth: u32) -> Result<Literal, Flaw> {
        self.at += 1;
        let mut entries = Vec::new();
        while !self.take(b'}') {
            let key = self.literal(depth + 1)?;
            if !self.take(b':') {
                return Err(self.flaw("a colon is missing after a key"));
            }
            entries.push((key, self.literal(depth + 1)?));
            if !self.take(b',') && self.peek() != Some(b'}') {
                return Err(self.flaw("a comma is missing"));
            }
        }
        Ok(Literal::Dictionary(entries))
    }

    fn tuple(&mut self, depth: u32) -> Result<Literal, Flaw> {
        self.at += 1;
        let (mut items, ends_in_comma) = self.items(b')', depth)?;
        // `(3)` is a number in brackets, `(3,)` a tuple of one.
        match items.pop() {
            Some(only) if items.is_empty() && !ends_in_comma => Ok(only),
            last => {
                items.extend(last);
                Ok(Literal::Tuple(items))
            }
        }
    }

    fn items(&mut self, end: u8, depth: u32) -> Result<(Vec<Literal>, bool), Flaw> {
        let mut items = Vec::new();
        let mut ends_in_comma = false;
        while !self.take(end) {
            items.push(self.literal(depth + 1)?);
            ends_in_comma = self.take(b',');
            if !ends_in_comma && self.peek() != Some(end) {
                return Err(self.flaw("a comma is missing"));
            }
        }
        Ok((items, ends_in_comma))
    }

    fn string(&mut self) -> Result<Literal, Flaw> {
        let quote = self.next_byte();
        self.at += 1;
        let start = self.at;
        loop {
            match self.next_byte() {
                None | Some(b'\n') => return Err(self.flaw("a string does not end")),
                byte if byte == quote => break,
                // Escapes are not decoded: an escaped quote must only not end the string.
                Some(b'\\') => self.at += 2,
                Some(_) => self.at += 1,
            }
        }
        let text = self.text.get(start..self.at).unwrap_or_default();
        self.at += 1;
        Ok(Literal::Text(String::from_utf8_lossy(text).into_owned()))
    }

    fn number(&mut self) -> Result<Literal, Flaw> {
        let start = self.at;
        let mut number = 0_u64;
        while let Some(digit @ b'0'..=b'9') = self.next_byte() {
            number = number
                .checked_mul(10)
                .and_then(|number| number.checked_add(u64::from(digit - b'0')))
                .ok_or_else(|| self.flaw("a number is larger than any file"))?;
            self.at += 1;
        }
        if number > 0 && self.text.get(start) == Some(&b'0') {
            return Err(self.flaw("a number begins with a zero"));
        }
        // Python 2 wrote `3L` for a long.
        self.word("L");
        Ok(Literal::Number(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flaw(text: &str) -> (usize, &'static str) {
        let Flaw { at, why } = parse(text.as_bytes()).unwrap_err();
        (at, why)
    }

    #[test]
    fn reads_what_describes_an_array() {
        let text = |text: &str| Literal::Text(text.to_owned());
        assert_eq!(
            parse(b" {'shape': (3L, 5), \"descr\": [(u'a', '<f4', (2,))], 'fortran_order': False, } \n"),
            Ok(Literal::Dictionary(vec![
                (text("shape"), Literal::Tuple(vec![Literal::Number(3), Literal::Number(5)])),
                (
                    text("descr"),
                    Literal::List(vec![Literal::Tuple(vec![
                        text("a"),
                        text("<f4"),
                        Literal::Tuple(vec![Literal::Number(2)])
                    ])])
                ),
                (text("fortran_order"), Literal::Truth(false)),
            ]))
        );
        assert_eq!(parse(b"()"), Ok(Literal::Tuple(vec![])));
        assert_eq!(parse(b"(3)"), Ok(Literal::Number(3)));
        assert_eq!(parse(br"'a\'b'"), Ok(text(r"a\'b")));
    }

    #[test]
    fn refuses_everything_else() {
        assert_eq!(flaw(""), (0, "the description ends in the middle"));
        assert_eq!(flaw("{'a': 1"), (7, "a comma is missing"));
        assert_eq!(flaw("{'a' 1}"), (5, "a colon is missing after a key"));
        assert_eq!(flaw("('a' 'b')"), (5, "a comma is missing"));
        assert_eq!(flaw("{} {}"), (3, "something follows the description of the array"));
        assert_eq!(flaw("__import__('os')"), (0, "this value cannot describe an array"));
        assert_eq!(flaw("-1"), (0, "this value cannot describe an array"));
        assert_eq!(flaw("'abc"), (4, "a string does not end"));
        assert_eq!(flaw("'abc\\"), (6, "a string does not end"));
        assert_eq!(flaw("18446744073709551616"), (19, "a number is larger than any file"));
        assert_eq!(flaw(&"(".repeat(10_000)), (16, "the description is nested too deep"));
        assert_eq!(flaw("(2,03)"), (5, "a number begins with a zero"));
        assert_eq!(flaw("(,)"), (1, "this value cannot describe an array"));
    }
}
