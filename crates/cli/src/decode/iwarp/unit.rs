//! Start-up frames and FPDUs, as they are printed and counted.

use std::fmt;

use rdmux_wire::WireError;
use rdmux_wire::iwarp::ddp::{Header, Model, Tagged, Untagged};
use rdmux_wire::iwarp::fpdu::Fpdu;
use rdmux_wire::iwarp::mpa::Kind;
use rdmux_wire::iwarp::rdmap::{AtomicRequest, AtomicResponse, Immediate, Opcode, ReadRequest};
use rdmux_wire::iwarp::terminate::Terminate;
use serde::Serialize;

/// A separate element of a stream.
#[derive(Debug)]
pub(in super::super) enum Unit {
    /// A start-up frame.
    Startup {
        kind: Kind,
        text: String,
    },
    Frame(Box<FrameUnit>),
    /// A frame of this many bytes, too few of which were captured to parse it.
    Cut(usize),
    /// Invalid bytes, after which the stream is not followed any more.
    Broken(WireError),
    /// The stream is not followed any more, because bytes were not captured.
    Lost,
}

/// An FPDU.
#[derive(Debug)]
pub(in super::super) struct FrameUnit {
    pub(super) header: Result<Header, WireError>,
    /// The payload's length, in bytes.
    payload: usize,
    /// The description of the payload, if it is RDMAP's.
    says: String,
    pub(in super::super) check: Check,
    /// The number of markers in it.
    markers: usize,
    /// Whether the frame is the ready-to-receive frame.
    rtr: bool,
}

/// The result of the CRC check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Check {
    Right,
    Wrong {
        found: u32,
        right: u32,
    },
    /// There is no CRC, by agreement.
    None,
    /// Parts of the frame were not captured, or the agreement was not.
    Unchecked,
}

impl FrameUnit {
    /// The length of the part of an ULPDU that may be parsed.
    const HEAD: usize = Header::MAX_LEN + AtomicRequest::LEN;

    /// Parses an FPDU. `captured`: the captured part of the ULPDU. `starting`: whether it may report an error of
    /// MPA's reply.
    pub(super) fn parse(
        fpdu: &Fpdu<'_>,
        captured: usize,
        check: Check,
        rtr: bool,
        starting: bool,
    ) -> Result<Self, WireError> {
        let (head, len) = fpdu.head::<{ FrameUnit::HEAD }>();
        let head = &head[..len.min(captured)];
        let header = Header::parse(head);
        if let (Err(error), Check::Right | Check::None | Check::Unchecked) = (header, check) {
            return Err(error);
        }
        let header_len = header.map_or(0, |header| header.len());
        let says = match header {
            Ok(header) => says(header.opcode, &head[header_len..], starting)?,
            Err(_) => String::new(),
        };
        let markers = fpdu.markers_len() / rdmux_wire::iwarp::markers::LEN;
        let payload = fpdu.ulpdu_len - header_len;
        Ok(Self { header, payload, says, check, markers, rtr })
    }
}

/// Describes RDMAP's own payloads; programs' payloads are not described.
fn says(opcode: Opcode, payload: &[u8], starting: bool) -> Result<String, WireError> {
    Ok(match opcode {
        Opcode::ReadRequest => ReadRequest::parse(payload)?.to_string(),
        Opcode::AtomicRequest => AtomicRequest::parse(payload)?.to_string(),
        Opcode::AtomicResponse => AtomicResponse::parse(payload)?.to_string(),
        Opcode::Immediate | Opcode::ImmediateSolicited => Immediate::parse(payload)?.to_string(),
        Opcode::Terminate if starting => Terminate::parse(payload)?.to_string(),
        Opcode::Terminate => Terminate::parse(payload)?.on_open_stream().to_string(),
        _ => String::new(),
    })
}

impl Unit {
    /// Returns the unit's kind, for counting.
    pub(in super::super) fn kind(&self) -> Option<String> {
        match self {
            Self::Startup { kind, .. } => Some(format!("MPA {kind}")),
            Self::Frame(unit) => unit.header.ok().map(|header| header.opcode.to_string()),
            Self::Cut(_) | Self::Broken(_) | Self::Lost => None,
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Startup { text, .. } => f.write_str(text),
            Self::Frame(unit) => unit.fmt(f),
            Self::Cut(len) => write!(f, "frame of {len}, cut short"),
            Self::Broken(error) => write!(f, "UNDECODABLE iWARP: {error}"),
            Self::Lost => f.write_str("not followed further, bytes were not captured"),
        }
    }
}

impl fmt::Display for FrameUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.header {
            Ok(header) => header.fmt(f)?,
            Err(error) => error.fmt(f)?,
        }
        if self.says.is_empty() {
            write!(f, " payload {}", self.payload)?;
        } else {
            write!(f, " {}", self.says)?;
        }
        if self.rtr {
            f.write_str(" (ready to receive)")?;
        }
        if self.markers > 0 {
            write!(f, " markers {}", self.markers)?;
        }
        match self.check {
            Check::Right | Check::None => Ok(()),
            Check::Wrong { found, right } => {
                write!(f, " CRC WRONG: {found:08x}, should be {right:08x}")
            }
            Check::Unchecked => f.write_str(" (CRC not checked)"),
        }
    }
}

/// A unit as a JSON object. Absent fields are omitted.
#[derive(Serialize)]
pub(in super::super) struct JsonUnit {
    /// Its kind: a start-up frame, an opcode, or an error.
    what: String,
    text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    last: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stag: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    qn: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    msn: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mo: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    crc: Option<&'static str>,
}

impl JsonUnit {
    pub(in super::super) fn new(unit: &Unit) -> Self {
        let what = unit.kind().unwrap_or_else(|| match unit {
            Unit::Cut(_) => "cut_short".into(),
            Unit::Lost => "lost".into(),
            _ => "undecodable".into(),
        });
        let mut json = Self {
            what,
            text: unit.to_string(),
            last: None,
            stag: None,
            to: None,
            qn: None,
            msn: None,
            mo: None,
            payload: None,
            crc: None,
        };
        let Unit::Frame(frame) = unit else { return json };
        json.payload = Some(frame.payload);
        json.crc = Some(match frame.check {
            Check::Right => "right",
            Check::Wrong { .. } => "wrong",
            Check::None => "none",
            Check::Unchecked => "unchecked",
        });
        match frame.header.map(|header| header.model) {
            Ok(Model::Tagged(Tagged { last, stag, to })) => {
                (json.last, json.stag, json.to) = (Some(last), Some(stag.0), Some(to));
            }
            Ok(Model::Untagged(Untagged { last, qn, msn, mo, .. })) => {
                json.last = Some(last);
                (json.qn, json.msn, json.mo) = (Some(qn), Some(msn), Some(mo));
            }
            Err(_) => {}
        }
        json
    }
}
