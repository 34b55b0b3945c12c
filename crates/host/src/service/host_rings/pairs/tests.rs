//! Two services that offer each other rings, while either may hang and processes start and end at any
//! time.

use std::collections::{BTreeMap, VecDeque};

use super::*;

const MS: Duration = Duration::from_millis(1);

fn host(n: usize) -> SocketAddr {
    ([127, 77, 0, u8::try_from(n + 1).unwrap()], 7).into()
}

fn ends(local: u16, there: usize, slot: u16) -> Ends {
    Ends { local, host: host(there), slot }
}

#[test]
fn a_pair_is_up_when_the_offerer_commits_and_not_before() {
    let (mut a, mut b) = (Pairs::default(), Pairs::default());
    let (to_b, to_a) = (ends(3, 1, 5), ends(5, 0, 3));
    assert_eq!(a.ask(Time(0), to_b), Asked::New);
    let (ours, number) = a.offer(Time(0), to_b, ()).unwrap();
    assert_eq!(a.ask(Time(0), to_b), Asked::Wait(ours));
    assert_eq!(b.offered(to_a, 77, false), Offered::Take { instead: None });
    let (theirs, known_as) = b.take(Time(0), to_a, (77, number), ()).unwrap();
    assert_eq!(b.ask(Time(0), to_a), Asked::Wait(theirs));
    let pair = a.taken(ours, 5, known_as).unwrap();
    assert_eq!((pair.waiting, pair.number, pair.known_as), (2, number, known_as));
    assert_eq!(a.ask(Time(0), to_b), Asked::Up(ours));
    assert!(!b.get(theirs).unwrap().is_up());
    assert_eq!(b.committed(theirs).unwrap().waiting, 1);
    assert_eq!(b.ask(Time(0), to_a), Asked::Up(theirs));
    assert!(b.committed(theirs).is_none(), "once");
    // Another slot of the same process.
    let other = ends(3, 1, 6);
    assert_eq!(a.ask(Time(0), other), Asked::New);
    let (again, _) = a.offer(Time(0), other, ()).unwrap();
    assert_eq!(b.offered(to_a, 77, false), Offered::Known);
    assert_eq!(a.known(again, 5).unwrap().1, Some(ours));
    assert_eq!(a.ask(Time(0), other), Asked::Up(ours));
    assert_eq!(a.len(), 1);
    // The other process ends.
    assert!(a.gone(ours).unwrap().1);
    assert_eq!([to_b, other].map(|ends| a.ask(Time(0), ends)), [Asked::New; 2]);
}

#[test]
fn refused_ring_pair_stays_refused_until_a_process_ends() {
    let mut a = Pairs::default();
    let to_b = ends(3, 1, 5);
    let (id, _) = a.offer(Time(0), to_b, ()).unwrap();
    assert_eq!(a.refused(id).unwrap().waiting, 1);
    assert_eq!(a.ask(Time(0), to_b), Asked::No);
    assert_eq!(a.offered(to_b, 1, false), Offered::No);
    assert_eq!(a.ask(Time(0), ends(3, 1, 6)), Asked::New, "that is another process");
    // A service that does not answer: what it has decided is unknown.
    let (id, _) = a.offer(Time(0), ends(3, 1, 6), ()).unwrap();
    assert_eq!(a.expired(Time::ZERO.after(999 * MS)), None);
    let late = Time::ZERO.after(1000 * MS);
    assert_eq!((a.poll_timeout(), a.expired(late)), (Some(late), Some((id, true))));
    assert!(!a.gone(id).unwrap().1);
    for slot in [6, 7] {
        assert_eq!(a.ask(late, ends(3, 1, slot)), Asked::No);
        assert_eq!(a.offered(ends(3, 1, slot), 1, false), Offered::No);
    }
    // That service gets no requests for a while. Other hosts do.
    assert_eq!(a.ask(late, ends(4, 1, 7)), Asked::No);
    assert_eq!(a.ask(late, ends(4, 2, 7)), Asked::New);
    let later = late.after(5000 * MS);
    assert_eq!(a.expired(later), None);
    assert_eq!(a.ask(later, ends(4, 1, 7)), Asked::No, "it was told so");
    assert_eq!(a.ask(later, ends(5, 1, 7)), Asked::New);
    // A new process in the same slot is not affected.
    assert!(a.local_gone(3).is_empty());
    assert_eq!(a.ask(later, to_b), Asked::New);
}

#[test]
fn crossing_ring_offers_are_won_by_the_lower_address() {
    let (mut a, mut b) = (Pairs::default(), Pairs::default());
    let (to_b, to_a) = (ends(3, 1, 5), ends(5, 0, 3));
    let (ours, number) = a.offer(Time(0), to_b, ()).unwrap();
    let (theirs, _) = b.offer(Time(0), to_a, ()).unwrap();
    assert_eq!(a.offered(to_b, 8, true), Offered::Hold(ours));
    assert_eq!(b.offered(to_a, 7, false), Offered::Take { instead: Some(theirs) });
    assert_eq!(b.withdraw(theirs).unwrap().waiting, 1);
    let (taken, known_as) = b.take(Time(0), to_a, (7, number), ()).unwrap();
    assert!(a.taken(ours, 5, known_as).is_some() && b.committed(taken).is_some());
    assert_eq!(a.offered(to_b, 8, true), Offered::No, "a process that it does not know");
}

#[test]
fn ring_pair_numbers_are_above_slots_and_reused_last() {
    let mut a = Pairs::default();
    let mut numbers = Vec::new();
    for slot in 1..=3 {
        let (id, number) = a.offer(Time(0), ends(1, 1, slot), ()).unwrap();
        numbers.push(number);
        a.withdraw(id);
    }
    assert_eq!(numbers, [2048, 2049, 2050]);
    a.next_number = u16::MAX;
    let (_, last) = a.offer(Time(0), ends(1, 1, 4), ()).unwrap();
    let (_, next) = a.offer(Time(0), ends(1, 1, 5), ()).unwrap();
    assert_eq!((last, next), (u16::MAX, 2048));
    a.next_number = u16::MAX;
    assert_eq!(a.offer(Time(0), ends(1, 1, 6), ()).unwrap().1, 2049);
}

#[test]
fn pairs_and_answers_of_a_process_are_bounded() {
    let mut a = Pairs::default();
    for slot in 0..u16::try_from(MAX_PAIRS).unwrap() {
        assert_eq!(a.ask(Time(0), ends(1, 1, slot)), Asked::New);
        a.offer(Time(0), ends(1, 1, slot), ()).unwrap();
    }
    assert_eq!(a.ask(Time(0), ends(1, 2, 2000)), Asked::No);
    assert_eq!(a.offered(ends(1, 3, 2000), 1, false), Offered::No);
    assert_eq!(a.ask(Time(0), ends(2, 2, 2000)), Asked::New);
    assert_eq!(a.local_gone(1).len(), MAX_PAIRS);
    for slot in 0..u16::try_from(MAX_ANSWERS).unwrap() {
        a.refuse(ends(1, 1, slot));
    }
    assert_eq!(a.ask(Time(0), ends(1, 2, 1)), Asked::No);
}

#[test]
fn refused_ring_answers_kept_per_process_are_bounded() {
    let hosts = || (0..100_000_u32).map(|n| SocketAddr::from((std::net::Ipv4Addr::from(n), 7)));
    let to = |local, host| Ends { local, host, slot: 5 };
    let mut a = Pairs::default();
    for slot in 0..u16::try_from(MAX_ANSWERS).unwrap() {
        a.refuse(ends(1, 1, slot));
    }
    for host in hosts() {
        assert_eq!(a.ask(Time(0), to(1, host)), Asked::No);
        assert_eq!(a.offered(to(1, host), 1, false), Offered::No);
    }
    // Services that do not answer.
    for host in hosts() {
        if a.ask(Time(0), to(2, host)) == Asked::New {
            let (id, _) = a.offer(Time(0), to(2, host), ()).unwrap();
            a.give_up(id);
        }
        assert_eq!(a.ask(Time(0), to(2, host)), Asked::No);
    }
    assert!(a.given_up.len() <= MAX_ANSWERS, "{}", a.given_up.len());
    for local in [1, 2] {
        assert_eq!(a.ask(Time(0), to(local, host(9))), Asked::No);
        assert_eq!(a.offered(to(local, host(9)), 1, false), Offered::No);
        a.local_gone(local);
        assert_eq!(a.ask(Time(0), to(local, host(9))), Asked::New);
    }
    assert!(a.given_up.is_empty());
}

/// A message on a connection.
#[derive(Clone, Copy, Debug)]
enum Message {
    Offer { process: u64, slot: u16, peer: u16, number: u16 },
    Taken { peer: u16, number: u16 },
    Known { peer: u16 },
    No,
    Commit,
}

/// A connection; end 0 is the side that made it.
#[derive(Debug, Default)]
struct Wire {
    maker: usize,
    queues: [VecDeque<Message>; 2],
    closed: [bool; 2],
    /// Whether an end accepts nothing more.
    deaf: [bool; 2],
}

/// The answer that a process received to its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heard {
    Nothing,
    Rings,
    None,
}

#[derive(Default)]
struct Service {
    pairs: Pairs<usize>,
    held: Vec<(PairId, usize, Message)>,
    stopped: bool,
    /// The processes by first slot: number, count of waiting requests, and answers for the other host's
    /// processes.
    processes: BTreeMap<u16, Process>,
}

#[derive(Debug)]
struct Process {
    number: u64,
    heard: BTreeMap<u16, Heard>,
}

/// Two services, on connections that outlive them as kernel sockets do.
struct World {
    services: [Service; 2],
    wires: Vec<Wire>,
    now: Time,
    next_process: u64,
    /// The number of rings that a process lost because the other end is gone.
    lost: usize,
}

impl World {
    fn new() -> Self {
        let mut this = Self {
            services: Default::default(),
            wires: Vec::new(),
            now: Time(0),
            next_process: 1,
            lost: 0,
        };
        for (service, slot) in [(0, 1), (0, 2), (1, 1), (1, 2)] {
            this.start(service, slot);
        }
        this
    }

    fn start(&mut self, s: usize, slot: u16) {
        let process = Process { number: self.next_process, heard: BTreeMap::new() };
        self.next_process += 1;
        self.services[s].processes.insert(slot, process);
    }

    /// Returns which end of a wire a service has.
    fn end(&self, s: usize, wire: usize) -> usize {
        usize::from(self.wires[wire].maker != s)
    }

    /// Sends a message. Returns whether the other end still accepts any.
    fn send(&mut self, s: usize, wire: usize, message: Message) -> bool {
        let other = 1 - self.end(s, wire);
        let there = &mut self.wires[wire];
        let open = !there.closed[other] && !there.deaf[other];
        if open {
            there.queues[other].push_back(message);
        }
        open
    }

    fn close(&mut self, s: usize, wire: usize) {
        let end = self.end(s, wire);
        self.wires[wire].closed[end] = true;
    }

    fn ask(&mut self, s: usize, local: u16, slot: u16) {
        let ends = ends(local, 1 - s, slot);
        let service = &mut self.services[s];
        match service.pairs.ask(self.now, ends) {
            Asked::Up(_) => self.hear(s, local, slot, Heard::Rings),
            Asked::No => self.hear(s, local, slot, Heard::None),
            Asked::Wait(_) => self.hear(s, local, slot, Heard::Nothing),
            Asked::New => {
                let wire = self.wires.len();
                self.wires.push(Wire { maker: s, ..Wire::default() });
                let (_, number) = service.pairs.offer(self.now, ends, wire).unwrap();
                let process = service.processes[&local].number;
                self.send(s, wire, Message::Offer { process, slot: local, peer: slot, number });
                self.hear(s, local, slot, Heard::Nothing);
            }
        }
    }

    fn hear(&mut self, s: usize, local: u16, slot: u16, heard: Heard) {
        let process = self.services[s].processes.get_mut(&local).unwrap();
        let old = process.heard.insert(slot, heard);
        assert!(
            matches!(old, None | Some(Heard::Nothing)) || old == Some(heard),
            "{old:?} and then {heard:?}"
        );
    }

    /// Answers the requests that wait for a pair.
    fn answer(&mut self, s: usize, pair: &Pair<usize>, heard: Heard) {
        let Ends { local, slot, .. } = pair.ends;
        if self.services[s].processes.get(&local).is_some_and(|p| p.heard.contains_key(&slot)) {
            self.hear(s, local, slot, heard);
        }
    }

    fn up(&mut self, s: usize, id: PairId) {
        let pair = self.services[s].pairs.get(id).unwrap();
        let (local, slot) = (pair.ends.local, pair.ends.slot);
        self.hear(s, local, slot, Heard::Rings);
        self.release(s, id);
    }

    fn gone(&mut self, s: usize, id: PairId) {
        let Some((pair, was_up)) = self.services[s].pairs.gone(id) else { return };
        if was_up {
            // The process is notified, and requests anew when it connects again.
            let process = self.services[s].processes.get_mut(&pair.ends.local).unwrap();
            process.heard.remove(&pair.ends.slot);
            self.lost += 1;
        } else {
            self.answer(s, &pair, Heard::None);
        }
        self.close(s, pair.link);
        self.release(s, id);
    }

    fn release(&mut self, s: usize, id: PairId) {
        let held: Vec<_> = self.services[s].held.extract_if(.., |(pair, ..)| *pair == id).collect();
        held.into_iter().for_each(|(_, wire, message)| self.take(s, wire, message));
    }

    fn take(&mut self, s: usize, wire: usize, message: Message) {
        let Message::Offer { process, slot, peer, number } = message else { panic!() };
        let ends = ends(peer, 1 - s, slot);
        let answer = match self.services[s].pairs.offered(ends, process, s == 0) {
            _ if !self.services[s].processes.contains_key(&peer) => Message::No,
            Offered::Known => Message::Known { peer },
            Offered::No => Message::No,
            Offered::Hold(pair) => return self.services[s].held.push((pair, wire, message)),
            Offered::Take { instead } => {
                if let Some(pair) = instead.and_then(|id| self.services[s].pairs.withdraw(id)) {
                    self.close(s, pair.link);
                }
                let who = (process, number);
                let taken = self.services[s].pairs.take(self.now, ends, who, wire);
                Message::Taken { peer, number: taken.unwrap().1 }
            }
        };
        self.send(s, wire, answer);
    }

    fn pair_of(&self, s: usize, wire: usize) -> Option<PairId> {
        self.services[s].pairs.find(|pair| pair.link == wire)
    }

    /// Lets a service read a message, or see the end of a connection. Returns whether there was any.
    fn read(&mut self, s: usize, wire: usize) -> bool {
        let end = self.end(s, wire);
        let there = &mut self.wires[wire];
        if there.closed[end] {
            return false;
        }
        let Some(message) = there.queues[end].pop_front() else {
            if there.closed[1 - end] {
                self.services[s].held.retain(|(_, held, _)| *held != wire);
                let pair = self.pair_of(s, wire);
                self.close(s, wire);
                if let Some(id) = pair {
                    self.gone(s, id);
                }
                return true;
            }
            return false;
        };
        let pair = self.pair_of(s, wire);
        match (message, pair) {
            (Message::Offer { .. }, _) => self.take(s, wire, message),
            (Message::Taken { peer, number }, Some(id)) => {
                if !self.send(s, wire, Message::Commit) {
                    self.gone(s, id);
                } else if self.services[s].pairs.taken(id, peer, number).is_some() {
                    self.up(s, id);
                }
            }
            (Message::Known { peer }, Some(id)) => {
                let (pair, other) = self.services[s].pairs.known(id, peer).unwrap();
                let is_up = |id: &PairId| self.services[s].pairs.get(*id).unwrap().is_up();
                match other.as_ref().map(is_up) {
                    None => self.answer(s, &pair, Heard::None),
                    Some(true) => self.answer(s, &pair, Heard::Rings),
                    Some(false) => {}
                }
                self.close(s, wire);
                self.release(s, id);
            }
            (Message::No, Some(id)) => {
                let pair = self.services[s].pairs.refused(id).unwrap();
                self.answer(s, &pair, Heard::None);
                self.close(s, wire);
                self.release(s, id);
            }
            (Message::Commit, Some(id)) if self.services[s].pairs.committed(id).is_some() => {
                self.up(s, id);
            }
            _ => {}
        }
        true
    }

    fn expire(&mut self, s: usize) {
        while let Some((id, ours)) = self.services[s].pairs.expired(self.now) {
            let wire = self.services[s].pairs.get(id).unwrap().link;
            if !ours {
                let end = self.end(s, wire);
                self.wires[wire].deaf[end] = true;
                while !self.wires[wire].queues[end].is_empty() && self.pair_of(s, wire).is_some() {
                    self.read(s, wire);
                }
            }
            if self.services[s].pairs.get(id).is_some_and(|pair| !pair.is_up()) {
                self.gone(s, id);
            }
        }
    }

    fn end_process(&mut self, s: usize, slot: u16) {
        self.services[s].processes.remove(&slot);
        for (id, pair) in self.services[s].pairs.local_gone(slot) {
            self.close(s, pair.link);
            self.release(s, id);
        }
        self.start(s, slot);
        // The state of the other processes for the one that ended no longer matters.
        for process in self.services[1 - s].processes.values_mut() {
            process.heard.remove(&slot);
        }
    }

    fn waits(&self, s: usize, local: u16, slot: u16) -> bool {
        self.services[s].processes[&local].heard.get(&slot) == Some(&Heard::Nothing)
    }

    fn step(&mut self, choice: u64) {
        let (s, pick) = ((choice & 1) as usize, choice >> 8);
        let (local, slot) = ((pick & 1) as u16 + 1, (pick >> 1 & 1) as u16 + 1);
        let runs = !self.services[s].stopped;
        match choice >> 1 & 15 {
            0..=2 if runs && !self.waits(s, local, slot) => self.ask(s, local, slot),
            3 => self.services[s].stopped = pick.is_multiple_of(3),
            4 => self.now = self.now.after(MS * u32::try_from(pick % 700).unwrap()),
            5 if runs => self.expire(s),
            6 if runs && pick.is_multiple_of(5) => self.end_process(s, slot),
            _ if runs && !self.wires.is_empty() => {
                let wire = usize::try_from(pick).unwrap() % self.wires.len();
                self.read(s, wire);
            }
            _ => {}
        }
    }

    /// Runs until nothing is left to do.
    fn settle(&mut self) {
        for _ in 0..4 {
            for s in [0, 1] {
                self.services[s].stopped = false;
            }
            loop {
                let mut any = false;
                for wire in 0..self.wires.len() {
                    any |= self.read(0, wire) | self.read(1, wire);
                }
                if !any {
                    break;
                }
            }
            self.now = self.now.after(1000 * MS);
            (0..2).for_each(|s| self.expire(s));
        }
    }
}

#[test]
fn both_processes_agree_on_rings_under_random_message_order() {
    let (mut rings, mut none) = (0, 0);
    for seed in 0..3000_u64 {
        let mut world = World::new();
        let mut state = seed;
        for _ in 0..200 {
            // SplitMix64.
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            world.step(z ^ z >> 31);
        }
        world.settle();
        let [a, b] = &world.services;
        for (local, here) in &a.processes {
            for (slot, there) in &b.processes {
                let heard = [here.heard.get(slot), there.heard.get(local)];
                assert!(!heard.contains(&Some(&Heard::Nothing)), "seed {seed}: somebody waits");
                let mixed =
                    heard.contains(&Some(&Heard::Rings)) && heard.contains(&Some(&Heard::None));
                assert!(!mixed, "seed {seed}: {heard:?} between {local} and {slot}");
                rings += usize::from(heard[0] == Some(&Heard::Rings));
                none += usize::from(heard[0] == Some(&Heard::None));
            }
        }
    }
    assert!(rings > 500 && none > 500, "{rings} {none}");
}
