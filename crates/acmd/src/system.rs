//! What the operating system knows of addresses, for devices that go by IP addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::{io, thread};

use rdmux::GidEntry;
use rdmux_acm::{EndpointId, QuestionId, System};
use rdmux_host::{Registry, RuntimeDir};
use rdmux_wire::acm::Address;

/// Names that wait to be looked up. What comes beyond is not known.
const WAITING: usize = 256;
/// The hop limit of packets when nobody says otherwise.
const HOP_LIMIT: u8 = 64;

/// A name to look up.
struct Question {
    endpoint: EndpointId,
    question: QuestionId,
    name: String,
}

/// What came of it.
pub(crate) struct Found {
    /// Who asked.
    pub(crate) endpoint: EndpointId,
    /// What was asked.
    pub(crate) question: QuestionId,
    /// The addresses.
    pub(crate) addresses: Vec<IpAddr>,
}

/// Tells the service what was found.
struct Teller {
    answer: SyncSender<Found>,
    waker: UnixStream,
}

impl Teller {
    /// Whether the service is there.
    fn tell(&self, question: &Question, addresses: Vec<IpAddr>) -> bool {
        let Question { endpoint, question, .. } = *question;
        let told = self.answer.send(Found { endpoint, question, addresses }).is_ok();
        // If it is full, it wakes all the same.
        let _ = io::Write::write(&mut &self.waker, &[1]);
        told
    }
}

/// Looks names up in threads: one knows virtual hosts, the other asks the operating system, which may take long.
pub(crate) struct Names {
    questions: SyncSender<Question>,
    answers: Receiver<Found>,
    wake: UnixStream,
}

impl Names {
    /// Starts the threads. Virtual hosts are found in this directory.
    pub(crate) fn start(dir: RuntimeDir) -> io::Result<Self> {
        let host = move |name: &str| Registry::look_up(&dir, name);
        let others = |name: &str| {
            let found = (name, 0).to_socket_addrs();
            found.map(|all| all.map(|address| address.ip()).collect()).unwrap_or_default()
        };
        Self::by(host, others)
    }

    /// Looks for hosts, and for other names.
    fn by(
        host: impl Fn(&str) -> Option<IpAddr> + Send + 'static,
        others: impl Fn(&str) -> Vec<IpAddr> + Send + 'static,
    ) -> io::Result<Self> {
        let (questions, asked) = sync_channel::<Question>(WAITING);
        let (slow, asked_slowly) = sync_channel::<Question>(WAITING);
        let (answer, answers) = sync_channel(WAITING);
        let (wake, waker) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        waker.set_nonblocking(true)?;
        let teller = Teller { answer, waker: waker.try_clone()? };
        let slow_teller = Teller { answer: teller.answer.clone(), waker };
        thread::Builder::new().name("names".to_owned()).spawn(move || {
            for question in asked {
                let told = match host(&question.name) {
                    Some(ip) => teller.tell(&question, vec![ip]),
                    None => match slow.try_send(question) {
                        Ok(()) => true,
                        // Others wait already, for long.
                        Err(
                            TrySendError::Full(question) | TrySendError::Disconnected(question),
                        ) => teller.tell(&question, Vec::new()),
                    },
                };
                if !told {
                    return;
                }
            }
        })?;
        thread::Builder::new().name("names-slow".to_owned()).spawn(move || {
            for question in asked_slowly {
                if !slow_teller.tell(&question, others(&question.name)) {
                    return;
                }
            }
        })?;
        Ok(Self { questions, answers, wake })
    }

    /// Asks. False when too many wait.
    pub(crate) fn ask(&self, endpoint: EndpointId, question: QuestionId, name: &str) -> bool {
        let question = Question { endpoint, question, name: name.to_owned() };
        !matches!(self.questions.try_send(question), Err(TrySendError::Full(_)))
    }

    /// Takes answers.
    pub(crate) fn take(&self) -> Vec<Found> {
        let mut buffer = [0; 64];
        while matches!(io::Read::read(&mut &self.wake, &mut buffer), Ok(n) if n > 0) {}
        self.answers.try_iter().collect()
    }
}

impl AsFd for Names {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// The IP address that an address is, if it is one.
pub(crate) fn ip_of(address: &Address) -> Option<IpAddr> {
    match address {
        Address::Ip4(ip) => Some((*ip).into()),
        Address::Ip6(ip) => Some((*ip).into()),
        Address::Gid(gid) => Some(gid.ip()),
        Address::Name(_) | Address::Lid(_) => None,
    }
}

/// What is known of the first of some addresses to which one of our own leads.
pub(crate) fn system_of(addresses: &[IpAddr], own: &[GidEntry]) -> Option<System> {
    addresses.iter().find_map(|&ip| {
        let source = source_of(ip, own)?;
        Some(System { gid: ip.into(), source: source.gid, mtu: source.mtu, hop_limit: HOP_LIMIT })
    })
}

/// The own address that packets to `ip` come from: itself if it is our own; the one that the kernel would take if that is ours; else the
/// first of its family. What routes say of loopback addresses counts for nothing: those of a virtual host are its own.
fn source_of(ip: IpAddr, own: &[GidEntry]) -> Option<&GidEntry> {
    let of = |wanted: IpAddr| own.iter().find(|entry| entry.gid.ip() == wanted);
    let by_kernel = || kernel_source(ip).and_then(of);
    let of_family = || own.iter().find(|entry| entry.gid.ip().is_ipv4() == ip.is_ipv4());
    of(ip).or_else(by_kernel).or_else(of_family)
}

/// The address from which the kernel would send to another. Nothing is sent.
fn kernel_source(ip: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = match ip {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind(SocketAddr::from((any, 0))).ok()?;
    socket.connect((ip, 1)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

#[cfg(test)]
mod tests {
    use rdmux::{Gid, Mtu};

    use super::*;

    fn own(addresses: &[&str]) -> Vec<GidEntry> {
        let entry = |text: &&str| {
            let ip: IpAddr = text.parse().unwrap();
            GidEntry { gid: Gid::from(ip), mtu: Mtu::M1024, ..GidEntry::empty() }
        };
        addresses.iter().map(entry).collect()
    }

    fn source(ip: &str, addresses: &[&str]) -> Option<IpAddr> {
        source_of(ip.parse().unwrap(), &own(addresses)).map(|entry| entry.gid.ip())
    }

    #[test]
    fn source_of_a_virtual_host_is_its_own_address_whatever_the_routes_say() {
        let host = ["127.77.0.9", "fd00::9"];
        assert_eq!(source("127.77.0.10", &host), Some(IpAddr::from([127, 77, 0, 9])));
        assert_eq!(source("fd00::7", &host), Some("fd00::9".parse().unwrap()));
        assert_eq!(source("127.0.0.1", &["127.77.0.9", "127.0.0.1"]), Some([127, 0, 0, 1].into()));
        assert_eq!(source("fd00::7", &["127.77.0.9"]), None);
    }

    #[test]
    fn what_the_system_knows_has_the_mtu_of_the_own_address() {
        let known = system_of(&["127.77.0.10".parse().unwrap()], &own(&["127.77.0.9"])).unwrap();
        assert_eq!((known.gid.ip(), known.mtu), (IpAddr::from([127, 77, 0, 10]), Mtu::M1024));
        assert!(system_of(&[], &own(&["127.77.0.9"])).is_none());
    }

    #[test]
    fn names_are_looked_up_in_a_thread() {
        let dir = rdmux_testing::temp_dir();
        let names = Names::start(RuntimeDir::at(dir.path()).unwrap()).unwrap();
        assert!(names.ask(EndpointId(1), QuestionId(2), "127.0.0.5"));
        let found = next(&names);
        assert_eq!((found.endpoint, found.question), (EndpointId(1), QuestionId(2)));
        assert_eq!(found.addresses, [IpAddr::from([127, 0, 0, 5])]);
    }

    /// As with a name server that does not answer.
    #[test]
    fn names_that_take_long_hold_up_no_host_and_some_are_not_found() {
        let ip = IpAddr::from([127, 0, 0, 5]);
        let (goes_on, come) = sync_channel::<()>(0);
        let (begins, begun) = sync_channel(WAITING);
        let others = move |_: &str| {
            let _ = begins.send(());
            let _ = come.recv();
            vec![ip]
        };
        let names = Names::by(move |name| (name == "host").then_some(ip), others).unwrap();
        let ask = |number, name| {
            while !names.ask(EndpointId(1), QuestionId(number), name) {
                std::thread::yield_now();
            }
        };
        ask(0, "slow");
        begun.recv().unwrap();
        let most = u64::try_from(WAITING).unwrap();
        (1..=most + 1).for_each(|number| ask(number, "slow"));
        let found = next(&names);
        assert_eq!((found.question, found.addresses.len()), (QuestionId(most + 1), 0));
        ask(1000, "host");
        let found = next(&names);
        assert_eq!((found.question, found.addresses), (QuestionId(1000), vec![ip]));
        goes_on.send(()).unwrap();
        assert_eq!(next(&names).question, QuestionId(0));
    }

    /// The only answer that comes.
    fn next(names: &Names) -> Found {
        loop {
            let mut found = names.take();
            assert!(found.len() <= 1);
            if let Some(found) = found.pop() {
                return found;
            }
            std::thread::yield_now();
        }
    }
}
