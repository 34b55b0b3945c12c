//! The queue of lookups. A name server may answer slowly or not at all, so queries wait: each client has its own queue and only a few
//! lookups at a time, so that its names do not delay other clients.

use std::collections::{BTreeMap, VecDeque};

use rdmux_acm::{ClientId, QuestionId};

use super::Question;

/// The maximum number of waiting queries of all clients together.
pub(super) const WAITING: usize = 256;
/// The maximum number of concurrent lookups.
const LOOKUPS: usize = 8;
/// The maximum number of concurrent lookups for one client.
pub(super) const CLIENT_LOOKUPS: usize = 2;

/// The waiting queries, and the number of lookups in progress.
#[derive(Debug, Default)]
pub(super) struct Line {
    /// The queues of the clients; queries for which no client waits have their own queue.
    clients: BTreeMap<Option<ClientId>, Client>,
    waiting: usize,
    lookups: usize,
    /// A counter of turns.
    turn: u64,
}

/// The queue of a client.
#[derive(Debug, Default)]
struct Client {
    waiting: VecDeque<Question>,
    lookups: usize,
    /// When it had its last turn, or was added.
    turn: u64,
}

impl Line {
    /// Queues a query. If the queue is full and all its queries are wanted, returns one to be given up, of the client that has most.
    pub(super) fn push(
        &mut self,
        question: Question,
        is_wanted: impl FnMut(QuestionId) -> bool,
    ) -> Option<Question> {
        let mut refused = None;
        if self.waiting >= WAITING {
            self.tidy(is_wanted);
        }
        if self.waiting >= WAITING {
            let own = self.clients.get(&question.client).map_or(0, |client| client.waiting.len());
            let longest = self.clients.values_mut().max_by_key(|client| client.waiting.len());
            let Some(longest) = longest.filter(|longest| longest.waiting.len() > own + 1) else {
                return Some(question);
            };
            refused = longest.waiting.pop_back();
            self.waiting -= 1;
        }
        self.turn += 1;
        let new = Client { turn: self.turn, ..Client::default() };
        let client = self.clients.entry(question.client).or_insert(new);
        client.waiting.push_back(question);
        self.waiting += 1;
        refused
    }

    /// Removes queries that are not wanted any more.
    fn tidy(&mut self, mut is_wanted: impl FnMut(QuestionId) -> bool) {
        self.waiting = 0;
        for client in self.clients.values_mut() {
            client.waiting.retain(|question| is_wanted(question.question));
            self.waiting += client.waiting.len();
        }
        self.clients.retain(|_, client| !client.is_idle());
    }

    /// Returns the next query to look up, if another lookup may start: of the client that has fewest lookups, and of several the one that
    /// has waited longest for its turn. Queries that are not wanted any more are removed.
    pub(super) fn next(
        &mut self,
        mut is_wanted: impl FnMut(QuestionId) -> bool,
    ) -> Option<Question> {
        while self.lookups < LOOKUPS {
            let is_ready = |(_, client): &(_, &mut Client)| {
                client.lookups < CLIENT_LOOKUPS && !client.waiting.is_empty()
            };
            let ready = self.clients.iter_mut().filter(is_ready);
            let (&id, client) = ready.min_by_key(|(_, client)| (client.lookups, client.turn))?;
            let question = client.waiting.pop_front()?;
            self.waiting -= 1;
            if is_wanted(question.question) {
                self.turn += 1;
                (client.lookups, client.turn) = (client.lookups + 1, self.turn);
                self.lookups += 1;
                return Some(question);
            }
            self.clients.retain(|other, client| *other != id || !client.is_idle());
        }
        None
    }

    /// Records that a lookup for this client has ended.
    pub(super) fn done(&mut self, id: Option<ClientId>) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        client.lookups = client.lookups.saturating_sub(1);
        self.lookups = self.lookups.saturating_sub(1);
        if client.is_idle() {
            self.clients.remove(&id);
        }
    }
}

impl Client {
    /// Returns whether the client has no queries and no lookups.
    fn is_idle(&self) -> bool {
        self.lookups == 0 && self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use rdmux_acm::EndpointId;

    use super::*;

    fn question(client: u32, number: u64) -> Question {
        let (client, name) = (Some(ClientId(client)), String::new());
        Question { endpoint: EndpointId(1), question: QuestionId(number), client, name }
    }

    fn push(line: &mut Line, client: u32, number: u64) -> Option<u64> {
        line.push(question(client, number), |_| true).map(|refused| refused.question.0)
    }

    fn next(line: &mut Line) -> Option<(u32, u64)> {
        let next = line.next(|_| true)?;
        Some((next.client.unwrap().0, next.question.0))
    }

    #[test]
    fn clients_have_turns_and_few_lookups_at_a_time() {
        let mut line = Line::default();
        for number in 0..10 {
            assert_eq!(push(&mut line, 1, number), None);
        }
        for (client, number) in [(2, 10), (3, 11), (2, 12)] {
            assert_eq!(push(&mut line, client, number), None);
        }
        let all: Vec<_> = std::iter::from_fn(|| next(&mut line)).collect();
        assert_eq!(all, [(1, 0), (2, 10), (3, 11), (1, 1), (2, 12)]);
        // A client that queues another query does not overtake waiting clients.
        line.done(Some(ClientId(3)));
        line.done(Some(ClientId(1)));
        push(&mut line, 3, 13);
        assert_eq!([(); 3].map(|()| next(&mut line)), [Some((3, 13)), Some((1, 2)), None]);
        for client in 4..20 {
            push(&mut line, client, 0);
        }
        let more = std::iter::from_fn(|| next(&mut line)).count();
        assert_eq!(more, LOOKUPS - 5);
    }

    #[test]
    fn when_too_many_wait_who_has_most_gives_way() {
        let mut line = Line::default();
        let most = u64::try_from(WAITING).unwrap();
        assert!((0..most).all(|number| push(&mut line, 1, number).is_none()));
        assert_eq!(push(&mut line, 1, 1000), Some(1000));
        for number in 0..most / 2 {
            assert_eq!(push(&mut line, 2, 2000 + number), Some(most - 1 - number));
        }
        assert_eq!(push(&mut line, 2, 3000), Some(3000));
        assert_eq!(push(&mut line, 3, 4000), Some(2000 + most / 2 - 1));
    }

    #[test]
    fn what_is_not_wanted_is_forgotten_and_makes_room() {
        let mut line = Line::default();
        let most = u64::try_from(WAITING).unwrap();
        assert!((0..most).all(|number| push(&mut line, 1, number).is_none()));
        let refused = line.push(question(1, 1000), |question| question.0 != 7);
        assert!(refused.is_none() && line.waiting == WAITING);
        let next = line.next(|question| question.0 == 1000).unwrap();
        assert_eq!((next.question.0, line.waiting), (1000, 0));
        line.done(Some(ClientId(1)));
        assert!(line.clients.is_empty() && line.lookups == 0);
        push(&mut line, 1, 1);
        assert!(line.next(|_| false).is_none() && line.clients.is_empty());
    }
}
