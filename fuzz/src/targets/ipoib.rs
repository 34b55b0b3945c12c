//! IP over InfiniBand: address resolution datagrams, and the state machines that handle them.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use anyhow::Result;
use rdmux_ipoib::membership::{Administration, Join, Memberships};
use rdmux_ipoib::neighbours::{Link, MAX_KNOWN, Neighbours, Source, To};
use rdmux_transport::Time;
use rdmux_transport::attr::AddressVector;
use rdmux_wire::ipoib::arp::{Arp, Operation};
use rdmux_wire::ipoib::nd::{Kind, Neighbour};
use rdmux_wire::ipoib::{LinkAddress, Resolution};
use rdmux_wire::sa::{JoinState, McMemberRecord, McMemberRecordMask};
use rdmux_wire::{Gid, Qpn};

/// Checks that a parsed datagram is encoded identically, except for bits that the format does not define.
pub fn wire_ipoib(data: &[u8]) {
    if let Ok(resolution) = Resolution::parse(data) {
        let bytes = resolution.to_bytes();
        assert_eq!(Resolution::parse(bytes.as_slice()), Ok(resolution));
    }
}

const OWN: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1)),
];
const LINK: LinkAddress = LinkAddress::datagrams(Qpn::new(0x41), Gid([1; 16]));

/// The waiters of each address, and the number of sent datagrams.
#[derive(Default)]
struct Driver {
    waiting: BTreeMap<IpAddr, u32>,
    sent: usize,
}

impl Link for Driver {
    fn send(&mut self, _: To<'_>, datagram: &Resolution) {
        wire_ipoib(datagram.to_bytes().as_slice());
        self.sent += 1;
    }
    fn resolved(&mut self, ip: IpAddr, _: Option<LinkAddress>) {
        assert!(self.waiting.remove(&ip).is_some(), "{ip} was not asked for");
    }
    fn own(&self, ip: IpAddr, _: &Source) -> Option<LinkAddress> {
        OWN.contains(&ip).then_some(LINK)
    }
}

/// Runs any datagrams, queries and timeouts in any order. The cache is bounded, a datagram causes at most one other, and each
/// waiter is notified once.
pub fn ipoib_neighbours(data: &[u8]) {
    let (mut machine, mut driver, mut now) = (Neighbours::new(), Driver::default(), Time::ZERO);
    let mut rest = data;
    while let Some((&[command, a, b], tail)) = rest.split_first_chunk() {
        rest = tail;
        let before = driver.sent;
        match command % 8 {
            0..=3 => {
                let (bytes, tail) = rest.split_at(rest.len().min(usize::from(b)));
                rest = tail;
                let qpn = Qpn::new(u32::from(a));
                let source = Source { av: AddressVector::default(), qpn, is_near: b & 1 == 0 };
                let _ = machine.handle(now, &source, bytes, &mut driver);
                assert!(driver.sent <= before + 1);
            }
            4 | 5 => {
                let ip = match command & 1 {
                    0 => IpAddr::from([10, 0, a, b]),
                    _ => IpAddr::from([0xfd00, 0, 0, 0, 0, 0, a.into(), b.into()]),
                };
                let own = OWN[usize::from(command & 1)];
                if machine.resolve(now, ip, (own, LINK), &mut driver).is_none() {
                    *driver.waiting.entry(ip).or_default() += 1;
                } else {
                    // A cached address may be resolved again.
                    driver.waiting.entry(ip).or_default();
                }
            }
            6 => {
                now = now.after(Duration::from_millis(u64::from(a) << (b & 15)));
                machine.handle_timeout(now, &mut driver);
            }
            _ if a == 0 => {
                machine.forget_all();
                driver.waiting.clear();
            }
            _ => {
                let ip = IpAddr::from([10, 0, a, b]);
                machine.forget(ip);
                driver.waiting.remove(&ip);
            }
        }
        assert!(machine.len() <= MAX_KNOWN + driver.waiting.len());
        assert_eq!(machine.poll_timeout().is_none(), machine.is_empty());
    }
    while let Some(at) = machine.poll_timeout() {
        machine.handle_timeout(at, &mut driver);
    }
    assert!(machine.is_empty());
    assert!(driver.waiting.values().all(|waiting| *waiting == 0), "{:?}", driver.waiting);
}

/// Unanswered queries, and the last result of each member.
#[derive(Default)]
struct Sa {
    open: Vec<(u64, McMemberRecord, bool)>,
    waiting: BTreeMap<u8, ()>,
}

impl Administration<u8> for Sa {
    fn join(&mut self, question: u64, record: &McMemberRecord, _: McMemberRecordMask) {
        self.ask(question, record, true);
    }
    fn leave(&mut self, question: u64, record: &McMemberRecord, _: McMemberRecordMask) {
        self.ask(question, record, false);
    }
    fn joined(&mut self, member: u8, _: Result<McMemberRecord, i32>) {
        self.waiting.remove(&member);
    }
}

impl Sa {
    fn ask(&mut self, question: u64, record: &McMemberRecord, is_join: bool) {
        let other =
            self.open.iter().any(|(_, open, _)| !record.mgid.is_zero() && open.mgid == record.mgid);
        assert!(!other, "two questions about {} at a time", record.mgid);
        self.open.push((question, *record, is_join));
    }
}

/// Runs any joins, leaves, answers and losses in any order. There is one query about a group at a time, and nothing is left
/// when all have left.
pub fn ipoib_memberships(data: &[u8]) {
    let (mut machine, mut sa) = (Memberships::<u8>::new(), Sa::default());
    for &[command, a, b] in data.as_chunks().0 {
        match command % 8 {
            0..=2 => {
                let join_state = match b & 3 {
                    0 => JoinState::FULL_MEMBER,
                    1 => JoinState::SEND_ONLY_FULL_MEMBER,
                    2 => JoinState::NON_MEMBER,
                    _ => JoinState::FULL_MEMBER | JoinState::NON_MEMBER,
                };
                let mgid = if b & 0x30 == 0 { Gid::ZERO } else { Gid([b >> 4; 16]) };
                let mask = McMemberRecordMask::MGID | McMemberRecordMask::JOIN_STATE;
                let record = McMemberRecord { mgid, join_state, ..McMemberRecord::default() };
                sa.waiting.insert(a, ());
                machine.join(a, Join { record, mask }, &mut sa);
            }
            3 => {
                sa.waiting.remove(&a);
                machine.leave(a, &mut sa);
            }
            4..=6 if !sa.open.is_empty() => {
                let (question, record, _) = sa.open.remove(usize::from(a) % sa.open.len());
                let mgid = if record.mgid.is_zero() { Gid([b | 0x80; 16]) } else { record.mgid };
                let known = sa.open.iter().any(|(_, open, _)| open.mgid == mgid);
                let refused = b & 7 == 0 || known;
                let answer = if refused { Err(22) } else { Ok(McMemberRecord { mgid, ..record }) };
                machine.handle_answer(question, answer, &mut sa);
            }
            7 if a == 0 => {
                machine.lose_all(&mut sa);
            }
            _ => {
                sa.open.retain(|(question, ..)| *question != u64::from(a));
                machine.handle_answer(u64::from(a), Err(110), &mut sa);
            }
        }
    }
    for member in 0..=u8::MAX {
        machine.leave(member, &mut sa);
    }
    while let Some((question, record, _)) = sa.open.pop() {
        machine.handle_answer(question, Ok(record), &mut sa);
    }
    assert!(machine.is_empty(), "{} groups are left", machine.len());
}

/// Returns each kind of datagram, alone and between queries.
///
/// # Errors
/// Never.
pub fn datagrams() -> Result<Vec<Vec<u8>>> {
    let (theirs, gid) = (Ipv4Addr::new(10, 0, 0, 2), Gid([2; 16]));
    let other = LinkAddress::datagrams(Qpn::new(0x42), gid);
    let arp = |operation, target_ip| {
        Resolution::Arp(Arp {
            operation,
            sender: other,
            sender_ip: theirs,
            target: LINK,
            target_ip,
        })
    };
    let nd = |kind| {
        let dst = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
        let src = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
        let target = if kind == Kind::Solicitation { dst } else { src };
        Resolution::Neighbour(Neighbour { src, dst, kind, target, link: Some(other) })
    };
    let ours = Ipv4Addr::new(10, 0, 0, 1);
    let all = [
        arp(Operation::Request, ours),
        arp(Operation::Reply, ours),
        nd(Kind::Solicitation),
        nd(Kind::Advertisement { solicited: true }),
    ];
    Ok(all.iter().map(|one| one.to_bytes().as_slice().to_vec()).collect())
}

/// Returns sequences of such datagrams.
///
/// # Errors
/// Never.
pub fn conversations() -> Result<Vec<Vec<u8>>> {
    let mut all = Vec::new();
    for datagram in datagrams()? {
        let mut script = vec![4, 0, 2, 5, 0, 2, 6, 250, 0, 0, 0x42];
        script.push(u8::try_from(datagram.len())?);
        script.extend_from_slice(&datagram);
        script.extend_from_slice(&[6, 200, 8, 4, 0, 2, 6, 250, 10, 7, 1, 2, 7, 0, 0]);
        all.push(script);
    }
    Ok(all)
}

/// Returns scripts of members that join and leave.
///
/// # Errors
/// Never.
pub fn members() -> Result<Vec<Vec<u8>>> {
    let joins = (0..24_u8).flat_map(|n| [0, n, n << 2 | n & 3, 4, n, n]);
    let leaves = (0..24_u8).flat_map(|n| [3, n, 0, 5, n, 1]);
    let (joins, leaves): (Vec<u8>, Vec<u8>) = (joins.collect(), leaves.collect());
    Ok(vec![[&joins[..], &leaves[..]].concat(), [&joins[..], &[7, 0, 0], &leaves[..]].concat()])
}
