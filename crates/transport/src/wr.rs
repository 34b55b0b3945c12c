//! Work requests in, completions out: the vocabulary of `ibv_post_send` and `ibv_poll_cq`.

use bitflags::bitflags;
use rdmux_wire::{Lkey, Pkey, Qkey, Qpn, Rkey};

use crate::attr::{Access, AddressVector};

/// One entry of a gather or scatter list; laid out as `ibv_sge`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Sge {
    /// The address in the memory region's own space.
    pub addr: u64,
    /// Bytes; 0 is nothing here (not 2^31).
    pub length: u32,
    /// The region's local key.
    pub lkey: Lkey,
}

bitflags! {
    /// What a send work request asks for besides its operation.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct SendFlags: u32 {
        /// Waits until all earlier READs and atomics of this queue pair are complete.
        const FENCE = 1;
        /// Asks for a completion, where the queue pair does not ask for all.
        const SIGNALED = 2;
        /// Marks the message so that it wakes a receiver that waits for solicited completions only.
        const SOLICITED = 4;
    }
}

/// The operation of a send work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// SEND.
    Send,
    /// SEND with immediate; the four bytes in network order, as the application gave them.
    SendImm([u8; 4]),
    /// SEND with invalidate of the peer's key.
    SendInv(Rkey),
    /// RDMA WRITE.
    Write {
        /// Where in the peer's memory.
        remote_addr: u64,
        /// The peer's key.
        rkey: Rkey,
    },
    /// RDMA WRITE with immediate.
    WriteImm {
        /// Where in the peer's memory.
        remote_addr: u64,
        /// The peer's key.
        rkey: Rkey,
        /// The four bytes.
        imm: [u8; 4],
    },
    /// RDMA READ.
    Read {
        /// Where in the peer's memory.
        remote_addr: u64,
        /// The peer's key.
        rkey: Rkey,
    },
    /// FETCH AND ADD on eight bytes.
    FetchAdd {
        /// Where in the peer's memory; a multiple of 8.
        remote_addr: u64,
        /// The peer's key.
        rkey: Rkey,
        /// What is added.
        add: u64,
    },
    /// COMPARE AND SWAP on eight bytes.
    CmpSwap {
        /// Where in the peer's memory; a multiple of 8.
        remote_addr: u64,
        /// The peer's key.
        rkey: Rkey,
        /// What must be there.
        compare: u64,
        /// What is put there then.
        swap: u64,
    },
    /// Invalidates a local key; nothing goes out.
    LocalInv(Rkey),
    /// Binds a memory window; nothing goes out.
    BindMw(MwBind),
}

impl SendOp {
    /// Whether RDMAP has it (RFC 5040, RFC 7306): it has no SEND with immediate.
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

/// What a memory window is bound to (`ibv_mw_bind_info`; IBTA 10.6.7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MwBind {
    /// The window's key from now on. Its upper 24 bits name the window, the lower 8 are chosen anew.
    pub rkey: Rkey,
    /// The local key of the region that the window opens a part of.
    pub lkey: Lkey,
    /// Where the window starts, in the region's own space.
    pub addr: u64,
    /// Bytes; a window of type 1 that is bound to none is unbound.
    pub length: u64,
    /// What peers may do through the window. With [`Access::ZERO_BASED`] they count from its start.
    pub access: Access,
}

/// Where the bytes of a send work request lie.
#[derive(Clone, Copy, Debug)]
pub enum SendData<'a> {
    /// In registered memory: gathered when the packets are built.
    Sges(&'a [Sge]),
    /// Anywhere: copied while posting (at most `max_inline_data` bytes in all).
    Inline(&'a [&'a [u8]]),
}

/// The destination of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct UdDest {
    /// The path, from an address handle.
    pub av: AddressVector,
    /// The destination queue pair; [`Qpn::MULTICAST`] for a group.
    pub qpn: Qpn,
    /// The destination's key. With the high bit set the queue pair's own is used instead (IBTA 10.2.5).
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
    /// A work request without modifiers, for a connected queue pair.
    pub const fn new(wr_id: u64, op: SendOp, data: SendData<'a>) -> Self {
        Self { wr_id, op, data, flags: SendFlags::empty(), dest: None, srqn: 0 }
    }
}

/// A receive work request.
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Where the message goes.
    pub sges: &'a [Sge],
}

/// How a work request ended; the values of `ibv_wc_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum WcStatus {
    /// Done.
    Success = 0,
    /// The message was longer than the receive buffer or than the maximum.
    LocLenErr = 1,
    /// An internal error of the queue pair.
    LocQpOpErr = 2,
    /// A gather or scatter entry names memory that it may not use.
    LocProtErr = 4,
    /// The queue pair went into the error state first.
    WrFlushErr = 5,
    /// A memory window could not be bound.
    MwBindErr = 6,
    /// A response was not what was asked for.
    BadRespErr = 7,
    /// The responder could not complete the message locally.
    LocAccessErr = 8,
    /// The responder refused the request as invalid.
    RemInvReqErr = 9,
    /// The responder refused access to its memory.
    RemAccessErr = 10,
    /// The responder failed to carry out the request.
    RemOpErr = 11,
    /// No answer after all retries.
    RetryExcErr = 12,
    /// The receiver was not ready after all retries.
    RnrRetryExcErr = 13,
    /// The operation was aborted.
    RemAbortErr = 16,
    /// Something else.
    GeneralErr = 21,
}

/// What completed; the values of `ibv_wc_opcode`.
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
    /// A memory window was bound.
    BindMw = 5,
    /// Local invalidate.
    LocalInv = 6,
    /// A message was received.
    Recv = 128,
    /// The peer wrote with immediate.
    RecvRdmaWithImm = 129,
}

bitflags! {
    /// Which fields of a completion hold something; the values of `ibv_wc_flags`.
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
    /// From the work request.
    pub wr_id: u64,
    /// How it ended. Unless it is success, only `wr_id`, `qpn` and `opcode` mean anything besides.
    pub status: WcStatus,
    /// What it was.
    pub opcode: WcOpcode,
    /// Bytes received (UD: the 40 bytes of the GRH area included), read, or brought back by an atomic: 8.
    pub byte_len: u32,
    /// The immediate data in network order, with [`WcFlags::WITH_IMM`].
    pub imm: [u8; 4],
    /// The key invalidated, with [`WcFlags::WITH_INV`].
    pub invalidated: Rkey,
    /// The local queue pair.
    pub qpn: Qpn,
    /// The sender's queue pair; UD only.
    pub src_qp: Qpn,
    /// The index of the P_Key that the packet matched.
    pub pkey_index: u16,
    /// The P_Key itself.
    pub pkey: Pkey,
    /// The sender's LID; InfiniBand only.
    pub slid: u16,
    /// The service level, or what stands for it (`Source::sl`).
    pub sl: u8,
    /// The path bits of the destination LID.
    pub dlid_path_bits: u8,
    /// Flags.
    pub flags: WcFlags,
    /// Whether the message was marked solicited. For the completion channel, not for the user.
    pub solicited: bool,
    /// A code of ours that tells more about an error.
    pub vendor_err: u32,
    /// When it was delivered, in nanoseconds of the driver's clock; 0 where nobody asked for it.
    pub timestamp: u64,
}

impl Completion {
    /// All zero, and success: for struct update.
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
