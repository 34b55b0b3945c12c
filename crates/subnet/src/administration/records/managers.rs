//! SMInfoRecords: the managers of the subnet.

use rdmux_wire::SmKey;
use rdmux_wire::sa::{SmInfoRecord, SmInfoRecordMask};
use rdmux_wire::sm::SmInfo;

use super::end_ports;
use crate::administration::request::Request;
use crate::administration::table::Table;
use crate::administration::{Status, View};

pub(in super::super) fn read(
    view: &View<'_>,
    request: &Request<'_>,
    table: &mut Table,
) -> Result<(), Status> {
    let lid = SmInfoRecordMask::LID.bits();
    let pattern = request.pattern::<SmInfoRecord>(lid)?;
    let wanted = request.lid(lid, request.record::<SmInfoRecord>()?.lid);
    for (_, _, port, lid) in end_ports(view.model, wanted) {
        let Some(manager) = port.manager.filter(|_| request.may_see(port)) else { continue };
        // Only trusted clients see keys.
        let sm_key = if request.trusted { manager.sm_key } else { SmKey(0) };
        let record =
            SmInfoRecord { lid, sm_info: SmInfo { sm_key, ..manager }, ..SmInfoRecord::default() };
        table.push_if(&pattern, &record)?;
    }
    Ok(())
}
