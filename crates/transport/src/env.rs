//! The interface between a queue pair and its driver.
//!
//! A queue pair takes an [`Env`] as a type parameter. The device provides memory, completion queues
//! and sockets, and the simulator provides its own, without overhead (static dispatch, no allocation).

use rdmux_wire::{Pkey, Psn, Qpn, Rkey};

use crate::attr::{Access, AddressVector, QpAttr};
use crate::qp::Source;
use crate::wr::{Completion, MwBind, Sge};

/// The capabilities of the link under a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkCaps {
    /// The maximum payload bytes of a packet. If this exceeds the path MTU on a lossless link, the queue pair's packets
    /// are of this size, regardless of its path MTU: both ends of such a link know that it is one.
    pub max_payload: u32,
    /// Whether every packet arrives, in order, unless the peer dies. Timers still run, since the peer's queue pair may not be
    /// ready yet, but no congestion window is used.
    pub lossless: bool,
    /// Whether the driver may be able to access the peer's memory itself ([`Env::direct`]), and the peer's driver this
    /// process's memory ([`Env::transmit_named`]).
    pub by_reference: bool,
    /// Whether acknowledgements are piggybacked on packets ([`TxPacket::ack`]) instead of being packets of their own.
    pub piggybacks_acks: bool,
}

/// The reason why memory is not accessible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessFault {
    /// The key does not exist, or is of another kind.
    #[error("no such key")]
    Key,
    /// The range exceeds the region.
    #[error("the range exceeds the memory region")]
    Bounds,
    /// The region does not allow the access.
    #[error("access not allowed")]
    Rights,
    /// The region belongs to another protection domain.
    #[error("the key belongs to another protection domain")]
    Domain,
    /// The registered memory has been unmapped or protected.
    #[error("not mapped")]
    Unmapped,
    /// The process that owns the memory is dead.
    #[error("the process that owns the memory is gone")]
    Gone,
    /// The process that owns the memory cannot serve the access now. Only returned for a peer's
    /// request: the peer gets an RNR NAK and retries.
    #[error("the process that owns the memory is busy")]
    Busy,
}

/// The reason why a packet was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxError {
    /// The link is full. Nothing was sent. The queue pair tries again when the driver calls `poll_transmit`.
    Busy,
    /// The payload's memory is not accessible. Nothing was sent.
    Memory(AccessFault),
}

/// The location of a packet's payload.
#[derive(Clone, Copy, Debug)]
pub enum TxPayload<'a> {
    /// No payload.
    None,
    /// The bytes of this slice.
    Bytes(&'a [u8]),
    /// `len` bytes of local registered memory that start `offset` bytes into the gather list.
    Gather {
        /// The whole gather list of the work request.
        sges: &'a [Sge],
        /// Bytes to skip.
        offset: u32,
        /// Number of bytes to take.
        len: u32,
    },
    /// Memory that a peer named: the payload of a READ response.
    Remote {
        /// The key.
        rkey: Rkey,
        /// The address.
        va: u64,
        /// Number of bytes to take.
        len: u32,
        /// The shared receive queue that the request named, which identifies the owner of the memory; XRC only, 0 elsewhere.
        srqn: u32,
    },
}

/// A packet to send.
#[derive(Clone, Copy, Debug)]
pub struct TxPacket<'a> {
    /// The path to the destination: the queue pair's own, or for UD that of the work request.
    pub av: &'a AddressVector,
    /// BTH and extension headers, in wire format.
    pub header: &'a [u8],
    /// The payload.
    pub payload: TxPayload<'a>,
    /// Zero bytes after the payload, 0 to 3 (also in the BTH).
    pub pad: u8,
    /// Whether this queue pair sends more packets at once, so that the driver may gather them into one system call.
    pub more: bool,
    /// An acknowledgement of everything up to this PSN, on a link that piggybacks them. The receiving driver
    /// passes it to [`Qp::handle_piggybacked_ack`](crate::Qp::handle_piggybacked_ack) before the packet.
    pub ack: Option<Psn>,
}

/// The payload of a packet that names it instead of carrying it.
#[derive(Clone, Copy, Debug)]
pub struct Named<'a> {
    /// The length of the payload in bytes. It takes as many PSNs as if the packets carried it.
    pub len: u32,
    /// The location of the bytes, in the driver's own format.
    pub at: &'a [u8],
}

/// The reason why the bytes that a packet names could not be fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchError {
    /// The destination of the payload is not accessible.
    Memory(AccessFault),
    /// The source of the payload is not accessible, for any reason. The peer must send the bytes.
    OutOfReach,
}

/// A copy between local memory and the peer's, which the driver may be able to carry out itself.
#[derive(Clone, Copy, Debug)]
pub struct Direct<'a> {
    /// Whether the copy writes the peer's memory. Otherwise it reads it.
    pub write: bool,
    /// The number of the peer's queue pair.
    pub dest_qpn: Qpn,
    /// The P_Key that a packet for this request would have.
    pub pkey: Pkey,
    /// The key of the peer's memory.
    pub rkey: Rkey,
    /// The address in the peer's memory.
    pub va: u64,
    /// The length in bytes, at least one.
    pub len: u32,
    /// Whether this copy starts its work request.
    pub is_first: bool,
    /// The local memory, of the same length.
    pub near: TxPayload<'a>,
}

/// An atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// FETCH AND ADD.
    FetchAdd {
        /// The number to add, modulo 2^64.
        add: u64,
    },
    /// COMPARE AND SWAP.
    CmpSwap {
        /// The value to compare with.
        compare: u64,
        /// The value to store if they are equal.
        swap: u64,
    },
}

/// The result of starting an atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicAnswer {
    /// The atomic is complete. The original value, in host order.
    Now(u64),
    /// The memory's owner will carry out the atomic. The driver then calls [`Qp::atomic_done`](crate::Qp::atomic_done).
    Later,
}

/// A receive work request taken from a shared receive queue.
#[derive(Clone, Copy, Debug)]
pub struct SrqEntry {
    /// The identifier from the work request.
    pub wr_id: u64,
    /// The number of scatter entries that the driver filled in.
    pub num_sge: usize,
}

/// One of the two completion queues of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The send queue's completion queue.
    Send,
    /// The receive queue's completion queue.
    Recv,
}

/// An asynchronous event of a queue pair; a subset of `ibv_event_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum QpEvent {
    /// The first packet arrived in RTR.
    CommEst,
    /// The send queue is drained.
    SqDrained,
    /// A queue pair with a shared receive queue is in the error state and takes no more receives.
    LastWqeReached,
    /// The queue pair failed for a local reason.
    Fatal,
    /// A request of the peer was invalid.
    ReqErr,
    /// A request of the peer violated the access rights.
    AccessErr,
    /// The connection has migrated to the alternate path.
    PathMig,
    /// The peer requested migration along a path that is not the alternate path. Nothing has changed.
    PathMigErr,
}

/// The counted reason why a packet was dropped, refused or deferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Drop {
    /// The queue pair's state accepts no packets.
    State,
    /// The opcode is not one of this transport, or is reserved.
    Opcode,
    /// The packet is out of place in a message, such as a MIDDLE without a FIRST.
    Sequence,
    /// The length contradicts the MTU, the opcode or the message.
    Length,
    /// The partition key does not match.
    Pkey,
    /// The Q_Key does not match.
    Qkey,
    /// The source address is not the connection's peer.
    Source,
    /// The packet is a duplicate. It is answered again where the specification requires it.
    Duplicate,
    /// The packet is ahead of the expected one: a packet was lost.
    Gap,
    /// The same, but the packet is buffered until the missing one arrives.
    Early,
    /// The missing packet arrived, and the buffered packets after it were carried out. This is not a drop.
    Filled,
    /// The packet is a response that matches no request, or is too late.
    Stale,
    /// No receive was posted (UC, UD).
    NoReceive,
    /// The memory is not accessible.
    Memory,
    /// The payload that a packet names could not be fetched.
    OutOfReach,
}

/// The interface from a queue pair to its driver. Every method is called with the queue pair
/// borrowed: do not call back into it.
pub trait Env {
    /// Returns the capabilities of this queue pair's link. They do not change in RTR and later states,
    /// except [`by_reference`](LinkCaps::by_reference), which may differ on the alternate path.
    fn link(&self) -> LinkCaps;

    /// Reports that the queue pair has migrated: packets now take the alternate path, and the attributes of the path are
    /// those of that path. A driver must reject an alternate path whose link has other capabilities.
    fn migrated(&mut self, _attr: &QpAttr) {}

    /// Returns whether a packet arrived along a path, as far as the driver can determine: at this end of it and, where
    /// its [`Source`] contains no address, from the peer's end. Called only while the queue pair may migrate.
    fn came_along(&self, _av: &AddressVector, _source: &Source<'_>) -> bool {
        true
    }

    /// Returns a second limit of this queue pair's bytes in flight, besides its window: its share
    /// of the receiver's buffer. May change at any time. One packet is always allowed.
    fn room(&self) -> u32 {
        u32::MAX
    }

    /// Returns whether out-of-order packets may be buffered until the missing ones arrive, at most
    /// some MiB per queue pair. Otherwise they are dropped, and the peer retransmits them.
    fn buffers_out_of_order(&self) -> bool {
        true
    }

    /// Reports a packet with a wrong P_Key or Q_Key, as given by `_reason` (IBTA 10.2.5, 10.9.4), which the port
    /// reports to the subnet manager. The packet is also counted like any other that is dropped.
    fn wrong_key(&mut self, _rx: &crate::RxPacket<'_>, _reason: Drop) {}

    /// Sends a packet. The driver reads the payload before the call returns or before it releases the queue pair.
    fn transmit(&mut self, packet: &TxPacket<'_>) -> Result<(), TxError>;

    /// Sends a packet that names its payload, on a link that supports this ([`LinkCaps::by_reference`]). The
    /// payload is a [`Gather`](TxPayload::Gather), and may be longer than that of any packet that carries
    /// its own. The peer's driver passes the packet to [`Qp::handle_named`](crate::Qp::handle_named).
    /// Returns false if this payload cannot be named: nothing was sent then.
    fn transmit_named(&mut self, _packet: &TxPacket<'_>) -> Result<bool, TxError> {
        Ok(false)
    }

    /// Sends an acknowledgement of everything up to `psn` without a packet, on a link that piggybacks acknowledgements
    /// ([`LinkCaps::piggybacks_acks`]). The peer's driver passes it to
    /// [`Qp::handle_piggybacked_ack`](crate::Qp::handle_piggybacked_ack). Returns false if a packet must be sent instead.
    fn acknowledge(&mut self, _dest_qpn: Qpn, _psn: Psn) -> bool {
        false
    }

    /// Like [`scatter_receive`](Self::scatter_receive), for bytes that a packet names.
    fn fetch(&mut self, _sges: &[Sge], _offset: u32, _from: &Named<'_>) -> Result<(), FetchError> {
        Err(FetchError::OutOfReach)
    }

    /// Like [`write_remote`](Self::write_remote), for bytes that a packet names.
    fn fetch_remote(&mut self, _rkey: Rkey, _va: u64, _from: &Named<'_>) -> Result<(), FetchError> {
        Err(FetchError::OutOfReach)
    }

    /// Carries out a WRITE or READ, or a part of one, without the peer's help, on a link that supports this
    /// ([`LinkCaps::by_reference`]). Everything posted before is complete. The driver makes the checks that the peer
    /// would make. Returns false if one of them fails, if the peer's queue pair does not accept requests now, or if the
    /// copy is not possible for any other reason. Some bytes may have been copied then, and packets transfer all of them.
    fn direct(&mut self, _copy: &Direct<'_>) -> bool {
        false
    }

    /// Reports that the queue pair has failed and carries out no more requests of its peer. When this
    /// returns, nothing else carries out any in its place either. Called before its work is flushed.
    fn closed(&mut self) {}

    /// Checks that every entry is inside a region of this queue pair's protection domain that
    /// allows `access` (sending needs none).
    fn check_local(&self, sges: &[Sge], access: Access) -> Result<(), AccessFault>;

    /// Copies `data` into the scatter list of a READ or atomic work request, `offset` bytes into it. The list
    /// is long enough. Keys and rights are checked here, each time, against the queue pair's protection domain.
    fn scatter(&mut self, sges: &[Sge], offset: u32, data: &[u8]) -> Result<(), AccessFault>;

    /// Like [`scatter`](Self::scatter), for the list of a receive. A receive from a shared receive
    /// queue is checked against the protection domain of that queue, which may differ from the
    /// queue pair's (IBTA 10.2.9). A driver with only one domain need not distinguish the two.
    #[inline]
    fn scatter_receive(
        &mut self,
        sges: &[Sge],
        offset: u32,
        data: &[u8],
    ) -> Result<(), AccessFault> {
        self.scatter(sges, offset, data)
    }

    /// Checks a peer's access to memory: key, range, rights, protection domain. A zero length needs
    /// no valid key, and callers do not check it.
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

    /// Carries out an atomic on eight aligned bytes in host order, with the checks for [`Access::REMOTE_ATOMIC`], and returns
    /// the original value. Or arranges that the memory's owner does so, and remembers `psn`, which identifies the request.
    fn atomic(
        &mut self,
        psn: Psn,
        rkey: Rkey,
        va: u64,
        op: AtomicOp,
    ) -> Result<AtomicAnswer, AccessFault>;

    /// Invalidates a key, for SEND with invalidate (`remote`) or a local invalidate.
    fn invalidate(&mut self, rkey: Rkey, remote: bool) -> Result<(), AccessFault>;

    /// Binds a memory window. A driver without windows always fails.
    fn bind(&mut self, _bind: &MwBind) -> Result<(), AccessFault> {
        Err(AccessFault::Key)
    }

    /// Selects the shared receive queue that an XRC packet names. Until the next call [`pop_srq`](Self::pop_srq)
    /// and completions on [`Side::Recv`] use this queue, and [`scatter_receive`](Self::scatter_receive),
    /// [`check_remote`](Self::check_remote), [`write_remote`](Self::write_remote), [`atomic`](Self::atomic) and
    /// [`invalidate`](Self::invalidate) use the memory of its owner. Fails if the queue does not exist, or is
    /// not in the queue pair's domain. A driver without XRC always fails.
    fn select_srq(&mut self, _srqn: u32) -> Result<(), AccessFault> {
        Err(AccessFault::Domain)
    }

    /// Takes the next receive from the shared receive queue, if this queue pair has one, into `sges`.
    fn pop_srq(&mut self, sges: &mut [Sge]) -> Option<SrqEntry>;

    /// Delivers a completion. The driver itself reports an overrun of the queue.
    fn complete(&mut self, side: Side, completion: Completion);

    /// Raises an asynchronous event on this queue pair.
    fn event(&mut self, event: QpEvent);

    /// Counts a packet that was dropped or refused.
    fn count(&mut self, reason: Drop);

    /// Returns the P_Key at an index of the port's table.
    fn pkey(&self, index: u16) -> Option<Pkey>;

    /// Returns the P_Key at an index of the table of any port of the device, as a path names it.
    fn pkey_of_port(&self, _port: u8, index: u16) -> Option<Pkey> {
        self.pkey(index)
    }
}
