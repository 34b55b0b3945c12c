//! Management datagrams: discovers a subnet by directed routes, as `ibnetdiscover` does.
//!
//! Without arguments it runs on a private fabric. `device` uses the port of this host's InfiniBand device, and
//! `FABRIC NODE [PORT]` a port of a fabric that is up (`rdmux fabric up`, `rdmux fabric show`).

use std::collections::{HashSet, VecDeque};

use rdmux::umad::sm::{Attribute, NodeDescription, NodeInfo, NodeType, PortInfo, PortState};
use rdmux::umad::smp::Smp;
use rdmux::umad::{Address, AgentAttr, Client, Fabric, Method, MgmtClass, Port};
use rdmux::{Context, DeviceKind};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> Result {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let port = match args[..] {
        [] => own()?,
        ["device"] => Port::open(&Context::builder().device(DeviceKind::Ib).open()?, 1)?,
        [fabric, node] => Fabric::open(fabric)?.port(node, 1)?,
        [fabric, node, port] => Fabric::open(fabric)?.port(node, port.parse()?)?,
        _ => return Err("usage: [device | FABRIC NODE [PORT]]".into()),
    };
    // An agent without methods receives only the answers to its requests.
    let agent = AgentAttr::new(MgmtClass::SUBN_DIRECTED, 1);
    discover(&mut port.client(&agent)?)
}

/// Returns a port of a private fabric, which exists as long as the port.
fn own() -> Result<Port> {
    let fabric = Fabric::embedded("switch:4")?;
    let nodes = fabric.nodes()?;
    let adapter = nodes.iter().find(|node| !node.is_switch).ok_or("no adapter")?;
    println!("from {} of a fabric of this process's own", adapter.name);
    Ok(fabric.port(&adapter.name, 1)?)
}

/// Discovers the subnet breadth first: queries each node, and follows the ports of switches and of the own node.
fn discover(client: &mut Client) -> Result {
    let (mut seen, mut next) = (HashSet::new(), VecDeque::from([vec![]]));
    while let Some(route) = next.pop_front() {
        let Attribute::NodeInfo(node) = get(client, &route, NodeInfo::ATTR_ID, 0)? else {
            return Err("an answer to another question".into());
        };
        if !seen.insert(node.node_guid) {
            continue;
        }
        let name = get(client, &route, NodeDescription::ATTR_ID, 0)?;
        println!("{route:?}: {} {}, {name}", node.node_type, node.node_guid);
        let is_switch = node.node_type == NodeType::SWITCH;
        let ports =
            if is_switch { 1..=node.num_ports } else { node.local_port_num..=node.local_port_num };
        // An adapter forwards nothing, so only the own adapter's ports are followed.
        for port in ports.filter(|_| is_switch || route.is_empty()) {
            let Attribute::PortInfo(info) = get(client, &route, PortInfo::ATTR_ID, port.into())?
            else {
                return Err("an answer to another question".into());
            };
            if info.port_state != PortState::DOWN {
                next.push_back([&route[..], &[port]].concat());
            }
        }
    }
    println!("{} nodes", seen.len());
    Ok(())
}

fn get(client: &mut Client, route: &[u8], attr_id: u16, modifier: u32) -> Result<Attribute> {
    let question = Smp::directed(Method::GET, attr_id, modifier, route);
    let answer = client.ask_smp(&Address::directed(), &question)?;
    match answer.attribute() {
        Some(attribute) if answer.status() == 0 => Ok(attribute),
        _ => Err(format!("{route:?}: {answer}").into()),
    }
}
