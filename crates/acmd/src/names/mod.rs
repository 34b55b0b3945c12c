//! Lookup of names for devices with IP addresses: among virtual hosts, then by the operating system, which may take long.

mod line;

use std::collections::BTreeSet;
use std::net::{IpAddr, ToSocketAddrs as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::{io, thread};

use rdmux_acm::{ClientId, EndpointId, QuestionId};
use rdmux_host::{Registry, RuntimeDir};

use self::line::{Line, WAITING};
use crate::listen::Peer;
use crate::wake::{self, Wake, Waker};

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
    /// A virtual host has the name.
    Host(Found),
    /// No virtual host has the name.
    NoHost(Question),
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
    questions: SyncSender<Question>,
    words: Receiver<Word>,
    wake: Wake,
    teller: Teller,
    others: LookUp,
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
        let (questions, asked) = sync_channel::<Question>(WAITING);
        let (tell, words) = sync_channel(WAITING);
        let (wake, waker) = wake::pair()?;
        let teller = Teller { words: tell, waker };
        let hosts = teller.clone();
        thread::Builder::new().name("names".to_owned()).spawn(move || {
            for question in asked {
                let word = match host(&question.name) {
                    Some(ip) => Word::Host(question.found(vec![ip])),
                    None => Word::NoHost(question),
                };
                if !hosts.tell(word) {
                    return;
                }
            }
        })?;
        Ok(Self { questions, words, wake, teller, others: Arc::new(others), line: Line::default() })
    }

    /// Starts a lookup. Returns false when too many are queued.
    pub(crate) fn ask(&self, question: Question) -> bool {
        !matches!(self.questions.try_send(question), Err(TrySendError::Full(_)))
    }

    /// Takes results, and starts the next lookups in the operating system, except those that are not needed any more. Queries that do not
    /// fit the queue are refused.
    pub(crate) fn take(&mut self, waiting: &mut impl Waiting) -> Vec<Found> {
        self.wake.take();
        let mut all = Vec::new();
        for word in self.words.try_iter() {
            match word {
                Word::Host(found) => all.push(found),
                Word::NoHost(question) => {
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
        let refused = self.line.join(question, asker, |question| waiting.is_wanted(question));
        let mut all = refused.iter().map(Question::refused).collect();
        self.look_up_next(waiting, &mut all);
        all
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

    use super::line::CLIENT_LOOKUPS;
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
            let server = Arc::new(Server::default());
            let theirs = server.clone();
            let host = |name: &str| (name == "host").then_some(IP);
            let names = Names::by(host, move |name| theirs.look_up(name)).unwrap();
            Self { names, server, clients: Clients::default() }
        }

        /// Looks up a name for a client and passes it on if it is no host's. Returns the results that arrived
        /// meanwhile.
        fn ask(&mut self, client: u32, number: u64, name: &str) -> Vec<(u64, Option<Vec<IpAddr>>)> {
            self.clients.waiting.entry(number).or_default().insert(asker(client));
            assert!(self.names.ask(question(number, name)));
            // Virtual hosts are searched one query after the other.
            assert!(self.names.ask(question(MARK, "host")));
            let mut all = Vec::new();
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
            let found = self.names.take(&mut self.clients);
            found.into_iter().map(|found| (found.question.0, found.addresses)).collect()
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

    fn question(number: u64, name: &str) -> Question {
        let (endpoint, question) = (EndpointId(1), QuestionId(number));
        Question { endpoint, question, name: name.to_owned() }
    }

    #[test]
    fn names_are_looked_up_in_a_thread() {
        let dir = rdmux_testing::temp_dir();
        let mut names = Names::start(RuntimeDir::at(dir.path()).unwrap()).unwrap();
        assert!(names.ask(question(2, "127.0.0.5")));
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
        let most = u64::try_from(WAITING + CLIENT_LOOKUPS).unwrap();
        for number in 0..most {
            assert_eq!(world.ask(1, number, "slow"), []);
        }
        assert_eq!(world.ask(1, most, "slow"), [(most, None)]);
        assert_eq!(world.ask(1, 1000, "host"), [(1000, Some(vec![IP]))]);
        world.server.answer("slow");
        assert_eq!(world.found(WAITING + CLIENT_LOOKUPS), (0..most).collect());
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
        assert!(slow <= CLIENT_LOOKUPS, "{slow}");
        world.server.answer("slow");
        assert_eq!(world.found(100).len(), 100);
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
