//! The requests of a host's machine to its driver.

use std::collections::BTreeMap;

use rdmux_acm::{
    ClientId, Contradiction, EndpointId, Failure, Io, PortId, QuestionId, RequestId, Resolved, To,
};
use rdmux_transport::Time;
use rdmux_wire::Gid;
use rdmux_wire::acm::{Address, Datagram};
use rdmux_wire::sa::{McMemberRecord, McMemberRecordMask, PathRecord, PathRecordMask};

/// A request of the machine.
#[derive(Debug)]
pub(super) enum Want {
    Send(To, Box<Datagram>),
    Join(Box<McMemberRecord>),
    Leave(Gid),
    Paths(QuestionId, Box<PathRecord>),
    Answer(ClientId, RequestId, Result<Resolved, Failure>),
    /// Not a request, but the report that another claimant than the known holder is believed to have an address.
    Believed {
        address: Address,
        holder: Gid,
        claimant: Gid,
    },
}

/// Collects the requests in order.
#[derive(Debug, Default)]
pub(super) struct Driver {
    pub(super) wants: Vec<Want>,
    /// The paths that programs read without a request.
    pub(super) published: BTreeMap<Address, (PathRecord, Time)>,
    /// The number of further datagrams that fit into the send queue.
    pub(super) room: u32,
    pub(super) was_full: bool,
}

impl Io for Driver {
    fn send(&mut self, _: EndpointId, to: To, datagram: &Datagram) -> bool {
        if self.room == 0 {
            self.was_full = true;
            return false;
        }
        self.room -= 1;
        self.wants.push(Want::Send(to, Box::new(datagram.clone())));
        true
    }
    fn join(&mut self, _: EndpointId, record: &McMemberRecord, _: McMemberRecordMask) {
        self.wants.push(Want::Join(Box::new(*record)));
    }
    fn leave(&mut self, _: EndpointId, mgid: Gid) {
        self.wants.push(Want::Leave(mgid));
    }
    fn ask_paths(&mut self, _: PortId, id: QuestionId, record: &PathRecord, _: PathRecordMask) {
        self.wants.push(Want::Paths(id, Box::new(*record)));
    }
    fn ask_system(&mut self, _: EndpointId, _: QuestionId, _: &Address) {
        unreachable!("all ports are of InfiniBand");
    }
    fn answer(&mut self, client: ClientId, id: RequestId, answer: Result<Resolved, Failure>) {
        self.wants.push(Want::Answer(client, id, answer));
    }
    fn publish(&mut self, _: EndpointId, address: &Address, path: &PathRecord, until: Time) {
        self.published.insert(*address, (*path, until));
    }
    fn withdraw(&mut self, _: EndpointId, address: &Address) {
        self.published.remove(address);
    }
    fn contradiction(&mut self, _: EndpointId, claim: &Contradiction<'_>) {
        let Contradiction { address, holder, claimant, is_believed } = *claim;
        if is_believed {
            self.wants.push(Want::Believed { address: *address, holder, claimant });
        }
    }
}
