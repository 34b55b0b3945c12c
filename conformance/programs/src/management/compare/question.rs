//! A request to administration, its answer, and the difference of two answers.

use std::fmt::{self, Write as _};

use rdmux_wire::SmKey;
use rdmux_wire::mad::Method;
use rdmux_wire::rmpp::{RmppFlags, RmppType};
use rdmux_wire::sa::{Record, SaMad};

use super::differences;

/// A request.
#[derive(Clone, Debug)]
pub(super) struct Question {
    /// Its name in reports.
    name: String,
    pub(super) method: Method,
    pub(super) attr_id: u16,
    pub(super) modifier: u32,
    key: SmKey,
    pub(super) mask: u64,
    pub(super) data: Vec<u8>,
    /// Whether the request lacks the RMPP header that GetMulti must have.
    plain: bool,
    /// Whether administration is expected not to answer: the timeout is then short.
    pub(super) silent: bool,
}

impl Question {
    pub(super) fn new(name: impl Into<String>, method: Method, attr_id: u16) -> Self {
        Self {
            name: name.into(),
            method,
            attr_id,
            modifier: 0,
            key: SmKey(0),
            mask: 0,
            data: Vec::new(),
            plain: false,
            silent: false,
        }
    }

    /// Returns the same request from another requester.
    pub(super) fn by(self, who: &str) -> Self {
        Self { name: format!("{who}: {}", self.name), ..self }
    }

    /// Returns the request with a record and the mask of the components that count.
    pub(super) fn with(self, mask: u64, data: &[u8]) -> Self {
        Self { mask, data: data.to_vec(), ..self }
    }

    /// Sets the attribute modifier.
    pub(super) fn modifier(self, modifier: u32) -> Self {
        Self { modifier, ..self }
    }

    /// Sets the SM_Key.
    pub(super) fn key(self, key: u64) -> Self {
        Self { key: SmKey(key), ..self }
    }

    /// Omits the RMPP header.
    pub(super) fn plain(self) -> Self {
        Self { plain: true, ..self }
    }

    /// Marks the request as one that gets no answer.
    pub(super) fn silent(self) -> Self {
        Self { silent: true, ..self }
    }

    /// Returns whether the requester shows the SA key.
    pub(super) fn is_trusted(&self) -> bool {
        self.key.0 == 1
    }

    /// Returns whether the request changes nothing.
    pub(super) fn reads(&self) -> bool {
        matches!(self.method, Method::GET | Method::GET_TABLE)
    }

    /// Returns whether one of these components is requested.
    pub(super) fn has(&self, mask: u64) -> bool {
        self.mask & mask != 0
    }

    /// Returns whether the request has this name.
    pub(super) fn is(&self, name: &str) -> bool {
        self.name == name
    }

    /// Returns the datagram.
    pub(super) fn mad(&self, tid: u64) -> Vec<u8> {
        let mut mad = SaMad::new(self.method, self.attr_id, &self.data);
        (mad.header.tid, mad.header.attr_mod) = (tid, self.modifier);
        (mad.sa.component_mask, mad.sa.sm_key) = (self.mask, self.key);
        if self.method == Method::GET_MULTI && !self.plain {
            (mad.rmpp.version, mad.rmpp.kind, mad.rmpp.flags) =
                (1, RmppType::DATA, RmppFlags::ACTIVE);
        }
        mad.to_bytes().to_vec()
    }
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let record = Record::name_of(self.attr_id).unwrap_or("unknown attribute");
        let Self { name, method, mask, .. } = self;
        write!(f, "{method:?} {record} ({:#x}), mask {mask:#x}: {name}", self.attr_id)
    }
}

/// An answer, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// No answer.
    Silence,
    /// A datagram, or a message of several.
    Came {
        method: Method,
        status: u16,
        /// The distance between records, in units of 8 bytes.
        offset: u16,
        /// The records; in a refusal the data of one datagram.
        records: Vec<Vec<u8>>,
    },
}

impl Answer {
    /// Parses a message.
    pub(super) fn parse(bytes: &[u8]) -> anyhow::Result<Self> {
        let mad = SaMad::parse(bytes)?;
        let (method, status) = (mad.header.method, mad.header.status);
        let offset = mad.sa.attribute_offset;
        let is_table =
            matches!(method, Method::GET_TABLE_RESP | Method::GET_MULTI_RESP) && status == 0;
        let records = if is_table {
            let distance = usize::from(offset) * 8;
            // A remainder shorter than one record is padding of the last datagram.
            mad.data.chunks_exact(distance.max(1)).map(<[u8]>::to_vec).collect()
        } else {
            vec![mad.data.to_vec()]
        };
        let records = if is_table && offset == 0 { Vec::new() } else { records };
        Ok(Self::Came { method, status, offset, records })
    }

    /// Returns the records, if the request was not refused.
    pub(super) fn records(&self) -> &[Vec<u8>] {
        match self {
            Self::Came { status: 0, records, .. } => records,
            _ => &[],
        }
    }

    /// Keeps only some records.
    pub(super) fn retain(&mut self, keep: impl Fn(&[u8]) -> bool) {
        if let Self::Came { records, .. } = self {
            records.retain(|record| keep(record));
        }
    }

    /// Changes each record.
    pub(super) fn change(&mut self, change: impl Fn(&mut [u8])) {
        if let Self::Came { records, .. } = self {
            records.iter_mut().for_each(|record| change(record));
        }
    }

    /// Returns the answer's status.
    pub(super) fn status(&self) -> Option<u16> {
        match self {
            Self::Silence => None,
            Self::Came { status, .. } => Some(*status),
        }
    }

    /// Returns the answer with `clear` applied to each record.
    pub(super) fn without(&self, clear: impl Fn(&mut [u8])) -> Self {
        let mut answer = self.clone();
        if let Self::Came { records, .. } = &mut answer {
            records.iter_mut().for_each(|record| clear(record));
            records.sort_unstable();
        }
        answer
    }

    /// Returns the answer without the fields that depend on the manager's place and on time, and with sorted records.
    pub(super) fn of(&self, question: &Question) -> Self {
        let mut answer = self.clone();
        if let Self::Came { status: 0, records, .. } = &mut answer {
            for record in records.iter_mut() {
                differences::hide(question, record);
            }
            records.sort_unstable();
        }
        answer
    }
}

/// Describes how two answers differ: what only OpenSM has and what only rdmux has, field by field where possible.
pub(super) fn difference(question: &Question, theirs: &Answer, ours: &Answer) -> String {
    let mut text = format!("  OpenSM: {}\n  ours:   {}\n", told(theirs), told(ours));
    let only = |these: &Answer, those: &Answer| -> Vec<Vec<u8>> {
        let those = those.all();
        these.all().iter().filter(|record| !those.contains(record)).take(2).cloned().collect()
    };
    let (theirs, ours) = (only(theirs, ours), only(ours, theirs));
    for n in 0..theirs.len().max(ours.len()) {
        let field = |record: Option<&Vec<u8>>| record.map(|r| fields(question, r));
        let (theirs, ours) = (field(theirs.get(n)), field(ours.get(n)));
        match (theirs, ours) {
            (Some(theirs), Some(ours)) => {
                for (theirs, ours) in theirs.iter().zip(&ours).filter(|(a, b)| a != b) {
                    let _ = writeln!(text, "  {theirs} | {ours}");
                }
            }
            (Some(record), None) => {
                let _ = writeln!(text, "  only OpenSM: {}", record.join(", "));
            }
            (None, Some(record)) => {
                let _ = writeln!(text, "  only ours: {}", record.join(", "));
            }
            (None, None) => {}
        }
    }
    text
}

impl Answer {
    fn all(&self) -> &[Vec<u8>] {
        match self {
            Self::Silence => &[],
            Self::Came { records, .. } => records,
        }
    }
}

fn told(answer: &Answer) -> String {
    match answer {
        Answer::Silence => "silence".to_owned(),
        Answer::Came { method, status, offset, records } => {
            format!("{method:?}, status {status:#06x}, offset {offset}, {} records", records.len())
        }
    }
}

/// Returns the fields of a record; its bytes if they have no names.
fn fields(question: &Question, record: &[u8]) -> Vec<String> {
    let attr_id = question.answered_by();
    let mut all = Vec::new();
    match Record::parse(attr_id, record) {
        Ok(Some(parsed)) => {
            parsed.fields(&mut |name, value| all.push(format!("{name} {value}")));
            // Reserved fields are shown only if they are not zero.
            all.push(format!("bytes {record:02x?}"));
        }
        _ => all.push(format!("{record:02x?}")),
    }
    all
}

impl Question {
    /// Returns the attribute of the answer's records.
    fn answered_by(&self) -> u16 {
        use rdmux_wire::sa::{MultiPathRecord, PathRecord};
        match self.attr_id {
            MultiPathRecord::ATTR_ID => PathRecord::ATTR_ID,
            other => other,
        }
    }
}
