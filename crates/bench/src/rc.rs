//! Both sides of a measured RDMA connection.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, Result};
use rdmux::cm::{ConnParam, EventChannel, EventKind, Id, PortSpace};
use rdmux::{Access, Context, QpType, RemoteMr, SendWr};

use super::end::{End, PING};
use rdmux_command::cmutil;

/// The size of the memory that the client writes to.
const TARGET: usize = 1 << 20;
/// The access rights of the peer to the memory.
const ACCESS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);
/// The number of outstanding READs.
const READS: u8 = 16;
/// The number of posted receives.
const RECEIVES: u32 = 64;
/// The error if the server did not send the address of its memory.
const NO_TARGET: &str = "the peer did not send the address of its memory";
/// How long a side waits for the other.
const TIMEOUT: Duration = Duration::from_secs(20);

/// One side of a connection.
pub(super) struct Rc {
    id: Id,
    channel: EventChannel,
    /// The peer writes to its memory and pings arrive there. Pings and WRITEs are also sent from it.
    pub(super) end: End,
    /// The peer's memory; known to the client.
    target: Option<RemoteMr>,
}

impl Rc {
    fn new(channel: &EventChannel, id: Id) -> Result<Self> {
        let context = channel.context();
        let pd = context.pd();
        let (send_cq, recv_cq) = (context.cq(256)?, context.cq(RECEIVES)?);
        let qp = pd
            .qp(QpType::Rc)
            .send_cq(&send_cq)
            .recv_cq(&recv_cq)
            .max_send_wr(128)
            .max_recv_wr(RECEIVES)
            .max_inline(PING.into())
            .build()?;
        let memory = pd.alloc(TARGET, ACCESS)?;
        id.attach_qp(&qp)?;
        let longest = usize::from(PING);
        let end = End { qp, send_cq, recv_cq, srq: None, to: 0, memory, longest };
        (0..RECEIVES).try_for_each(|_| end.post_receive())?;
        Ok(Self { id, channel: channel.clone(), end, target: None })
    }

    fn param(private_data: &[u8]) -> ConnParam {
        ConnParam {
            private_data: private_data.to_vec(),
            responder_resources: READS,
            initiator_depth: READS,
            retry_count: 7,
            rnr_retry_count: 7,
            ..ConnParam::default()
        }
    }

    /// Connects as the client.
    pub(super) fn connect(context: &Context, to: SocketAddr) -> Result<Self> {
        Self::connect_as(context, to, None)
    }

    /// Connects as the client, in iWARP's peer-to-peer mode or not.
    pub(super) fn connect_as(
        context: &Context,
        to: SocketAddr,
        peer_to_peer: Option<bool>,
    ) -> Result<Self> {
        let channel = EventChannel::new(context)?;
        let id = Id::new(&channel, PortSpace::Tcp)?;
        cmutil::resolve(&channel, &id, None, to)?;
        let mut this = Self::new(&channel, id)?;
        this.id.connect(&ConnParam { peer_to_peer, ..Self::param(&[]) })?;
        let event = cmutil::expect(&channel, EventKind::Established, "connect", TIMEOUT)?;
        this.target = RemoteMr::from_bytes(event.private_data());
        Ok(this)
    }

    /// Accepts as the server. `listening` is called with the address.
    pub(super) fn accept(
        context: &Context,
        at: IpAddr,
        listening: impl FnOnce(SocketAddr) -> Result<()>,
    ) -> Result<Self> {
        let channel = EventChannel::new(context)?;
        let listener = Id::new(&channel, PortSpace::Tcp)?;
        let any = SocketAddr::new(at, 0);
        let at = listener.bind(any)?.socket().unwrap_or(any);
        listener.listen(1)?;
        listening(at)?;
        let mut event = cmutil::expect(&channel, EventKind::ConnectRequest, "accept", TIMEOUT)?;
        let id = event.take_id().context("the connection request has no id")?;
        drop(event);
        let this = Self::new(&channel, id)?;
        this.id.accept(&Self::param(&this.end.memory.remote().to_bytes()))?;
        cmutil::expect(&channel, EventKind::Established, "accept", TIMEOUT)?;
        Ok(this)
    }

    /// Returns whether messages go through shared memory.
    pub(super) fn is_same_host(&self) -> bool {
        self.end.qp.is_same_host()
    }

    /// WRITEs `size` bytes `count` times and waits for the last acknowledgement. Returns bytes per second.
    pub(super) fn write(&self, size: usize, count: u32, depth: u32) -> Result<f64> {
        let target = self.target.context(NO_TARGET)?;
        let piece = [self.end.memory.slice(..size)];
        let time = self.end.post_all(SendWr::write(0, target).sges(&piece), count, depth)?;
        Ok(size as f64 * f64::from(count) / time)
    }

    /// Like [`write`](Self::write), with READs.
    pub(super) fn read(&self, size: usize, count: u32, depth: u32) -> Result<f64> {
        let target = self.target.context(NO_TARGET)?;
        let piece = [self.end.memory.slice(..size)];
        let time = self.end.post_all(SendWr::read(0, target).sges(&piece), count, depth)?;
        Ok(size as f64 * f64::from(count) / time)
    }

    /// Ends the connection. The other side must [`answer`](Self::wait_disconnected).
    pub(super) fn disconnect(&self) -> Result<()> {
        Ok(self.id.disconnect()?)
    }

    /// Waits until the peer disconnects, and answers.
    pub(super) fn wait_disconnected(&self) -> Result<()> {
        cmutil::expect(&self.channel, EventKind::Disconnected, "wait for the end", TIMEOUT)?;
        self.disconnect()
    }
}
