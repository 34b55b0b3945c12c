//! Writes by programs.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem;

use rdmux_wire::Rmpp;
use rdmux_wire::mad::{MAD_LEN, MadHeader, Method, MgmtClass};

use super::address::{Envelope, Peer};
use super::sends::{Body, Pending, Responses, SendId, Transaction};
use super::{AgentNumber, Errno, File, FileId, MAX_AGENTS, Ports, Umad, UmadSink, UserMad};
use crate::Time;
use crate::directed;
use crate::rmpp::{Mad, Sender, TransferId};

/// The least that a program must write: MAD header and RMPP header.
const SHORTEST: usize = rdmux_wire::rmpp::OFFSET + Rmpp::LEN;

const METHOD: usize = 3;
const TID: usize = 8;
const ATTR_MOD: usize = 20;

/// How an accepted write is executed.
struct Plan {
    agent: AgentNumber,
    envelope: Envelope,
    transaction: Transaction,
    /// The peer whose limits a response counts towards; none for a request.
    share: Option<Peer>,
    /// The initial window, if it is sent in segments.
    segments: Option<u32>,
}

impl Umad {
    /// Sends a program's MAD or message.
    ///
    /// A request gets the agent's number in the upper half of its TID. A response and TrapRepress are sent unchanged. A MAD
    /// of fewer than 256 bytes is padded with zeros. An agent with RMPP sends a message of any length when the flag
    /// [`ACTIVE`](rdmux_wire::RmppFlags::ACTIVE) is set in its RMPP header; the rest of that header is ignored. With
    /// `timeout_ms` 0 nothing is returned, unless a message in segments is not acknowledged.
    ///
    /// # Errors
    /// [`Errno::Inval`]: fewer than 36 bytes; more than 256 without RMPP; an agent above 31; a P_Key or GID index that the
    /// port's tables do not have; no GID on a port without LIDs; a directed route whose first hop is not this port; a request
    /// with the TID and class of an outstanding one, or a response that is outstanding to the same peer. [`Errno::Io`]: no
    /// such agent, or the port is gone. [`Errno::NoMem`]: too much is outstanding, see [`Config`](super::Config).
    /// [`Errno::BadF`]: no such file.
    pub fn write(
        &mut self,
        now: Time,
        file: FileId,
        mut mad: UserMad,
        ports: &impl Ports,
        sink: &mut impl UmadSink,
    ) -> Result<(), Errno> {
        let plan = self.plan(file, &mad, ports)?;
        mad.data[TID..TID + 8].copy_from_slice(&plan.transaction.tid.to_be_bytes());
        let data = mem::take(&mut mad.data);
        mad.data = data[..MadHeader::LEN].to_vec();
        let open = self.files.get_mut(&file).ok_or(Errno::BadF)?;
        match body(data, &mad, plan.segments) {
            Body::Single(single) if mad.timeout_ms == 0 => {
                self.counters.sent += 1;
                sink.transmit(open.port, plan.envelope.packet(single));
            }
            body => {
                let Plan { agent, envelope, transaction, share, .. } = plan;
                let pending = Pending::new(transaction, share, agent, mad, envelope, body);
                let id = open.sends.insert(pending);
                self.start(now, file, id, sink);
                self.settle(file);
            }
        }
        Ok(())
    }

    /// Checks whether [`Umad::write`] would accept a record.
    ///
    /// # Errors
    /// As for [`Umad::write`].
    pub fn check_write(
        &self,
        file: FileId,
        mad: &UserMad,
        ports: &impl Ports,
    ) -> Result<(), Errno> {
        self.plan(file, mad, ports).map(drop)
    }

    fn plan(&self, file: FileId, mad: &UserMad, ports: &impl Ports) -> Result<Plan, Errno> {
        let open = self.files.get(&file).ok_or(Errno::BadF)?;
        let slot = usize::try_from(mad.agent).unwrap_or(usize::MAX);
        if mad.data.len() < SHORTEST || slot >= MAX_AGENTS {
            return Err(Errno::Inval);
        }
        let number = open.agents[slot].filter(|_| !open.gone).ok_or(Errno::Io)?;
        let agent = self.agents.get(&number).ok_or(Errno::Io)?;
        let envelope = Envelope::outgoing(open.port, agent.qpn(), &mad.address, ports)?;
        let written = Written::new(&mad.data);
        let is_directed = written.class == MgmtClass::SUBN_DIRECTED.0;
        if is_directed && !directed::may_write(&mad.data, open.port.number) {
            return Err(Errno::Inval);
        }
        let active = written.is_active_rmpp();
        let in_segments = active && agent.what.reassembles();
        if !in_segments && mad.data.len() > MAD_LEN {
            return Err(Errno::Inval);
        }
        let transaction = Transaction {
            class: written.class,
            response: written.response,
            tid: if written.response { written.tid } else { with_agent(written.tid, number) },
            peer: envelope.peer(),
        };
        let by_itself = active && !in_segments;
        if !by_itself && is_outstanding(open, &transaction) {
            return Err(Errno::Inval);
        }
        let share = transaction.peer.share(envelope.dlid, open.port, ports);
        let share = written.response.then_some(share);
        if in_segments || mad.timeout_ms > 0 {
            self.has_room(open, share, mad.data.len())?;
        }
        let segments = in_segments.then(|| first_window(open, number, &envelope, &written));
        Ok(Plan { agent: number, envelope, transaction, share, segments })
    }

    fn has_room(&self, open: &File, share: Option<Peer>, len: usize) -> Result<(), Errno> {
        let (config, len) = (&self.config, len.max(MAD_LEN));
        let fits = open.sends.len() < config.outstanding
            && open.sends.bytes().saturating_add(len) <= config.bytes;
        let fits_peer = share.is_none_or(|share| {
            let Responses { count, bytes } = open.sends.responses_to(share);
            count < config.responses_to_peer && bytes.saturating_add(len) <= config.bytes_to_peer
        });
        if fits && fits_peer { Ok(()) } else { Err(Errno::NoMem) }
    }

    /// Transmits a send for the first time.
    fn start(&mut self, now: Time, file: FileId, id: SendId, sink: &mut impl UmadSink) {
        let Some(open) = self.files.get_mut(&file) else { return };
        let Some(pending) = open.sends.get_mut(id) else { return };
        if let Body::Single(mad) = &pending.body {
            let packet = pending.envelope.packet(mad.clone());
            let at = now.after(pending.timeout);
            open.sends.wake_at(id, at);
            self.counters.sent += 1;
            sink.transmit(open.port, packet);
        } else {
            self.send_segments(now, file, id, sink);
        }
    }

    /// Sends the segments of a message that the window allows.
    pub(super) fn send_segments(
        &mut self,
        now: Time,
        file: FileId,
        id: SendId,
        sink: &mut impl UmadSink,
    ) {
        let Some(open) = self.files.get_mut(&file) else { return };
        let Some(pending) = open.sends.get_mut(id) else { return };
        let envelope = pending.envelope;
        let Some(sender) = pending.sending() else { return };
        while let Some(mad) = sender.poll_segment(now) {
            self.counters.sent += 1;
            sink.transmit(open.port, envelope.packet(mad));
        }
        let at = sender.deadline();
        open.sends.wake_at(id, at);
    }
}

/// The relevant part of a record that a program wrote.
struct Written {
    class: u8,
    method: u8,
    tid: u64,
    response: bool,
    rmpp: Rmpp,
}

impl Written {
    /// Parses at least [`SHORTEST`] bytes.
    fn new(data: &[u8]) -> Self {
        let mut head = [0; MAD_LEN];
        head[..SHORTEST].copy_from_slice(&data[..SHORTEST]);
        let mut tid = [0; 8];
        tid.copy_from_slice(&head[TID..TID + 8]);
        let (class, method) = (head[1], head[METHOD]);
        Self {
            class,
            method,
            tid: u64::from_be_bytes(tid),
            response: is_response(MgmtClass(class), Method(method), head[ATTR_MOD + 3]),
            rmpp: Rmpp::of(&head),
        }
    }

    fn is_active_rmpp(&self) -> bool {
        Rmpp::data_offset(MgmtClass(self.class)).is_some() && self.rmpp.is_active()
    }
}

/// Returns whether a MAD is an answer, whose TID is that of the request. Baseboard management marks answers in bit 0 of the
/// attribute modifier; `modifier` is its last byte.
pub(super) fn is_response(class: MgmtClass, method: Method, modifier: u8) -> bool {
    method.is_response()
        || method == Method::TRAP_REPRESS
        || class == MgmtClass::BM && modifier & 1 != 0
}

/// Returns a program's TID with the number of its agent in the upper half.
fn with_agent(tid: u64, agent: AgentNumber) -> u64 {
    u64::from(agent) << 32 | tid & 0xffff_ffff
}

fn is_outstanding(open: &File, wanted: &Transaction) -> bool {
    if wanted.response {
        open.sends.of(*wanted).next().is_some()
    } else {
        open.sends.with_tid(wanted.class, false, wanted.tid).next().is_some()
    }
}

/// Returns the initial window of a response whose request came in segments; otherwise 1.
fn first_window(open: &File, agent: AgentNumber, to: &Envelope, written: &Written) -> u32 {
    let id = TransferId {
        peer: (agent, to.peer()),
        qpn: to.dst_qpn,
        tid: written.tid,
        class: written.class,
        method: written.method & !Method::RESPONSE_BIT,
    };
    if written.response { open.incoming.turned(&id) } else { 1 }
}

fn body(data: Vec<u8>, of: &UserMad, segments: Option<u32>) -> Body {
    let wait = core::time::Duration::from_millis(of.timeout_ms.into());
    match segments {
        Some(window) => Body::Segments(Sender::new(data, window, wait, of.retries)),
        None => {
            let mut mad: Box<Mad> = Box::new([0; MAD_LEN]);
            mad[..data.len()].copy_from_slice(&data);
            Body::Single(mad)
        }
    }
}
