//! Registrations of clients with a manager: services and subscriptions, as saquery prints them; traps sent to it; and a
//! request that no program of the distribution sends: GetMulti.

use anyhow::{Context, Result, ensure};
use rdmux_fabric::proto::NodeView;
use rdmux_wire::mad::Method;
use rdmux_wire::sa::{
    InformInfo, MultiPathRecord, MultiPathRecordMask, PathRecord, SaMad, ServiceRecord,
    ServiceRecordMask,
};
use rdmux_wire::sm::Producer;
use rdmux_wire::{Gid, Lid, Pkey, ServiceId};

use super::super::client::Client;
use super::super::ground::{self, Ground, HOSTS, Shown};
use super::own;
use super::sa::records;

/// saquery shows a service that a client has registered, until it is removed.
pub(crate) fn services(ground: &Ground) -> Result<()> {
    let mut client = Client::open(ground)?;
    let record = ServiceRecord {
        service_id: ServiceId(0x1234_5678_9abc_def0),
        service_gid: client.gid,
        service_pkey: Pkey::DEFAULT,
        service_lease: 600,
        service_data8: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
        service_data64: [1, 0xfedc_ba98_7654_3210],
        ..ServiceRecord::default()
    };
    let mask = ServiceRecordMask::SERVICE_ID
        | ServiceRecordMask::SERVICE_GID
        | ServiceRecordMask::SERVICE_PKEY;
    let bytes = record.to_bytes();
    let lease = (mask | ServiceRecordMask::SERVICE_LEASE).bits();
    client.ask(Method::SET, ServiceRecord::ATTR_ID, &bytes, lease)?;
    let output = ground.said("saquery ServiceRecord")?;
    let found = records(&output);
    ensure!(found.len() == 1, "{} services: {output}", found.len());
    let found = &found[0];
    ensure!(found.number("ServiceID")? == record.service_id.0, "{output}");
    ensure!(found.text("ServiceGID")? == client.gid.to_string(), "{output}");
    ensure!(found.text("ServiceP_Key")? == "0xFFFF", "{output}");
    // The lease counts down from then on.
    ensure!((1..=600).contains(&found.number("ServiceLease")?), "{output}");
    for (n, data) in (1..).zip(record.service_data8) {
        ensure!(found.number(&format!("ServiceData8.{n}"))? == u64::from(data), "{output}");
    }
    ensure!(found.number("ServiceData64.2")? == record.service_data64[1], "{output}");
    client.ask(Method::DELETE, ServiceRecord::ATTR_ID, &bytes, mask.bits())?;
    let output = ground.said("saquery -S")?;
    ensure!(records(&output).is_empty(), "a deleted service is still registered: {output}");
    Ok(())
}

/// Returns a subscription to a trap of all ports.
fn subscription(trap: u16, subscribe: bool) -> InformInfo {
    InformInfo {
        lid_range_begin: Lid(0xffff),
        is_generic: 1,
        subscribe: subscribe.into(),
        notice_type: 0xffff,
        trap_number: trap,
        producer: Producer(0x00ff_ffff),
        // A request to unsubscribe names the queue pair of the subscription.
        qpn: if subscribe { Default::default() } else { rdmux_wire::Qpn::QP1 },
        ..InformInfo::default()
    }
}

fn subscribe(client: &mut Client, trap: u16, subscribe: bool) -> Result<()> {
    let bytes = subscription(trap, subscribe).to_bytes();
    client.ask(Method::SET, InformInfo::ATTR_ID, &bytes, 0).map(drop)
}

/// saquery shows subscriptions, until they are ended.
pub(crate) fn subscriptions(ground: &Ground) -> Result<()> {
    let mut client = Client::open(ground)?;
    let traps = [129, 130, 131, 145];
    for trap in traps {
        subscribe(&mut client, trap, true)?;
    }
    let output = ground.said("saquery --smkey 1 InformInfoRecord")?;
    let mut printed = Vec::new();
    for record in records(&output) {
        ensure!(record.text("SubscriberGID")? == client.gid.to_string(), "{output}");
        ensure!(record.number("lid_range_begin")? == 0xffff, "{output}");
        printed.push(u16::try_from(record.number("trap_num")?)?);
    }
    super::same("subscriptions", printed, traps.to_vec())?;
    for trap in traps {
        subscribe(&mut client, trap, false)?;
    }
    let output = ground.said("saquery --smkey 1 -I")?;
    ensure!(records(&output).is_empty(), "an ended subscription is still registered: {output}");
    Ok(())
}

/// Changes of a switch's port, and of an adapter's, reach the manager: it logs each trap with the LID and the port.
pub(crate) fn traps(ground: &Ground) -> Result<()> {
    let shown = ground.show()?;
    let switch = shown.switches().next().context("a switch")?;
    let adapter = shown.adapters().last().context("an adapter")?;
    for (node, of) in [(switch, "Producer:2 (Switch)"), (adapter, "Producer:1 (Channel Adapter)")] {
        let (lid, port) = (ground::lid(node)?.0, node.ports.last().context("a port")?.number);
        let logged = |number: u16, meaning: &str, rest: &str| {
            let line = format!("num:{number} ({meaning}) {of} from LID:{lid}{rest} TID:");
            let before = ground.manager_said(&line);
            move || ground.until("logged", || Ok(ground.manager_said(&line) > before))
        };
        for (fault, number, meaning) in [
            ("integrity", 129, "Local Link integrity threshold reached"),
            ("overrun", 130, "Excessive Buffer Overrun Threshold reached"),
            ("flow-control", 131, "Flow Control Update watchdog timer expired"),
        ] {
            let is_logged = logged(number, meaning, &format!(" Port {port}"));
            ground.rdmux(&["fabric", "fault", &format!("{}:{port}", node.guid), fault])?;
            is_logged().context(fault)?;
        }
        let topology = ground.topology()?;
        let before = topology.nodes.iter().find(|n| n.guid == node.guid).context("a node")?;
        // Restored, as other rows expect it.
        for guid in [0x77, before.system_guid.0] {
            let is_logged = logged(145, "System Image GUID changed", "");
            let guid = format!("{guid:#x}");
            ground.rdmux(&["fabric", "system-guid", &node.guid.to_string(), &guid])?;
            is_logged().context("system-guid")?;
        }
        // No error count remains for rows that look for errors.
        ground.said(&format!("perfquery -R {lid} {port}"))?;
    }
    Ok(())
}

/// GetMulti of MultiPathRecords: a request by RMPP, whose answer reverses the direction. From this port to several: the LIDs are
/// those of the fabric.
pub(crate) fn multi_paths(ground: &Ground) -> Result<()> {
    let shown = ground.show()?;
    let mut client = Client::open(ground)?;
    let far: Vec<&NodeView> =
        shown.adapters().filter(|node| node.description != HOSTS[1]).take(4).collect();
    let mut gids = [Gid::ZERO; 11];
    gids[0] = client.gid;
    for (gid, node) in gids[1..].iter_mut().zip(&far) {
        *gid = Gid(own::gid(node).octets());
    }
    let question = MultiPathRecord {
        reversible: true,
        numb_path: 1,
        sgid_count: 1,
        dgid_count: u8::try_from(far.len())?,
        gids,
        ..MultiPathRecord::default()
    };
    let mask = MultiPathRecordMask::REVERSIBLE
        | MultiPathRecordMask::NUMB_PATH
        | MultiPathRecordMask::SGID_COUNT
        | MultiPathRecordMask::DGID_COUNT;
    let bytes = question.to_bytes();
    let answer = client.ask(Method::GET_MULTI, MultiPathRecord::ATTR_ID, &bytes, mask.bits())?;
    let answer = SaMad::parse(&answer)?;
    ensure!(answer.header.method == Method::GET_MULTI_RESP, "{answer}");
    let from = ground::lid(shown.node(HOSTS[1])?)?;
    let mut found = Vec::new();
    for path in answer.records::<PathRecord>() {
        ensure!(
            path.sgid == client.gid && path.slid == from,
            "the path has another source: {path}"
        );
        found.push((path.dgid, path.dlid));
    }
    // One path for all of them together is as valid an answer as one for each.
    let expected: Result<Vec<(Gid, Lid)>> =
        far.iter().map(|node| Ok((Gid(own::gid(node).octets()), ground::lid(node)?))).collect();
    let expected = expected?;
    ensure!(!found.is_empty(), "the answer has no path: {answer}");
    for path in &found {
        ensure!(expected.contains(path), "a path leads to {path:?}, not to one of {expected:?}");
    }
    Ok(())
}
