//! The opcode table: services, operations, and the extension headers that each has (IBTA 9.2.1,
//! tables 35 and 36; XRC in annex A14; CNP in annex A17).

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
    /// Reliable datagram; known by name.
    Rd,
    /// Unreliable datagram.
    Ud,
    /// Congestion notification.
    Cnp,
    /// Extended reliable connection.
    Xrc,
    /// The manufacturers' own, 0xc0 to 0xff.
    Vendor,
}

impl Service {
    /// The service's name.
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
    pub(super) const RESPONSE: u16 = 1 << 11;
    pub(super) const PAYLOAD: u16 = 1 << 12;
    pub(super) const ONLY: u16 = FIRST | LAST;
}

macro_rules! operations {
    ($($name:ident = $code:literal, $text:literal, $bits:expr;)*) => {
        /// What an opcode does; the same codes serve RC, UC, RD, UD and XRC.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Operation {
            $(#[doc = $text] $name = $code,)*
        }

        impl Operation {
            /// The name that the specification gives it, in capitals.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
            const fn from_code(code: u8) -> Option<Self> {
                match code { $($code => Some(Self::$name),)* _ => None }
            }
            const fn bits(self) -> u16 {
                use bit::*;
                match self { $(Self::$name => $bits,)* }
            }
        }
    };
}

operations! {
    SendFirst = 0x00, "SEND_FIRST", FIRST | PAYLOAD;
    SendMiddle = 0x01, "SEND_MIDDLE", MIDDLE | PAYLOAD;
    SendLast = 0x02, "SEND_LAST", LAST | PAYLOAD;
    SendLastImm = 0x03, "SEND_LAST_WITH_IMMEDIATE", LAST | IMM | PAYLOAD;
    SendOnly = 0x04, "SEND_ONLY", ONLY | PAYLOAD;
    SendOnlyImm = 0x05, "SEND_ONLY_WITH_IMMEDIATE", ONLY | IMM | PAYLOAD;
    WriteFirst = 0x06, "RDMA_WRITE_FIRST", FIRST | RETH | PAYLOAD;
    WriteMiddle = 0x07, "RDMA_WRITE_MIDDLE", MIDDLE | PAYLOAD;
    WriteLast = 0x08, "RDMA_WRITE_LAST", LAST | PAYLOAD;
    WriteLastImm = 0x09, "RDMA_WRITE_LAST_WITH_IMMEDIATE", LAST | IMM | PAYLOAD;
    WriteOnly = 0x0a, "RDMA_WRITE_ONLY", ONLY | RETH | PAYLOAD;
    WriteOnlyImm = 0x0b, "RDMA_WRITE_ONLY_WITH_IMMEDIATE", ONLY | RETH | IMM | PAYLOAD;
    ReadRequest = 0x0c, "RDMA_READ_REQUEST", ONLY | RETH;
    ReadResponseFirst = 0x0d, "RDMA_READ_RESPONSE_FIRST", FIRST | AETH | RESPONSE | PAYLOAD;
    ReadResponseMiddle = 0x0e, "RDMA_READ_RESPONSE_MIDDLE", MIDDLE | RESPONSE | PAYLOAD;
    ReadResponseLast = 0x0f, "RDMA_READ_RESPONSE_LAST", LAST | AETH | RESPONSE | PAYLOAD;
    ReadResponseOnly = 0x10, "RDMA_READ_RESPONSE_ONLY", ONLY | AETH | RESPONSE | PAYLOAD;
    Acknowledge = 0x11, "ACKNOWLEDGE", ONLY | AETH | RESPONSE;
    AtomicAcknowledge = 0x12, "ATOMIC_ACKNOWLEDGE", ONLY | AETH | ATOMIC_ACK | RESPONSE;
    CompareSwap = 0x13, "CMP_SWAP", ONLY | ATOMIC;
    FetchAdd = 0x14, "FETCH_ADD", ONLY | ATOMIC;
    Resync = 0x15, "RESYNC", ONLY;
    SendLastInvalidate = 0x16, "SEND_LAST_WITH_INVALIDATE", LAST | IETH | PAYLOAD;
    SendOnlyInvalidate = 0x17, "SEND_ONLY_WITH_INVALIDATE", ONLY | IETH | PAYLOAD;
}

/// What the table says of one opcode.
#[derive(Clone, Copy)]
struct Row {
    operation: Option<Operation>,
    bits: u16,
    ext_len: u8,
}

/// One row per opcode, so that a packet costs one look-up.
static TABLE: [Row; 256] = {
    let mut table = [Row { operation: None, bits: 0, ext_len: 0 }; 256];
    let mut code = 0_u8;
    loop {
        table[code as usize] = row(Opcode(code));
        if code == 255 {
            break;
        }
        code += 1;
    }
    table
};

const fn row(opcode: Opcode) -> Row {
    const NONE: Row = Row { operation: None, bits: 0, ext_len: 0 };
    let Some(op) = Operation::from_code(opcode.0 & 0x1f) else { return NONE };
    let mut bits = op.bits();
    let exists = match opcode.service() {
        Service::Rc | Service::Xrc => !matches!(op, Operation::Resync),
        Service::Rd => (op as u8) <= 0x15,
        Service::Uc => (op as u8) <= Operation::WriteOnlyImm as u8,
        Service::Ud => matches!(op, Operation::SendOnly | Operation::SendOnlyImm),
        Service::Cnp | Service::Vendor => false,
    };
    if !exists {
        return NONE;
    }
    match opcode.service() {
        Service::Ud | Service::Rd if bits & bit::RESPONSE == 0 => bits |= bit::DETH,
        Service::Xrc if bits & bit::RESPONSE == 0 => bits |= bit::XRCETH,
        _ => {}
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

/// The extension headers in the order of the wire, with their lengths in bytes.
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
            $($(#[$doc])* #[inline] pub fn $name(self) -> bool { self.row().bits & $bits == $bits })*
        }
    };
}

tests! {
    /// Whether a DETH follows.
    has_deth: bit::DETH;
    /// Whether an XRCETH follows.
    has_xrceth: bit::XRCETH;
    /// Whether a RETH follows.
    has_reth: bit::RETH;
    /// Whether an AtomicETH follows.
    has_atomic: bit::ATOMIC;
    /// Whether an AETH follows.
    has_aeth: bit::AETH;
    /// Whether an AtomicAckETH follows.
    has_atomic_ack: bit::ATOMIC_ACK;
    /// Whether immediate data follows.
    has_imm: bit::IMM;
    /// Whether an IETH follows.
    has_ieth: bit::IETH;
    /// Whether the operation may have a payload.
    has_payload: bit::PAYLOAD;
    /// Whether this starts a message: a FIRST or an ONLY.
    starts_message: bit::FIRST;
    /// Whether this ends a message: a LAST or an ONLY.
    ends_message: bit::LAST;
    /// Whether this is a MIDDLE.
    is_middle: bit::MIDDLE;
    /// Whether this is an ONLY, or an operation of a single packet.
    is_only: bit::ONLY;
    /// Whether this goes from the responder to the requester.
    is_response: bit::RESPONSE;
}

impl Opcode {
    /// The service, from bits 7:5.
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

    /// The operation, or none when the service does not have it. [`Opcode::CNP`] has none.
    #[inline]
    pub fn operation(self) -> Option<Operation> {
        self.row().operation
    }

    /// The opcode of `operation` in `service`, whether or not the service has it.
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

    /// Whether this is a FIRST, and not an ONLY.
    #[inline]
    pub fn is_first(self) -> bool {
        self.starts_message() && !self.ends_message()
    }

    /// Whether this is a LAST, and not an ONLY.
    #[inline]
    pub fn is_last(self) -> bool {
        self.ends_message() && !self.starts_message()
    }

    /// Bytes of the extension headers that follow the BTH. That of RD leaves out the RDETH.
    #[inline]
    pub fn ext_len(self) -> usize {
        usize::from(self.row().ext_len)
    }

    #[inline]
    fn row(self) -> &'static Row {
        &TABLE[usize::from(self.0)]
    }
}

macro_rules! opcodes {
    ($($name:ident = $code:literal),* $(,)?) => {
        impl Opcode {
            $(#[doc = concat!("Opcode ", stringify!($code), ".")] pub const $name: Self = Self($code);)*
        }
    };
}

opcodes! {
    RC_SEND_FIRST = 0x00, RC_SEND_MIDDLE = 0x01, RC_SEND_LAST = 0x02, RC_SEND_LAST_IMM = 0x03,
    RC_SEND_ONLY = 0x04, RC_SEND_ONLY_IMM = 0x05,
    RC_WRITE_FIRST = 0x06, RC_WRITE_MIDDLE = 0x07, RC_WRITE_LAST = 0x08, RC_WRITE_LAST_IMM = 0x09,
    RC_WRITE_ONLY = 0x0a, RC_WRITE_ONLY_IMM = 0x0b,
    RC_READ_REQUEST = 0x0c, RC_READ_RESPONSE_FIRST = 0x0d, RC_READ_RESPONSE_MIDDLE = 0x0e,
    RC_READ_RESPONSE_LAST = 0x0f, RC_READ_RESPONSE_ONLY = 0x10,
    RC_ACKNOWLEDGE = 0x11, RC_ATOMIC_ACKNOWLEDGE = 0x12, RC_CMP_SWAP = 0x13, RC_FETCH_ADD = 0x14,
    RC_SEND_LAST_INV = 0x16, RC_SEND_ONLY_INV = 0x17,
    UC_SEND_FIRST = 0x20, UC_SEND_MIDDLE = 0x21, UC_SEND_LAST = 0x22, UC_SEND_LAST_IMM = 0x23,
    UC_SEND_ONLY = 0x24, UC_SEND_ONLY_IMM = 0x25,
    UC_WRITE_FIRST = 0x26, UC_WRITE_MIDDLE = 0x27, UC_WRITE_LAST = 0x28, UC_WRITE_LAST_IMM = 0x29,
    UC_WRITE_ONLY = 0x2a, UC_WRITE_ONLY_IMM = 0x2b,
    UD_SEND_ONLY = 0x64, UD_SEND_ONLY_IMM = 0x65,
    CNP = 0x81,
    XRC_SEND_FIRST = 0xa0, XRC_SEND_MIDDLE = 0xa1, XRC_SEND_LAST = 0xa2, XRC_SEND_LAST_IMM = 0xa3,
    XRC_SEND_ONLY = 0xa4, XRC_SEND_ONLY_IMM = 0xa5,
    XRC_WRITE_FIRST = 0xa6, XRC_WRITE_MIDDLE = 0xa7, XRC_WRITE_LAST = 0xa8, XRC_WRITE_LAST_IMM = 0xa9,
    XRC_WRITE_ONLY = 0xaa, XRC_WRITE_ONLY_IMM = 0xab,
    XRC_READ_REQUEST = 0xac, XRC_READ_RESPONSE_FIRST = 0xad, XRC_READ_RESPONSE_MIDDLE = 0xae,
    XRC_READ_RESPONSE_LAST = 0xaf, XRC_READ_RESPONSE_ONLY = 0xb0,
    XRC_ACKNOWLEDGE = 0xb1, XRC_ATOMIC_ACKNOWLEDGE = 0xb2, XRC_CMP_SWAP = 0xb3, XRC_FETCH_ADD = 0xb4,
    XRC_SEND_LAST_INV = 0xb6, XRC_SEND_ONLY_INV = 0xb7,
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
