//! Traps: case 9.

use std::time::Duration;

use rdmux_subnet::{Counter, Fault, NodeId};
use rdmux_wire::mad::Method;
use rdmux_wire::sm::{
    Attribute, CapabilityMask, LocalChangeFlags, NodeInfo, Notice, PortInfo, Producer, Trap,
};
use rdmux_wire::smp::Smp;
use rdmux_wire::{Guid, Lid};

use crate::manager::Manager;
use crate::net::{Net, port, qp0};

/// SubnetTimeOut 0x12: 4.096 us * 2^18.
const TIMEOUT: Duration = Duration::from_nanos(4096 << 0x12);

/// Builds a switch with three adapters, configured from adapter 1.
fn managed() -> Net {
    let mut net = Net::of("switch:3");
    Manager::bring_up(&mut net, port(1, 1)).expect("a subnet");
    net.inbox.packets.clear();
    net
}

/// Returns the traps that were delivered, all to the manager.
fn traps(net: &mut Net) -> Vec<(Smp, Notice)> {
    let smps = net.take_smps().into_iter();
    smps.filter(|(.., smp)| smp.header.method == Method::TRAP)
        .map(|(at, packet, smp)| {
            assert_eq!((at, packet.dlid, smp.mkey.0), (port(1, 1), Lid(1), 0));
            match smp.attribute() {
                Some(Attribute::Notice(notice)) => (smp, notice),
                other => panic!("{other:?}"),
            }
        })
        .collect()
}

fn repress(net: &mut Net, trap: &Smp, to: Lid) {
    let mut smp = *trap;
    smp.header.method = Method::TRAP_REPRESS;
    net.send(port(1, 1), qp0(Lid(1), to, &smp));
}

fn cable(net: &mut Net, number: u8, up: bool) {
    net.subnet.set_cable(net.now, port(0, number), up, &mut net.inbox).expect("a cable");
}

#[test]
fn a_trap_128_is_repeated_once_per_timeout_until_it_is_repressed() {
    let mut net = managed();
    cable(&mut net, 3, false);
    let first = traps(&mut net);
    let [(smp, notice)] = &first[..] else { panic!("{first:?}") };
    let switch = net.subnet.port(port(0, 0)).expect("a port").lid();
    let Some(Trap::LinkState(change)) = notice.trap() else { panic!("{notice}") };
    assert_eq!((change.lid, notice.issuer_lid), (switch, switch));
    assert_eq!(notice.producer, Producer::SWITCH);
    net.pass(TIMEOUT - Duration::from_nanos(1));
    assert!(traps(&mut net).is_empty(), "too early");
    net.pass(Duration::from_nanos(1));
    assert_eq!(traps(&mut net), first, "the same transaction");
    repress(&mut net, smp, switch);
    net.pass(TIMEOUT * 10);
    assert!(traps(&mut net).is_empty());
    assert_eq!(net.subnet.next_timeout(), None);
}

#[test]
fn trap_repress_with_another_tid_is_ignored() {
    let mut net = managed();
    cable(&mut net, 3, false);
    let mut smp = traps(&mut net)[0].0;
    let switch = net.subnet.port(port(0, 0)).expect("a port").lid();
    smp.header.tid += 1;
    repress(&mut net, &smp, switch);
    net.pass(TIMEOUT);
    assert_eq!(traps(&mut net).len(), 1);
}

#[test]
fn what_happens_while_a_trap_is_outstanding_is_the_next_one_and_not_faster() {
    let mut net = managed();
    cable(&mut net, 3, false);
    let first = traps(&mut net).pop().expect("a trap").0;
    for up in [true, false, true] {
        cable(&mut net, 3, up);
    }
    assert!(traps(&mut net).is_empty(), "one at a time");
    let switch = net.subnet.port(port(0, 0)).expect("a port").lid();
    repress(&mut net, &first, switch);
    assert!(traps(&mut net).is_empty(), "not faster than once per timeout");
    net.pass(TIMEOUT);
    let next = traps(&mut net).pop().expect("the next one").0;
    assert_ne!(next.header.tid, first.header.tid);
    repress(&mut net, &next, switch);
    // After the repress no trap is outstanding, but the interval still applies.
    cable(&mut net, 3, false);
    assert!(traps(&mut net).is_empty());
    net.pass(TIMEOUT);
    assert_eq!(traps(&mut net).len(), 1);
}

#[test]
fn nothing_is_sent_before_there_is_a_manager() {
    let mut net = Net::of("switch:3");
    cable(&mut net, 3, false);
    net.subnet.set_is_sm(net.now, port(2, 1), true, &mut net.inbox);
    net.pass(TIMEOUT * 3);
    assert!(net.take_smps().is_empty());
    assert_eq!(net.subnet.next_timeout(), None);
}

#[test]
fn is_sm_change_of_a_port_sends_trap_144_with_its_capability_mask() {
    let mut net = managed();
    net.subnet.set_is_sm(net.now, port(2, 1), true, &mut net.inbox);
    let (smp, notice) = traps(&mut net).pop().expect("a trap");
    let Some(Trap::Local(change)) = notice.trap() else { panic!("{notice}") };
    assert!(change.capability_mask.contains(CapabilityMask::SM));
    assert_eq!((change.lid, notice.producer), (notice.issuer_lid, Producer::CA));
    assert!(!change.other_local_changes);
    repress(&mut net, &smp, notice.issuer_lid);
    net.pass(TIMEOUT);
    net.subnet.set_is_sm(net.now, port(2, 1), true, &mut net.inbox);
    assert!(traps(&mut net).is_empty(), "it is there already");
    net.subnet.set_is_sm(net.now, port(2, 1), false, &mut net.inbox);
    let (_, notice) = traps(&mut net).pop().expect("a trap");
    let Some(Trap::Local(change)) = notice.trap() else { panic!("{notice}") };
    assert!(!change.capability_mask.contains(CapabilityMask::SM));
}

#[test]
fn node_description_change_sends_trap_144() {
    let mut net = managed();
    net.subnet.set_node_description(net.now, NodeId(2), "b", &mut net.inbox);
    let (_, notice) = traps(&mut net).pop().expect("a trap");
    let Some(Trap::Local(change)) = notice.trap() else { panic!("{notice}") };
    assert!(change.other_local_changes);
    assert_eq!(change.change_flags, LocalChangeFlags::NODE_DESCRIPTION);
}

#[test]
fn trap_of_the_sms_own_port_is_looped_back_until_repressed() {
    let mut net = managed();
    net.subnet.set_is_sm(net.now, port(1, 1), true, &mut net.inbox);
    let (smp, notice) = traps(&mut net).pop().expect("a trap");
    assert_eq!(notice.issuer_lid, Lid(1));
    repress(&mut net, &smp, Lid(1));
    net.pass(TIMEOUT * 3);
    assert!(traps(&mut net).is_empty());
}

#[test]
fn trap_is_repeated_at_most_every_100_ms_with_subnet_timeout_0() {
    let mut net = managed();
    net.change(port(1, 1), &[1], 0, |info| info.subnet_timeout = 0).expect("an answer");
    cable(&mut net, 3, false);
    traps(&mut net);
    net.pass(Duration::from_millis(99));
    assert!(traps(&mut net).is_empty());
    net.pass(Duration::from_millis(1));
    assert_eq!(traps(&mut net).len(), 1);
}

#[test]
fn trap_repress_with_wrong_mkey_is_ignored() {
    let mut net = managed();
    net.change(port(1, 1), &[1], 0, |info: &mut PortInfo| info.mkey.0 = 5).expect("an answer");
    cable(&mut net, 3, false);
    let mut smp = traps(&mut net)[0].0;
    let switch = net.subnet.port(port(0, 0)).expect("a port").lid();
    repress(&mut net, &smp, switch);
    net.pass(TIMEOUT);
    // The trap about the wrong key arrives, too.
    let again = traps(&mut net);
    assert!(again.iter().any(|(again, _)| again.header.tid == smp.header.tid), "{again:?}");
    smp.mkey.0 = 5;
    repress(&mut net, &smp, switch);
    net.pass(TIMEOUT);
    assert!(traps(&mut net).iter().all(|(again, _)| again.header.tid != smp.header.tid));
}

/// Sets the error thresholds in a port's PortInfo.
fn thresholds(net: &mut Net, hops: &[u8], number: u32, local_phy: u8, overrun: u8) {
    let (status, info) = net
        .change(port(1, 1), hops, number, |info| {
            (info.local_phy_errors, info.overrun_errors) = (local_phy, overrun);
        })
        .expect("an answer");
    assert_eq!((status, info.local_phy_errors, info.overrun_errors), (0, local_phy, overrun));
}

#[test]
fn link_errors_beyond_the_threshold_are_counted_and_trap_129_130_131_per_port() {
    let mut net = managed();
    for number in [2, 3] {
        thresholds(&mut net, &[1], number, 8, 2);
    }
    let switch = net.subnet.port(port(0, 0)).expect("a port").lid();
    let fault = |net: &mut Net, number, fault, times| {
        net.subnet.fault(net.now, port(0, number), fault, times, &mut net.inbox)
    };
    assert_eq!(fault(&mut net, 2, Fault::Symbol, 8), 0);
    assert_eq!(fault(&mut net, 2, Fault::Overrun, 2), 0);
    assert!(traps(&mut net).is_empty(), "as many as the thresholds");
    fault(&mut net, 2, Fault::Symbol, 1);
    assert_eq!(fault(&mut net, 3, Fault::Symbol, 18), 2);
    fault(&mut net, 2, Fault::Overrun, 1);
    fault(&mut net, 3, Fault::Watchdog, 1);
    let counted = |number, counter| net.subnet.port(port(0, number)).expect("one").counter(counter);
    assert_eq!(counted(2, Counter::SymbolError), 9);
    assert_eq!(counted(2, Counter::LocalLinkIntegrityErrors), 1);
    assert_eq!(counted(3, Counter::LocalLinkIntegrityErrors), 2);
    assert_eq!(counted(2, Counter::ExcessiveBufferOverrunErrors), 1);
    let told = traps(&mut net);
    let about = |(_, notice): &(Smp, Notice)| match notice.trap() {
        Some(
            trap @ (Trap::LinkIntegrity(e) | Trap::BufferOverrun(e) | Trap::FlowControlWatchdog(e)),
        ) => {
            assert_eq!(
                (e.lid, notice.issuer_lid, notice.producer),
                (switch, switch, Producer::SWITCH)
            );
            (trap.number(), e.port)
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(
        told.iter().map(about).collect::<Vec<_>>(),
        [(129, 2), (129, 3), (130, 2), (131, 3)]
    );
    // Each is repressed separately.
    repress(&mut net, &told[1].0, switch);
    net.pass(TIMEOUT);
    assert_eq!(
        traps(&mut net).iter().map(about).collect::<Vec<_>>(),
        [(129, 2), (130, 2), (131, 3)]
    );
    for (smp, _) in &told {
        repress(&mut net, smp, switch);
    }
    net.pass(TIMEOUT * 2);
    assert!(traps(&mut net).is_empty());
}

#[test]
fn buffer_overrun_of_an_adapter_port_is_trap_130_from_that_port() {
    let mut net = managed();
    thresholds(&mut net, &[1, 2], 1, 0, 0);
    net.subnet.fault(net.now, port(2, 1), Fault::Overrun, 1, &mut net.inbox);
    let lid = net.subnet.port(port(2, 1)).expect("a port").lid();
    let told = traps(&mut net);
    let [(_, notice)] = &told[..] else { panic!("{told:?}") };
    let Some(Trap::BufferOverrun(error)) = notice.trap() else { panic!("{notice}") };
    assert_eq!((error.lid, error.port, notice.producer), (lid, 1, Producer::CA));
}

#[test]
fn trap_145_tells_the_system_guid_once_it_is_another() {
    let mut net = managed();
    let set = |net: &mut Net, guid| {
        net.subnet.set_system_guid(net.now, NodeId(2), Guid(guid), &mut net.inbox);
    };
    set(&mut net, 0x77);
    let told = traps(&mut net);
    let [(_, notice)] = &told[..] else { panic!("{told:?}") };
    let Some(Trap::SystemImageGuid(change)) = notice.trap() else { panic!("{notice}") };
    let lid = net.subnet.port(port(2, 1)).expect("a port").lid();
    assert_eq!((change.lid, change.system_image_guid), (lid, Guid(0x77)));
    let Attribute::NodeInfo(info) = net.get(port(1, 1), &[1, 2], NodeInfo::ATTR_ID, 0) else {
        panic!("no NodeInfo");
    };
    assert_eq!(info.system_image_guid, Guid(0x77));
    assert_eq!(net.subnet.topology().nodes[2].system_guid, Guid(0x77));
    repress(&mut net, &told[0].0, lid);
    net.pass(TIMEOUT * 2);
    net.inbox.packets.clear();
    set(&mut net, 0x77);
    net.pass(TIMEOUT);
    assert!(traps(&mut net).is_empty(), "it is the same");
}
