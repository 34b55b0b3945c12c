//! Administration with a model for tests, whose output is collected.

use alloc::vec::Vec;

use rdmux_wire::mad::{MadHeader, Method, status};
use rdmux_wire::sa::{Components, SaMad};
use rdmux_wire::{Guid, Lid, RmppFlags, SmKey};

use super::*;
use crate::topology::{PortRef, Shape};
use crate::umad::UserAddress;

mod created_groups;
mod group_paths;
mod groups;
mod matching;
mod model;
mod paths;
mod records;
mod registrations;
mod subscriptions;

pub(crate) use model::model;

/// Administration with a model and the messages that it has sent.
pub(super) struct Net {
    pub(super) administration: Administration,
    pub(super) model: Model,
    pub(super) now: Time,
    pub(super) out: Out,
    /// The LID of the requester.
    pub(super) asks: Lid,
    pub(super) key: SmKey,
    pub(super) modifier: u32,
}

#[derive(Default)]
pub(super) struct Out {
    pub(super) sent: Vec<UserMad>,
    pub(super) changed: Vec<Lid>,
    pub(super) members: Vec<(Lid, Guid, Option<bool>)>,
    pub(super) aliases: Vec<(PortRef, u8, Guid)>,
    /// No more messages can be sent.
    pub(super) full: bool,
}

impl AdministrationSink for Out {
    fn send(&mut self, mad: UserMad) -> bool {
        self.sent.push(mad);
        !self.full
    }
    fn group_changed(&mut self, mlid: Lid) {
        self.changed.push(mlid);
    }
    fn member_changed(&mut self, mlid: Lid, port: Guid, receives: Option<bool>) {
        self.members.push((mlid, port, receives));
    }
    fn set_alias(&mut self, port: PortRef, index: u8, guid: Guid) {
        self.aliases.push((port, index, guid));
    }
}

/// An answer: its status, and its records.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Answer<R> {
    pub(super) status: u16,
    pub(super) records: Vec<R>,
}

impl Net {
    /// Puts the manager on the last adapter and the requester on the first.
    pub(super) fn new(shape: &str, lmc: u8) -> Self {
        let shape: Shape = shape.parse().expect("a shape");
        let model = model(&shape.topology(Guid(0x1000)), lmc);
        let mut adapters = model.end_ports().filter(|(at, _)| !model.nodes()[at.node].is_switch());
        let asks = adapters.next().and_then(|(_, port)| port.lid()).expect("an adapter");
        let own = adapters.last().map(|(_, port)| port.guid);
        let mut administration = Administration::new(Config::default(), Partitions::default());
        administration.set_master(own);
        Self {
            administration,
            model,
            now: Time::ZERO,
            out: Out::default(),
            asks,
            key: SmKey(0),
            modifier: 0,
        }
    }

    /// Returns the end ports of the model.
    pub(super) fn ports(&self) -> Vec<(PortRef, Lid)> {
        let ports = self.model.end_ports();
        ports.filter_map(|(place, port)| Some((place, port.lid()?))).collect()
    }

    /// Delivers bytes as a message.
    pub(super) fn put(&mut self, data: Vec<u8>) {
        let mad = UserMad {
            agent: 0,
            status: 0,
            timeout_ms: 0,
            retries: 0,
            address: UserAddress::gsi(self.asks),
            data,
        };
        self.administration.handle_mad(self.now, &self.model, &mad, &mut self.out);
    }

    /// Sends a request and returns the answer, if there is one.
    pub(super) fn exchange(
        &mut self,
        method: Method,
        attr_id: u16,
        mask: u64,
        data: &[u8],
    ) -> Option<UserMad> {
        let mut mad = SaMad::new(method, attr_id, data);
        mad.header.tid = 0x77;
        mad.header.attr_mod = self.modifier;
        (mad.sa.component_mask, mad.sa.sm_key) = (mask, self.key);
        self.put(mad.to_bytes().to_vec());
        let is_answer = |mad: &UserMad| {
            MadHeader::parse(&mad.data).is_ok_and(|header| header.method == method.response())
        };
        let at = self.out.sent.iter().position(is_answer)?;
        Some(self.out.sent.remove(at))
    }

    /// Sends a request and returns the parsed answer.
    pub(super) fn ask<R: Components>(
        &mut self,
        method: Method,
        attr_id: u16,
        mask: u64,
        record: &R,
    ) -> Answer<R> {
        let mut data = [0; 200];
        record.write(&mut data);
        let answer = self.exchange(method, attr_id, mask, &data[..R::LEN]).expect("an answer");
        let mad = SaMad::parse(&answer.data).expect("a MAD");
        assert_eq!(mad.header.tid, 0x77);
        let records = match method {
            _ if mad.header.status != 0 => Vec::new(),
            Method::GET_TABLE | Method::GET_MULTI => {
                assert!(mad.rmpp.flags.contains(RmppFlags::ACTIVE));
                mad.records().collect()
            }
            _ => [mad.record().expect("a record")].into(),
        };
        Answer { status: mad.header.status, records }
    }

    pub(super) fn get<R: Components>(&mut self, attr_id: u16, mask: u64, record: &R) -> Answer<R> {
        self.ask(Method::GET, attr_id, mask, record)
    }

    pub(super) fn table<R: Components>(&mut self, attr_id: u16, mask: u64, record: &R) -> Vec<R> {
        let answer = self.ask(Method::GET_TABLE, attr_id, mask, record);
        assert_eq!(answer.status, status::OK);
        answer.records
    }
}
