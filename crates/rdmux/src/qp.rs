//! Queue pairs.

use std::fmt;
use std::sync::Arc;

use rdmux_transport::attr::{Access, AttrMask, MigState, QpAttr, QpCaps, QpState, QpType};
use rdmux_transport::wr::RecvWr;
use rdmux_verbs as verbs;
use rdmux_verbs::device::PORT;
use rdmux_wire::{Gid, Lid, Qpn};

use crate::error::{Attempt, Cause, Error, Result};
use crate::{Ah, Context, Cq, Pd, SendWr, Sge, Srq};

/// A builder of a queue pair, returned by [`Pd::qp`].
///
/// ```
/// # use rdmux::{Context, QpType};
/// # fn main() -> rdmux::Result<()> {
/// # let context = Context::builder().embedded().open()?;
/// let pd = context.pd();
/// let cq = context.cq(128)?;
/// let qp = pd.qp(QpType::Rc).cq(&cq).max_send_wr(64).max_recv_wr(64).build()?;
/// # let _ = qp; Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is created before `build`"]
pub struct QpBuilder {
    pd: Pd,
    qp_type: QpType,
    send_cq: Option<Cq>,
    recv_cq: Option<Cq>,
    srq: Option<Srq>,
    caps: QpCaps,
    signal_all: bool,
    port: u8,
}

impl QpBuilder {
    pub(crate) fn new(pd: &Pd, qp_type: QpType) -> Self {
        let caps = QpCaps {
            max_send_wr: 128,
            max_recv_wr: 128,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: 220,
        };
        let pd = pd.clone();
        let (send_cq, recv_cq, srq, signal_all) = (None, None, None, false);
        Self { pd, qp_type, send_cq, recv_cq, srq, caps, signal_all, port: PORT }
    }
    /// Sets the completion queue of both sends and receives.
    pub fn cq(self, cq: &Cq) -> Self {
        self.send_cq(cq).recv_cq(cq)
    }
    /// Sets the completion queue of sends.
    pub fn send_cq(mut self, cq: &Cq) -> Self {
        self.send_cq = Some(cq.clone());
        self
    }
    /// Sets the completion queue of receives.
    pub fn recv_cq(mut self, cq: &Cq) -> Self {
        self.recv_cq = Some(cq.clone());
        self
    }
    /// Takes receives from a shared receive queue.
    pub fn srq(mut self, srq: &Srq) -> Self {
        self.srq = Some(srq.clone());
        self
    }
    /// Sets the number of outstanding sends; 128 by default.
    pub fn max_send_wr(mut self, n: u32) -> Self {
        self.caps.max_send_wr = n;
        self
    }
    /// Sets the number of outstanding receives; 128 by default.
    pub fn max_recv_wr(mut self, n: u32) -> Self {
        self.caps.max_recv_wr = n;
        self
    }
    /// Sets the length of gather and scatter lists; 4 by default, at most 32.
    pub fn max_sge(mut self, n: u32) -> Self {
        (self.caps.max_send_sge, self.caps.max_recv_sge) = (n, n);
        self
    }
    /// Sets how many bytes may be posted inline; 220 by default.
    pub fn max_inline(mut self, bytes: u32) -> Self {
        self.caps.max_inline_data = bytes;
        self
    }
    /// Sets the port; the first by default.
    pub fn port(mut self, number: u8) -> Self {
        self.port = number;
        self
    }
    /// Makes every send produce a completion, whether signaled or not.
    pub fn signal_all(mut self) -> Self {
        self.signal_all = true;
        self
    }
    /// Creates the queue pair, in state RESET.
    ///
    /// # Errors
    /// When a completion queue is missing, or a size exceeds the device's limit.
    pub fn build(self) -> Result<Qp> {
        let object = format!("{:?} queue pair", self.qp_type);
        // A queue pair that only sends has no receive queue.
        let only_sends = self.qp_type == QpType::XrcSend;
        let recv_cq = self.recv_cq.or_else(|| self.send_cq.clone().filter(|_| only_sends));
        let (Some(send_cq), Some(recv_cq)) = (self.send_cq, recv_cq) else {
            let why = "it has no completion queue: call `cq`".to_owned();
            return Err(Error::new(object, "create", Cause::Invalid(why)));
        };
        let init = verbs::QpInit {
            qp_type: self.qp_type,
            send_cq: send_cq.verbs().clone(),
            recv_cq: recv_cq.verbs().clone(),
            srq: self.srq.as_ref().map(|s| s.verbs().clone()),
            caps: self.caps,
            sq_sig_all: self.signal_all,
            context: 0,
        };
        let qp = verbs::Qp::new(&self.pd.verbs, init).on(object, "create")?;
        let (srq, pd, port) = (self.srq, self.pd, self.port);
        Ok(Qp(Arc::new(Inner { qp, send_cq, recv_cq, srq, pd, port })))
    }
}

/// A queue pair, to which work requests are posted. Clones are the same queue pair. It is destroyed when the last one
/// is dropped. Its outstanding work then produces no completions, and those that were not polled are discarded.
///
/// Connect it with a [`cm::Id`](crate::cm::Id), which moves it through its states, with [`connect`](Self::connect),
/// after the two sides have exchanged their endpoints, or step by step with [`modify`](Self::modify).
#[derive(Clone)]
pub struct Qp(Arc<Inner>);

struct Inner {
    qp: verbs::Qp,
    send_cq: Cq,
    recv_cq: Cq,
    srq: Option<Srq>,
    pd: Pd,
    port: u8,
}

impl Qp {
    /// Returns the queue pair's number.
    pub fn qpn(&self) -> Qpn {
        self.0.qp.qpn()
    }
    /// Returns the queue pair's transport.
    pub fn qp_type(&self) -> QpType {
        self.0.qp.init().qp_type
    }
    /// Returns the port at which [`connect`](Self::connect) and [`activate`](Self::activate) bring the queue pair up.
    pub fn port(&self) -> u8 {
        self.0.port
    }
    /// Returns the queue pair's state.
    pub fn state(&self) -> QpState {
        self.0.qp.state()
    }
    /// Returns whether messages to the peer go through shared memory: to processes of this host, and on InfiniBand also to
    /// those of the user's other hosts on this machine.
    pub fn is_same_host(&self) -> bool {
        self.0.qp.is_same_host()
    }
    /// Returns the number of bytes of memory that the queue pair uses, including its queues.
    pub fn footprint(&self) -> usize {
        self.0.qp.footprint()
    }
    /// Returns all attributes of the queue pair.
    pub fn attr(&self) -> QpAttr {
        self.0.qp.query()
    }
    /// Returns the queue pair's protection domain.
    pub fn pd(&self) -> &Pd {
        &self.0.pd
    }
    /// Returns the completion queue of sends.
    pub fn send_cq(&self) -> &Cq {
        &self.0.send_cq
    }
    /// Returns the completion queue of receives.
    pub fn recv_cq(&self) -> &Cq {
        &self.0.recv_cq
    }
    /// Returns the shared receive queue, if the queue pair has one.
    pub fn srq(&self) -> Option<&Srq> {
        self.0.srq.as_ref()
    }

    /// Posts a send, which starts at once if possible. The data are not copied unless they are inline.
    ///
    /// # Errors
    /// [`Cause::Full`] when the send queue is full, [`Cause::Invalid`] when the transport or the state does not allow
    /// this request.
    pub fn post_send(&self, wr: &SendWr<'_>) -> Result<()> {
        self.0.qp.post_send(wr.raw()).on(self, "post a send")
    }

    /// Posts a receive: the next message is placed in `sges`. For UD the network header takes the first 40 bytes.
    ///
    /// # Errors
    /// [`Cause::Full`] when the receive queue is full, [`Cause::Invalid`] when the list is too long or the queue pair
    /// has a shared receive queue.
    pub fn post_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<()> {
        self.0.qp.post_recv(&RecvWr { wr_id, sges }).on(self, "post a receive")
    }

    /// Posts several sends at once, which saves system calls and locks.
    ///
    /// # Errors
    /// As for [`post_send`](Self::post_send), with the index of the first request that was not posted; those before
    /// it were.
    pub fn post_sends(&self, wrs: &[SendWr<'_>]) -> Result<(), (usize, Error)> {
        let raw: Vec<_> = wrs.iter().map(|wr| *wr.raw()).collect();
        let posted = self.0.qp.post_sends(&raw);
        posted.map_err(|(i, e)| (i, Error::new(self.to_string(), "post a send", e.into())))
    }

    /// Changes attributes, most often the state. `mask` selects the valid members of `attr`.
    ///
    /// # Errors
    /// When the transition does not exist, or an attribute is missing, not allowed or out of range.
    pub fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Result<()> {
        self.0.qp.modify(attr, mask).on(self, "modify")
    }

    /// Loads an alternate path to the peer and arms it (automatic path migration, IBTA 17.2.8): from another local address
    /// to another one of the peer's, or on InfiniBand from another port or LID. Both ends have to do so.
    /// [`migration`](Self::migration) returns [`MigState::Armed`] once both have done so and their packets have shown it. An end that
    /// exhausts its retries then migrates to the alternate path instead of failing, and its peer follows. Each end gets
    /// [`QpEvent::PathMig`](crate::QpEvent). Unacknowledged packets are retransmitted: nothing is lost, and nothing is executed
    /// twice.
    ///
    /// P_Key index and timeout are those of the present path; [`modify`](Self::modify) with [`AttrMask::ALT_PATH`] sets
    /// others.
    ///
    /// # Errors
    /// When the queue pair is not in state RTS or not connected, or when there is no such port or address.
    pub fn arm(&self, alternate: &Ah) -> Result<()> {
        let (now, alt_av) = (self.attr(), *alternate.vector());
        let attr = QpAttr {
            alt_av,
            alt_port_num: alt_av.port_num,
            alt_pkey_index: now.pkey_index,
            alt_timeout: now.timeout,
            path_mig_state: MigState::Rearm as u8,
            ..now
        };
        self.modify(&attr, AttrMask::ALT_PATH | AttrMask::PATH_MIG_STATE)
    }

    /// Migrates to the alternate path of [`arm`](Self::arm), even if the present path works. The peer follows.
    ///
    /// # Errors
    /// When the queue pair is not [`MigState::Armed`].
    pub fn migrate(&self) -> Result<()> {
        let attr = QpAttr { path_mig_state: MigState::Migrated as u8, ..self.attr() };
        self.modify(&attr, AttrMask::PATH_MIG_STATE)
    }

    /// Returns the state of path migration.
    pub fn migration(&self) -> MigState {
        MigState::of_code(self.attr().path_mig_state).unwrap_or_default()
    }

    /// Moves the queue pair to the error state: all outstanding work completes as flushed.
    ///
    /// # Errors
    /// When the device is gone.
    pub fn fail(&self) -> Result<()> {
        let attr = QpAttr { state: QpState::Err, ..self.attr() };
        self.modify(&attr, AttrMask::STATE)
    }

    /// Returns what a peer needs to [`connect`](Self::connect) to this queue pair.
    ///
    /// # Errors
    /// When entry `sgid_index` of the GID table does not exist.
    pub fn endpoint(&self, sgid_index: u8) -> Result<Endpoint> {
        Endpoint::of(&self.0.pd.context, (self.port(), sgid_index), self.qpn())
    }

    /// Connects an RC, UC or XRC queue pair to `peer` without the connection manager: INIT, RTR and RTS, with `access`
    /// for the peer. The peer does the same with this side's endpoint, or with XRC moves its
    /// [`target`](crate::XrcTarget) to RTR. The program exchanges the two endpoints itself.
    ///
    /// # Errors
    /// When the queue pair is not in state RESET, or the peer cannot be reached from `sgid_index`.
    pub fn connect(&self, peer: Endpoint, sgid_index: u8, access: Access) -> Result<()> {
        let steps = crate::manual::connect_steps(self, peer, sgid_index, access)?;
        steps.iter().try_for_each(|(attr, mask)| self.modify(attr, *mask))
    }

    /// Brings a UD queue pair to RTS with this Q_Key, without the connection manager.
    ///
    /// # Errors
    /// When the queue pair is not in state RESET.
    pub fn activate(&self, qkey: rdmux_wire::Qkey) -> Result<()> {
        let steps = crate::manual::activate_steps(self, qkey);
        steps.iter().try_for_each(|(attr, mask)| self.modify(attr, *mask))
    }

    /// Attaches the queue pair to a multicast group, whose datagrams it receives from now on. UD only. The host joins
    /// the group with its first member.
    ///
    /// # Errors
    /// When the GID is not a multicast GID, or the network refuses.
    pub fn attach_multicast(&self, group: Gid) -> Result<()> {
        self.0.qp.attach_multicast(group).on(self, "attach to a multicast group")
    }

    /// Reverses [`attach_multicast`](Self::attach_multicast).
    ///
    /// # Errors
    /// When the queue pair was not attached to the group.
    pub fn detach_multicast(&self, group: Gid) -> Result<()> {
        self.0.qp.detach_multicast(group).on(self, "detach from a multicast group")
    }
}

impl fmt::Display for Qp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "queue pair {}", self.qpn())
    }
}

impl fmt::Debug for Qp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Qp({} {:?} {:?})", self.qpn(), self.qp_type(), self.state())
    }
}

/// The address of a queue pair for its peer. Encoded as 21 bytes, it can be sent over any channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The GID of the queue pair's host.
    pub gid: Gid,
    /// The LID of the queue pair's port, which is the address on InfiniBand; elsewhere 0.
    pub lid: Lid,
    /// The queue pair's number.
    pub qpn: Qpn,
}

impl Endpoint {
    /// The length of [`to_bytes`](Self::to_bytes).
    pub const LEN: usize = 21;

    /// Returns the endpoint of a queue pair that is reached by its host's GID, as on RoCE.
    pub fn new(gid: Gid, qpn: Qpn) -> Self {
        Self { gid, lid: Lid::NONE, qpn }
    }

    /// Returns the endpoint of a queue pair at a port of a device, by an entry of its GID table.
    pub(crate) fn of(context: &Context, (port, index): (u8, u8), qpn: Qpn) -> Result<Self> {
        let lid = context.query_port_number(port)?.lid;
        Ok(Self { gid: context.gid_of_port(port, index)?, lid, qpn })
    }

    /// Encodes GID, LID and number, big-endian.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[..16].copy_from_slice(&self.gid.0);
        b[16..18].copy_from_slice(&self.lid.0.to_be_bytes());
        b[18..].copy_from_slice(&self.qpn.get().to_be_bytes()[1..]);
        b
    }
    /// Decodes [`to_bytes`](Self::to_bytes). Returns none if the bytes are too few.
    pub fn from_bytes(b: &[u8]) -> Option<Self> {
        let (gid, b) = b.split_first_chunk()?;
        let (lid, b) = b.split_first_chunk()?;
        let [high, mid, low] = *b.first_chunk()?;
        let qpn = Qpn::new(u32::from_be_bytes([0, high, mid, low]));
        Some(Self { gid: Gid(*gid), lid: Lid(u16::from_be_bytes(*lid)), qpn })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qp_endpoint_bytes_round_trip() {
        let e = Endpoint { gid: Gid([7; 16]), lid: Lid(0x0405), qpn: Qpn::new(0x01_02_03) };
        assert_eq!(e.to_bytes()[16..], [4, 5, 1, 2, 3]);
        assert_eq!(Endpoint::from_bytes(&e.to_bytes()), Some(e));
        assert_eq!(Endpoint::from_bytes(&[0; 20]), None);
    }
}
