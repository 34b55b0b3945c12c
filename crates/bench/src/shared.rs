//! Both sides of a connection whose receives are taken from a shared receive queue, with RC or XRC. The two differ
//! only in the transport.

use anyhow::{Context as _, Result};
use rdmux::{Access, Context, Endpoint, Gid, QpType, Qpn, Xrcd};
use serde::{Deserialize, Serialize};

use super::end::{End, PING};

/// The length of the longest message.
const LONGEST: usize = 64 << 10;
/// The capacity of the send queue and of the receive queue: perftest's values.
pub(super) const SENDS: u32 = 128;
const RECEIVES: u32 = 512;

/// The transports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Kind {
    /// One queue pair for both directions.
    Rc,
    /// A queue pair that sends to the peer's target, and a target of this side.
    Xrc,
}

/// One side of the connection.
pub(super) struct Shared {
    pub(super) end: End,
    gid: Gid,
    /// With XRC, the domain, and this side's target in it once the peer is known.
    domain: Option<Xrcd>,
    pub(super) target: Option<Qpn>,
}

/// The first message between the sides.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    gid: [u8; 16],
    /// The sending queue pair.
    qpn: u32,
    srqn: u32,
}

impl Shared {
    pub(super) fn new(context: &Context, kind: Kind) -> Result<Self> {
        let (pd, send_cq, recv_cq) = (context.pd(), context.cq(256)?, context.cq(RECEIVES)?);
        let (domain, srq, qp_type) = match kind {
            Kind::Rc => (None, pd.srq(RECEIVES, 1)?, QpType::Rc),
            Kind::Xrc => {
                let domain = Xrcd::private(context)?;
                let srq = pd.xrc_srq(&domain, &recv_cq, RECEIVES, 1)?;
                (Some(domain), srq, QpType::XrcSend)
            }
        };
        let qp = pd.qp(qp_type).send_cq(&send_cq).recv_cq(&recv_cq).max_send_wr(SENDS);
        let qp = qp.max_inline(PING.into());
        let qp = if kind == Kind::Rc { qp.srq(&srq) } else { qp }.build()?;
        let memory = pd.alloc(LONGEST, Access::LOCAL_WRITE)?;
        let end = End { qp, send_cq, recv_cq, srq: Some(srq), to: 0, memory, longest: LONGEST };
        (0..RECEIVES).try_for_each(|_| end.post_receive())?;
        Ok(Self { end, gid: context.gid(0)?, domain, target: None })
    }

    /// Returns the addresses and numbers that the other side needs.
    pub(super) fn hello(&self) -> Hello {
        let srqn = self.end.srq.as_ref().and_then(rdmux::Srq::number).unwrap_or(0);
        Hello { gid: self.gid.0, qpn: self.end.qp.qpn().get(), srqn }
    }

    /// Accepts the other side. Returns the number to which it connects.
    pub(super) fn accept(&mut self, peer: &Hello) -> Result<u32> {
        self.end.to = peer.srqn;
        let Some(domain) = &self.domain else { return Ok(self.end.qp.qpn().get()) };
        let peer = Endpoint::new(Gid(peer.gid), Qpn::new(peer.qpn));
        let target = domain.alloc(peer, 0, Access::empty())?;
        self.target = Some(target);
        Ok(target.get())
    }

    /// Connects to the number at which the other side accepts.
    pub(super) fn connect(&self, peer: &Hello, number: u32) -> Result<()> {
        let there = Endpoint::new(Gid(peer.gid), Qpn::new(number));
        Ok(self.end.qp.connect(there, 0, Access::empty())?)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Only the registration keeps the target.
        if let (Some(domain), Some(target)) = (&self.domain, self.target)
            && let Err(error) = domain.unregister(target)
        {
            tracing::warn!(%error, "cannot unregister a target; it exists until this process ends");
        }
    }
}

/// The other side: serves [`Ask::SharedMake`](super::protocol::Ask) and the requests that follow.
#[derive(Default)]
pub(super) struct Others(Vec<Shared>);

impl Others {
    /// Returns the newest connection.
    pub(super) fn last(&self) -> Result<&Shared> {
        self.0.last().context("there is no connection with a shared receive queue yet")
    }
    /// Creates one side of a connection.
    pub(super) fn make(&mut self, context: &Context, kind: Kind) -> Result<Hello> {
        self.0.push(Shared::new(context, kind)?);
        Ok(self.last()?.hello())
    }
    pub(super) fn connect(&mut self, peer: &Hello, number: u32) -> Result<u32> {
        let this = self.0.last_mut().context("no endpoint has been created yet")?;
        let ours = this.accept(peer)?;
        this.connect(peer, number)?;
        Ok(ours)
    }
    /// Drops all sides.
    pub(super) fn forget(&mut self) {
        self.0.clear();
    }
}
