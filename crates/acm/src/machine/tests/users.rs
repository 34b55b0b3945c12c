//! Shares and turns of users.

use core::time::Duration;

use super::net::*;
use crate::{ClientId, Dest, Failure, Options, Request, RequestId, SaFailure, User};

const OTHERS: [User; 3] = [
    User::Local(7),
    User::Local(8),
    User::Remote(core::net::IpAddr::V4(core::net::Ipv4Addr::LOCALHOST)),
];

/// Adds clients of a user, from this number on.
fn connect(net: &mut Net, user: User, clients: core::ops::Range<u32>) {
    for client in clients {
        net.with(0, |machine, _, _| machine.set_user(ClientId(client), user));
    }
}

/// Sends a request of a client for the destination with a number, which is also the request's. Returns the answer, if there is one at once.
fn ask(net: &mut Net, client: u32, n: usize, dest: Dest, no_delay: bool) -> Option<Failure> {
    let id = RequestId(u64::try_from(n).unwrap());
    let request = Request { source: None, dest, no_delay, timeout: None };
    net.with(0, |machine, now, io| machine.request(now, ClientId(client), id, &request, io));
    net.answer(0, id).and_then(Result::err)
}

fn by_name(n: usize) -> Dest {
    Dest::Address(name(n))
}

#[test]
fn other_user_has_at_most_half_of_all_requests_and_all_others_three_quarters() {
    let mut net = Net::new(2, &Options { max_requests: 8, ..acm() });
    net.hosts[0].io.is_full = true;
    for (user, client) in OTHERS.into_iter().zip([100, 200, 300]) {
        connect(&mut net, user, client..client + 8);
    }
    for client in 100..104 {
        assert_eq!(ask(&mut net, client, client as usize, by_name(client as usize), false), None);
    }
    // Neither another client of the user nor a search that is already open changes that.
    assert_eq!(ask(&mut net, 104, 104, by_name(104), false), Some(Failure::TooMany));
    assert_eq!(ask(&mut net, 104, 105, by_name(100), false), Some(Failure::TooMany));
    for n in [200, 201] {
        assert_eq!(ask(&mut net, 200, n, by_name(n), false), None);
    }
    assert_eq!(ask(&mut net, 201, 202, by_name(202), false), Some(Failure::TooMany));
    assert_eq!(ask(&mut net, 300, 300, by_name(300), false), Some(Failure::TooMany));
    // The rest is the owner's, whose clients need no user.
    for n in [1, 2] {
        assert_eq!(ask(&mut net, 1, n, by_name(n), false), None);
    }
    assert_eq!(ask(&mut net, 1, 3, by_name(3), false), Some(Failure::TooMany));
    let open = |net: &Net, user| net.hosts[0].machine.open_of(user);
    assert_eq!(OTHERS.map(|user| open(&net, user)), [(4, 4), (2, 2), (0, 0)]);
    // What ends makes room, for this user and for the others.
    net.with(0, |machine, _, _| {
        machine.remove_client(ClientId(100));
        machine.cancel(ClientId(101), RequestId(101));
    });
    assert_eq!(ask(&mut net, 105, 106, by_name(106), false), None);
    assert_eq!(ask(&mut net, 300, 301, by_name(301), false), None);
    assert_eq!(OTHERS.map(|user| open(&net, user)), [(3, 3), (2, 2), (1, 1)]);
    net.pass(Duration::from_secs(100));
    assert_eq!(net.hosts[0].machine.open(), (0, 0));
    assert_eq!(OTHERS.map(|user| open(&net, user)), [(0, 0); 3]);
}

#[test]
fn searches_that_a_user_starts_without_waiting_leave_room_for_those_of_others() {
    let mut net = Net::new(2, &Options { max_requests: 16, ..acm() });
    net.hosts[0].io.is_full = true;
    connect(&mut net, OTHERS[0], 100..101);
    connect(&mut net, OTHERS[1], 200..201);
    for n in 100..120 {
        assert_eq!(ask(&mut net, 100, n, by_name(n), true), Some(Failure::NoData));
    }
    assert_eq!(net.hosts[0].machine.open(), (0, 4));
    assert_eq!(ask(&mut net, 200, 200, by_name(200), true), Some(Failure::NoData));
    assert_eq!(net.hosts[0].machine.open(), (0, 5));
    // Searches count for the user who started them, even if no request waits any more.
    for n in 120..124 {
        assert_eq!(ask(&mut net, 100, n, by_name(n), false), None);
    }
    assert_eq!(ask(&mut net, 100, 124, by_name(124), false), Some(Failure::TooMany));
    assert_eq!(ask(&mut net, 100, 125, by_name(100), false), None);
    assert_eq!(net.hosts[0].machine.open_of(OTHERS[0]), (5, 8));
}

/// One user waits for many names that no endpoint has, with many clients. A user with one request has its turn soon, as if the other had
/// one client.
#[test]
fn users_take_turns_where_one_request_is_sent_at_a_time() {
    let mut net = Net::new(2, &acm());
    connect(&mut net, OTHERS[0], 100..132);
    connect(&mut net, OTHERS[1], 200..201);
    for n in 100..260 {
        let client = 100 + u32::try_from(n % 32).unwrap();
        assert_eq!(ask(&mut net, client, n, by_name(n), false), None);
    }
    net.pass(Duration::from_secs(1));
    let before = net.hosts[0].io.count;
    assert_eq!(ask(&mut net, 200, 1, by_name(1), false), None);
    while net.answer(0, RequestId(1)).is_none() {
        net.pass(Duration::from_millis(10));
    }
    assert!(matches!(net.answer(0, RequestId(1)), Some(Ok(_))));
    let sent = net.hosts[0].io.count - before;
    assert!(sent <= 4, "{sent}");
    net.pass(Duration::from_secs(100));
    assert_eq!(net.hosts[0].machine.open(), (0, 0));
}

#[test]
fn users_and_their_clients_take_turns_to_query_subnet_administration() {
    let mut net = Net::new(1, &Options::default());
    connect(&mut net, OTHERS[0], 100..104);
    connect(&mut net, OTHERS[1], 200..201);
    let by_gid = |n: usize| Dest::Address(gid(n).into());
    // The first client of the user has most requests; all of them are ahead of the others'.
    for (client, of_client) in [(100, 100..200), (101, 201..203), (102, 203..205), (200, 300..302)]
    {
        for n in of_client {
            assert_eq!(ask(&mut net, client, n, by_gid(n), false), None);
        }
    }
    let mut asked = alloc::vec::Vec::new();
    for _ in 0..12 {
        let (id, record) = net.hosts[0].io.questions.pop_front().unwrap();
        assert!(net.hosts[0].io.questions.is_empty(), "sa_depth");
        asked.push(record.dgid);
        let silent = Err(SaFailure::Silent);
        net.with(0, |machine, now, io| machine.handle_paths(now, id, silent, io));
    }
    let at = |n| asked.iter().position(|asked| *asked == gid(n)).unwrap_or(usize::MAX);
    let [other, second, third, fourth] = [300, 301, 201, 203].map(at);
    assert!(other <= 4 && second <= 8 && third <= 12 && fourth <= 12, "{asked:?}");
    net.with(0, |machine, _, _| {
        (100..201).for_each(|client| machine.remove_client(ClientId(client)))
    });
    net.pass(Duration::from_secs(100));
    assert_eq!(net.hosts[0].machine.open(), (0, 0));
}
