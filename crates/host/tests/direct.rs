//! Tests which messages are copied directly from one process's memory into another's.
#![expect(unsafe_code, reason = "memory is registered")]

mod common;

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;

use common::{Host, connect_qp};
use rdmux_host::{ConnectOptions, HostClient, HostName, RuntimeDir};
use rdmux_testing::qp::connected_to;
use rdmux_transport::attr::{Access, QpCaps, QpType};
use rdmux_transport::wr::{Completion, RecvWr, SendData, SendOp, SendWr, Sge, WcStatus};
use rdmux_verbs::control::DeviceKind;
use rdmux_verbs::{Cq, Device, Mr, MrInit, Pd, Qp, QpInit};
use rdmux_wire::{Lkey, Qpn};

/// Long enough to be copied directly.
const LEN: u32 = 64 << 10;

/// A process's device, with a queue pair and memory.
struct Process {
    qp: Qp,
    cq: Cq,
    mr: Mr,
    pd: Pd,
    device: Arc<Device>,
}

impl Process {
    fn with(client: Arc<HostClient>) -> Self {
        let device = Device::open(client).unwrap();
        let (pd, cq) = (Pd::new(&device), Cq::new(&device, 16, None, 0).unwrap());
        let memory = vec![0_u8; LEN as usize].leak();
        let init = MrInit::own(memory.as_mut_ptr(), memory.len(), Access::LOCAL_WRITE);
        // SAFETY: the memory is leaked, and accessed only through the region.
        let mr = unsafe { Mr::register(&pd, init).unwrap() };
        let caps = QpCaps {
            max_send_wr: 4,
            max_recv_wr: 4,
            max_send_sge: 1,
            max_recv_sge: 1,
            ..QpCaps::default()
        };
        let init = QpInit {
            qp_type: QpType::Rc,
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            srq: None,
            caps,
            sq_sig_all: true,
            context: 0,
        };
        let qp = Qp::new(&pd, init).unwrap();
        Self { qp, cq, mr, pd, device }
    }

    /// Connects to a queue pair of another process of the host.
    fn connect(&self, dest_qpn: Qpn) {
        let dgid = self.device.gid(1, 0).unwrap().gid;
        connect_qp(&self.qp, &connected_to(dgid, dest_qpn, &self.qp.query()));
    }

    fn recv(&self, addr: u64, lkey: Lkey) {
        let sges = &[Sge { addr, length: LEN, lkey }];
        self.qp.post_recv(&RecvWr { wr_id: 1, sges }).unwrap();
    }

    fn send(&self) {
        let sges = &[Sge { addr: self.mr.range().start, length: LEN, lkey: self.mr.lkey() }];
        self.qp.post_send(&SendWr::new(2, SendOp::Send, SendData::Sges(sges))).unwrap();
    }

    fn succeeds(&self) {
        let mut out = [Completion::EMPTY];
        while self.cq.poll(&mut out) == 0 {
            std::thread::yield_now();
        }
        assert_eq!(out[0].status, WcStatus::Success);
    }
}

const DIR: &str = "RDMUX_TEST_DIRECT_DIR";
const RECEIVES: &str = "RDMUX_TEST_DIRECT_RECEIVES";

/// Runs the processes of the other test: one sends two messages, and one receives them, the second one into no
/// memory. Not a test itself.
#[test]
fn role() {
    let Ok(dir) = std::env::var(DIR) else { return };
    let options = ConnectOptions {
        dir: RuntimeDir::at(dir).unwrap(),
        config: rdmux_host::Config::default(),
        embedded: true,
        program: None,
    };
    let client = options.connect(&HostName::new("test").unwrap(), DeviceKind::default()).unwrap();
    let process = Process::with(client);
    let mut heard = std::io::stdin().lines().map(Result::unwrap);
    println!("SAYS {}", process.qp.qpn().get());
    process.connect(Qpn::new(heard.next().unwrap().parse().unwrap()));
    if std::env::var_os(RECEIVES).is_some() {
        let nowhere = Mr::null(&process.pd).unwrap();
        process.recv(process.mr.range().start, process.mr.lkey());
        process.recv(0, nowhere.lkey());
        println!("SAYS ready");
        (0..2).for_each(|_| process.succeeds());
    } else {
        println!("SAYS ready");
        heard.next().unwrap();
        for _ in 0..2 {
            process.send();
            process.succeeds();
        }
    }
    // Stays while the other may still need it.
    println!("SAYS done");
    heard.next();
}

/// A process in one of these roles.
struct Actor {
    child: Child,
    said: Lines<BufReader<ChildStdout>>,
}

impl Actor {
    fn start(host: &Host, receives: bool) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "role", "--nocapture", "--test-threads=1"]);
        command.env(DIR, host.options.dir.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
        if receives {
            command.env(RECEIVES, "1");
        }
        let mut child = command.spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, said }
    }

    fn hear(&mut self) -> String {
        let mut lines = self.said.by_ref().map_while(Result::ok);
        let said = lines.find_map(|l| l.split_once("SAYS ").map(|(_, word)| word.to_owned()));
        said.expect("it ended without a word")
    }

    fn tell(&mut self, what: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{what}").unwrap();
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn fetch_outside_a_process_memory_is_refused_and_not_counted() {
    let host = Host::start();
    let (mut a, mut b) = (Actor::start(&host, false), Actor::start(&host, true));
    let (of_a, of_b) = (a.hear(), b.hear());
    a.tell(&of_b);
    assert_eq!(a.hear(), "ready");
    b.tell(&of_a);
    assert_eq!(b.hear(), "ready");
    a.tell("go");
    assert_eq!((a.hear(), b.hear()), ("done".into(), "done".into()));
    assert_eq!(host.counter("direct_fetch_bytes"), LEN.into());
    assert_eq!(host.counter("direct_offer_bytes"), u64::from(LEN) * 2, "one of them was refused");
    assert_eq!((host.counter("direct_fetches"), host.counter("direct_fetch_failures")), (1, 1));
}
