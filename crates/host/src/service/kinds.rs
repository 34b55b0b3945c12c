//! Chooses the device of an id that may use several: one whose kind the destination listens on.
//!
//! The address alone does not determine it, because all devices of a host have the same addresses. For this host the connection
//! manager knows the listeners. Another host's service is queried by a datagram of a vendor class to QP1 over RoCE, which every
//! host has. A host without rdmux refuses the class or does not answer; then the first kind is used, as without the query.
//!
//! The query and its answer (MAD class 0x4f, version 1, attribute 0x0010; offsets from the start of the datagram):
//!
//! | offset | bytes | contents |
//! |---|---|---|
//! | 37 | 3 | OUI |
//! | 40 | 2 | port space |
//! | 42 | 2 | port |
//! | 44 | 16 | address, as a GID |
//! | 60 | 4 | in the answer: a bit for each kind, from the lowest |

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use rdmux_cm::{IdHandle, MadPath, PortSpace, RouteQuery, Time};
use rdmux_transport::attr::{QpType, TransportType};
use rdmux_verbs::control::DeviceKind;
use rdmux_verbs::kind;
use rdmux_wire::mad::{MAD_LEN, MadHeader, Method, MgmtClass};
use rdmux_wire::{Gid, Qkey};

use super::core::Core;
use super::counters::Count;
use super::ports;

/// The class: a vendor class with an OUI, which is locally administered (IEEE 802c).
const CLASS: MgmtClass = MgmtClass(0x4f);
const CLASS_VERSION: u8 = 1;
const OUI: [u8; 3] = [0x02, 0x72, 0x64];
const ATTR_ID: u16 = 0x0010;

/// The number of times that the query is sent, and the time that an answer may take each time.
const TRIES: u8 = 3;
const PAUSE: Duration = Duration::from_millis(50);
/// The time for which a host that did not answer is not queried again, and the number of such hosts that are remembered.
const SILENCE: Duration = Duration::from_secs(10);
const MAX_SILENT: usize = 1024;
/// Maximum number of outstanding queries.
const MAX_OPEN: usize = 4096;

mod field {
    pub(super) const OUI: usize = 37;
    pub(super) const PORT_SPACE: usize = 40;
    pub(super) const PORT: usize = 42;
    pub(super) const ADDRESS: usize = 44;
    pub(super) const KINDS: usize = 60;
}

/// A query or an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Listening {
    tid: u64,
    /// Whether the datagram is an answer of the other host's service, rather than a refusal of the class.
    is_answer: bool,
    space: PortSpace,
    at: SocketAddr,
    kinds: u32,
}

impl Listening {
    /// Parses a datagram. None if it is something else.
    fn parse(mad: &[u8]) -> Option<Self> {
        let mad: &[u8; MAD_LEN] = mad.try_into().ok()?;
        let header = MadHeader::parse(mad).ok()?;
        let is_ours = header.mgmt_class == CLASS
            && header.class_version == CLASS_VERSION
            && header.attr_id == ATTR_ID
            && header.status == 0
            && mad[field::OUI..][..3] == OUI;
        let is_answer = match header.method {
            Method::GET => false,
            Method::GET_RESP => true,
            _ => return None,
        };
        let word = |at: usize| u16::from_be_bytes([mad[at], mad[at + 1]]);
        let address = Gid(*mad[field::ADDRESS..].first_chunk()?);
        Some(Self {
            tid: header.tid,
            is_answer,
            space: PortSpace::from_code(word(field::PORT_SPACE))?,
            at: SocketAddr::new(address.ip(), word(field::PORT)),
            kinds: u32::from_be_bytes(*mad[field::KINDS..].first_chunk()?),
        })
        .filter(|_| is_ours)
    }

    fn to_bytes(self) -> [u8; MAD_LEN] {
        let method = if self.is_answer { Method::GET_RESP } else { Method::GET };
        let header = MadHeader::new(CLASS, CLASS_VERSION, method);
        let header = MadHeader { tid: self.tid, attr_id: ATTR_ID, ..header };
        let mut mad = [0; MAD_LEN];
        mad[..MadHeader::LEN].copy_from_slice(&header.to_bytes());
        let mut put = |at: usize, bytes: &[u8]| mad[at..][..bytes.len()].copy_from_slice(bytes);
        put(field::OUI, &OUI);
        put(field::PORT_SPACE, &self.space.code().to_be_bytes());
        put(field::PORT, &self.at.port().to_be_bytes());
        put(field::ADDRESS, &Gid::from(self.at.ip()).0);
        put(field::KINDS, &self.kinds.to_be_bytes());
        mad
    }
}

/// The outstanding queries.
#[derive(Debug, Default)]
pub(super) struct Kinds {
    open: BTreeMap<u64, Open>,
    /// Hosts that did not answer, and the times until which they are not queried.
    silent: BTreeMap<IpAddr, Time>,
    last_tid: u64,
}

/// A query that was sent and not answered yet.
#[derive(Clone, Copy, Debug)]
struct Open {
    id: IdHandle,
    query: RouteQuery,
    src: IpAddr,
    asked: u8,
    next: Time,
}

impl Kinds {
    /// Drops the queries of an id that stopped resolving.
    pub(super) fn forget(&mut self, id: IdHandle) {
        self.open.retain(|_, open| open.id != id);
    }

    /// Returns the time at which a query must be sent again or given up.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.open.values().map(|open| open.next).min()
    }
}

impl Core {
    /// Chooses a device for an id that may have several, now or after the peer's host has reported where it listens.
    pub(super) fn choose_kind(&mut self, id: IdHandle, query: &RouteQuery) {
        let dst = query.dst;
        if self.candidates(query).nth(1).is_none() || dst.ip().is_multicast() {
            return self.find_peer_by(id, query, u32::MAX);
        }
        if self.addresses.find(dst.ip()).is_some() {
            let devices = self.manager.listening_devices(query.port_space, dst);
            return self.find_peer_by(id, query, bits(devices));
        }
        let now = self.now();
        self.kinds.silent.retain(|_, until| *until > now);
        let is_silent = self.kinds.silent.contains_key(&dst.ip());
        match self.source(query) {
            Ok(src) if !is_silent && self.kinds.open.len() < MAX_OPEN => {
                self.kinds.last_tid += 1;
                let tid = self.kinds.last_tid;
                let open = Open { id, query: *query, src, asked: 0, next: now };
                self.kinds.open.insert(tid, open);
                self.ask_again(tid);
            }
            _ => self.find_peer_by(id, query, u32::MAX),
        }
    }

    /// Returns the kinds by which an id could reach a peer, in their order.
    fn candidates(&self, query: &RouteQuery) -> impl Iterator<Item = DeviceKind> + use<> {
        let has_link = self.adapter.has_link();
        let may_stream = query.may_stream;
        let fits = move |kind: &DeviceKind| match kind.transport_type() {
            TransportType::Iwarp => may_stream,
            TransportType::Ib => !kind.is_on_fabric() || has_link,
        };
        let all = kind::rows().iter().filter(|row| row.services.include(QpType::Rc));
        all.map(|row| row.kind).filter(fits)
    }

    /// Resolves a peer over the first candidate among these kinds, or over the first of all if none is a candidate.
    fn find_peer_by(&mut self, id: IdHandle, query: &RouteQuery, kinds: u32) {
        let listens = |kind: &DeviceKind| kinds >> *kind as u32 & 1 != 0;
        let chosen = self.candidates(query).find(listens);
        let kind = chosen.or_else(|| self.candidates(query).next()).unwrap_or_default();
        ports::of(kind).find_peer(self, id, kind, query);
    }

    /// Sends a query once more.
    fn ask_again(&mut self, tid: u64) {
        let now = self.now();
        let Some(open) = self.kinds.open.get_mut(&tid) else { return };
        if open.asked == TRIES {
            let open = *open;
            self.kinds.open.remove(&tid);
            if self.kinds.silent.len() < MAX_SILENT {
                self.kinds.silent.insert(open.query.dst.ip(), now.after(SILENCE));
            }
            return self.find_peer_by(open.id, &open.query, u32::MAX);
        }
        open.asked += 1;
        open.next = now.after(PAUSE);
        let RouteQuery { dst, port_space: space, .. } = open.query;
        let question = Listening { tid, is_answer: false, space, at: dst, kinds: 0 };
        let path = MadPath::between(open.src, dst.ip());
        ports::of(DeviceKind::Roce).send_mad(self, &path, Qkey::QP1, &question.to_bytes());
    }

    /// Repeats the queries that were not answered.
    pub(super) fn poll_kinds(&mut self, now: Time) {
        let due = self.kinds.open.iter().filter(|(_, open)| open.next <= now);
        let due: Vec<u64> = due.map(|(&tid, _)| tid).collect();
        for tid in due {
            self.ask_again(tid);
        }
    }

    /// Handles a datagram to QP1 if it is a query of this protocol, an answer, or a refusal. Returns whether it was
    /// one.
    pub(super) fn process_kinds(&mut self, path: &MadPath, mad: &[u8]) -> bool {
        let Ok(header) = MadHeader::parse(mad) else { return false };
        if header.mgmt_class != CLASS {
            return false;
        }
        let is_from = |open: &Open| open.query.dst.ip() == path.remote().ip();
        let message = Listening::parse(mad);
        match message {
            Some(question) if !question.is_answer => {
                let devices = self.manager.listening_devices(question.space, question.at);
                let answer = Listening { is_answer: true, kinds: bits(devices), ..question };
                self.counts.add(Count::KindsAnswered);
                let back = MadPath::between(path.local.ip(), path.remote().ip());
                let back = MadPath { remote_qpn: path.remote_qpn, ..back };
                ports::of(DeviceKind::Roce).send_mad(self, &back, Qkey::QP1, &answer.to_bytes());
                true
            }
            // A response to a program's request of the same class may have the same number, but not this service's TID.
            _ if header.method.is_response() => {
                let open = self.kinds.open.get(&header.tid).copied().filter(is_from);
                let Some(open) = open else { return message.is_some() };
                self.kinds.open.remove(&header.tid);
                let kinds = message.map_or(u32::MAX, |answer| answer.kinds);
                self.find_peer_by(open.id, &open.query, kinds);
                true
            }
            _ => false,
        }
    }
}

/// Makes the bit mask of these devices.
fn bits(devices: Vec<u32>) -> u32 {
    devices.into_iter().filter(|device| *device < 32).fold(0, |bits, device| bits | 1 << device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_and_answers_are_read_as_they_were_written() {
        for at in ["10.0.0.1:7174", "[fd00::1]:1"] {
            let question = Listening {
                tid: 7,
                is_answer: false,
                space: PortSpace::Tcp,
                at: at.parse().unwrap(),
                kinds: 5,
            };
            for message in [question, Listening { is_answer: true, ..question }] {
                assert_eq!(Listening::parse(&message.to_bytes()), Some(message));
            }
            // Base version, class, class version, method, status, attribute, OUI, port space.
            for byte in [0, 1, 2, 3, 5, 17, 38, 40] {
                let mut mad = question.to_bytes();
                mad[byte] ^= 0x40;
                assert_eq!(Listening::parse(&mad), None, "byte {byte}");
            }
            assert_eq!(Listening::parse(&question.to_bytes()[1..]), None);
        }
        assert_eq!(bits(vec![0, 2, 77]), 5);
    }
}
