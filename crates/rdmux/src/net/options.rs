//! Options of connections, listeners and datagram endpoints.

use std::net::SocketAddr;
use std::time::Duration;

use rdmux_cm::ConnParam;

use super::establish::ONE_SIDED;
use super::{Connection, Datagram, Listener};
use crate::Context;
use crate::error::{Cause, Error, Result};
use crate::resolver::Answer;
use crate::style::{Blocking, block_on};

/// Options of a [`Connection`], [`Listener`] or [`Datagram`]. Both sides should agree on the size of messages.
#[derive(Clone, Debug)]
#[must_use = "nothing is created before `connect`, `bind` or `datagram`"]
pub struct Options {
    pub(super) context: Option<Context>,
    pub(super) message_size: usize,
    pub(super) depth: u32,
    pub(super) timeout: Duration,
    pub(super) source: Option<SocketAddr>,
    pub(super) private_data: Vec<u8>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            context: None,
            message_size: 64 * 1024,
            depth: 16,
            timeout: Duration::from_secs(10),
            source: None,
            private_data: Vec::new(),
        }
    }
}

impl Options {
    /// Returns the defaults: messages of up to 64 KiB, 16 of them in flight in each direction, ten seconds to
    /// connect.
    pub fn new() -> Self {
        Self::default()
    }
    /// Uses this device instead of that of [`Context::open`].
    pub fn context(mut self, context: &Context) -> Self {
        self.context = Some(context.clone());
        self
    }
    /// Sets the length of the longest message, in bytes; at most 2 GiB. Each direction has memory for
    /// [`depth`](Self::depth) messages.
    pub fn message_size(mut self, bytes: usize) -> Self {
        self.message_size = bytes;
        self
    }
    /// Sets the number of messages that may be in flight in each direction: at least one, and for connections at most
    /// 16 less than a queue of the device holds ([`Limits`](crate::Limits)).
    pub fn depth(mut self, messages: u32) -> Self {
        self.depth = messages.max(1);
        self
    }
    /// Sets the time that connecting may take.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
    /// Connects from this address.
    pub fn source(mut self, source: SocketAddr) -> Self {
        self.source = Some(source);
        self
    }
    /// Sets the private data that the other side gets with the connection: at most 56 bytes from the connecting side,
    /// 196 from the accepting side. The other side sees them padded with zeroes.
    pub fn private_data(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.private_data = bytes.into();
        self
    }

    /// Connects to a [`Listener`], or to any program that exchanges messages by SEND.
    ///
    /// # Errors
    /// When no program listens, or the time has passed; [`Cause::Invalid`] for an impossible depth or message size.
    pub fn connect(self, to: SocketAddr) -> Result<Connection> {
        block_on(super::establish::connect::<Blocking>(self, super::establish::by_ip(to)))
    }
    /// Async form of [`connect`](Self::connect).
    ///
    /// # Errors
    /// As for [`connect`](Self::connect).
    #[cfg(feature = "tokio")]
    pub async fn connect_async(self, to: SocketAddr) -> Result<Connection> {
        super::establish::connect::<crate::style::Tokio>(self, super::establish::by_ip(to)).await
    }
    /// Connects to an answer of a [`Resolver`](crate::resolver::Resolver): along its paths if it has some, without any query.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect), and [`Cause::Invalid`] when the answer is for listeners, for datagrams or for queue pairs
    /// other than RC.
    pub fn connect_along(self, to: &Answer) -> Result<Connection> {
        block_on(super::establish::connect::<Blocking>(self, to.clone()))
    }
    /// Async form of [`connect_along`](Self::connect_along).
    ///
    /// # Errors
    /// As for [`connect_along`](Self::connect_along).
    #[cfg(feature = "tokio")]
    pub async fn connect_along_async(self, to: &Answer) -> Result<Connection> {
        super::establish::connect::<crate::style::Tokio>(self, to.clone()).await
    }
    /// Listens for connections on an address of this host. Port 0 takes a free one.
    ///
    /// # Errors
    /// When the address is in use or is none of this host's; [`Cause::Invalid`] for an impossible depth or message size.
    pub fn bind(self, at: SocketAddr) -> Result<Listener> {
        Listener::new(self, at)
    }
    /// Creates a datagram endpoint at an address of this host. Port 0 takes a free one.
    ///
    /// # Errors
    /// When the address is in use or is none of this host's; [`Cause::Invalid`] for an impossible depth.
    pub fn datagram(self, at: SocketAddr) -> Result<Datagram> {
        Datagram::new(self, at)
    }

    /// Returns the context of the options, or opens the default device.
    pub(super) fn open_context(&self) -> Result<Context> {
        self.context.clone().map_or_else(Context::open, Ok)
    }

    /// Checks a connection's sizes against the limits of the device and the address space, before anything is
    /// allocated.
    pub(super) fn check(&self, context: &Context) -> Result<()> {
        self.check_depth(context, ONE_SIDED)?;
        // Some bytes follow the messages.
        let bytes = self.message_size.checked_mul(self.depth as usize);
        let is_possible = bytes.is_some_and(|bytes| bytes <= isize::MAX as usize - 4096);
        if !is_possible || self.message_size > rdmux_transport::MAX_MESSAGE as usize {
            let (size, depth) = (self.message_size, self.depth);
            return Err(impossible(format!("{depth} messages of {size} bytes each")));
        }
        Ok(())
    }

    /// Checks a depth, for queues that have room for `besides` more entries.
    pub(super) fn check_depth(&self, context: &Context, besides: u32) -> Result<()> {
        let limits = context.limits();
        let most = limits.max_qp_wr.min(limits.max_cqe).saturating_sub(besides);
        if self.depth > most {
            let why =
                format!("a depth of {} messages exceeds the device's limit of {most}", self.depth);
            return Err(impossible(why));
        }
        Ok(())
    }

    /// Returns the connection parameters: as many READs and atomics as the device allows, and all retries.
    pub(super) fn conn_param(&self, context: &Context) -> ConnParam {
        let depth = context.limits().max_rd_atomic;
        ConnParam {
            private_data: self.private_data.clone(),
            responder_resources: depth,
            initiator_depth: depth,
            retry_count: 7,
            rnr_retry_count: 7,
            ..ConnParam::default()
        }
    }
}

fn impossible(why: String) -> Error {
    Error::new("options", "be applied", Cause::Invalid(why))
}
