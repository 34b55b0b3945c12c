//! A queue of lookups. A name server may answer slowly or not at all, so queries wait: each client has its own queue. Users take turns,
//! and so do the clients of each user. Both have only a few lookups at a time, so that their names do not delay others.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use rdmux_acm::{ClientId, QuestionId};

use super::{Asker, Question};
use crate::listen::Peer;

/// The limits of a queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// The maximum number of entries in the queues of all clients together.
    pub(super) waiting: usize,
    /// The maximum number of concurrent lookups.
    pub(super) lookups: usize,
    /// The maximum number of concurrent lookups for one user.
    pub(super) of_user: usize,
    /// The maximum number of concurrent lookups for one client.
    pub(super) of_client: usize,
}

/// The waiting queries, and the number of lookups in progress.
#[derive(Debug)]
pub(super) struct Line {
    limits: Limits,
    /// The waiting queries. Each is in the queue of every client that waits for its result, and is looked up when the first of these
    /// clients has its turn.
    questions: HashMap<QuestionId, Question>,
    /// The users with queries or lookups. Queries without a waiting client have a user of their own.
    users: BTreeMap<Option<Peer>, User>,
    /// A counter of turns.
    turn: u64,
    /// The turn when queries that are not needed any more were last removed.
    tidied: u64,
}

/// The queues of a user.
#[derive(Debug, Default)]
struct User {
    clients: BTreeMap<Option<ClientId>, Client>,
    /// The turn when the user was last served, or was added.
    turn: u64,
}

/// The queue of a client.
#[derive(Debug, Default)]
struct Client {
    waiting: VecDeque<QuestionId>,
    lookups: usize,
    /// The turn when the client was last served, or was added.
    turn: u64,
}

impl Line {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, questions: HashMap::new(), users: BTreeMap::new(), turn: 0, tidied: 0 }
    }

    /// Queues a query for these clients. If the queue has too many entries and all are needed, removes the newest entries of the user that
    /// has most, and of its client that has most. Returns the queries that have no entry left.
    pub(super) fn push(
        &mut self,
        question: Question,
        mut askers: BTreeSet<Asker>,
        is_wanted: impl FnMut(QuestionId) -> bool,
    ) -> Vec<Question> {
        let id = question.question;
        if askers.is_empty() {
            askers.insert(Asker::default());
        }
        self.questions.insert(id, question);
        self.enter(id, askers, is_wanted)
    }

    /// Queues a waiting query for one more client, as [`push`](Self::push) does.
    pub(super) fn join(
        &mut self,
        id: QuestionId,
        asker: Asker,
        is_wanted: impl FnMut(QuestionId) -> bool,
    ) -> Vec<Question> {
        if self.questions.contains_key(&id) && !self.has_place(id, asker) {
            self.enter(id, [asker].into(), is_wanted)
        } else {
            Vec::new()
        }
    }

    fn has_place(&self, id: QuestionId, asker: Asker) -> bool {
        let client = self.users.get(&asker.user).and_then(|user| user.clients.get(&asker.client));
        client.is_some_and(|client| client.waiting.contains(&id))
    }

    fn enter(
        &mut self,
        id: QuestionId,
        askers: BTreeSet<Asker>,
        is_wanted: impl FnMut(QuestionId) -> bool,
    ) -> Vec<Question> {
        // Looks at all entries, so not for each of many queries that are refused. Between two times, a part of the entries was replaced.
        let is_due = self.turn - self.tidied >= (self.limits.waiting / 16).max(1) as u64;
        if is_due && self.waiting() + askers.len() > self.limits.waiting {
            self.tidied = self.turn;
            self.tidy(is_wanted);
        }
        if !self.questions.contains_key(&id) {
            return Vec::new();
        }
        let mut lost = vec![id];
        for asker in askers {
            if self.waiting() >= self.limits.waiting {
                let Some(client) = self.longest(asker) else { continue };
                lost.extend(client.waiting.pop_back());
            }
            self.turn += 1;
            let turn = self.turn;
            let user = self.users.entry(asker.user).or_insert(User { turn, ..User::default() });
            let new = Client { turn, ..Client::default() };
            user.clients.entry(asker.client).or_insert(new).waiting.push_back(id);
        }
        self.forget_idle();
        lost.retain(|id| !self.clients().any(|client| client.waiting.contains(id)));
        lost.iter().filter_map(|id| self.questions.remove(id)).collect()
    }

    /// Returns the client that must give up an entry for this one; none if this one has most.
    fn longest(&mut self, asker: Asker) -> Option<&mut Client> {
        let own = self.users.get(&asker.user);
        let [of_user, of_client] = [
            own.map_or(0, User::waiting),
            own.and_then(|user| user.clients.get(&asker.client)).map_or(0, |c| c.waiting.len()),
        ];
        let (user, most) =
            self.users.iter().map(|(id, user)| (*id, user.waiting())).max_by_key(|(_, n)| *n)?;
        let is_other = most > of_user + 1;
        let user = if is_other { user } else { asker.user };
        let clients = self.users.get_mut(&user)?.clients.values_mut();
        let longest = clients.max_by_key(|client| client.waiting.len())?;
        (is_other || longest.waiting.len() > of_client + 1).then_some(longest)
    }

    /// Removes queries that are not needed any more.
    fn tidy(&mut self, mut is_wanted: impl FnMut(QuestionId) -> bool) {
        self.questions.retain(|id, _| is_wanted(*id));
        let questions = &self.questions;
        for client in self.users.values_mut().flat_map(|user| user.clients.values_mut()) {
            client.waiting.retain(|id| questions.contains_key(id));
        }
        self.forget_idle();
    }

    fn forget_idle(&mut self) {
        self.users.retain(|_, user| {
            user.clients.retain(|_, client| client.lookups > 0 || !client.waiting.is_empty());
            !user.clients.is_empty()
        });
    }

    /// Returns the next query to look up and its client, if another lookup may start: of the user that has fewest lookups, and of several
    /// the one that has waited longest for its turn; then in the same way of its clients. Queries that are not needed any more are removed.
    pub(super) fn next(
        &mut self,
        mut is_wanted: impl FnMut(QuestionId) -> bool,
    ) -> Option<(Asker, Question)> {
        let limits = self.limits;
        while self.clients().map(|client| client.lookups).sum::<usize>() < limits.lookups {
            let users = self.users.iter_mut().filter(|(_, user)| user.is_ready(&limits));
            let (&user_id, user) = users.min_by_key(|(_, user)| (user.lookups(), user.turn))?;
            let clients = user.clients.iter_mut().filter(|(_, client)| client.is_ready(&limits));
            let (&id, client) = clients.min_by_key(|(_, client)| (client.lookups, client.turn))?;
            let question = *client.waiting.front()?;
            let is_next = is_wanted(question);
            if is_next {
                self.turn += 1;
                (client.lookups, client.turn) = (client.lookups + 1, self.turn);
                user.turn = self.turn;
            }
            for client in self.users.values_mut().flat_map(|user| user.clients.values_mut()) {
                client.waiting.retain(|other| *other != question);
            }
            self.forget_idle();
            let question = self.questions.remove(&question);
            if let Some(question) = question.filter(|_| is_next) {
                return Some((Asker { user: user_id, client: id }, question));
            }
        }
        None
    }

    /// Records that a lookup for this client has ended.
    pub(super) fn done(&mut self, asker: Asker) {
        let user = self.users.get_mut(&asker.user);
        if let Some(client) = user.and_then(|user| user.clients.get_mut(&asker.client)) {
            client.lookups = client.lookups.saturating_sub(1);
        }
        self.forget_idle();
    }

    fn clients(&self) -> impl Iterator<Item = &Client> {
        self.users.values().flat_map(|user| user.clients.values())
    }

    /// Returns the number of entries.
    fn waiting(&self) -> usize {
        self.users.values().map(User::waiting).sum()
    }
}

impl User {
    fn waiting(&self) -> usize {
        self.clients.values().map(|client| client.waiting.len()).sum()
    }

    fn lookups(&self) -> usize {
        self.clients.values().map(|client| client.lookups).sum()
    }

    /// Returns whether one of its queries may be looked up now.
    fn is_ready(&self, limits: &Limits) -> bool {
        self.lookups() < limits.of_user && self.clients.values().any(|c| c.is_ready(limits))
    }
}

impl Client {
    fn is_ready(&self, limits: &Limits) -> bool {
        self.lookups < limits.of_client && !self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use rdmux_acm::EndpointId;

    use super::*;

    const LIMITS: Limits = Limits { waiting: 256, lookups: 32, of_user: 8, of_client: 2 };

    fn line() -> Line {
        Line::new(LIMITS)
    }

    /// Returns a client, whose user is a hundredth of its number.
    fn asker(client: u32) -> Asker {
        Asker { user: Some(Peer::User(client / 100)), client: Some(ClientId(client)) }
    }

    fn question(number: u64) -> Question {
        let (endpoint, question, name) = (EndpointId(1), QuestionId(number), String::new());
        Question { endpoint, question, name }
    }

    fn ids(refused: Vec<Question>) -> Vec<u64> {
        refused.into_iter().map(|refused| refused.question.0).collect()
    }

    /// Queues a query. Returns the queries that are refused for it.
    fn push(line: &mut Line, client: u32, number: u64) -> Vec<u64> {
        ids(line.push(question(number), [asker(client)].into(), |_| true))
    }

    fn join(line: &mut Line, client: u32, number: u64) -> Vec<u64> {
        ids(line.join(QuestionId(number), asker(client), |_| true))
    }

    fn next(line: &mut Line) -> Option<(u32, u64)> {
        let (asker, question) = line.next(|_| true)?;
        Some((asker.client.unwrap().0, question.question.0))
    }

    #[test]
    fn lookups_are_scheduled_round_robin_by_user_with_a_limit() {
        let mut line = line();
        for number in 0..10 {
            push(&mut line, 100, number);
        }
        for (client, number) in [(200, 10), (300, 11), (200, 12)] {
            push(&mut line, client, number);
        }
        let all: Vec<_> = std::iter::from_fn(|| next(&mut line)).collect();
        assert_eq!(all, [(100, 0), (200, 10), (300, 11), (100, 1), (200, 12)]);
        // A client that queues another query does not overtake waiting clients.
        line.done(asker(300));
        line.done(asker(100));
        push(&mut line, 300, 13);
        assert_eq!([(); 3].map(|()| next(&mut line)), [Some((300, 13)), Some((100, 2)), None]);
        for client in 4..100 {
            push(&mut line, client * 100, 100 + u64::from(client));
        }
        let more = std::iter::from_fn(|| next(&mut line)).count();
        assert_eq!(more, LIMITS.lookups - 5);
    }

    #[test]
    fn user_with_many_clients_has_no_more_turns_than_one_with_few() {
        let mut line = line();
        for client in 100..120 {
            push(&mut line, client, client.into());
        }
        push(&mut line, 200, 1000);
        push(&mut line, 200, 1001);
        let all: Vec<_> = std::iter::from_fn(|| next(&mut line)).map(|(_, n)| n).collect();
        assert_eq!(all[..4], [100, 1000, 101, 1001]);
        assert_eq!(all.len(), LIMITS.of_user + 2);
        // Clients of one user take turns, too.
        line.done(asker(100));
        push(&mut line, 107, 2000);
        assert_eq!([next(&mut line), next(&mut line)], [Some((108, 108)), None]);
    }

    #[test]
    fn question_that_several_wait_for_is_looked_up_when_the_first_has_its_turn() {
        let mut line = line();
        for number in 0..10 {
            push(&mut line, 100, number);
        }
        assert_eq!([next(&mut line), next(&mut line)], [Some((100, 0)), Some((100, 1))]);
        assert_eq!(next(&mut line), None);
        join(&mut line, 200, 7);
        join(&mut line, 200, 7);
        // A query that is being looked up does not wait any more.
        join(&mut line, 200, 0);
        assert_eq!([next(&mut line), next(&mut line)], [Some((200, 7)), None]);
        assert_eq!(line.waiting(), 7);
        let both = [asker(100), asker(300)].into();
        assert!(line.push(question(10), both, |_| true).is_empty());
        assert_eq!([next(&mut line), next(&mut line)], [Some((300, 10)), None]);
    }

    #[test]
    fn full_lookup_queue_refuses_the_user_with_most_entries() {
        let mut line = line();
        let most = u64::try_from(LIMITS.waiting).unwrap();
        assert!((0..most).all(|number| push(&mut line, 100, number).is_empty()));
        assert_eq!(push(&mut line, 100, 1000), [1000]);
        for number in 0..most / 2 {
            assert_eq!(push(&mut line, 200, 2000 + number), [most - 1 - number]);
        }
        assert_eq!(push(&mut line, 200, 3000), [3000]);
        assert_eq!(push(&mut line, 300, 4000), [2000 + most / 2 - 1]);
        // Within a user, the client that has most gives up entries.
        assert_eq!(push(&mut line, 201, 5000), [2000 + most / 2 - 2]);
    }

    #[test]
    fn question_for_which_there_is_no_room_in_one_line_waits_in_another() {
        let mut line = line();
        let most = u64::try_from(LIMITS.waiting).unwrap();
        (0..most).for_each(|number| assert!(push(&mut line, 100, number).is_empty()));
        assert!(join(&mut line, 200, most - 1).is_empty());
        assert!(join(&mut line, 100, most - 1).is_empty());
        assert_eq!((line.waiting(), line.questions.len()), (LIMITS.waiting, LIMITS.waiting));
        assert_eq!(next(&mut line), Some((100, 0)));
        assert_eq!(next(&mut line), Some((200, most - 1)));
        assert!(push(&mut line, 100, 1000).is_empty() && push(&mut line, 100, 1001).is_empty());
        assert_eq!(push(&mut line, 100, 1002), [1002]);
    }

    #[test]
    fn refused_lookups_do_not_look_at_all_entries_each_time() {
        let mut line = line();
        let most = u64::try_from(LIMITS.waiting).unwrap();
        assert!((0..most).all(|number| push(&mut line, 100, number).is_empty()));
        let mut looks = 0;
        for number in most..most * 2 {
            let asker = [asker(100)].into();
            let refused = line.push(question(number), asker, |_| {
                looks += 1;
                true
            });
            assert_eq!(ids(refused), [number]);
        }
        assert_eq!(looks, LIMITS.waiting + 1);
    }

    #[test]
    fn unwanted_lookups_are_dropped_from_the_queue() {
        let mut line = line();
        let most = u64::try_from(LIMITS.waiting).unwrap();
        assert!((0..most).all(|number| push(&mut line, 100, number).is_empty()));
        let refused = line.push(question(1000), [asker(100)].into(), |question| question.0 != 7);
        assert!(refused.is_empty() && line.waiting() == LIMITS.waiting);
        let (_, next) = line.next(|question| question.0 == 1000).unwrap();
        assert_eq!((next.question.0, line.waiting(), line.questions.len()), (1000, 0, 0));
        line.done(asker(100));
        assert!(line.users.is_empty());
        push(&mut line, 100, 1);
        assert!(line.next(|_| false).is_none() && line.users.is_empty());
        // So are queries that are not needed when they arrive.
        assert!((0..most).all(|number| push(&mut line, 100, number).is_empty()));
        assert!(line.push(question(most), BTreeSet::new(), |_| false).is_empty());
        assert!(line.questions.is_empty());
    }
}
