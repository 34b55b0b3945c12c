//! Redirection: a peer says that another port, or another connection manager, is to be asked (REJ with reasons 24 and 25, IBTA
//! 12.6.7.2; SIDR_REP with status 4, 12.11.2.1). The request goes there, as a new one, at most as often as the program allows.
//!
//! A redirection that cannot be followed is a refusal, and told as such: to a queue pair that is not QP1, to another partition,
//! without an address that a request can go to. On InfiniBand it must have a LID, since nobody is asked for a path.

use alloc::boxed::Box;

use rdmux_transport::Time;
use rdmux_transport::attr::AddressVector;
use rdmux_wire::cm::{CmMad, IpHeader, IpPair, Message, Path, Rej, RejReason, Req, SidrRep};
use rdmux_wire::{Gid, Lid, Pkey};

use super::conn::{Conn, NewConn, tid_of};
use super::state::State;
use super::{Cm, ConnEvent, Upcall};
use crate::fields::Redirect;
use crate::path::MadPath;
use crate::sink::Sink;

/// A request was sent elsewhere: what the layer of ids must know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Redirected {
    /// The new name of the connection, or of the lookup.
    pub(crate) number: u32,
    /// Where the peer is now.
    pub(crate) to: Redirect,
}

impl Redirect {
    /// A path that leads there, if it may be one of a partition.
    fn moves(&self, av: &AddressVector, partition: Option<Pkey>) -> Option<AddressVector> {
        let stays = |own: Pkey| self.pkey.0 & 0x7fff == 0 || (own.0 ^ self.pkey.0) & 0x7fff == 0;
        if !partition.is_none_or(stays) {
            return None;
        }
        // Only where addresses are GIDs there are no LIDs.
        if av.dlid == 0 {
            let (was, is) = (av.dgid.ip().to_canonical(), self.gid.ip().to_canonical());
            let fits = was.is_ipv4() == is.is_ipv4()
                && !is.is_multicast()
                && !is.is_unspecified()
                && (was.is_loopback() || !is.is_loopback());
            return fits.then_some(AddressVector { dgid: self.gid, ..*av });
        }
        let dgid = if self.gid.is_zero() { av.dgid } else { self.gid };
        let is_way = self.lid.is_unicast() && !dgid.is_multicast();
        let (traffic_class, flow_label) = (self.tclass, self.flow_label);
        is_way.then_some(AddressVector {
            dgid,
            dlid: self.lid.0,
            sl: self.sl,
            traffic_class,
            flow_label,
            ..*av
        })
    }

    /// The same for a path as REQ describes it.
    fn moves_path(&self, path: &Path) -> Path {
        let remote_gid = if self.gid.is_zero() { path.remote_gid } else { self.gid };
        let is_by_lid = path.remote_lid.is_unicast();
        if !is_by_lid {
            return Path { remote_gid, ..*path };
        }
        Path {
            remote_gid,
            remote_lid: self.lid,
            sl: self.sl,
            tclass: self.tclass,
            flow_label: self.flow_label,
            ..*path
        }
    }
}

/// Private data whose IP header, if it has one, names another destination: what was the one GID's is the other's. A header
/// that says something else is the program's own.
fn readdressed<const N: usize>(mut data: [u8; N], was: Gid, is: Gid) -> [u8; N] {
    if let Ok(header) = IpHeader::parse(&data)
        && header.addrs.dst() == was.ip().to_canonical()
        && let Some(addrs) = IpPair::new(header.addrs.src(), is.ip().to_canonical())
    {
        let header = IpHeader { addrs, ..header }.to_bytes();
        data[..header.len()].copy_from_slice(&header);
    }
    data
}

impl Cm {
    /// A REJ redirects our REQ. The new request's connection, or none if it is a refusal.
    pub(super) fn follow_rej(
        &mut self,
        now: Time,
        conn: u32,
        rej: &Rej,
        sink: &mut impl Sink,
    ) -> Option<Upcall> {
        let c = self.conns.get(&conn).filter(|c| c.state().awaits_rep() && c.redirects_left > 0)?;
        let with_cm = match rej.reason {
            RejReason::PORT_CM_REDIRECT => true,
            RejReason::PORT_REDIRECT => false,
            _ => return None,
        };
        let to = Redirect::of_info(&rej.ari, rej.ari_len)?;
        let sent = CmMad::parse(c.out.as_deref()?).ok()?;
        let Message::Req(req) = sent.message else { return None };
        let moved = to.moves(&c.path.av, Some(req.pkey))?;
        let path = if with_cm { MadPath { av: moved, ..c.path } } else { c.path };
        let number = self.redirected_conn(conn, path)?;
        let was = req.primary.remote_gid;
        let primary = to.moves_path(&req.primary);
        let req = Req {
            local_comm_id: number,
            private_data: readdressed(req.private_data, was, primary.remote_gid),
            primary,
            // It leads to the port that has refused.
            alternate: Path::default(),
            ..req
        };
        let mad = CmMad { tid: tid_of(number), attr_mod: sent.attr_mod, message: req.into() };
        self.counters.redirected += 1;
        self.send_until_answered(now, number, &mad.to_bytes(), sink);
        let to = Redirect { gid: primary.remote_gid, ..to };
        let id = self.conns.get(&number)?.owner?;
        Some(Upcall::ToOwner { id, what: ConnEvent::Redirected(Redirected { number, to }) })
    }

    /// A connection in place of another one, whose REQ will go by this path.
    fn redirected_conn(&mut self, conn: u32, path: MadPath) -> Option<u32> {
        let local_id = self.new_local_id();
        let old = self.conns.get(&conn)?;
        let mut new = Conn::new(NewConn {
            state: State::ReqSent,
            owner: old.owner,
            transport: old.transport,
            local_id,
            tid: tid_of(local_id),
            path,
            max_retries: old.max_retries,
            interval: old.interval,
            ack_timeout: old.ack_timeout,
            service_timeout: old.service_timeout,
            response_timeout: old.response_timeout,
        });
        (new.local_guid, new.local_qpn) = (old.local_guid, old.local_qpn);
        new.redirects_left = old.redirects_left - 1;
        self.forget(conn);
        self.conns.insert(local_id, Box::new(new));
        Some(local_id)
    }

    /// A SIDR_REP redirects our lookup: the same.
    pub(super) fn follow_sidr(
        &mut self,
        now: Time,
        rep: &SidrRep,
        sink: &mut impl Sink,
    ) -> Option<Upcall> {
        let client = self.sidr_clients.get(&rep.request_id).filter(|c| c.redirects_left > 0)?;
        let to = Redirect::of_info(&rep.info, rep.info_len)?;
        let Message::SidrReq(mut req) = CmMad::parse(&client.out[..]).ok()?.message else {
            return None;
        };
        let (was, lid) = (client.path.av.dgid, Lid(client.path.av.dlid));
        let av = to.moves(&client.path.av, Some(req.pkey))?;
        let path = MadPath { av, ..client.path };
        if lid.0 == 0 {
            req.private_data = readdressed(req.private_data, was, av.dgid);
        }
        let number = self.resend_lookup(now, rep.request_id, path, req, sink)?;
        self.counters.redirected += 1;
        let id = self.sidr_clients.get(&number)?.owner;
        let to = Redirect { gid: av.dgid, ..to };
        Some(Upcall::ToOwner { id, what: ConnEvent::Redirected(Redirected { number, to }) })
    }
}
