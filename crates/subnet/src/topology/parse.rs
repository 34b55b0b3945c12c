//! The parser of topology files.

use alloc::string::{String, ToString as _};
use alloc::vec;
use alloc::vec::Vec;

use rdmux_wire::Guid;

use super::error::{ParseError, Place, Rule};
use super::model::{NodeKind, PortRef, Topology};
use super::names::{Names, Remote};
use super::rate::LinkRate;
use super::scan::{self, Line};
use super::{MAX_DEPTH, MAX_FILES, MAX_TEXT};

/// A file that a topology includes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Included {
    /// The name for errors, and for `open` when this file includes others.
    pub name: String,
    /// The contents.
    pub text: String,
}

/// Opens the file that another file, given by its name, includes under some name, or returns the reason why it cannot.
type Open<'a> = dyn FnMut(&str, &str) -> Result<Included, String> + 'a;

impl Topology {
    /// Parses the output format of `ibnetdiscover`, which `ibsim` reads. Text after `#` is parsed if it has their form
    /// (descriptions, LIDs, rates) and is a comment otherwise. A cable may be listed at only one of its ends. A text that
    /// includes files is refused: see [`parse_with`](Self::parse_with).
    ///
    /// ```
    /// # use rdmux_subnet::Topology;
    /// let text = "Switch 8 \"S-1\" # \"spine\"\n[1] \"H-1\"[1]\n\nHca 1 \"H-1\" # \"node1\"\n";
    /// let topology = Topology::parse(text).expect("a good file");
    /// assert_eq!(topology.nodes[1].description, "node1");
    /// assert_eq!(topology.links().count(), 1);
    /// ```
    ///
    /// # Errors
    /// [`ParseError`] has the line, the token and the rule.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let why = "included files cannot be read here";
        Self::parse_with(text, &mut |_, _| Err(why.to_string()))
    }

    /// Parses a text with the files that it includes. `open` gets the name of the including file (as in [`Included::name`];
    /// empty for `text` itself) and the name to include, and returns that file, or the reason why it cannot be read.
    ///
    /// ```
    /// # use rdmux_subnet::topology::{Included, Topology};
    /// let text = "module=\"a\"\ninclude \"pair\"\nmodule=\"b\"\ninclude \"pair\"\ndo Link \"a@up\" \"b@up\"\n";
    /// let pair = "Switch 2 \"sw\"\n[1] \"node\"\n@[2] \"up\"\n\nCa 1 \"node\"\n[1] \"sw\"\n";
    /// let mut open = |_: &str, name: &str| {
    ///     Ok(Included { name: name.to_owned(), text: pair.to_owned() })
    /// };
    /// let topology = Topology::parse_with(text, &mut open).expect("a good file");
    /// assert_eq!(topology.nodes[2].id, "b#sw");
    /// assert_eq!(topology.links().count(), 3);
    /// ```
    ///
    /// # Errors
    /// [`ParseError`] has the file, the line, the token and the rule.
    pub fn parse_with(
        text: &str,
        open: &mut dyn FnMut(&str, &str) -> Result<Included, String>,
    ) -> Result<Self, ParseError> {
        let mut reader = Reader::new(text.len());
        reader.text(text, open)?;
        reader.finish()
    }
}

/// The attribute lines before a node's line.
#[derive(Default)]
pub(super) struct Attributes {
    pub(super) vendor_id: u32,
    pub(super) device_id: u16,
    pub(super) system_guid: Option<Guid>,
    pub(super) port0_guid: Option<Guid>,
}

/// A line, with the index of its file.
#[derive(Clone, Copy, Default)]
pub(super) struct At {
    pub(super) file: usize,
    pub(super) line: usize,
}

/// A cable as one of its ends or `do Link` describes it.
pub(super) struct Cable {
    pub(super) at: At,
    pub(super) from: PortRef,
    pub(super) to: Remote,
    /// The rate, if the line has one.
    pub(super) rate: Option<LinkRate>,
}

/// The origin of a node's GUID.
#[derive(Clone, Copy)]
pub(super) enum Origin {
    /// Set by a keyword.
    Given(Guid),
    /// Part of the node's name, as in files of `ibnetdiscover`.
    InName(Guid),
    /// Assigned after that of the last node of its kind.
    Next,
}

/// The state of parsing a text with the files that it includes.
pub(super) struct Reader {
    pub(super) topology: Topology,
    /// The names of the opened files; the first is the text itself.
    pub(super) files: Vec<String>,
    pub(super) at: At,
    depth: usize,
    /// The number of bytes read.
    length: usize,
    pub(super) attributes: Attributes,
    /// For each kind of node: the GUID of the next one, and the base of relative GUIDs.
    pub(super) guids: [(Option<Guid>, Guid); 3],
    /// Whether port lines are allowed, which belong to the last node.
    pub(super) open: bool,
    pub(super) all_ports: usize,
    /// Width, speed and extended speed for the lines that follow.
    pub(super) masks: [Option<u8>; 3],
    pub(super) names: Names,
    pub(super) cables: Vec<Cable>,
    /// The origin of each node's GUID.
    pub(super) origins: Vec<(Origin, At)>,
    /// GUIDs that commands assign to nodes or their ports.
    pub(super) commanded: Vec<(At, usize, Option<u8>, Guid)>,
}

/// The first automatic GUID of each kind of node, as in ibsim, which has none for routers.
pub(super) const FIRST_GUIDS: [Guid; 3] = [Guid(0x10_0000), Guid(0x20_0000), Guid(0x30_0000)];

/// Returns the index of a kind in lists.
pub(super) fn place_of(kind: NodeKind) -> usize {
    usize::from(kind.code() - 1)
}

impl Reader {
    fn new(length: usize) -> Self {
        Self {
            topology: Topology::default(),
            files: vec![String::new()],
            at: At::default(),
            depth: 0,
            length,
            attributes: Attributes::default(),
            guids: FIRST_GUIDS.map(|first| (None, first)),
            open: false,
            all_ports: 0,
            masks: [None; 3],
            names: Names::default(),
            cables: Vec::new(),
            origins: Vec::new(),
            commanded: Vec::new(),
        }
    }

    fn text(&mut self, text: &str, open: &mut Open<'_>) -> Result<(), ParseError> {
        for (index, line) in text.lines().enumerate() {
            self.at.line = index + 1;
            self.line(line, open)?;
        }
        Ok(())
    }

    fn line(&mut self, text: &str, open: &mut Open<'_>) -> Result<(), ParseError> {
        let mut line = Line::new(text);
        if line.is_empty() {
            self.open = false;
            return Ok(());
        }
        match text.trim_start().as_bytes()[0] {
            b'#' => {
                self.port_without_cable(line);
                Ok(())
            }
            b'[' => self.port(line),
            b'@' => self.alias(line),
            _ => match line.assignment() {
                Some(key) => self.keyword(key, line, text),
                None => self.word(line, open),
            },
        }
    }

    fn word(&mut self, mut line: Line<'_>, open: &mut Open<'_>) -> Result<(), ParseError> {
        let start = line;
        let kind = match line.word() {
            Some("Switch") => NodeKind::Switch,
            Some("Ca" | "Hca") => NodeKind::Ca,
            Some("Rt") => NodeKind::Router,
            Some("include") => return self.include(line, open),
            Some("do") => {
                self.open = false;
                return self.command(line);
            }
            Some(key) if line.skip("+") => return self.relative_guid(key, line, start),
            _ => return Err(self.error(start, Rule::Line)),
        };
        self.node(kind, start, line)
    }

    /// Processes `include "file"`. It ends a node, and so does the end of the file.
    fn include(&mut self, mut line: Line<'_>, open: &mut Open<'_>) -> Result<(), ParseError> {
        let at = line;
        let name = line.quoted().filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| self.error(at, Rule::Include))?;
        if self.depth == MAX_DEPTH || self.files.len() > MAX_FILES {
            return Err(self.error(at, Rule::TooManyFiles));
        }
        let file = open(&self.files[self.at.file], name);
        let Included { name, text } = file.map_err(|why| self.error(at, Rule::Included(why)))?;
        self.length = self.length.saturating_add(text.len());
        if self.length > MAX_TEXT {
            return Err(self.error(at, Rule::TooManyFiles));
        }
        let within = self.at;
        self.files.push(name);
        self.at = At { file: self.files.len() - 1, line: 0 };
        (self.open, self.depth) = (false, self.depth + 1);
        self.text(&text, open)?;
        (self.open, self.depth) = (false, self.depth - 1);
        self.at = within;
        Ok(())
    }

    fn keyword(&mut self, key: &str, mut line: Line<'_>, text: &str) -> Result<(), ParseError> {
        match key {
            "vendid" => self.attributes.vendor_id = self.value(&mut line, "vendid", 0xff_ffff)?,
            "devid" => self.attributes.device_id = self.value(&mut line, "devid", 0xffff)?,
            "width" | "speed" | "extspeed" => {
                let at = ["width", "speed", "extspeed"].iter().position(|k| *k == key);
                self.masks[at.unwrap_or_default()] = Some(self.value(&mut line, "a mask", 31)?);
            }
            "sysimgguid" => self.attributes.system_guid = Some(self.guid(&mut line)?),
            "module" => {
                self.open = false;
                let at = line;
                let set = line.quoted().is_some_and(|name| self.names.set_module(name));
                if !set {
                    return Err(self.error(at, Rule::Module));
                }
            }
            _ => {
                let Some(kind) = kind_of(key) else {
                    return Err(self.error(Line::new(text), Rule::Keyword));
                };
                let guid = self.guid(&mut line)?;
                self.guids[kind] = (Some(guid), guid);
                self.attributes.port0_guid = line.guid_in_brackets();
            }
        }
        Ok(())
    }

    fn guid(&self, line: &mut Line<'_>) -> Result<Guid, ParseError> {
        let at = *line;
        let guid = line.word().and_then(scan::guid);
        guid.ok_or_else(|| self.error(at, Rule::Number("a GUID", u64::MAX)))
    }

    /// Parses `caguid+5`: a GUID relative to the base of its kind.
    fn relative_guid(
        &mut self,
        key: &str,
        mut line: Line<'_>,
        start: Line<'_>,
    ) -> Result<(), ParseError> {
        let kind = kind_of(key).ok_or_else(|| self.error(start, Rule::Keyword))?;
        let more = self.value::<u64>(&mut line, "a GUID", u64::MAX)?;
        let (next, base) = &mut self.guids[kind];
        *next = Some(Guid(base.0.wrapping_add(more)));
        Ok(())
    }

    /// Parses a number of at most `most`.
    pub(super) fn value<T: TryFrom<u64>>(
        &self,
        line: &mut Line<'_>,
        what: &'static str,
        most: u64,
    ) -> Result<T, ParseError> {
        let at = *line;
        let number = line.number().filter(|n| *n <= most).and_then(|n| T::try_from(n).ok());
        number.ok_or_else(|| self.error(at, Rule::Number(what, most)))
    }

    pub(super) fn place(&self, at: At) -> Place {
        Place { file: self.files[at.file].clone(), line: at.line }
    }

    pub(super) fn error(&self, at: Line<'_>, rule: Rule) -> ParseError {
        self.error_at(self.at, at.token(), rule)
    }

    pub(super) fn error_at(&self, at: At, token: &str, rule: Rule) -> ParseError {
        ParseError { place: self.place(at), token: token.chars().take(64).collect(), rule }
    }
}

/// Returns the kind of node for which a keyword sets the GUID.
fn kind_of(key: &str) -> Option<usize> {
    let kind = match key {
        "switchguid" => NodeKind::Switch,
        "caguid" | "hcaguid" | "hcaguids" => NodeKind::Ca,
        "rtguid" => NodeKind::Router,
        _ => return None,
    };
    Some(place_of(kind))
}
