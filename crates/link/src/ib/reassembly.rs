//! Reassembly of packets from their parts.
//!
//! A state machine without I/O: its input is a part and its sender, its output is a whole packet. It is bounded, since any
//! program may send parts: the numbers of incomplete packets of a sender and in all are limited, and the oldest is discarded for
//! a new one. No timer is used.

use std::net::SocketAddr;

use super::Encap;

/// The incomplete packets.
#[derive(Debug, Default)]
pub struct Reassembly {
    /// The incomplete packets, and unused entries whose memory is kept.
    packets: Vec<Partial>,
    /// The number of packets that were begun.
    begun: u64,
    /// The index of the packet that received a part last.
    last: usize,
    /// The number of packets that were discarded incomplete.
    given_up: u64,
}

/// An incomplete packet.
#[derive(Debug)]
struct Partial {
    from: SocketAddr,
    number: u32,
    total: u16,
    parts: u8,
    /// Bit i: part i has arrived. No bit is set if the entry is unused.
    came: u16,
    /// The order in which packets were begun; lower is older.
    begun: u64,
    data: Vec<u8>,
}

/// The result of adding a part.
#[derive(Debug, PartialEq, Eq)]
pub enum Joined<'a> {
    /// The packet is complete.
    Whole(&'a [u8]),
    /// The part is the first one of its packet to arrive.
    Begun {
        /// Whether another packet was discarded to make room.
        gave_up: bool,
    },
    /// Further parts are missing.
    Waits,
    /// The part is a duplicate.
    Twice,
}

impl Reassembly {
    /// The maximum number of incomplete packets.
    pub const MOST: usize = 64;
    /// The maximum number of incomplete packets of one sender. (All processes of a host may send from one address.)
    pub const MOST_OF_SENDER: usize = 16;
    /// The age, in packets begun since, from which on a packet can never complete: a part was lost, and its number is reused.
    const OLD: u64 = 1 << 16;

    /// Adds a part. `encap` and `body` are what [`Encap::parse`] returned.
    pub fn join<'a>(&'a mut self, from: SocketAddr, encap: &Encap, body: &'a [u8]) -> Joined<'a> {
        let place = encap.place();
        if encap.parts == 1 {
            return Joined::Whole(body);
        }
        if place.len() != body.len() || encap.part >= encap.parts.min(Encap::MAX_PARTS) {
            return Joined::Twice;
        }
        let given_up = self.given_up;
        let at = self.find(from, encap);
        self.last = at;
        let packet = &mut self.packets[at];
        let bit = 1 << encap.part;
        if packet.came & bit != 0 {
            return Joined::Twice;
        }
        let is_first = packet.came == 0;
        packet.came |= bit;
        packet.data[place].copy_from_slice(body);
        if is_first {
            return Joined::Begun { gave_up: self.given_up != given_up };
        }
        if u32::from(packet.parts) != packet.came.count_ones() {
            return Joined::Waits;
        }
        packet.came = 0;
        Joined::Whole(&packet.data)
    }

    /// Returns how many packets were discarded incomplete, because others needed the room or because their sender began another
    /// one with the same number.
    pub fn given_up(&self) -> u64 {
        self.given_up
    }

    /// Returns the number of incomplete packets.
    pub fn under_way(&self) -> usize {
        self.packets.iter().filter(|packet| packet.came != 0).count()
    }

    /// Returns the index of the packet that a part belongs to, after creating it if need be.
    fn find(&mut self, from: SocketAddr, encap: &Encap) -> usize {
        let same = |packet: &Partial| {
            packet.came != 0 && packet.number == encap.number && packet.from == from
        };
        let known = if self.packets.get(self.last).is_some_and(same) {
            Some(self.last)
        } else {
            self.packets.iter().position(same)
        };
        if let Some(at) = known {
            let packet = &self.packets[at];
            let is_recent = self.begun - packet.begun < Self::OLD;
            if is_recent && (packet.total, packet.parts) == (encap.total, encap.parts) {
                return at;
            }
            self.given_up += 1;
            return self.begin(at, from, encap);
        }
        let at = self.room(from);
        self.begin(at, from, encap)
    }

    fn begin(&mut self, at: usize, from: SocketAddr, encap: &Encap) -> usize {
        let Encap { number, total, parts, .. } = *encap;
        self.begun += 1;
        let packet = &mut self.packets[at];
        let mut data = std::mem::take(&mut packet.data);
        // Every byte of it is written before it is returned.
        data.resize(total.into(), 0);
        *packet = Partial { from, number, total, parts, came: 0, begun: self.begun, data };
        at
    }

    /// Returns the index of an entry for another packet of a sender.
    fn room(&mut self, from: SocketAddr) -> usize {
        let (mut free, mut oldest, mut own, mut owns) = (None, (u64::MAX, 0), (u64::MAX, 0), 0);
        for (at, packet) in self.packets.iter().enumerate() {
            if packet.came == 0 {
                free = Some(at);
                continue;
            }
            oldest = oldest.min((packet.begun, at));
            if packet.from == from {
                owns += 1;
                own = own.min((packet.begun, at));
            }
        }
        if owns >= Self::MOST_OF_SENDER {
            self.given_up += 1;
            return own.1;
        }
        if let Some(at) = free {
            return at;
        }
        if self.packets.len() == Self::MOST {
            self.given_up += 1;
            return oldest.1;
        }
        let data = Vec::with_capacity(Encap::MAX_TOTAL.into());
        self.packets.push(Partial { from, number: 0, total: 0, parts: 1, came: 0, begun: 0, data });
        self.packets.len() - 1
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    const BEGUN: Joined<'_> = Joined::Begun { gave_up: false };

    fn from(n: u16) -> SocketAddr {
        ([10, 0, 0, 1], 1 + n).into()
    }

    /// The parts of a packet whose bytes identify it.
    fn parts(number: u32, total: u16, parts: u8) -> Vec<(Encap, Vec<u8>)> {
        let bytes = packet(number, total);
        let encap = |part| Encap { part, parts, steer: 0, number, total };
        (0..parts).map(|part| (encap(part), bytes[encap(part).place()].to_vec())).collect()
    }

    fn packet(number: u32, total: u16) -> Vec<u8> {
        (0..total).map(|i| (u32::from(i) * 7 + number).to_le_bytes()[0]).collect()
    }

    #[test]
    fn incomplete_packet_is_not_merged_with_a_later_one_of_its_number() {
        let mut reassembly = Reassembly::default();
        let old = parts(7, 4120, 3);
        assert_eq!(reassembly.join(from(1), &old[1].0, &old[1].1), BEGUN);
        for number in (8..).take(Reassembly::OLD.try_into().unwrap()) {
            for (encap, body) in &parts(number, 404, 2) {
                reassembly.join(from(1), encap, body);
            }
        }
        let new: Vec<_> =
            old.iter().map(|(encap, body)| (*encap, vec![!body[0]; body.len()])).collect();
        let whole: Vec<u8> = new.iter().flat_map(|(_, body)| body.clone()).collect();
        let gave_up = Joined::Begun { gave_up: true };
        assert_eq!(reassembly.join(from(1), &new[0].0, &new[0].1), gave_up);
        assert_eq!(reassembly.join(from(1), &new[1].0, &new[1].1), Joined::Waits);
        assert_eq!(reassembly.join(from(1), &new[2].0, &new[2].1), Joined::Whole(&whole));
    }

    #[test]
    fn packets_are_reassembled_from_parts_in_any_order() {
        let mut reassembly = Reassembly::default();
        let (a, b) = (parts(1, 4120, 3), parts(2, 1000, 3));
        let (c, d) = (parts(1, 404, 2), [parts(3, 100, 1)]);
        let mut join = |sender, (encap, body): &(Encap, Vec<u8>)| match reassembly.join(
            from(sender),
            encap,
            body,
        ) {
            Joined::Whole(bytes) => Some(bytes.to_vec()),
            Joined::Begun { .. } | Joined::Waits => None,
            Joined::Twice => panic!("{encap:?}"),
        };
        assert_eq!(
            [join(1, &a[2]), join(1, &b[0]), join(2, &c[1]), join(1, &a[0])],
            [None, None, None, None]
        );
        assert_eq!(join(1, &d[0][0]), Some(packet(3, 100)));
        assert_eq!(join(2, &c[0]), Some(packet(1, 404)), "another sender's of the same number");
        assert_eq!([join(1, &b[2]), join(1, &a[1])], [None, Some(packet(1, 4120))]);
        assert_eq!(join(1, &b[1]), Some(packet(2, 1000)));
        assert_eq!((reassembly.under_way(), reassembly.given_up()), (0, 0));
    }

    #[test]
    fn duplicate_part_is_counted_once() {
        let mut reassembly = Reassembly::default();
        let all = parts(1, 500, 2);
        assert_eq!(reassembly.join(from(1), &all[0].0, &all[0].1), BEGUN);
        assert_eq!(reassembly.join(from(1), &all[0].0, &[9; 251]), Joined::Twice);
        assert_eq!(reassembly.join(from(1), &all[1].0, &all[1].1), Joined::Whole(&packet(1, 500)));
    }

    #[test]
    fn incomplete_packet_is_dropped_when_its_number_is_reused() {
        let mut reassembly = Reassembly::default();
        let (old, new) = (parts(1, 500, 2), parts(1, 400, 2));
        assert_eq!(reassembly.join(from(1), &old[0].0, &old[0].1), BEGUN);
        let gave_up = Joined::Begun { gave_up: true };
        assert_eq!(reassembly.join(from(1), &new[1].0, &new[1].1), gave_up);
        assert_eq!(reassembly.join(from(1), &new[0].0, &new[0].1), Joined::Whole(&packet(1, 400)));
        assert_eq!((reassembly.given_up(), reassembly.under_way()), (1, 0));
    }

    #[test]
    fn oldest_incomplete_packet_is_dropped_at_the_limit() {
        let mut reassembly = Reassembly::default();
        let most = u32::try_from(Reassembly::MOST_OF_SENDER).unwrap();
        let senders = u16::try_from(Reassembly::MOST).unwrap();
        let first = |reassembly: &mut Reassembly, sender, number| {
            let (encap, body) = &parts(number, 500, 2)[0];
            let joined = reassembly.join(from(sender), encap, body);
            assert!(matches!(joined, Joined::Begun { .. }));
        };
        let last = |reassembly: &mut Reassembly, sender, number| {
            let (encap, body) = &parts(number, 500, 2)[1];
            matches!(reassembly.join(from(sender), encap, body), Joined::Whole(_))
        };
        first(&mut reassembly, 9, 0);
        (0..=most).for_each(|number| first(&mut reassembly, 1, number));
        assert_eq!(
            (reassembly.given_up(), reassembly.under_way()),
            (1, 1 + Reassembly::MOST_OF_SENDER)
        );
        assert!(last(&mut reassembly, 9, 0), "another sender's stays");
        assert!((1..=most).all(|number| last(&mut reassembly, 1, number)));
        assert!(!last(&mut reassembly, 1, 0), "the oldest");
        // Many senders with one packet each.
        (0..senders).for_each(|sender| first(&mut reassembly, 100 + sender, 0));
        assert_eq!((reassembly.given_up(), reassembly.under_way()), (2, Reassembly::MOST));
        assert!((0..senders).all(|sender| last(&mut reassembly, 100 + sender, 0)));
        assert_eq!((reassembly.packets.len(), reassembly.under_way()), (Reassembly::MOST, 0));
    }

    proptest! {
        /// For any parts that arrive, each packet that completes is one that was sent, at most as often as its parts were.
        #[test]
        fn reassembled_packets_are_exactly_those_sent(
            order in proptest::collection::vec((0_u16..6, 0_u32..6, 0_usize..16), 0..400),
        ) {
            let shape = |sender: u16, number: u32| {
                let total = 240 + 4 * (sender * 31 + u16::from(number.to_le_bytes()[0]) * 17);
                (total, 1 + (number + u32::from(sender)).to_le_bytes()[0] % 12)
            };
            let (mut reassembly, mut came) = (Reassembly::default(), HashSet::new());
            for (sender, number, part) in order {
                let (total, count) = shape(sender, number);
                let all = parts(number, total, count);
                let (encap, body) = &all[part % all.len()];
                came.insert((sender, number, encap.part));
                if let Joined::Whole(bytes) = reassembly.join(from(sender), encap, body) {
                    prop_assert_eq!(bytes, packet(number, total));
                    let whole = (0..count).all(|part| came.remove(&(sender, number, part)));
                    prop_assert!(whole, "each part came since the last time");
                }
                prop_assert!(reassembly.under_way() <= Reassembly::MOST);
            }
        }

        /// Arbitrary datagrams use bounded memory, and never yield a packet of another length than they contain.
        #[test]
        fn random_datagrams_are_reassembled_with_their_announced_length(
            datagrams in proptest::collection::vec(
                (0_u16..3, 1_u8..4, 0_u8..4, 0_u32..4, 6_u16..60, 0_usize..40), 0..300),
        ) {
            let mut reassembly = Reassembly::default();
            for (sender, parts, part, number, words, more) in datagrams {
                let encap = Encap { part, parts, steer: 0, number, total: 4 * words };
                let mut datagram = encap.to_bytes().to_vec();
                let len = if more < 30 { encap.place().len() } else { encap.size() + more - 38 };
                datagram.resize(Encap::LEN + len, number.to_le_bytes()[0]);
                let Ok((encap, body)) = Encap::parse(&datagram) else { continue };
                if let Joined::Whole(bytes) = reassembly.join(from(sender), &encap, body) {
                    prop_assert_eq!(bytes.len(), usize::from(encap.total));
                }
            }
        }
    }
}
