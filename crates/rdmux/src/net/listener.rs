//! Listeners, which accept connections.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rdmux_cm::{EventKind, PortSpace};
use rdmux_verbs::throttled;

use super::establish::Halves;
use super::{Connection, Options};
use crate::Context;
use crate::cm::{Event, EventChannel, Id};
use crate::error::{Cause, Error, Result};
use crate::style::{Blocking, Style, block_on};
use crate::wait::Deadline;

/// Maximum number of connections that peers have begun and not finished. Each has its queue pair and buffers.
const MAX_PENDING: usize = 128;
/// Time that a peer has to confirm a connection. After it, another request may take the place of the oldest connection.
const PATIENCE: Duration = Duration::from_secs(1);
/// Maximum number of requests that wait for a place. Further ones are rejected.
const MAX_WAITING: usize = 4096;

/// Accepts connections of peers that [connect](Connection::connect).
#[derive(Debug)]
pub struct Listener {
    options: Options,
    channel: EventChannel,
    _listening: Id,
    local: SocketAddr,
    /// Accepted connections that the peer has not confirmed yet, the oldest first. At most [`MAX_PENDING`].
    pending: VecDeque<Pending>,
    /// Requests that wait for a place in `pending`, the oldest first. At most [`MAX_WAITING`].
    waiting: VecDeque<Event>,
}

/// A connection that the peer has not confirmed yet.
#[derive(Debug)]
struct Pending {
    halves: Halves,
    since: Instant,
}

impl Listener {
    pub(super) fn new(options: Options, at: SocketAddr) -> Result<Self> {
        let context = options.open_context()?;
        options.check(&context)?;
        let channel = EventChannel::new(&context)?;
        let id = Id::new(&channel, PortSpace::Tcp)?;
        let local = id.bind(at)?.socket().unwrap_or(at);
        id.listen(0)?;
        let (pending, waiting) = (VecDeque::new(), VecDeque::new());
        Ok(Self { options, channel, _listening: id, local, pending, waiting })
    }

    /// Listens on an address of this host, with the [default options](Options::new). Port 0 takes a
    /// free one.
    ///
    /// # Errors
    /// When the address is in use or is none of this host's.
    pub fn bind(at: SocketAddr) -> Result<Self> {
        Options::new().bind(at)
    }

    /// Returns the listener's address.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }
    /// Returns the device.
    pub fn context(&self) -> &Context {
        self.channel.context()
    }

    /// Waits for the next connection.
    ///
    /// # Errors
    /// When the host service is gone. Peers that fail while they connect cause no error.
    pub fn accept(&mut self) -> Result<Connection> {
        block_on(self.accept_in::<Blocking>())
    }
    /// Async form of [`accept`](Self::accept).
    ///
    /// # Errors
    /// As for [`accept`](Self::accept).
    #[cfg(feature = "tokio")]
    pub async fn accept_async(&mut self) -> Result<Connection> {
        self.accept_in::<crate::style::Tokio>().await
    }

    async fn accept_in<S: Style>(&mut self) -> Result<Connection> {
        loop {
            self.answer_waiting();
            // A connection ends only when no event is left to read: its confirmation may be among them.
            let Some(event) = self.channel.next_in::<S>(self.patience()).await? else {
                self.end_oldest();
                continue;
            };
            match event.kind() {
                EventKind::ConnectRequest if self.waiting.len() < MAX_WAITING => {
                    self.waiting.push_back(event);
                }
                EventKind::ConnectRequest => {
                    throttled!(warn, listener = %self.local, "too many peers connect: one is rejected");
                }
                EventKind::DeviceRemoval => {
                    return Err(Error::new(
                        format!("listener {}", self.local),
                        "accept",
                        Cause::Gone,
                    ));
                }
                kind => {
                    let at = self.pending.iter().position(|p| event.is_for(&p.halves.id));
                    let Some(pending) = at.and_then(|at| self.pending.remove(at)) else { continue };
                    drop(event);
                    if kind == EventKind::Established {
                        return pending.halves.join_with_channel();
                    }
                }
            }
        }
    }

    /// Accepts requests while there are places for them. Logs which are not accepted and why, and rejects them.
    fn answer_waiting(&mut self) {
        while self.pending.len() < MAX_PENDING
            && let Some(mut event) = self.waiting.pop_front()
        {
            let Some(id) = event.take_id() else { continue };
            match self.answer(id, &event) {
                Ok(halves) => self.pending.push_back(Pending { halves, since: Instant::now() }),
                Err(error) => {
                    throttled!(warn, listener = %self.local, %error, "cannot accept a connection");
                }
            }
        }
    }

    /// Returns until when the oldest connection keeps its place: forever while no request waits for it.
    fn patience(&self) -> Deadline {
        let oldest = self.pending.front().filter(|_| !self.waiting.is_empty());
        Deadline::after(oldest.map(|oldest| PATIENCE.saturating_sub(oldest.since.elapsed())))
    }

    /// Ends the connection whose peer had the most time.
    fn end_oldest(&mut self) {
        if let Some(oldest) = self.pending.pop_front() {
            let peer = oldest.halves.id.peer_addr();
            throttled!(warn, listener = %self.local, ?peer, "a peer did not finish connecting");
        }
    }

    fn answer(&self, id: Id, event: &Event) -> Result<Halves> {
        let mut halves = Halves::new(&self.options, id, &self.channel)?;
        halves.private_data = event.private_data().to_vec();
        let mut param = self.options.conn_param(self.context());
        if let Some(wish) = event.conn() {
            param.responder_resources = param.responder_resources.min(wish.responder_resources);
            param.initiator_depth = param.initiator_depth.min(wish.initiator_depth);
        }
        halves.id.accept(&param)?;
        Ok(halves)
    }
}

#[cfg(test)]
mod tests {
    use rdmux_cm::ConnParam;
    use rdmux_host::HostName;
    use rdmux_host::client::admin;

    use super::*;
    use crate::QpType;

    #[test]
    fn unfinished_connections_of_a_listener_are_bounded_and_keep_no_other_out() {
        let host = Context::builder().embedded().open().unwrap();
        let options = || Options::new().context(&host).message_size(64).depth(1);
        let mut listener = options().bind((host.address().unwrap(), 0).into()).unwrap();
        let to = listener.local_addr();
        let accepting = std::thread::spawn(move || {
            let peer = listener.accept().unwrap();
            (listener, peer)
        });
        let channel = EventChannel::new(&host).unwrap();
        let wait = |kind| {
            let next = || channel.next(Some(Duration::from_secs(10))).unwrap().expect("an event");
            while next().kind() != kind {}
        };
        let cq = host.cq(1).unwrap();
        let begin = || {
            let (qp, id) = (
                host.pd().qp(QpType::Rc).cq(&cq).build().unwrap(),
                Id::new(&channel, PortSpace::Tcp).unwrap(),
            );
            id.resolve_addr(None, to, Duration::from_secs(10)).unwrap();
            wait(EventKind::AddrResolved);
            id.resolve_route(Duration::from_secs(10)).unwrap();
            wait(EventKind::RouteResolved);
            let param = ConnParam { qp_num: qp.qpn(), ..ConnParam::default() };
            id.connect(&param).unwrap();
            wait(EventKind::ConnectResponse);
            (id, qp)
        };
        let _begun: Vec<_> = (0..MAX_PENDING + 2).map(|_| begin()).collect();
        let mut ours = options().connect(to).unwrap();
        let (listener, mut peer) = accepting.join().unwrap();
        ours.send(b"served").unwrap();
        assert_eq!(peer.recv().unwrap().as_deref(), Some(&b"served"[..]));
        assert!(listener.pending.len() < MAX_PENDING);
    }

    #[test]
    fn burst_of_peers_that_finish_connecting_is_served_whole() {
        const PEERS: usize = MAX_PENDING + 32;
        let host = Context::builder().embedded().open().unwrap();
        let options = || Options::new().context(&host).message_size(64).depth(1);
        let mut listener = options().bind((host.address().unwrap(), 0).into()).unwrap();
        let to = listener.local_addr();
        let (tell, results) = std::sync::mpsc::channel();
        for _ in 0..PEERS {
            let (options, tell) = (options(), tell.clone());
            std::thread::spawn(move || {
                let got = options.connect(to).and_then(|mut peer| peer.recv());
                tell.send(got)
            });
        }
        // All requests arrive before the first one is accepted.
        let name = HostName::new(host.host()).unwrap();
        let received = || {
            let status = admin::status(&host.options().dir, &name).unwrap();
            let count = |name| status.counter(name).unwrap();
            count("cm_mads_received") - count("cm_duplicates")
        };
        while received() < PEERS as u64 {
            std::thread::yield_now();
        }
        std::thread::spawn(move || {
            let mut served: Vec<_> = (0..PEERS).map(|_| listener.accept().unwrap()).collect();
            served.iter_mut().for_each(|peer| peer.send(b"served").unwrap());
            served.into_iter().for_each(|mut peer| drop(peer.recv()));
        });
        for got in results.iter().take(PEERS) {
            assert_eq!(got.unwrap().as_deref(), Some(&b"served"[..]));
        }
    }
}
