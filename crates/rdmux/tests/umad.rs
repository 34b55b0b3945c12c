//! Management datagrams: agents, requests, messages by RMPP, addresses, and errors.

use std::io;
use std::time::Duration;

use rdmux::umad::sa::SaMad;
use rdmux::umad::sm::{Attribute, LinkDownDefault, NodeInfo, PhysState, PortInfo, PortState};
use rdmux::umad::smp::Smp;
use rdmux::umad::{
    Address, Agent, AgentAttr, Client, Event, Fabric, Grh, Incoming, Lid, Method, MgmtClass, Port,
    RequestAttr, Unanswered, Why,
};
use rdmux::{Cause, Gid};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Returns adapters connected back to back, and the port of the first one.
fn port() -> (Fabric, Port) {
    let fabric = Fabric::embedded("two").unwrap();
    let name = fabric.nodes().unwrap()[0].name.clone();
    let port = fabric.port(&name, 1).unwrap();
    (fabric, port)
}

fn directed() -> AgentAttr {
    AgentAttr::new(MgmtClass::SUBN_DIRECTED, 1)
}

fn node_info(route: &[u8]) -> [u8; 256] {
    Smp::directed(Method::GET, NodeInfo::ATTR_ID, 0, route).to_bytes()
}

const LONG: RequestAttr = RequestAttr { timeout: Duration::from_secs(60), retries: 0 };

fn mad(event: Event) -> Incoming {
    match event {
        Event::Mad(incoming) => incoming,
        Event::Unanswered(unanswered) => panic!("{unanswered:?}"),
    }
}

/// Assigns a LID to the port, as a subnet manager does; returns its GID.
fn give_lid(client: &mut Client, lid: Lid) -> Gid {
    let to = Address::directed();
    let get = Smp::directed(Method::GET, PortInfo::ATTR_ID, 1, &[]);
    let attribute = client.ask_smp(&to, &get).unwrap().attribute();
    let Some(Attribute::PortInfo(mut info)) = attribute else { panic!("{attribute:?}") };
    (info.lid, info.sm_lid) = (lid, lid);
    (info.port_state, info.port_physical_state) = (PortState(0), PhysState(0));
    info.link_down_default_state = LinkDownDefault(0);
    let mut set = Smp::directed(Method::SET, PortInfo::ATTR_ID, 1, &[]);
    set.set_attribute(&Attribute::PortInfo(info));
    assert_eq!(client.ask_smp(&to, &set).unwrap().status(), 0);
    let attribute = client.ask_smp(&to, &node_info_smp()).unwrap().attribute();
    let Some(Attribute::NodeInfo(node)) = attribute else { panic!("{attribute:?}") };
    let mut gid = Gid::ZERO;
    gid.0[..8].copy_from_slice(&info.gid_prefix.to_be_bytes());
    gid.0[8..].copy_from_slice(&node.port_guid.0.to_be_bytes());
    gid
}

fn node_info_smp() -> Smp {
    Smp::directed(Method::GET, NodeInfo::ATTR_ID, 0, &[])
}

#[test]
fn umad_client_gets_node_info_by_directed_route() {
    let (fabric, port) = port();
    let nodes = fabric.nodes().unwrap();
    let mut client = port.client(&directed()).unwrap();
    for (route, node) in [(&[][..], &nodes[0]), (&[1], &nodes[1])] {
        let smp = Smp::directed(Method::GET, NodeInfo::ATTR_ID, 0, route);
        let answer = client.ask_smp(&Address::directed(), &smp).unwrap();
        let Some(Attribute::NodeInfo(info)) = answer.attribute() else { panic!("{answer}") };
        assert_eq!((info.node_guid, node.is_switch), (node.guid, false));
    }
}

#[test]
fn unanswered_mad_times_out_and_the_next_request_is_answered() {
    let (_fabric, port) = port();
    let once = RequestAttr { timeout: Duration::from_nanos(1), retries: 1 };
    let mut client = port.client(&directed()).unwrap().wait_for(once);
    // An adapter forwards nothing.
    let e = client.ask(&Address::directed(), &node_info(&[1, 1])).unwrap_err();
    assert!(e.is_timeout(), "{e}");
    let mut client = client.wait_for(LONG);
    client.ask(&Address::directed(), &node_info(&[1])).unwrap();
}

#[test]
fn umad_answers_and_timeouts_match_requests_by_tid() {
    let (_fabric, port) = port();
    let agent = port.agent(&directed()).unwrap();
    let to = Address::directed();
    let soon = RequestAttr { timeout: Duration::from_millis(1), retries: 0 };
    let lost = agent.request(&to, &node_info(&[1, 1]), &soon).unwrap();
    let answered = agent.request(&to, &node_info(&[1]), &LONG).unwrap();
    assert_ne!(lost, answered);
    let events = [port.recv().unwrap(), port.recv().unwrap()];
    let of = |tid| events.iter().find(|event| event.tid() == Some(tid)).unwrap();
    let Event::Mad(mad) = of(answered) else { panic!("{events:?}") };
    assert_eq!((mad.agent, mad.mad.len(), mad.header.method), (agent.id(), 256, Method::GET_RESP));
    let Event::Unanswered(Unanswered { header, why, .. }) = of(lost) else { panic!("{events:?}") };
    assert_eq!((header.method, *why), (Method::GET, Why::TimedOut));
    assert_eq!(port.try_recv().unwrap(), None);
}

#[test]
fn mad_method_has_one_agent_and_is_free_when_it_is_dropped() {
    let (fabric, port) = port();
    let attr = AgentAttr::new(MgmtClass::SUBN_ADM, 2).methods([Method::GET, Method::SET]);
    let owner = port.agent(&attr).unwrap();
    let other = fabric.port(&fabric.nodes().unwrap()[0].name, 1).unwrap();
    let e =
        other.agent(&AgentAttr::new(MgmtClass::SUBN_ADM, 2).methods([Method::SET])).unwrap_err();
    assert!(matches!(e.cause(), Cause::Invalid(_)), "{e}");
    assert!(e.to_string().contains("another agent is registered for one of these methods"), "{e}");
    other.agent(&AgentAttr::new(MgmtClass::SUBN_ADM, 2)).unwrap();
    drop(owner);
    other.agent(&attr).unwrap();
}

#[test]
fn invalid_or_too_many_agent_registrations_are_refused() {
    let (_fabric, port) = port();
    let bad = [
        AgentAttr::new(MgmtClass(0x50), 1),
        AgentAttr::new(MgmtClass::PERF, 8),
        AgentAttr::new(MgmtClass::PERF, 1).rmpp(),
        AgentAttr::new(MgmtClass(0x32), 1),
    ];
    for attr in bad {
        let e = port.agent(&attr).unwrap_err();
        assert!(matches!(e.cause(), Cause::Invalid(_)), "{attr:?}: {e}");
    }
    port.agent(&AgentAttr::new(MgmtClass(0x32), 1).oui([0, 0x14, 5])).unwrap();
    let all: Vec<Agent> = (0..32).map(|_| port.agent(&directed()).unwrap()).collect();
    let e = port.agent(&directed()).unwrap_err();
    assert!(matches!(e.cause(), Cause::Resources(_)), "{e}");
    drop(all);
}

/// Returns a table of subnet administration with this many bytes of data.
fn table(method: Method, data: usize) -> Vec<u8> {
    let bytes: Vec<u8> = (0..251).cycle().take(data).collect();
    let mad = SaMad::new(method, 0x11, &bytes);
    [&mad.head()[..], &bytes[..]].concat()
}

#[test]
fn rmpp_messages_of_any_length_arrive_whole() {
    let (_fabric, port) = port();
    let fabric = port.fabric().clone();
    let far = fabric.port(&fabric.nodes().unwrap()[0].name, 1).unwrap();
    give_lid(&mut far.clone().client(&directed()).unwrap(), Lid(5));
    let sa = AgentAttr::new(MgmtClass::SUBN_ADM, 2);
    let server = port.agent(&sa.rmpp().methods([Method::GET_TABLE])).unwrap();
    let client = far.agent(&sa.rmpp()).unwrap();
    for data in [0, 200, 201, 100_000] {
        let question = table(Method::GET_TABLE, 0);
        let tid = client.request(&Address::gsi(Lid(5)), &question, &LONG).unwrap();
        let asked = mad(port.recv().unwrap());
        assert_eq!((asked.agent, asked.from.lid, asked.answers()), (server.id(), Lid(5), None));
        let answer = table(Method::GET_TABLE_RESP, data);
        server.respond(&asked, &answer).unwrap();
        let event = far.recv().unwrap();
        assert_eq!(event.tid(), Some(tid));
        let got = SaMad::parse(&mad(event).mad).unwrap().data.to_vec();
        assert_eq!(got[..data], answer[56..], "{data}");
    }
}

#[test]
fn addresses_have_a_gid_path_bits_and_the_index_of_a_pkey() {
    let (_fabric, port) = port();
    let fabric = port.fabric().clone();
    let far = fabric.port(&fabric.nodes().unwrap()[0].name, 1).unwrap();
    let gid = give_lid(&mut far.clone().client(&directed()).unwrap(), Lid(9));
    let server =
        port.agent(&AgentAttr::new(MgmtClass::SUBN_ADM, 2).methods([Method::GET])).unwrap();
    let client = far.agent(&AgentAttr::new(MgmtClass::SUBN_ADM, 2)).unwrap();
    let grh = Grh { gid_index: 0, gid, hop_limit: 3, traffic_class: 4, flow_label: 5 };
    let to = Address { grh: Some(grh), sl: 0, ..Address::gsi(Lid(9)) };
    client.request(&to, &table(Method::GET, 0), &LONG).unwrap();
    let asked = mad(port.recv().unwrap());
    assert_eq!((asked.from.grh, asked.from.pkey_index), (Some(grh), 0));
    server.respond(&asked, &table(Method::GET_RESP, 0)).unwrap();
    let answer = mad(far.recv().unwrap());
    assert_eq!(answer.from.grh.map(|grh| grh.gid), Some(gid));

    // Indices that the port's tables do not have.
    let no_gid = Address { grh: Some(Grh { gid_index: 200, ..grh }), ..to };
    for wrong in [no_gid, Address { pkey_index: 0xffff, ..Address::gsi(Lid(9)) }] {
        let tid = client.request(&wrong, &table(Method::GET, 0), &LONG).unwrap();
        let event = far.recv().unwrap();
        assert_eq!(event.tid(), Some(tid));
        let Event::Unanswered(Unanswered { why, .. }) = event else { panic!("{event:?}") };
        assert_eq!(why, Why::Refused(libc::EINVAL));
        assert!(why.to_string().contains("not sent"), "{why}");
    }
}

#[test]
fn malformed_mads_are_refused_at_send() {
    let (_fabric, port) = port();
    let agent = port.agent(&directed()).unwrap();
    let to = Address::directed();
    let response = {
        let mut smp = node_info(&[]);
        smp[3] = Method::GET_RESP.0;
        smp
    };
    let long = [&node_info(&[])[..], &[0]].concat();
    for bad in [&[][..], &[1; 23], &[2; 256], &response] {
        let e = agent.request(&to, bad, &LONG).unwrap_err();
        assert!(matches!(e.cause(), Cause::Invalid(_)), "{e}");
        assert!(agent.send(&to, bad).is_err());
    }
    let e = agent.request(&to, &long, &LONG).unwrap_err();
    assert!(matches!(e.cause(), Cause::TooLong { len: 257, max: 256 }), "{e}");
    let mut client = port.clone().client(&directed()).unwrap();
    let answer = client.ask(&to, &node_info(&[])).unwrap();
    let e = agent.respond(&answer, &node_info(&[])).unwrap_err();
    assert!(matches!(e.cause(), Cause::Invalid(_)), "{e}");
}

#[test]
fn umad_port_descriptor_is_readable_while_a_mad_is_queued() {
    let (_fabric, port) = port();
    let readable = || {
        let mut fds = [PollFd::new(&port, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).unwrap() == 1
    };
    assert!(!readable());
    assert!(port.recv_timeout(Duration::from_millis(1)).unwrap_err().is_timeout());
    let agent = port.agent(&directed()).unwrap();
    agent.request(&Address::directed(), &node_info(&[]), &LONG).unwrap();
    poll(&mut [PollFd::new(&port, PollFlags::IN)], None).unwrap();
    assert!(readable());
    port.recv_timeout(Duration::from_secs(60)).unwrap();
    assert!(!readable());
}

#[test]
fn is_sm_is_held_by_one_process_at_a_time() {
    let (fabric, _port) = port();
    let name = &fabric.nodes().unwrap()[0].name;
    let held = fabric.hold_is_sm(name, 1, false).unwrap();
    let e = io::Error::from(fabric.hold_is_sm(name, 1, false).unwrap_err());
    assert_eq!(e.kind(), io::ErrorKind::WouldBlock, "{e}");
    drop(held);
    fabric.hold_is_sm(name, 1, true).unwrap();
}

#[test]
fn unknown_node_port_and_fabric_names_are_errors() {
    let (fabric, _port) = port();
    for (node, number) in [("nobody", 1), ("0x1", 1)] {
        let e = fabric.port(node, number).unwrap_err();
        assert!(matches!(e.cause(), Cause::Fabric(_)), "{e}");
        assert!(e.to_string().contains(&format!("port {number} of")), "{e}");
    }
    assert!(matches!(Fabric::embedded("square").unwrap_err().cause(), Cause::Invalid(_)));
    assert!(matches!(Fabric::open("Not A Name").unwrap_err().cause(), Cause::Invalid(_)));
}

#[cfg(feature = "tokio")]
#[tokio::test]
async fn umad_answers_are_received_asynchronously() {
    let (_fabric, port) = port();
    let agent = port.agent(&directed()).unwrap();
    for _ in 0..3 {
        let tid = agent.request(&Address::directed(), &node_info(&[1]), &LONG).unwrap();
        assert_eq!(port.recv_async().await.unwrap().tid(), Some(tid));
    }
}
