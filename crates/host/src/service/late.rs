//! Messages whose descriptors the kernel refuses for now, because too many that the service's user sent are in flight: sent, but not yet
//! received (`ETOOMANYREFS`; unix(7)). Nothing tells when that changes, so they are sent again at intervals.
//!
//! No further request of a client is served while its reply is late.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rdmux_cm::Time;
use rdmux_runtime::Share;

use super::clients::{ClientId, Gone};
use super::core::Core;
use super::outgoing::is_refused;
use super::poller::{Interest, Token};
use crate::proto::socket::{self, MessageError};

/// Interval at which late messages are sent again.
const RETRY: Duration = Duration::from_millis(10);

/// The late messages.
#[derive(Debug, Default)]
pub(super) struct Late {
    /// The replies, at most one for a client.
    replies: BTreeMap<ClientId, LateReply>,
    /// The clients with late notifications, which wait in [`Outgoing`](super::outgoing::Outgoing).
    notifications: BTreeSet<ClientId>,
    /// Time at which to try again, while messages are late.
    due: Option<Time>,
}

#[derive(Debug)]
struct LateReply {
    bytes: Vec<u8>,
    fds: Vec<OwnedFd>,
    /// The shares for the bytes and the descriptors.
    _shares: [Share; 2],
}

impl Late {
    /// Returns whether the reply to a client is late.
    pub(super) fn has_reply(&self, id: ClientId) -> bool {
        self.replies.contains_key(&id)
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.due
    }

    /// Forgets the messages for a client that is gone.
    pub(super) fn client_gone(&mut self, id: ClientId) {
        self.replies.remove(&id);
        self.notifications.remove(&id);
    }
}

impl Core {
    /// Keeps a reply whose descriptors the kernel refused. The client is dropped if its user has too many messages that wait.
    pub(super) fn put_off_reply(&mut self, id: ClientId, bytes: Vec<u8>, fds: Vec<OwnedFd>) {
        let Some(client) = self.clients.get(id) else { return };
        let (mut waiting, descriptors) = (self.waiting_of(id), self.descriptors_for(id, fds.len()));
        let Ok(descriptors) =
            descriptors.and_then(|share| waiting.take(bytes.len()).map(|()| share))
        else {
            return self.doom(id, Gone::Slow);
        };
        // Only its end is of interest.
        self.poller.change(&client.rpc, Token::Rpc(id), Interest::Nothing);
        let late = LateReply { bytes, fds, _shares: [waiting, descriptors] };
        self.late.replies.insert(id, late);
        self.try_again_soon();
    }

    /// Notes that the kernel refused the descriptors of a client's notification.
    pub(super) fn put_off_notifications(&mut self, id: ClientId) {
        self.late.notifications.insert(id);
        self.try_again_soon();
    }

    fn try_again_soon(&mut self) {
        let now = self.now();
        self.late.due.get_or_insert(now.after(RETRY));
    }

    /// Drops the late reply to a client that has closed its socket, so that its last requests are served.
    pub(super) fn drop_late_reply(&mut self, id: ClientId) {
        if self.late.replies.remove(&id).is_some()
            && let Some(client) = self.clients.get(id)
        {
            self.poller.change(&client.rpc, Token::Rpc(id), Interest::Read);
        }
    }

    /// Sends late messages if that is due, until one is refused again.
    pub(super) fn send_late(&mut self) {
        let now = self.now();
        if self.late.due.take_if(|due| *due <= now).is_none() {
            return;
        }
        while let Some(id) = self.late.notifications.pop_first() {
            self.flush_notify(id);
            if self.late.due.is_some() {
                return;
            }
        }
        while let Some((id, late)) = self.late.replies.pop_first() {
            let Some(client) = self.clients.get(id) else { continue };
            let fds: Vec<BorrowedFd<'_>> = late.fds.iter().map(AsFd::as_fd).collect();
            match socket::send_bytes(client.rpc.as_fd(), &late.bytes, &fds) {
                Err(e) if is_refused(&e) => {
                    self.late.replies.insert(id, late);
                    return self.try_again_soon();
                }
                sent => {
                    self.poller.change(&client.rpc, Token::Rpc(id), Interest::Read);
                    self.replied(id, sent);
                }
            }
        }
    }

    /// Drops a client to which a reply could not be sent.
    pub(super) fn replied(&mut self, id: ClientId, sent: Result<(), MessageError>) {
        match sent {
            Ok(()) => {}
            // The client sends requests without reading the replies.
            Err(MessageError::WouldBlock) => self.doom(id, Gone::Slow),
            Err(MessageError::Closed) => self.doom(id, Gone::Closed),
            Err(e) => self.doom(id, Gone::Broke(format!("cannot send the reply: {e}"))),
        }
    }
}
