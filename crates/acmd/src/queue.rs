//! The queue pair of an endpoint, for unreliable datagrams of one MAD each.

use rdmux::{
    Access, AddressVector, Ah, AttrMask, Cause, Completion, Context, Cq, EMPTY, Error, Gid, Lid,
    Mr, Qp, QpAttr, QpState, QpType, Qpn, Result, SendWr, WcFlags, WcOpcode, WcStatus,
};
use rdmux_wire::acm::{Datagram, QKEY};

/// The size of a receive buffer: a network header and one MAD.
const SLOT: usize = GRH + Datagram::LEN;
/// The size of the network header, which may be absent.
const GRH: usize = 40;
/// The work request id of sends. Those of receives are their slots.
const SEND: u64 = u64::MAX;
/// The number of completions taken at once.
const BATCH: usize = 64;

/// A queue pair, its completion queue, and its buffers.
pub(crate) struct Queue {
    qp: Qp,
    cq: Cq,
    buffers: Mr,
    /// The maximum number of outstanding sends.
    depth: usize,
    /// The number of outstanding sends.
    sending: usize,
}

/// The attributes of a queue pair to create.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// The port, from 1.
    pub(crate) port: u8,
    /// The index of the queue pair's P_Key.
    pub(crate) pkey_index: u16,
    /// The number of posted receives.
    pub(crate) receives: u32,
    /// The maximum number of outstanding sends.
    pub(crate) sends: u32,
}

/// A received datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrived<'b> {
    /// The datagram's contents.
    pub(crate) bytes: &'b [u8],
    /// The sender's LID.
    pub(crate) slid: Lid,
    /// The datagram's service level.
    pub(crate) sl: u8,
    /// The sender's GID, if it had a network header.
    pub(crate) sgid: Option<Gid>,
    /// The sender's queue pair.
    pub(crate) qpn: Qpn,
}

impl Queue {
    /// Creates a queue pair and moves it to RTS, with all receives posted.
    ///
    /// # Errors
    /// The device's error when it refuses: the Q_Key of services is reserved for the host's owner and root.
    pub(crate) fn open(context: &Context, shape: Shape) -> Result<Self> {
        let limits = context.limits();
        let receives = shape.receives.clamp(1, limits.max_qp_wr);
        let sends = shape.sends.clamp(1, limits.max_qp_wr);
        let cq = context.cq((receives + sends).min(limits.max_cqe))?;
        let pd = context.pd();
        let builder = pd.qp(QpType::Ud).cq(&cq).port(shape.port).max_sge(1);
        let inline = u32::try_from(Datagram::LEN).unwrap_or(u32::MAX);
        let qp = builder.max_recv_wr(receives).max_send_wr(sends).max_inline(inline).build()?;
        let count = usize::try_from(receives).unwrap_or(0);
        let buffers = pd.alloc(count * SLOT, Access::LOCAL_WRITE)?;
        let this = Self { qp, cq, buffers, depth: usize::try_from(sends).unwrap_or(1), sending: 0 };
        for (attr, mask) in steps(&this.qp.attr(), shape) {
            this.qp.modify(&attr, mask)?;
        }
        for slot in 0..count {
            this.post(slot)?;
        }
        Ok(this)
    }

    /// Returns the queue pair's number.
    pub(crate) fn qpn(&self) -> Qpn {
        self.qp.qpn()
    }

    /// Returns whether sends may have completed, so that [`receive`](Self::receive) makes room.
    pub(crate) fn has_sent(&self) -> bool {
        self.sending > 0
    }

    /// Attaches the queue pair to a group that the port has joined.
    ///
    /// # Errors
    /// When the device refuses.
    pub(crate) fn attach(&self, group: Gid) -> Result<()> {
        self.qp.attach_multicast(group)
    }

    /// Detaches the queue pair from a group.
    pub(crate) fn detach(&self, group: Gid) {
        let _ = self.qp.detach_multicast(group);
    }

    /// Returns how many datagrams can be sent now.
    pub(crate) fn room(&self) -> usize {
        self.depth - self.sending
    }

    /// Sends a datagram, which is copied.
    ///
    /// # Errors
    /// [`Cause::Full`] when there is no [`room`](Self::room).
    pub(crate) fn send(&mut self, to: AddressVector, qpn: Qpn, bytes: &[u8]) -> Result<()> {
        if self.room() == 0 {
            let depth = u32::try_from(self.depth).unwrap_or(u32::MAX);
            return Err(Error::new(self.qp.to_string(), "post a send", Cause::Full(depth)));
        }
        let ah = Ah::from_vector(to);
        self.qp.post_send(&SendWr::send(SEND).inline(&[bytes]).to(&ah, qpn, QKEY).signaled())?;
        self.sending += 1;
        Ok(())
    }

    /// Takes up to `budget` completions, and calls `each` for every received datagram. Returns whether more
    /// completions may be available.
    ///
    /// # Errors
    /// When the device is gone.
    pub(crate) fn receive(
        &mut self,
        budget: usize,
        mut each: impl FnMut(&Arrived<'_>),
    ) -> Result<bool> {
        let mut done = [EMPTY; BATCH];
        let mut taken = 0;
        while taken < budget {
            let count = self.cq.poll(&mut done);
            if count == 0 {
                return Ok(false);
            }
            taken += count;
            for completion in &done[..count] {
                self.complete(completion, &mut each)?;
            }
        }
        Ok(true)
    }

    fn complete(&mut self, done: &Completion, each: &mut impl FnMut(&Arrived<'_>)) -> Result<()> {
        if done.wr_id == SEND {
            self.sending = self.sending.saturating_sub(1);
            return Ok(());
        }
        let slot = usize::try_from(done.wr_id).unwrap_or(0);
        if done.status != WcStatus::Success {
            return Ok(());
        }
        if done.opcode == WcOpcode::Recv {
            let mut bytes = [0; SLOT];
            self.buffers.read(slot * SLOT, &mut bytes);
            let len = usize::try_from(done.byte_len).unwrap_or(0).clamp(GRH, SLOT);
            let grh = done.flags.contains(WcFlags::GRH);
            let sgid = || bytes[8..24].try_into().map(Gid).ok();
            each(&Arrived {
                bytes: &bytes[GRH..len],
                slid: Lid(done.slid),
                sl: done.sl,
                sgid: grh.then(sgid).flatten(),
                qpn: done.src_qp,
            });
        }
        self.post(slot)
    }

    fn post(&self, slot: usize) -> Result<()> {
        let number = u64::try_from(slot).unwrap_or(SEND);
        self.qp.post_recv(number, &[self.buffers.slice(slot * SLOT..(slot + 1) * SLOT)])
    }
}

/// Returns the steps from RESET to RTS, with the Q_Key of services.
fn steps(attr: &QpAttr, shape: Shape) -> [(QpAttr, AttrMask); 3] {
    let attr = QpAttr { qkey: QKEY, port_num: shape.port, pkey_index: shape.pkey_index, ..*attr };
    let init = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY;
    [
        (QpAttr { state: QpState::Init, ..attr }, init),
        (QpAttr { state: QpState::Rtr, ..attr }, AttrMask::STATE),
        (QpAttr { state: QpState::Rts, ..attr }, AttrMask::STATE | AttrMask::SQ_PSN),
    ]
}
