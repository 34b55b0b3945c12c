//! The tokens of a line.

use rdmux_wire::Guid;

/// A line that is consumed from left to right. Each method consumes a token if the next one is of its kind.
#[derive(Clone, Copy)]
pub(super) struct Line<'a> {
    rest: &'a str,
}

impl<'a> Line<'a> {
    pub(super) fn new(line: &'a str) -> Self {
        Self { rest: line.trim() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Returns whether this text is next.
    pub(super) fn starts_with(&self, text: &str) -> bool {
        self.rest.starts_with(text)
    }

    /// Returns the next word, which error messages show.
    pub(super) fn token(&self) -> &'a str {
        self.rest.split_whitespace().next().unwrap_or("end of line")
    }

    /// Consumes the prefix `text`. Returns whether it was there.
    pub(super) fn skip(&mut self, text: &str) -> bool {
        match self.rest.strip_prefix(text) {
            Some(rest) => {
                self.rest = rest.trim_start();
                true
            }
            None => false,
        }
    }

    /// Consumes letters, digits and `_`.
    pub(super) fn word(&mut self) -> Option<&'a str> {
        let end = self.rest.find(|c: char| !c.is_alphanumeric() && c != '_');
        self.take(end.unwrap_or(self.rest.len()))
    }

    /// Consumes everything up to white space.
    pub(super) fn any(&mut self) -> Option<&'a str> {
        let end = self.rest.find(char::is_whitespace);
        self.take(end.unwrap_or(self.rest.len()))
    }

    /// Consumes a quoted text, without escapes.
    pub(super) fn quoted(&mut self) -> Option<&'a str> {
        self.between('"', '"')
    }

    /// Consumes a number in square brackets.
    pub(super) fn bracketed(&mut self) -> Option<u8> {
        let before = *self;
        let number = self.between('[', ']').and_then(|t| t.trim().parse().ok());
        self.or_back(before, number)
    }

    /// Consumes a hexadecimal number in round brackets.
    pub(super) fn guid_in_brackets(&mut self) -> Option<Guid> {
        let before = *self;
        let guid = self.between('(', ')').and_then(guid);
        self.or_back(before, guid)
    }

    /// Consumes a decimal number, or a hexadecimal one after `0x`.
    pub(super) fn number(&mut self) -> Option<u64> {
        let before = *self;
        let number = self.word().and_then(number);
        self.or_back(before, number)
    }

    /// Consumes a keyword and the `=` before its value. Returns the keyword.
    pub(super) fn assignment(&mut self) -> Option<&'a str> {
        let before = *self;
        let key = self.word().filter(|_| self.rest.starts_with('='));
        self.skip("=");
        self.or_back(before, key)
    }

    fn between(&mut self, open: char, close: char) -> Option<&'a str> {
        let (inside, rest) = self.rest.strip_prefix(open)?.split_once(close)?;
        self.rest = rest.trim_start();
        Some(inside)
    }

    fn take(&mut self, end: usize) -> Option<&'a str> {
        let (token, rest) = self.rest.split_at(end);
        self.rest = rest.trim_start();
        (!token.is_empty()).then_some(token)
    }

    fn or_back<T>(&mut self, before: Self, value: Option<T>) -> Option<T> {
        if value.is_none() {
            *self = before;
        }
        value
    }
}

/// Parses a decimal number, or a hexadecimal one after `0x`.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => hexadecimal(hex),
        None => text.parse().ok(),
    }
}

/// Parses a GUID: hexadecimal, with or without `0x`.
pub(super) fn guid(text: &str) -> Option<Guid> {
    let text = text.trim();
    hexadecimal(text.strip_prefix("0x").unwrap_or(text)).map(Guid)
}

fn hexadecimal(digits: &str) -> Option<u64> {
    // `from_str_radix` would accept a sign.
    let clean = digits.bytes().all(|b| b.is_ascii_hexdigit());
    clean.then(|| u64::from_str_radix(digits, 16).ok())?
}
