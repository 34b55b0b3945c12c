//! Classification of arriving packets, and the wire format of work requests. Both are derived from the
//! opcode table in `rdmux_wire::opcode` at compile time. Work requests have an additional table here.

pub(crate) use rdmux_wire::OpKind as Kind;
use rdmux_wire::{Opcode, Operation, Service};

use crate::attr::QpType;
use crate::wr::WcOpcode;

/// The classification of an arriving packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RxRow {
    /// The part of the queue pair that handles the packet; [`Kind::Reserved`] if none does.
    pub(crate) kind: Kind,
    /// Whether the packet is a FIRST or ONLY.
    pub(crate) starts: bool,
    /// Whether the packet is a LAST or ONLY.
    pub(crate) ends: bool,
    /// Whether the end of its message consumes a receive work request: every SEND, and WRITE with immediate.
    pub(crate) receives: bool,
}

impl RxRow {
    const fn of(opcode: Opcode) -> Self {
        Self {
            kind: opcode.kind(),
            starts: opcode.starts_message(),
            ends: opcode.ends_message(),
            receives: opcode.needs_receive(),
        }
    }
}

/// The classification by the low five bits of the opcode, for RC. The other types support a subset.
static RX: [RxRow; 32] = {
    let mut table = [RxRow::of(Opcode(0)); 32];
    let mut code = 0_u8;
    while code < 32 {
        table[code as usize] = RxRow::of(Opcode(code));
        code += 1;
    }
    table
};

const NOT_OURS: RxRow = RxRow { kind: Kind::Reserved, starts: false, ends: false, receives: false };

/// Returns the service whose opcodes a type's packets have.
const fn service(qp_type: QpType) -> Service {
    match qp_type {
        QpType::Rc => Service::Rc,
        QpType::Uc => Service::Uc,
        QpType::Ud => Service::Ud,
        QpType::XrcSend | QpType::XrcRecv => Service::Xrc,
    }
}

/// Returns the operations that a type receives, as bits. One of the two ends of XRC receives the
/// responses, the other the requests.
const fn received(qp_type: QpType) -> u32 {
    let mut set = 0;
    let mut code = 0;
    while code < 32 {
        let opcode = Opcode(Opcode::of(service(qp_type), Operation::SendFirst).0 | code);
        let this_end = match qp_type {
            QpType::XrcSend => opcode.is_response(),
            QpType::XrcRecv => !opcode.is_response(),
            QpType::Rc | QpType::Uc | QpType::Ud => true,
        };
        if this_end && opcode.operation().is_some() {
            set |= 1 << code;
        }
        code += 1;
    }
    set
}

/// Returns the classification of a packet with this opcode for a queue pair of this type.
#[inline]
pub(crate) fn rx(qp_type: QpType, opcode: Opcode) -> RxRow {
    let received = match qp_type {
        QpType::Rc => const { received(QpType::Rc) },
        QpType::Uc => const { received(QpType::Uc) },
        QpType::Ud => const { received(QpType::Ud) },
        QpType::XrcSend => const { received(QpType::XrcSend) },
        QpType::XrcRecv => const { received(QpType::XrcRecv) },
    };
    let code = opcode.0 & 0x1f;
    if opcode.service() as u8 != service(qp_type) as u8 || received >> code & 1 == 0 {
        return NOT_OURS;
    }
    RX[usize::from(code)]
}

/// Returns the opcode of an operation for queue pairs of this type.
#[inline]
pub(crate) const fn opcode(qp_type: QpType, operation: Operation) -> Opcode {
    Opcode::of(service(qp_type), operation)
}

/// Returns the opcode of a packet that starts a READ response, ends it, both or neither.
pub(crate) fn read_response(qp_type: QpType, starts: bool, ends: bool) -> Opcode {
    opcode(qp_type, const { packets(Kind::ReadResponse, Extra::None) }.of(starts, ends))
}

/// The kind of exchange that a work request causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Travel {
    /// A message, whose bytes are sent and acknowledged.
    Message,
    /// A request is sent, and bytes return.
    Read,
    /// A request is sent, and eight bytes return.
    Atomic,
    /// A local operation, which sends nothing.
    Local,
}

/// The immediate data or the key that the last packet of a message carries in addition to its payload.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extra {
    None,
    Immediate,
    Invalidate,
}

/// The operations of a message's packets.
#[derive(Clone, Copy, Debug)]
struct Packets([Operation; 4]);

impl Packets {
    #[inline]
    const fn of(self, starts: bool, ends: bool) -> Operation {
        self.0[starts as usize | (ends as usize) << 1]
    }
}

/// Looks the operations up in the opcode table: MIDDLE, FIRST, LAST and ONLY.
const fn packets(kind: Kind, extra: Extra) -> Packets {
    Packets([
        packet(kind, false, false, Extra::None),
        packet(kind, true, false, Extra::None),
        packet(kind, false, true, extra),
        packet(kind, true, true, extra),
    ])
}

const fn packet(kind: Kind, starts: bool, ends: bool, extra: Extra) -> Operation {
    let mut i = 0;
    while i < Operation::ALL.len() {
        let opcode = Opcode::of(Service::Rc, Operation::ALL[i]);
        if opcode.kind() as u8 == kind as u8
            && opcode.starts_message() == starts
            && opcode.ends_message() == ends
            && opcode.has_imm() == matches!(extra, Extra::Immediate)
            && opcode.has_ieth() == matches!(extra, Extra::Invalidate)
        {
            return Operation::ALL[i];
        }
        i += 1;
    }
    panic!("the opcode table lacks a packet of a message")
}

/// The table row of a work request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TxRow {
    /// The kind of exchange.
    pub(crate) travel: Travel,
    /// The opcode of the work request's completion.
    pub(crate) wc: WcOpcode,
    /// The operations of the message's packets. Unused for a local operation.
    packets: Packets,
    /// The types that support the operation, as bits.
    types: u8,
}

impl TxRow {
    /// Returns the opcode of a packet that starts the message, ends it, both or neither.
    #[inline]
    pub(crate) fn opcode(&self, qp_type: QpType, starts: bool, ends: bool) -> Opcode {
        opcode(qp_type, self.packets.of(starts, ends))
    }

    /// Returns whether queue pairs of this type support the operation.
    #[inline]
    pub(crate) const fn serves(&self, qp_type: QpType) -> bool {
        self.types & sender(qp_type) != 0
    }

    /// Returns whether a response with data, and not an ACK, completes the operation.
    #[inline]
    pub(crate) const fn wants_response(&self) -> bool {
        matches!(self.travel, Travel::Read | Travel::Atomic)
    }

    /// Returns how many bytes a response returns, to a gather list of `len`.
    #[inline]
    pub(crate) const fn bytes_back(&self, len: u32) -> u32 {
        match self.travel {
            Travel::Read => len,
            Travel::Atomic => 8,
            Travel::Message | Travel::Local => 0,
        }
    }

    const fn travels(wc: WcOpcode, packets: Packets) -> Self {
        let only = packets.of(true, true);
        let travel = match only.kind() {
            Kind::Read => Travel::Read,
            Kind::Atomic => Travel::Atomic,
            _ => Travel::Message,
        };
        let mut types = 0;
        let mut i = 0;
        while i < QpType::ALL.len() {
            if opcode(QpType::ALL[i], only).operation().is_some() {
                types |= sender(QpType::ALL[i]);
            }
            i += 1;
        }
        Self { travel, wc, packets, types }
    }

    /// Returns the row of a message, sent in as many packets as it needs.
    const fn message(wc: WcOpcode, kind: Kind, extra: Extra) -> Self {
        Self::travels(wc, packets(kind, extra))
    }

    /// Returns the row of a request of one packet.
    const fn request(wc: WcOpcode, operation: Operation) -> Self {
        Self::travels(wc, Packets([operation; 4]))
    }

    /// Returns the row of a local operation, which the connected types support.
    const fn local(wc: WcOpcode) -> Self {
        let types = sender(QpType::Rc) | sender(QpType::Uc);
        Self { travel: Travel::Local, wc, packets: Packets([Operation::Resync; 4]), types }
    }
}

/// Returns the bit of a type that may send. XRC sends the same as RC, from its initiator only.
const fn sender(qp_type: QpType) -> u8 {
    match qp_type {
        QpType::Rc | QpType::XrcSend => 1,
        QpType::Uc => 2,
        QpType::Ud => 4,
        QpType::XrcRecv => 0,
    }
}

macro_rules! work_requests {
    ($($kind:ident: $row:expr;)*) => {
        /// The operation of a queued send work request.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(crate) enum TxKind {
            $($kind,)*
        }

        static TX: [TxRow; [$(TxKind::$kind),*].len()] = [$($row),*];
    };
}

work_requests! {
    Send: TxRow::message(WcOpcode::Send, Kind::Send, Extra::None);
    SendImm: TxRow::message(WcOpcode::Send, Kind::Send, Extra::Immediate);
    SendInv: TxRow::message(WcOpcode::Send, Kind::Send, Extra::Invalidate);
    Write: TxRow::message(WcOpcode::RdmaWrite, Kind::Write, Extra::None);
    WriteImm: TxRow::message(WcOpcode::RdmaWrite, Kind::Write, Extra::Immediate);
    Read: TxRow::request(WcOpcode::RdmaRead, Operation::ReadRequest);
    FetchAdd: TxRow::request(WcOpcode::FetchAdd, Operation::FetchAdd);
    CmpSwap: TxRow::request(WcOpcode::CompSwap, Operation::CompareSwap);
    LocalInv: TxRow::local(WcOpcode::LocalInv);
    BindMw: TxRow::local(WcOpcode::BindMw);
}

impl TxKind {
    /// Returns the row of this operation.
    #[inline]
    pub(crate) fn row(self) -> &'static TxRow {
        &TX[self as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receive_opcode_rows_agree_with_wire_first_last_and_response_opcodes() {
        for code in 0..=255_u8 {
            let op = Opcode(code);
            for ty in QpType::ALL {
                let row = rx(ty, op);
                if row.kind == Kind::Reserved {
                    continue;
                }
                assert_eq!(row.starts, op.starts_message(), "{op}");
                assert_eq!(row.ends, op.ends_message(), "{op}");
                assert_eq!(
                    matches!(row.kind, Kind::ReadResponse | Kind::Ack | Kind::AtomicAck),
                    op.is_response(),
                    "{op}"
                );
            }
        }
    }

    #[test]
    fn rc_uc_and_ud_have_the_opcode_counts_of_ibta_table_38() {
        let count = |ty| (0..=255).filter(|&c| rx(ty, Opcode(c)).kind != Kind::Reserved).count();
        assert_eq!((count(QpType::Rc), count(QpType::Uc), count(QpType::Ud)), (23, 12, 2));
    }

    #[test]
    fn xrc_ini_takes_only_responses_and_xrc_tgt_only_requests() {
        let takes = |ty, op| rx(ty, op).kind != Kind::Reserved;
        for code in 0..=255_u8 {
            let op = Opcode(code);
            let xrc = takes(QpType::Rc, Opcode(code ^ 0xa0));
            assert_eq!(takes(QpType::XrcSend, op), xrc && op.is_response(), "{op}");
            assert_eq!(takes(QpType::XrcRecv, op), xrc && !op.is_response(), "{op}");
            assert_eq!(takes(QpType::XrcRecv, op), xrc && op.has_xrceth(), "{op}");
        }
    }

    #[test]
    fn work_request_maps_to_the_bth_opcodes_of_its_qp_type() {
        let row = TxKind::WriteImm.row();
        assert_eq!(row.opcode(QpType::Rc, false, true), Opcode::RC_WRITE_LAST_IMM);
        assert_eq!(row.opcode(QpType::Uc, true, false), Opcode::UC_WRITE_FIRST);
        assert_eq!(TxKind::SendImm.row().opcode(QpType::Ud, true, true), Opcode::UD_SEND_ONLY_IMM);
        assert!(!TxKind::Read.row().serves(QpType::Uc));
        assert_eq!(row.opcode(QpType::XrcSend, true, true), Opcode::XRC_WRITE_ONLY_IMM);
        assert!(TX.iter().all(|row| row.serves(QpType::XrcSend) == row.serves(QpType::Rc)));
        assert!(!TX.iter().any(|row| row.serves(QpType::XrcRecv)));
    }
}
