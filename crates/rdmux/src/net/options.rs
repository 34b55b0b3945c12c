//! How a connection, listener or datagram endpoint shall be.

use std::net::SocketAddr;
use std::time::Duration;

use rdmux_cm::ConnParam;

use super::establish::ONE_SIDED;
use super::{Connection, Datagram, Listener};
use crate::Context;
use crate::error::{Cause, Error, Result};
use crate::resolver::Answer;
use crate::style::{Blocking, block_on};

/// How a [`Connection`], [`Listener`] or [`Datagram`] shall be. Both sides should agree on the
/// size of messages.
#[derive(Clone, Debug)]
#[must_use = "nothing is made before `connect`, `bind` or `datagram`"]
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
    /// Messages of up to 64 KiB, 16 of them under way in each direction, ten seconds to connect.
    pub fn new() -> Self {
        Self::default()
    }
    /// On this device. Without it, on that of [`Context::open`].
    pub fn context(mut self, context: &Context) -> Self {
        self.context = Some(context.clone());
        self
    }
    /// The longest message, in bytes; at most 2 GiB. There is memory for [`depth`](Self::depth) of them in each direction.
    pub fn message_size(mut self, bytes: usize) -> Self {
        self.message_size = bytes;
        self
    }
    /// How many messages may be under way in each direction; at least one, and for connections 16 less than the
    /// device has room for in a queue ([`Limits`](crate::Limits)).
    pub fn depth(mut self, messages: u32) -> Self {
        self.depth = messages.max(1);
        self
    }
    /// How long connecting may take.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
    /// Connect from this address.
    pub fn source(mut self, source: SocketAddr) -> Self {
        self.source = Some(source);
        self
    }
    /// Bytes that the other side gets with the connection: at most 56 from the connecting side,
    /// 196 from the accepting side. The other side sees them padded with zeroes.
    pub fn private_data(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.private_data = bytes.into();
        self
    }

    /// Connects to a [`Listener`], or to any program that exchanges messages by SEND.
    ///
    /// # Errors
    /// When nobody listens there, or the time has passed; [`Cause::Invalid`] for a depth or a size of messages that cannot be.
    pub fn connect(self, to: SocketAddr) -> Result<Connection> {
        block_on(super::establish::connect::<Blocking>(self, super::establish::by_ip(to)))
    }
    /// As [`connect`](Self::connect), async.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect).
    #[cfg(feature = "tokio")]
    pub async fn connect_async(self, to: SocketAddr) -> Result<Connection> {
        super::establish::connect::<crate::style::Tokio>(self, super::establish::by_ip(to)).await
    }
    /// Connects to what a [`Resolver`](crate::resolver::Resolver) has found: along its paths, if it has some, and then nobody is
    /// asked for anything.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect); when the answer is one for listeners or for datagrams.
    pub fn connect_along(self, to: &Answer) -> Result<Connection> {
        block_on(super::establish::connect::<Blocking>(self, to.clone()))
    }
    /// As [`connect_along`](Self::connect_along), async.
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
    /// When the address is in use or none of this host's; [`Cause::Invalid`] for a depth or a size of messages that cannot be.
    pub fn bind(self, at: SocketAddr) -> Result<Listener> {
        Listener::new(self, at)
    }
    /// Receives datagrams at an address of this host. Port 0 takes a free one.
    ///
    /// # Errors
    /// When the address is in use or none of this host's; [`Cause::Invalid`] for a depth that cannot be.
    pub fn datagram(self, at: SocketAddr) -> Result<Datagram> {
        Datagram::new(self, at)
    }

    pub(super) fn open_context(&self) -> Result<Context> {
        self.context.clone().map_or_else(Context::open, Ok)
    }

    /// Says what of a connection's sizes is beyond the device or the address space, before anything is made of them.
    pub(super) fn check(&self, context: &Context) -> Result<()> {
        self.check_depth(context, ONE_SIDED)?;
        // Behind the messages there are some bytes more.
        let bytes = self.message_size.checked_mul(self.depth as usize);
        let is_possible = bytes.is_some_and(|bytes| bytes <= isize::MAX as usize - 4096);
        if !is_possible || self.message_size > rdmux_transport::MAX_MESSAGE as usize {
            let (size, depth) = (self.message_size, self.depth);
            return Err(impossible(format!("{depth} messages of {size} bytes each")));
        }
        Ok(())
    }

    /// The same of a depth, of queues that have room for so many besides.
    pub(super) fn check_depth(&self, context: &Context, besides: u32) -> Result<()> {
        let limits = context.limits();
        let most = limits.max_qp_wr.min(limits.max_cqe).saturating_sub(besides);
        if self.depth > most {
            let why = format!("a depth of {} messages, where the device allows {most}", self.depth);
            return Err(impossible(why));
        }
        Ok(())
    }

    /// What is said to the peer: as many READs and atomics as the device does, all retries.
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
    Error::new("options", "be followed", Cause::Invalid(why))
}
