//! Several processes of one host, for tests of their interaction.
//!
//! The processes run the test program again, with their role in the environment: one makes the checks, and its peers
//! follow commands on their standard input. The test `role` is their entry point.
#![allow(dead_code, reason = "no test uses all of it")]
#![allow(clippy::cast_possible_truncation, reason = "small numbers of the tests themselves")]

use std::io::{BufRead, BufReader, Lines, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use rdmux::{
    Access, Completion, Context, Cq, EMPTY, Endpoint, Mr, Pd, Qp, QpType, RemoteMr, SendWr,
    WcStatus,
};
use rdmux_host::client::admin;
use rdmux_host::service::{Service, ServiceOptions};
use rdmux_host::{HostError, HostName, RuntimeDir};
use rdmux_testing::temp_dir;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

pub(crate) const ROLE: &str = "RDMUX_TEST_ROLE";
pub(crate) const DIR: &str = "RDMUX_RUNTIME_DIR";
pub(crate) const SWITCH: &str = "RDMUX_CROSS_MEMORY";
pub(crate) const TIMEOUT: Option<Duration> = Some(Duration::from_secs(20));
pub(crate) const ALL: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);
pub(crate) const LONG: usize = 8 << 20;

/// Stops a child, and returns when none of its threads runs any more.
pub(crate) fn stop(child: &Child) {
    let pid = Pid::from_child(child);
    kill_process(pid, Signal::STOP).unwrap();
    let (_, status) = waitpid(Some(pid), WaitOptions::UNTRACED).unwrap().unwrap();
    assert!(status.stopped());
}

/// Resumes a stopped child.
pub(crate) fn go_on(child: &Child) {
    kill_process(Pid::from_child(child), Signal::CONT).unwrap();
}

/// Runs the process of a role on a host.
pub(crate) fn in_a_process(role: &str) {
    in_a_process_of(role, None);
}

/// Like [`in_a_process`], with a process of this user. Only root can do that.
pub(crate) fn in_a_process_of(role: &str, user: Option<u32>) {
    let folder = temp_dir();
    let path = folder.path();
    let dir = RuntimeDir::at(path).unwrap();
    let seed =
        role.bytes().fold(std::process::id(), |n, b| n.wrapping_mul(31).wrapping_add(b.into()));
    let mut service = None;
    for attempt in 0..20 {
        let [a, b, ..] = seed.wrapping_add(attempt).wrapping_mul(0x9e37_79b1).to_be_bytes();
        let mut options = ServiceOptions::new(HostName::new("default").unwrap(), dir.clone());
        options.addresses = Some(vec![IpAddr::from(Ipv4Addr::new(127, 81, a, b.clamp(1, 254)))]);
        match Service::spawn(options) {
            Err(HostError::PortInUse { .. }) => {}
            other => {
                service = Some(other.unwrap());
                break;
            }
        }
    }
    if rustix::process::geteuid().is_root() {
        let done = Command::new("chmod").args(["-R", "go+rX"]).arg(path).status();
        assert!(done.unwrap().success());
        let socket = dir.host(&HostName::new("default").unwrap()).unwrap().socket();
        std::fs::set_permissions(socket, PermissionsExt::from_mode(0o666)).unwrap();
    }
    let mut command = command(role);
    user.map(|user| command.uid(user).gid(user));
    let done = command.env(DIR, path).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{said}\n{}", String::from_utf8_lossy(&done.stderr));
    assert!(said.contains("SAYS done"), "{said}");
    service.unwrap().stop().unwrap();
}

pub(crate) fn command(role: &str) -> Command {
    // Another user may not be able to execute it by its path.
    let mut command = Command::new("/proc/self/exe");
    command.args(["--exact", "role", "--nocapture", "--test-threads=1"]).env(ROLE, role);
    command
}

/// The objects that both ends have.
pub(crate) struct End {
    pub(crate) qp: Qp,
    pub(crate) cq: Cq,
    pub(crate) pd: Pd,
    pub(crate) context: Context,
}

impl End {
    pub(crate) fn open() -> Self {
        Self::on(Context::builder().no_start().open().unwrap())
    }

    /// Returns another end on the same device.
    pub(crate) fn on(context: Context) -> Self {
        let (pd, cq) = (context.pd(), context.cq(64).unwrap());
        let qp = pd.qp(QpType::Rc).cq(&cq).max_send_wr(32).max_recv_wr(32).build().unwrap();
        Self { qp, cq, pd, context }
    }

    /// Returns the next completion, with any status.
    pub(crate) fn next(&self) -> Completion {
        let mut one = [EMPTY];
        assert_eq!(self.cq.wait(&mut one, TIMEOUT).unwrap(), 1);
        one[0]
    }

    pub(crate) fn done(&self, wr_id: u64, status: WcStatus) {
        let done = self.next();
        assert_eq!((done.wr_id, done.status), (wr_id, status));
    }
}

/// The other process.
pub(crate) struct Peer {
    pub(crate) child: Child,
    to: ChildStdin,
    from: Lines<BufReader<ChildStdout>>,
    /// The peer's queue pair.
    endpoint: Option<Endpoint>,
}

impl Peer {
    /// Starts the peer and connects to it. The peer's queue pair grants this process `access`, and this process's
    /// grants it everything.
    pub(crate) fn start(end: &End, switch: &str, access: Access) -> Self {
        Self::start_by(command("peer").env(SWITCH, switch), end, access)
    }

    /// Like [`start`](Self::start), with this command.
    pub(crate) fn start_by(command: &mut Command, end: &End, access: Access) -> Self {
        let mut peer = Self::spawn(command);
        peer.connect_us(end);
        peer.connect_it(end, access);
        peer
    }

    /// Starts the peer without connecting to it.
    pub(crate) fn spawn(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let to = child.stdin.take().unwrap();
        let from = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut peer = Self { child, to, from, endpoint: None };
        peer.endpoint = Some(Endpoint::from_bytes(&bytes(&peer.hear())).unwrap());
        peer
    }

    /// Connects the queue pair of `end` to the peer's.
    pub(crate) fn connect_us(&self, end: &End) {
        end.qp.connect(self.endpoint.unwrap(), 0, ALL).unwrap();
    }

    /// Connects the peer's queue pair to that of `end`.
    pub(crate) fn connect_it(&mut self, end: &End, access: Access) {
        let own = hex(&end.qp.endpoint(0).unwrap().to_bytes());
        self.ask(&format!("connect {own} {}", access.bits()));
    }

    pub(crate) fn hear(&mut self) -> String {
        let mut lines = self.from.by_ref().map_while(Result::ok);
        let said = lines.find_map(|l| l.split_once("SAYS ").map(|(_, word)| word.to_owned()));
        said.expect("it ended without a word")
    }

    pub(crate) fn tell(&mut self, what: &str) {
        writeln!(self.to, "{what}").unwrap();
    }

    pub(crate) fn ask(&mut self, what: &str) -> String {
        self.tell(what);
        self.hear()
    }

    /// Makes the peer allocate a region of zeroes.
    pub(crate) fn region(&mut self, how: &str, len: usize, access: Access) -> RemoteMr {
        let said = self.ask(&format!("{how} {len} {}", access.bits()));
        RemoteMr::from_bytes(&bytes(&said)).unwrap()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

pub(crate) fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap()).collect()
}

pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31) ^ (i >> 8) as u8 ^ seed).collect()
}

pub(crate) fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(7, |n: u64, b| n.wrapping_mul(31).wrapping_add(u64::from(*b)))
}

/// Follows commands. `more` handles those that are unknown here.
pub(crate) fn be_peer(mut more: impl FnMut(&End, &[Option<Mr>], &[&str]) -> String) {
    let end = End::open();
    let mut regions: Vec<Option<Mr>> = Vec::new();
    let other = end.context.pd();
    println!("SAYS {}", hex(&end.qp.endpoint(0).unwrap().to_bytes()));
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let words: Vec<_> = line.split(' ').collect();
        let number = |i: usize| words[i].parse::<usize>().unwrap();
        let access = |i: usize| Access::from_bits_retain(words[i].parse().unwrap());
        let answer = match words[0] {
            "connect" => {
                let to = Endpoint::from_bytes(&bytes(words[1])).unwrap();
                end.qp.connect(to, 0, access(2)).unwrap();
                String::new()
            }
            "region" | "elsewhere" => {
                let pd = if words[0] == "region" { &end.pd } else { &other };
                let region = pd.alloc(number(1), access(2)).unwrap();
                let said = hex(&region.remote().to_bytes());
                regions.push(Some(region));
                said
            }
            "fill" => {
                let region = regions[number(1)].as_ref().unwrap();
                region.write(0, &pattern(region.len(), number(2) as u8));
                String::new()
            }
            "sum" => {
                let region = regions[number(1)].as_ref().unwrap();
                sum(&region.to_vec(..number(2))).to_string()
            }
            "first" => regions[number(1)].as_ref().unwrap().load(0).to_string(),
            "change" => {
                regions[number(1)].as_mut().unwrap().reregister(access(2)).unwrap();
                String::new()
            }
            "back" => {
                // From now on no process writes to it.
                let memory = regions[number(1)].take().unwrap().into_vec().unwrap();
                let before = memory.clone();
                let same = (0..200).all(|_| {
                    std::thread::yield_now();
                    std::hint::black_box(&memory) == &before
                });
                if same { "same" } else { "changed" }.to_owned()
            }
            "recv" => {
                let region = regions[number(1)].as_ref().unwrap();
                end.qp.post_recv(1, &[region.slice(..number(2))]).unwrap();
                String::new()
            }
            "wait" => {
                let done = end.next();
                format!("{:?} {}", done.status, done.byte_len)
            }
            "fail" => {
                end.qp.fail().unwrap();
                String::new()
            }
            _ => more(&end, &regions, &words),
        };
        println!("SAYS {answer}");
    }
}

pub(crate) fn counter(name: &str) -> u64 {
    let dir = RuntimeDir::at(PathBuf::from(std::env::var_os(DIR).unwrap())).unwrap();
    let status = admin::status(&dir, &HostName::new("default").unwrap()).unwrap();
    status.counter(name).unwrap()
}

/// Returns lengths around every limit.
pub(crate) fn lengths() -> impl Iterator<Item = usize> {
    [1, 7, 8, 63, 64, 65, 4095, 4096, 4097, 16 << 10, 32 << 10, (32 << 10) + 1, 64 << 10]
        .into_iter()
        .chain([(64 << 10) + 3, 256 << 10, (256 << 10) + 1, 1 << 20, (1 << 20) + 9, LONG])
}

/// Runs each operation with each length, and checks how many were copies by the initiator.
pub(crate) fn all_lengths(end: &End, peer: &mut Peer) {
    let far = peer.region("region", LONG, ALL);
    let near = end.pd.alloc(LONG, ALL).unwrap();
    for (i, len) in lengths().enumerate() {
        near.write(0, &pattern(len, i as u8));
        // From two pieces.
        let list = [near.slice(..len / 3), near.slice(len / 3..len)];
        let part = far.slice(0..len as u64);
        end.qp.post_send(&SendWr::write(1, part).sges(&list).signaled()).unwrap();
        end.done(1, WcStatus::Success);
        let expected = sum(&pattern(len, i as u8)).to_string();
        assert_eq!(peer.ask(&format!("sum 0 {len}")), expected, "WRITE of {len}");
        near.write(0, &vec![0; len]);
        end.qp.post_send(&SendWr::read(2, part).sges(&list).signaled()).unwrap();
        end.done(2, WcStatus::Success);
        assert_eq!(sum(&near.to_vec(..len)).to_string(), expected, "READ of {len}");
        near.write(0, &pattern(len, 100 + i as u8));
        peer.ask(&format!("recv 0 {LONG}"));
        end.qp.post_send(&SendWr::send(3).sges(&list).signaled()).unwrap();
        assert_eq!(peer.ask("wait"), format!("Success {len}"));
        let expected = sum(&pattern(len, 100 + i as u8)).to_string();
        assert_eq!(peer.ask(&format!("sum 0 {len}")), expected, "SEND of {len}");
        end.done(3, WcStatus::Success);
    }
}
