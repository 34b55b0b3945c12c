//! Describes a port to its host.

use rdmux_subnet::topology::Speed;
use rdmux_subnet::{Counter, PortView};
use rdmux_wire::{Gid, Pkey};

use crate::proto::PortFacts;

/// The counters, by their names in sysfs.
const COUNTERS: &[(&str, Counter)] = &[
    ("symbol_error", Counter::SymbolError),
    ("link_error_recovery", Counter::LinkErrorRecovery),
    ("link_downed", Counter::LinkDowned),
    ("port_rcv_errors", Counter::PortRcvErrors),
    ("port_rcv_remote_physical_errors", Counter::PortRcvRemotePhysicalErrors),
    ("port_rcv_switch_relay_errors", Counter::PortRcvSwitchRelayErrors),
    ("port_xmit_discards", Counter::PortXmitDiscards),
    ("port_xmit_constraint_errors", Counter::PortXmitConstraintErrors),
    ("port_rcv_constraint_errors", Counter::PortRcvConstraintErrors),
    ("local_link_integrity_errors", Counter::LocalLinkIntegrityErrors),
    ("excessive_buffer_overrun_errors", Counter::ExcessiveBufferOverrunErrors),
    ("VL15_dropped", Counter::Vl15Dropped),
    ("port_xmit_data", Counter::PortXmitData),
    ("port_rcv_data", Counter::PortRcvData),
    ("port_xmit_packets", Counter::PortXmitPkts),
    ("port_rcv_packets", Counter::PortRcvPkts),
    ("port_xmit_wait", Counter::PortXmitWait),
    ("multicast_xmit_packets", Counter::PortMulticastXmitPkts),
    ("multicast_rcv_packets", Counter::PortMulticastRcvPkts),
];

/// Returns the state of a port, with its P_Key table.
pub(super) fn facts(port: PortView<'_>, pkeys: Vec<Pkey>) -> PortFacts {
    let (info, rate) = (port.info(), port.rate());
    let gids = (0..info.guid_cap).map(|index| port.gid(index).unwrap_or(Gid::ZERO));
    PortFacts {
        number: port.id().number,
        guid: port.guid(),
        gid_prefix: info.gid_prefix,
        lid: port.lid(),
        lmc: port.lmc(),
        sm_lid: port.sm_lid(),
        sm_sl: port.sm_sl(),
        state: port.state().0,
        phys_state: port.phys_state().0,
        capabilities: port.capability_mask().bits(),
        max_mtu: info.mtu_cap,
        active_mtu: info.neighbor_mtu,
        active_width: rate.map_or(info.link_width_active.bits(), |rate| rate.width.code()),
        active_speed: rate.map_or(1, |rate| speed(rate.speed)),
        max_vls: info.vl_cap.0,
        subnet_timeout: info.subnet_timeout,
        init_type_reply: info.init_type_reply,
        pkey_violations: info.pkey_violations,
        qkey_violations: info.qkey_violations,
        gids: gids.collect(),
        pkeys,
        counters: COUNTERS.iter().map(|&(name, c)| (name.to_owned(), port.counter(c))).collect(),
    }
}

/// Returns the code of a speed in `ibv_query_port(3)`.
const fn speed(speed: Speed) -> u8 {
    match speed {
        Speed::Sdr => 1,
        Speed::Ddr => 2,
        Speed::Qdr => 4,
        Speed::Fdr10 => 8,
        Speed::Fdr => 16,
        Speed::Edr => 32,
        Speed::Hdr => 64,
        Speed::Ndr => 128,
    }
}
