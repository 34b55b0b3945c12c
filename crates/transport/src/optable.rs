//! The opcode table: what an arriving packet is, and what a work request becomes on the wire.
//! Everything that depends on an operation is a row here and not a match elsewhere.

use rdmux_wire::{Opcode, Operation};

use crate::attr::QpType;
use crate::wr::WcOpcode;

/// Which part of a queue pair an arriving packet is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The spec reserves the code, or the code is of another service.
    Reserved,
    /// A part of a SEND.
    Send,
    /// A part of an RDMA WRITE.
    Write,
    /// An RDMA READ request.
    Read,
    /// An atomic request.
    Atomic,
    /// A part of a READ's response.
    ReadResponse,
    /// ACK, NAK or RNR NAK.
    Ack,
    /// An atomic's response.
    AtomicAck,
}

/// What an arriving packet is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RxRow {
    /// Who takes it.
    pub(crate) kind: Kind,
    /// FIRST or ONLY.
    pub(crate) starts: bool,
    /// LAST or ONLY.
    pub(crate) ends: bool,
    /// Whether it takes a receive when it ends: every SEND, and WRITE with immediate.
    pub(crate) receives: bool,
}

impl RxRow {
    const NONE: Self = Self { kind: Kind::Reserved, starts: false, ends: false, receives: false };

    const fn of(op: Operation) -> Self {
        use Kind::{Ack, Atomic, AtomicAck, Read, ReadResponse, Reserved, Send, Write};
        use Operation as Op;
        let (kind, starts, ends) = match op {
            Op::SendFirst => (Send, true, false),
            Op::SendMiddle => (Send, false, false),
            Op::SendLast | Op::SendLastImm | Op::SendLastInvalidate => (Send, false, true),
            Op::SendOnly | Op::SendOnlyImm | Op::SendOnlyInvalidate => (Send, true, true),
            Op::WriteFirst => (Write, true, false),
            Op::WriteMiddle => (Write, false, false),
            Op::WriteLast | Op::WriteLastImm => (Write, false, true),
            Op::WriteOnly | Op::WriteOnlyImm => (Write, true, true),
            Op::ReadRequest => (Read, true, true),
            Op::CompareSwap | Op::FetchAdd => (Atomic, true, true),
            Op::ReadResponseFirst => (ReadResponse, true, false),
            Op::ReadResponseMiddle => (ReadResponse, false, false),
            Op::ReadResponseLast => (ReadResponse, false, true),
            Op::ReadResponseOnly => (ReadResponse, true, true),
            Op::Acknowledge => (Ack, true, true),
            Op::AtomicAcknowledge => (AtomicAck, true, true),
            Op::Resync => (Reserved, true, true),
        };
        let receives = matches!(kind, Send) || matches!(op, Op::WriteLastImm | Op::WriteOnlyImm);
        Self { kind, starts, ends, receives }
    }
}

const OPERATIONS: [Operation; 24] = [
    Operation::SendFirst,
    Operation::SendMiddle,
    Operation::SendLast,
    Operation::SendLastImm,
    Operation::SendOnly,
    Operation::SendOnlyImm,
    Operation::WriteFirst,
    Operation::WriteMiddle,
    Operation::WriteLast,
    Operation::WriteLastImm,
    Operation::WriteOnly,
    Operation::WriteOnlyImm,
    Operation::ReadRequest,
    Operation::ReadResponseFirst,
    Operation::ReadResponseMiddle,
    Operation::ReadResponseLast,
    Operation::ReadResponseOnly,
    Operation::Acknowledge,
    Operation::AtomicAcknowledge,
    Operation::CompareSwap,
    Operation::FetchAdd,
    Operation::Resync,
    Operation::SendLastInvalidate,
    Operation::SendOnlyInvalidate,
];

/// By the low five bits of the opcode; RC's view. UC and UD have a part of it.
static RX: [RxRow; 32] = {
    let mut table = [RxRow::NONE; 32];
    let mut i = 0;
    while i < OPERATIONS.len() {
        table[OPERATIONS[i] as usize] = RxRow::of(OPERATIONS[i]);
        i += 1;
    }
    table
};

/// The service bits of a type's opcodes, and which of the 24 operations it has (IBTA table 38).
const fn service(qp_type: QpType) -> (u8, u32) {
    match qp_type {
        QpType::Rc => (0x00, 0x00df_ffff),
        QpType::Uc => (0x20, 0x0000_0fff),
        QpType::Ud => (0x60, 0x0000_0030),
        // Both have RC's, but one takes the responses only and the other the requests.
        QpType::XrcSend => (0xa0, 0x0007_e000),
        QpType::XrcRecv => (0xa0, 0x00d8_1fff),
    }
}

/// What a packet of this opcode is to a queue pair of this type.
#[inline]
pub(crate) fn rx(qp_type: QpType, opcode: Opcode) -> RxRow {
    let (prefix, has) = service(qp_type);
    let code = opcode.0 & 0x1f;
    if opcode.0 & 0xe0 != prefix || has >> code & 1 == 0 {
        return RxRow::NONE;
    }
    RX[usize::from(code)]
}

/// The opcode by which queue pairs of this type do something.
#[inline]
pub(crate) const fn opcode(qp_type: QpType, operation: Operation) -> Opcode {
    Opcode(service(qp_type).0 | operation as u8)
}

/// The operation of a queued send work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum TxKind {
    Send,
    SendImm,
    SendInv,
    Write,
    WriteImm,
    Read,
    FetchAdd,
    CmpSwap,
    LocalInv,
    BindMw,
}

/// How a work request travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Travel {
    /// Its bytes go out, an ACK comes back.
    Message,
    /// A request goes out, bytes come back.
    Read,
    /// A request goes out, eight bytes come back.
    Atomic,
    /// It does not travel.
    Local,
}

/// What a work request becomes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TxRow {
    /// How it travels.
    pub(crate) travel: Travel,
    /// What its completion says.
    pub(crate) wc: WcOpcode,
    /// Opcodes of RC for MIDDLE, FIRST, LAST, ONLY, in the order of [`TxRow::opcode`]'s index.
    codes: [Operation; 4],
    /// Which types have it: 1 RC and with it XRC, 2 UC, 4 UD.
    types: u8,
}

impl TxRow {
    /// The opcode of a packet that starts the message, ends it, both or neither.
    #[inline]
    pub(crate) fn opcode(&self, qp_type: QpType, starts: bool, ends: bool) -> Opcode {
        opcode(qp_type, self.codes[usize::from(starts) | usize::from(ends) << 1])
    }

    /// Whether queue pairs of this type have the operation.
    #[inline]
    pub(crate) const fn serves(&self, qp_type: QpType) -> bool {
        let bit = match qp_type {
            QpType::Rc | QpType::XrcSend => 1,
            QpType::Uc => 2,
            QpType::Ud => 4,
            QpType::XrcRecv => 0,
        };
        self.types & bit != 0
    }

    /// Whether a response with data completes it, and not an ACK.
    #[inline]
    pub(crate) const fn wants_response(&self) -> bool {
        matches!(self.travel, Travel::Read | Travel::Atomic)
    }
}

const fn tx_row(travel: Travel, wc: WcOpcode, codes: [Operation; 4], types: u8) -> TxRow {
    TxRow { travel, wc, codes, types }
}

use Operation as Op;

static TX: [TxRow; 10] = [
    tx_row(
        Travel::Message,
        WcOpcode::Send,
        [Op::SendMiddle, Op::SendFirst, Op::SendLast, Op::SendOnly],
        7,
    ),
    tx_row(
        Travel::Message,
        WcOpcode::Send,
        [Op::SendMiddle, Op::SendFirst, Op::SendLastImm, Op::SendOnlyImm],
        7,
    ),
    tx_row(
        Travel::Message,
        WcOpcode::Send,
        [Op::SendMiddle, Op::SendFirst, Op::SendLastInvalidate, Op::SendOnlyInvalidate],
        1,
    ),
    tx_row(
        Travel::Message,
        WcOpcode::RdmaWrite,
        [Op::WriteMiddle, Op::WriteFirst, Op::WriteLast, Op::WriteOnly],
        3,
    ),
    tx_row(
        Travel::Message,
        WcOpcode::RdmaWrite,
        [Op::WriteMiddle, Op::WriteFirst, Op::WriteLastImm, Op::WriteOnlyImm],
        3,
    ),
    tx_row(Travel::Read, WcOpcode::RdmaRead, [Op::ReadRequest; 4], 1),
    tx_row(Travel::Atomic, WcOpcode::FetchAdd, [Op::FetchAdd; 4], 1),
    tx_row(Travel::Atomic, WcOpcode::CompSwap, [Op::CompareSwap; 4], 1),
    tx_row(Travel::Local, WcOpcode::LocalInv, [Op::Resync; 4], 3),
    tx_row(Travel::Local, WcOpcode::BindMw, [Op::Resync; 4], 3),
];

impl TxKind {
    /// Its row of the table.
    #[inline]
    pub(crate) fn row(self) -> &'static TxRow {
        &TX[self as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_agree_with_the_names_of_the_wire() {
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
    fn each_type_has_the_operations_of_table_38() {
        let count = |ty| (0..=255).filter(|&c| rx(ty, Opcode(c)).kind != Kind::Reserved).count();
        assert_eq!((count(QpType::Rc), count(QpType::Uc), count(QpType::Ud)), (23, 12, 2));
    }

    #[test]
    fn of_the_two_ends_of_xrc_one_takes_responses_and_the_other_requests() {
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
    fn a_work_request_becomes_the_opcodes_of_its_type() {
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
