//! Traps: unsolicited notices of agents to the manager (IBTA 13.4.9, 14.2.5.1).
//!
//! At most one trap of each number is outstanding per port. It is repeated, at most once per SubnetTimeOut, until the manager
//! represses it. A further event in the meantime is sent as the next trap.

use alloc::boxed::Box;
use core::time::Duration;

use rdmux_transport::Time;
use rdmux_wire::mad::{MadHeader, Method};
use rdmux_wire::sm::{
    BadKey, BadMkey, BadSwitchPkey, CapabilityMask, LinkStateChange, LocalChange, LocalChangeFlags,
    Notice, PortState, Producer, SystemImageGuidChange, Trap,
};
use rdmux_wire::smp::Smp;
use rdmux_wire::{Gid, Lid, Pkey};

use crate::mkey;
use crate::packet::{MadPacket, PortId};
use crate::port::{PortData, PortKind};
use crate::sink::Sink;
use crate::subnet::{Cx, Subnet, Timer};
use crate::topology::NodeKind;

/// The shortest repeat interval of a trap, however short SubnetTimeOut is.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// A trap that a port is sending, or has sent so recently that the next one must wait.
#[derive(Clone, Debug)]
pub(crate) struct Outstanding {
    notice: Notice,
    tid: u64,
    sent: bool,
    repressed: bool,
    /// The latest event since it was sent.
    next: Option<Notice>,
}

impl Subnet {
    /// Raises a trap for a link state change at a switch.
    pub(crate) fn raise_link_state(&mut self, at: usize, cx: &mut Cx<'_, impl Sink>) {
        let lid = self.ports[at].info.lid;
        let trap = Trap::LinkState(LinkStateChange { lid, ..LinkStateChange::default() });
        self.raise(at, &trap, cx);
    }

    /// Raises a trap for a change of a port's capability mask, or of the properties that the flags name.
    pub(crate) fn raise_local_change(
        &mut self,
        at: usize,
        change_flags: LocalChangeFlags,
        cx: &mut Cx<'_, impl Sink>,
    ) {
        let info = &self.ports[at].info;
        let trap = Trap::Local(LocalChange {
            lid: info.lid,
            other_local_changes: !change_flags.is_empty(),
            capability_mask: info.capability_mask,
            capability_mask2: info.capability_mask2,
            change_flags,
            ..LocalChange::default()
        });
        self.raise(at, &trap, cx);
    }

    /// Raises a trap for a change of the system image GUID of a port's node.
    pub(crate) fn raise_system_guid(&mut self, at: usize, cx: &mut Cx<'_, impl Sink>) {
        let (lid, system_image_guid) = (self.ports[at].info.lid, self.node_of(at).system_guid);
        let change = SystemImageGuidChange { lid, system_image_guid, ..Default::default() };
        self.raise(at, &Trap::SystemImageGuid(change), cx);
    }

    /// Raises a trap for a wrong M_Key.
    pub(crate) fn raise_bad_mkey(
        &mut self,
        at: usize,
        header: &MadHeader,
        packet: &MadPacket,
        cx: &mut Cx<'_, impl Sink>,
    ) {
        let mut bad = BadMkey {
            lid: self.ports[at].info.lid,
            method: header.method.0,
            attribute_id: header.attr_id,
            attribute_modifier: header.attr_mod,
            mkey: mkey::shown(&packet.mad[..]),
            ..BadMkey::default()
        };
        if let Ok(smp) = Smp::parse(&packet.mad[..])
            && smp.is_directed()
        {
            bad.dr_slid = smp.dr_slid;
            bad.dr_notice = true;
            bad.dr_hop_count = smp.hop_count();
            bad.dr_path_truncated = usize::from(smp.hop_count()) > bad.return_path.len();
            bad.return_path.copy_from_slice(&smp.return_path[1..31]);
        }
        self.raise(at, &Trap::Mkey(bad), cx);
    }

    /// Raises a trap for a datagram with a wrong P_Key or Q_Key.
    pub(crate) fn raise_bad_key(
        &mut self,
        at: usize,
        packet: &MadPacket,
        key: u32,
        trap: fn(BadKey) -> Trap,
        cx: &mut Cx<'_, impl Sink>,
    ) {
        self.raise(at, &trap(bad_key(packet, key)), cx);
    }

    /// Raises a trap for a datagram with a wrong P_Key at a switch port that enforces partitions.
    pub(crate) fn raise_switch_pkey(
        &mut self,
        port: usize,
        packet: &MadPacket,
        cx: &mut Cx<'_, impl Sink>,
    ) {
        self.raise_at_switch(port, &bad_key(packet, packet.pkey.0.into()), cx);
    }

    fn raise_at_switch(&mut self, port: usize, bad: &BadKey, cx: &mut Cx<'_, impl Sink>) {
        // Bits from 0 on: LIDs 1 and 2, P_Key, SL, queue pairs 1 and 2, GIDs 1 and 2.
        const ALL_BUT_GIDS: u16 = 0x3f;
        const ALL: u16 = 0xff;
        let &BadKey { lid1, lid2, key, sl, qp1, qp2, gid1, gid2, .. } = bad;
        let has_gids = (gid1, gid2) != (Gid::ZERO, Gid::ZERO);
        let at = self.manager_of(port);
        let bad = BadSwitchPkey {
            data_valid: if has_gids { ALL } else { ALL_BUT_GIDS },
            lid1,
            lid2,
            pkey: Pkey((key & 0xffff) as u16),
            sl,
            qp1,
            qp2,
            gid1,
            gid2,
            switch_lid: self.ports[at].info.lid,
            port: self.ports[port].id.number,
            ..BadSwitchPkey::default()
        };
        self.raise(at, &Trap::SwitchPkey(bad), cx);
    }

    /// Raises a trap for a data packet with a wrong key, from the port that noticed it: an adapter's port sends trap 257 or
    /// 258, as `trap` says; a switch port that enforces partitions sends trap 259. Counts nothing.
    pub fn key_violation(
        &mut self,
        now: Time,
        at: PortId,
        bad: &BadKey,
        trap: fn(BadKey) -> Trap,
        sink: &mut impl Sink,
    ) {
        let Some(at) = self.index(at) else { return };
        let mut cx = Cx { now, sink };
        if self.kind(at) == PortKind::Adapter {
            self.raise(at, &trap(*bad), &mut cx);
        } else {
            self.raise_at_switch(at, bad, &mut cx);
        }
        self.expire(&mut cx);
    }

    /// Raises a trap about a port. The port that manages it sends the trap.
    pub(crate) fn raise(&mut self, about: usize, trap: &Trap, cx: &mut Cx<'_, impl Sink>) {
        let at = self.manager_of(about);
        if !may_trap(&self.ports[at]) {
            return;
        }
        let producer = match self.node_of(at).kind {
            NodeKind::Ca => Producer::CA,
            NodeKind::Switch => Producer::SWITCH,
            NodeKind::Router => Producer::ROUTER,
        };
        let notice = Notice::new(trap, producer, self.ports[at].info.lid);
        let tid = self.next_tid;
        let key = (about, trap.number());
        if let Some(trap) = self.traps.get_mut(&key) {
            if trap.repressed {
                *trap = Outstanding::new(notice, tid);
                self.next_tid += 1;
            } else if trap.sent {
                trap.next = Some(notice);
            } else {
                trap.notice = notice;
            }
            return;
        }
        self.next_tid += 1;
        self.traps.insert(key, Outstanding::new(notice, tid));
        self.timers.insert((cx.now, Timer::Trap(about, trap.number())));
    }

    /// Handles a trap timer: sends, repeats or forgets the trap.
    pub(crate) fn trap_is_due(&mut self, about: usize, number: u16, cx: &mut Cx<'_, impl Sink>) {
        let key = (about, number);
        let at = self.manager_of(about);
        let port = &self.ports[at];
        let Some(trap) = self.traps.get_mut(&key) else { return };
        if trap.repressed || !may_trap(port) {
            self.traps.remove(&key);
            return;
        }
        trap.sent = true;
        let packet = trap.packet(port);
        self.timers.insert((after_timeout(cx.now, port), Timer::Trap(about, number)));
        self.dispatch(at, packet, cx);
    }

    /// Handles a TrapRepress. Returns false if no trap with this transaction ID is outstanding.
    pub(crate) fn repress(&mut self, at: usize, header: &MadHeader) -> bool {
        // Port 0 of a switch also sends the traps about its other ports.
        let last = self.node_of(at).switch.as_ref().map_or(0, |_| self.node_of(at).num_ports);
        let keys = (at, 0)..=(at + usize::from(last), u16::MAX);
        let mut of_port = self.traps.range_mut(keys).map(|(_, trap)| trap);
        let found = of_port.find(|t| t.tid == header.tid && t.sent && !t.repressed);
        let Some(trap) = found.filter(|_| header.attr_id == Notice::ATTR_ID) else { return false };
        match trap.next.take() {
            None => trap.repressed = true,
            Some(next) => {
                *trap = Outstanding::new(next, self.next_tid);
                self.next_tid += 1;
            }
        }
        true
    }
}

impl Outstanding {
    const fn new(notice: Notice, tid: u64) -> Self {
        Self { notice, tid, sent: false, repressed: false, next: None }
    }

    fn packet(&self, port: &PortData) -> MadPacket {
        let mut smp = Smp::lid_routed(Method::TRAP, Notice::ATTR_ID, 0);
        smp.header.tid = self.tid;
        self.notice.emit(&mut smp.data);
        let info = &port.info;
        MadPacket::smp(info.lid, info.sm_lid, info.master_smsl, Box::new(smp.to_bytes()))
    }
}

/// Returns whether a port can send traps: it is active, knows its manager, and supports traps.
fn may_trap(port: &PortData) -> bool {
    port.info.port_state == PortState::ACTIVE
        && port.info.sm_lid != Lid::NONE
        && port.info.capability_mask.contains(CapabilityMask::TRAP)
}

fn after_timeout(now: Time, port: &PortData) -> Time {
    let timeout = Duration::from_nanos(4096 << (port.info.subnet_timeout & 0x1f));
    now.after(timeout.max(MIN_INTERVAL))
}

/// Returns the details of traps 257 to 259 for a datagram.
fn bad_key(packet: &MadPacket, key: u32) -> BadKey {
    let gids = packet.grh.as_ref().map_or((Gid::ZERO, Gid::ZERO), |grh| (grh.sgid, grh.dgid));
    BadKey {
        lid1: packet.slid,
        lid2: packet.dlid,
        key,
        sl: packet.sl,
        qp1: packet.src_qpn,
        qp2: packet.dst_qpn,
        gid1: gids.0,
        gid2: gids.1,
        ..BadKey::default()
    }
}
