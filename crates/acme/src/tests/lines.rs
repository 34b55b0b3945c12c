//! Output and exit statuses as in ib_acme of rdma-core 44, whose output for the same answers is copied here.

use std::net::Ipv4Addr;
use std::sync::Barrier;

use rdmux_wire::Lid;
use rdmux_wire::acm::Address;
use rdmux_wire::acm::client::{Answer, Endpoint, EndpointInfo, Query, Status, Subject};
use rdmux_wire::sa::PathRecord;

use super::run;
use super::service::{Scripted, answer, bytes, failed, path};

const PATH: &str = "\
Path information
  dgid: fe80::2
  sgid: fe80::1
  dlid: 7
  slid: 3
  flow label: 0x23456
  hop limit: 64
  tclass: 5
  reversible: 1
  pkey: 0xffff
  sl: 3
  mtu: 4
  rate: 6
  packet lifetime: 18
";

const COUNTERS: &str = "svc,Error Count,Resolve Count,No Data,Addr Query Count,Addr Cache Count,Route Query Count,Route Cache Count\n";
const ROW: &str = "SVC,1,22,333,4444,55555,666666,9223372036854775809\n";
const OK: &str = "return status 0x0\n";
const BAD: &str = "return status 0xffffffff\n";

/// Returns one destination's part of the output, with the source that the service chose.
fn chosen(destination: &str) -> String {
    format!("Destination: {destination}\nSource: 10.0.0.1\n{PATH}\n")
}

#[test]
fn paths_by_name_address_lid_and_gid() {
    let service = Scripted::well();
    for (line, parts) in [
        ("-f n -d node1", chosen("node1")),
        ("-d 10.0.0.2", chosen("10.0.0.2")),
        ("-d fe80::2", chosen("fe80::2")),
        ("-d localhost", chosen("127.0.0.1")),
        ("-f i -d 10.0.0.2 -s 10.0.0.1", chosen("10.0.0.2")),
        ("-f l -d 17", format!("Destination: 17\n{PATH}\n")),
        ("-f l -d 5 -s 3", format!("Destination: 5\nSource: 3\n{PATH}\n")),
        ("-f g -d fe80::5 -s fe80::6", format!("Destination: fe80::5\nSource: fe80::6\n{PATH}\n")),
        ("-f n -d n -C 3", format!("Destination: n\n{PATH}\n")),
        ("-f n -d n -C 0", chosen("n")),
        ("-f n -d n -s a -C 3", format!("Destination: n\nSource: a\n{PATH}\n")),
        ("-vcd nn -fname", chosen("nn").replace("18\n\n", "18\nSA verification: success\n\n")),
    ] {
        let expected = format!("Service: SVC\n{parts}{OK}");
        assert_eq!(run(&service, &format!("-S SVC {line}")), (0, expected), "{line}");
    }
}

#[test]
fn range_results_are_printed_in_order() {
    let service = Scripted::well();
    let nodes: String = ["node1", "node2", "node3", "node07", "node08"].map(chosen).concat();
    let expected = format!("Service: SVC\n{nodes}{OK}");
    assert_eq!(run(&service, "-S SVC -f n -d node[1-3,07-08]"), (0, expected));
    let pairs = [("n1", "s1"), ("n1", "s2"), ("n2", "s1"), ("n2", "s2")];
    let pairs = pairs.map(|(d, s)| format!("Destination: {d}\nSource: {s}\n{PATH}\n")).concat();
    let expected = format!("Service: SVC\n{pairs}{OK}");
    assert_eq!(run(&service, "-S SVC -f n -d n[1-2] -s s[1-2]"), (0, expected));
    let (status, said) = run(&service, "-S SVC -f n -d n[1-500]");
    assert_eq!(status, 0);
    let shown: Vec<_> =
        said.lines().filter_map(|line| line.strip_prefix("Destination: n")).collect();
    assert_eq!(shown, (1..=500).map(|n: u32| n.to_string()).collect::<Vec<_>>());
}

/// The service answers two requests together, once it has received both.
#[test]
fn destinations_of_a_range_are_resolved_in_parallel() {
    let both_wait = Barrier::new(2);
    let service = Scripted::new(move |request| {
        both_wait.wait();
        Some(bytes(request, answer(&request.query)))
    });
    let nodes = ["node1", "node2"].map(chosen).concat();
    let expected = format!("Service: SVC\n{nodes}{OK}");
    assert_eq!(run(&service, "-S SVC -f n -d node[1-2]"), (0, expected));
}

#[test]
fn questions_are_those_of_the_protocol() {
    let service = Scripted::well();
    run(&service, "-S SVC -c -d 10.0.0.2");
    run(&service, "-S SVC -f l -d 17 -v");
    run(&service, "-S SVC -P s -s 10.0.0.1");
    let record =
        PathRecord { dlid: Lid(17), reversible: true, numb_path: 1, ..PathRecord::default() };
    let ip = |last| Address::Ip4(Ipv4Addr::new(10, 0, 0, last));
    let expected = [
        Query::Resolve { source: None, dest: ip(2), cached_only: true },
        Query::ResolvePath { path: record, cached_only: false },
        Query::QuerySa { path: path() },
        Query::Counters(Subject::Address(ip(1))),
    ];
    assert_eq!(service.asked(), expected);
}

#[test]
fn failures_have_the_name_of_the_call_and_the_errno() {
    for (status, line, destination, call, errno) in [
        (Status::TIMED_OUT, "-f n -d n", "n", "ib_acm_resolve_name", "Connection timed out"),
        (Status::NO_DATA, "-d 10.0.0.2 -c", "10.0.0.2", "ib_acm_resolve_ip", "No data available"),
        (
            Status::DEST_ADDRESS,
            "-f l -d 1",
            "1",
            "ib_acm_resolve_path",
            "Cannot assign requested address",
        ),
    ] {
        let service = Scripted::failing(status);
        let expected =
            format!("Service: SVC\nDestination: {destination}\n{call} failed: {errno}\n\n{BAD}");
        assert_eq!(run(&service, &format!("-S SVC {line}")), (255, expected));
    }
}

#[test]
fn words_that_are_no_addresses_fail_before_anything_is_asked() {
    let service = Scripted::well();
    for (line, said) in [
        ("-f i -d foo", "Destination: foo\ninet_pton error on destination address (foo): 0x0"),
        (
            "-f i -d foo -s bar",
            "Destination: foo\nSource: bar\ninet_pton error on source address (bar): 0x0",
        ),
        ("-f g -d zz", "Destination: zz\ninet_pton error on dest address (zz): 0x0"),
        (
            "-d 10.0.0.2 -s ::1",
            "Destination: 10.0.0.2\nSource: ::1\nsource and destination address families don't match",
        ),
        (
            "-f i -d zz -C 2",
            "Destination: zz\ninet_pton error on destination address (zz): 0x0\ninet_pton error on destination address (zz): 0x0",
        ),
    ] {
        let expected = format!("Service: SVC\n{said}\n\n{BAD}");
        assert_eq!(run(&service, &format!("-S SVC {line}")), (255, expected));
    }
    assert_eq!(service.asked(), []);
}

#[test]
fn status_is_that_of_the_last_destination() {
    let service = Scripted::well();
    assert_eq!(run(&service, "-S SVC -f i -d 10.0.0.[256,1]").0, 0);
    assert_eq!(run(&service, "-S SVC -f i -d 10.0.0.[1,256] -P").0, 255);
    // A document contains all of them.
    assert_eq!(run(&service, "--json -S SVC -f i -d 10.0.0.[256,1]").0, 255);
}

#[test]
fn counters_in_rows_and_columns() {
    let service = Scripted::well();
    let column = "SVC\nError Count : 1\nResolve Count : 22\nNo Data : 333\nAddr Query Count : 4444\nAddr Cache Count : 55555\nRoute Query Count : 666666\nRoute Cache Count : 9223372036854775809\n";
    for (line, said) in [
        ("-P", format!("{COUNTERS}{ROW}")),
        ("-P 1", format!("{COUNTERS}{ROW}")),
        ("-P -v", format!("{COUNTERS}{ROW}")),
        ("-Pcol", column.to_owned()),
        ("-P all", format!("{COUNTERS}{ROW}{ROW}")),
        ("-P s -s host1 -f n", format!("{COUNTERS}{ROW}")),
        ("-P 3", "SVC: Failed to query perf data: Invalid argument\n".to_owned()),
    ] {
        assert_eq!(run(&service, &format!("-S SVC {line}")), (0, format!("{said}{OK}")), "{line}");
    }
    let failing = Scripted::failing(Status(200));
    assert_eq!(run(&failing, "-S SVC -P all"), (0, OK.to_owned()));
}

#[test]
fn endpoints_of_all_ports() {
    const HEAD: &str = "svc,guid,port,pkey,ep_index,prov,addr_0,addresses\n";
    let row = |port, index, addresses: &str| {
        format!("SVC,0x1122334455667788,{port},0xffff,{index},ibacmp,{addresses}\n")
    };
    let first = row(1, 1, "hosta") + &row(2, 1, "hosta");
    let second = row(1, 2, "hosta,10.0.0.1") + &row(2, 2, "hosta,10.0.0.1");
    let service = Scripted::well();
    for (line, said) in [
        ("-e", format!("{HEAD}{first}{second}")),
        ("-e0", format!("{HEAD}{first}{second}")),
        ("-e 2", format!("{HEAD}{second}")),
        ("-e 3", " Endpoint 3 is not available\n".to_owned()),
        ("-e 1 -P -f n -d n", format!("Service: SVC\n{}{COUNTERS}{ROW}{HEAD}{first}", chosen("n"))),
    ] {
        assert_eq!(run(&service, &format!("-S SVC {line}")), (0, format!("{said}{OK}")), "{line}");
    }
    assert_eq!(run(&Scripted::failing(Status::INVALID), "-S SVC -e"), (0, OK.to_owned()));
}

/// The first device has one port. The second has two, of which only the second has an endpoint.
#[test]
fn endpoints_of_a_device_with_more_ports_than_the_first_are_listed() {
    let service = Scripted::new(|request| {
        let (port, count) = match request.query {
            Query::Endpoint { index: 1, port: 0 | 1 } => (1, 1),
            Query::Endpoint { index: 2, port: 0 } | Query::Endpoint { index: 1, port: 2 } => (2, 2),
            _ => return Some(failed(request, Status::INVALID)),
        };
        let info = EndpointInfo { port_num: port, phys_port_cnt: count, ..EndpointInfo::default() };
        Some(bytes(request, Answer::Endpoint(Endpoint { info, fields: &[] })))
    });
    for line in ["-S SVC -e", "-S SVC -e 1"] {
        let (_, said) = run(&service, line);
        let ports: Vec<_> = said.lines().filter_map(|row| row.split(',').nth(2)).collect();
        assert_eq!(ports, ["port", "1", "2"], "{said}");
    }
}

#[test]
fn missing_service_exits_with_enoent_and_last_service_decides_status() {
    let service = Scripted::well();
    let gone = "SVC-gone,unable to contact service: No such file or directory\n";
    let expected = (2, format!("{gone}return status 0x2\n"));
    assert_eq!(run(&service, "-S SVC-gone -P"), expected);
    // SVC1 and SVC are different words, so the list has paths that are links.
    let path = service.path();
    std::os::unix::fs::symlink(path, path.with_file_name("svc7")).unwrap();
    let (status, said) = run(&service, "-S SVC[6-7] -P");
    let gone = "SVC6,unable to contact service: No such file or directory\n";
    let row = ROW.replace("SVC", "SVC7");
    assert_eq!((status, said), (0, format!("{gone}{COUNTERS}{row}{OK}")));
}
