//! XRC receive queue pairs, which belong to no process: the requirements X1 to X9, through the service and its hub.
//! X8 (numbers) is also tested where numbers are assigned.
#![expect(unsafe_code, reason = "memory is registered")]

mod common;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::ptr;
use std::sync::Arc;

use common::{Host, connect_qp};
use rdmux_host::proto::Status;
use rdmux_host::{ConnectOptions, HostClient, HostName, RuntimeDir};
use rdmux_testing::qp::{ALL_ACCESS as ALL, connected_to};
use rdmux_transport::attr::{
    Access, AddressVector, AttrMask, MigState, QpAttr, QpCaps, QpState, QpType,
};
use rdmux_transport::wr::{
    Completion, RecvWr, SendData, SendFlags, SendOp, SendWr, Sge, WcOpcode, WcStatus,
};
use rdmux_verbs::control::DeviceKind;
use rdmux_verbs::{
    Cq, Device, Mr, MrInit, Pd, Qp, QpInit, Srq, SrqAttr, Target, VerbsError, Xrcd, XrcdFlags,
};
use rdmux_wire::{AckTimeout, Gid, Qpn};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

const BYTES: usize = 256 << 10;

/// A process's device, with memory and a completion queue.
struct Process {
    mr: Mr,
    memory: *mut u8,
    cq: Cq,
    pd: Pd,
    device: Arc<Device>,
    _owner: Vec<u64>,
}

impl Process {
    fn on(host: &Host) -> Self {
        Self::with(host.client())
    }

    fn with(client: Arc<HostClient>) -> Self {
        let device = Device::open(client).unwrap();
        let pd = Pd::new(&device);
        let cq = Cq::new(&device, 512, None, 0).unwrap();
        let mut owner = vec![0_u64; BYTES / 8];
        let memory: *mut u8 = owner.as_mut_ptr().cast();
        // SAFETY: the memory is dropped after the region (fields drop in order).
        let mr = unsafe { Mr::register(&pd, MrInit::own(memory, BYTES, ALL)).unwrap() };
        Self { mr, memory, cq, pd, device, _owner: owner }
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= BYTES);
        // SAFETY: inside the memory.
        unsafe { std::ptr::copy(bytes.as_ptr(), self.memory.add(at), bytes.len()) };
    }
    fn read(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= BYTES);
        let mut bytes = vec![0; len];
        // SAFETY: inside the memory.
        unsafe { std::ptr::copy(self.memory.add(at), bytes.as_mut_ptr(), len) };
        bytes
    }
    fn addr(&self, at: usize) -> u64 {
        self.mr.range().start + at as u64
    }
    fn sge(&self, at: usize, length: usize) -> Sge {
        let length = u32::try_from(length).unwrap();
        Sge { addr: self.addr(at), length, lkey: self.mr.lkey() }
    }

    /// Polls until a completion is available.
    fn wait(&self) -> Completion {
        let mut out = [Completion::EMPTY];
        while self.cq.poll(&mut out) == 0 {
            std::thread::yield_now();
        }
        out[0]
    }

    fn gid(&self) -> Gid {
        self.device.gid(1, 0).unwrap().gid
    }

    fn domain(&self, file: &File) -> Xrcd {
        let flags = XrcdFlags { create: true, exclusive: false };
        Xrcd::open(&self.device, Some(file.as_fd()), flags).unwrap()
    }

    fn srq(&self, domain: &Xrcd) -> Srq {
        let attr = SrqAttr { max_wr: 64, max_sge: 4, limit: 0 };
        Srq::for_xrc(&self.pd, domain, &self.cq, attr, 0).unwrap()
    }

    /// Makes a queue pair that sends by XRC.
    fn sender(&self) -> Qp {
        let caps =
            QpCaps { max_send_wr: 64, max_send_sge: 4, max_inline_data: 64, ..QpCaps::default() };
        let init = QpInit {
            qp_type: QpType::XrcSend,
            send_cq: self.cq.clone(),
            recv_cq: self.cq.clone(),
            srq: None,
            caps,
            sq_sig_all: true,
            context: 0,
        };
        Qp::new(&self.pd, init).unwrap()
    }
}

/// Moves a sending queue pair to RTS.
fn connect(qp: &Qp, dgid: Gid, target: Qpn) {
    connect_qp(qp, &connected_to(dgid, target, &qp.query()));
}

/// The proposal's alloc: makes a target in RTR, for which the domain's process is registered.
fn alloc(domain: &Xrcd, sender: &Qp, of: &Process) -> Qpn {
    domain.alloc_registered(&connected_to(of.gid(), sender.qpn(), &sender.query())).unwrap()
}

fn post(qp: &Qp, srq: u32, op: SendOp, sges: &[Sge]) {
    let wr = SendWr::new(1, op, SendData::Sges(sges));
    qp.post_send(&SendWr { srqn: srq, flags: SendFlags::SIGNALED, ..wr }).unwrap();
}

fn errno<T>(result: Result<T, VerbsError>) -> i32 {
    result.map(drop).expect_err("it was refused").errno()
}

/// A sender and two receivers of one domain, on one host or on two.
struct Scene {
    // Dropped in this order.
    qp: Qp,
    srqs: [Srq; 2],
    domains: [Xrcd; 2],
    receivers: [Process; 2],
    sender: Process,
    there: Host,
    _here: Option<Host>,
}

impl Scene {
    fn on_two_hosts() -> Self {
        Self::new(Some(Host::start()))
    }
    fn on_one_host() -> Self {
        Self::new(None)
    }

    fn new(here: Option<Host>) -> Self {
        Self::between(here, Host::start())
    }

    fn between(here: Option<Host>, there: Host) -> Self {
        let sender = Process::on(here.as_ref().unwrap_or(&there));
        let receivers = [Process::on(&there), Process::on(&there)];
        let file = File::create(there.dir.path().join("domain")).unwrap();
        let domains = receivers.each_ref().map(|r| r.domain(&file));
        let srqs = [0, 1].map(|i| receivers[i].srq(&domains[i]));
        let qp = sender.sender();
        Self { qp, srqs, domains, receivers, sender, there, _here: here }
    }

    /// Does steps 3 to 6: the first receiver allocates, the second registers, the sender connects.
    fn connected(self) -> (Self, Qpn) {
        let target = alloc(&self.domains[0], &self.qp, &self.sender);
        self.domains[1].register(target).unwrap();
        connect(&self.qp, self.receivers[0].gid(), target);
        (self, target)
    }

    fn recv(&self, i: usize, wr_id: u64, at: usize, len: usize) {
        let sges = [self.receivers[i].sge(at, len)];
        self.srqs[i].post_recv(&RecvWr { wr_id, sges: &sges }).unwrap();
    }

    /// Sends `len` bytes to a receiver, and checks that they arrive.
    fn deliver(&self, i: usize, len: usize) {
        let bytes: Vec<u8> = (0..len).map(|n| (n * 7 + i).to_le_bytes()[0]).collect();
        self.sender.write(0, &bytes);
        self.recv(i, 9, 4096, len.max(1));
        post(&self.qp, number(&self.srqs[i]), SendOp::Send, &[self.sender.sge(0, len)]);
        let received = self.receivers[i].wait();
        assert_eq!((received.status, received.wr_id), (WcStatus::Success, 9));
        assert_eq!((received.opcode, received.byte_len as usize), (WcOpcode::Recv, len));
        assert_eq!(self.receivers[i].read(4096, len), bytes);
        assert_eq!(self.sender.wait().status, WcStatus::Success);
    }
}

#[test]
fn x1_alloc_creates_target_in_rtr_and_registers_it() {
    let scene = Scene::on_one_host();
    let target = alloc(&scene.domains[0], &scene.qp, &scene.sender);
    let attr = scene.domains[0].query(target).unwrap();
    assert_eq!((attr.state, attr.dest_qpn), (QpState::Rtr, scene.qp.qpn()));
    let status = scene.there.status();
    let [row] = &status.xrc_targets[..] else { panic!("{:?}", status.xrc_targets) };
    assert_eq!((row.qpn, row.holders.len()), (target.get(), 1));
    assert!(row.holders[0].registered);
    // A target that does not reach RTR leaves nothing behind.
    let wrong = QpAttr { av: AddressVector { port_num: 7, ..attr.av }, ..attr };
    assert!(scene.domains[0].alloc_registered(&wrong).is_err());
    assert_eq!(scene.there.status().xrc_targets.len(), 1);
}

#[test]
fn x2_xrc_target_outlives_its_creator() {
    let (scene, _) = Scene::on_two_hosts().connected();
    scene.deliver(0, 100);
    let Scene { qp, srqs, domains, receivers, sender, there, _here } = scene;
    let ([srq, kept_srq], [domain, _kept_domain], [creator, kept]) = (srqs, domains, receivers);
    // The whole process ends, with everything it had.
    drop((srq, domain, creator));
    for wr_id in 0..3 {
        kept_srq.post_recv(&RecvWr { wr_id, sges: &[kept.sge(0, 64)] }).unwrap();
        post(&qp, number(&kept_srq), SendOp::Send, &[sender.sge(0, 8)]);
        assert_eq!((kept.wait().wr_id, sender.wait().status), (wr_id, WcStatus::Success));
    }
    // The end of the socket notifies the service that the process has ended.
    while there.status().xrc_targets[0].holders.len() != 1 {
        std::thread::yield_now();
    }
}

#[test]
fn x3_repeated_registration_counts_once_per_process() {
    let scene = Scene::on_one_host();
    let target = alloc(&scene.domains[0], &scene.qp, &scene.sender);
    scene.domains[0].register(target).unwrap();
    scene.domains[0].register(target).unwrap();
    scene.domains[0].unregister(target).unwrap();
    assert!(scene.there.status().xrc_targets.is_empty());
    assert_eq!(errno(scene.domains[0].unregister(target)), libc::EINVAL);
}

#[test]
fn x4_unknown_qpn_or_target_of_another_domain_is_einval() {
    let scene = Scene::on_one_host();
    let target = alloc(&scene.domains[0], &scene.qp, &scene.sender);
    let private =
        Xrcd::open(&scene.receivers[1].device, None, XrcdFlags { create: true, exclusive: false });
    let private = private.unwrap();
    let unknown = Qpn::new(target.get() + 1);
    for (domain, qpn) in
        [(&scene.domains[1], unknown), (&scene.domains[1], scene.qp.qpn()), (&private, target)]
    {
        assert_eq!(errno(domain.register(qpn)), libc::EINVAL, "{qpn}");
        assert_eq!(errno(domain.unregister(qpn)), libc::EINVAL, "{qpn}");
        assert_eq!(errno(Target::open(domain, qpn, 0)), libc::EINVAL, "{qpn}");
        assert_eq!(errno(domain.query(qpn)), libc::EINVAL, "{qpn}");
    }
    assert_eq!(errno(scene.domains[1].unregister(target)), libc::EINVAL, "not registered");
}

#[test]
fn x5_last_unregister_destroys_target_and_sender_exceeds_retries() {
    let (scene, target) = Scene::on_two_hosts().connected();
    // A sender to the same target that gives up soon.
    let hasty = scene.sender.sender();
    let attr = connected_to(scene.receivers[0].gid(), target, &hasty.query());
    connect_qp(&hasty, &QpAttr { timeout: AckTimeout::new(8), retry_cnt: 1, ..attr });
    scene.deliver(0, 100);
    scene.domains[0].unregister(target).unwrap();
    scene.deliver(1, 100);
    scene.domains[1].unregister(target).unwrap();
    assert_eq!(errno(scene.domains[1].query(target)), libc::EINVAL);
    scene.recv(1, 1, 0, 64);
    post(&hasty, number(&scene.srqs[1]), SendOp::Send, &[scene.sender.sge(0, 8)]);
    assert_eq!(scene.sender.wait().status, WcStatus::RetryExcErr);
}

/// The sender's memory ends in the middle of a message, so that the target has a receive that it will not complete.
#[test]
fn x5_receive_of_a_cut_off_message_is_flushed_when_target_is_destroyed() {
    const LENGTH: usize = 128 << 10;
    for scene in [Scene::on_one_host(), Scene::on_two_hosts()] {
        let (scene, target) = scene.connected();
        let (domain, receiver) = (&scene.domains[0], &scene.receivers[0]);
        let attr = SrqAttr { max_wr: 1, max_sge: 1, limit: 0 };
        let srq = Srq::for_xrc(&receiver.pd, domain, &receiver.cq, attr, 0).unwrap();
        let post_recv = |wr_id| {
            let sges = [receiver.sge(0, BYTES)];
            srq.post_recv(&RecvWr { wr_id, sges: &sges })
        };
        post_recv(1).unwrap();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: new pages, to which there are no references.
        let (base, mr) = unsafe {
            let base = mmap_anonymous(ptr::null_mut(), LENGTH, access, MapFlags::PRIVATE).unwrap();
            let mr = Mr::register(&scene.sender.pd, MrInit::own(base.cast(), LENGTH, ALL)).unwrap();
            munmap(base.byte_add(LENGTH / 2), LENGTH / 2).unwrap();
            (base, mr)
        };
        let before = domain.query(target).unwrap().rq_psn;
        let length = u32::try_from(LENGTH).unwrap();
        let sge = Sge { addr: mr.range().start, length, lkey: mr.lkey() };
        post(&scene.qp, number(&srq), SendOp::Send, &[sge]);
        assert_ne!(scene.sender.wait().status, WcStatus::Success);
        while domain.query(target).unwrap().rq_psn == before {
            std::thread::yield_now();
        }
        scene.domains.iter().for_each(|domain| domain.unregister(target).unwrap());
        let flushed = receiver.wait();
        assert_eq!((flushed.status, flushed.wr_id), (WcStatus::WrFlushErr, 1));
        post_recv(2).unwrap();
        drop(mr);
        // SAFETY: the rest of the mapping.
        unsafe { munmap(base, LENGTH / 2).unwrap() };
    }
}

const ROLE: &str = "RDMUX_TEST_XRC_DIR";

/// The processes of X6, not a test itself: they do so many steps of a receiver, and wait to be killed.
#[test]
fn role() {
    let Ok(dir) = std::env::var(ROLE) else { return };
    let given = |name: &str| -> u32 { std::env::var(name).unwrap().parse().unwrap() };
    let (steps, target) = (given("STEPS"), Qpn::new(given("TARGET")));
    let options = ConnectOptions {
        dir: RuntimeDir::at(std::path::Path::new(&dir).join("run")).unwrap(),
        config: rdmux_host::Config::default(),
        embedded: true,
        program: None,
    };
    let client = options.connect(&HostName::new("test").unwrap(), DeviceKind::default()).unwrap();
    let process = Process::with(client);
    let file = File::open(std::path::Path::new(&dir).join("domain")).unwrap();
    let domain = (steps >= 1).then(|| process.domain(&file));
    let srq = domain.as_ref().filter(|_| steps >= 2).map(|domain| process.srq(domain));
    if let Some(srq) = srq.as_ref().filter(|_| steps >= 3) {
        srq.post_recv(&RecvWr { wr_id: 1, sges: &[process.sge(0, 64)] }).unwrap();
    }
    if let Some(domain) = domain.as_ref().filter(|_| steps >= 4) {
        domain.register(target).unwrap();
    }
    let handle = domain.as_ref().filter(|_| steps >= 5);
    let handle = handle.map(|domain| Target::open(domain, target, 0).unwrap());
    if let Some(domain) = domain.as_ref().filter(|_| steps >= 6) {
        domain.unregister(target).unwrap();
    }
    let handle = handle.filter(|_| steps < 7);
    let srq = srq.filter(|_| steps < 8);
    println!("SAYS {}", srq.as_ref().map_or(0, number));
    let _keep = (handle, srq, domain, process);
    loop {
        std::thread::park();
    }
}

fn number(srq: &Srq) -> u32 {
    srq.number().unwrap()
}

/// Starts a process in that role, which has done so many steps. Returns it with the number of its queue.
fn receiver(scene: &Scene, target: Qpn, steps: u32) -> (Child, u32) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "role", "--nocapture", "--test-threads=1"])
        .env(ROLE, scene.there.dir.path())
        .env("TARGET", target.get().to_string())
        .env("STEPS", steps.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let said = lines.find_map(|l| l.split_once("SAYS ").map(|(_, w)| w.to_owned()));
    (child, said.expect("it says the number of its queue").parse().unwrap())
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn x6_killed_process_is_unregistered() {
    let scene = Scene::on_one_host();
    let target = alloc(&scene.domains[0], &scene.qp, &scene.sender);
    connect(&scene.qp, scene.receivers[0].gid(), target);
    let children: Vec<_> = (0..3).map(|_| receiver(&scene, target, 5).0).collect();
    assert_eq!(scene.there.status().xrc_targets[0].holders.len(), 4);
    scene.domains[0].unregister(target).unwrap();
    children.into_iter().for_each(kill);
    // The service notices each death by itself.
    while !scene.there.status().xrc_targets.is_empty() {
        std::thread::yield_now();
    }
    let status = scene.there.status();
    assert_eq!(status.xrc_domains.len(), 1, "two processes still have it open");
    assert_eq!(status.xrc_domains[0].srqs, 2, "those of the dead are gone");
}

#[test]
fn x6_process_killed_between_any_steps_leaves_no_srq_or_registration() {
    let (scene, target) = Scene::on_one_host().connected();
    scene.deliver(1, 100);
    let before = scene.there.status();
    let left = |status: &Status| {
        let domains: Vec<_> = status.xrc_domains.iter().map(|d| (d.srqs, d.pids.len())).collect();
        (domains, status.xrc_targets[0].holders.len(), status.clients.len(), status.rings)
    };
    for steps in 0..=8 {
        let (child, _) = receiver(&scene, target, steps);
        kill(child);
        while left(&scene.there.status()) != left(&before) {
            std::thread::yield_now();
        }
        scene.deliver(steps as usize % 2, 1000);
    }
}

#[test]
fn message_to_killed_xrc_receiver_fails_only_that_connection() {
    let (scene, target) = Scene::on_two_hosts().connected();
    let other = scene.sender.sender();
    let second = alloc(&scene.domains[1], &other, &scene.sender);
    connect(&other, scene.receivers[0].gid(), second);
    for _ in 0..3 {
        let (child, srqn) = receiver(&scene, target, 5);
        // The child's only receive takes a message, and then the child dies.
        post(&scene.qp, srqn, SendOp::Send, &[scene.sender.sge(0, 8)]);
        assert_eq!(scene.sender.wait().status, WcStatus::Success);
        kill(child);
        scene.deliver(1, 3000);
        scene.recv(1, 4, 0, 64);
        post(&other, number(&scene.srqs[1]), SendOp::Send, &[scene.sender.sge(0, 8)]);
        assert_eq!(scene.receivers[1].wait().qpn, second);
        assert_eq!(scene.sender.wait().status, WcStatus::Success);
    }
    // A message for the dead process is refused, and its connection ends; the other continues.
    let (child, srqn) = receiver(&scene, target, 5);
    kill(child);
    while scene.there.status().xrc_domains[0].srqs != 2 {
        std::thread::yield_now();
    }
    post(&scene.qp, srqn, SendOp::Send, &[scene.sender.sge(0, 8)]);
    assert_eq!(scene.sender.wait().status, WcStatus::RemInvReqErr);
    scene.recv(1, 4, 0, 64);
    post(&other, number(&scene.srqs[1]), SendOp::Send, &[scene.sender.sge(0, 8)]);
    assert_eq!(scene.receivers[1].wait().status, WcStatus::Success);
}

/// The target is in the hub, and three processes receive by it, one of them another process of the same host.
#[test]
fn xrc_target_migrates_path_and_all_its_processes_receive() {
    let hosts = [Host::with_two_addresses(), Host::with_two_addresses()];
    let [here, there] = hosts;
    let (scene, target) = Scene::between(Some(here), there).connected();
    let handle = Target::open(&scene.domains[0], target, 0).unwrap();
    let second = |process: &Process| process.device.gid(1, 1).unwrap().gid;
    let arm = |now: QpAttr, to: &Process| QpAttr {
        alt_av: AddressVector { dgid: second(to), sgid_index: 1, ..now.av },
        alt_port_num: 1,
        alt_timeout: now.timeout,
        path_mig_state: MigState::Rearm as u8,
        state: QpState::Rts,
        ..now
    };
    let mask = AttrMask::ALT_PATH | AttrMask::PATH_MIG_STATE;
    scene.qp.modify(&arm(scene.qp.query(), &scene.receivers[0]), mask).unwrap();
    let to_rts = AttrMask::STATE | AttrMask::SQ_PSN | AttrMask::TIMEOUT;
    let receives = arm(handle.query().unwrap(), &scene.sender);
    handle.modify(&QpAttr { timeout: AckTimeout::new(18), ..receives }, to_rts | mask).unwrap();
    let is = |attr: QpAttr, state: MigState| attr.path_mig_state == state as u8;
    while !is(scene.qp.query(), MigState::Armed) || !is(handle.query().unwrap(), MigState::Armed) {
        // Each packet carries the sender's migration state.
        scene.deliver(0, 100);
    }

    let (child, srqn) = receiver(&scene, target, 5);
    let migrated = QpAttr { path_mig_state: MigState::Migrated as u8, ..scene.qp.query() };
    scene.qp.modify(&migrated, AttrMask::PATH_MIG_STATE).unwrap();
    scene.deliver(0, 3000);
    scene.deliver(1, 3000);
    post(&scene.qp, srqn, SendOp::Send, &[scene.sender.sge(0, 8)]);
    assert_eq!(scene.sender.wait().status, WcStatus::Success, "the other process has it");
    // The other holders are notified of the new path.
    let told = scene.domains[1].query(target).unwrap();
    assert!(is(told, MigState::Migrated), "{told:?}");
    assert_eq!((told.av.dgid, told.av.sgid_index), (second(&scene.sender), 1));
    assert_eq!(scene.qp.query().av.dgid, second(&scene.receivers[0]));
    kill(child);
    scene.deliver(1, 100);
}

#[test]
fn x7_repeated_alloc_and_unregister_leaks_nothing() {
    let scene = Scene::on_one_host();
    let before = scene.there.status();
    for round in 0..200 {
        let qp = scene.sender.sender();
        let target = alloc(&scene.domains[0], &qp, &scene.sender);
        connect(&qp, scene.receivers[0].gid(), target);
        scene.recv(0, round, 0, 64);
        post(&qp, number(&scene.srqs[0]), SendOp::Send, &[scene.sender.sge(0, 8)]);
        assert_eq!(scene.receivers[0].wait().status, WcStatus::Success);
        assert_eq!(scene.sender.wait().status, WcStatus::Success);
        scene.domains[0].unregister(target).unwrap();
    }
    let after = scene.there.status();
    assert_eq!(after.xrc_targets, before.xrc_targets);
    assert_eq!(after.xrc_domains, before.xrc_domains);
    assert_eq!((after.slots, after.rings), (before.slots, before.rings + 1));
}

#[test]
fn x7_unread_async_events_are_dropped_on_unregister() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let (scene, target) = Scene::on_one_host().connected();
    scene.deliver(0, 10);
    // The first packet causes an event.
    let device = &scene.receivers[0].device;
    let fd = device.async_fd();
    let readable = |timeout| poll(&mut [PollFd::new(&fd, PollFlags::IN)], timeout) == Ok(1);
    assert!(readable(None));
    scene.domains[0].unregister(target).unwrap();
    assert!(!readable(Some(&Timespec::default())));
    assert!(device.try_get_async_event().is_none());
}

#[test]
fn x8_target_qpns_have_top_bit_set_and_are_not_reused_soon() {
    let scene = Scene::on_one_host();
    let mut seen = std::collections::HashSet::new();
    for _ in 0..300 {
        let target = Target::create(&scene.domains[0], 0).unwrap();
        assert_eq!(target.qpn().get() >> 23, 1);
        assert!(seen.insert(target.qpn()));
    }
}

/// The steps of the proposal: 1 the receivers open a domain, 2 and make queues; 3 the sender makes its queue pair;
/// 4 one receiver allocates the target; 5 the others register; 6 the sender connects; 7 all send and receive; 8
/// each unregisters; 9 the last one's call destroys the target.
#[test]
fn x9_one_xrc_connection_serves_two_receiving_processes() {
    for scene in [Scene::on_one_host(), Scene::on_two_hosts()] {
        let (scene, target) = scene.connected();
        assert_eq!(scene.qp.is_same_host(), scene._here.is_none());
        for round in 0..20 {
            for i in [0, 1, 1, 0] {
                scene.deliver(i, [0, 1, 1000, 1024, 3000, 100_000][round % 6]);
            }
        }
        everything_else(&scene);
        scene.domains[0].unregister(target).unwrap();
        scene.domains[1].unregister(target).unwrap();
        assert!(scene.there.status().xrc_targets.is_empty());
    }
}

/// The region is the whole address space, of which the hub reads ahead only what it can.
#[test]
fn xrc_read_reaches_up_to_memory_that_is_not_accessible() {
    const PAGE: usize = 4096;
    const MTU: usize = 1024;
    for scene in [Scene::on_one_host(), Scene::on_two_hosts()] {
        let (scene, target) = scene.connected();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: new pages, to which there are no references; and a region of all memory, which peers only read.
        let (base, mr) = unsafe {
            let base =
                mmap_anonymous(ptr::null_mut(), 3 * PAGE, access, MapFlags::PRIVATE).unwrap();
            base.cast::<u8>().write_bytes(7, 2 * PAGE);
            mprotect(base.byte_add(2 * PAGE), PAGE, MprotectFlags::empty()).unwrap();
            let rights = Access::REMOTE_READ | Access::ON_DEMAND;
            let whole = MrInit::own(ptr::null(), usize::MAX, rights);
            (base, Mr::register(&scene.receivers[0].pd, whole).unwrap())
        };
        let srqn = number(&scene.srqs[0]);
        let read = |to: usize, length: usize| {
            let remote_addr = (base.addr() + to - length) as u64;
            let op = SendOp::Read { remote_addr, rkey: mr.rkey() };
            scene.sender.write(0, &[0; 2 * PAGE]);
            post(&scene.qp, srqn, op, &[scene.sender.sge(0, length)]);
            scene.sender.wait().status
        };
        for length in [2 * MTU, 2 * PAGE - 100, 100] {
            assert_eq!(read(2 * PAGE, length), WcStatus::Success, "{length}");
            assert_eq!(scene.sender.read(0, length), vec![7; length]);
        }
        assert_eq!(read(2 * PAGE + 1, 2 * MTU), WcStatus::RemAccessErr);
        assert_eq!(scene.domains[0].query(target).unwrap().state, QpState::Err);
        drop(mr);
        // SAFETY: the mapping, without the region.
        unsafe { munmap(base, 3 * PAGE).unwrap() };
    }
}

/// Immediate data, WRITE, READ and atomics, to both receivers.
fn everything_else(scene: &Scene) {
    let Scene { qp, srqs, receivers, sender, .. } = scene;
    for i in [0, 1] {
        let (srqn, to) = (number(&srqs[i]), &receivers[i]);
        let (rkey, remote_addr) = (to.mr.rkey(), to.addr(8192));
        scene.recv(i, 5, 0, 64);
        post(qp, srqn, SendOp::SendImm([1, 2, 3, 4]), &[sender.sge(0, 5)]);
        let received = to.wait();
        assert_eq!((received.wr_id, received.byte_len, received.imm), (5, 5, [1, 2, 3, 4]));
        assert_eq!(sender.wait().status, WcStatus::Success);

        let bytes: Vec<u8> = (0..70_000_u32).map(|n| (n % 251) as u8).collect();
        sender.write(0, &bytes);
        post(qp, srqn, SendOp::Write { remote_addr, rkey }, &[sender.sge(0, bytes.len())]);
        assert_eq!(sender.wait().status, WcStatus::Success);
        sender.write(0, &[0; 70_000]);
        // A READ returns what was written before it.
        post(qp, srqn, SendOp::Read { remote_addr, rkey }, &[sender.sge(0, bytes.len())]);
        assert_eq!(sender.wait().status, WcStatus::Success);
        assert_eq!(sender.read(0, bytes.len()), bytes);

        scene.recv(i, 6, 0, 64);
        let imm = [9, 9, 9, 9];
        sender.write(0, &40_u64.to_ne_bytes());
        post(qp, srqn, SendOp::WriteImm { remote_addr, rkey, imm }, &[sender.sge(0, 8)]);
        let received = to.wait();
        assert_eq!((received.wr_id, received.opcode), (6, WcOpcode::RecvRdmaWithImm));
        assert_eq!(sender.wait().status, WcStatus::Success);
        assert_eq!(to.read(8192, 8), 40_u64.to_ne_bytes());

        post(qp, srqn, SendOp::FetchAdd { remote_addr, rkey, add: 2 }, &[sender.sge(64, 8)]);
        let swap = SendOp::CmpSwap { remote_addr, rkey, compare: 42, swap: 7 };
        post(qp, srqn, swap, &[sender.sge(72, 8)]);
        post(qp, srqn, SendOp::Read { remote_addr, rkey }, &[sender.sge(80, 8)]);
        for _ in 0..3 {
            assert_eq!(sender.wait().status, WcStatus::Success);
        }
        let word = |at| u64::from_ne_bytes(sender.read(at, 8).try_into().unwrap());
        assert_eq!((word(64), word(72), word(80)), (40, 42, 7));
    }
}

#[test]
fn srq_of_another_domain_or_invalid_rkey_fails_the_connection() {
    let (scene, target) = Scene::on_two_hosts().connected();
    let private = XrcdFlags { create: true, exclusive: false };
    let other = Xrcd::open(&scene.receivers[1].device, None, private).unwrap();
    let foreign = scene.receivers[1].srq(&other);
    post(&scene.qp, number(&foreign), SendOp::Send, &[scene.sender.sge(0, 8)]);
    assert_eq!(scene.sender.wait().status, WcStatus::RemInvReqErr);
    assert_eq!(scene.domains[0].query(target).unwrap().state, QpState::Err);
    // A process's R_Key is invalid through another process's queue.
    let (scene, _) = Scene::on_one_host().connected();
    let [a, b] = &scene.receivers;
    let unknown = a.mr.rkey().0 + 0x4000;
    let op = SendOp::Write { remote_addr: b.addr(0), rkey: rdmux_wire::Rkey(unknown) };
    post(&scene.qp, number(&scene.srqs[1]), op, &[scene.sender.sge(0, 8)]);
    assert_eq!(scene.sender.wait().status, WcStatus::RemAccessErr);
}

#[test]
fn send_waits_until_receive_is_posted_to_xrc_srq() {
    let (scene, _) = Scene::on_one_host().connected();
    post(&scene.qp, number(&scene.srqs[0]), SendOp::Send, &[scene.sender.sge(0, 8)]);
    assert_eq!(scene.there.status().xrc_targets.len(), 1);
    scene.recv(0, 3, 0, 64);
    assert_eq!(scene.receivers[0].wait().wr_id, 3);
    assert_eq!(scene.sender.wait().status, WcStatus::Success);
}

#[test]
fn devices_of_two_kinds_share_no_domain_and_no_target() {
    let host = Host::start();
    let file = File::create(host.dir.path().join("file")).unwrap();
    let kinds = [DeviceKind::Roce, DeviceKind::Ib];
    let processes = kinds.map(|kind| Process::with(host.client_of(kind)));
    let domains = processes.each_ref().map(|process| process.domain(&file));
    let targets = domains.each_ref().map(|domain| Target::create(domain, 0).unwrap());
    let status = host.status();
    let names = kinds.map(|kind| kind.device_name());
    let of = |names: [&str; 2], rows: Vec<&str>| rows == names;
    assert!(of(names, status.xrc_domains.iter().map(|d| d.device.as_str()).collect()));
    assert!(of(names, status.xrc_targets.iter().map(|t| t.device.as_str()).collect()));
    assert!(status.xrc_domains.iter().all(|d| d.pids.len() == 1), "one file, but two domains");
    let [roce, ib] = targets;
    if roce.qpn() != ib.qpn() {
        assert_eq!(errno(Target::open(&domains[1], roce.qpn(), 0)), libc::EINVAL);
    }
    drop(roce);
    let left = host.status().xrc_targets;
    assert_eq!((left.len(), left[0].device.as_str()), (1, names[1]));
    // A device without XRC, which has reliable connections only, is refused.
    let iwarp = Process::with(host.client_of(DeviceKind::Iwarp));
    let private = Xrcd::open(&iwarp.device, None, XrcdFlags { create: true, exclusive: false });
    assert_eq!(errno(private), libc::EOPNOTSUPP);
}

#[test]
fn xrcd_open_follows_o_creat_and_o_excl_and_close_with_srq_is_ebusy() {
    let host = Host::start();
    let process = Process::on(&host);
    let file = File::create(host.dir.path().join("file")).unwrap();
    let open = |create, exclusive| {
        Xrcd::open(&process.device, Some(file.as_fd()), XrcdFlags { create, exclusive })
    };
    assert_eq!(errno(open(false, false)), libc::EAGAIN);
    let first = open(true, true).unwrap();
    assert_eq!(errno(open(true, true)), libc::EINVAL);
    let second = open(false, false).unwrap();
    let srq = process.srq(&first);
    let (first, error) = first.close().unwrap_err();
    assert_eq!(error.errno(), libc::EBUSY);
    drop(srq);
    first.close().unwrap();
    assert_eq!(host.status().xrc_domains.len(), 1);
    second.close().unwrap();
    assert_eq!(errno(open(false, false)), libc::EAGAIN);
}
