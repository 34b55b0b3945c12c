//! Records that are read from the model, one file per kind of record.

pub(super) mod links;
pub(super) mod managers;
pub(super) mod nodes;
pub(super) mod ports;
pub(super) mod switches;

use rdmux_wire::Lid;

use crate::manager::Model;
use crate::manager::model::{Node, Port};
use crate::topology::PortRef;

/// Returns the port with a LID, or all ports that have one.
fn end_ports(
    model: &Model,
    lid: Option<Lid>,
) -> impl Iterator<Item = (PortRef, &Node, &Port, Lid)> {
    let one = lid.and_then(|lid| model.by_lid(lid));
    let one = one.and_then(|place| Some((place, model.port(place)?)));
    let all = lid.is_none().then(|| model.end_ports());
    one.into_iter()
        .chain(all.into_iter().flatten())
        .filter_map(|(place, port)| Some((place, model.node(place.node)?, port, port.lid()?)))
}

/// Returns port 0 of the switch with a LID, or of all switches.
fn switches(
    model: &Model,
    lid: Option<Lid>,
) -> impl Iterator<Item = (&crate::manager::model::Switch, &Node, &Port, Lid)> {
    end_ports(model, lid)
        .filter_map(|(_, node, port, lid)| Some((node.switch.as_deref()?, node, port, lid)))
}

/// Returns the numbers of the blocks that hold `count` things, `each` per block.
fn blocks(count: usize, each: usize) -> core::ops::Range<usize> {
    0..count.div_ceil(each)
}
