//! The opcode table (IBTA 9.2.1, tables 35 and 36; XRC in annex A14; CNP in annex A17).
//!
//! A row of `operations!` defines everything about an operation: its code, its purpose, its direction, its place in the
//! message, its extension headers, and the services that have it. The crate `transport` derives its tables from this one.

use core::fmt;

/// The opcode of a BTH: bits 7:5 are the service, 4:0 the operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Opcode(pub u8);

/// The transport service that an opcode belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Reliable datagram; only its names are known here.
    Rd,
    /// Unreliable datagram.
    Ud,
    /// Congestion notification.
    Cnp,
    /// Extended reliable connection.
    Xrc,
    /// The manufacturers' opcodes, 0xc0 to 0xff.
    Vendor,
}

impl Service {
    /// Returns the service's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Rd => "RD",
            Self::Ud => "UD",
            Self::Cnp => "CNP",
            Self::Xrc => "XRC",
            Self::Vendor => "vendor",
        }
    }
}

/// The purpose of an operation: the specification's transport functions, with requests and responses separate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpKind {
    /// No operation: the code is reserved, or the service does not have the operation.
    Reserved,
    /// A packet of a SEND.
    Send,
    /// A packet of an RDMA WRITE.
    Write,
    /// An RDMA READ request.
    Read,
    /// An atomic request.
    Atomic,
    /// A packet of a READ response.
    ReadResponse,
    /// ACK, NAK or RNR NAK.
    Ack,
    /// The response to an atomic.
    AtomicAck,
    /// RD's resynchronization request.
    Resync,
}

/// Extension headers and properties of an operation, as bits.
mod bit {
    pub(super) const DETH: u16 = 1;
    pub(super) const XRCETH: u16 = 1 << 1;
    pub(super) const RETH: u16 = 1 << 2;
    pub(super) const ATOMIC: u16 = 1 << 3;
    pub(super) const AETH: u16 = 1 << 4;
    pub(super) const ATOMIC_ACK: u16 = 1 << 5;
    pub(super) const IMM: u16 = 1 << 6;
    pub(super) const IETH: u16 = 1 << 7;
    pub(super) const FIRST: u16 = 1 << 8;
    pub(super) const MIDDLE: u16 = 1 << 9;
    pub(super) const LAST: u16 = 1 << 10;
    pub(super) const ONLY: u16 = FIRST | LAST;
    pub(super) const REQUEST: u16 = 0;
    pub(super) const RESPONSE: u16 = 1 << 11;
    pub(super) const PAYLOAD: u16 = 1 << 12;
    pub(super) const RECEIVE: u16 = 1 << 13;
    /// Derived from the direction and the service, so no row has it.
    pub(super) const ACKNOWLEDGED: u16 = 1 << 14;
}

/// Services as bits of a set.
mod service {
    use super::Service;

    pub(super) const RC: u8 = bit(Service::Rc);
    pub(super) const UC: u8 = bit(Service::Uc);
    pub(super) const RD: u8 = bit(Service::Rd);
    pub(super) const UD: u8 = bit(Service::Ud);
    pub(super) const XRC: u8 = bit(Service::Xrc);
    /// The services whose requests are acknowledged.
    pub(super) const RELIABLE: u8 = RC | RD | XRC;
    /// The services with messages of several packets.
    pub(super) const LONG: u8 = RELIABLE | UC;
    pub(super) const ALL: u8 = LONG | UD;

    pub(super) const fn bit(service: Service) -> u8 {
        1 << service as u8
    }
}

macro_rules! operations {
    ($($name:ident = $code:literal, $text:literal, $kind:ident, $position:expr, $content:expr, $services:expr;)*) => {
        /// The operation of an opcode; RC, UC, RD, UD and XRC share the same codes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Operation {
            $(#[doc = $text] $name = $code,)*
        }

        impl Operation {
            /// The operations in the order of their codes.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Returns the specification's name of the operation, in capitals.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
            /// Returns the purpose.
            pub const fn kind(self) -> OpKind {
                match self { $(Self::$name => OpKind::$kind,)* }
            }
            const fn from_code(code: u8) -> Option<Self> {
                match code { $($code => Some(Self::$name),)* _ => None }
            }
            const fn bits(self) -> u16 {
                use bit::*;
                match self { $(Self::$name => $position | $content,)* }
            }
            const fn services(self) -> u8 {
                use service::*;
                match self { $(Self::$name => $services,)* }
            }
        }
    };
}

// The table. PAYLOAD: the packet may have a payload. RECEIVE: its message consumes a receive work request.
operations! {
    // operation         code  name                              kind          direction and position  headers and content          services
    SendFirst          = 0x00, "SEND_FIRST",                     Send,         REQUEST | FIRST,        PAYLOAD | RECEIVE,           LONG;
    SendMiddle         = 0x01, "SEND_MIDDLE",                    Send,         REQUEST | MIDDLE,       PAYLOAD | RECEIVE,           LONG;
    SendLast           = 0x02, "SEND_LAST",                      Send,         REQUEST | LAST,         PAYLOAD | RECEIVE,           LONG;
    SendLastImm        = 0x03, "SEND_LAST_WITH_IMMEDIATE",       Send,         REQUEST | LAST,         IMM | PAYLOAD | RECEIVE,     LONG;
    SendOnly           = 0x04, "SEND_ONLY",                      Send,         REQUEST | ONLY,         PAYLOAD | RECEIVE,           ALL;
    SendOnlyImm        = 0x05, "SEND_ONLY_WITH_IMMEDIATE",       Send,         REQUEST | ONLY,         IMM | PAYLOAD | RECEIVE,     ALL;
    WriteFirst         = 0x06, "RDMA_WRITE_FIRST",               Write,        REQUEST | FIRST,        RETH | PAYLOAD,              LONG;
    WriteMiddle        = 0x07, "RDMA_WRITE_MIDDLE",              Write,        REQUEST | MIDDLE,       PAYLOAD,                     LONG;
    WriteLast          = 0x08, "RDMA_WRITE_LAST",                Write,        REQUEST | LAST,         PAYLOAD,                     LONG;
    WriteLastImm       = 0x09, "RDMA_WRITE_LAST_WITH_IMMEDIATE", Write,        REQUEST | LAST,         IMM | PAYLOAD | RECEIVE,     LONG;
    WriteOnly          = 0x0a, "RDMA_WRITE_ONLY",                Write,        REQUEST | ONLY,         RETH | PAYLOAD,              LONG;
    WriteOnlyImm       = 0x0b, "RDMA_WRITE_ONLY_WITH_IMMEDIATE", Write,        REQUEST | ONLY,         RETH | IMM | PAYLOAD | RECEIVE, LONG;
    ReadRequest        = 0x0c, "RDMA_READ_REQUEST",              Read,         REQUEST | ONLY,         RETH,                        RELIABLE;
    ReadResponseFirst  = 0x0d, "RDMA_READ_RESPONSE_FIRST",       ReadResponse, RESPONSE | FIRST,       AETH | PAYLOAD,              RELIABLE;
    ReadResponseMiddle = 0x0e, "RDMA_READ_RESPONSE_MIDDLE",      ReadResponse, RESPONSE | MIDDLE,      PAYLOAD,                     RELIABLE;
    ReadResponseLast   = 0x0f, "RDMA_READ_RESPONSE_LAST",        ReadResponse, RESPONSE | LAST,        AETH | PAYLOAD,              RELIABLE;
    ReadResponseOnly   = 0x10, "RDMA_READ_RESPONSE_ONLY",        ReadResponse, RESPONSE | ONLY,        AETH | PAYLOAD,              RELIABLE;
    Acknowledge        = 0x11, "ACKNOWLEDGE",                    Ack,          RESPONSE | ONLY,        AETH,                        RELIABLE;
    AtomicAcknowledge  = 0x12, "ATOMIC_ACKNOWLEDGE",             AtomicAck,    RESPONSE | ONLY,        AETH | ATOMIC_ACK,           RELIABLE;
    CompareSwap        = 0x13, "CMP_SWAP",                       Atomic,       REQUEST | ONLY,         ATOMIC,                      RELIABLE;
    FetchAdd           = 0x14, "FETCH_ADD",                      Atomic,       REQUEST | ONLY,         ATOMIC,                      RELIABLE;
    Resync             = 0x15, "RESYNC",                         Resync,       REQUEST | ONLY,         0,                           RD;
    SendLastInvalidate = 0x16, "SEND_LAST_WITH_INVALIDATE",      Send,         REQUEST | LAST,         IETH | PAYLOAD | RECEIVE,    RC | XRC;
    SendOnlyInvalidate = 0x17, "SEND_ONLY_WITH_INVALIDATE",      Send,         REQUEST | ONLY,         IETH | PAYLOAD | RECEIVE,    RC | XRC;
}

/// The table row of one opcode.
#[derive(Clone, Copy)]
struct Row {
    operation: Option<Operation>,
    bits: u16,
    ext_len: u8,
}

/// The opcode table, with one row per opcode, so that decoding a packet takes one lookup.
static TABLE: [Row; 256] = {
    let mut table = [row(Opcode(0)); 256];
    let mut code = 0_u8;
    while code < 255 {
        code += 1;
        table[code as usize] = row(Opcode(code));
    }
    table
};

/// Returns an operation's row for one service, with the headers and properties that the service adds.
const fn row(opcode: Opcode) -> Row {
    const NONE: Row = Row { operation: None, bits: 0, ext_len: 0 };
    let Some(op) = Operation::from_code(opcode.0 & 0x1f) else { return NONE };
    let service = service::bit(opcode.service());
    if op.services() & service == 0 {
        return NONE;
    }
    let mut bits = op.bits();
    if bits & bit::RESPONSE == 0 {
        bits |= match opcode.service() {
            Service::Ud | Service::Rd => bit::DETH,
            Service::Xrc => bit::XRCETH,
            _ => 0,
        };
        if service & service::RELIABLE != 0 {
            bits |= bit::ACKNOWLEDGED;
        }
    }
    let mut ext_len = 0;
    let mut i = 0;
    while i < EXT_LEN.len() {
        if bits & EXT_LEN[i].0 != 0 {
            ext_len += EXT_LEN[i].1;
        }
        i += 1;
    }
    Row { operation: Some(op), bits, ext_len }
}

/// The extension headers in wire order, with their lengths in bytes.
const EXT_LEN: [(u16, u8); 8] = [
    (bit::DETH, 8),
    (bit::XRCETH, 4),
    (bit::RETH, 16),
    (bit::ATOMIC, 28),
    (bit::AETH, 4),
    (bit::ATOMIC_ACK, 8),
    (bit::IMM, 4),
    (bit::IETH, 4),
];

macro_rules! tests {
    ($($(#[$doc:meta])* $name:ident: $bits:expr;)*) => {
        impl Opcode {
            $($(#[$doc])* #[inline] pub const fn $name(self) -> bool { self.row().bits & $bits == $bits })*
        }
    };
}

tests! {
    /// Returns whether a DETH follows.
    has_deth: bit::DETH;
    /// Returns whether an XRCETH follows.
    has_xrceth: bit::XRCETH;
    /// Returns whether a RETH follows.
    has_reth: bit::RETH;
    /// Returns whether an AtomicETH follows.
    has_atomic: bit::ATOMIC;
    /// Returns whether an AETH follows.
    has_aeth: bit::AETH;
    /// Returns whether an AtomicAckETH follows.
    has_atomic_ack: bit::ATOMIC_ACK;
    /// Returns whether immediate data follows.
    has_imm: bit::IMM;
    /// Returns whether an IETH follows.
    has_ieth: bit::IETH;
    /// Returns whether the operation may have a payload.
    has_payload: bit::PAYLOAD;
    /// Returns whether the packet starts a message: a FIRST or an ONLY.
    starts_message: bit::FIRST;
    /// Returns whether the packet ends a message: a LAST or an ONLY.
    ends_message: bit::LAST;
    /// Returns whether the packet is a MIDDLE.
    is_middle: bit::MIDDLE;
    /// Returns whether the packet is an ONLY, or an operation of a single packet.
    is_only: bit::ONLY;
    /// Returns whether the packet travels from the responder to the requester.
    is_response: bit::RESPONSE;
    /// Returns whether the end of this packet's message consumes a receive work request.
    needs_receive: bit::RECEIVE;
    /// Returns whether the responder answers the packet, with an ACK or a response: the requests of reliable services.
    is_acknowledged: bit::ACKNOWLEDGED;
}

impl Opcode {
    /// Returns the service, from bits 7:5.
    #[inline]
    pub const fn service(self) -> Service {
        match self.0 >> 5 {
            0 => Service::Rc,
            1 => Service::Uc,
            2 => Service::Rd,
            3 => Service::Ud,
            4 => Service::Cnp,
            5 => Service::Xrc,
            _ => Service::Vendor,
        }
    }

    /// Returns the operation, or none if the service does not have it. [`Opcode::CNP`] has none.
    #[inline]
    pub const fn operation(self) -> Option<Operation> {
        self.row().operation
    }

    /// Returns the purpose of the operation; [`OpKind::Reserved`] if the service does not have it.
    #[inline]
    pub const fn kind(self) -> OpKind {
        match self.operation() {
            Some(operation) => operation.kind(),
            None => OpKind::Reserved,
        }
    }

    /// Returns the opcode of `operation` in `service`, whether or not the service has it.
    pub const fn of(service: Service, operation: Operation) -> Self {
        let prefix = match service {
            Service::Rc => 0x00,
            Service::Uc => 0x20,
            Service::Rd => 0x40,
            Service::Ud => 0x60,
            Service::Cnp => 0x80,
            Service::Xrc => 0xa0,
            Service::Vendor => 0xc0,
        };
        Self(prefix | operation as u8)
    }

    /// Returns whether the packet is a FIRST, and not an ONLY.
    #[inline]
    pub const fn is_first(self) -> bool {
        self.starts_message() && !self.ends_message()
    }

    /// Returns whether the packet is a LAST, and not an ONLY.
    #[inline]
    pub const fn is_last(self) -> bool {
        self.ends_message() && !self.starts_message()
    }

    /// Returns the length of the extension headers after the BTH, in bytes. For RD the RDETH is not
    /// included.
    #[inline]
    pub fn ext_len(self) -> usize {
        usize::from(self.row().ext_len)
    }

    #[inline]
    const fn row(self) -> &'static Row {
        &TABLE[self.0 as usize]
    }
}

macro_rules! opcodes {
    ($($service:ident: $($name:ident = $operation:ident),*;)*) => {
        impl Opcode {
            $($(
                #[doc = concat!("[`Operation::", stringify!($operation), "`] of [`Service::", stringify!($service), "`].")]
                pub const $name: Self = Self::of(Service::$service, Operation::$operation);
            )*)*
            /// Congestion notification, which has no [`Operation`].
            pub const CNP: Self = Self(0x81);
        }
    };
}

opcodes! {
    Rc:
        RC_SEND_FIRST = SendFirst, RC_SEND_MIDDLE = SendMiddle, RC_SEND_LAST = SendLast,
        RC_SEND_LAST_IMM = SendLastImm, RC_SEND_ONLY = SendOnly, RC_SEND_ONLY_IMM = SendOnlyImm,
        RC_WRITE_FIRST = WriteFirst, RC_WRITE_MIDDLE = WriteMiddle, RC_WRITE_LAST = WriteLast,
        RC_WRITE_LAST_IMM = WriteLastImm, RC_WRITE_ONLY = WriteOnly,
        RC_WRITE_ONLY_IMM = WriteOnlyImm, RC_READ_REQUEST = ReadRequest,
        RC_READ_RESPONSE_FIRST = ReadResponseFirst, RC_READ_RESPONSE_MIDDLE = ReadResponseMiddle,
        RC_READ_RESPONSE_LAST = ReadResponseLast, RC_READ_RESPONSE_ONLY = ReadResponseOnly,
        RC_ACKNOWLEDGE = Acknowledge, RC_ATOMIC_ACKNOWLEDGE = AtomicAcknowledge,
        RC_CMP_SWAP = CompareSwap, RC_FETCH_ADD = FetchAdd, RC_SEND_LAST_INV = SendLastInvalidate,
        RC_SEND_ONLY_INV = SendOnlyInvalidate;
    Uc:
        UC_SEND_FIRST = SendFirst, UC_SEND_MIDDLE = SendMiddle, UC_SEND_LAST = SendLast,
        UC_SEND_LAST_IMM = SendLastImm, UC_SEND_ONLY = SendOnly, UC_SEND_ONLY_IMM = SendOnlyImm,
        UC_WRITE_FIRST = WriteFirst, UC_WRITE_MIDDLE = WriteMiddle, UC_WRITE_LAST = WriteLast,
        UC_WRITE_LAST_IMM = WriteLastImm, UC_WRITE_ONLY = WriteOnly,
        UC_WRITE_ONLY_IMM = WriteOnlyImm;
    Ud:
        UD_SEND_ONLY = SendOnly, UD_SEND_ONLY_IMM = SendOnlyImm;
    Xrc:
        XRC_SEND_FIRST = SendFirst, XRC_SEND_MIDDLE = SendMiddle, XRC_SEND_LAST = SendLast,
        XRC_SEND_LAST_IMM = SendLastImm, XRC_SEND_ONLY = SendOnly, XRC_SEND_ONLY_IMM = SendOnlyImm,
        XRC_WRITE_FIRST = WriteFirst, XRC_WRITE_MIDDLE = WriteMiddle, XRC_WRITE_LAST = WriteLast,
        XRC_WRITE_LAST_IMM = WriteLastImm, XRC_WRITE_ONLY = WriteOnly,
        XRC_WRITE_ONLY_IMM = WriteOnlyImm, XRC_READ_REQUEST = ReadRequest,
        XRC_READ_RESPONSE_FIRST = ReadResponseFirst, XRC_READ_RESPONSE_MIDDLE = ReadResponseMiddle,
        XRC_READ_RESPONSE_LAST = ReadResponseLast, XRC_READ_RESPONSE_ONLY = ReadResponseOnly,
        XRC_ACKNOWLEDGE = Acknowledge, XRC_ATOMIC_ACKNOWLEDGE = AtomicAcknowledge,
        XRC_CMP_SWAP = CompareSwap, XRC_FETCH_ADD = FetchAdd,
        XRC_SEND_LAST_INV = SendLastInvalidate, XRC_SEND_ONLY_INV = SendOnlyInvalidate;
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.operation() {
            Some(operation) => write!(f, "{} {}", self.service().name(), operation.name()),
            None if *self == Self::CNP => f.write_str("CNP"),
            None => write!(f, "{} opcode {:#04x}", self.service().name(), self.0),
        }
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opcode({self})")
    }
}
