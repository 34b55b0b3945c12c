//! Queries subnet administration for services (ServiceRecord, IBTA 15.2.5.14), as Linux does on behalf of ids.

use std::time::Duration;

use rdmux_cm::{CmError, Command, IbAddr, IdHandle};
use rdmux_wire::mad::Method;
use rdmux_wire::sa::{SaMad, ServiceRecord, ServiceRecordMask};

use super::sa::{Subject, question};
use crate::names::ServiceKey;
use crate::service::core::Core;

/// Maximum number of services in an event: as many as fit into
/// [`MAX_EVENTS_MESSAGE`](crate::proto::MAX_EVENTS_MESSAGE).
const MAX_FOUND: usize = 128;

impl Core {
    /// Queries the services of an ID or a name. The id must be bound to a local port on a subnet.
    pub(in crate::service) fn find_services(
        &mut self,
        id: IdHandle,
        service: &ServiceKey,
        timeout: Duration,
    ) -> Result<(), CmError> {
        let command = Command::ResolveService;
        let device = self.manager.query(id)?.device;
        let device = device.filter(|device| device.has_lids);
        let Some(at) = device.and_then(|device| self.adapter.at(device.port_num)) else {
            let what = "the id is not bound to a port of an InfiniBand subnet";
            return Err(CmError::Invalid { id, command, what });
        };
        let mut record = ServiceRecord::default();
        let mask = match service {
            ServiceKey::Id(sid) => {
                record.service_id = *sid;
                ServiceRecordMask::SERVICE_ID
            }
            ServiceKey::Name(name) => {
                record.service_name = name.as_str().into();
                ServiceRecordMask::SERVICE_NAME
            }
        };
        let record = record.to_bytes();
        let mad = question(Method::GET_TABLE, ServiceRecord::ATTR_ID, &record, mask.bits());
        let user = Some(self.user_of_id(id));
        self.ask_sa(at, Subject::Services(id), &mad, (timeout, user));
        Ok(())
    }

    /// Handles an answer of subnet administration, or an errno.
    pub(super) fn services_answered(&mut self, id: IdHandle, answer: Result<SaMad<'_>, i32>) {
        let answer = answer.map(|mad| {
            let records = mad.records::<ServiceRecord>().take(MAX_FOUND);
            records.map(|record| address_of(&record)).collect()
        });
        self.manager.handle_services(id, answer, &mut self.outbox);
    }
}

fn address_of(record: &ServiceRecord) -> IbAddr {
    IbAddr { pkey: record.service_pkey, ..IbAddr::new(record.service_gid, record.service_id) }
}

#[cfg(test)]
mod tests {
    use rdmux_cm::{Event, EventKind, EventParam};
    use rdmux_wire::{Gid, Pkey};

    use super::*;
    use crate::proto::MAX_EVENTS_MESSAGE;

    #[test]
    fn the_longest_event_is_one_that_processes_take() {
        let (pkey, sid) = (Pkey(u16::MAX), rdmux_wire::ServiceId(u64::MAX));
        let (flowinfo, sid_mask, scope_id) = (u32::MAX, u64::MAX, u64::MAX);
        let widest = IbAddr { gid: Gid([0xff; 16]), pkey, flowinfo, sid, sid_mask, scope_id };
        let event = Event {
            id: IdHandle(u64::MAX),
            context: u64::MAX,
            listen_id: None,
            kind: EventKind::AddrinfoResolved,
            status: 0,
            param: EventParam::Services(vec![widest; MAX_FOUND]),
            route: None,
            negotiated: None,
            mad: Some(vec![0xff; 256]),
        };
        let len = postcard::to_stdvec(&event).unwrap().len();
        assert!(len <= MAX_EVENTS_MESSAGE, "{len}");
    }
}
