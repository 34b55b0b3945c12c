//! The subnet manager embedded in a fabric.

mod common;

use std::time::Instant;

use common::Fabric;
use rdmux_fabric::Config;
use rdmux_fabric::client::{Attachment, IsSm, MadFile, admin};
use rdmux_fabric::proto::{ManagerStatus, NodeRef, PortRef, Snapshot};
use rdmux_fabric::routes::Routes;
use rdmux_fabric::server::{FIRST_GUID, ManagerSetup, Setup};
use rdmux_subnet::Time;
use rdmux_subnet::manager::{self, Event, Manager, ManagerSink};
use rdmux_subnet::rmpp::Mad;
use rdmux_subnet::umad::{Registration, UserAddress, UserMad};
use rdmux_wire::mad::Method;
use rdmux_wire::sm::{NodeInfo, SmState};
use rdmux_wire::smp::Smp;
use rdmux_wire::{Guid, Lid, Mkey};

fn managed(shape: &str, manager: ManagerSetup) -> Fabric {
    Fabric::with(shape, Setup { manager, ..Setup::default() }, Config::default())
}

/// Returns the manager's status, once a condition holds.
fn until(fabric: &Fabric, wanted: impl Fn(&ManagerStatus) -> bool) -> ManagerStatus {
    loop {
        let status = admin::status(&fabric.options, &fabric.name).unwrap();
        let manager = status.manager.expect("a manager");
        if wanted(&manager) {
            return manager;
        }
        std::thread::yield_now();
    }
}

fn is_up(manager: &ManagerStatus) -> bool {
    manager.state == "master" && manager.sweeps > 0
}

fn shown(fabric: &Fabric) -> Snapshot {
    admin::show(&fabric.options, &fabric.name).unwrap()
}

/// Checks that all ports with cables are active, and all routes are complete.
fn assert_configured(fabric: &Fabric) {
    let shown = shown(fabric);
    for link in &shown.links {
        for (node, port) in [link.a, link.b] {
            let node = &shown.nodes[usize::try_from(node).unwrap()];
            let port = node.ports.iter().find(|p| p.number == port).unwrap();
            assert_eq!(port.state, 4, "{} port {}", node.id, port.number);
        }
    }
    let tables = admin::tables(&fabric.options, &fabric.name).unwrap();
    let check = Routes::new(&shown, &tables).check();
    assert_eq!((check.duplicate_lids, check.without_lid, check.lost), (0, 0, 0), "{check:?}");
    assert!(check.pairs > 0);
}

#[test]
fn a_fabric_comes_up_with_lids_routes_and_active_ports() {
    for (shape, node, port) in [("two", 0, 1), ("switch:3", 0, 0), ("fattree:40", 0, 0)] {
        let fabric = managed(shape, ManagerSetup::default());
        let manager = until(&fabric, is_up);
        assert_configured(&fabric);
        let shown = shown(&fabric);
        let at = shown.nodes[node].ports.iter().find(|p| p.number == port).unwrap();
        assert!(at.is_sm, "{shape}");
        assert_eq!(manager.master, Some(manager.guid));
        let last = manager.last.expect("a sweep");
        assert_eq!((last.problem_count, last.nodes), (0, shown.nodes.len() as u64), "{shape}");
    }
}

#[test]
fn a_host_that_attaches_has_an_active_port_and_its_lid_survives_a_restart() {
    let mut fabric = managed("switch:2", ManagerSetup { lmc: 1, ..ManagerSetup::default() });
    until(&fabric, is_up);
    let host = Guid(0x0200_0000_0000_0002);
    let (_, before) = Attachment::open(&fabric.options, &fabric.name, "a", host).unwrap();
    assert_eq!((before.port.state, before.port.lmc), (4, 1));
    assert_ne!(before.port.lid, Lid(0));
    fabric.stop();
    fabric.start();
    until(&fabric, is_up);
    let (_, after) = Attachment::open(&fabric.options, &fabric.name, "a", host).unwrap();
    assert_eq!((after.port.lid, after.port.state), (before.port.lid, 4));
    // Another host, without an adapter in the topology, is connected to the switch and managed at once.
    let (mut third, _) = (1..=3)
        .map(|n| Attachment::open(&fabric.options, &fabric.name, "b", Guid(host.0 + n)).unwrap())
        .next_back()
        .unwrap();
    while third.refresh().unwrap().port.state != 4 {}
    assert_configured(&fabric);
}

#[test]
fn a_cable_that_is_cut_and_mended_and_a_switch_that_is_reset_are_managed() {
    let fabric = managed("fattree:40", ManagerSetup::default());
    until(&fabric, is_up);
    let shown = shown(&fabric);
    let name = |index: usize| shown.nodes[index].id.parse().unwrap();
    let sweeps = || until(&fabric, |m| !m.sweeping).sweeps;
    let before = sweeps();
    admin::reset(&fabric.options, &fabric.name, &name(1)).unwrap();
    until(&fabric, |m| m.sweeps > before && !m.sweeping);
    assert_configured(&fabric);
}

/// A manager that is a program on a port of the fabric.
struct Program {
    manager: Manager,
    file: MadFile,
    agents: [u32; 2],
    started: Instant,
    out: Out,
    _is_sm: IsSm,
}

#[derive(Default)]
struct Out(Vec<(UserAddress, Box<Mad>)>);

impl ManagerSink for Out {
    fn send(&mut self, to: UserAddress, mad: Box<Mad>) {
        self.0.push((to, mad));
    }
    fn event(&mut self, _: Event) {}
}

impl Program {
    fn start(fabric: &Fabric, port: &PortRef, priority: u8) -> Self {
        let file = MadFile::open(&fabric.options, &fabric.name, port).unwrap();
        let agents = [0x01, 0x81].map(|class| {
            let methods = if class == 1 { 1 << 1 | 1 << 2 | 1 << 5 } else { 1 << 1 | 1 << 2 };
            file.register(&Registration { class, methods, ..common::DIRECTED }).unwrap()
        });
        let _is_sm = IsSm::set(&fabric.options, &fabric.name, port, false).unwrap();
        let config = manager::Config { priority, ..manager::Config::default() };
        let manager = Manager::new(config, Time::ZERO);
        Self { manager, file, agents, started: Instant::now(), out: Out::default(), _is_sm }
    }

    /// Runs until a condition holds.
    fn until(&mut self, is_so: impl Fn(&Manager) -> bool) {
        while !is_so(&self.manager) {
            let now = Time::ZERO.after(self.started.elapsed());
            while self.manager.next_timeout().is_some_and(|due| due <= now) {
                self.manager.handle_timeout(now, &mut self.out);
            }
            self.transmit();
            while let Some(record) = self.file.try_recv_mad().unwrap() {
                let mad = record.data.first_chunk().unwrap();
                self.manager.handle_mad(now, &record.address, mad, &mut self.out);
                self.transmit();
            }
            std::thread::yield_now();
        }
        self.transmit();
    }

    fn transmit(&mut self) {
        for (address, mad) in self.out.0.drain(..) {
            let directed = mad[1] == 0x81;
            let request = mad[3] & 0x80 == 0 && mad[3] != 7;
            let timeout_ms = if request { 60_000 } else { 0 };
            let (agent, data) = (self.agents[usize::from(directed)], mad.to_vec());
            let record = UserMad { agent, status: 0, timeout_ms, retries: 0, address, data };
            self.file.send_mad(&record).unwrap();
        }
    }
}

#[test]
fn a_better_manager_gets_the_subnet_and_gives_it_back_when_it_leaves() {
    let setup = ManagerSetup { priority: 2, sweep_ms: Some(20), ..ManagerSetup::default() };
    let fabric = managed("switch:3", setup);
    let guid = until(&fabric, is_up).guid;
    let port = PortRef { node: NodeRef::Guid(Guid(FIRST_GUID.0 + 2)), port: 1 };
    let shown = shown(&fabric);
    let adapter = shown.nodes.iter().find(|n| !n.is_switch).unwrap();
    let port = PortRef { node: NodeRef::Guid(adapter.guid), ..port };
    let mut program = Program::start(&fabric, &port, 9);
    program.until(Manager::is_up);
    let now = until(&fabric, |m| m.state == "standby");
    assert_eq!(now.master, Some(program.manager.status().guid));
    assert_ne!(now.master, Some(guid));
    assert_configured(&fabric);
    let time = Time::ZERO.after(program.started.elapsed());
    program.manager.leave(time, &mut program.out);
    program.until(|manager| manager.status().state == SmState::NOT_ACTIVE);
    drop(program);
    until(&fabric, is_up);
    assert_configured(&fabric);
}

#[test]
fn program_on_the_sms_port_can_query_but_not_register_traps_or_set_is_sm() {
    let fabric = managed("two", ManagerSetup::default());
    until(&fabric, is_up);
    let port = PortRef { node: NodeRef::Guid(FIRST_GUID), port: 1 };
    let mut program = common::Manager::open(&fabric.options, &fabric.name, &port);
    program.get(&[1], 0x11, 0);
    let owner = Registration { methods: 1 << 5, class: 1, ..common::DIRECTED };
    assert_eq!(program.file.register(&owner).unwrap_err().errno(), 22);
    let e = IsSm::set(&fabric.options, &fabric.name, &port, false).unwrap_err();
    assert_eq!(e.errno(), 11, "{e}");
}

#[test]
fn commands_are_answered_while_a_large_subnet_comes_up() {
    // It is not up yet when the first command is answered, unless this thread is late: with so many nodes it works in slices.
    let early = |_| {
        let fabric = managed("fattree:1296", ManagerSetup::default());
        let status = admin::status(&fabric.options, &fabric.name).unwrap();
        (status.manager.expect("a manager").sweeps == 0).then_some(fabric)
    };
    let fabric = (0..20).find_map(early).expect("an answer before it is up");
    until(&fabric, is_up);
    assert_configured(&fabric);
}

#[test]
fn get_without_the_mkey_times_out_at_protect_level_2_also_after_a_restart() {
    let key = Mkey(0xfeed_0000_0000_0001);
    let setup = ManagerSetup { m_key: key, m_key_protect: 2, ..ManagerSetup::default() };
    let mut fabric = managed("switch:2", setup);
    for _ in 0..2 {
        let manager = until(&fabric, |m| is_up(m) && !m.sweeping);
        assert_eq!(manager.last.expect("a sweep").problem_count, 0);
        assert_configured(&fabric);
        let port = PortRef { node: NodeRef::Guid(FIRST_GUID), port: 0 };
        let mut program = common::Manager::open(&fabric.options, &fabric.name, &port);
        let mut question = Smp::directed(Method::GET, NodeInfo::ATTR_ID, 0, &[1]);
        let without = UserMad { timeout_ms: 1, ..program.request(&question) };
        program.file.send_mad(&without).unwrap();
        let answer = program.file.recv_mad().unwrap();
        assert_eq!(answer.status, u32::try_from(libc::ETIMEDOUT).unwrap());
        question.mkey = key;
        program.ask(&question);
        drop(program);
        fabric.stop();
        fabric.start();
    }
}
