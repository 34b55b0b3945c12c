//! The management datagram of a packet to QP0 or QP1.

use std::fmt;

use rdmux_wire::cm::{CmMad, Message};
use rdmux_wire::layout::Visit;
use rdmux_wire::mad::{MadHeader, Method, MgmtClass};
use rdmux_wire::pm::{self, PmMad};
use rdmux_wire::sa::{self, SaMad};
use rdmux_wire::smp::Smp;
use rdmux_wire::{Rmpp, WireError, rmpp, sm};
use serde::Serialize;
use serde_json::{Map, Value};

/// A datagram to QP0 or QP1.
#[derive(Debug, Clone, Copy)]
pub(super) enum Mad<'a> {
    /// A message of the connection manager.
    Cm(CmMad),
    /// A datagram of subnet management.
    Smp(Smp),
    /// A datagram of subnet administration.
    Sa(SaMad<'a>),
    /// A datagram of performance management.
    Pm(PmMad),
    /// A datagram of another class, or one of the connection manager's class that is not a message; with the RMPP header if the
    /// class has one that is in use.
    Other(MadHeader, Option<Rmpp>),
}

/// Returns whether a datagram of the connection manager's class is a message. Others get or set an attribute, such as
/// ClassPortInfo, or have an unknown one.
fn is_message(header: &MadHeader) -> bool {
    header.method == Method::SEND && Message::is_known(header.attr_id)
}

impl<'a> Mad<'a> {
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let header = MadHeader::parse(bytes)?;
        match header.mgmt_class {
            MgmtClass::COMM if is_message(&header) => CmMad::parse(bytes).map(Self::Cm),
            MgmtClass::SUBN_LID | MgmtClass::SUBN_DIRECTED => Smp::parse(bytes).map(Self::Smp),
            MgmtClass::SUBN_ADM => SaMad::parse(bytes).map(Self::Sa),
            MgmtClass::PERF => PmMad::parse(bytes).map(Self::Pm),
            class if class.has_rmpp() => {
                let rmpp = Rmpp::parse(bytes.get(rmpp::OFFSET..).unwrap_or_default())?;
                Ok(Self::Other(header, rmpp.is_active().then_some(rmpp)))
            }
            _ => Ok(Self::Other(header, None)),
        }
    }

    /// Returns the datagram's kind, for counting.
    pub(super) fn kind(&self) -> String {
        let named = |class: &str, header: &MadHeader| {
            let MadHeader { method, attr_id, .. } = header;
            match self.attribute() {
                Some(attribute) => format!("{class} {method} {attribute}"),
                None => format!("{class} {method} attr {attr_id:#06x}"),
            }
        };
        match self {
            Self::Cm(mad) => format!("CM {}", mad.message.name()),
            Self::Smp(smp) => named("SMP", &smp.header),
            Self::Sa(mad) => named("SubnAdm", &mad.header),
            Self::Pm(mad) => named("Perf", &mad.header),
            Self::Other(header, _) => format!("MAD {}", header.mgmt_class),
        }
    }

    /// Returns the name of the connection manager's message.
    pub(super) fn cm(&self) -> Option<&'static str> {
        if let Self::Cm(mad) = self { Some(mad.message.name()) } else { None }
    }

    fn attribute(&self) -> Option<&'static str> {
        match self {
            Self::Smp(smp) => sm::Attribute::name_of(smp.header.attr_id),
            Self::Sa(mad) => sa::Record::name_of(mad.header.attr_id),
            Self::Pm(mad) => pm::Attribute::name_of(mad.header.attr_id),
            Self::Cm(_) | Self::Other(..) => None,
        }
    }

    fn header(&self) -> MadHeader {
        match self {
            Self::Cm(mad) => mad.header(),
            Self::Smp(smp) => smp.header,
            Self::Sa(mad) => mad.header,
            Self::Pm(mad) => mad.header,
            Self::Other(header, _) => *header,
        }
    }

    /// Visits the fields of the attribute, if there is exactly one.
    fn fields(&self, visit: Visit<'_>) {
        match self {
            Self::Smp(smp) if smp.header.method != Method::GET => {
                if let Some(attribute) = smp.attribute() {
                    attribute.fields(visit);
                }
            }
            Self::Pm(mad) => {
                if let Some(attribute) = mad.attribute() {
                    attribute.fields(visit);
                }
            }
            Self::Sa(mad) if !mad.rmpp.is_active() => {
                if let Ok(Some(record)) = sa::Record::parse(mad.header.attr_id, mad.data) {
                    record.fields(visit);
                }
            }
            _ => {}
        }
    }
}

impl fmt::Display for Mad<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cm(mad) => mad.fmt(f),
            Self::Smp(smp) => {
                smp.fmt(f)?;
                fmt_trap(f, smp)
            }
            Self::Sa(mad) => mad.fmt(f),
            Self::Pm(mad) => mad.fmt(f),
            Self::Other(header, None) => header.fmt(f),
            Self::Other(header, Some(rmpp)) => write!(f, "{header} {rmpp}"),
        }
    }
}

/// Formats the details of a notice.
fn fmt_trap(f: &mut fmt::Formatter<'_>, smp: &Smp) -> fmt::Result {
    let Some(sm::Attribute::Notice(notice)) = smp.attribute() else { return Ok(()) };
    match notice.trap() {
        Some(trap) if smp.header.method != Method::GET => write!(f, ": {trap}"),
        _ => Ok(()),
    }
}

/// A management datagram as a JSON object.
#[derive(Serialize)]
pub(super) struct JsonMad {
    class: String,
    method: String,
    status: u16,
    /// A string, because a number would lose some of its bits.
    tid: String,
    attribute_id: u16,
    attribute_modifier: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    attribute: Option<&'static str>,
    /// The attribute's fields as in the text. A repeated name gets a number, as in `lid_2`.
    #[serde(skip_serializing_if = "Map::is_empty")]
    fields: Map<String, Value>,
}

impl JsonMad {
    pub(super) fn new(mad: &Mad<'_>) -> Self {
        let header = mad.header();
        let mut fields = Map::new();
        mad.fields(&mut |name, value| {
            let mut key = name.to_owned();
            for n in 2.. {
                if !fields.contains_key(&key) {
                    break;
                }
                key = format!("{name}_{n}");
            }
            fields.insert(key, value.to_string().into());
        });
        Self {
            class: header.mgmt_class.to_string(),
            method: header.method.to_string(),
            status: header.status,
            tid: format!("{:#018x}", header.tid),
            attribute_id: header.attr_id,
            attribute_modifier: header.attr_mod,
            attribute: mad.attribute(),
            fields,
        }
    }
}
