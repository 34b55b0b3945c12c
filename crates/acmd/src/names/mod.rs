//! Lookup of names for devices with IP addresses: among virtual hosts, then by the operating system, which may take long.

mod line;

use std::collections::BTreeSet;
use std::net::{IpAddr, ToSocketAddrs as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::{io, thread};

use rdmux_acm::{ClientId, EndpointId, QuestionId};
use rdmux_host::{Registry, RuntimeDir};

use self::line::{Limits, Line};
use crate::listen::Peer;
use crate::wake::{self, Wake, Waker};

/// The limits of searches among virtual hosts, which one thread makes one after another. Some are passed to it at a time, so that it need
/// not wait for the service. Many processes may wait for the same names, each with an entry of its own.
const HOSTS: Limits = Limits { waiting: 16_384, lookups: 8, of_user: 8, of_client: 8 };
/// The limits of lookups in the operating system, each of which has a thread.
const OTHERS: Limits = Limits { waiting: 256, lookups: 32, of_user: 8, of_client: 2 };

/// A client that waits for a name; none if no client waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Asker {
    /// The client's user.
    pub(crate) user: Option<Peer>,
    /// The client.
    pub(crate) client: Option<ClientId>,
}

/// The machine's knowledge of its queries.
pub(crate) trait Waiting {
    /// Returns whether the answer to a query is still needed.
    fn is_wanted(&mut self, question: QuestionId) -> bool;
    /// Returns the clients that wait for the answer.
    fn askers(&self, question: QuestionId) -> BTreeSet<Asker>;
}

/// A name to look up.
#[derive(Debug)]
pub(crate) struct Question {
    /// The endpoint that needs the address.
    pub(crate) endpoint: EndpointId,
    /// The machine's query.
    pub(crate) question: QuestionId,
    /// The name.
    pub(crate) name: String,
}

impl Question {
    fn found(&self, addresses: Vec<IpAddr>) -> Found {
        let Self { endpoint, question, .. } = *self;
        Found { endpoint, question, addresses: Some(addresses) }
    }

    /// Returns the result for a query that was refused for lack of room.
    fn refused(&self) -> Found {
        Found { addresses: None, ..self.found(Vec::new()) }
    }
}

/// The result of a lookup.
#[derive(Debug)]
pub(crate) struct Found {
    /// The endpoint that needs the address.
    pub(crate) endpoint: EndpointId,
    /// The machine's query.
    pub(crate) question: QuestionId,
    /// The addresses; `None` if the name was not looked up, as there was no room for it.
    pub(crate) addresses: Option<Vec<IpAddr>>,
}

/// A message from a lookup thread.
enum Word {
    /// A virtual host has the name, which was searched for this client.
    Host(Asker, Found),
    /// No virtual host has the name.
    NoHost(Asker, Question),
    /// The operating system's answer, for this client.
    System(Asker, Found),
}

/// Sends messages to the service.
#[derive(Clone)]
struct Teller {
    words: SyncSender<Word>,
    waker: Waker,
}

impl Teller {
    /// Sends a message. Returns whether the service still exists.
    fn tell(&self, word: Word) -> bool {
        let told = self.words.send(word).is_ok();
        self.waker.wake();
        told
    }
}

/// Looks up the addresses of a name in the operating system.
type LookUp = Arc<dyn Fn(&str) -> Vec<IpAddr> + Send + Sync>;

/// Looks up names in threads: one thread searches the virtual hosts, and each lookup in the operating system has its
/// own.
pub(crate) struct Names {
    questions: SyncSender<(Asker, Question)>,
    words: Receiver<Word>,
    wake: Wake,
    teller: Teller,
    others: LookUp,
    /// The queries for the virtual hosts.
    hosts: Line,
    /// The queries for the operating system, for names that no virtual host has.
    line: Line,
}

impl Names {
    /// Starts the thread that searches the virtual hosts of this directory.
    pub(crate) fn start(dir: RuntimeDir) -> io::Result<Self> {
        let host = move |name: &str| Registry::look_up(&dir, name);
        let others = |name: &str| {
            let found = (name, 0).to_socket_addrs();
            found.map(|all| all.map(|address| address.ip()).collect()).unwrap_or_default()
        };
        Self::by(host, others)
    }

    /// Like [`start`](Self::start), with these functions for hosts and for other names.
    fn by(
        host: impl Fn(&str) -> Option<IpAddr> + Send + 'static,
        others: impl Fn(&str) -> Vec<IpAddr> + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let (questions, asked) = sync_channel::<(Asker, Question)>(HOSTS.lookups);
        let (tell, words) = sync_channel(HOSTS.lookups + OTHERS.lookups);
        let (wake, waker) = wake::pair()?;
        let teller = Teller { words: tell, waker };
        let teller_of_hosts = teller.clone();
        thread::Builder::new().name("names".to_owned()).spawn(move || {
            for (asker, question) in asked {
                let word = match host(&question.name) {
                    Some(ip) => Word::Host(asker, question.found(vec![ip])),
                    None => Word::NoHost(asker, question),
                };
                if !teller_of_hosts.tell(word) {
                    return;
                }
            }
        })?;
        let (others, hosts, line) = (Arc::new(others), Line::new(HOSTS), Line::new(OTHERS));
        Ok(Self { questions, words, wake, teller, others, hosts, line })
    }

    /// Queues a lookup, for the clients that wait for it. Returns the results of queries that are refused for it, or because it is refused.
    pub(crate) fn ask(&mut self, question: Question, waiting: &mut impl Waiting) -> Vec<Found> {
        let askers = waiting.askers(question.question);
        let refused = self.hosts.push(question, askers, |question| waiting.is_wanted(question));
        let mut all = refused.iter().map(Question::refused).collect();
        self.search_next(waiting, &mut all);
        all
    }

    /// Takes results, and starts the next lookups in the operating system, except those that are not needed any more. Queries that do not
    /// fit the queue are refused.
    pub(crate) fn take(&mut self, waiting: &mut impl Waiting) -> Vec<Found> {
        self.wake.take();
        let mut all = Vec::new();
        for word in self.words.try_iter() {
            match word {
                Word::Host(asker, found) => {
                    self.hosts.done(asker);
                    all.push(found);
                }
                Word::NoHost(asker, question) => {
                    self.hosts.done(asker);
                    let askers = waiting.askers(question.question);
                    let refused = self.line.push(question, askers, |q| waiting.is_wanted(q));
                    all.extend(refused.iter().map(Question::refused));
                }
                Word::System(asker, found) => {
                    self.line.done(asker);
                    all.push(found);
                }
            }
        }
        self.search_next(waiting, &mut all);
        self.look_up_next(waiting, &mut all);
        all
    }

    /// Records that one more client waits for the answer to a query, which may start the lookup. Returns the results of queries that are
    /// refused for it.
    pub(crate) fn join(
        &mut self,
        question: QuestionId,
        asker: Asker,
        waiting: &mut impl Waiting,
    ) -> Vec<Found> {
        let mut refused = self.hosts.join(question, asker, |q| waiting.is_wanted(q));
        refused.extend(self.line.join(question, asker, |q| waiting.is_wanted(q)));
        let mut all = refused.iter().map(Question::refused).collect();
        self.search_next(waiting, &mut all);
        self.look_up_next(waiting, &mut all);
        all
    }

    /// Passes the next queries to the thread that searches the virtual hosts, which has room for as many as may be in progress.
    fn search_next(&mut self, waiting: &mut impl Waiting, refused: &mut Vec<Found>) {
        while let Some((asker, question)) = self.hosts.next(|question| waiting.is_wanted(question))
        {
            let refusal = question.refused();
            if self.questions.try_send((asker, question)).is_err() {
                self.hosts.done(asker);
                refused.push(refusal);
            }
        }
    }

    fn look_up_next(&mut self, waiting: &mut impl Waiting, refused: &mut Vec<Found>) {
        while let Some((asker, question)) = self.line.next(|question| waiting.is_wanted(question)) {
            refused.extend(self.look_up(asker, question));
        }
    }

    /// Starts a lookup in the operating system. Returns a refusal at once if no thread can be started.
    fn look_up(&mut self, asker: Asker, question: Question) -> Option<Found> {
        let refused = question.refused();
        let (teller, others) = (self.teller.clone(), self.others.clone());
        let look = move || {
            let found = question.found(others(&question.name));
            teller.tell(Word::System(asker, found));
        };
        match thread::Builder::new().name("names-slow".to_owned()).spawn(look) {
            Ok(_) => None,
            Err(e) => {
                tracing::warn!("a name cannot be looked up: {e}");
                self.line.done(asker);
                Some(refused)
            }
        }
    }
}

impl AsFd for Names {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::{Condvar, Mutex};

    use super::*;

    /// A name server that answers for a name on command.
    #[derive(Default)]
    struct Server {
        names: Mutex<State>,
        changed: Condvar,
    }

    #[derive(Default)]
    struct State {
        /// The names that were looked up.
        asked: Vec<String>,
        /// The names that the server answers for.
        answered: BTreeSet<String>,
    }

    const IP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 5));

    impl Server {
        fn look_up(&self, name: &str) -> Vec<IpAddr> {
            let mut names = self.names.lock().unwrap();
            names.asked.push(name.to_owned());
            let is_waiting = |names: &mut State| !names.answered.contains(name);
            drop(self.changed.wait_while(names, is_waiting).unwrap());
            vec![IP]
        }

        fn answer(&self, name: &str) {
            self.names.lock().unwrap().answered.insert(name.to_owned());
            self.changed.notify_all();
        }

        /// Returns the names that were looked up, sorted.
        fn asked(&self) -> Vec<String> {
            let mut asked = self.names.lock().unwrap().asked.clone();
            asked.sort();
            asked
        }
    }

    /// A lookup service whose only virtual host is `host`.
    struct World {
        names: Names,
        server: Arc<Server>,
        clients: Clients,
    }

    #[derive(Default)]
    struct Clients {
        /// The queries that are not needed.
        unwanted: BTreeSet<u64>,
        /// The clients that wait for each.
        waiting: BTreeMap<u64, BTreeSet<Asker>>,
    }

    impl Waiting for Clients {
        fn is_wanted(&mut self, question: QuestionId) -> bool {
            !self.unwanted.contains(&question.0)
        }

        fn askers(&self, question: QuestionId) -> BTreeSet<Asker> {
            self.waiting.get(&question.0).cloned().unwrap_or_default()
        }
    }

    /// Returns a client that is the only one of its user.
    fn asker(client: u32) -> Asker {
        Asker { user: Some(Peer::User(client)), client: Some(ClientId(client)) }
    }

    impl World {
        fn new() -> Self {
            Self::by(|_, name| (name == "host").then_some(IP))
        }

        /// Makes a service that searches for hosts by this function.
        fn by(host: impl Fn(&Server, &str) -> Option<IpAddr> + Send + 'static) -> Self {
            let server = Arc::new(Server::default());
            let [hosts, others] = [(); 2].map(|()| server.clone());
            let host = move |name: &str| host(&hosts, name);
            let names = Names::by(host, move |name| others.look_up(name)).unwrap();
            Self { names, server, clients: Clients::default() }
        }

        /// Looks up a name for a client and passes it on if it is no host's. Returns the results that arrived
        /// meanwhile.
        fn ask(&mut self, client: u32, number: u64, name: &str) -> Vec<(u64, Option<Vec<IpAddr>>)> {
            self.clients.waiting.entry(number).or_default().insert(asker(client));
            // Virtual hosts are searched one query after the other.
            self.clients.waiting.insert(MARK, [asker(client)].into());
            let mut all = self.queue(number, name);
            all.extend(self.queue(MARK, "host"));
            loop {
                all.extend(self.take());
                if let Some(at) = all.iter().position(|(number, _)| *number == MARK) {
                    all.remove(at);
                    return all;
                }
                thread::yield_now();
            }
        }

        fn take(&mut self) -> Vec<(u64, Option<Vec<IpAddr>>)> {
            numbered(self.names.take(&mut self.clients))
        }

        fn queue(&mut self, number: u64, name: &str) -> Vec<(u64, Option<Vec<IpAddr>>)> {
            numbered(self.names.ask(question(number, name), &mut self.clients))
        }

        /// Returns the numbers of the results, once there are this many.
        fn found(&mut self, count: usize) -> BTreeSet<u64> {
            let mut all = BTreeSet::new();
            while all.len() < count {
                for (number, addresses) in self.take() {
                    assert_eq!(addresses, Some(vec![IP]));
                    assert!(all.insert(number));
                }
                thread::yield_now();
            }
            all
        }
    }

    const MARK: u64 = u64::MAX;

    fn numbered(found: Vec<Found>) -> Vec<(u64, Option<Vec<IpAddr>>)> {
        found.into_iter().map(|found| (found.question.0, found.addresses)).collect()
    }

    fn question(number: u64, name: &str) -> Question {
        let (endpoint, question) = (EndpointId(1), QuestionId(number));
        Question { endpoint, question, name: name.to_owned() }
    }

    #[test]
    fn names_are_looked_up_in_a_thread() {
        let dir = rdmux_testing::temp_dir();
        let mut names = Names::start(RuntimeDir::at(dir.path()).unwrap()).unwrap();
        assert!(names.ask(question(2, "127.0.0.5"), &mut Clients::default()).is_empty());
        let found = loop {
            if let Some(found) = names.take(&mut Clients::default()).pop() {
                break found;
            }
            thread::yield_now();
        };
        assert_eq!((found.endpoint, found.question), (EndpointId(1), QuestionId(2)));
        assert_eq!(found.addresses, Some(vec![IP]));
    }

    /// Tests a name server that does not answer.
    #[test]
    fn names_that_take_long_hold_up_no_host_and_some_are_refused() {
        let mut world = World::new();
        let most = u64::try_from(OTHERS.waiting + OTHERS.of_client).unwrap();
        for number in 0..most {
            assert_eq!(world.ask(1, number, "slow"), []);
        }
        assert_eq!(world.ask(1, most, "slow"), [(most, None)]);
        assert_eq!(world.ask(1, 1000, "host"), [(1000, Some(vec![IP]))]);
        world.server.answer("slow");
        assert_eq!(world.found(OTHERS.waiting + OTHERS.of_client), (0..most).collect());
    }

    #[test]
    fn names_that_are_not_wanted_any_more_are_not_looked_up() {
        let mut world = World::new();
        for number in 0..4 {
            assert_eq!(world.ask(1, number, "slow"), []);
        }
        for (number, name) in [(4, "one"), (5, "two"), (6, "three")] {
            assert_eq!(world.ask(1, number, name), []);
        }
        world.clients.unwanted = [2, 3, 4, 5].into();
        ["slow", "three"].iter().for_each(|name| world.server.answer(name));
        assert_eq!(world.found(3), [0, 1, 6].into());
        assert_eq!(world.server.asked(), ["slow", "slow", "three"]);
    }

    #[test]
    fn names_of_one_client_hold_up_no_other() {
        let mut world = World::new();
        for number in 0..100 {
            assert_eq!(world.ask(1, number, "slow"), []);
        }
        world.server.answer("quick");
        let mut found: BTreeSet<u64> = world.ask(2, 100, "quick").iter().map(|(n, _)| *n).collect();
        if found.is_empty() {
            found = world.found(1);
        }
        assert_eq!(found, [100].into());
        let slow = world.server.asked().iter().filter(|name| *name == "slow").count();
        assert!(slow <= OTHERS.of_client, "{slow}");
        world.server.answer("slow");
        assert_eq!(world.found(100).len(), 100);
    }

    #[test]
    fn names_of_one_user_leave_room_in_the_search_among_hosts_for_those_of_others() {
        let mut world = World::by(|server, name| server.look_up(name).pop());
        let most = u64::try_from(HOSTS.waiting + HOSTS.lookups).unwrap();
        for number in 0..most {
            world.clients.waiting.insert(number, [asker(1)].into());
            assert_eq!(world.queue(number, "slow"), []);
        }
        world.clients.waiting.insert(most, [asker(1)].into());
        assert_eq!(world.queue(most, "slow"), [(most, None)]);
        // Another user's name takes the place of the newest one, and is searched after those that the thread already has.
        world.clients.waiting.insert(1 << 20, [asker(2)].into());
        assert_eq!(world.queue(1 << 20, "quick"), [(most - 1, None)]);
        // The next one stays, because the other user waits for it, too.
        assert!(world.names.join(QuestionId(most - 2), asker(2), &mut world.clients).is_empty());
        ["slow", "quick"].iter().for_each(|name| world.server.answer(name));
        let mut found = Vec::new();
        while !found.contains(&(1 << 20)) {
            found.extend(world.take().into_iter().map(|(number, _)| number));
            thread::yield_now();
        }
        let at = found.iter().position(|number| *number == 1 << 20).unwrap();
        // The users take turns then, and it may be the first one's.
        assert!(at <= HOSTS.lookups + 1, "{found:?}");
    }

    #[test]
    fn name_that_another_user_waits_for_too_is_looked_up_when_its_turn_comes_first() {
        let mut world = World::new();
        for number in 0..10 {
            assert_eq!(world.ask(1, number, "slow"), []);
        }
        assert_eq!(world.ask(1, 10, "quick"), []);
        world.server.answer("quick");
        let refused = world.names.join(QuestionId(10), asker(2), &mut world.clients);
        assert!(refused.is_empty());
        assert_eq!(world.found(1), [10].into());
        // The same if both wait before it is known that no host has the name.
        world.server.answer("quicker");
        world.clients.waiting.insert(11, [asker(3)].into());
        if world.ask(1, 11, "quicker").is_empty() {
            assert_eq!(world.found(1), [11].into());
        }
        world.server.answer("slow");
        assert_eq!(world.found(10).len(), 10);
    }
}
