//! A subnet: topology files, and datagrams to its agents.

use std::time::Duration;

use anyhow::Result;
use rdmux_subnet::topology::{Included, LinkRate, Shape};
use rdmux_subnet::{
    Config, Counter, Fault, MadPacket, NodeId, PortEvent, PortId, Sink, Subnet, Time, Topology,
};
use rdmux_wire::mad::MAD_LEN;
use rdmux_wire::sm::{CapabilityMask, PortState};
use rdmux_wire::{Guid, Lid, Pkey, Qkey, Qpn};

/// Checks that a topology file is parsed or refused, and that a parsed one can be written and read again. Form feeds separate
/// files, which include each other by number.
pub fn subnet_topology(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let files: Vec<&str> = text.split('\u{c}').collect();
    let mut open = |_: &str, name: &str| {
        let file = name.parse().ok().and_then(|at: usize| files.get(at)).ok_or("no such file")?;
        Ok(Included { name: name.to_owned(), text: (*file).to_owned() })
    };
    match Topology::parse_with(files[0], &mut open) {
        Err(e) => {
            let lines = files.iter().map(|file| file.lines().count()).max();
            assert!(lines.is_some_and(|lines| (1..=lines).contains(&e.place.line)), "{e}");
        }
        Ok(topology) => {
            let written = topology.to_string();
            let again = Topology::parse(&written).unwrap_or_else(|e| panic!("{e}\n{written}"));
            assert_eq!(again, topology, "{written}");
            let ports: usize = topology.nodes.iter().map(|n| usize::from(n.num_ports)).sum();
            if ports < 1000 {
                let subnet = Subnet::new(&topology, Config::default());
                assert_eq!(subnet.topology().to_string(), written);
            }
        }
    }
}

/// Returns files of some shapes, with and without LIDs.
///
/// # Errors
/// Never.
pub fn topologies() -> Result<Vec<Vec<u8>>> {
    let mut all = Vec::new();
    for shape in ["two", "switch:3", "torus:2x2x1", "dragonfly:2,1,1"] {
        let shape: Shape = shape.parse()?;
        let text = shape.topology(Guid(0x10_0000)).to_string();
        all.push(text.replace("lid 0", "lid 7").into_bytes());
        all.push(text.into_bytes());
    }
    all.push(
        b"module=\"a\"\ninclude \"1\"\nmodule=\"b\"\ninclude \"1\"\ndo Link \"a@x\" \"b@x\"\n\
          do Guid \"b#h\"[1] 0x7\ndo Baselid \"a#h\"[1] 4 1\n\x0cSwitch 3 \"s\"\n[1] \"h\"\n@[2] \"x\"\n\n\
          hcaguids+5\nHca 1 \"h\"\n[1] \"s\"\n"
            .to_vec(),
    );
    all.push(b"width=3\nHca 2 \"a\"\n[1](c) \"b\"[1] w=1 s=1 e=2\n\nRt 1 \"b\" # \"x\"\n".to_vec());
    Ok(all)
}

/// The output of the subnet.
#[derive(Default)]
struct World {
    delivered: usize,
}

impl Sink for World {
    fn deliver(&mut self, _: PortId, _: MadPacket) {
        self.delivered += 1;
    }
    fn port_event(&mut self, _: PortId, _: PortEvent) {}
}

/// Runs programs' datagrams, operators' commands and time, in any order, on two switches in a ring with two adapters.
pub fn subnet_agents(data: &[u8]) {
    let shape = Shape::Dragonfly { a: 2, p: 1, h: 1, g: 1 };
    let mut subnet = Subnet::new(&shape.topology(Guid(0x100)), Config::default());
    let mut world = World::default();
    let mut now = Time::ZERO;
    let mut rest = data;
    while let Some((&[command, a, b, c], tail)) = rest.split_first_chunk() {
        rest = tail;
        let [x, y] = [a, b].map(|byte| PortId::new(NodeId(u32::from(byte % 5)), byte / 5 % 6));
        match command % 17 {
            0 => drop(subnet.plug(now, x, y, LinkRate::DEFAULT, &mut world)),
            1 => drop(subnet.unplug(now, x, &mut world)),
            2 => drop(subnet.set_cable(now, x, b & 1 == 1, &mut world)),
            3 => drop(subnet.reset_switch(now, x.node, &mut world)),
            4 => subnet.set_is_sm(now, x, b & 1 == 1, &mut world),
            5 => subnet.set_attached(x, b & 1 == 1),
            6 => subnet.count(x, Counter::SymbolError, u64::from(b) << 32 | u64::from(c)),
            16 => {
                let fault = [Fault::Symbol, Fault::Overrun, Fault::Watchdog][usize::from(b % 3)];
                subnet.fault(now, x, fault, u32::from(c) << (b & 31), &mut world);
                subnet.set_system_guid(now, y.node, Guid(c.into()), &mut world);
            }
            7 => {
                now = now.after(Duration::from_millis(u64::from(b) << (c & 7)));
                subnet.handle_timeout(now, &mut world);
            }
            _ => {
                let (mad, tail) = rest.split_at(rest.len().min(MAD_LEN));
                rest = tail;
                subnet.send(now, x, datagram([b, c], mad), &mut world);
            }
        }
        check(&subnet);
    }
}

fn datagram([b, c]: [u8; 2], bytes: &[u8]) -> MadPacket {
    let mut mad = Box::new([0; MAD_LEN]);
    mad[..bytes.len()].copy_from_slice(bytes);
    let lid = |bits: u8| Lid([0xffff, 0, 1, 2, 3, 4, 0xc000, 0xbfff][usize::from(bits & 7)]);
    MadPacket {
        slid: lid(b),
        dlid: lid(b >> 3),
        sl: c >> 4,
        src_qpn: Qpn::new((b >> 6).into()),
        dst_qpn: Qpn::new((c & 1).into()),
        qkey: if c & 2 == 0 { Qkey::QP1 } else { Qkey(0) },
        pkey: if c & 4 == 0 { Pkey::DEFAULT } else { Pkey(0x7fff) },
        grh: None,
        mad,
    }
}

/// Checks the invariants after each step.
fn check(subnet: &Subnet) {
    for view in subnet.ports() {
        let info = view.info();
        assert!(info.lid.is_unicast() || info.lid == Lid::NONE, "{}", view.id());
        assert_eq!(info.lid.0 & ((1 << info.lmc) - 1), 0, "{}", view.id());
        let linked = subnet.peer(view.id()).is_some() || view.id().number == 0;
        assert!(linked || info.port_state == PortState::DOWN, "{}", view.id());
        assert!(info.neighbor_mtu <= info.mtu_cap && info.operational_vls <= info.vl_cap);
        assert!(!info.capability_mask.contains(CapabilityMask::NOTICE));
    }
}

/// Returns scripts of a few datagrams: a Get and a Set of every attribute by a directed route.
///
/// # Errors
/// Never.
pub fn scripts() -> Result<Vec<Vec<u8>>> {
    use rdmux_wire::mad::Method;
    use rdmux_wire::smp::Smp;
    let mut all = Vec::new();
    for attr_id in [0x02, 0x10, 0x11, 0x12, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1b, 0x20] {
        for (method, hops) in [(Method::GET, &[1u8][..]), (Method::SET, &[1]), (Method::SET, &[])] {
            let smp = Smp::directed(method, attr_id, 0, hops);
            // Node 2 is an adapter; port 1; both LIDs permissive; QP0.
            let mut script = vec![15, 2 + 5, 0, 0];
            script.extend_from_slice(&smp.to_bytes());
            all.push(script);
        }
    }
    Ok(all)
}
