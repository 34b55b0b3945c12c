//! Admission of received packets.

use std::net::SocketAddr;

use rdmux_wire::ib_packet::Parts;
use rdmux_wire::{Gid, Grh, Pkey, Qpn};

use super::reassembly::Joined;
use super::state::Known;
use super::{Encap, IbDrop, KeyViolation, Reassembly, Routes, Violated, multicast};
use crate::udp::{SERVICE_QPNS, SLOT_SHIFT, SLOTS};
use crate::wire::IbRoute;

/// The state that receivers use in turn.
#[derive(Debug, Default)]
pub(super) struct Receiver {
    known: Known,
    reassembly: Reassembly,
}

/// The owner of the socket that receives datagrams.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owner {
    /// The slot of the process. The socket of slot zero also gets datagrams for slots without a
    /// socket.
    pub(super) slot: u16,
    /// Whether the wire gets datagrams for objects that belong to no process.
    pub(super) has_targets: bool,
}

/// The result of a datagram.
pub(super) enum Came<'a> {
    /// A packet that is admitted if its ICRC is right.
    Packet(Admitted<'a>),
    /// A packet like `Packet`, but not in the datagram's memory.
    Joined(Admitted<'a>),
    /// A whole packet for another process of this host.
    Stray,
    /// No packet yet, or none that is admitted.
    Nothing,
}

/// A packet that is admitted if its ICRC is right. The receiver of the packet, which reads it anyway, does this check, which
/// takes the longest.
#[derive(Clone, Copy)]
pub(super) struct Admitted<'a> {
    /// The packet from its LRH to its ICRC.
    pub(super) packet: &'a [u8],
    /// The length of LRH and GRH in bytes.
    pub(super) below: usize,
    pub(super) route: IbRoute,
}

impl Admitted<'_> {
    /// Returns the destination GID of its GRH.
    fn dgid(&self) -> Option<Gid> {
        let grh = self.route.grh.as_ref()?;
        grh.last_chunk::<16>().copied().map(Gid)
    }
}

impl Receiver {
    /// Updates the known routes. Must be called before each burst.
    pub(super) fn refresh(&mut self, routes: &Routes) {
        self.known.refresh(routes);
    }

    /// Returns the number of incomplete packets.
    pub(super) fn under_way(&self) -> usize {
        self.reassembly.under_way()
    }

    /// Processes a datagram that arrived at the socket of `owner`.
    #[inline]
    pub(super) fn take<'a>(
        &'a mut self,
        routes: &Routes,
        owner: Owner,
        from: SocketAddr,
        is_passed_on: bool,
        datagram: &'a [u8],
    ) -> Came<'a> {
        let (encap, body) = match Encap::parse(datagram) {
            Ok(parsed) => parsed,
            Err(why) => return lost(routes, why),
        };
        let Self { known, reassembly } = self;
        if encap.parts == 1 {
            if !is_passed_on && owner.slot != 0 && owner.is_other(encap.steer) {
                routes.count(IbDrop::RxStray, 1);
                return Came::Stray;
            }
            return match known.admit(Some(encap.steer), body) {
                Ok(admitted) => Came::Packet(admitted),
                Err(why) => refused(routes, why, body),
            };
        }
        match reassembly.join(from, &encap, body) {
            Joined::Whole(packet) => match known.admit(Some(encap.steer), packet) {
                Ok(admitted) => Came::Joined(admitted),
                Err(why) => refused(routes, why, packet),
            },
            Joined::Begun { gave_up: true } => lost(routes, IbDrop::RxGivenUp),
            Joined::Twice => lost(routes, IbDrop::RxPart),
            Joined::Begun { gave_up: false } | Joined::Waits => Came::Nothing,
        }
    }

    /// Processes a datagram that arrived at a socket that receives a group.
    #[inline]
    pub(super) fn take_of_group<'a>(
        &mut self,
        routes: &Routes,
        mgid: Gid,
        datagram: &'a [u8],
    ) -> Came<'a> {
        let Self { known, .. } = self;
        match multicast::parse(datagram, known.fabric, known.own.port_guid) {
            Ok(Some(packet)) => match known.admit(None, packet) {
                // Another group may have the same IP address.
                Ok(admitted) if admitted.dgid() != Some(mgid) => Came::Nothing,
                Ok(admitted) => Came::Packet(admitted),
                Err(why) => refused(routes, why, packet),
            },
            // The datagram is for other ports.
            Ok(None) => Came::Nothing,
            Err(why) => lost(routes, why),
        }
    }
}

#[cold]
fn lost<'a>(routes: &Routes, why: IbDrop) -> Came<'a> {
    routes.drop_here(why);
    Came::Nothing
}

/// Counts a whole packet that is not admitted.
#[cold]
fn refused<'a>(routes: &Routes, why: IbDrop, packet: &[u8]) -> Came<'a> {
    if why == IbDrop::RxPkey
        && let Ok(parts) = Parts::split(packet)
        && let Some(violation) = KeyViolation::of(Violated::Pkey, parts.route, parts.transport)
    {
        // A damaged packet is not a violation.
        if parts.right_icrc() != parts.icrc {
            return lost(routes, IbDrop::RxIcrc);
        }
        routes.violated(&violation);
        return Came::Nothing;
    }
    lost(routes, why)
}

impl Owner {
    /// Returns whether a datagram was meant for another socket than this one.
    fn is_other(self, steer: u32) -> bool {
        if steer & SERVICE_QPNS != 0 {
            return !self.has_targets;
        }
        (steer >> SLOT_SHIFT) & (u32::from(SLOTS) - 1) != u32::from(self.slot)
    }
}

impl Known {
    /// Checks a packet, LRH to ICRC, except for the ICRC. It arrived at the socket of the queue pair `steer`, or at that of a
    /// group.
    #[inline]
    fn admit<'p>(&mut self, steer: Option<u32>, bytes: &'p [u8]) -> Result<Admitted<'p>, IbDrop> {
        let parts = Parts::split(bytes).map_err(|_| IbDrop::RxMalformed)?;
        let lrh = parts.lrh;
        if usize::from(lrh.pkt_len) * 4 != bytes.len() || lrh.lver != 0 {
            return Err(IbDrop::RxMalformed);
        }
        let [_, _, p1, p2, _, q1, q2, q3, ..] = *parts.transport else {
            return Err(IbDrop::RxMalformed);
        };
        let dest = Qpn::new(u32::from_be_bytes([0, q1, q2, q3]));
        if lrh.vl == 15 || dest == Qpn::QP0 {
            return Err(IbDrop::RxManagement);
        }
        let is_group = dest == Qpn::MULTICAST;
        // A host steers its copies of a group's packet to its processes.
        if !is_group && Some(dest.get()) != steer {
            return Err(IbDrop::RxMalformed);
        }
        if !self.is_active() {
            return Err(IbDrop::RxInactive);
        }
        let bits = self.own.path_bits(lrh.dlid);
        let fits = if is_group { lrh.dlid.is_multicast() } else { bits.is_some() };
        if !fits || !lrh.slid.is_unicast() {
            return Err(IbDrop::RxLid);
        }
        self.check_gid(parts.grh.as_ref(), is_group)?;
        if self.admitted(Pkey(u16::from_be_bytes([p1, p2]))).is_none() {
            return Err(IbDrop::RxPkey);
        }
        let grh = parts.grh.and_then(|_| parts.route.last_chunk::<{ Grh::LEN }>().copied());
        let (slid, dlid, sl) = (lrh.slid, lrh.dlid, lrh.sl);
        let (port_num, dlid_path_bits) = (self.port_num, bits.unwrap_or(0));
        let route = IbRoute { port_num, slid, dlid, sl, dlid_path_bits, grh };
        Ok(Admitted { packet: bytes, below: parts.route.len(), route })
    }

    #[inline]
    fn check_gid(&self, grh: Option<&Grh>, is_group: bool) -> Result<(), IbDrop> {
        let fits = match grh {
            // Multicast always has a GRH (IBTA 9.3).
            None => !is_group,
            Some(grh) if is_group => is_multicast(grh.dgid),
            Some(grh) => self.has_gid(grh.dgid),
        };
        if fits { Ok(()) } else { Err(IbDrop::RxGid) }
    }
}

/// Returns whether a GID is a group's: its first byte is 0xFF (IBTA 4.1.1).
fn is_multicast(gid: Gid) -> bool {
    gid.0[0] == 0xff
}
