//! The resolver: any datagrams, requests, answers, changes and timeouts in any order.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::Result;
use rdmux_acm::{
    ClaimPolicy, ClientId, Dest, Endpoint, EndpointId, Failure, Forget, Io, Known, Machine,
    Options, Peer, Port, PortId, PortKind, QuestionId, Request, RequestId, Resolved, RouteProtocol,
    SaFailure, System, Time, To,
};
use rdmux_wire::acm::{self, Address, Datagram, Response};
use rdmux_wire::sa::{McMemberRecord, McMemberRecordMask, PathRecord, PathRecordMask, Rate};
use rdmux_wire::{Gid, Guid, Lid, Mtu, Pkey, Qpn};

const PREFIX: u64 = Gid::DEFAULT_PREFIX;
const ENDPOINTS: usize = 3;
const MAX_ENTRIES: usize = 16;
const MAX_REQUESTS: usize = 8;
const DEADLINE: Duration = Duration::from_secs(5);

/// The output of the machine, and its outstanding requests.
#[derive(Default)]
struct Driver {
    /// The deadline of each outstanding request.
    waiting: BTreeMap<(ClientId, RequestId), Time>,
    joins: Vec<(EndpointId, McMemberRecord)>,
    member_of: BTreeSet<(EndpointId, Gid)>,
    paths: Vec<(QuestionId, PathRecord)>,
    system: Vec<QuestionId>,
    /// The last request that was sent.
    last: Option<acm::Request>,
    full: bool,
    /// The number of requests that got a path.
    resolved: usize,
}

impl Io for Driver {
    fn send(&mut self, endpoint: EndpointId, to: To, datagram: &Datagram) -> bool {
        assert_eq!(Datagram::parse(&datagram.to_bytes()).as_ref(), Ok(datagram));
        match to {
            To::Group(gid) => assert!(self.member_of.contains(&(endpoint, gid)), "not a member"),
            To::Peer(peer) => assert!(peer.lid.is_unicast()),
        }
        if let Datagram::Request(request) = datagram {
            self.last = Some(request.clone());
        }
        !self.full
    }
    fn join(&mut self, endpoint: EndpointId, record: &McMemberRecord, _: McMemberRecordMask) {
        assert!(acm::Group::from_gid(record.mgid).is_some());
        self.joins.retain(|(by, earlier)| (*by, earlier.mgid) != (endpoint, record.mgid));
        self.joins.push((endpoint, *record));
    }
    fn leave(&mut self, endpoint: EndpointId, mgid: Gid) {
        self.member_of.remove(&(endpoint, mgid));
    }
    fn ask_paths(&mut self, _: PortId, id: QuestionId, path: &PathRecord, _: PathRecordMask) {
        self.paths.push((id, *path));
    }
    fn ask_system(&mut self, _: EndpointId, question: QuestionId, _: &Address) {
        self.system.push(question);
    }
    fn answer(&mut self, client: ClientId, id: RequestId, answer: Result<Resolved, Failure>) {
        assert!(self.waiting.remove(&(client, id)).is_some(), "answered twice, or never asked");
        match answer {
            Ok(_) => self.resolved += 1,
            Err(failure) => {
                assert!(!failure.status().is_success() || failure == Failure::Sa(0));
            }
        }
    }
}

fn name(n: u8) -> Address {
    match n % 5 {
        0 => Address::name(format!("node{}", n % 32)).expect("short"),
        1 => Ipv4Addr::new(10, 0, 0, n % 32).into(),
        2 => Gid::new(PREFIX, Guid(u64::from(n % 32))).into(),
        3 => Lid(u16::from(n % 32)).into(),
        _ => Address::name([n | 1; 63]).expect("no zero"),
    }
}

fn port(a: u8, b: u8) -> Port {
    let kind = match a & 3 {
        0 | 1 => PortKind::InfiniBand,
        2 => PortKind::Roce,
        _ => PortKind::Iwarp,
    };
    Port {
        kind,
        is_active: b & 3 != 0,
        device_guid: Guid(a.into()),
        number: 1,
        count: 1,
        lid: Lid(u16::from(b >> 4)),
        lmc: (b >> 2) & 3,
        sm_lid: Lid(1),
        sm_sl: 0,
        gids: vec![Gid::new(PREFIX, Guid(u64::from(a >> 5)))],
        pkeys: vec![Pkey::DEFAULT, Pkey(u16::from(a >> 6))],
        rate: Rate(a >> 4),
        mtu: Mtu::from_code(b % 6).unwrap_or(Mtu::M4096),
        subnet_timeout: a,
    }
}

fn options(choice: u8) -> Options {
    Options {
        claims: match choice & 3 {
            0 => ClaimPolicy::First,
            1 => ClaimPolicy::Newest,
            _ => ClaimPolicy::Verified,
        },
        route_protocol: if choice & 4 == 0 { RouteProtocol::Acm } else { RouteProtocol::Sa },
        address_timeout: Duration::from_secs(u64::from(choice >> 3)),
        route_timeout: Duration::from_secs(10),
        timeout: Duration::from_millis(100),
        deadline: DEADLINE,
        max_groups: 1 + usize::from(choice >> 4) % 6,
        max_entries: MAX_ENTRIES,
        max_requests: MAX_REQUESTS,
        max_requests_per_client: MAX_REQUESTS / 2,
        ..Options::default()
    }
}

/// Returns a request that a neighbour could send, or one that is slightly invalid.
fn datagram(driver: &Driver, a: u8, b: u8, c: u8) -> [u8; 256] {
    let groups = driver.member_of.iter().map(|(_, gid)| *gid).skip(usize::from(c) & 1).take(6);
    let datagram = match (&driver.last, c & 2) {
        (Some(last), 0) => Datagram::Response(Response {
            tid: last.tid,
            status: u16::from(c >> 6) << 8,
            groups: groups.take(1).collect(),
        }),
        _ => Datagram::Request(acm::Request {
            tid: c.into(),
            source: name(a),
            dest: name(b),
            groups: groups.collect(),
        }),
    };
    datagram.to_bytes()
}

fn question(a: u8, b: u8, c: u8) -> Request {
    let path = || PathRecord {
        dgid: Gid::new(PREFIX, Guid(u64::from(a % 32))),
        dlid: Lid(u16::from(b)),
        sgid: if c & 1 == 0 { Gid::ZERO } else { Gid::new(PREFIX, Guid(u64::from(c >> 5))) },
        ..PathRecord::default()
    };
    Request {
        source: (c & 2 != 0).then(|| name(b)),
        dest: match c & 12 {
            4 => Dest::Path(path()),
            8 => Dest::Query(path()),
            _ => Dest::Address(name(a)),
        },
        no_delay: c & 16 != 0,
        timeout: (c & 32 != 0).then(|| Duration::from_millis(u64::from(a) * 16)),
    }
}

/// Checks that each request is answered once and in time, that datagrams are only sent where allowed, and that all state is
/// bounded.
pub fn acm_machine(data: &[u8]) {
    run(data);
}

/// Runs a script. Returns the number of requests that got a path.
fn run(data: &[u8]) -> usize {
    let Some((&first, mut rest)) = data.split_first() else { return 0 };
    let mut machine = Machine::new(options(first), [first; 16]);
    let (mut io, mut now, mut requests) = (Driver::default(), Time::ZERO, 0);
    while let Some((&[command, a, b, c], tail)) = rest.split_first_chunk() {
        rest = tail;
        let endpoint = EndpointId(u16::from(a) % 3);
        match command % 20 {
            0 => now = now.after(Duration::from_millis(u64::from(b) << (c & 7))),
            1 => machine.set_port(now, PortId(u16::from(c & 1)), port(a, b), &mut io),
            2 if c & 7 == 0 => machine.remove_port(now, PortId(u16::from(a & 1)), &mut io),
            2 => machine.reregister(now, PortId(u16::from(a & 1)), &mut io),
            3 => {
                let addresses: BTreeSet<Address> = [name(b), name(c)].into();
                let endpoint_is = Endpoint {
                    port: PortId(u16::from(a >> 4) & 1),
                    pkey: if a & 8 == 0 { Pkey::DEFAULT } else { Pkey(u16::from(c)) },
                    qpn: Qpn::new(u32::from(b) + 2),
                    addresses: addresses.into_iter().collect(),
                };
                machine.set_endpoint(now, endpoint, endpoint_is, &mut io);
            }
            4 if c & 7 == 0 => machine.remove_endpoint(now, endpoint, &mut io),
            4..=6 => {
                let (client, id) = (ClientId(u32::from(b & 3)), RequestId(requests));
                requests += 1;
                let request = question(a, b, c);
                let wait = request.timeout.map_or(DEADLINE, |wait| wait.min(DEADLINE));
                io.waiting.insert((client, id), now.after(wait));
                machine.request(now, client, id, &request, &mut io);
            }
            7 => {
                let client = ClientId(u32::from(b & 3));
                if c & 3 == 0 {
                    io.waiting.retain(|(other, _), _| *other != client);
                    machine.remove_client(client);
                } else if let Some(&(client, id)) = io.waiting.keys().next() {
                    io.waiting.remove(&(client, id));
                    machine.cancel(client, id);
                }
            }
            8 | 9 if !io.joins.is_empty() => {
                let (endpoint, record) = io.joins.remove(usize::from(a) % io.joins.len());
                let record = McMemberRecord { mlid: Lid(0xc000 | u16::from(b)), ..record };
                let answer = if c & 7 == 0 { Err(SaFailure::Silent) } else { Ok(&record) };
                if answer.is_ok() {
                    io.member_of.insert((endpoint, record.mgid));
                }
                machine.handle_join(now, endpoint, record.mgid, answer, &mut io);
            }
            10 | 11 if !io.paths.is_empty() => {
                let (id, path) = io.paths.remove(usize::from(a) % io.paths.len());
                let path = PathRecord { dlid: Lid(u16::from(b)), slid: Lid(u16::from(c)), ..path };
                let answer = match c & 7 {
                    0 => Err(SaFailure::Silent),
                    1 => Err(SaFailure::Status(u16::from(b) << 8)),
                    _ => Ok(&path),
                };
                machine.handle_paths(now, id, answer, &mut io);
            }
            12 if !io.system.is_empty() => {
                let id = io.system.remove(usize::from(a) % io.system.len());
                let gid = Ipv4Addr::new(10, 0, 0, b).into();
                let known = System { gid, source: Gid::ZERO, mtu: Mtu::M1024, hop_limit: c };
                let is_asked = machine.clients_of(id).next().is_some();
                let is_wanted = c & 8 == 0 || machine.is_wanted(now, id);
                assert!(is_wanted || !is_asked, "a client waits");
                if is_wanted && c & 16 != 0 {
                    machine.refuse_system(now, id, &mut io);
                } else if is_wanted {
                    machine.handle_system(now, id, (c & 7 != 0).then_some(&known), &mut io);
                }
            }
            13..=15 => {
                let mut bytes = datagram(&io, a, b, c);
                if c & 32 != 0 {
                    let at = usize::from(b);
                    bytes[at] = bytes[at].wrapping_add(a);
                }
                let gid = Gid::new(PREFIX, Guid(u64::from(b % 32)));
                let from = Peer { gid, lid: Lid(u16::from(b)), qpn: Qpn::new(u32::from(c)), sl: 0 };
                let len = if c == 255 { usize::from(a) } else { 256 };
                machine.handle_datagram(now, endpoint, &from, &bytes[..len], &mut io);
            }
            16 => {
                let gid = Gid::new(PREFIX, Guid(u64::from(c % 32)));
                let what = match b % 6 {
                    0 => Forget::All,
                    1 => Forget::Endpoint(endpoint),
                    2 => Forget::Address(name(c)),
                    3 => Forget::Gid(gid),
                    4 => Forget::Lid(Lid(u16::from(c))),
                    _ => Forget::Routes,
                };
                machine.forget(now, what, &mut io);
            }
            17 if c & 7 == 0 => machine.unload(now, endpoint, &mut io),
            17 => {
                let gid = Gid::new(PREFIX, Guid(u64::from(c % 32)));
                let known = Known { gid, lid: Lid(u16::from(c)), path: None };
                machine.load(now, endpoint, name(b), &known, &mut io);
            }
            18 => {
                io.full = b & 1 == 1;
                machine.handle_room(now, endpoint, &mut io);
                if c & 15 == 0 {
                    machine.set_options(now, options(a), &mut io);
                }
            }
            _ => now = machine.poll_timeout().map_or(now, |at| now.max(at)),
        }
        machine.handle_timeout(now, &mut io);
        check(&machine, &io, now);
    }
    machine.handle_timeout(now.after(DEADLINE), &mut io);
    assert!(io.waiting.is_empty(), "{:?} are not answered", io.waiting);
    io.resolved
}

fn check(machine: &Machine, io: &Driver, now: Time) {
    let late = io.waiting.iter().find(|(_, until)| **until < now);
    assert_eq!(late, None, "a request has no answer at {now:?}");
    assert!(machine.memory().0 <= MAX_ENTRIES * ENDPOINTS, "{:?}", machine.memory());
    let (requests, searches) = machine.open();
    assert_eq!(requests, io.waiting.len());
    assert!(requests <= MAX_REQUESTS && searches <= 4 * MAX_REQUESTS, "{requests} {searches}");
    for (id, _) in machine.endpoints() {
        assert!(machine.groups(id).len() <= acm::MAX_GROUPS);
    }
}

/// Returns scripts in which a port and endpoints join their groups, send and receive requests.
///
/// # Errors
/// Never.
pub fn scripts() -> Result<Vec<Vec<u8>>> {
    let start = [
        [1, 0x30, 0x35, 0], // a port
        [3, 0, 0, 1],       // an endpoint
        [3, 1, 5, 6],       // another
        [8, 0, 1, 1],       // they join
        [8, 0, 1, 1],
        [8, 0, 1, 1],
        [8, 0, 1, 1],
    ];
    let ask = [[5, 10, 0, 2], [14, 9, 4, 4], [10, 0, 4, 3], [5, 10, 0, 2], [19, 0, 0, 0]];
    let claims = [[13, 15, 4, 6], [13, 15, 9, 6], [11, 0, 9, 9], [16, 0, 0, 0], [0, 0, 200, 7]];
    let system =
        [[1, 2, 0x31, 0], [3, 0, 0, 1], [5, 1, 0, 0], [12, 0, 3, 1], [17, 0, 3, 3], [18, 0, 1, 0]];
    let all = |parts: &[&[[u8; 4]]], first| [&[first], parts.concat().concat().as_slice()].concat();
    Ok(vec![
        all(&[&start, &ask, &ask, &claims, &ask], 0x80),
        all(&[&start, &claims, &claims, &claims[2..3], &ask], 0x86),
        all(&[&start, &ask, &claims], 0x45),
        all(&[&system, &ask, &system], 0xf0),
    ])
}

#[cfg(test)]
mod tests {
    #[test]
    fn scripts_resolve_addresses() {
        let scripts = super::scripts().expect("scripts");
        let resolved: Vec<usize> = scripts.iter().map(|script| super::run(script)).collect();
        assert!(resolved.iter().all(|n| *n > 0), "{resolved:?}");
    }
}
