//! Listeners, which accept connections.

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

/// Accepts connections of peers that [connect](Connection::connect).
#[derive(Debug)]
pub struct Listener {
    options: Options,
    channel: EventChannel,
    _listening: Id,
    local: SocketAddr,
    /// Accepted connections that the peer has not confirmed yet.
    pending: Vec<Halves>,
}

impl Listener {
    pub(super) fn new(options: Options, at: SocketAddr) -> Result<Self> {
        let context = options.open_context()?;
        options.check(&context)?;
        let channel = EventChannel::new(&context)?;
        let id = Id::new(&channel, PortSpace::Tcp)?;
        let local = id.bind(at)?.socket().unwrap_or(at);
        id.listen(0)?;
        Ok(Self { options, channel, _listening: id, local, pending: Vec::new() })
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
                    let Some(pending) = at.map(|at| self.pending.swap_remove(at)) else { continue };
                    drop(event);
                    if kind == EventKind::Established {
                        return pending.join_with_channel();
                    }
                }
            }
        }
    }

    /// Accepts a request, or logs why not and rejects it.
    fn request(&mut self, mut event: Event) {
        let Some(id) = event.take_id() else { return };
        match self.answer(id, &event) {
            Ok(halves) => self.pending.push(halves),
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
