//! Listeners, which accept connections.

use std::collections::VecDeque;
use std::net::SocketAddr;

use rdmux_cm::{EventKind, PortSpace};
use rdmux_verbs::throttled;

use super::establish::Halves;
use super::{Connection, Options};
use crate::Context;
use crate::cm::{Event, EventChannel, Id};
use crate::error::{Cause, Error, Result};
use crate::style::{Blocking, Style, block_on};
use crate::wait::Deadline;

/// Maximum number of connections that peers have begun and not finished. Each has its queue pair and buffers. The peer of the
/// oldest one had the most time.
const MAX_PENDING: usize = 128;

/// Accepts connections of peers that [connect](Connection::connect).
#[derive(Debug)]
pub struct Listener {
    options: Options,
    channel: EventChannel,
    _listening: Id,
    local: SocketAddr,
    /// Accepted connections that the peer has not confirmed yet, the oldest first. At most [`MAX_PENDING`].
    pending: VecDeque<Halves>,
}

impl Listener {
    pub(super) fn new(options: Options, at: SocketAddr) -> Result<Self> {
        let context = options.open_context()?;
        options.check(&context)?;
        let channel = EventChannel::new(&context)?;
        let id = Id::new(&channel, PortSpace::Tcp)?;
        let local = id.bind(at)?.socket().unwrap_or(at);
        id.listen(0)?;
        Ok(Self { options, channel, _listening: id, local, pending: VecDeque::new() })
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
            let Some(event) = self.channel.next_in::<S>(Deadline::after(None)).await? else {
                continue;
            };
            match event.kind() {
                EventKind::ConnectRequest => self.request(event),
                EventKind::DeviceRemoval => {
                    return Err(Error::new(
                        format!("listener {}", self.local),
                        "accept",
                        Cause::Gone,
                    ));
                }
                kind => {
                    let at = self.pending.iter().position(|p| event.is_for(&p.id));
                    let Some(pending) = at.and_then(|at| self.pending.remove(at)) else { continue };
                    drop(event);
                    if kind == EventKind::Established {
                        return pending.join_with_channel();
                    }
                }
            }
        }
    }

    /// Accepts a request, or logs why not and rejects it. If too many connections are pending, the oldest is ended.
    fn request(&mut self, mut event: Event) {
        let Some(id) = event.take_id() else { return };
        if self.pending.len() >= MAX_PENDING
            && let Some(oldest) = self.pending.pop_front()
        {
            let peer = oldest.id.peer_addr();
            throttled!(warn, listener = %self.local, ?peer, "a peer did not finish connecting");
        }
        match self.answer(id, &event) {
            Ok(halves) => self.pending.push_back(halves),
            Err(error) => {
                throttled!(warn, listener = %self.local, %error, "cannot accept a connection");
            }
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
    use std::time::Duration;

    use rdmux_cm::ConnParam;

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
        assert_eq!(listener.pending.len(), MAX_PENDING - 1);
    }
}
