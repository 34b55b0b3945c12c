//! PortInfo: identity, link, and the commands that change a port's state (IBTA 14.2.5.6).

use rdmux_wire::Mkey;
use rdmux_wire::sm::{LinkDownDefault, LinkSpeedExt, PhysState, PortInfo, PortState, VlCap};

use super::{Data, Refused, Request, put};
use crate::link::down_state;
use crate::port::PortKind;
use crate::sink::{PortEvent, Sink};
use crate::subnet::{Cx, Subnet};

/// A bit of the modifier: the manager supports extended speeds.
const EXTENDED_SPEEDS: u32 = 1 << 31;

pub(super) fn answer(
    subnet: &mut Subnet,
    r: &Request,
    data: &mut Data,
    cx: &mut Cx<'_, impl Sink>,
) -> Result<(), Refused> {
    let at = target(subnet, r).ok_or(Refused::Invalid)?;
    let mut result = Ok(());
    let mut reregister = false;
    if r.is_set {
        let new = PortInfo::from_bytes(data);
        let kind = subnet.kind(at);
        reregister = new.client_reregister && kind != PortKind::External;
        let before = of_ways(&subnet.ports[at].info);
        let valid = set(subnet, at, kind, &new, r.modifier & EXTENDED_SPEEDS != 0, cx);
        if of_ways(&subnet.ports[at].info) != before {
            subnet.port_changed(at);
        }
        if !valid {
            result = Err(Refused::Invalid);
        }
    }
    let mut info = subnet.ports[at].info;
    info.local_port_num = r.arrival.ingress;
    info.client_reregister = reregister;
    if info.mkey_protect_bits != 0 && info.mkey != r.key {
        info.mkey = Mkey(0);
    }
    put(data, &info.to_bytes());
    result
}

/// Returns the fields that routes depend on, except the state, whose changes are recorded separately.
fn of_ways(info: &PortInfo) -> impl PartialEq + use<> {
    let enforced = (info.partition_enforcement_inbound, info.partition_enforcement_outbound);
    (info.lid, info.lmc, info.gid_prefix, info.neighbor_mtu, info.operational_vls, enforced)
}

/// Returns the port that the modifier names: any port of a switch; of an adapter the port that was addressed, or for a Get
/// also another one.
pub(super) fn target(subnet: &Subnet, r: &Request) -> Option<usize> {
    let number = u8::try_from(r.modifier & !EXTENDED_SPEEDS).ok()?;
    let at = r.arrival.at;
    let node = subnet.node_of(at);
    let port = match number {
        0 if node.switch.is_none() => at,
        number => node.port(number)?,
    };
    (node.switch.is_some() || !r.is_set || port == at).then_some(port)
}

/// Applies the valid part of a Set. Returns whether all of it was valid.
fn set(
    subnet: &mut Subnet,
    at: usize,
    kind: PortKind,
    new: &PortInfo,
    knows_ext: bool,
    cx: &mut Cx<'_, impl Sink>,
) -> bool {
    let mut valid = true;
    if kind != PortKind::External {
        let node = subnet.node_of(at).switch.as_ref();
        let lmc = node.is_none_or(|switch| switch.info.enhanced_port0);
        valid &= set_identity(subnet, at, new, lmc, cx);
    }
    if kind == PortKind::Management {
        // Port 0 is always active.
        let state =
            matches!(new.port_state, PortState::NO_CHANGE | PortState::ARMED | PortState::ACTIVE);
        return valid && state && new.port_physical_state == PhysState::NO_CHANGE;
    }
    let info = &mut subnet.ports[at].info;
    valid &= set_link(info, new, knows_ext);
    if kind == PortKind::External {
        info.partition_enforcement_inbound = new.partition_enforcement_inbound;
        info.partition_enforcement_outbound = new.partition_enforcement_outbound;
    }
    valid && command(subnet, at, new.port_state, new.port_physical_state, cx)
}

/// Sets the port's identity and its manager. Returns whether all values were valid.
fn set_identity(
    subnet: &mut Subnet,
    at: usize,
    new: &PortInfo,
    may_have_lmc: bool,
    cx: &mut Cx<'_, impl Sink>,
) -> bool {
    let info = &mut subnet.ports[at].info;
    let old = *info;
    let mut valid = true;
    let path_bits = (1u16 << new.lmc) - 1;
    if new.lmc != 0 && !may_have_lmc {
        valid = false;
    } else if (new.lid, new.lmc) != (old.lid, old.lmc) {
        if new.lid.is_unicast() && new.lid.0 & path_bits == 0 {
            (info.lid, info.lmc) = (new.lid, new.lmc);
        } else {
            valid = false;
        }
    }
    if new.sm_lid.is_unicast() || new.sm_lid == old.sm_lid {
        info.sm_lid = new.sm_lid;
    } else {
        valid = false;
    }
    info.master_smsl = new.master_smsl;
    info.mkey = new.mkey;
    info.mkey_lease_period = new.mkey_lease_period;
    info.mkey_protect_bits = new.mkey_protect_bits;
    info.gid_prefix = new.gid_prefix;
    info.subnet_timeout = new.subnet_timeout;
    info.init_type_reply = new.init_type_reply;
    // Zero clears a counter; other values are what the manager has read.
    for (mine, theirs) in [
        (&mut info.mkey_violations, new.mkey_violations),
        (&mut info.pkey_violations, new.pkey_violations),
        (&mut info.qkey_violations, new.qkey_violations),
    ] {
        if theirs == 0 {
            *mine = 0;
        }
    }
    let now = *info;
    let events = [
        (now.gid_prefix != old.gid_prefix, PortEvent::GidChange),
        ((now.lid, now.lmc) != (old.lid, old.lmc), PortEvent::LidChange),
        ((now.sm_lid, now.master_smsl) != (old.sm_lid, old.master_smsl), PortEvent::SmChange),
        (new.client_reregister, PortEvent::ClientReregister),
    ];
    for (_, event) in events.into_iter().filter(|(fires, _)| *fires) {
        subnet.event(at, event, cx);
    }
    valid
}

/// Sets the enabled properties of the link. Width and speed take effect when it trains next. Returns whether all values were
/// valid.
fn set_link(info: &mut PortInfo, new: &PortInfo, knows_ext: bool) -> bool {
    let mut valid = true;
    match new.link_width_enabled.bits() {
        0 => {}
        0xff => info.link_width_enabled = info.link_width_supported,
        some if some & !info.link_width_supported.bits() == 0 => {
            info.link_width_enabled = new.link_width_enabled;
        }
        _ => valid = false,
    }
    match new.link_speed_enabled.bits() {
        0 => {}
        15 => info.link_speed_enabled = info.link_speed_supported,
        some if some & !info.link_speed_supported.bits() == 0 => {
            info.link_speed_enabled = new.link_speed_enabled;
        }
        _ => valid = false,
    }
    if knows_ext {
        match new.link_speed_ext_enabled.bits() {
            0 => {}
            30 => info.link_speed_ext_enabled = LinkSpeedExt::empty(),
            31 => info.link_speed_ext_enabled = info.link_speed_ext_supported,
            some if some & !info.link_speed_ext_supported.bits() == 0 => {
                info.link_speed_ext_enabled = new.link_speed_ext_enabled;
            }
            _ => valid = false,
        }
    }
    match new.link_down_default_state {
        LinkDownDefault::NO_CHANGE => {}
        state @ (LinkDownDefault::SLEEP | LinkDownDefault::POLLING) => {
            info.link_down_default_state = state;
        }
        _ => valid = false,
    }
    match new.neighbor_mtu {
        0 => {}
        mtu if mtu <= info.mtu_cap => info.neighbor_mtu = mtu,
        _ => valid = false,
    }
    match new.operational_vls {
        VlCap::NO_CHANGE => {}
        lanes if lanes <= info.vl_cap => info.operational_vls = lanes,
        _ => valid = false,
    }
    info.vl_high_limit = new.vl_high_limit;
    info.vl_stall_count = new.vl_stall_count;
    info.hoq_life = new.hoq_life;
    info.local_phy_errors = new.local_phy_errors;
    info.overrun_errors = new.overrun_errors;
    valid
}

/// Executes a command to the link state machine (IBTA 7.2.7). Requesting the present state is no error.
/// Returns whether the command was allowed.
fn command(
    subnet: &mut Subnet,
    at: usize,
    state: PortState,
    phys: PhysState,
    cx: &mut Cx<'_, impl Sink>,
) -> bool {
    let now = subnet.ports[at].info.port_state;
    match (state, phys) {
        (PortState::NO_CHANGE, PhysState::NO_CHANGE) => {}
        (PortState::DOWN, PhysState::NO_CHANGE) => {
            let default = subnet.ports[at].info.link_down_default_state;
            take_down(subnet, at, down_state(default), cx);
        }
        (
            PortState::NO_CHANGE | PortState::DOWN,
            PhysState::SLEEP | PhysState::POLLING | PhysState::DISABLED,
        ) => take_down(subnet, at, phys, cx),
        (PortState::ARMED | PortState::ACTIVE, PhysState::NO_CHANGE) if state == now => {}
        (PortState::ARMED, PhysState::NO_CHANGE)
            if matches!(now, PortState::INIT | PortState::ACTIVE) =>
        {
            subnet.set_state(at, state, cx);
        }
        (PortState::ACTIVE, PhysState::NO_CHANGE) if now == PortState::ARMED => {
            subnet.set_state(at, state, cx);
        }
        _ => return false,
    }
    true
}

/// Takes the link down. A polling port comes up again with its peer at once.
fn take_down(subnet: &mut Subnet, at: usize, phys: PhysState, cx: &mut Cx<'_, impl Sink>) {
    subnet.take_down(at, phys, cx);
    subnet.train(at, cx);
}
