//! The side on `rdmux`: hosts in this process with an iWARP device, and the ends of their
//! connections.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rdmux::cm::{ConnParam, Event, EventChannel, EventKind, Id, PortSpace};
use rdmux::{Access, AsyncEvent, Context, DeviceKind, Mr, Qp, QpEvent, QpState, QpType, SendWr};

/// The timeout of operations that take a moment.
pub const WAIT: Duration = Duration::from_secs(20);

/// The RDMA Reads that rdmux serves, and has outstanding.
pub const DEPTH: u8 = 4;

/// The private data of rdmux's programs.
pub const OURS: &[u8] = b"from rdmux";
/// The private data of the peer.
pub const THEIRS: &[u8] = b"from the peer";

/// Longer than the interval between two markers.
const MESSAGE: usize = 1300;
/// The length of an end's buffers.
pub const BUFFER: usize = 4096;

/// The configuration of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Settings {
    /// Whether the host requests CRCs.
    pub crc: bool,
    /// The value in the configuration file.
    pub markers: &'static str,
    /// The revision of MPA, as the initiator.
    pub revision: u8,
    /// Whether timeouts that are usually seconds are very short.
    pub short_timeouts: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { crc: false, markers: "give", revision: 2, short_timeouts: false }
    }
}

/// Hosts by configuration; each is started when it is first needed.
#[derive(Default)]
pub struct Hosts(RefCell<BTreeMap<Settings, Rc<Ours>>>);

impl Hosts {
    /// Returns the host with these settings.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn with(&self, settings: Settings) -> Result<Rc<Ours>> {
        if let Some(ours) = self.0.borrow().get(&settings) {
            return Ok(ours.clone());
        }
        let ours = Rc::new(Ours::start(settings)?);
        self.0.borrow_mut().insert(settings, ours.clone());
        Ok(ours)
    }

    /// Returns the host with the defaults.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn plain(&self) -> Result<Rc<Ours>> {
        self.with(Settings::default())
    }
}

/// A host with a device.
pub struct Ours {
    /// The device.
    pub context: Context,
}

impl Ours {
    fn start(settings: Settings) -> Result<Self> {
        let Settings { crc, markers, revision, short_timeouts } = settings;
        let ms = if short_timeouts { 400 } else { 60_000 };
        let config = format!(
            "[iwarp]\ncrc = {crc}\nmarkers = '{markers}'\nrevision = {revision}\n\
             request_timeout_ms = {ms}\nreply_timeout_ms = {ms}\nrtr_timeout_ms = {ms}\n"
        );
        let name = format!(
            "rdmux-iwarp-{}-{crc}{markers}{revision}{short_timeouts}.toml",
            std::process::id()
        );
        let file = std::env::temp_dir().join(name);
        fs::write(&file, config)?;
        let builder = Context::builder().embedded().device(DeviceKind::Iwarp).config(&file);
        let context = builder.open();
        let _ = fs::remove_file(&file);
        Ok(Self { context: context? })
    }

    /// Listens on a free port.
    ///
    /// # Errors
    /// When it cannot.
    pub fn listen(&self) -> Result<Listener> {
        let channel = EventChannel::new(&self.context)?;
        let id = Id::new(&channel, PortSpace::Tcp)?;
        let at = SocketAddr::new(self.context.address()?, 0);
        let at = id.bind(at)?.socket().unwrap_or(at);
        id.listen(0)?;
        Ok(Listener { channel, _id: id, at })
    }

    /// Connects to a peer.
    ///
    /// # Errors
    /// When it cannot.
    pub fn connect(&self, to: SocketAddr, peer_to_peer: bool) -> Result<End> {
        let channel = EventChannel::new(&self.context)?;
        let id = Id::new(&channel, PortSpace::Tcp)?;
        id.resolve_addr(None, to, WAIT)?;
        next(&channel)?.expect(EventKind::AddrResolved, "find the way")?;
        id.resolve_route(WAIT)?;
        next(&channel)?.expect(EventKind::RouteResolved, "find the way")?;
        let end = End::new(&self.context, id, channel)?;
        let mut param = param();
        param.peer_to_peer = Some(peer_to_peer);
        end.id.connect(&param)?;
        Ok(end)
    }
}

fn param() -> ConnParam {
    let private_data = OURS.to_vec();
    let depths =
        ConnParam { responder_resources: DEPTH, initiator_depth: DEPTH, ..ConnParam::default() };
    ConnParam { private_data, ..depths }
}

/// Returns the next event of a channel.
///
/// # Errors
/// When there is none in time.
pub fn next(channel: &EventChannel) -> Result<Event> {
    channel.next(Some(WAIT))?.context("no event arrived in time")
}

/// A listener.
pub struct Listener {
    /// Its events.
    pub channel: EventChannel,
    _id: Id,
    /// Its address.
    pub at: SocketAddr,
}

impl Listener {
    /// Takes a request, and accepts it with a receive posted. Also returns whether it is peer-to-peer.
    ///
    /// # Errors
    /// When it cannot.
    pub fn accept(&self, context: &Context) -> Result<(End, Option<bool>)> {
        let mut request = next(&self.channel)?.expect(EventKind::ConnectRequest, "listen")?;
        ensure!(
            request.private_data() == THEIRS,
            "the request has private data {:?}",
            request.private_data()
        );
        let either = request.peer_to_peer();
        let id = request.take_id().context("the connection request has no id")?;
        let end = End::new(context, id, self.channel.clone())?;
        end.id.accept(&param())?;
        Ok((end, either))
    }
}

/// An end of a connection.
pub struct End {
    /// Its id.
    pub id: Id,
    /// Its queue pair.
    pub qp: Qp,
    /// Its receive buffer, with guard areas of 256 bytes on either side that must not be written.
    pub buffer: Mr,
    /// Memory that the peer may read, write and do atomics on.
    pub remote: Mr,
    /// Memory that the peer may only read.
    pub read_only: Mr,
    channel: EventChannel,
}

/// The size of the guard areas on either side of a receive.
const GUARD: usize = 256;
/// The value of untouched memory.
const UNTOUCHED: u8 = 0xa5;

impl End {
    fn new(context: &Context, id: Id, channel: EventChannel) -> Result<Self> {
        let pd = context.pd();
        let qp = pd.qp(QpType::Rc).cq(&context.cq(32)?).build()?;
        id.attach_qp(&qp)?;
        let remote = Access::LOCAL_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_WRITE
            | Access::REMOTE_ATOMIC;
        let buffer = pd.alloc(BUFFER + 2 * GUARD, Access::LOCAL_WRITE)?;
        let remote = pd.alloc(BUFFER, remote)?;
        let read_only = pd.alloc(BUFFER, Access::REMOTE_READ)?;
        for region in [&buffer, &remote, &read_only] {
            region.write(0, &vec![UNTOUCHED; region.len()]);
        }
        let end = Self { id, qp, buffer, remote, read_only, channel };
        end.post_receive(BUFFER)?;
        Ok(end)
    }

    /// Posts a receive of so many bytes.
    ///
    /// # Errors
    /// When it cannot.
    pub fn post_receive(&self, len: usize) -> Result<()> {
        Ok(self.qp.post_recv(1, &[self.buffer.slice(GUARD..GUARD + len)])?)
    }

    /// Returns the next event, which must be of this kind.
    ///
    /// # Errors
    /// When it is not, or there is none in time.
    pub fn event(&self, kind: EventKind) -> Result<Event> {
        Ok(next(&self.channel)?.expect(kind, "do the next step")?)
    }

    /// Returns the next event, of any kind.
    ///
    /// # Errors
    /// When there is none in time.
    pub fn any_event(&self) -> Result<Event> {
        next(&self.channel)
    }

    /// Checks that there is no event.
    ///
    /// # Errors
    /// When there is one.
    pub fn no_event(&self) -> Result<()> {
        match self.channel.try_next()? {
            Some(event) => bail!("unexpected event {:?}", event.kind()),
            None => Ok(()),
        }
    }

    /// Sends a message that [`is_message`] recognises.
    ///
    /// # Errors
    /// When it cannot.
    pub fn send(&self) -> Result<()> {
        let source = self.qp.pd().register(message(), Access::LOCAL_WRITE)?;
        self.qp.post_send(&SendWr::send(2).sges(&[source.slice(..)]).signaled())?;
        self.qp.send_cq().wait_one(Some(WAIT))?;
        Ok(())
    }

    /// Receives the [`message`].
    ///
    /// # Errors
    /// When something else arrived, or nothing.
    pub fn receive(&self) -> Result<()> {
        let done = self.qp.recv_cq().wait_one(Some(WAIT))?;
        let len = usize::try_from(done.byte_len)?;
        ensure!(
            is_message(&self.buffer.to_vec(GUARD..GUARD + len)),
            "the received message differs"
        );
        Ok(())
    }

    /// Returns the next asynchronous event of this end's queue pair.
    ///
    /// # Errors
    /// When there is none in time.
    pub fn async_event(&self, context: &Context) -> Result<QpEvent> {
        loop {
            match context
                .next_event(Some(WAIT))?
                .context("no asynchronous event arrived in time")?
            {
                AsyncEvent::Qp { qpn, event } if qpn == self.qp.qpn() => return Ok(event),
                _ => {}
            }
        }
    }

    /// Checks that the queue pair is in the error state.
    ///
    /// # Errors
    /// When it is not.
    pub fn is_broken(&self) -> Result<()> {
        ensure!(
            self.qp.state() == QpState::Err,
            "the queue pair is in state {:?}, not Err",
            self.qp.state()
        );
        Ok(())
    }

    /// Checks the same, and that no guarded memory was written.
    ///
    /// # Errors
    /// When that is not so.
    pub fn is_broken_cleanly(&self) -> Result<()> {
        self.is_broken()?;
        let buffer = self.buffer.to_vec(..);
        let guards = [&buffer[..GUARD], &buffer[buffer.len() - GUARD..]].concat();
        ensure!(
            guards.iter().all(|byte| *byte == UNTOUCHED),
            "memory beside a receive was written"
        );
        let untouched = |mr: &Mr| mr.to_vec(..).iter().all(|byte| *byte == UNTOUCHED);
        ensure!(untouched(&self.remote), "memory that a bad frame named was written");
        ensure!(untouched(&self.read_only), "read-only memory was written");
        Ok(())
    }
}

/// Returns a message with bytes of all values.
pub fn message() -> Vec<u8> {
    (0..=u8::MAX).cycle().take(MESSAGE).collect()
}

/// Returns whether these bytes are the test message.
pub fn is_message(bytes: &[u8]) -> bool {
    bytes == message()
}
