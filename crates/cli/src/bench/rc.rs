//! An RDMA connection that is measured: both sides.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rdmux::cm::{ConnParam, EventChannel, EventKind, Id, PortSpace};
use rdmux::{Access, Completion, Context, Cq, EMPTY, Mr, Qp, QpType, RemoteMr, SendWr, ok};

use crate::cmutil;

/// The size of the memory that the client writes to.
const TARGET: usize = 1 << 20;
/// Bytes of a ping-pong message.
const PING: u16 = 64;
/// One send in so many gives a completion.
const SIGNAL_EVERY: u32 = 64;
/// What the peer may do to the memory.
const ACCESS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);
/// READs outstanding.
const READS: u8 = 16;
/// Receives posted.
const RECEIVES: u32 = 64;
/// What is said of a connection whose server did not say where its memory is.
const NO_TARGET: &str = "the peer did not say where its memory is";
/// How long a side waits for the other.
const PATIENCE: Duration = Duration::from_secs(20);

/// One side of a connection.
pub(super) struct Rc {
    id: Id,
    channel: EventChannel,
    qp: Qp,
    send_cq: Cq,
    recv_cq: Cq,
    /// Where the peer writes, where pings arrive and where they and the writes come from.
    memory: Mr,
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
        let this =
            Self { id, channel: channel.clone(), qp, send_cq, recv_cq, memory, target: None };
        (0..RECEIVES).try_for_each(|_| this.post_receive())?;
        Ok(this)
    }

    fn post_receive(&self) -> Result<()> {
        Ok(self.qp.post_recv(0, &[self.memory.slice(..usize::from(PING))])?)
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

    /// The client's side.
    pub(super) fn connect(context: &Context, to: SocketAddr) -> Result<Self> {
        let channel = EventChannel::new(context)?;
        let id = Id::new(&channel, PortSpace::Tcp)?;
        cmutil::resolve(&channel, &id, None, to)?;
        let mut this = Self::new(&channel, id)?;
        this.id.connect(&Self::param(&[]))?;
        let event = cmutil::expect(&channel, EventKind::Established, "connect", PATIENCE)?;
        this.target = RemoteMr::from_bytes(event.private_data());
        Ok(this)
    }

    /// The server's side: `listening` hears where.
    pub(super) fn accept(
        context: &Context,
        at: IpAddr,
        listening: impl FnOnce(SocketAddr) -> Result<()>,
    ) -> Result<Self> {
        let channel = EventChannel::new(context)?;
        let listener = Id::new(&channel, PortSpace::Tcp)?;
        let at = listener.bind(SocketAddr::new(at, 0))?;
        listener.listen(1)?;
        listening(at)?;
        let mut event = cmutil::expect(&channel, EventKind::ConnectRequest, "accept", PATIENCE)?;
        let id = event.take_id().context("a request without an id")?;
        drop(event);
        let this = Self::new(&channel, id)?;
        this.id.accept(&Self::param(&this.memory.remote().to_bytes()))?;
        cmutil::expect(&channel, EventKind::Established, "accept", PATIENCE)?;
        Ok(this)
    }

    /// Whether it goes through shared memory.
    pub(super) fn is_same_host(&self) -> bool {
        self.qp.is_same_host()
    }

    /// WRITEs `size` bytes `count` times and waits for the last acknowledgement: bytes a second. Half
    /// of `depth` is posted at a time, and the last of each half gives a completion.
    pub(super) fn write(&self, size: usize, count: u32, depth: u32) -> Result<f64> {
        let target = self.target.context(NO_TARGET)?;
        let piece = [self.memory.slice(..size)];
        self.move_all(&SendWr::write(0, target).sges(&piece), size, count, depth)
    }

    /// As [`write`](Self::write), but READs.
    pub(super) fn read(&self, size: usize, count: u32, depth: u32) -> Result<f64> {
        let target = self.target.context(NO_TARGET)?;
        let piece = [self.memory.slice(..size)];
        self.move_all(&SendWr::read(0, target).sges(&piece), size, count, depth)
    }

    fn move_all(&self, wr: &SendWr<'_>, size: usize, count: u32, depth: u32) -> Result<f64> {
        let mut half = vec![*wr; depth as usize / 2];
        if let Some(last) = half.last_mut() {
            *last = last.signaled();
        }
        let halves = count / u32::try_from(half.len())?;
        let start = Instant::now();
        for n in 0..halves {
            if n >= 2 {
                self.one(&self.send_cq)?;
            }
            self.qp.post_sends(&half).map_err(|(_, e)| e)?;
        }
        for _ in 0..halves.min(2) {
            self.one(&self.send_cq)?;
        }
        let bytes = size as f64 * half.len() as f64 * f64::from(halves);
        Ok(bytes / start.elapsed().as_secs_f64())
    }

    /// Sends a message, which ends [`wait_message`](Self::wait_message).
    pub(super) fn send(&self) -> Result<()> {
        self.qp.post_send(&SendWr::send(0).inline(&[b"end"]).signaled())?;
        self.one(&self.send_cq).map(drop)
    }

    /// Sleeps until a message comes.
    pub(super) fn wait_message(&self) -> Result<()> {
        self.recv_cq.wait_one(Some(PATIENCE))?;
        self.post_receive()
    }

    /// Polls until a message comes.
    fn poll_message(&self) -> Result<()> {
        self.one(&self.recv_cq)?;
        self.post_receive()
    }

    /// Exchanges `count` messages of 64 bytes, polling: seconds one way.
    pub(super) fn ping(&self, count: u32) -> Result<f64> {
        let start = Instant::now();
        for n in 1..=count {
            self.send_ping(n)?;
            self.poll_message()?;
        }
        let time = start.elapsed().as_secs_f64();
        self.end_pings(count)?;
        Ok(time / f64::from(count) / 2.0)
    }

    /// The other side of [`ping`](Self::ping).
    pub(super) fn echo(&self, count: u32) -> Result<()> {
        for n in 1..=count {
            self.poll_message()?;
            self.send_ping(n)?;
        }
        self.end_pings(count)
    }

    /// Sends the n-th message. One in so many gives a completion, which is taken before the next such
    /// one: it is there by then.
    fn send_ping(&self, n: u32) -> Result<()> {
        let wr = SendWr::send(0).inline(&[&[0x5a; PING as usize]]);
        if !n.is_multiple_of(SIGNAL_EVERY) {
            return Ok(self.qp.post_send(&wr)?);
        }
        if n > SIGNAL_EVERY {
            self.one(&self.send_cq)?;
        }
        Ok(self.qp.post_send(&wr.signaled())?)
    }

    /// Takes the completion that is left.
    fn end_pings(&self, count: u32) -> Result<()> {
        if count >= SIGNAL_EVERY {
            self.one(&self.send_cq)?;
        }
        Ok(())
    }

    fn one(&self, cq: &Cq) -> Result<Completion> {
        Ok(ok(Self::poll(cq, &mut [EMPTY], Instant::now())?[0])?)
    }

    /// Polls until there is something.
    fn poll<'b>(cq: &Cq, batch: &'b mut [Completion], start: Instant) -> Result<&'b [Completion]> {
        let mut turns = 0_u32;
        loop {
            match cq.poll(batch) {
                0 => turns = turns.wrapping_add(1),
                n => return Ok(&batch[..n]),
            }
            if turns.is_multiple_of(1 << 14) && start.elapsed() > PATIENCE {
                bail!("the peer does not answer");
            }
        }
    }

    /// Ends the connection. The other side must [`answer`](Self::wait_disconnected).
    pub(super) fn disconnect(&self) -> Result<()> {
        Ok(self.id.disconnect()?)
    }

    /// Waits until the connection is down, and answers.
    pub(super) fn wait_disconnected(&self) -> Result<()> {
        cmutil::expect(&self.channel, EventKind::Disconnected, "wait for the end", PATIENCE)?;
        self.disconnect()
    }
}
