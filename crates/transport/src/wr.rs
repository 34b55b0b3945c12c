//! Work requests and completions: the types of `ibv_post_send` and `ibv_poll_cq`.

use bitflags::bitflags;
use rdmux_wire::{Lkey, Pkey, Qkey, Qpn, Rkey};

use crate::attr::{Access, AddressVector};

/// An entry of a gather or scatter list; has the layout of `ibv_sge`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Sge {
    /// The address in the memory region's own space.
    pub addr: u64,
    /// Length in bytes; 0 means none (not 2^31).
    pub length: u32,
    /// The region's local key.
    pub lkey: Lkey,
}

bitflags! {
    /// Modifiers of a send work request.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct SendFlags: u32 {
        /// Waits until all earlier READs and atomics of this queue pair are complete.
        const FENCE = 1;
        /// Generates a completion, where the queue pair does not do so for every request.
        const SIGNALED = 2;
        /// Marks the message as solicited, which wakes a receiver that waits for solicited completions only.
        const SOLICITED = 4;
    }
}

/// The operation of a send work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// SEND.
    Send,
    /// SEND with immediate. The four bytes are in network order, as posted by the program.
    SendImm([u8; 4]),
    /// SEND with invalidate of the peer's key.
    SendInv(Rkey),
    /// RDMA WRITE.
    Write {
        /// The address in the peer's memory.
        remote_addr: u64,
        /// The peer's key.
        rkey: Rkey,
    },
    /// RDMA WRITE with immediate.
    WriteImm {
        /// The address in the peer's memory.
        remote_addr: u64,
        /// The peer's key.
        rkey: Rkey,
        /// The immediate data.
        imm: [u8; 4],
    },
    /// RDMA READ.
    Read {
        /// The address in the peer's memory.
        remote_addr: u64,
        /// The peer's key.
        rkey: Rkey,
    },
    /// FETCH AND ADD on eight bytes.
    FetchAdd {
        /// The address in the peer's memory; a multiple of 8.
        remote_addr: u64,
        /// The peer's key.
        rkey: Rkey,
        /// The number to add.
        add: u64,
    },
    /// COMPARE AND SWAP on eight bytes.
    CmpSwap {
        /// The address in the peer's memory; a multiple of 8.
        remote_addr: u64,
        /// The peer's key.
        rkey: Rkey,
        /// The value to compare with.
        compare: u64,
        /// The value to store if they are equal.
        swap: u64,
    },
    /// Invalidates a local key; nothing is sent.
    LocalInv(Rkey),
    /// Binds a memory window; nothing is sent.
    BindMw(MwBind),
}

impl SendOp {
    /// Returns whether RDMAP has the operation (RFC 5040, RFC 7306), which excludes SEND with immediate.
    pub(crate) const fn is_of_rdmap(&self) -> bool {
        match self {
            Self::SendImm(_) => false,
            Self::Send
            | Self::SendInv(_)
            | Self::Write { .. }
            | Self::WriteImm { .. }
            | Self::Read { .. }
            | Self::FetchAdd { .. }
            | Self::CmpSwap { .. }
            | Self::LocalInv(_)
            | Self::BindMw(_) => true,
        }
    }
}

/// The parameters of a memory window bind (`ibv_mw_bind_info`; IBTA 10.6.7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MwBind {
    /// The window's new key. Its upper 24 bits identify the window, the lower 8 are new.
    pub rkey: Rkey,
    /// The local key of the region to which the window gives access.
    pub lkey: Lkey,
    /// The start of the window, in the region's own address space.
    pub addr: u64,
    /// Length in bytes; a length of 0 unbinds a window of type 1.
    pub length: u64,
    /// The peer's access rights through the window. With [`Access::ZERO_BASED`] addresses count from its start.
    pub access: Access,
}

/// The location of a send work request's data.
#[derive(Clone, Copy, Debug)]
pub enum SendData<'a> {
    /// Registered memory, gathered when the packets are built.
    Sges(&'a [Sge]),
    /// Any memory, copied while posting (at most `max_inline_data` bytes in all).
    Inline(&'a [&'a [u8]]),
}

/// The destination of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct UdDest {
    /// The path, from an address handle.
    pub av: AddressVector,
    /// The destination queue pair; [`Qpn::MULTICAST`] for a group.
    pub qpn: Qpn,
    /// The destination's Q_Key. With the high bit set the queue pair's own is used instead (IBTA 10.2.5).
    pub qkey: Qkey,
}

/// A send work request.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// The operation.
    pub op: SendOp,
    /// The data.
    pub data: SendData<'a>,
    /// Modifiers.
    pub flags: SendFlags,
    /// The destination; UD only.
    pub dest: Option<UdDest>,
    /// The peer's shared receive queue, 24 bits; XRC only, 0 elsewhere.
    pub srqn: u32,
}

impl<'a> SendWr<'a> {
    /// Creates a work request without modifiers, for a connected queue pair.
    pub const fn new(wr_id: u64, op: SendOp, data: SendData<'a>) -> Self {
        Self { wr_id, op, data, flags: SendFlags::empty(), dest: None, srqn: 0 }
    }
}

/// A receive work request.
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// The memory for the message.
    pub sges: &'a [Sge],
}

/// The outcome of a work request; the values of `ibv_wc_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum WcStatus {
    /// Success.
    Success = 0,
    /// The message was longer than the receive buffer or than the maximum.
    LocLenErr = 1,
    /// An internal error of the queue pair.
    LocQpOpErr = 2,
    /// A gather or scatter entry names inaccessible memory.
    LocProtErr = 4,
    /// The queue pair entered the error state first.
    WrFlushErr = 5,
    /// A memory window could not be bound.
    MwBindErr = 6,
    /// A response did not match the request.
    BadRespErr = 7,
    /// The responder could not complete the message locally.
    LocAccessErr = 8,
    /// The responder refused the request as invalid.
    RemInvReqErr = 9,
    /// The responder refused access to its memory.
    RemAccessErr = 10,
    /// The responder failed to carry out the request.
    RemOpErr = 11,
    /// No response arrived after all retries.
    RetryExcErr = 12,
    /// The receiver was not ready after all retries.
    RnrRetryExcErr = 13,
    /// The operation was aborted.
    RemAbortErr = 16,
    /// Any other error.
    GeneralErr = 21,
}

/// The operation of a completion; the values of `ibv_wc_opcode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum WcOpcode {
    /// SEND in any form.
    Send = 0,
    /// RDMA WRITE in any form.
    RdmaWrite = 1,
    /// RDMA READ.
    RdmaRead = 2,
    /// COMPARE AND SWAP.
    CompSwap = 3,
    /// FETCH AND ADD.
    FetchAdd = 4,
    /// Memory window bind.
    BindMw = 5,
    /// Local invalidate.
    LocalInv = 6,
    /// Receive of a message.
    Recv = 128,
    /// Receive consumed by the peer's WRITE with immediate.
    RecvRdmaWithImm = 129,
}

bitflags! {
    /// The optional fields of a completion that are valid; the values of `ibv_wc_flags`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct WcFlags: u32 {
        /// The first 40 bytes of the buffer are the GRH area.
        const GRH = 1;
        /// `imm` holds immediate data.
        const WITH_IMM = 2;
        /// `invalidated` holds the key that the peer invalidated.
        const WITH_INV = 8;
    }
}

/// A completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The identifier from the work request.
    pub wr_id: u64,
    /// The status. Unless it is success, only `wr_id`, `qpn` and `opcode` are valid besides.
    pub status: WcStatus,
    /// The operation.
    pub opcode: WcOpcode,
    /// Bytes received (for UD including the 40 bytes of the GRH area), read, or returned by an atomic: 8.
    pub byte_len: u32,
    /// The immediate data in network order, with [`WcFlags::WITH_IMM`].
    pub imm: [u8; 4],
    /// The key invalidated, with [`WcFlags::WITH_INV`].
    pub invalidated: Rkey,
    /// The number of the local queue pair.
    pub qpn: Qpn,
    /// The number of the sender's queue pair; UD only.
    pub src_qp: Qpn,
    /// The index of the P_Key that the packet matched.
    pub pkey_index: u16,
    /// The P_Key itself.
    pub pkey: Pkey,
    /// The sender's LID; InfiniBand only.
    pub slid: u16,
    /// The service level, or its replacement (`Source::sl`).
    pub sl: u8,
    /// The path bits of the destination LID.
    pub dlid_path_bits: u8,
    /// The valid optional fields.
    pub flags: WcFlags,
    /// Whether the message was marked solicited. Used by the completion channel, not by the program.
    pub solicited: bool,
    /// A code of this provider that details an error.
    pub vendor_err: u32,
    /// The time of delivery, in nanoseconds of the driver's clock; 0 if not requested.
    pub timestamp: u64,
}

impl Completion {
    /// A completion with success and all fields zero, for struct update.
    pub const EMPTY: Self = Self {
        wr_id: 0,
        status: WcStatus::Success,
        opcode: WcOpcode::Send,
        byte_len: 0,
        imm: [0; 4],
        invalidated: Rkey(0),
        qpn: Qpn::new(0),
        src_qp: Qpn::new(0),
        pkey_index: 0,
        pkey: Pkey(0),
        slid: 0,
        sl: 0,
        dlid_path_bits: 0,
        flags: WcFlags::empty(),
        solicited: false,
        vendor_err: 0,
        timestamp: 0,
    };
}
