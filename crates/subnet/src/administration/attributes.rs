//! The attributes, their methods, and the function that handles each.

use rdmux_wire::class_port_info::ClassPortInfo;
use rdmux_wire::mad::{Method, status};
use rdmux_wire::sa::{
    GuidInfoRecord, InformInfo, InformInfoRecord, LinearForwardingTableRecord, LinkRecord,
    McMemberRecord, MultiPathRecord, MulticastForwardingTableRecord, NodeRecord, PathRecord,
    PkeyTableRecord, PortInfoRecord, ServiceRecord, SlToVlTableRecord, SmInfoRecord,
    SwitchInfoRecord, VlArbitrationRecord,
};

use super::records::{links, managers, nodes, ports, switches};
use super::{Read, Status, Write, aliases, class_port_info, groups, path, services, subscriptions};

/// An attribute and the handling of each of its methods.
pub(super) struct Row {
    id: u16,
    get: Way,
    get_table: Way,
    get_multi: Way,
    set: Way,
    delete: Way,
}

/// How a method is handled.
#[derive(Clone, Copy)]
enum Way {
    /// Refused with a status.
    Refused(Status),
    /// Answered with records.
    Read(Read),
    /// Changes a registration.
    Write(Write),
}

/// How a request is handled.
pub(super) enum Outcome {
    /// Gets no answer.
    Silent,
    /// Refused with a status.
    Status(Status),
    /// Answered by this function.
    Read(Read),
    /// Executed by this function.
    Write(Write),
}

const UNSUPPORTED: Way = Way::Refused(status::UNSUPPORTED_METHOD_ATTRIBUTE);

const INVALID: Way = Way::Refused(status::SA_REQUEST_INVALID);

/// Returns a row with Get and GetTable, the methods of most attributes.
const fn readable(id: u16, read: Read) -> Row {
    let (get, get_table) = (Way::Read(read), Way::Read(read));
    Row { id, get, get_table, get_multi: UNSUPPORTED, set: UNSUPPORTED, delete: UNSUPPORTED }
}

/// The supported attributes. Requests for any other get no answer.
const ROWS: &[Row] = &[
    Row {
        id: ClassPortInfo::ATTR_ID,
        get: Way::Read(class_port_info::read),
        get_table: INVALID,
        get_multi: INVALID,
        set: INVALID,
        delete: INVALID,
    },
    Row {
        id: InformInfo::ATTR_ID,
        get: UNSUPPORTED,
        get_table: UNSUPPORTED,
        get_multi: UNSUPPORTED,
        set: Way::Write(subscriptions::set),
        delete: UNSUPPORTED,
    },
    readable(NodeRecord::ATTR_ID, nodes::read),
    readable(PortInfoRecord::ATTR_ID, ports::info),
    readable(SlToVlTableRecord::ATTR_ID, ports::sl_to_vl),
    readable(SwitchInfoRecord::ATTR_ID, switches::info),
    readable(LinearForwardingTableRecord::ATTR_ID, switches::linear),
    readable(MulticastForwardingTableRecord::ATTR_ID, switches::multicast),
    readable(SmInfoRecord::ATTR_ID, managers::read),
    readable(LinkRecord::ATTR_ID, links::read),
    Row {
        set: Way::Write(aliases::change),
        delete: Way::Write(aliases::change),
        ..readable(GuidInfoRecord::ATTR_ID, ports::guids)
    },
    Row {
        set: Way::Write(services::register),
        delete: Way::Write(services::unregister),
        ..readable(ServiceRecord::ATTR_ID, services::read)
    },
    readable(PkeyTableRecord::ATTR_ID, ports::pkeys),
    readable(PathRecord::ATTR_ID, path::read),
    readable(VlArbitrationRecord::ATTR_ID, ports::vl_arbitration),
    Row {
        set: Way::Write(groups::join),
        delete: Way::Write(groups::leave),
        ..readable(McMemberRecord::ATTR_ID, groups::read)
    },
    Row {
        id: MultiPathRecord::ATTR_ID,
        get: INVALID,
        get_table: INVALID,
        get_multi: Way::Read(path::read_multi),
        set: INVALID,
        delete: INVALID,
    },
    readable(InformInfoRecord::ATTR_ID, subscriptions::read),
];

impl Row {
    /// Returns whether the answers of this attribute are paths.
    pub(super) fn follows_paths(&self) -> bool {
        [PathRecord::ATTR_ID, MultiPathRecord::ATTR_ID].contains(&self.id)
    }

    /// Returns the row of an attribute.
    pub(super) fn of(id: u16) -> Option<&'static Self> {
        ROWS.iter().find(|row| row.id == id)
    }

    /// Returns how a method of this attribute is handled.
    pub(super) fn outcome(&self, method: Method) -> Outcome {
        let way = match method {
            Method::GET => self.get,
            Method::GET_TABLE => self.get_table,
            Method::GET_MULTI => self.get_multi,
            Method::SET => self.set,
            Method::DELETE => self.delete,
            _ => return Outcome::Silent,
        };
        match way {
            Way::Read(read) => Outcome::Read(read),
            Way::Write(write) => Outcome::Write(write),
            Way::Refused(status) => Outcome::Status(status),
        }
    }
}
