//! Tokens of a Rust file, as far as paths need them: without comments, literals and test modules.

/// A token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// An identifier or a keyword.
    Word(String),
    /// `::`.
    Colons,
    /// Any other character.
    Sign(char),
}

impl Token {
    pub(super) fn is(&self, sign: char) -> bool {
        *self == Self::Sign(sign)
    }
    pub(super) fn is_word(&self, word: &str) -> bool {
        matches!(self, Self::Word(w) if w == word)
    }
    pub(super) fn word(&self) -> Option<&str> {
        if let Self::Word(word) = self { Some(word) } else { None }
    }
}

/// A token with its line.
pub(super) type Placed = (Token, usize);

/// The contents of a file without its tests.
#[derive(Debug, Default)]
pub(super) struct Source {
    pub(super) tokens: Vec<Placed>,
    /// The modules with their own files that are only for tests.
    pub(super) test_modules: Vec<String>,
}

impl Source {
    pub(super) fn parse(text: &str) -> Self {
        let all = tokens(text);
        let mut source = Self::default();
        let mut at = 0;
        while at < all.len() {
            if !is_for_tests(&all[at..]) {
                source.tokens.push(all[at].clone());
                at += 1;
                continue;
            }
            let end = at + item(&all[at..]);
            if let [.., (Token::Word(keyword), _), (Token::Word(name), _), (Token::Sign(';'), _)] =
                &all[at..end]
                && keyword == "mod"
            {
                source.test_modules.push(name.clone());
            }
            at = end;
        }
        source
    }
}

/// Returns whether `#[cfg(test)]` or a similar attribute is next.
fn is_for_tests(rest: &[Placed]) -> bool {
    let [(hash, _), (open, _), (cfg, _), (paren, _), ..] = rest else { return false };
    if !(hash.is('#') && open.is('[') && cfg.is_word("cfg") && paren.is('(')) {
        return false;
    }
    let condition = rest.iter().map(|(token, _)| token).take_while(|token| !token.is(']'));
    let words: Vec<_> = condition.filter_map(Token::word).collect();
    words.contains(&"test") && !words.contains(&"not") && !words.contains(&"any")
}

/// Returns the number of tokens of an item with its attributes.
fn item(rest: &[Placed]) -> usize {
    let mut depth = 0_usize;
    for (n, (token, _)) in rest.iter().enumerate() {
        match token {
            Token::Sign('{' | '(' | '[') => depth += 1,
            Token::Sign(')' | ']') => depth = depth.saturating_sub(1),
            // The closing brace of the enclosing item.
            Token::Sign('}') if depth == 0 => return n,
            Token::Sign('}') => {
                depth -= 1;
                // The braces of an import do not end it.
                let ends = rest.get(n + 1).is_none_or(|(next, _)| !next.is(';'));
                if depth == 0 && ends {
                    return n + 1;
                }
            }
            Token::Sign(';') if depth == 0 => return n + 1,
            _ => {}
        }
    }
    rest.len()
}

/// Returns all tokens.
fn tokens(text: &str) -> Vec<Placed> {
    let chars: Vec<char> = text.chars().collect();
    let (mut at, mut line) = (0, 1);
    let mut tokens = Vec::new();
    while at < chars.len() {
        let rest = &chars[at..];
        let (token, len) = next(rest);
        if let Some(token) = token {
            tokens.push((token, line));
        }
        line += rest[..len].iter().filter(|c| **c == '\n').count();
        at += len;
    }
    tokens
}

/// Returns the token at the beginning, if there is one, and the number of characters consumed.
fn next(rest: &[char]) -> (Option<Token>, usize) {
    match rest {
        ['/', '/', ..] => (None, count(rest, |c| c != '\n')),
        ['/', '*', ..] => (None, block_comment(rest)),
        ['"', ..] => (None, string(rest)),
        ['b' | 'c', '"', ..] => (None, 1 + string(&rest[1..])),
        ['r', '"' | '#', ..] if raw_string(&rest[1..]).is_some() => {
            (None, 1 + raw_string(&rest[1..]).unwrap_or(0))
        }
        ['b' | 'c', 'r', '"' | '#', ..] if raw_string(&rest[2..]).is_some() => {
            (None, 2 + raw_string(&rest[2..]).unwrap_or(0))
        }
        ['\'', '\\', _, after @ ..] => (None, 4 + count(after, |c| c != '\'')),
        ['\'', _, '\'', ..] => (None, 3),
        [':', ':', ..] => (Some(Token::Colons), 2),
        [c, ..] if c.is_alphanumeric() || *c == '_' => {
            let len = count(rest, |c| c.is_alphanumeric() || c == '_');
            (Some(Token::Word(rest[..len].iter().collect())), len)
        }
        [c, ..] if c.is_whitespace() => (None, 1),
        [c, ..] => (Some(Token::Sign(*c)), 1),
        [] => (None, 0),
    }
}

fn count(chars: &[char], of: impl Fn(char) -> bool) -> usize {
    chars.iter().take_while(|c| of(**c)).count()
}

/// Returns the length of a block comment, which may be nested.
fn block_comment(rest: &[char]) -> usize {
    let (mut at, mut depth) = (0, 0);
    while at < rest.len() {
        match &rest[at..] {
            ['/', '*', ..] => (at, depth) = (at + 2, depth + 1),
            ['*', '/', ..] => (at, depth) = (at + 2, depth - 1),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

/// Returns the length of a string, including quotation marks.
fn string(rest: &[char]) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != '"' {
        at += if rest[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(rest.len())
}

/// Returns the length of a raw string, from its first `#` or quotation mark; none for a raw identifier.
fn raw_string(rest: &[char]) -> Option<usize> {
    let hashes = count(rest, |c| c == '#');
    if rest.get(hashes) != Some(&'"') {
        return None;
    }
    let body = &rest[hashes + 1..];
    let ends = |at: &usize| body[*at] == '"' && count(&body[at + 1..], |c| c == '#') >= hashes;
    let end = (0..body.len()).find(ends)?;
    Some(hashes + 1 + end + 1 + hashes)
}
