//! Timeouts of a manager: work that must wait for an answer is not due before the answer.

use std::time::Duration;

use rdmux_subnet::NodeId;
use rdmux_subnet::manager::{Config, ProblemKind};
use rdmux_wire::Lid;
use rdmux_wire::mad::{MadHeader, Method};
use rdmux_wire::sm::{MulticastForwardingTable, PortState, SmState};

use crate::net::{Net, Way, config, port};

const MLID: Lid = Lid(0xc000);

/// Changes a group shortly before the next sweep. The switch does not answer until long after that sweep is due.
fn lose_group_before(net: &mut Net, sweep: Duration) {
    net.pass(sweep - Duration::from_millis(100));
    net.meddler = Box::new(|_, way, mad| {
        let header = MadHeader::parse(&mad[..]).expect("a MAD");
        let is_group = header.attr_id == MulticastForwardingTable::ATTR_ID;
        way == Way::ToManager || !is_group || header.method != Method::SET
    });
    let guids = [2, 3].map(|node| net.subnet.port(port(node, 1)).expect("a port").guid());
    net.with(0, |manager, _, _| manager.set_group(MLID, guids));
    for _ in 0..20 {
        net.pass(Duration::from_millis(10));
        assert_waits(net);
    }
}

/// Checks that nothing is due at this moment.
fn assert_waits(net: &Net) {
    for (_, manager) in &net.managers {
        let due = manager.next_timeout();
        assert!(due.is_none_or(|due| due > net.now), "{due:?} at {:?}", net.now);
    }
}

#[test]
fn a_light_sweep_that_must_wait_for_a_group_is_not_due() {
    let mut net = Net::up("switch:4", config());
    net.pass(Duration::from_secs(30));
    lose_group_before(&mut net, config().sweep_interval);
    net.meddler = Box::new(|_, _, _| true);
    net.pass(Duration::from_secs(30));
    net.assert_configured();
}

#[test]
fn a_heavy_sweep_that_must_wait_for_a_group_is_not_due() {
    let config = Config { sweep_interval: Duration::from_secs(1000), ..config() };
    let retry = config.retry_interval;
    let mut net = Net::of("switch:4");
    // Adapter 4 never answers: the sweep is repeated after a second.
    let cable = net.subnet.peer(port(4, 1)).expect("a cable").number;
    net.meddler = Box::new(move |_, _, mad| mad[7] == 0 || mad[128 + usize::from(mad[7])] != cable);
    net.start_first(config);
    net.pass(Duration::from_secs(5));
    let report = net.managers[0].1.status().last.expect("a sweep");
    assert!(report.problems.iter().any(|problem| problem.what == ProblemKind::Silent));
    assert!(net.now < report.ended.after(retry * 8), "the next one is still to come");
    let wait = net.managers[0].1.next_timeout().expect("a sweep").since(net.now);
    lose_group_before(&mut net, wait);
}

#[test]
fn a_standby_whose_polls_are_not_answered_waits_between_them() {
    // An answer may take longer than the poll interval.
    let standby = Config { poll_interval: Duration::from_millis(300), poll_misses: 9, ..config() };
    let mut net = Net::up("switch:4", Config { priority: 5, ..config() });
    net.start(port(2, 1), standby);
    net.pass(Duration::from_secs(5));
    net.kill(0);
    net.meddler = Box::new(|_, way, _| way == Way::ToManager);
    for _ in 0..200 {
        net.pass(Duration::from_millis(10));
        let (_, manager) = &net.managers[1];
        let due = manager.next_timeout();
        assert!(due.is_some_and(|due| due > net.now), "{due:?} at {:?}", net.now);
    }
    assert_eq!(net.state(1), SmState::STANDBY);
    net.meddler = Box::new(|_, _, _| true);
    net.pass(Duration::from_secs(60));
    assert_eq!(net.state(1), SmState::MASTER);
}

#[test]
fn light_sweeps_go_on_while_a_heavy_sweep_waits_for_its_retry() {
    let mut net = Net::of("switch:4");
    // Adapter 4 never answers: the sweep is repeated, at last after 64 seconds.
    let cable = net.subnet.peer(port(4, 1)).expect("a cable").number;
    net.meddler = Box::new(move |_, _, mad| mad[7] == 0 || mad[128 + usize::from(mad[7])] != cable);
    net.start_first(config());
    net.pass(Duration::from_secs(150));
    let sweeps = |net: &Net| net.managers[0].1.status().sweeps;
    let before = sweeps(&net);
    while sweeps(&net) == before {
        net.pass(Duration::from_secs(1));
    }
    net.pass(Duration::from_secs(15));
    assert_eq!(sweeps(&net), before + 1, "the next retry is still to come");
    net.change(|s, now, inbox| s.reset_switch(now, NodeId(0), inbox)).expect("a switch");
    net.pass(config().sweep_interval);
    assert!(sweeps(&net) > before + 1);
    for end in [port(0, 0), port(1, 1), port(2, 1), port(3, 1)] {
        assert_eq!(net.subnet.port(end).expect("a port").state(), PortState::ACTIVE, "{end}");
    }
}
