//! NodeRecords: one record for each port with a LID.

use rdmux_wire::sa::{NodeRecord, NodeRecordMask};
use rdmux_wire::sm::NodeInfo;

use super::end_ports;
use crate::administration::request::Request;
use crate::administration::table::Table;
use crate::administration::{Status, View};

pub(in super::super) fn read(
    view: &View<'_>,
    request: &Request<'_>,
    table: &mut Table,
) -> Result<(), Status> {
    let lid = NodeRecordMask::LID.bits();
    let pattern = request.pattern::<NodeRecord>(lid)?;
    let wanted = request.lid(lid, request.record::<NodeRecord>()?.lid);
    for (place, node, port, lid) in end_ports(view.model, wanted) {
        if !request.may_see(port) {
            continue;
        }
        let record = NodeRecord {
            lid,
            node_info: NodeInfo { port_guid: port.guid, local_port_num: place.port, ..node.info },
            node_description: node.description.node_description,
            ..NodeRecord::default()
        };
        table.push_if(&pattern, &record)?;
    }
    Ok(())
}
