//! LinkRecords: each cable, once from either end.

use rdmux_wire::Lid;
use rdmux_wire::sa::{LinkRecord, LinkRecordMask};

use crate::administration::request::Request;
use crate::administration::table::Table;
use crate::administration::{Status, View};
use crate::manager::Model;
use crate::manager::model::Node;
use crate::topology::PortRef;

pub(in super::super) fn read(
    view: &View<'_>,
    request: &Request<'_>,
    table: &mut Table,
) -> Result<(), Status> {
    let (from, to) = (LinkRecordMask::FROM_LID.bits(), LinkRecordMask::TO_LID.bits());
    let pattern = request.pattern::<LinkRecord>(from | to)?;
    let wanted: LinkRecord = request.record()?;
    let model = view.model;
    let from = request.lid(from, wanted.from_lid).map(|lid| model.by_lid(lid));
    let to = request.lid(to, wanted.to_lid).map(|lid| model.by_lid(lid));
    let one = from.or(to).map(|place| place.map(|place| place.node));
    let nodes = match one {
        None => 0..model.nodes().len(),
        Some(None) => 0..0,
        // Search from the other end if only that one is given.
        Some(Some(node)) => node..node + 1,
    };
    for near in nodes {
        let Some(node) = model.node(near) else { continue };
        for (number, port) in (0..=u8::MAX).zip(&node.ports) {
            let here = PortRef { node: near, port: number };
            let Some(there) = port.peer else { continue };
            let (a, b) = if from.is_none() && to.is_some() { (there, here) } else { (here, there) };
            let is_end = |end: Option<Option<PortRef>>, at: PortRef| {
                end.is_none_or(|end| end.is_some_and(|end| is_at(model, end, at)))
            };
            if !is_end(from, a) || !is_end(to, b) {
                continue;
            }
            let Some(record) = link(model, request, a, b) else { continue };
            table.push_if(&pattern, &record)?;
        }
    }
    Ok(())
}

/// Returns whether an end port is this port, or port 0 of its switch.
fn is_at(model: &Model, end: PortRef, at: PortRef) -> bool {
    end.node == at.node && (end.port == at.port || model.node(at.node).is_some_and(Node::is_switch))
}

fn link(model: &Model, request: &Request<'_>, a: PortRef, b: PortRef) -> Option<LinkRecord> {
    let sees = |at: PortRef| model.port(at).is_some_and(|port| request.may_see(port));
    let record = || {
        Some(LinkRecord {
            from_lid: lid(model, a)?,
            from_port: a.port,
            to_port: b.port,
            to_lid: lid(model, b)?,
            ..LinkRecord::default()
        })
    };
    if sees(a) && sees(b) { record() } else { None }
}

/// Returns the LID of a port, or of its switch.
fn lid(model: &Model, at: PortRef) -> Option<Lid> {
    let node = model.node(at.node)?;
    let port = if node.is_switch() { 0 } else { at.port };
    node.ports.get(usize::from(port))?.lid()
}
