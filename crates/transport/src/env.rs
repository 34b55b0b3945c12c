//! The seam: what a queue pair asks of its driver.
//!
//! A machine takes an [`Env`] as a type parameter, so that the device plugs in memory, completion
//! queues and sockets, and the simulator plugs in its own, at no cost (static dispatch, nothing
//! collected, nothing boxed).

use rdmux_wire::{Pkey, Psn, Qpn, Rkey};

use crate::attr::{Access, AddressVector, QpAttr};
use crate::qp::Source;
use crate::wr::{Completion, MwBind, Sge};

/// What the link under a queue pair can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkCaps {
    /// The most payload bytes of one packet. A lossless link may take more than a path MTU, and
    /// then the queue pair's packets are of this size, whatever its path MTU says: both ends of
    /// such a link know that they are on it.
    pub max_payload: u32,
    /// Whether every packet arrives, in order, unless the peer dies. Timers still run, since the
    /// peer's queue pair may not be ready yet, but there is no congestion window.
    pub lossless: bool,
    /// Whether the driver may be able to reach the peer's memory itself ([`Env::direct`]), and the peer's driver
    /// ours ([`Env::transmit_named`]).
    pub by_reference: bool,
    /// Whether acknowledgements are piggybacked on packets ([`TxPacket::ack`]) in place of packets of their own.
    pub piggybacks_acks: bool,
}

/// Why memory could not be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessFault {
    /// No such key, or a key of another kind.
    #[error("no such key")]
    Key,
    /// The range leaves the region.
    #[error("outside the region")]
    Bounds,
    /// The region does not allow it.
    #[error("access not allowed")]
    Rights,
    /// The region belongs to another protection domain.
    #[error("another protection domain")]
    Domain,
    /// The memory was unmapped, or protected, while it was registered.
    #[error("not mapped")]
    Unmapped,
    /// The process that owns the memory is gone.
    #[error("the memory is gone")]
    Gone,
    /// The process that owns the memory cannot take it now. Only what a peer asks for is answered so:
    /// the peer hears that the receiver is not ready, and tries again.
    #[error("the owner of the memory is busy")]
    Busy,
}

/// Why a packet did not leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxError {
    /// The link is full. Nothing was sent: ask again when the driver calls `poll_transmit`.
    Busy,
    /// The payload's memory may not be used. Nothing was sent.
    Memory(AccessFault),
}

/// Where the payload of a packet lies.
#[derive(Clone, Copy, Debug)]
pub enum TxPayload<'a> {
    /// Nowhere.
    None,
    /// Here.
    Bytes(&'a [u8]),
    /// In local registered memory: `len` bytes that start `offset` bytes into the gather list.
    Gather {
        /// The whole list of the work request.
        sges: &'a [Sge],
        /// Bytes to skip.
        offset: u32,
        /// Bytes to take.
        len: u32,
    },
    /// In memory that a peer named: the payload of a READ response.
    Remote {
        /// The key.
        rkey: Rkey,
        /// The address.
        va: u64,
        /// Bytes to take.
        len: u32,
        /// The shared receive queue that the request named, and with it whose memory this is; XRC
        /// only, 0 elsewhere.
        srqn: u32,
    },
}

/// A packet to send.
#[derive(Clone, Copy, Debug)]
pub struct TxPacket<'a> {
    /// Where to: the queue pair's own path, or for UD that of the work request.
    pub av: &'a AddressVector,
    /// BTH and extension headers, as they go on the wire.
    pub header: &'a [u8],
    /// What follows them.
    pub payload: TxPayload<'a>,
    /// Zero bytes after the payload, 0 to 3 (also in the BTH).
    pub pad: u8,
    /// Whether more packets of this queue pair follow at once, so that the driver may gather them
    /// into one system call.
    pub more: bool,
    /// An acknowledgement of everything up to this PSN, on a link that piggybacks them. The receiving driver
    /// hands it to [`Qp::handle_piggybacked_ack`](crate::Qp::handle_piggybacked_ack) before the packet.
    pub ack: Option<Psn>,
}

/// The payload of a packet that names it instead of carrying it.
#[derive(Clone, Copy, Debug)]
pub struct Named<'a> {
    /// Bytes of it. They take as many PSNs as if they were carried.
    pub len: u32,
    /// Where they are, in the driver's own words.
    pub at: &'a [u8],
}

/// Why bytes that a packet names were not fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchError {
    /// They do not go where they are to go.
    Memory(AccessFault),
    /// They cannot be had, for whatever reason: the peer is asked to send them.
    OutOfReach,
}

/// A copy between local memory and the peer's, which the driver may be able to carry out itself.
#[derive(Clone, Copy, Debug)]
pub struct Direct<'a> {
    /// Whether the peer's memory is written, else it is read.
    pub write: bool,
    /// The peer.
    pub dest_qpn: Qpn,
    /// The P_Key that a packet would have.
    pub pkey: Pkey,
    /// The key of its memory.
    pub rkey: Rkey,
    /// Where in it.
    pub va: u64,
    /// Bytes, at least one.
    pub len: u32,
    /// Whether they are the first of their work request.
    pub is_first: bool,
    /// As many bytes of local memory.
    pub near: TxPayload<'a>,
}

/// The two atomics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Adds.
    FetchAdd {
        /// What is added, modulo 2^64.
        add: u64,
    },
    /// Swaps if equal.
    CmpSwap {
        /// What must be there.
        compare: u64,
        /// What is put there then.
        swap: u64,
    },
}

/// How far an atomic got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicAnswer {
    /// It is done, and this was there before, in host order.
    Now(u64),
    /// Its memory's owner will do it. Then the driver calls [`Qp::atomic_done`](crate::Qp::atomic_done).
    Later,
}

/// A receive work request taken from a shared receive queue.
#[derive(Clone, Copy, Debug)]
pub struct SrqEntry {
    /// From the work request.
    pub wr_id: u64,
    /// How many of the entries that the driver filled in count.
    pub num_sge: usize,
}

/// Which of a queue pair's completion queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The send queue's.
    Send,
    /// The receive queue's.
    Recv,
}

/// What a queue pair tells asynchronously; a part of `ibv_event_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum QpEvent {
    /// The first packet came while in RTR.
    CommEst,
    /// The send queue is drained.
    SqDrained,
    /// A queue pair of a shared receive queue, in the error state, takes no more receives.
    LastWqeReached,
    /// The queue pair failed for a reason of our own.
    Fatal,
    /// A peer's request was invalid.
    ReqErr,
    /// A peer's request broke the access rules.
    AccessErr,
    /// The connection has migrated to the alternate path.
    PathMig,
    /// The peer asked to migrate, by a path that is not the alternate one: nothing has changed.
    PathMigErr,
}

/// What is counted when a packet is dropped, refused or put off. The name is the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Drop {
    /// The queue pair's state takes no packets.
    State,
    /// The opcode does not belong to this transport, or is reserved.
    Opcode,
    /// A packet of the middle of a message without its beginning, or the like.
    Sequence,
    /// The length contradicts the MTU, the opcode or the message.
    Length,
    /// The partition key does not match.
    Pkey,
    /// The Q_Key does not match.
    Qkey,
    /// The source address is not the connection's peer.
    Source,
    /// Seen before; answered again where the spec says so.
    Duplicate,
    /// Later than expected: something was lost.
    Gap,
    /// The same, but it is kept until what was lost comes.
    Early,
    /// Not dropped: what was lost came, and what had been kept behind it was carried out.
    Filled,
    /// A response to nothing, or too late.
    Stale,
    /// No receive was posted (UC, UD).
    NoReceive,
    /// The memory could not be written.
    Memory,
    /// A packet named its payload, which could not be fetched.
    OutOfReach,
}

/// What a queue pair asks of its driver. Every method is called with the queue pair
/// borrowed: do not call back into it.
pub trait Env {
    /// What this queue pair's link can do. Does not change while the queue pair is in RTR or above, but for
    /// [`by_reference`](LinkCaps::by_reference), which may be another by the alternate path.
    fn link(&self) -> LinkCaps;

    /// The queue pair has migrated: packets go by the alternate path from here on, whose attributes are those of the path
    /// now. A driver lets a program load only one whose link has the same capabilities.
    fn migrated(&mut self, _attr: &QpAttr) {}

    /// Whether a packet came along a path as far as the driver can tell: to our end of it, and, where its
    /// [`Source`] says nothing, from the peer's end. Asked only while the queue pair may migrate.
    fn came_along(&self, _av: &AddressVector, _source: &Source<'_>) -> bool {
        true
    }

    /// Bytes that this queue pair may have in flight, beside what its window says: its share of what the receiver's
    /// buffer holds. It may change at any time; one packet may always be.
    fn room(&self) -> u32 {
        u32::MAX
    }

    /// Whether out-of-order packets may be buffered until those before them arrive, some MiB for a queue pair at
    /// most. Else they are dropped, and the peer sends them again.
    fn buffers_out_of_order(&self) -> bool {
        true
    }

    /// A packet for this queue pair has another P_Key, or another Q_Key, as the reason says (IBTA 10.2.5, 10.9.4): its port tells the
    /// subnet's manager. It is counted like any that is dropped, besides.
    fn wrong_key(&mut self, _rx: &crate::RxPacket<'_>, _reason: Drop) {}

    /// Sends a packet. The payload is read before the call returns or before the driver releases
    /// the queue pair, whichever it likes.
    fn transmit(&mut self, packet: &TxPacket<'_>) -> Result<(), TxError>;

    /// Sends a packet that names its payload, a [`Gather`](TxPayload::Gather) which may be longer than that of any packet
    /// that carries its own, where the link can ([`LinkCaps::by_reference`]). The peer's driver hands it to
    /// [`Qp::handle_named`](crate::Qp::handle_named). False if this payload cannot be named: then nothing was sent.
    fn transmit_named(&mut self, _packet: &TxPacket<'_>) -> Result<bool, TxError> {
        Ok(false)
    }

    /// Sends an acknowledgement of everything up to `psn` by itself, on a link that piggybacks them
    /// ([`LinkCaps::piggybacks_acks`]): the peer's driver hands it to
    /// [`Qp::handle_piggybacked_ack`](crate::Qp::handle_piggybacked_ack). False if it is to be a packet.
    fn acknowledge(&mut self, _dest_qpn: Qpn, _psn: Psn) -> bool {
        false
    }

    /// As [`scatter_receive`](Self::scatter_receive), of bytes that a packet names.
    fn fetch(&mut self, _sges: &[Sge], _offset: u32, _from: &Named<'_>) -> Result<(), FetchError> {
        Err(FetchError::OutOfReach)
    }

    /// As [`write_remote`](Self::write_remote), of bytes that a packet names.
    fn fetch_remote(&mut self, _rkey: Rkey, _va: u64, _from: &Named<'_>) -> Result<(), FetchError> {
        Err(FetchError::OutOfReach)
    }

    /// Carries out a WRITE or READ, or a part of one, without the peer's help, where the link can
    /// ([`LinkCaps::by_reference`]). Everything that was posted before is complete. With the checks that the peer
    /// would make: false if one of them fails, if the peer's queue pair does not take requests now, or if it cannot
    /// be done in this way for any reason. Then bytes may have been copied in part, and packets will do it all.
    fn direct(&mut self, _copy: &Direct<'_>) -> bool {
        false
    }

    /// The queue pair fails, and takes nothing any more of what its peer asks for. When this returns nobody
    /// carries anything out in its place either. Called before its work is flushed.
    fn closed(&mut self) {}

    /// Checks that every entry is inside a region of this queue pair's protection domain with
    /// `access` (for sending, none is needed).
    fn check_local(&self, sges: &[Sge], access: Access) -> Result<(), AccessFault>;

    /// Copies `data` into the scatter list of a send work request, which a READ or an atomic has, `offset`
    /// bytes into it. The list was checked to be long enough; keys and rights are checked here, each time,
    /// against the queue pair's protection domain.
    fn scatter(&mut self, sges: &[Sge], offset: u32, data: &[u8]) -> Result<(), AccessFault>;

    /// As [`scatter`](Self::scatter), for the list of a receive. One from a shared receive queue is checked
    /// against the protection domain of that queue, which need not be the queue pair's (IBTA 10.2.9).
    /// A driver that has only one domain need not tell the two apart.
    #[inline]
    fn scatter_receive(
        &mut self,
        sges: &[Sge],
        offset: u32,
        data: &[u8],
    ) -> Result<(), AccessFault> {
        self.scatter(sges, offset, data)
    }

    /// Checks a peer's claim on memory: key, range, rights, protection domain. A zero length needs
    /// no valid key; callers do not ask then.
    fn check_remote(
        &self,
        rkey: Rkey,
        va: u64,
        len: u64,
        access: Access,
    ) -> Result<(), AccessFault>;

    /// Copies a peer's `data` to memory that it named, with the checks of
    /// [`check_remote`](Self::check_remote) for [`Access::REMOTE_WRITE`].
    fn write_remote(&mut self, rkey: Rkey, va: u64, data: &[u8]) -> Result<(), AccessFault>;

    /// Carries out an atomic on eight aligned bytes in host order, with the checks for
    /// [`Access::REMOTE_ATOMIC`], and returns what was there; or sees to it that somebody does, and
    /// remembers `psn`, by which the queue pair knows the request.
    fn atomic(
        &mut self,
        psn: Psn,
        rkey: Rkey,
        va: u64,
        op: AtomicOp,
    ) -> Result<AtomicAnswer, AccessFault>;

    /// Invalidates a key, for SEND with invalidate (`remote`) or a local invalidate.
    fn invalidate(&mut self, rkey: Rkey, remote: bool) -> Result<(), AccessFault>;

    /// Binds a memory window. A driver without windows refuses.
    fn bind(&mut self, _bind: &MwBind) -> Result<(), AccessFault> {
        Err(AccessFault::Key)
    }

    /// Chooses the shared receive queue that a packet of XRC names. Until the next call it is the one
    /// of [`pop_srq`](Self::pop_srq) and of completions on [`Side::Recv`], and its owner's memory is
    /// what [`scatter_receive`](Self::scatter_receive), [`check_remote`](Self::check_remote),
    /// [`write_remote`](Self::write_remote), [`atomic`](Self::atomic) and
    /// [`invalidate`](Self::invalidate) are about. Refused if there is no such queue, or not in the
    /// queue pair's domain. A driver without XRC refuses them all.
    fn select_srq(&mut self, _srqn: u32) -> Result<(), AccessFault> {
        Err(AccessFault::Domain)
    }

    /// Takes the next receive of the shared receive queue, if this queue pair has one, into `sges`.
    fn pop_srq(&mut self, sges: &mut [Sge]) -> Option<SrqEntry>;

    /// Delivers a completion. When the queue is full the driver raises the error itself.
    fn complete(&mut self, side: Side, completion: Completion);

    /// Raises an asynchronous event on this queue pair.
    fn event(&mut self, event: QpEvent);

    /// Counts a packet that was dropped or refused.
    fn count(&mut self, reason: Drop);

    /// The P_Key at an index of the port's table.
    fn pkey(&self, index: u16) -> Option<Pkey>;

    /// The P_Key at an index of the table of any port of the device, as a path names it.
    fn pkey_of_port(&self, _port: u8, index: u16) -> Option<Pkey> {
        self.pkey(index)
    }
}
