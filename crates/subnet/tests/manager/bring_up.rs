//! Sweeps of unconfigured and of configured subnets.

use std::time::Duration;

use rdmux_subnet::manager::{Event, RoutingEngine};
use rdmux_wire::sm::SmState;

use crate::net::{Net, Way, config};

const SHAPES: &[&str] =
    &["two", "switch:2", "switch:8", "fattree:40", "torus:3x3x2", "dragonfly:3,1,1", "fattree:648"];

#[test]
fn every_shape_comes_up_with_all_ports_active_and_all_pairs_routed() {
    for shape in SHAPES {
        for routing in [RoutingEngine::Minhop, RoutingEngine::Updn] {
            let net = Net::up(shape, rdmux_subnet::manager::Config { routing, ..config() });
            assert_eq!(net.state(0), SmState::MASTER, "{shape}");
            net.assert_configured();
            net.assert_routed();
            let status = net.managers[0].1.status();
            let last = status.last.expect("a sweep");
            assert_eq!(last.problem_count, 0, "{shape}: {:?}", last.problems);
            assert_eq!(last.nodes, net.subnet.node_count(), "{shape}");
        }
    }
}

#[test]
fn heavy_sweep_of_an_unchanged_subnet_sends_no_set() {
    for shape in SHAPES {
        let mut net = Net::up(shape, config());
        net.pass(Duration::from_secs(60));
        (net.sets, net.out.events) = (0, Vec::new());
        net.with(0, |manager, now, _| manager.sweep(now));
        assert_eq!(net.sets, 0, "{shape}");
        let ended = net.out.events.iter().filter(|(_, e)| matches!(e, Event::SweepEnded(_)));
        assert_eq!(ended.count(), 1, "{shape}");
        assert!(!net.out.events.iter().any(|(_, e)| *e == Event::ModelChanged), "{shape}");
    }
}

#[test]
fn light_sweeps_ask_only_switches_and_the_managers_own_port() {
    let mut net = Net::up("fattree:40", config());
    net.pass(Duration::from_secs(5));
    let sweeps = net.managers[0].1.status().sweeps;
    net.gets = 0;
    net.pass(Duration::from_secs(100));
    assert_eq!(net.managers[0].1.status().sweeps, sweeps, "no heavy sweep");
    let switches = u64::try_from(net.managers[0].1.status().last.expect("a sweep").switches);
    assert_eq!(net.gets, 10 * (switches.expect("few") + 1));
}

#[test]
fn lost_sweep_smps_are_retransmitted_without_problems() {
    for way in [Way::ToSubnet, Way::ToManager] {
        let mut net = Net::of("fattree:40");
        let mut count = 0;
        net.meddler = Box::new(move |_, this, _| {
            count += u32::from(this == way);
            this != way || count % 10 != 0
        });
        net.start_first(config());
        net.pass(Duration::from_secs(8));
        net.assert_configured();
        net.assert_routed();
        let last = net.managers[0].1.status().last.expect("a sweep");
        assert_eq!(last.problem_count, 0, "{:?}", last.problems);
    }
}

#[test]
fn a_third_of_all_datagrams_lost_only_delays() {
    let mut net = Net::of("torus:3x3x1");
    let mut count = 0_u32;
    net.meddler = Box::new(move |_, _, _| {
        count = count.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        count >> 16 & 0xff >= 40
    });
    net.start_first(config());
    net.pass(Duration::from_secs(120));
    net.meddler = Box::new(|_, _, _| true);
    net.pass(Duration::from_secs(120));
    net.assert_configured();
    net.assert_routed();
}
