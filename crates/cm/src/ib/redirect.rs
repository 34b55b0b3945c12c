//! Redirection: a peer names another port or another connection manager to send the request to (REJ with reasons 24 and 25, IBTA
//! 12.6.7.2; SIDR_REP with status 4, 12.11.2.1). The request is sent there as a new one, at most as often as the program allows.
//!
//! A redirection that cannot be followed is reported as a refusal: one to a queue pair that is not QP1, to another partition,
//! or without a usable address. On a network with LIDs, if the redirection has none, the layer of ids looks up the path to its GID
//! (IBTA 13.4.8.1, RedirectLID). Meanwhile the request is not retransmitted. Then the redirection is processed again.

use alloc::boxed::Box;

use rdmux_transport::Time;
use rdmux_transport::attr::AddressVector;
use rdmux_wire::cm::{CmMad, IpHeader, IpPair, Message, Path, Rej, RejReason, Req, SidrRep};
use rdmux_wire::{Gid, Lid, Pkey};

use super::conn::{Conn, NewConn, tid_of};
use super::state::State;
use super::timers::Timer;
use super::{Cm, ConnEvent, Upcall, format};
use crate::fields::Redirect;
use crate::path::MadPath;
use crate::sink::Sink;

/// A redirected request, as it is reported to the layer of ids.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Redirected {
    /// The new name of the connection, or of the lookup.
    pub(crate) number: u32,
    /// The new address of the peer, with its GID even if the peer did not send it.
    pub(crate) to: Redirect,
    /// The path to the new address, if it was looked up.
    pub(crate) along: Option<crate::path::Path>,
}

/// The path for a request that was redirected without a LID.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Wanted {
    /// No path was needed yet.
    #[default]
    Nothing,
    /// The lookup is in progress.
    Asked,
    /// The lookup found this path.
    Found(crate::path::Path),
    /// The lookup found no path.
    Nowhere,
}

/// The outcome of a refusal that may be a redirection.
pub(super) enum Followed {
    /// The message is a refusal, not a redirection.
    Not,
    /// The message was handled, and this upcall, if any, remains to be reported.
    Done(Option<Upcall>),
}

/// How to follow a redirection.
enum Way {
    By(AddressVector),
    Along(crate::path::Path),
    Ask,
    Wait,
}

impl Redirect {
    /// Returns the address vector to the new address, if it is acceptable and within `partition`, if one is given.
    fn moves(&self, av: &AddressVector, partition: Option<Pkey>) -> Option<AddressVector> {
        let stays = |own: Pkey| self.pkey.0 & 0x7fff == 0 || (own.0 ^ self.pkey.0) & 0x7fff == 0;
        if !partition.is_none_or(stays) {
            return None;
        }
        // A path without LIDs is RoCE's, where the GID alone is the address.
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

    /// Returns how to reach the new address, if the redirection may be followed.
    fn way(&self, av: &AddressVector, partition: Pkey, wanted: Wanted) -> Option<Way> {
        match wanted {
            Wanted::Nothing => {}
            Wanted::Asked => return Some(Way::Wait),
            Wanted::Found(path) => return Some(Way::Along(path)),
            Wanted::Nowhere => return None,
        }
        let is_without_lid = av.dlid != 0 && self.lid == Lid(0);
        if !is_without_lid {
            return self.moves(av, Some(partition)).map(Way::By);
        }
        let is_port = !self.gid.is_zero() && !self.gid.is_multicast();
        // Whether it may be followed at all does not depend on the LID.
        let with_lid = Self { lid: Lid(1), ..*self };
        with_lid.moves(av, Some(partition)).filter(|_| is_port).map(|_| Way::Ask)
    }

    /// Applies the redirection to a path as REQ describes it.
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

/// Rewrites the IP header of private data, if there is one, from the old destination GID to the new one. A header with another
/// destination belongs to the program and is kept.
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
    /// Follows a REJ of this end's REQ that arrived by `came`, if it is a redirection and no refusal.
    pub(super) fn follow_rej(
        &mut self,
        now: Time,
        conn: u32,
        (came, rej): (&MadPath, &Rej),
        sink: &mut impl Sink,
    ) -> Followed {
        match self.try_to_follow_rej(now, conn, (came, rej), sink) {
            Some(told) => Followed::Done(told),
            None => Followed::Not,
        }
    }

    #[expect(clippy::option_option, reason = "whether it is followed, and what is told of that")]
    fn try_to_follow_rej(
        &mut self,
        now: Time,
        conn: u32,
        (came, rej): (&MadPath, &Rej),
        sink: &mut impl Sink,
    ) -> Option<Option<Upcall>> {
        let c = self.conns.get(&conn).filter(|c| c.state().awaits_rep() && c.redirects_left > 0)?;
        let with_cm = match rej.reason {
            RejReason::PORT_CM_REDIRECT => true,
            RejReason::PORT_REDIRECT => false,
            _ => return None,
        };
        let to = Redirect::of_info(&rej.ari, rej.ari_len)?;
        let sent = CmMad::parse(c.out.as_deref()?).ok()?;
        let Message::Req(req) = sent.message else { return None };
        let (owner, was) = (c.owner, req.primary.remote_gid);
        let (moved, primary, along) = match to.way(&c.path.av, req.pkey, c.wanted)? {
            Way::By(av) => (MadPath { av, ..c.path }, to.moves_path(&req.primary), None),
            Way::Along(path) => {
                let primary = format::path_of(&self.config, &path);
                (path.mad_path(c.path.device, path.av), primary, Some(path))
            }
            Way::Ask => {
                let c = self.conns.get_mut(&conn)?;
                c.wanted = Wanted::Asked;
                self.timers.clear(&mut c.deadline, Timer::Conn(conn));
                let what = ConnEvent::PathWanted { gid: to.gid, came: *came };
                return Some(owner.map(|id| Upcall::ToOwner { id, what }));
            }
            Way::Wait => {
                self.counters.duplicates += 1;
                return Some(None);
            }
        };
        let path = if with_cm { moved } else { c.path };
        let number = self.redirected_conn(conn, path)?;
        let req = Req {
            local_comm_id: number,
            private_data: readdressed(req.private_data, was, primary.remote_gid),
            path_mtu: along.map_or(req.path_mtu, |path| path.mtu.code().min(req.path_mtu)),
            primary,
            // The alternate path led to the port that has refused.
            alternate: Path::default(),
            ..req
        };
        let mad = CmMad { tid: tid_of(number), attr_mod: sent.attr_mod, message: req.into() };
        self.counters.redirected += 1;
        self.send_until_answered(now, number, &mad.to_bytes(), sink);
        let to = Redirect { gid: primary.remote_gid, ..to };
        let what = ConnEvent::Redirected(Redirected { number, to, along });
        Some(owner.map(|id| Upcall::ToOwner { id, what }))
    }

    /// Replaces a connection by a new one, whose REQ will be sent along this path.
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

    /// Follows a SIDR_REP to this end's lookup likewise.
    pub(super) fn follow_sidr(
        &mut self,
        now: Time,
        (came, rep): (&MadPath, &SidrRep),
        sink: &mut impl Sink,
    ) -> Followed {
        match self.try_to_follow_sidr(now, (came, rep), sink) {
            Some(told) => Followed::Done(told),
            None => Followed::Not,
        }
    }

    #[expect(clippy::option_option, reason = "as above")]
    fn try_to_follow_sidr(
        &mut self,
        now: Time,
        (came, rep): (&MadPath, &SidrRep),
        sink: &mut impl Sink,
    ) -> Option<Option<Upcall>> {
        let asked = rep.request_id;
        let client = self.sidr_clients.get(&asked).filter(|c| c.redirects_left > 0)?;
        let to = Redirect::of_info(&rep.info, rep.info_len)?;
        let Message::SidrReq(mut req) = CmMad::parse(&client.out[..]).ok()?.message else {
            return None;
        };
        let (was, lid, id) = (client.path.av.dgid, Lid(client.path.av.dlid), client.owner);
        let (path, along) = match to.way(&client.path.av, req.pkey, client.wanted)? {
            Way::By(av) => (MadPath { av, ..client.path }, None),
            Way::Along(path) => (path.mad_path(client.path.device, path.av), Some(path)),
            Way::Ask => {
                self.await_way(asked);
                let what = ConnEvent::PathWanted { gid: to.gid, came: *came };
                return Some(Some(Upcall::ToOwner { id, what }));
            }
            Way::Wait => {
                self.counters.duplicates += 1;
                return Some(None);
            }
        };
        if lid.0 == 0 {
            req.private_data = readdressed(req.private_data, was, path.av.dgid);
        }
        let number = self.resend_lookup(now, asked, path, req, sink)?;
        self.counters.redirected += 1;
        let to = Redirect { gid: path.av.dgid, ..to };
        let what = ConnEvent::Redirected(Redirected { number, to, along });
        Some(Some(Upcall::ToOwner { id, what }))
    }

    /// Records the path that [`ConnEvent::PathWanted`] requested, or that none was found. The caller then passes the redirection in again.
    pub(crate) fn way_of_request(&mut self, conn: u32, path: Option<crate::path::Path>) {
        if let Some(c) = self.conns.get_mut(&conn) {
            c.wanted = path.map_or(Wanted::Nowhere, Wanted::Found);
        }
    }

    /// Records the path, or that none was found, for a lookup.
    pub(crate) fn way_of_lookup(&mut self, number: u32, path: Option<crate::path::Path>) {
        if let Some(client) = self.sidr_clients.get_mut(&number) {
            client.wanted = path.map_or(Wanted::Nowhere, Wanted::Found);
        }
    }
}
