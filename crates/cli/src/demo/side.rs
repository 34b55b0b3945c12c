//! One side of a connection of the demo, in either process.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rdmux::cm::{ConnParam, EventChannel, EventKind, Id, PortSpace};
use rdmux::{Access, Completion, Context, Cq, Mr, Qp, SendWr, Srq, WcFlags};

use super::protocol::{Data, Kind};
use rdmux_command::cmutil;

/// The memory of each side: the first half for one-sided operations, the second for messages.
const MEMORY: usize = 2 * HALF;
/// The maximum length of a message or a piece of memory.
pub(super) const HALF: usize = 32 << 20;
/// How long a side waits for the other.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum number of gather entries and of inline bytes of the queue pairs.
pub(super) const SGES: u32 = 16;
pub(super) const INLINE: u32 = 220;

/// One side of a connection.
pub(super) struct Side {
    pub(super) id: Id,
    pub(super) channel: EventChannel,
    /// The peer-to-peer mode in the connection's last event.
    pub(super) peer_to_peer: Option<bool>,
    pub(super) qp: Qp,
    pub(super) memory: Mr,
    cq: Cq,
    srq: Option<Srq>,
}

/// Returns bytes that depend on seed and position: no two of 251 neighbours are equal.
pub(super) fn pattern(data: Data) -> Vec<u8> {
    let mut x = data.seed.wrapping_mul(0x9e37_79b9) | 1;
    let step = |i: usize| {
        if i.is_multiple_of(251) {
            x = x.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f);
        }
        let [.., high] = x.to_le_bytes();
        high.wrapping_add(i.to_le_bytes()[0])
    };
    (0..data.len).map(step).collect()
}

/// Compares, and reports where they differ.
pub(super) fn compare(what: &str, have: &[u8], want: &[u8]) -> Result<()> {
    ensure!(have.len() == want.len(), "{what} has {} bytes, not {}", have.len(), want.len());
    match have.iter().zip(want).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(at) => bail!("{what} is wrong from byte {at} of {} on", want.len()),
    }
}

impl Side {
    fn new(channel: &EventChannel, id: Id, kind: Kind, passive: bool) -> Result<Self> {
        let context = channel.context();
        let (pd, cq) = (context.pd(), context.cq(256)?);
        let mut builder =
            pd.qp(kind.qp_type()).cq(&cq).max_sge(SGES).max_inline(INLINE).signal_all();
        let srq = (kind == Kind::RcSrq && passive).then(|| pd.srq(64, SGES)).transpose()?;
        if let Some(srq) = &srq {
            builder = builder.srq(srq);
        }
        let qp = builder.build()?;
        let access = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC;
        let memory = pd.alloc(MEMORY, access)?;
        id.attach_qp(&qp)?;
        let (channel, peer_to_peer) = (channel.clone(), None);
        Ok(Self { id, channel, peer_to_peer, qp, memory, cq, srq })
    }

    fn param(words: &[u8]) -> ConnParam {
        ConnParam {
            private_data: words.to_vec(),
            responder_resources: 16,
            initiator_depth: 16,
            retry_count: 7,
            rnr_retry_count: 7,
            ..ConnParam::default()
        }
    }

    /// Connects as the active side. Also returns the peer's private data.
    pub(super) fn connect(
        context: &Context,
        to: SocketAddr,
        kind: Kind,
        words: &[u8],
    ) -> Result<(Self, Vec<u8>)> {
        let channel = EventChannel::new(context)?;
        let id = Id::with_type(&channel, PortSpace::Tcp, kind.qp_type())?;
        cmutil::resolve(&channel, &id, None, to)?;
        let mut this = Self::new(&channel, id, kind, false)?;
        this.id.connect(&Self::param(words))?;
        let event = cmutil::expect(&channel, EventKind::Established, "connect", TIMEOUT)?;
        let said = event.private_data().to_vec();
        this.peer_to_peer = event.peer_to_peer();
        drop(event);
        Ok((this, said))
    }

    /// Accepts as the passive side. `listening` is called with the address. The peer's private data are returned to
    /// it.
    pub(super) fn accept(
        context: &Context,
        at: IpAddr,
        kind: Kind,
        listening: impl FnOnce(SocketAddr) -> Result<()>,
    ) -> Result<Self> {
        let (channel, id, said) = Self::request(context, at, kind, listening)?;
        let this = Self::new(&channel, id, kind, true)?;
        this.id.accept(&Self::param(&said))?;
        cmutil::expect(&channel, EventKind::Established, "accept", TIMEOUT)?;
        Ok(this)
    }

    /// Waits for a connection request.
    pub(super) fn request(
        context: &Context,
        at: IpAddr,
        kind: Kind,
        listening: impl FnOnce(SocketAddr) -> Result<()>,
    ) -> Result<(EventChannel, Id, Vec<u8>)> {
        let channel = EventChannel::new(context)?;
        let listener = Id::with_type(&channel, PortSpace::Tcp, kind.qp_type())?;
        let any = SocketAddr::new(at, 0);
        let at = listener.bind(any)?.socket().unwrap_or(any);
        listener.listen(4)?;
        listening(at)?;
        let mut event = cmutil::expect(&channel, EventKind::ConnectRequest, "accept", TIMEOUT)?;
        let id = event.take_id().context("the connection request has no id")?;
        let said = event.private_data().to_vec();
        Ok((channel, id, said))
    }

    /// Posts a receive for the longest message.
    pub(super) fn post_receive(&self) -> Result<()> {
        let piece = [self.memory.slice(HALF..)];
        match &self.srq {
            Some(srq) => srq.post_recv(RECEIVE, &piece)?,
            None => self.qp.post_recv(RECEIVE, &piece)?,
        }
        Ok(())
    }

    /// Waits for a message and compares it. A WRITE with immediate has no message to compare.
    pub(super) fn receive(&self, data: Data) -> Result<Completion> {
        let done = self.cq.wait_one(Some(TIMEOUT)).context("no message arrived in time")?;
        let len = if done.opcode == rdmux::WcOpcode::Recv { data.len } else { 0 };
        if len > 0 || done.flags.contains(WcFlags::WITH_IMM) || data.len == 0 {
            let have = self.memory.to_vec(HALF..HALF + len);
            compare("the message", &have, &pattern(Data { len, ..data }))?;
        }
        Ok(done)
    }

    /// Posts one send and waits until it is complete. Returns the duration.
    pub(super) fn run(&self, wr: SendWr<'_>) -> Result<Duration> {
        let start = Instant::now();
        self.qp.post_send(&wr)?;
        self.cq.wait_one(Some(TIMEOUT))?;
        Ok(start.elapsed())
    }

    /// Fills the memory and sends it.
    pub(super) fn send(&self, data: Data) -> Result<()> {
        self.fill(data);
        let piece = [self.memory.slice(..data.len)];
        self.run(SendWr::send(1).sges(&piece)).map(drop)
    }

    /// Posts one send that must fail. Returns its status.
    pub(super) fn run_failing(&self, wr: SendWr<'_>) -> Result<rdmux::WcStatus> {
        self.qp.post_send(&wr)?;
        let mut one = [rdmux::EMPTY];
        ensure!(
            self.cq.wait(&mut one, Some(TIMEOUT))? == 1,
            "the work request did not complete in time"
        );
        Ok(one[0].status)
    }

    /// Writes data into the memory.
    pub(super) fn fill(&self, data: Data) {
        self.memory.write(0, &pattern(data));
    }

    /// Waits until the memory contains data.
    pub(super) fn await_data(&self, data: Data) -> Result<()> {
        let (want, start) = (pattern(data), Instant::now());
        loop {
            let have = self.memory.to_vec(..data.len);
            match compare("the memory", &have, &want) {
                Err(e) if start.elapsed() > TIMEOUT => return Err(e),
                // Polling drives the device.
                Err(_) => drop(self.cq.poll(&mut [])),
                Ok(()) => return Ok(()),
            }
        }
    }

    /// Waits until the connection is down, and answers.
    pub(super) fn wait_disconnected(&self) -> Result<()> {
        cmutil::expect(&self.channel, EventKind::Disconnected, "wait for the end", TIMEOUT)?;
        Ok(self.id.disconnect()?)
    }
}

/// The work request id of receives.
const RECEIVE: u64 = 1 << 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_differ_by_seed_and_position() {
        let a = pattern(Data { len: 1000, seed: 1 });
        assert_ne!(a, pattern(Data { len: 1000, seed: 2 }));
        assert_ne!(a[..250], a[251..501]);
        assert!(compare("it", &a, &a).is_ok());
        let mut b = a.clone();
        b[700] ^= 1;
        let e = compare("it", &b, &a).unwrap_err();
        assert_eq!(e.to_string(), "it is wrong from byte 700 of 1000 on");
    }
}
