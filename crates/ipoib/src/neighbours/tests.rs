use alloc::vec::Vec;
use core::net::Ipv6Addr;

use super::*;

/// A host: its address, and the output of its cache.
struct Host {
    ip: IpAddr,
    link: LinkAddress,
    /// Datagrams to all, and to a sender.
    sent: Vec<(Option<Source>, Resolution)>,
    resolved: Vec<(IpAddr, Option<LinkAddress>)>,
}

impl Link for Host {
    fn send(&mut self, to: To<'_>, datagram: &Resolution) {
        let to = match to {
            To::All => None,
            To::Sender(source) => Some(*source),
        };
        self.sent.push((to, *datagram));
    }
    fn resolved(&mut self, ip: IpAddr, found: Option<LinkAddress>) {
        self.resolved.push((ip, found));
    }
    fn own(&self, ip: IpAddr, asking: &Source) -> Option<LinkAddress> {
        (ip == self.ip && (asking.is_near || !ip.is_loopback())).then_some(self.link)
    }
}

fn host(ip: &str, n: u8) -> (Neighbours, Host) {
    let link = LinkAddress::datagrams(Qpn::new(n.into()), Gid([n; 16]));
    let host = Host { ip: ip.parse().unwrap(), link, sent: Vec::new(), resolved: Vec::new() };
    (Neighbours::new(), host)
}

fn source(of: &Host, is_near: bool) -> Source {
    Source { av: AddressVector::default(), qpn: of.link.qpn, is_near }
}

/// Delivers the datagrams of one host to the other.
fn carry(from: &mut Host, to: &mut (Neighbours, Host), now: Time) -> usize {
    let near = source(from, true);
    let sent = core::mem::take(&mut from.sent);
    for (_, datagram) in &sent {
        to.0.handle(now, &near, datagram.to_bytes().as_slice(), &mut to.1).unwrap();
    }
    sent.len()
}

fn at(ms: u64) -> Time {
    Time::ZERO.after(Duration::from_millis(ms))
}

fn resolve(a: &mut (Neighbours, Host), now: Time, ip: IpAddr) -> Option<LinkAddress> {
    let own = (a.1.ip, a.1.link);
    a.0.resolve(now, ip, own, &mut a.1)
}

#[test]
fn address_is_asked_for_once_and_then_known_to_both() {
    for (ip_a, ip_b) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
        let (mut a, mut b) = (host(ip_a, 1), host(ip_b, 2));
        assert_eq!(resolve(&mut a, at(0), b.1.ip), None);
        assert_eq!(resolve(&mut a, at(1), b.1.ip), None, "it is asked for already");
        assert_eq!(carry(&mut a.1, &mut b, at(1)), 1);
        assert_eq!(b.1.sent[0].0.map(|source| source.qpn), Some(a.1.link.qpn));
        carry(&mut b.1, &mut a, at(2));
        assert_eq!(a.1.resolved, [(b.1.ip, Some(b.1.link))]);
        assert_eq!(resolve(&mut a, at(3), b.1.ip), Some(b.1.link));
        assert_eq!(resolve(&mut b, at(3), a.1.ip), Some(a.1.link), "it was told by the question");
        assert_eq!((a.1.sent.len(), b.1.sent.len()), (0, 0));
    }
}

#[test]
fn arp_request_is_retransmitted_and_fails_after_three_seconds() {
    let mut a = host("10.0.0.1", 1);
    let nobody = "10.0.0.9".parse().unwrap();
    resolve(&mut a, at(0), nobody);
    let mut when = Vec::new();
    while let Some(due) = a.0.poll_timeout() {
        a.0.handle_timeout(due, &mut a.1);
        when.push(due);
    }
    assert_eq!(when, [200, 600, 1400, 3000].map(at));
    assert_eq!(a.1.sent.len(), PAUSES.len());
    assert_eq!(a.1.resolved, [(nobody, None)]);
    assert!(a.0.is_empty());
    assert_eq!(a.0.counters().failed, 1);
}

#[test]
fn address_is_not_used_beyond_its_life_while_it_is_being_confirmed() {
    let (mut a, mut b) = (host("10.0.0.1", 1), host("10.0.0.2", 2));
    resolve(&mut a, at(0), b.1.ip);
    carry(&mut a.1, &mut b, at(0));
    carry(&mut b.1, &mut a, at(0));
    assert_eq!(resolve(&mut a, at(58_000), b.1.ip), Some(b.1.link));
    a.0.handle_timeout(at(60_500), &mut a.1);
    assert_eq!(resolve(&mut a, at(60_500), b.1.ip), None);
}

#[test]
fn address_in_the_second_half_of_its_life_is_confirmed_beside_its_use() {
    let (mut a, mut b) = (host("10.0.0.1", 1), host("10.0.0.2", 2));
    resolve(&mut a, at(0), b.1.ip);
    carry(&mut a.1, &mut b, at(0));
    carry(&mut b.1, &mut a, at(0));
    assert_eq!(resolve(&mut a, at(29_000), b.1.ip), Some(b.1.link));
    assert_eq!(a.1.sent.len(), 0);
    assert_eq!(resolve(&mut a, at(31_000), b.1.ip), Some(b.1.link));
    assert_eq!(a.1.sent.len(), 1);
    carry(&mut a.1, &mut b, at(31_000));
    carry(&mut b.1, &mut a, at(31_000));
    a.0.handle_timeout(at(60_500), &mut a.1);
    assert_eq!(resolve(&mut a, at(60_500), b.1.ip), Some(b.1.link));
    a.0.handle_timeout(at(200_000), &mut a.1);
    assert_eq!(resolve(&mut a, at(200_000), b.1.ip), None);
}

#[test]
fn address_that_is_not_confirmed_ends_with_its_life() {
    let (mut a, mut b) = (host("10.0.0.1", 1), host("10.0.0.2", 2));
    resolve(&mut a, at(0), b.1.ip);
    carry(&mut a.1, &mut b, at(0));
    carry(&mut b.1, &mut a, at(0));
    resolve(&mut a, at(40_000), b.1.ip);
    a.0.handle_timeout(at(44_000), &mut a.1);
    assert_eq!(resolve(&mut a, at(45_000), b.1.ip), Some(b.1.link), "its life is not over");
    while let Some(due) = a.0.poll_timeout() {
        a.0.handle_timeout(due, &mut a.1);
    }
    assert!(a.0.is_empty());
}

#[test]
fn unsolicited_arp_replies_and_forged_requests_are_ignored() {
    let (mut a, b) = (host("10.0.0.1", 1), host("10.0.0.2", 2));
    let IpAddr::V4(target_ip) = a.1.ip else { unreachable!() };
    let claim = |operation, sender: LinkAddress, sender_ip: [u8; 4]| {
        let (target, sender_ip) = (sender, sender_ip.into());
        Resolution::Arp(Arp { operation, sender, sender_ip, target, target_ip })
    };
    let near = source(&b.1, true);
    let mut take = |datagram: Resolution| {
        a.0.handle(at(0), &near, datagram.to_bytes().as_slice(), &mut a.1).unwrap();
        a.0.len()
    };
    assert_eq!(take(claim(Operation::Reply, b.1.link, [10, 0, 0, 3])), 0, "an answer");
    let other = LinkAddress { qpn: Qpn::new(99), ..b.1.link };
    assert_eq!(take(claim(Operation::Request, other, [10, 0, 0, 3])), 0, "another's queue pair");
    assert_eq!(take(claim(Operation::Request, b.1.link, [10, 0, 0, 1])), 0, "our own address");
    for nobody in [[0, 0, 0, 0], [255, 255, 255, 255], [239, 1, 1, 1]] {
        assert_eq!(take(claim(Operation::Request, b.1.link, nobody)), 0, "{nobody:?}");
    }
    assert_eq!(take(claim(Operation::Request, b.1.link, [10, 0, 0, 3])), 1);
    assert_eq!(a.0.counters().unsolicited, 1);
    assert!(a.0.handle(at(0), &near, &[1, 2, 3], &mut a.1).is_err());
}

/// A probe as sent by a host that wants the address for itself (RFC 4862, section 5.4).
#[test]
fn dad_probe_for_own_address_gets_multicast_neighbour_advertisement() {
    let (mut a, b) = (host("fd00::1", 1), host("fd00::2", 2));
    let from = source(&b.1, true);
    let (IpAddr::V6(ours), IpAddr::V6(theirs)) = (a.1.ip, b.1.ip) else { unreachable!() };
    for (target, answers) in [(theirs, 0), (ours, 1)] {
        let probe = Resolution::Neighbour(Neighbour {
            src: Ipv6Addr::UNSPECIFIED,
            dst: solicited_node(target),
            kind: Kind::Solicitation,
            target,
            link: None,
        });
        a.0.handle(at(0), &from, probe.to_bytes().as_slice(), &mut a.1).unwrap();
        assert_eq!(a.1.sent.len(), answers);
    }
    let answer = Neighbour {
        src: ours,
        dst: ALL_NODES,
        kind: Kind::Advertisement { solicited: false },
        target: ours,
        link: Some(a.1.link),
    };
    assert_eq!(a.1.sent, [(None, Resolution::Neighbour(answer))]);
    assert_eq!((a.0.len(), a.0.counters().malformed, a.0.counters().answered), (0, 0, 1));
}

/// RFC 4861, section 4.3: only a multicast solicitation must have the option.
#[test]
fn solicitation_without_link_address_is_answered_to_its_sender() {
    let (mut a, b) = (host("fd00::1", 1), host("fd00::2", 2));
    let from = source(&b.1, true);
    let (IpAddr::V6(ours), IpAddr::V6(theirs)) = (a.1.ip, b.1.ip) else { unreachable!() };
    let probe =
        Neighbour { src: theirs, dst: ours, kind: Kind::Solicitation, target: ours, link: None };
    let bytes = Resolution::Neighbour(probe).to_bytes();
    a.0.handle(at(0), &from, bytes.as_slice(), &mut a.1).unwrap();
    let answer = Neighbour {
        src: ours,
        dst: theirs,
        kind: Kind::Advertisement { solicited: true },
        target: ours,
        link: Some(a.1.link),
    };
    let [(Some(_), answered)] = &a.1.sent[..] else { panic!("{:?}", a.1.sent) };
    assert_eq!(*answered, Resolution::Neighbour(answer));
    assert_eq!((a.0.len(), a.0.counters().malformed, a.0.counters().answered), (0, 0, 1));
}

/// The answer to a probe would be received on all machines.
#[test]
fn dad_probe_for_loopback_address_is_not_answered() {
    let (mut a, b) = (host("::1", 1), host("fd00::2", 2));
    let probe = Resolution::Neighbour(Neighbour {
        src: Ipv6Addr::UNSPECIFIED,
        dst: solicited_node(Ipv6Addr::LOCALHOST),
        kind: Kind::Solicitation,
        target: Ipv6Addr::LOCALHOST,
        link: None,
    });
    a.0.handle(at(0), &source(&b.1, true), probe.to_bytes().as_slice(), &mut a.1).unwrap();
    assert_eq!(a.1.sent, []);
}

#[test]
fn loopback_address_is_not_answered_to_other_machines() {
    let mut a = host("127.77.0.1", 1);
    let b = host("127.77.0.2", 2);
    let ask = question(a.1.ip, b.1.ip, b.1.link).unwrap();
    for (is_near, answers) in [(false, 0), (true, 1)] {
        let from = source(&b.1, is_near);
        a.0.handle(at(0), &from, ask.to_bytes().as_slice(), &mut a.1).unwrap();
        assert_eq!(a.1.sent.len(), answers);
    }
}

#[test]
fn known_addresses_are_bounded_and_the_oldest_is_forgotten() {
    let mut a = host("10.0.0.1", 1);
    let b = host("10.0.0.2", 2);
    let near = source(&b.1, true);
    for n in 0..MAX_KNOWN + 10 {
        let [.., hi, lo] = u32::try_from(n).unwrap().to_be_bytes();
        let from = IpAddr::from([10, 1, hi, lo]);
        let ask = question(a.1.ip, from, b.1.link).unwrap();
        a.0.handle(at(n as u64), &near, ask.to_bytes().as_slice(), &mut a.1).unwrap();
    }
    assert_eq!(a.0.len(), MAX_KNOWN);
    assert!(!a.0.known().any(|(ip, _)| ip == IpAddr::from([10, 1, 0, 9])));
    assert!(a.0.known().any(|(ip, _)| ip == IpAddr::from([10, 1, 0, 10])));
}

#[test]
fn addresses_that_are_asked_for_are_not_forgotten_for_others() {
    let mut a = host("10.0.0.1", 1);
    let b = host("10.1.0.0", 2);
    let address = |n: usize| {
        let [.., first, second, third] = u32::try_from(n).unwrap().to_be_bytes();
        IpAddr::from([10, 1 + first, second, third])
    };
    for n in 0..MAX_ASKED {
        resolve(&mut a, at(0), address(n));
    }
    assert_eq!((a.0.len(), a.1.resolved.len()), (MAX_ASKED, 0));
    resolve(&mut a, at(0), address(MAX_ASKED));
    assert_eq!(a.1.resolved, [(address(MAX_ASKED), None)]);
    // The lowest one is found all the same, and makes room for another request.
    let answer = Arp {
        operation: Operation::Reply,
        sender: b.1.link,
        sender_ip: "10.1.0.0".parse().unwrap(),
        target: a.1.link,
        target_ip: "10.0.0.1".parse().unwrap(),
    };
    let bytes = Resolution::Arp(answer).to_bytes();
    a.0.handle(at(1), &source(&b.1, true), bytes.as_slice(), &mut a.1).unwrap();
    assert_eq!(a.1.resolved[1..], [(address(0), Some(b.1.link))]);
    resolve(&mut a, at(1), address(MAX_ASKED));
    assert_eq!((a.0.len(), a.1.resolved.len()), (MAX_ASKED + 1, 2));
}

#[test]
fn forget_all_clears_neighbours_and_next_resolve_asks_again() {
    let mut a = host("10.0.0.1", 1);
    let nobody = "10.0.0.9".parse().unwrap();
    resolve(&mut a, at(0), nobody);
    a.0.forget_all();
    assert!(a.1.resolved.is_empty() && a.0.is_empty() && a.0.poll_timeout().is_none());
    let asked = a.0.counters().asked;
    resolve(&mut a, at(0), nobody);
    assert_eq!(a.0.counters().asked, asked + 1);
}
