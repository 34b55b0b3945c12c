//! Admission, limits, and messages of clients.

use std::io::{IoSlice, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;

use rdmux_testing::lingering;
use rdmux_wire::acm::client::{Answer, Header, Op, Query, Reply, Request, Subject};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use super::direct::OFTEN;
use super::*;

const SMALL: Limits = Limits {
    clients: 5,
    of_peer: 2,
    of_others: 3,
    requests: 2,
    unread: 64,
    stall: Duration::from_secs(9),
    idle: Duration::from_secs(3),
};

const OWNER: Access = Access { users: Users::NONE, unknown: false };

struct World {
    clients: Clients,
    poller: Poller,
    start: Instant,
    /// The idle clients whose connections were closed.
    closed: Vec<ClientId>,
}

impl World {
    fn new() -> Self {
        let (clients, poller) = (Clients::new(SMALL, OWNER), Poller::new().unwrap());
        Self { clients, poller, start: Instant::now(), closed: Vec::new() }
    }

    fn connect(&mut self) -> (UnixStream, Option<ClientId>) {
        let (far, near) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        let at = (&self.poller, self.start);
        (far, self.clients.admit(near.into(), Kind::Unix, at, |_| {}))
    }

    /// Admits a connection of another peer.
    fn admit(&mut self, peer: Peer) -> (UnixStream, Option<ClientId>) {
        let (far, near) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        let at = (&self.poller, self.start);
        let id = self.clients.admit_peer(near.into(), (peer, None), at, |id| self.closed.push(id));
        (far, id)
    }

    /// Returns which sockets are ready, and whether each is at its end.
    fn ready(&mut self) -> Vec<(u64, bool)> {
        let mut ready = Vec::new();
        self.clients.wait(&self.poller, Some(Duration::ZERO), &mut ready).unwrap();
        let number = |event: &Ready| match event.token {
            Token::Client(id) => (id, event.gone),
            other => panic!("{other:?}"),
        };
        let mut all: Vec<_> = ready.iter().map(number).collect();
        all.sort_unstable();
        all
    }

    fn settle(&mut self, id: ClientId) -> bool {
        self.clients.settle(id, &self.poller, self.start)
    }

    /// Takes the next message of a client and returns its transaction ID.
    fn take(&mut self, id: ClientId) -> Option<u64> {
        self.clients.take(id).map(|message| message.unwrap().tid)
    }

    /// Queues this many answers to a client.
    fn answer(&mut self, id: ClientId, count: usize) -> Vec<u8> {
        let mut all = Vec::new();
        for n in 0..count {
            let reply = Reply { tid: n as u64, answer: Answer::Flushed(1 << 40 | n as u64) };
            self.clients.answer(id, &reply);
            let at = all.len();
            all.resize(at + reply.wire_len(), 0);
            reply.emit(&mut all[at..]);
        }
        all
    }
}

/// More answers than a socket accepts at once.
const MANY: usize = 1 << 16;

fn request(tid: u64) -> Vec<u8> {
    Request { tid, query: Query::Counters(Subject::Service) }.to_bytes().to_vec()
}

#[test]
fn message_in_two_parts_is_one_and_two_in_one_part_are_two() {
    let mut world = World::new();
    let (mut far, id) = world.connect();
    let id = id.unwrap();
    far.write_all(&request(1)[..9]).unwrap();
    world.clients.fill(id);
    assert!(world.clients.servable().is_empty() && world.clients.take(id).is_none());
    let rest = [&request(1)[9..], &request(2), &request(3)[..5]].concat();
    far.write_all(&rest).unwrap();
    world.clients.fill(id);
    assert!(!world.settle(id));
    assert_eq!(world.clients.servable(), [id]);
    assert_eq!(world.take(id), Some(1));
    assert_eq!(world.take(id), Some(2));
    assert!(world.clients.take(id).is_none() && world.clients.servable().is_empty());
    assert!(!world.settle(id));
}

#[test]
fn others_are_served_while_the_close_of_a_descriptor_that_a_client_passed_blocks() {
    // Bytes with a descriptor, urgent bytes, and bytes that are never read.
    for (flags, reads) in
        [(SendFlags::empty(), true), (SendFlags::OOB, true), (SendFlags::empty(), false)]
    {
        let mut world = World::new();
        let (mut far, other) = world.connect();
        let (evil, id) = world.connect();
        let (other, id) = (other.unwrap(), id.unwrap());
        let (fd, peer) = lingering();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [fd.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        let bytes = request(1);
        rustix::net::sendmsg(&evil, &[IoSlice::new(&bytes)], &mut control, flags).unwrap();
        drop((fd, evil));
        if reads {
            world.clients.fill(id);
            assert!(world.settle(id), "it is dropped");
            assert_eq!(world.clients.counters().malformed, 1);
        } else {
            assert!(world.clients.remove(id, &world.poller));
        }
        far.write_all(&request(2)).unwrap();
        world.clients.fill(other);
        assert_eq!(world.take(other), Some(2));
        drop(peer);
    }
}

#[test]
fn client_beyond_limit_is_closed_and_removed_client_frees_its_place() {
    let mut world = World::new();
    // The owner may use all places.
    let mut all: Vec<_> = (0..SMALL.clients).map(|_| world.connect()).collect();
    assert!(all.iter().all(|(_, id)| id.is_some()));
    let (mut far, refused) = world.connect();
    assert!(refused.is_none());
    assert_eq!(far.read(&mut [0]).unwrap(), 0, "its connection is closed");
    let (_far, first) = all.remove(0);
    assert!(world.clients.remove(first.unwrap(), &world.poller));
    assert!(world.connect().1.is_some());
    assert_eq!(
        world.clients.counters(),
        Counters { accepted: 6, too_many: 1, ..Counters::default() }
    );
}

/// With users, and with hosts of the network, which have no user known to the kernel.
#[test]
fn users_other_than_the_owner_have_shares_and_leave_room_for_others() {
    let mut world = World::new();
    world.clients.set_limits(SMALL, Access { users: Users::All, unknown: true });
    let (one, two) = (Peer::User(4001), Peer::Address(Ipv4Addr::new(10, 0, 0, 1).into()));
    let [(_far, first), (_far2, second), (mut far3, third)] = [one; 3].map(|p| world.admit(p));
    assert!(first.is_some() && second.is_some() && third.is_none());
    assert_eq!(far3.read(&mut [0]).unwrap(), 0, "its connection is closed");
    let [(_far4, other), (_far5, refused)] = [two; 2].map(|peer| world.admit(peer));
    assert!(other.is_some() && refused.is_none(), "all others together have their share");
    let owner = Peer::User(rustix::process::geteuid().as_raw());
    let [(_far6, own), (_far7, root)] = [owner, Peer::User(0)].map(|peer| world.admit(peer));
    assert!(own.is_some() && root.is_some());
    // The machine has shares for the same users.
    let users = [first, second, other, own, root].map(|id| world.clients.user(id.unwrap()));
    let [local, remote] = [User::Local(4001), User::Remote(Ipv4Addr::new(10, 0, 0, 1).into())];
    assert_eq!(users, [local, local, remote, User::Owner, User::Owner]);
    for id in [root, first] {
        assert!(world.clients.remove(id.unwrap(), &world.poller));
    }
    assert!(world.admit(two).1.is_some(), "the place of one that left");
    assert_eq!(world.clients.counters().too_many, 2);
}

/// Lets a client send a request with this transaction ID, and answers it.
fn exchange(world: &mut World, far: &mut UnixStream, id: ClientId, tid: u64) {
    far.write_all(&request(tid)).unwrap();
    world.clients.fill(id);
    assert_eq!(world.take(id), Some(tid));
    let answer = world.answer(id, 1);
    assert!(!world.settle(id));
    far.read_exact(&mut vec![0; answer.len()]).unwrap();
}

#[test]
fn client_that_has_been_idle_longest_makes_room_for_another() {
    let mut world = World::new();
    let owner = Peer::User(rustix::process::geteuid().as_raw());
    let mut all = Vec::new();
    for _ in 0..SMALL.clients {
        let (far, id) = world.admit(owner);
        all.push((far, id.unwrap()));
    }
    // The first has not asked yet, the second asks as librdmacm of rdma-core does, which does not connect again, and the third waits.
    for (n, tid) in [(1, 0), (2, 7), (3, 8), (4, 9)] {
        world.start += Duration::from_millis(1);
        let (far, id) = &mut all[n];
        exchange(&mut world, far, *id, tid);
    }
    world.clients.begin(all[2].1, RequestId(1), 1);
    world.start += SMALL.idle - Duration::from_millis(2);
    assert_eq!(world.admit(owner).1, None, "none has been idle for long enough");
    world.start += Duration::from_millis(2);
    // The next would be the fourth, but it has sent a request that is not read yet.
    all[3].0.write_all(&request(10)).unwrap();
    assert!(world.admit(owner).1.is_some());
    assert_eq!(world.closed, [all[4].1]);
    assert_eq!(all[4].0.read(&mut [0]).unwrap(), 0, "its connection is closed");
    assert_eq!(world.admit(owner).1, None);
    // The fourth again, once it is idle, but not as soon as its answer is sent.
    world.clients.fill(all[3].1);
    assert_eq!(world.take(all[3].1), Some(10));
    assert_eq!(world.admit(owner).1, None);
    world.answer(all[3].1, 1);
    assert!(!world.settle(all[3].1));
    assert_eq!(world.admit(owner).1, None);
    world.start += SMALL.idle;
    assert!(world.admit(owner).1.is_some());
    assert_eq!(world.closed, [all[4].1, all[3].1]);
    assert_eq!(world.clients.counters().idle, 2);
    assert_eq!(world.clients.counters().too_many, 4);
    assert_eq!(world.clients.len(), SMALL.clients);
}

#[test]
fn idle_clients_make_room_within_their_user_s_share_or_of_the_user_with_most() {
    let mut world = World::new();
    world.clients.set_limits(SMALL, Access { users: Users::All, unknown: false });
    let [owner, one, two, three] =
        [rustix::process::geteuid().as_raw(), 4001, 4002, 4003].map(Peer::User);
    let connect = |world: &mut World, peer: Peer| {
        let (mut far, id) = world.admit(peer);
        let id = id?;
        world.start += SMALL.idle;
        exchange(world, &mut far, id, 1);
        world.start += SMALL.idle;
        Some((far, id))
    };
    let owners = [owner; 2].map(|peer| connect(&mut world, peer).unwrap());
    let ones = [one; 2].map(|peer| connect(&mut world, peer).unwrap());
    // A user that has its share makes room itself, although the owner's clients have been idle longer.
    let third = connect(&mut world, one).unwrap();
    assert_eq!(world.closed, [ones[0].1]);
    let two_s = connect(&mut world, two).unwrap();
    // All others have their share: the one with most makes room.
    let three_s = connect(&mut world, three).unwrap();
    assert_eq!(world.closed[1..], [ones[1].1]);
    // The table is full, and the owner has most.
    assert_eq!(world.clients.len(), SMALL.clients);
    let own = connect(&mut world, owner).unwrap();
    assert_eq!(world.closed[2..], [owners[0].1]);
    assert_eq!(world.clients.len(), SMALL.clients);
    drop((own, third, two_s, three_s));
    assert_eq!(world.clients.counters().too_many, 0);
}

#[test]
fn tcp_client_closed_before_accept_has_no_user_and_is_not_allowed() {
    let mut world = World::new();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let connect = || {
        let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (far, listener.accept().unwrap().0.into())
    };
    let (far, near) = connect();
    drop(far);
    assert_eq!(world.clients.admit(near, Kind::Tcp, (&world.poller, world.start), |_| {}), None);
    assert_eq!(world.clients.counters().not_allowed, 1);
    // A connected client keeps its user, even when it will send nothing more.
    let (far, near) = connect();
    far.shutdown(Shutdown::Write).unwrap();
    let id = world.clients.admit(near, Kind::Tcp, (&world.poller, world.start), |_| {}).unwrap();
    assert!(world.clients.is_owner(id));
    // An open service admits the others, but treats none of them as its owner.
    world.clients.set_limits(SMALL, Access { unknown: true, ..OWNER });
    let (far, near) = connect();
    drop(far);
    let id = world.clients.admit(near, Kind::Tcp, (&world.poller, world.start), |_| {}).unwrap();
    assert!(!world.clients.is_owner(id));
}

#[test]
fn client_at_its_limit_of_requests_is_served_again_when_one_is_answered() {
    let mut world = World::new();
    let (mut far, id) = world.connect();
    let id = id.unwrap();
    far.write_all(&[request(1), request(2), request(3)].concat()).unwrap();
    world.clients.fill(id);
    for tid in [1, 2] {
        assert_eq!(world.take(id), Some(tid));
        world.clients.begin(id, RequestId(tid), tid);
    }
    assert!(!world.settle(id));
    assert!(world.clients.take(id).is_none() && world.clients.servable().is_empty());
    assert_eq!(world.clients.end(id, RequestId(2)), Some(2));
    assert_eq!(world.clients.servable(), [id]);
    assert_eq!(world.take(id), Some(3));
}

#[test]
fn client_that_never_reads_is_not_read_from_and_in_the_end_dropped() {
    let mut world = World::new();
    let (mut far, id) = world.connect();
    let id = id.unwrap();
    world.answer(id, MANY);
    assert!(!world.settle(id));
    far.write_all(&request(1)).unwrap();
    world.clients.fill(id);
    assert!(world.clients.servable().is_empty());
    assert_eq!(world.clients.next_timeout(), Some(world.start + SMALL.stall));
    assert!(world.clients.stalled(world.start + SMALL.stall / 2).is_empty());
    // It reads a little, which extends its time.
    assert!(far.read(&mut vec![0; 1 << 20]).unwrap() > 0);
    assert!(!world.clients.settle(id, &world.poller, world.start + SMALL.stall / 2));
    assert!(world.clients.stalled(world.start + SMALL.stall).is_empty());
    assert_eq!(world.clients.stalled(world.start + SMALL.stall * 2), [id]);
    assert_eq!(world.clients.counters().stalled, 1);
}

#[test]
fn answer_that_the_socket_does_not_take_at_once_arrives_whole() {
    let mut world = World::new();
    let (mut far, id) = world.connect();
    let id = id.unwrap();
    let answers = world.answer(id, MANY);
    let mut got = vec![0; answers.len()];
    let mut at = 0;
    while at < got.len() {
        assert!(!world.settle(id));
        at += far.read(&mut got[at..]).unwrap();
    }
    assert!(got == answers);
    assert_eq!((world.settle(id), world.clients.next_timeout()), (false, None));
}

#[test]
fn client_that_closes_early_is_dropped() {
    let mut world = World::new();
    let (mut far, id) = world.connect();
    let id = id.unwrap();
    far.write_all(&request(1)).unwrap();
    drop(far);
    world.clients.fill(id);
    assert_eq!(world.take(id), Some(1));
    world.clients.begin(id, RequestId(1), 1);
    world.answer(id, 1);
    assert!(world.settle(id));
    assert_eq!(world.clients.len(), 0);
}

#[test]
fn client_that_ends_its_side_still_gets_its_answers() {
    let mut world = World::new();
    let (mut far, id) = world.connect();
    let id = id.unwrap();
    far.write_all(&request(1)).unwrap();
    far.shutdown(std::net::Shutdown::Write).unwrap();
    world.clients.fill(id);
    world.clients.fill(id);
    assert!(world.clients.take(id).is_some());
    world.clients.begin(id, RequestId(1), 1);
    assert!(!world.settle(id), "a request is on its way");
    world.clients.end(id, RequestId(1));
    let answer = world.answer(id, 1);
    assert!(world.settle(id));
    let mut got = Vec::new();
    far.read_to_end(&mut got).unwrap();
    assert_eq!(got, answer);
}

#[test]
fn answers_of_a_turn_are_sent_together_and_before_a_client_is_dropped() {
    let mut world = World::new();
    let (far, id) = world.connect();
    let id = id.unwrap();
    far.set_nonblocking(true).unwrap();
    let answers = world.answer(id, 3);
    let mut got = vec![0; 4096];
    let read = |mut far: &UnixStream, got: &mut [u8]| far.read(got).map_err(|e| e.kind());
    assert_eq!(read(&far, &mut got), Err(std::io::ErrorKind::WouldBlock));
    assert!(!world.settle(id));
    assert_eq!(read(&far, &mut got), Ok(answers.len()));
    assert_eq!(got[..answers.len()], answers);
    let last = world.answer(id, 1);
    assert!(world.clients.remove(id, &world.poller));
    assert_eq!(read(&far, &mut got), Ok(last.len()));
    assert_eq!(read(&far, &mut got), Ok(0));
}

#[test]
fn malformed_message_closes_the_client_and_is_counted() {
    let too_long = Header { length: 593, ..Header::new(Op::RESOLVE, 1) }.to_bytes();
    let too_short = Header { length: 15, ..Header::new(Op::RESOLVE, 1) }.to_bytes();
    for bad in
        [&too_long[..], &too_short, &[2; 16], &[1, 7, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0]]
    {
        let mut world = World::new();
        let (mut far, id) = world.connect();
        let id = id.unwrap();
        far.write_all(bad).unwrap();
        world.clients.fill(id);
        assert!(world.settle(id), "{bad:?}");
        assert_eq!(far.read(&mut [0]).unwrap(), 0);
        assert_eq!(world.clients.counters().malformed, 1);
    }
}

#[test]
fn clients_that_ask_at_the_same_time_are_asked_directly_until_few_have_something() {
    let mut world = World::new();
    world.clients.set_limits(
        Limits { clients: 99, of_peer: 99, ..SMALL },
        Access { users: Users::All, ..OWNER },
    );
    let mut all: Vec<(UnixStream, ClientId)> =
        (0..20).map(|_| world.connect()).map(|(far, id)| (far, id.unwrap())).collect();
    let number = |all: &[(UnixStream, ClientId)], n: usize| (u64::from(all[n].1.0), false);
    for (far, _) in &mut all {
        far.write_all(&request(1)).unwrap();
    }
    assert_eq!(world.ready(), (0..20).map(|n| number(&all, n)).collect::<Vec<_>>());
    assert_eq!(world.clients.direct.len(), 20);
    for (_, id) in &all {
        world.clients.fill(*id);
        assert!(world.take(*id).is_some() && !world.settle(*id));
    }
    // All were ready, so all are read once more.
    assert_eq!(world.ready(), (0..20).map(|n| number(&all, n)).collect::<Vec<_>>());
    all.iter().for_each(|(_, id)| world.clients.fill(*id));
    assert_eq!(world.ready(), []);
    let (far, id) = world.connect();
    all.push((far, id.unwrap()));
    for n in [3, 7, 20] {
        all[n].0.write_all(&request(2)).unwrap();
    }
    // The same again until the input is read, also for clients that the poller watches.
    for _ in 0..2 {
        assert_eq!(world.ready(), [3, 7, 20].map(|n| number(&all, n)));
    }
    for n in [3, 7, 20] {
        world.clients.fill(all[n].1);
    }
    assert_eq!(world.clients.direct.len(), 20);
    // A client with too many outstanding requests is not read, but its end is detected. A client that is gone is not
    // polled any more.
    world.clients.begin(all[3].1, RequestId(1), 1);
    world.clients.begin(all[3].1, RequestId(2), 2);
    assert!(!world.settle(all[3].1));
    all[3].0.write_all(&request(3)).unwrap();
    assert!(world.clients.remove(all[5].1, &world.poller));
    assert_eq!(world.ready(), []);
    let (far, third) = all.remove(3);
    drop(far);
    assert_eq!(world.ready(), [(third.0.into(), true)]);
    assert!(world.clients.remove(third, &world.poller));
    assert_eq!(world.clients.direct.len(), 19);
    for _ in 0..OFTEN {
        assert_eq!(world.ready(), []);
    }
    assert_eq!(world.clients.direct.len(), 0);
    all[0].0.write_all(&request(4)).unwrap();
    assert_eq!(world.ready(), [number(&all, 0)]);
}
