//! Closing connections that wait until the peer has read the last message.
//!
//! A socket that is closed with unread bytes resets the connection, and the reset may discard bytes that the peer has
//! not read yet, such as a refusal or the reason why no connection was made. So the service shuts down its direction,
//! and reads and discard input until the peer has shut down its own, within limits of time and bytes.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rdmux_cm::Time;
use rdmux_cm::iw::StreamId;
use rustix::net::{RecvFlags, Shutdown};

use crate::service::core::Core;
use crate::service::poller::{Interest, Token};

/// Time that a peer may take.
const TIME: Duration = Duration::from_secs(2);
/// The number of bytes that the peer may still send.
const BYTES: usize = 64 * 1024;
/// Maximum number of connections that may linger at a time. For another, the oldest is closed.
const MOST: usize = 256;

/// All lingering connections.
#[derive(Debug, Default)]
pub(in crate::service) struct Lingering(BTreeMap<StreamId, LingeringStream>);

/// A connection that waits for its peer to end it.
#[derive(Debug)]
struct LingeringStream {
    socket: OwnedFd,
    until: Time,
    /// Bytes that may still arrive.
    left: usize,
}

impl Lingering {
    /// Returns when the first one times out.
    pub(in crate::service) fn poll_timeout(&self) -> Option<Time> {
        self.0.values().map(|lingering| lingering.until).min()
    }
}

impl Core {
    /// Closes a connection so that the peer can read what was sent.
    pub(in crate::service) fn linger(&mut self, stream: StreamId) {
        let Some(socket) = self.forget_stream(stream) else { return };
        if rustix::net::shutdown(&socket, Shutdown::Write).is_err()
            || self.poller.add(&socket, Token::Stream(stream), Interest::Read).is_err()
        {
            return;
        }
        if self.streams.lingering.0.len() >= MOST
            && let Some((&oldest, _)) = self.streams.lingering.0.first_key_value()
        {
            self.close_lingering(oldest);
        }
        let until = self.now().after(TIME);
        self.streams.lingering.0.insert(stream, LingeringStream { socket, until, left: BYTES });
    }

    /// Reads from a lingering connection. Returns whether the stream is one.
    pub(in crate::service) fn read_lingering(&mut self, stream: StreamId) -> bool {
        let Some(lingering) = self.streams.lingering.0.get_mut(&stream) else { return false };
        let mut buf = [0; 4096];
        match rustix::net::recv(&lingering.socket, &mut buf[..], RecvFlags::DONTWAIT) {
            Ok((_, n)) if n != 0 && n < lingering.left => lingering.left -= n,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            _ => self.close_lingering(stream),
        }
        true
    }

    fn close_lingering(&mut self, stream: StreamId) {
        if let Some(lingering) = self.streams.lingering.0.remove(&stream) {
            self.poller.remove(&lingering.socket);
        }
    }

    /// Closes those that have timed out.
    pub(in crate::service) fn close_all_lingering(&mut self, now: Time) {
        let due = |(&stream, lingering): (&StreamId, &LingeringStream)| {
            (lingering.until <= now).then_some(stream)
        };
        let streams: Vec<StreamId> = self.streams.lingering.0.iter().filter_map(due).collect();
        streams.into_iter().for_each(|stream| self.close_lingering(stream));
    }

    /// Closes the oldest one to free its descriptor. Returns whether there was one.
    pub(in crate::service) fn close_oldest_lingering(&mut self) -> bool {
        let oldest = self.streams.lingering.0.first_key_value().map(|(&stream, _)| stream);
        oldest.inspect(|&stream| self.close_lingering(stream)).is_some()
    }
}
