//! The machine, with a memo of answers that can be repeated without it.
//!
//! Programs request the same few paths repeatedly, by messages that differ only in their transaction IDs. The machine would repeat an
//! answer from its cache until its clock advances by a tick, or another of its inputs changes something. Until then, answers are kept here
//! by the bytes of their requests.

use std::ops::Range;

use rdmux_acm::{ClientId, EndpointId, Io, Machine, Request, RequestId, Time, User};
use rdmux_wire::acm::client::{ENTRY_LEN, Header};

/// The number of rows, one for each hash value.
const KEPT: usize = 256;
/// The maximum length of a stored request and of a stored answer: with the entries of a source and a destination.
const LONGEST: usize = Header::LEN + 2 * ENTRY_LEN;

/// The machine with its memo: see the module.
pub(crate) struct Resolver {
    machine: Machine,
    memo: Memo,
    tick: u32,
}

impl Resolver {
    pub(crate) fn new(machine: Machine) -> Self {
        Self { machine, memo: Memo::new(), tick: 0 }
    }

    /// Returns the machine, for reading.
    pub(crate) fn get(&self) -> &Machine {
        &self.machine
    }

    /// Returns the machine, for changes. Invalidates all stored answers.
    pub(crate) fn change(&mut self) -> &mut Machine {
        self.memo.clear();
        &mut self.machine
    }

    /// Sets the user of a new client, which invalidates nothing.
    pub(crate) fn set_user(&mut self, client: ClientId, user: User) {
        self.machine.set_user(client, user);
    }

    /// Passes a client's request to the machine, which invalidates nothing.
    pub(crate) fn request(
        &mut self,
        now: Time,
        client: ClientId,
        id: RequestId,
        request: &Request,
        io: &mut impl Io,
    ) {
        self.machine.request(now, client, id, request, io);
    }

    /// Returns the stored answer to a message, valid except for its transaction ID.
    pub(crate) fn known(&mut self, now: Time, message: &[u8]) -> Option<&[u8]> {
        let tick = self.machine.tick(now);
        if std::mem::replace(&mut self.tick, tick) != tick {
            self.memo.clear();
        }
        let (endpoint, answer) = self.memo.find(message)?;
        self.machine.repeat(endpoint);
        Some(answer)
    }

    /// Stores an answer from the cache to the last message that was not found.
    pub(crate) fn keep(&mut self, endpoint: EndpointId, answer: &[u8]) {
        self.memo.keep(endpoint, answer);
    }
}

/// Stored answers, by the bytes of their requests.
struct Memo {
    rows: Box<[Row]>,
    /// The current generation. Rows of other generations are invalid.
    generation: u64,
    /// The request that was not found, and its row.
    asked: Message,
    row: usize,
}

/// A stored answer.
#[derive(Clone, Copy)]
struct Row {
    generation: u64,
    endpoint: EndpointId,
    question: Message,
    answer: Message,
}

impl Memo {
    fn new() -> Self {
        let (question, answer) = (Message::NONE, Message::NONE);
        let none = Row { generation: 0, endpoint: EndpointId(0), question, answer };
        Self { rows: vec![none; KEPT].into(), generation: 1, asked: Message::NONE, row: 0 }
    }

    fn clear(&mut self) {
        self.generation += 1;
        self.asked = Message::NONE;
    }

    fn find(&mut self, message: &[u8]) -> Option<(EndpointId, &[u8])> {
        let at = row_of(message);
        let row = &self.rows[at];
        if row.generation == self.generation && row.question.is(message) {
            return Some((row.endpoint, row.answer.bytes()));
        }
        (self.asked, self.row) = (Message::of(message), at);
        None
    }

    fn keep(&mut self, endpoint: EndpointId, answer: &[u8]) {
        let (question, answer) = (self.asked, Message::of(answer));
        if question.len > 0 && answer.len > 0 {
            self.rows[self.row] = Row { generation: self.generation, endpoint, question, answer };
        }
    }
}

/// A message; empty if it cannot be stored.
#[derive(Clone, Copy)]
struct Message {
    len: usize,
    bytes: [u8; LONGEST],
}

impl Message {
    const NONE: Self = Self { len: 0, bytes: [0; LONGEST] };

    /// Copies a message. Empty if it is too long, or too short to have a transaction ID.
    fn of(message: &[u8]) -> Self {
        let mut this = Self::NONE;
        if let Some(bytes) = this.bytes.get_mut(..message.len())
            && message.len() >= Header::LEN
        {
            bytes.copy_from_slice(message);
            this.len = message.len();
        }
        this
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Returns whether the message is the same, except for the transaction ID.
    fn is(&self, message: &[u8]) -> bool {
        let Range { start, end } = Header::TID;
        self.len == message.len()
            && self.bytes[..start] == message[..start]
            && self.bytes[end..self.len] == message[end..]
    }
}

/// Returns the row of a message, which is the same for all transaction IDs. Programs that choose messages of one row only lose the benefit
/// of the memo.
fn row_of(message: &[u8]) -> usize {
    let body = message.get(Header::TID.end..).unwrap_or_default();
    let fold = |hash: u64, word: &[u8; 8]| {
        (hash ^ u64::from_ne_bytes(*word)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
    };
    let hash = body.as_chunks().0.iter().fold(0, fold);
    usize::from(hash.to_be_bytes()[0]) % KEPT
}

#[cfg(test)]
mod tests {
    use rdmux_acm::Options;
    use rdmux_wire::acm::Address;
    use rdmux_wire::acm::client::{Query, Reply, Request};
    use rdmux_wire::sa::PathRecord;

    use super::*;

    /// A quarter of a second, within which nothing expires.
    const TICK: u64 = 250_000_000;
    const ENDPOINT: EndpointId = EndpointId(7);

    fn question(tid: u64, dest: &str) -> Vec<u8> {
        let [source, dest] = ["here", dest].map(|name| Address::name(name).unwrap());
        let query = Query::Resolve { source: Some(source), dest, cached_only: false };
        Request { tid, query }.to_bytes().to_vec()
    }

    fn answer(tid: u64) -> Vec<u8> {
        Reply::one_path(tid, &PathRecord::default()).to_vec()
    }

    fn resolver() -> Resolver {
        Resolver::new(Machine::new(Options::default(), [1; 16]))
    }

    /// Looks up a message that is not stored, and stores its answer.
    fn learn(resolver: &mut Resolver, now: Time, message: &[u8], answer: &[u8]) {
        assert_eq!(resolver.known(now, message), None);
        resolver.keep(ENDPOINT, answer);
    }

    #[test]
    fn answer_is_given_again_to_the_same_question_with_any_transaction_id() {
        let (mut resolver, now) = (resolver(), Time(1));
        learn(&mut resolver, now, &question(1, "there"), &answer(1));
        for tid in [1, 2, u64::MAX] {
            assert_eq!(resolver.known(now, &question(tid, "there")), Some(&*answer(1)));
        }
        assert_eq!(resolver.known(now, &question(1, "elsewhere")), None);
        let mut other = question(1, "there");
        // The status, which is ignored in requests; still it is another message.
        other[2] ^= 1;
        assert_eq!(resolver.known(now, &other), None);
        let counters = resolver.get().counters(None);
        assert_eq!((counters.resolves, counters.address_hits, counters.route_hits), (3, 3, 3));
    }

    #[test]
    fn kept_answer_expires_with_its_tick_or_any_change() {
        let mut resolver = resolver();
        let message = question(1, "there");
        learn(&mut resolver, Time(5), &message, &answer(1));
        assert!(resolver.known(Time(4 + TICK), &message).is_some());
        learn(&mut resolver, Time(5 + TICK), &message, &answer(2));
        assert_eq!(resolver.known(Time(5 + TICK), &message), Some(&*answer(2)));
        resolver.change().remove_client(ClientId(1));
        assert_eq!(resolver.known(Time(5 + TICK), &message), None);
        // An answer to a request from before the change is not stored after it.
        resolver.change();
        resolver.keep(ENDPOINT, &answer(3));
        assert_eq!(resolver.known(Time(5 + TICK), &message), None);
    }

    #[test]
    fn messages_that_are_too_long_or_no_messages_are_not_kept() {
        let (mut resolver, now) = (resolver(), Time(1));
        let long = vec![1; LONGEST + 1];
        for (message, answer) in
            [(&long, &answer(1)), (&question(1, "there"), &long), (&vec![1; 15], &answer(1))]
        {
            for _ in 0..2 {
                learn(&mut resolver, now, message, answer);
            }
        }
        let most = vec![1; LONGEST];
        learn(&mut resolver, now, &most, &most);
        assert_eq!(resolver.known(now, &most), Some(&*most));
    }

    #[test]
    fn queries_of_similar_names_spread_over_hash_rows() {
        let rows = |name: fn(u32) -> String| {
            let rows = (0..256).map(|n| row_of(&question(9, &name(n))));
            rows.collect::<std::collections::BTreeSet<_>>().len()
        };
        // With 256 random hashes, 162 rows are expected to be used.
        for name in [|n| format!("node{n}"), |n| format!("{n}"), |n| format!("rack{n}-01")] {
            assert!(rows(name) > 128, "{}", rows(name));
        }
    }
}
