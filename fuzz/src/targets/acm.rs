//! ACM: datagrams between services, messages of clients, and files.

use std::fmt::Display;

use anyhow::Result;
use rdmux_acm_files::addresses::{self, Assignment, PkeyChoice};
use rdmux_acm_files::options::{self, Options};
use rdmux_acm_files::routes::{self, DumpedPort};
use rdmux_acm_files::{MAX_PROBLEMS, Report, hosts};
use rdmux_wire::acm::client::{
    Answer, Endpoint, EndpointInfo, Frame, Header, MAX_LEN, Op, Paths, Query, Refusal, Reply,
    Request, Statistic, Status, Subject,
};
use rdmux_wire::acm::{self, Address, Datagram, Group, MAX_GROUPS, Response};
use rdmux_wire::sa::{PathRecord, Rate};
use rdmux_wire::{Gid, Guid, Lid, Mtu, Pkey};

/// Checks that a parsed datagram is encoded identically, and that it has no more groups than allowed.
pub fn acm_datagram(data: &[u8]) {
    if let Ok(datagram) = Datagram::parse(data) {
        shows(&datagram);
        let (Datagram::Request(acm::Request { groups, .. })
        | Datagram::Response(Response { groups, .. })) = &datagram;
        assert!(groups.len() <= MAX_GROUPS);
        for group in groups.iter().filter_map(|gid| Group::from_gid(*gid).map(|group| (group, gid)))
        {
            assert_eq!(group.0.gid(), *group.1);
        }
        assert_eq!(Datagram::parse(&datagram.to_bytes()), Ok(datagram));
    }
}

/// Checks a service's side of a stream: each message is a request that is encoded identically, or is refused in one of two ways.
pub fn acm_request(data: &[u8]) {
    let mut rest = data;
    while let Ok(frame) = Frame::of_request(rest) {
        match frame {
            Frame::Needs(more) => {
                assert!(more > rest.len() && more <= MAX_LEN);
                return;
            }
            Frame::Whole(len) => {
                assert!((Header::LEN..=MAX_LEN).contains(&len));
                one_request(&rest[..len]);
                rest = &rest[len..];
            }
        }
    }
    assert!(rest.len() >= Header::LEN, "only a header is refused");
}

fn one_request(bytes: &[u8]) {
    match Request::parse(bytes) {
        Ok(request) => {
            assert_eq!(Request::parse(&request.to_bytes()), Ok(request));
        }
        Err(Refusal::Answer(header)) => {
            assert!(!header.status.is_success());
            let bytes = header.to_bytes();
            let reply = Reply::parse(&bytes).map(|reply| reply.answer);
            assert_eq!(reply, Ok(Answer::Failed(header.op, header.status)));
        }
        Err(refusal @ Refusal::Close(_)) => shows(&refusal),
    }
}

/// Checks a client's side of a stream: a parsed message is encoded identically.
pub fn acm_reply(data: &[u8]) {
    let mut rest = data;
    while let Ok(Frame::Whole(len)) = Frame::of_reply(rest) {
        if let Ok(reply) = Reply::parse(&rest[..len]) {
            let mut bytes = vec![0; reply.wire_len()];
            reply.emit(&mut bytes);
            assert!(bytes.len() <= len);
            assert_eq!(Reply::parse(&bytes), Ok(reply));
        }
        rest = &rest[len..];
    }
}

/// Checks that options parsed from any file can be written and read again.
pub fn acm_options(data: &[u8]) {
    let (options, report) = options::parse("opts", data);
    bounded(&report);
    let text = options::write(&options);
    let (again, report) = options::parse("again", text.as_bytes());
    assert_eq!(report.errors(), 0, "{report}");
    assert_eq!(again, options);
}

/// Checks that parsed addresses of endpoints can be written and read again.
pub fn acm_addresses(data: &[u8]) {
    let (named, report) = addresses::parse("addr", data, false);
    bounded(&report);
    assert!(named.all.iter().all(|a| matches!(a.address, Address::Name(_))));
    let (found, _) = addresses::parse("addr", data, true);
    assert_eq!(found.all.len(), found.lines.len());
    let text = addresses::write(&found.all);
    let (again, report) = addresses::parse("again", text.as_bytes(), true);
    assert_eq!(report.errors(), 0, "{report}");
    assert_eq!(again.all, found.all);
}

/// Checks that a hosts file yields only GIDs of ports.
pub fn acm_hosts(data: &[u8]) {
    let (hosts, report) = hosts::parse("hosts", data);
    bounded(&report);
    assert!(hosts.values().all(|gid| !gid.is_zero() && !gid.is_multicast()));
}

/// Checks that a routes file yields only LIDs of the requested ports.
pub fn acm_routes(data: &[u8]) {
    let local = DumpedPort { guid: Guid(0x11), base_lid: Lid(1) };
    let (routes, report) = routes::parse("dump", data, &[local]);
    bounded(&report);
    for (port, routes) in &routes.of {
        assert_eq!(*port, local);
        assert!(routes.iter().all(|(lid, route)| lid.is_unicast() && route.sl < 16));
    }
}

/// Checks that a report has at most the allowed number of problems, and shows each on a line.
fn bounded(report: &Report) {
    assert!(report.problems().len() <= MAX_PROBLEMS);
    let left_out = report.errors() + report.warnings() > MAX_PROBLEMS;
    let lines = report.problems().len() + usize::from(left_out);
    assert_eq!(report.to_string().lines().count(), lines, "{report}");
}

fn shows(value: &impl Display) {
    assert!(!value.to_string().is_empty());
}

pub(super) fn addresses() -> [Address; 5] {
    [
        Address::name("node1").expect("short"),
        Address::Ip4([10, 0, 0, 1].into()),
        Address::Ip6([0xfd00, 0, 0, 0, 0, 0, 0, 1].into()),
        Address::Gid(Gid([2; 16])),
        Address::Lid(Lid(7)),
    ]
}

/// Returns requests with each type of address, and answers.
///
/// # Errors
/// Never.
pub fn datagrams() -> Result<Vec<Vec<u8>>> {
    let group = |rate| Group { pkey: Pkey::DEFAULT, tos: 0, rate, mtu: Mtu::M2048 }.gid();
    let groups: acm::Groups = [group(Rate::GBPS_10), group(Rate::GBPS_100)].into_iter().collect();
    let all = addresses().map(|dest| {
        let [source, ..] = addresses();
        Datagram::Request(acm::Request { tid: 1, source, dest, groups: groups.clone() })
    });
    let response = |status| {
        let groups = groups.iter().take(1).copied().collect();
        Datagram::Response(Response { tid: 1, status, groups })
    };
    let all = all.into_iter().chain([response(0), response(0x300)]);
    Ok(all.map(|datagram| datagram.to_bytes().to_vec()).collect())
}

/// Returns each kind of request, and all of them in sequence.
///
/// # Errors
/// Never.
pub fn requests() -> Result<Vec<Vec<u8>>> {
    let [first, dest, ..] = addresses();
    let path = PathRecord { dlid: Lid(7), ..PathRecord::default() };
    let queries = [
        Query::Resolve { source: None, dest, cached_only: true },
        Query::Resolve { source: Some(first), dest, cached_only: false },
        Query::ResolvePath { path, cached_only: false },
        Query::QuerySa { path },
        Query::Counters(Subject::Service),
        Query::Counters(Subject::Index(2)),
        Query::Counters(Subject::Address(first)),
        Query::Endpoint { index: 1, port: 2 },
        Query::Flush(None),
        Query::Flush(Some(dest)),
        Query::Statistics,
    ];
    let mut all: Vec<Vec<u8>> =
        queries.map(|query| Request { tid: 9, query }.to_bytes().to_vec()).into();
    all.push(all.concat());
    Ok(all)
}

/// Returns each kind of answer, and all of them in sequence.
///
/// # Errors
/// Never.
pub fn replies() -> Result<Vec<Vec<u8>>> {
    let path = PathRecord { dlid: Lid(7), ..PathRecord::default() };
    let info = EndpointInfo { port_num: 1, ..EndpointInfo::default() };
    let (fields, statistics) = ([[b'x'; 64]; 2], [Statistic::new("claims", 5).to_bytes()]);
    let answers = [
        Answer::Failed(Op::RESOLVE, Status::TIMED_OUT),
        Answer::Paths(Paths::one(path, None)),
        Answer::Paths(Paths::one(path, Some(addresses()[0]))),
        Answer::Counters((0..7).collect()),
        Answer::Endpoint(Endpoint { info, fields: &fields }),
        Answer::Flushed(3),
        Answer::Statistics(&statistics),
    ];
    let bytes = |answer| {
        let reply = Reply { tid: 9, answer };
        let mut bytes = vec![0; reply.wire_len()];
        reply.emit(&mut bytes);
        bytes
    };
    let mut all: Vec<Vec<u8>> = answers.map(bytes).into();
    all.push(all.concat());
    Ok(all)
}

/// Returns options files.
///
/// # Errors
/// Never.
pub fn options_files() -> Result<Vec<Vec<u8>>> {
    let examples = options::OPTIONS.iter().filter(|row| !row.example.is_empty());
    let lines = examples.map(|row| format!("{} {}\n", row.name, row.example));
    let texts = [
        options::write(&Options::default()),
        options::write(&Options::fitted(300)),
        lines.collect(),
        "Addr_Timeout -1 # x\nprovider x y\nmin_rate 400\nlog_file stdout\nretries\nx 1\n"
            .to_owned(),
    ];
    Ok(texts.map(String::into_bytes).into())
}

/// Returns address files.
///
/// # Errors
/// Never.
pub fn address_files() -> Result<Vec<Vec<u8>>> {
    let of = |address, pkey| Assignment { address, device: "rxe0".to_owned(), port: 1, pkey };
    let all = addresses().map(|address| of(address, PkeyChoice::Of(Pkey(0x8001))));
    let texts = [
        addresses::write(&all),
        "node31 ibv0 1 default\n node31-1\tibv0 2 0x00FF x\n#\n10.0.0.1 a 1 7f\nx y 300 0\n"
            .to_owned(),
    ];
    Ok(texts.map(String::into_bytes).into())
}

/// Returns hosts files.
///
/// # Errors
/// Never.
pub fn hosts_files() -> Result<Vec<Vec<u8>>> {
    let texts =
        ["node1 fe80::1\n10.0.0.1 fe80::1 x\nfd00::1 fe80::2\nnode1 fe80::3\n", "a\nb ::\n"];
    Ok(texts.map(|text| text.as_bytes().to_vec()).into())
}

/// Returns dumps of OpenSM.
///
/// # Errors
/// Never.
pub fn dumps() -> Result<Vec<Vec<u8>>> {
    let texts = [
        "Channel Adapter 0x11, base LID 1, \"a\"\n# LID : SL : MTU : RATE\n0x0001 : 0 : 4 : 3\n0x2 : 1 : 5 : 16\n\
         3 : UNREACHABLE\n0xc000 : 0 : 4 : 3\nSwitch 0x0000000000000022, base LID 2, \"b\"\n1 : 0 : 4 : 3\n",
        "1 : 0 : 4 : 3\nRouter 0x11, base LID 0xc000\nSwitch 0x11, base LID 1\n2 : 16 : 4 : 3\n70000 : 0 : 4 : 3\n",
    ];
    Ok(texts.map(|text| text.as_bytes().to_vec()).into())
}
