//! The BPF program that selects the socket of a group by the destination QPN.
//!
//! A queue pair's number carries the slot of the process that it belongs to. Slot n's socket is the n-th of the group. The
//! program is classic BPF, which needs no privilege; it runs on the UDP payload, whose second word in the BTH has FECN, BECN, six
//! reserved bits and the QPN.

use libc::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_JGE, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET, BPF_RSH, BPF_W,
    sock_filter,
};

/// The QPN bit of objects that belong to no process: their packets are steered to one slot, regardless of the slot bits.
pub const SERVICE_QPNS: u32 = 1 << 23;
/// The lowest of the QPN's slot bits.
pub const SLOT_SHIFT: u32 = 12;
/// The number of slots.
pub const SLOTS: u16 = 1 << 11;

const BPF_A: u32 = 0x10;

/// Returns the slot that a packet to `qpn` is steered to in a group of `sockets` sockets. `nobodys` is the slot for objects that
/// belong to no process.
pub(crate) fn slot_of(qpn: u32, sockets: usize, nobodys: u16) -> u16 {
    let slot = (qpn >> SLOT_SHIFT) & (u32::from(SLOTS) - 1);
    match u16::try_from(slot) {
        _ if qpn & SERVICE_QPNS != 0 => nobodys,
        Ok(slot) if usize::from(slot) < sockets => slot,
        _ => 0,
    }
}

/// Returns [`slot_of`] as a BPF program. A payload that is too short for a BTH is steered to slot 0: a load out of bounds ends a
/// program with zero.
pub(crate) fn program(sockets: u16, nobodys: u16) -> [sock_filter; 8] {
    let op = |code: u32, jt, jf, k| sock_filter {
        code: u16::try_from(code).unwrap_or_default(),
        jt,
        jf,
        k,
    };
    [
        op(BPF_LD | BPF_W | BPF_ABS, 0, 0, 4),
        op(BPF_JMP | BPF_JSET | BPF_K, 5, 0, SERVICE_QPNS),
        op(BPF_ALU | BPF_AND | BPF_K, 0, 0, (u32::from(SLOTS) - 1) << SLOT_SHIFT),
        op(BPF_ALU | BPF_RSH | BPF_K, 0, 0, SLOT_SHIFT),
        op(BPF_JMP | BPF_JGE | BPF_K, 1, 0, u32::from(sockets)),
        op(BPF_RET | BPF_A, 0, 0, 0),
        op(BPF_RET | BPF_K, 0, 0, 0),
        op(BPF_RET | BPF_K, 0, 0, nobodys.into()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qpn_is_mapped_to_its_socket_slot() {
        assert_eq!(slot_of(1, 4, 0), 0);
        assert_eq!(slot_of(0x001_fff, 4, 0), 1);
        assert_eq!(slot_of(0x003_000, 4, 0), 3);
        assert_eq!(slot_of(0x003_000, 3, 0), 0, "nobody has this slot");
        assert_eq!(slot_of(0xff_ffff, 4000, 0), 0, "multicast is the service's");
        assert_eq!(slot_of(0x80_1000, 4, 0), 0);
        assert_eq!(slot_of(0x80_1000, 4, 3), 3, "it belongs to no process");
        assert_eq!(slot_of(0x7f_f000, 2048, 3), 2047);
    }
}
