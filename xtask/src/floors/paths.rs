//! The modules of a crate, the paths that they import, and the module that a path resolves to.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{Placed, Source, Token};

/// The crate's modules by path; the root's path is empty.
#[derive(Debug, Default)]
pub(super) struct Modules {
    all: BTreeMap<Vec<String>, Module>,
    /// Inline modules, without a file of their own.
    inline: BTreeSet<Vec<String>>,
}

/// A module with its own file.
#[derive(Debug)]
pub(super) struct Module {
    pub(super) path: Vec<String>,
    /// The file, relative to the crate's source folder.
    pub(super) file: String,
    pub(super) imports: Vec<Import>,
}

/// A path in the code that refers to this crate.
#[derive(Debug)]
pub(super) struct Import {
    /// The path, starting with `crate`.
    pub(super) path: Vec<String>,
    pub(super) line: usize,
    /// The name that it defines in its module, if it is a `use`.
    name: Option<String>,
}

/// The most re-exports on the way to a definition.
const MOST_STEPS: usize = 8;

impl Modules {
    /// Parses files, given by name.
    pub(super) fn parse(files: &BTreeMap<String, String>) -> Self {
        let mut modules = Self::default();
        let sources: Vec<_> =
            files.iter().map(|(file, text)| (path_of(file), file, Source::parse(text))).collect();
        let known: BTreeSet<_> = sources.iter().map(|(path, ..)| path.clone()).collect();
        let tests: Vec<Vec<String>> = sources
            .iter()
            .flat_map(|(path, _, source)| source.test_modules.iter().map(|name| joined(path, name)))
            .collect();
        for (path, file, source) in sources {
            if tests.iter().any(|test| path.starts_with(test)) {
                continue;
            }
            let mut reader = Reader::new(&known, path.clone());
            reader.read(&source.tokens);
            modules.inline.extend(reader.inline);
            let module = Module { path: path.clone(), file: file.clone(), imports: reader.imports };
            modules.all.insert(path, module);
        }
        modules
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Module> {
        self.all.values()
    }

    /// Returns whether there is a module with this path.
    pub(super) fn has(&self, path: &str) -> bool {
        self.all.contains_key(&path.split("::").map(str::to_owned).collect::<Vec<_>>())
    }

    /// Returns the module that a path starting with `crate` resolves to, through re-exports.
    pub(super) fn resolve(&self, path: &[String]) -> Vec<String> {
        let mut path = path.to_vec();
        for _ in 0..MOST_STEPS {
            let rest = path.get(1..).unwrap_or_default();
            let len = (0..=rest.len()).rev().find(|len| self.is_module(&rest[..*len])).unwrap_or(0);
            let (module, below) = rest.split_at(len);
            let exported = below.first().and_then(|name| {
                let imports = &self.all.get(module)?.imports;
                imports.iter().find(|import| import.name.as_ref() == Some(name))
            });
            match exported {
                Some(import) => {
                    path = import.path.iter().chain(&below[1..]).cloned().collect();
                }
                None => return module.to_vec(),
            }
        }
        path.split_off(1)
    }

    fn is_module(&self, path: &[String]) -> bool {
        self.all.contains_key(path) || self.inline.contains(path)
    }
}

/// Returns the module path of a file: `a/b.rs` and `a/b/mod.rs` are `a::b`.
fn path_of(file: &str) -> Vec<String> {
    let name = file.strip_suffix(".rs").unwrap_or(file);
    let mut path: Vec<_> = name.split('/').map(str::to_owned).collect();
    let last = path.last().map(String::as_str);
    if last == Some("mod") || path.len() == 1 && matches!(last, Some("lib" | "main")) {
        path.pop();
    }
    path
}

fn joined(path: &[String], name: &str) -> Vec<String> {
    path.iter().cloned().chain([name.to_owned()]).collect()
}

/// Reads a file's tokens.
#[derive(Debug)]
struct Reader<'a> {
    known: &'a BTreeSet<Vec<String>>,
    /// The module being read.
    at: Vec<String>,
    /// The brace depths at which inline modules end.
    ends: Vec<usize>,
    depth: usize,
    imports: Vec<Import>,
    inline: BTreeSet<Vec<String>>,
}

impl<'a> Reader<'a> {
    /// Starts in the body of the module `at`.
    fn new(known: &'a BTreeSet<Vec<String>>, at: Vec<String>) -> Self {
        let (ends, imports, inline) = Default::default();
        Self { known, at, ends, depth: 0, imports, inline }
    }

    fn read(&mut self, tokens: &[Placed]) {
        let mut n = 0;
        while let Some((token, line)) = tokens.get(n) {
            let rest = &tokens[n..];
            n += match (token, rest.get(1).map(|(t, _)| t), rest.get(2).map(|(t, _)| t)) {
                (Token::Word(word), Some(Token::Word(name)), Some(Token::Sign('{')))
                    if word == "mod" =>
                {
                    self.at.push(name.clone());
                    self.inline.insert(self.at.clone());
                    self.ends.push(self.depth);
                    self.depth += 1;
                    3
                }
                // In a type, `use<'a>` lists captures.
                (Token::Word(word), next, _)
                    if word == "use" && next != Some(&Token::Sign('<')) =>
                {
                    1 + self.import(&rest[1..], &mut Vec::new())
                }
                (Token::Word(_), Some(Token::Colons), _) => self.inline_path(rest, *line),
                (Token::Sign(sign), ..) => {
                    self.brace(*sign);
                    1
                }
                _ => 1,
            };
        }
    }

    fn brace(&mut self, sign: char) {
        match sign {
            '{' => self.depth += 1,
            '}' => {
                self.depth = self.depth.saturating_sub(1);
                if self.ends.last() == Some(&self.depth) {
                    self.ends.pop();
                    self.at.pop();
                }
            }
            _ => {}
        }
    }

    /// Reads a tree of imports after `prefix`, up to its end. Returns the number of its tokens.
    fn import(&mut self, tokens: &[Placed], prefix: &mut Vec<String>) -> usize {
        let before = prefix.len();
        let mut name = None;
        let mut n = 0;
        while let Some((token, line)) = tokens.get(n) {
            match token {
                Token::Word(word) if word == "as" => {
                    name = tokens.get(n + 1).and_then(|(t, _)| t.word()).map(str::to_owned);
                    n += 1;
                }
                Token::Word(word) => {
                    prefix.push(word.clone());
                    name = Some(word.clone());
                }
                Token::Sign('*') => name = None,
                Token::Sign('{') => {
                    n += 1;
                    while tokens.get(n).is_some_and(|(t, _)| !t.is('}')) {
                        n += self.import(&tokens[n..], prefix);
                        n += usize::from(tokens.get(n).is_some_and(|(t, _)| t.is(',')));
                    }
                    prefix.truncate(before);
                    return n + 1;
                }
                Token::Sign(',' | ';' | '}') => {
                    self.add(prefix, *line, name);
                    prefix.truncate(before);
                    return n;
                }
                _ => {}
            }
            n += 1;
        }
        n
    }

    /// Reads a path in the code. Returns the number of its tokens.
    fn inline_path(&mut self, tokens: &[Placed], line: usize) -> usize {
        let mut path = Vec::new();
        let mut n = 0;
        while let Some(word) = tokens.get(n).and_then(|(t, _)| t.word()) {
            path.push(word.to_owned());
            n += 1;
            if tokens.get(n).is_none_or(|(t, _)| *t != Token::Colons) {
                break;
            }
            n += 1;
        }
        self.add(&path, line, None);
        n
    }

    /// Records a path, if it refers to this crate.
    fn add(&mut self, path: &[String], line: usize, name: Option<String>) {
        let mut path = path.to_vec();
        let mut name = name;
        if path.last().is_some_and(|last| last == "self") && path.len() > 1 {
            path.pop();
            name = name.filter(|n| n != "self").or_else(|| path.last().cloned());
        }
        let Some(path) = self.absolute(&path) else { return };
        // Only names of the file's own module are looked up from other files.
        let name = name.filter(|_| self.ends.is_empty());
        self.imports.push(Import { path, line, name });
    }

    /// Returns a path as one starting with `crate`.
    fn absolute(&self, path: &[String]) -> Option<Vec<String>> {
        let (first, rest) = path.split_first()?;
        let mut from = vec!["crate".to_owned()];
        match first.as_str() {
            "crate" => {}
            "self" => from.extend(self.at.iter().cloned()),
            "super" => {
                let ups = path.iter().take_while(|word| *word == "super").count();
                let kept = self.at.len().checked_sub(ups)?;
                from.extend(self.at[..kept].iter().cloned());
                from.extend(path[ups..].iter().cloned());
                return Some(from);
            }
            name => {
                // An imported module, or a child module. Other names were seen when they were imported.
                let module = |i: &&Import| self.known.contains(&i.path[1..]);
                let imported = self.imports.iter().filter(module);
                let imported = { imported }.find(|i| i.name.as_deref() == Some(name));
                let child = joined(&self.at, name);
                if let Some(import) = imported {
                    from.clone_from(&import.path);
                } else if self.known.contains(&child) || self.inline.contains(&child) {
                    from.extend(child);
                } else {
                    return None;
                }
            }
        }
        from.extend(rest.iter().cloned());
        Some(from)
    }
}
