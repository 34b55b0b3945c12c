//! Packets with keys that do not match, as reported by hosts: the port that noticed one raises a trap.

use rdmux_subnet::umad::Ports;
use rdmux_subnet::{PacketKind, PortId};
use rdmux_wire::sm::{BadKey, Trap};
use rdmux_wire::{Gid, Pkey, Qpn};

use super::connection::ConnectionId;
use super::core::Core;
use crate::proto::{Violation, ViolationKind};

impl Core {
    /// Handles a host's report of one such packet, or of several of a kind since the last report. Claims about others' packets are
    /// not checked: adapters are trusted with that, and a port can only raise its own traps, or those of a switch that drops what it
    /// sends.
    pub(super) fn key_violation(&mut self, id: ConnectionId, port: PortId, violation: &Violation) {
        // All counters that such a packet changes are in its host's rows.
        self.read_counts_of(port);
        self.tell_host_soon(id);
        let Some(view) = self.world.subnet().port(port) else { return };
        let owns = |lid| view.lid().is_unicast() && is_of(view.lid(), view.lmc(), lid);
        let here = match violation.kind {
            ViolationKind::SwitchPkey => owns(violation.slid),
            _ => owns(violation.dlid) || violation.dlid.is_multicast(),
        };
        let (trap, at): (fn(BadKey) -> Trap, _) = match violation.kind {
            ViolationKind::Pkey => (Trap::Pkey, Some(port)),
            ViolationKind::Qkey => (Trap::Qkey, Some(port)),
            ViolationKind::SwitchPkey => (Trap::Pkey, self.enforcer(port, violation)),
        };
        let Some(at) = at.filter(|_| here) else { return };
        let (gid1, gid2) = violation.gids.unwrap_or((Gid::ZERO, Gid::ZERO));
        let bad = BadKey {
            lid1: violation.slid,
            lid2: violation.dlid,
            key: violation.key,
            sl: violation.sl & 0xf,
            qp1: Qpn::new(violation.src_qpn),
            qp2: Qpn::new(violation.dst_qpn),
            gid1,
            gid2,
            ..BadKey::default()
        };
        let now = self.now();
        let (world, mut programs) = self.world_and_programs();
        world.change(&mut programs, now, |subnet, sink| {
            subnet.key_violation(now, at, &bad, trap, sink);
        });
    }

    /// Returns the port of the switch that drops such a packet of a host.
    fn enforcer(&self, from: PortId, violation: &Violation) -> Option<PortId> {
        let key = Pkey(u16::try_from(violation.key).ok()?);
        let subnet = self.world.subnet();
        let index = (0..128).find(|index| Ports::pkey(subnet, from, *index) == Some(key))?;
        let pkey = u8::try_from(index).ok()?;
        let packet = PacketKind { sl: violation.sl & 0xf, pkey, payload: 0 };
        self.published.enforcer(from, violation.dlid, packet)
    }
}

/// Returns whether a LID is one of a port's.
fn is_of(base: rdmux_wire::Lid, lmc: u8, lid: rdmux_wire::Lid) -> bool {
    let mask = (1_u16 << (lmc & 7)) - 1;
    lid.0 & !mask == base.0 & !mask
}
