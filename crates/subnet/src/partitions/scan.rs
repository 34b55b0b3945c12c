//! The scanner: words and the punctuation between them, with their lines.

use super::parse::{ParseError, Rule};

/// Characters that end a word.
const PUNCTUATION: [char; 5] = ['=', ',', ':', ';', '#'];

/// The remaining text of a file.
#[derive(Clone, Debug)]
pub(super) struct Scanner<'a> {
    name: &'a str,
    rest: &'a str,
    line: u32,
}

impl<'a> Scanner<'a> {
    pub(super) fn new(name: &'a str, text: &'a str) -> Self {
        Self { name, rest: text, line: 1 }
    }

    /// Returns an error about a token on the present line.
    pub(super) fn error(&self, token: &str, rule: Rule) -> ParseError {
        ParseError::new(self.name, self.line, token, rule)
    }

    /// Skips spaces and comments, and also line ends if `lines` is set.
    pub(super) fn skip(&mut self, lines: bool) {
        loop {
            let space = |c: char| c.is_whitespace() && c != '\n';
            self.rest = self.rest.trim_start_matches(space);
            if self.rest.starts_with('#') {
                self.rest = &self.rest[self.rest.find('\n').unwrap_or(self.rest.len())..];
            }
            match self.rest.strip_prefix('\n') {
                Some(rest) if lines => {
                    self.rest = rest;
                    self.line += 1;
                }
                _ => return,
            }
        }
    }

    /// Returns whether the text ends here, except for blanks and comments.
    pub(super) fn is_at_end(&mut self) -> bool {
        self.skip(true);
        self.rest.is_empty()
    }

    /// Returns whether the line ends here.
    pub(super) fn is_at_line_end(&mut self) -> bool {
        self.skip(false);
        self.rest.is_empty() || self.rest.starts_with('\n')
    }

    /// Consumes a character if it is next. Returns whether it was.
    pub(super) fn take(&mut self, c: char) -> bool {
        self.skip(true);
        match self.rest.strip_prefix(c) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    /// Returns the next word, which may be empty.
    pub(super) fn word(&mut self) -> &'a str {
        self.skip(true);
        self.until(|c| PUNCTUATION.contains(&c) || c.is_whitespace())
    }

    /// Returns a name, which may have spaces inside.
    pub(super) fn name(&mut self) -> &'a str {
        self.skip(true);
        self.until(|c| PUNCTUATION.contains(&c) || c == '\n').trim_end()
    }

    /// Returns a word that may have colons.
    pub(super) fn gid(&mut self) -> &'a str {
        self.skip(false);
        self.until(|c| c.is_whitespace() || matches!(c, ',' | ';' | '#' | '='))
    }

    /// Returns the next word or character, for an error.
    pub(super) fn next_token(&self) -> &'a str {
        let mut ahead = self.clone();
        let word = ahead.word();
        let first = ahead.rest.chars().next().map_or(0, char::len_utf8);
        if word.is_empty() { &ahead.rest[..first] } else { word }
    }

    fn until(&mut self, ends: impl Fn(char) -> bool) -> &'a str {
        let (word, rest) = self.rest.split_at(self.rest.find(ends).unwrap_or(self.rest.len()));
        self.rest = rest;
        word
    }
}
