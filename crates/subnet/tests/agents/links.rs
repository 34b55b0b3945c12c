//! Link states, seen from both ends of a cable: cases 6 and 7.

use rdmux_subnet::{Counter, PortEvent, Topology};
use rdmux_wire::mad::status;
use rdmux_wire::sm::{
    Attribute, LinkSpeed, MlnxExtPortInfo, MlnxLinkSpeed, PhysState, PortState, SwitchInfo,
};

use crate::manager::Manager;
use crate::net::{Net, port, set};

/// Brings up `switch:2` from its first adapter, which is at port 1 of the switch.
fn up() -> Net {
    let mut net = Net::of("switch:2");
    Manager::bring_up(&mut net, port(1, 1)).expect("a subnet");
    net.take_events();
    net.inbox.packets.clear();
    net
}

fn command(
    net: &mut Net,
    hops: &[u8],
    number: u32,
    state: PortState,
    phys: PhysState,
) -> Option<u16> {
    let answer = net.change(port(1, 1), hops, number, |info| {
        info.port_state = state;
        info.port_physical_state = phys;
    });
    answer.map(|(status, _)| status)
}

const NOP: PhysState = PhysState::NO_CHANGE;

#[test]
fn states_go_from_init_over_armed_to_active_and_back_to_armed() {
    let mut net = Net::of("switch:2");
    let mut step = |state| command(&mut net, &[1], 2, state, NOP);
    assert_eq!(step(PortState::ACTIVE), Some(status::INVALID_VALUE), "not from Init");
    assert_eq!(step(PortState::ARMED), Some(status::OK));
    assert_eq!(step(PortState::ARMED), Some(status::OK), "as it is");
    assert_eq!(step(PortState::ACTIVE), Some(status::OK));
    assert_eq!(step(PortState::ACTIVE), Some(status::OK), "as it is");
    assert_eq!(step(PortState::ARMED), Some(status::OK));
    assert_eq!(step(PortState::INIT), Some(status::INVALID_VALUE), "no command");
    assert_eq!(step(PortState(9)), Some(status::INVALID_VALUE));
    assert_eq!(
        command(&mut net, &[1], 2, PortState::ARMED, PhysState::POLLING),
        Some(status::INVALID_VALUE)
    );
    assert_eq!(net.state(port(0, 2)), PortState::ARMED);
    assert_eq!(net.state(port(2, 1)), PortState::INIT, "the peer has a state of its own");
}

#[test]
fn port_active_and_port_error_events_are_raised_for_link_up_and_down() {
    let mut net = Net::of("two");
    for state in [PortState::ARMED, PortState::ACTIVE] {
        let done = net.change(port(0, 1), &[1], 1, |info| info.port_state = state);
        assert_eq!(done.map(|(status, _)| status), Some(status::OK));
    }
    assert_eq!(net.take_events(), [(port(1, 1), PortEvent::Active)]);
    net.subnet.set_cable(net.now, port(0, 1), false, &mut net.inbox).expect("a cable");
    assert_eq!(net.take_events(), [(port(1, 1), PortEvent::Error)]);
}

#[test]
fn an_armed_port_becomes_active_when_its_active_peer_sends_data() {
    let mut net = up();
    // The adapter's end returns to Armed; the switch's end is active.
    assert_eq!(command(&mut net, &[], 1, PortState::ARMED, NOP), Some(status::OK));
    let far = net.subnet.port(port(2, 1)).expect("a port").lid();
    let own = net.subnet.port(port(1, 1)).expect("a port").lid();
    net.send(port(1, 1), crate::net::qp1(own, far, [1; 256]));
    assert_eq!(net.state(port(1, 1)), PortState::ARMED, "it may not send");
    net.send(port(2, 1), crate::net::qp1(far, own, [1; 256]));
    assert_eq!(net.state(port(1, 1)), PortState::ACTIVE, "it may take");
    assert_eq!(
        net.take_events(),
        [(port(1, 1), PortEvent::Error), (port(1, 1), PortEvent::Active)]
    );
}

#[test]
fn down_takes_both_ends_down_and_they_train_again() {
    let mut net = up();
    let answer = net.change(port(1, 1), &[1], 2, |info| {
        info.port_state = PortState::DOWN;
        info.neighbor_mtu = 3;
    });
    let (status, info) = answer.expect("an answer");
    assert_eq!((status, info.port_state, info.neighbor_mtu), (status::OK, PortState::INIT, 3));
    assert_eq!(net.state(port(2, 1)), PortState::INIT);
    for end in [port(0, 2), port(2, 1)] {
        let view = net.subnet.port(end).expect("a port");
        assert_eq!(view.phys_state(), PhysState::LINK_UP);
        assert_eq!(view.counter(Counter::LinkDowned), 1);
    }
}

#[test]
fn a_disabled_port_stays_down_until_it_polls() {
    let mut net = up();
    assert_eq!(command(&mut net, &[1], 2, PortState::DOWN, PhysState::DISABLED), Some(status::OK));
    assert_eq!(net.state(port(0, 2)), PortState::DOWN);
    assert_eq!(net.state(port(2, 1)), PortState::DOWN);
    let phys = |net: &Net, p| net.subnet.port(p).expect("a port").phys_state();
    assert_eq!(phys(&net, port(0, 2)), PhysState::DISABLED);
    assert_eq!(phys(&net, port(2, 1)), PhysState::POLLING);
    assert_eq!(command(&mut net, &[1], 2, PortState::ARMED, NOP), Some(status::INVALID_VALUE));
    assert_eq!(
        command(&mut net, &[1], 2, PortState::NO_CHANGE, PhysState::POLLING),
        Some(status::OK)
    );
    assert_eq!(net.state(port(0, 2)), PortState::INIT);
    assert_eq!(net.state(port(2, 1)), PortState::INIT);
}

#[test]
fn a_set_that_disables_the_way_back_has_no_answer() {
    let mut net = up();
    assert_eq!(command(&mut net, &[1], 1, PortState::DOWN, PhysState::DISABLED), None);
    assert_eq!(net.state(port(0, 1)), PortState::DOWN);
    assert_eq!(net.state(port(1, 1)), PortState::DOWN);
}

#[test]
fn a_link_without_a_common_speed_does_not_train() {
    let mut net = up();
    let sdr = net.change(port(1, 1), &[1], 2 | 1 << 31, |info| {
        info.link_speed_enabled = rdmux_wire::sm::LinkSpeed::SDR;
        info.link_speed_ext_enabled = rdmux_wire::sm::LinkSpeedExt::from_bits_retain(30);
    });
    assert_eq!(sdr.map(|(status, _)| status), Some(status::OK));
    assert_eq!(command(&mut net, &[1], 2, PortState::DOWN, PhysState::POLLING), Some(status::OK));
    let rate = net.subnet.port(port(2, 1)).expect("a port").rate();
    assert_eq!(rate.map(|r| r.to_string()).as_deref(), Some("4xSDR"));
    // The adapter's end enables only DDR, the switch's end only SDR.
    let ddr = net.change(port(1, 1), &[1, 2], 1 | 1 << 31, |info| {
        info.link_speed_enabled = rdmux_wire::sm::LinkSpeed::DDR;
        info.link_speed_ext_enabled = rdmux_wire::sm::LinkSpeedExt::from_bits_retain(30);
    });
    assert_eq!(ddr.map(|(status, _)| status), Some(status::OK));
    assert_eq!(command(&mut net, &[1], 2, PortState::DOWN, PhysState::POLLING), Some(status::OK));
    assert_eq!(net.state(port(0, 2)), PortState::DOWN);
}

fn switch_info(net: &mut Net) -> SwitchInfo {
    match net.get(port(1, 1), &[1], SwitchInfo::ATTR_ID, 0) {
        Attribute::SwitchInfo(info) => info,
        other => panic!("{other}"),
    }
}

#[test]
fn a_state_change_shows_until_it_is_cleared_by_writing_1() {
    let mut net = up();
    assert!(!switch_info(&mut net).port_state_change, "the manager has cleared it");
    net.subnet.set_cable(net.now, port(2, 1), false, &mut net.inbox).expect("a cable");
    let info = switch_info(&mut net);
    assert!(info.port_state_change);
    let written = SwitchInfo { port_state_change: false, ..info };
    net.set(port(1, 1), &[1], written, 0).expect("an answer");
    assert!(switch_info(&mut net).port_state_change, "writing 0 leaves it");
    // The clearing Set also clears a change since the Get. A later change sets the bit again.
    let answer = net.set(port(1, 1), &[1], info, 0).expect("an answer");
    let Attribute::SwitchInfo(after) = answer.1 else { panic!("{answer:?}") };
    assert!(!after.port_state_change);
    net.subnet.set_cable(net.now, port(2, 1), true, &mut net.inbox).expect("a cable");
    assert!(switch_info(&mut net).port_state_change);
}

#[test]
fn commands_of_the_manager_to_the_port_itself_are_no_state_change() {
    let mut net = up();
    assert_eq!(command(&mut net, &[1], 2, PortState::ARMED, NOP), Some(status::OK));
    assert_eq!(command(&mut net, &[1], 2, PortState::ACTIVE, NOP), Some(status::OK));
    assert_eq!(command(&mut net, &[1], 2, PortState::DOWN, PhysState::DISABLED), Some(status::OK));
    assert!(!switch_info(&mut net).port_state_change);
}

#[test]
fn port_0_of_a_switch_is_always_active() {
    let mut net = up();
    let info = net.port_info(port(1, 1), &[1], 0);
    assert_eq!(
        (info.port_state, info.port_physical_state),
        (PortState::ACTIVE, PhysState::LINK_UP)
    );
    let answer = net.dr(port(1, 1), &[1], &set(info, 0)).expect("an answer");
    assert_eq!(answer.status(), status::INVALID_VALUE, "LinkUp is no command");
    assert_eq!(command(&mut net, &[1], 0, PortState::ARMED, NOP), Some(status::OK));
    assert_eq!(command(&mut net, &[1], 0, PortState::DOWN, NOP), Some(status::INVALID_VALUE));
    assert_eq!(net.state(port(0, 0)), PortState::ACTIVE);
}

#[test]
fn fdr10_is_in_mellanox_ext_port_info_and_qdr_in_port_info() {
    let text = "Switch 2 \"S-1\"\n[1] \"H-1\"[1] # 4xFDR10\n[2] \"H-2\"[1] # 4xQDR\n\n\
                Ca 1 \"H-1\"\n\nCa 1 \"H-2\"\n";
    let mut net = Net::new(&Topology::parse(text).expect("a topology"));
    let manager = port(1, 1);
    let ext = |net: &mut Net, hops: &[u8], number| match net.get(
        manager,
        hops,
        MlnxExtPortInfo::ATTR_ID,
        number,
    ) {
        Attribute::MlnxExtPortInfo(info) => info,
        other => panic!("{other}"),
    };
    let [fdr10, none] = [MlnxLinkSpeed::FDR10, MlnxLinkSpeed::empty()];
    let rate =
        |net: &Net| net.subnet.port(port(0, 1)).and_then(|p| p.rate()).map(|r| r.to_string());
    let info = ext(&mut net, &[1], 1);
    assert_eq!((info.link_speed_supported, info.link_speed_active), (fdr10, fdr10));
    assert_eq!(rate(&net).as_deref(), Some("4xFDR10"));
    let shown = net.port_info(manager, &[1], 1);
    assert_eq!((shown.link_speed_active, shown.link_speed_ext_active.bits()), (LinkSpeed::QDR, 0));
    assert_eq!(ext(&mut net, &[1], 2).link_speed_supported, none);
    assert_eq!(net.subnet.topology().to_string().matches("4xFDR10").count(), 2);
    // FDR10 may be disabled: the next training takes QDR.
    let off = MlnxExtPortInfo { state_change_enable: 1, ..MlnxExtPortInfo::default() };
    let (status, _) = net.set(manager, &[1], off, 1).expect("an answer");
    assert_eq!((status, rate(&net).as_deref()), (status::OK, Some("4xFDR10")));
    for up in [false, true] {
        net.subnet.set_cable(net.now, port(0, 1), up, &mut net.inbox).expect("a cable");
    }
    assert_eq!(rate(&net).as_deref(), Some("4xQDR"));
    assert_eq!(ext(&mut net, &[1], 1).link_speed_active, none);
    // Without the enable bit the enabled speed stays, and an unsupported speed is refused.
    let on = MlnxExtPortInfo { link_speed_enabled: fdr10, ..MlnxExtPortInfo::default() };
    net.set(manager, &[1], on, 1).expect("an answer");
    assert_eq!(ext(&mut net, &[1], 1).link_speed_enabled, none);
    let (status, _) = net.set(manager, &[1], on, 2).expect("an answer");
    assert_eq!(status, status::INVALID_VALUE);
}
