//! The checks of each datagram, and its dispatch to a handler.

use alloc::boxed::Box;

use rdmux_transport::Time;
use rdmux_wire::cm::{CLASS_VERSION, Message};
use rdmux_wire::mad::{MadHeader, Method, MgmtClass};

use super::{Cm, Upcall};
use crate::path::MadPath;
use crate::sink::Sink;

impl Cm {
    /// Handles a datagram that arrived at QP1.
    pub(crate) fn handle_mad(
        &mut self,
        now: Time,
        path: &MadPath,
        bytes: &[u8],
        sink: &mut impl Sink,
    ) -> Option<Upcall> {
        let (MadHeader { attr_id, tid, attr_mod, .. }, body) = self.checked(bytes)?;
        // Parsed once, here: a message is some 200 bytes, and each call that passed it on would copy it.
        let Ok(message) = Message::parse(attr_id, body) else {
            self.counters.bad_field += 1;
            return None;
        };
        self.counters.mads_received += 1;
        match message {
            Message::Req(req) => self.handle_req(now, path, (tid, attr_mod), Box::new(req), sink),
            Message::Mra(mra) => self.handle_mra(now, path, tid, &mra),
            Message::Rej(rej) => self.handle_rej(now, path, Box::new(rej), sink),
            Message::Rep(rep) => self.handle_rep(now, path, (tid, attr_mod), Box::new(rep), sink),
            Message::Rtu(rtu) => self.handle_rtu(path, tid, &rtu, sink),
            Message::Dreq(dreq) => self.handle_dreq(now, path, tid, &dreq, sink),
            Message::Drep(drep) => self.handle_drep(now, path, &drep),
            Message::SidrReq(req) => self.handle_sidr_req(now, path, tid, Box::new(req), sink),
            Message::SidrRep(rep) => self.handle_sidr_rep(now, path, Box::new(rep), sink),
            Message::Lap(lap) => self.handle_lap(path, tid, Box::new(lap), sink),
            Message::Apr(apr) => self.handle_apr(path, tid, Box::new(apr)),
        }
    }

    /// Returns the header and the body of the message, or counts why the header is invalid. A datagram of
    /// another version or method is dropped without an answer (IBTA 13.4.5).
    fn checked<'a>(&mut self, bytes: &'a [u8]) -> Option<(MadHeader, &'a [u8])> {
        let counters = &mut self.counters;
        if bytes.len() != 256 {
            counters.bad_length += 1;
            return None;
        }
        let Ok(header) = MadHeader::parse(bytes) else {
            counters.bad_version += 1;
            return None;
        };
        let reason = if header.mgmt_class != MgmtClass::COMM {
            &mut counters.bad_class
        } else if header.class_version != CLASS_VERSION {
            &mut counters.bad_class_version
        } else if header.method != Method::SEND {
            &mut counters.bad_method
        } else if !(0x10..=0x1a).contains(&header.attr_id) {
            &mut counters.bad_attribute
        } else {
            return bytes.get(MadHeader::LEN..).map(|body| (header, body));
        };
        *reason += 1;
        None
    }
}
