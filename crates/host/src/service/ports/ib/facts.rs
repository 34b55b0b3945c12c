//! Converts a fabric's description of a port to the form for processes. A fabric is another process: impossible values
//! are refused.

use rdmux_fabric::proto::{Described, PortFacts};
use rdmux_verbs::control::DeviceKind;
use rdmux_verbs::port::{
    Adapter, GidEntry, GidTable, MAX_MESSAGE, Managed, PhysState, Port, PortAttr, PortEvent,
    PortState,
};
use rdmux_wire::{Gid, Guid, Mtu, Pkey};

/// Maximum number of entries of a GID table: GUIDCap has eight bits (IBTA 14.2.5.6). Each is a file of the view.
const MAX_GIDS: usize = 255;
/// Maximum number of entries of a P_Key table. PartitionCap has sixteen bits; adapters have 128 and fewer. Each is a
/// file of the view.
const MAX_PKEYS: usize = 1024;
/// Maximum number of counters, and of bytes of a name. Each is a file of the view.
const MAX_COUNTERS: usize = 64;
/// The upper half of link-local GIDs (IBTA 4.1.1).
const DEFAULT_PREFIX: u64 = 0xfe80 << 48;
/// The most bytes of a NodeDescription (IBTA 14.2.5.2).
const MAX_DESCRIPTION: usize = 64;

/// The reason for refusing a port.
type Nonsense = &'static str;

/// Converts the adapter that the fabric describes.
pub(super) fn adapter(described: &Described) -> Result<Adapter, Nonsense> {
    if described.node_guid == Guid(0) {
        return Err("an adapter without a GUID");
    }
    if described.description.len() > MAX_DESCRIPTION {
        return Err("a description of more than 64 bytes");
    }
    Ok(Adapter {
        // The description becomes one line of a file.
        description: described.description.replace(|c: char| c.is_control(), " "),
        system_guid: described.system_guid,
        vendor_id: described.vendor_id & 0x00ff_ffff,
        device_id: described.device_id,
        revision: described.revision,
    })
}

/// Converts the port of an adapter on a fabric.
pub(super) fn port(
    kind: DeviceKind,
    fabric: &str,
    node: Guid,
    facts: &PortFacts,
) -> Result<Port, Nonsense> {
    let codes = Codes::of(facts)?;
    check_tables(facts)?;
    let managed = Managed {
        fabric: fabric.to_owned(),
        node: node.to_string(),
        port: facts.number,
        counters: facts.counters.clone(),
    };
    Ok(Port { managed: Some(managed), ..described(kind, facts, &codes) })
}

/// Makes the port of an adapter that was never on a fabric: no cable is plugged in.
pub(super) fn unplugged(kind: DeviceKind, node: Guid, number: u8) -> Port {
    let guid = Guid(node.0.wrapping_add(number.into()));
    let facts = PortFacts {
        number,
        guid,
        gid_prefix: DEFAULT_PREFIX,
        active_width: 2,
        active_speed: 1,
        max_vls: 1,
        gids: vec![Gid::new(DEFAULT_PREFIX, guid)],
        pkeys: vec![Pkey::DEFAULT],
        ..PortFacts::default()
    };
    let codes = Codes {
        state: PortState::Down,
        phys_state: PhysState::Polling,
        max_mtu: Mtu::M4096,
        active_mtu: Mtu::M256,
    };
    described(kind, &facts, &codes)
}

/// The fields that a fabric reports as codes of the wire.
struct Codes {
    state: PortState,
    phys_state: PhysState,
    max_mtu: Mtu,
    active_mtu: Mtu,
}

impl Codes {
    fn of(facts: &PortFacts) -> Result<Self, Nonsense> {
        Ok(Self {
            state: PortState::of_code(facts.state).ok_or("an invalid port state")?,
            phys_state: PhysState::of_code(facts.phys_state).ok_or("an invalid physical state")?,
            max_mtu: Mtu::from_code(facts.max_mtu).ok_or("an invalid maximum MTU")?,
            active_mtu: Mtu::from_code(facts.active_mtu).ok_or("an invalid MTU")?,
        })
    }
}

/// Checks a port's tables, which become files of the view with the counters' names.
fn check_tables(facts: &PortFacts) -> Result<(), Nonsense> {
    let is_letter = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let is_counter = |(name, _): &(String, u64)| {
        (1..=MAX_COUNTERS).contains(&name.len()) && name.bytes().all(is_letter)
    };
    if facts.number == 0 || facts.gids.is_empty() || facts.pkeys.is_empty() {
        return Err("a port without number, GID or P_Key");
    }
    if facts.gids.len() > MAX_GIDS || facts.pkeys.len() > MAX_PKEYS {
        return Err("a table that is too long");
    }
    if facts.counters.len() > MAX_COUNTERS || !facts.counters.iter().all(is_counter) {
        return Err("invalid counters");
    }
    Ok(())
}

fn described(kind: DeviceKind, facts: &PortFacts, codes: &Codes) -> Port {
    let row = kind.row();
    let entry = |&gid: &Gid| GidEntry {
        gid,
        kind: row.gid_kind,
        mtu: codes.active_mtu,
        ..GidEntry::empty()
    };
    let len = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
    let attr = PortAttr {
        kind,
        link_layer: row.link_layer,
        state: codes.state,
        phys_state: codes.phys_state,
        lid: facts.lid,
        lmc: facts.lmc & 7,
        sm_lid: facts.sm_lid,
        sm_sl: facts.sm_sl & 15,
        subnet_prefix: facts.gid_prefix,
        max_mtu: codes.max_mtu,
        active_mtu: codes.active_mtu,
        gid_tbl_len: len(facts.gids.len()),
        pkey_tbl_len: len(facts.pkeys.len()),
        max_msg_sz: MAX_MESSAGE,
        active_width: facts.active_width,
        active_speed: facts.active_speed,
        max_vls: facts.max_vls,
        subnet_timeout: facts.subnet_timeout & 31,
        init_type_reply: facts.init_type_reply,
        pkey_violations: facts.pkey_violations,
        qkey_violations: facts.qkey_violations,
        capabilities: facts.capabilities,
        grh_required: row.grh_required,
    };
    Port {
        attr,
        gids: GidTable::Own(facts.gids.iter().map(entry).collect()),
        addresses: Vec::new(),
        pkeys: facts.pkeys.clone(),
        managed: None,
    }
}

/// Takes a port down after its fabric is gone, as if its cable were unplugged. Everything else is unchanged. Returns
/// whether this changed the port.
pub(super) fn take_down(port: &mut Port) -> bool {
    let down = (PortState::Down, PhysState::Polling);
    let is_new = (port.attr.state, port.attr.phys_state) != down;
    (port.attr.state, port.attr.phys_state) = down;
    is_new
}

/// Adds a fabric's events of a port. A repeated event counts as the later one.
pub(super) fn note(events: &mut Vec<PortEvent>, said: &[rdmux_fabric::proto::PortEvent]) {
    use rdmux_fabric::proto::PortEvent as Said;
    for event in said {
        let event = match event {
            Said::Active => PortEvent::Active,
            Said::Error => PortEvent::Error,
            Said::LidChange => PortEvent::LidChange,
            Said::SmChange => PortEvent::SmChange,
            Said::ClientReregister => PortEvent::ClientReregister,
            Said::PkeyChange => PortEvent::PkeyChange,
            Said::GidChange => PortEvent::GidChange,
        };
        events.retain(|earlier| *earlier != event);
        events.push(event);
    }
}

/// Returns the events that are implied by a port's changes while the fabric was away.
pub(super) fn events_between(before: &Port, now: &Port) -> Vec<PortEvent> {
    let (old, new) = (&before.attr, &now.attr);
    let [was, is] = [old, new].map(|attr| attr.state == PortState::Active);
    let changes = [
        ((old.lid, old.lmc) != (new.lid, new.lmc), PortEvent::LidChange),
        ((old.sm_lid, old.sm_sl) != (new.sm_lid, new.sm_sl), PortEvent::SmChange),
        (before.pkeys != now.pkeys, PortEvent::PkeyChange),
        (before.gids != now.gids, PortEvent::GidChange),
        (was && !is, PortEvent::Error),
        (is && !was, PortEvent::Active),
    ];
    changes.into_iter().filter(|(changed, _)| *changed).map(|(_, event)| event).collect()
}

#[cfg(test)]
mod tests {
    use rdmux_verbs::kind;
    use rdmux_wire::Lid;

    use super::*;

    const NODE: Guid = Guid(0x10);

    fn kind_on_fabric() -> DeviceKind {
        kind::all().iter().copied().find(|kind| kind.is_on_fabric()).unwrap()
    }

    fn usual() -> PortFacts {
        PortFacts {
            number: 1,
            guid: Guid(0x11),
            gid_prefix: DEFAULT_PREFIX,
            lid: Lid(5),
            sm_lid: Lid(1),
            state: 4,
            phys_state: 5,
            max_mtu: 5,
            active_mtu: 4,
            active_width: 2,
            active_speed: 32,
            gids: vec![Gid::new(DEFAULT_PREFIX, Guid(0x11)), Gid::ZERO],
            pkeys: vec![Pkey::DEFAULT, Pkey(0)],
            counters: vec![("VL15_dropped".to_owned(), 7)],
            ..PortFacts::default()
        }
    }

    #[test]
    fn port_attributes_gids_and_counters_come_from_the_fabric() {
        let port = port(kind_on_fabric(), "f", NODE, &usual()).unwrap();
        assert_eq!((port.attr.lid, port.attr.sm_lid), (Lid(5), Lid(1)));
        assert_eq!((port.attr.state, port.attr.phys_state), (PortState::Active, PhysState::LinkUp));
        assert_eq!((port.attr.max_mtu, port.attr.active_mtu), (Mtu::M4096, Mtu::M2048));
        assert_eq!((port.attr.gid_tbl_len, port.attr.pkey_tbl_len), (2, 2));
        assert_eq!(port.gids()[0].gid, usual().gids[0]);
        let managed = port.managed.unwrap();
        assert_eq!((managed.fabric.as_str(), managed.node), ("f", NODE.to_string()));
        assert_eq!((managed.port, managed.counters), (1, usual().counters));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        type Change = fn(&mut PortFacts);
        let changes: [(&str, Change); 12] = [
            ("state 0", |p| p.state = 0),
            ("state 5", |p| p.state = 5),
            ("physical state", |p| p.phys_state = 8),
            ("maximum MTU", |p| p.max_mtu = 6),
            ("MTU", |p| p.active_mtu = 0),
            ("number", |p| p.number = 0),
            ("no GIDs", |p| p.gids.clear()),
            ("GIDs", |p| p.gids = vec![Gid::ZERO; 256]),
            ("P_Keys", |p| p.pkeys = vec![Pkey(0); 1025]),
            ("a path for a counter", |p| p.counters[0].0 = "../../../x".to_owned()),
            ("no name", |p| p.counters[0].0 = String::new()),
            ("counters", |p| p.counters = vec![("a".to_owned(), 0); 65]),
        ];
        for (what, change) in changes {
            let mut facts = usual();
            change(&mut facts);
            assert!(port(kind_on_fabric(), "f", NODE, &facts).is_err(), "{what}");
        }
    }

    #[test]
    fn a_description_is_one_line_of_at_most_64_bytes() {
        let described = |description: String| Described {
            node_guid: NODE,
            system_guid: Guid(0x20),
            description,
            vendor_id: 0xff00_02c9,
            device_id: 1,
            revision: 2,
            port: usual(),
            is_joined: false,
        };
        let adapter = |text: &str| super::adapter(&described(text.to_owned()));
        let one = adapter("a\nb").unwrap();
        assert_eq!((one.description.as_str(), one.vendor_id), ("a b", 0x02c9));
        assert!(adapter(&"x".repeat(64)).is_ok() && adapter(&"x".repeat(65)).is_err());
        assert!(
            super::adapter(&Described { node_guid: Guid(0), ..described("a".into()) }).is_err()
        );
    }

    #[test]
    fn a_port_without_its_fabric_is_down_and_keeps_the_rest() {
        let whole = port(kind_on_fabric(), "f", NODE, &usual()).unwrap();
        let mut port = whole.clone();
        assert!(take_down(&mut port) && !take_down(&mut port));
        assert_eq!((port.attr.state, port.attr.phys_state), (PortState::Down, PhysState::Polling));
        (port.attr.state, port.attr.phys_state) = (whole.attr.state, whole.attr.phys_state);
        assert_eq!(port, whole);
    }
}
