//! Joins a port to a group, and creates the group if needed.

use alloc::collections::BTreeMap;

use rdmux_wire::mad::status;
use rdmux_wire::sa::{JoinState, McMemberRecord, McMemberRecordMask as Mask, Rate, Selector};
use rdmux_wire::{Gid, Lid, Mtu};

use super::{FULL, Group, LINK_LOCAL, Member, has_partition, query, scope};
use crate::administration::path::rate;
use crate::administration::request::Request;
use crate::administration::table::Table;
use crate::administration::{AdministrationSink, Context, State, Status, events};
use crate::manager::Model;
use crate::manager::model::Port;
use crate::topology::PortRef;

/// The signature of GIDs that administration assigns.
const ASSIGNED: [u8; 2] = [0xa0, 0x1b];

/// The flags in the second byte of a multicast GID that must be zero.
const RESERVED_FLAGS: u8 = 0xe0;

/// A join request, with the requester and the port that is to join.
struct Join<'a> {
    request: &'a Request<'a>,
    record: McMemberRecord,
    mask: Mask,
    port: &'a Port,
    place: PortRef,
}

/// Handles a Set of MCMemberRecord: joins a group, which is created if it does not exist.
pub(in super::super) fn join(
    state: &mut State,
    cx: &Context<'_>,
    request: &Request<'_>,
    table: &mut Table,
    sink: &mut dyn AdministrationSink,
) -> Result<(), Status> {
    let (record, mask) =
        (request.record::<McMemberRecord>()?, Mask::from_bits_retain(request.mask()));
    if !mask.contains(Mask::MGID | Mask::PORT_GID | Mask::JOIN_STATE) {
        return Err(status::SA_INSUFFICIENT_COMPONENTS);
    }
    if record.join_state.is_empty() {
        return Err(status::SA_REQUEST_INVALID);
    }
    let (mtu, rate) = (Mask::MTU_SELECTOR | Mask::MTU, Mask::RATE_SELECTOR | Mask::RATE);
    let known = (!mask.contains(mtu) || Mtu::from_code(record.mtu).is_some())
        && (!mask.contains(rate) || rate::rank(record.rate).is_some());
    if !known {
        return Err(status::SA_REQUEST_INVALID);
    }
    let (place, port) = super::leave::port(cx, request, &record)?;
    let join = Join { request, record, mask, port, place };
    join.take_gid(state, cx, sink);
    let mgid = match state.groups.get(record.mgid) {
        Some(group) if !record.mgid.is_zero() => {
            join.check(group)?;
            record.mgid
        }
        _ => join.create(state, cx)?,
    };
    let (answer, first) = join.enter(state, mgid).ok_or(status::SA_REQUEST_INVALID)?;
    if let Some(member) = state.groups.get(mgid).and_then(|g| g.members.get(&answer.port_gid)) {
        let port = member.port;
        sink.member_changed(answer.mlid, port, state.groups.receives(mgid, port));
    }
    table.push(&answer)?;
    if first {
        events::group_created(state, cx, mgid, answer.pkey, sink);
    }
    Ok(())
}

impl Join<'_> {
    /// Checks that an existing group matches the request and can have the port as a member.
    fn check(&self, group: &Group) -> Result<(), Status> {
        let (wanted, mask) = (&self.record, self.mask);
        let is = |bit: Mask, matches: bool| !mask.contains(bit) || matches;
        let fits = is(Mask::QKEY, wanted.qkey == group.qkey)
            && is(Mask::PKEY, wanted.pkey.0 & 0x7fff == group.pkey.0 & 0x7fff)
            && is(Mask::TCLASS, wanted.tclass == group.tclass)
            && is(Mask::SL, wanted.sl == group.sl)
            && is(Mask::FLOW_LABEL, wanted.flow_label == group.flow_label)
            && is(Mask::HOP_LIMIT, wanted.hop_limit == group.hop_limit)
            && query::fits(group, wanted, mask.difference(Mask::PACKET_LIFE_TIME_SELECTOR));
        let info = self.port.info.as_ref();
        let can = info.is_some_and(|info| {
            info.mtu_cap >= group.mtu.code()
                && rate::of(info).is_none_or(|own| rate::rank(own) >= rate::rank(group.rate))
        }) && has_partition(&self.port.pkeys, group.pkey);
        if fits && can && self.may_change(group) { Ok(()) } else { Err(status::SA_REQUEST_INVALID) }
    }

    /// Returns whether the requester may change this membership: only the port itself and the port that sent its join may.
    fn may_change(&self, group: &Group) -> bool {
        let member = group.members.get(&self.record.port_gid);
        let own = self.place == self.request.place;
        member.is_none_or(|member| own || member.by == self.request.requester.guid)
    }

    /// Takes the GID from another port that had it as an alias before, and ends that port's memberships with it.
    fn take_gid(&self, state: &mut State, cx: &Context<'_>, sink: &mut dyn AdministrationSink) {
        let gid = self.record.port_gid;
        let group = state.groups.get(self.record.mgid);
        let member = group.and_then(|group| group.members.get(&gid));
        if let Some(former) = member.map(|member| member.port).filter(|at| *at != self.port.guid) {
            events::gid_lost(state, cx, former, gid, sink);
        }
    }

    fn create(&self, state: &mut State, cx: &Context<'_>) -> Result<Gid, Status> {
        let (wanted, mask) = (&self.record, self.mask);
        let needed = Mask::QKEY | Mask::TCLASS | Mask::PKEY | Mask::FLOW_LABEL | Mask::SL;
        if !mask.contains(needed) {
            return Err(status::SA_INSUFFICIENT_COMPONENTS);
        }
        let invalid = status::SA_REQUEST_INVALID;
        if !wanted.join_state.intersects(FULL) || !has_partition(&self.port.pkeys, wanted.pkey) {
            return Err(invalid);
        }
        let mgid = if wanted.mgid.is_zero() {
            self.assign(state, cx.config.gid_prefix)
        } else {
            may_be_chosen(wanted.mgid).then_some(wanted.mgid).ok_or(invalid)?
        };
        let info = self.port.info.as_ref().ok_or(invalid)?;
        let like = broadcast_of(mgid).map(|mgid| state.groups.get(mgid).ok_or(invalid));
        let like = like.transpose()?;
        let hop_limit = mask.contains(Mask::HOP_LIMIT).then_some(wanted.hop_limit);
        let group = Group {
            mgid,
            mlid: Lid(0),
            qkey: wanted.qkey,
            mtu: self.mtu(info.neighbor_mtu, info.mtu_cap).ok_or(invalid)?,
            rate: self.rate(rate::of(info).unwrap_or(rate::HIGHEST)).ok_or(invalid)?,
            life: if mask.contains(Mask::PACKET_LIFE_TIME) { wanted.packet_life_time } else { 0 },
            pkey: wanted.pkey,
            sl: wanted.sl,
            tclass: wanted.tclass,
            flow_label: wanted.flow_label,
            hop_limit: hop_limit.or(like.map(|like| like.hop_limit)).unwrap_or(0),
            well_known: false,
            by: self.request.requester.guid,
            members: BTreeMap::new(),
            full_members: 0,
        };
        if like.is_some_and(|like| !agrees(&group, like)) {
            return Err(invalid);
        }
        let capacity = *state.groups.capacity.get_or_insert_with(|| multicast_capacity(cx.model));
        let made = state.groups.iter().filter(|other| other.by == group.by).count();
        if made >= usize::from(most_of_port(capacity)) {
            return Err(status::SA_NO_RESOURCES);
        }
        state.groups.add(group, capacity).ok_or(status::SA_NO_RESOURCES)?;
        Ok(mgid)
    }

    /// Returns the MTU of a new group, by the request's selector, or the one that the port uses if none is requested. None if
    /// the port does not support it.
    fn mtu(&self, uses: u8, can: u8) -> Option<Mtu> {
        let wanted = self.record.mtu;
        let both = self.mask.contains(Mask::MTU_SELECTOR | Mask::MTU);
        let code = match self.record.mtu_selector {
            _ if !both => uses,
            Selector::GREATER_THAN => wanted.checked_add(1)?.max(uses),
            Selector::LESS_THAN => wanted.checked_sub(1)?.min(uses),
            Selector::EXACTLY => wanted,
            _ => can,
        };
        Mtu::from_code(code).filter(|_| code <= can)
    }

    /// Returns the rate of a new group, by the request's selector, or the highest that the port supports if none is requested.
    /// None if the port does not support it.
    fn rate(&self, can: Rate) -> Option<Rate> {
        let wanted = self.record.rate;
        let both = self.mask.contains(Mask::RATE_SELECTOR | Mask::RATE);
        let rate = match self.record.rate_selector {
            _ if !both => can,
            Selector::GREATER_THAN => rate::above(wanted).map(|_| can)?,
            Selector::LESS_THAN => rate::lower(rate::below(wanted)?, can),
            Selector::EXACTLY => wanted,
            _ => can,
        };
        let enough = self.record.rate_selector != Selector::GREATER_THAN
            || !both
            || rate::rank(rate) > rate::rank(wanted);
        (rate::rank(rate).is_some() && rate::rank(rate) <= rate::rank(can) && enough)
            .then_some(rate)
    }

    /// Returns a GID that no group has.
    fn assign(&self, state: &mut State, prefix: u64) -> Gid {
        let given = self.mask.contains(Mask::SCOPE) && self.record.scope != 0;
        let scope = if given { self.record.scope } else { LINK_LOCAL };
        let mut mgid = [0; 16];
        mgid[..4].copy_from_slice(&[0xff, 0x10 | scope, ASSIGNED[0], ASSIGNED[1]]);
        mgid[4..12].copy_from_slice(&prefix.to_be_bytes());
        loop {
            state.groups.assigned = state.groups.assigned.wrapping_add(1);
            mgid[10..14].copy_from_slice(&state.groups.assigned.to_le_bytes());
            if state.groups.get(Gid(mgid)).is_none() {
                return Gid(mgid);
            }
        }
    }

    /// Makes the port a member. Returns the answer, and whether this is the group's first full member.
    fn enter(&self, state: &mut State, mgid: Gid) -> Option<(McMemberRecord, bool)> {
        let group = state.groups.by_mgid.get_mut(&mgid)?;
        let wanted = self.record.join_state;
        let by = self.request.requester.guid;
        let proxy = self.place != self.request.place;
        let new = Member { state: JoinState::empty(), port: self.port.guid, by, proxy };
        let member = group.members.entry(self.record.port_gid).or_insert(new);
        let was_full = member.state.intersects(FULL);
        member.state |= wanted;
        let becomes_full = !was_full && member.state.intersects(FULL);
        let (all, proxy_join, port) = (member.state, member.proxy, member.port);
        group.full_members += usize::from(becomes_full);
        let first = becomes_full && group.full_members == 1;
        let answer = McMemberRecord {
            port_gid: self.record.port_gid,
            join_state: all,
            proxy_join,
            ..group.record()
        };
        state.groups.by_port.entry(port).or_default().insert((mgid, self.record.port_gid));
        Some((answer, first))
    }
}

/// Returns whether a program may choose this GID (IBTA o15-0.1.5): a multicast GID without reserved flags that is not in the range that
/// administration assigns. The flags of IPoIB's GIDs are not checked, as in OpenSM.
fn may_be_chosen(mgid: Gid) -> bool {
    let is_ours = mgid.0[2..4] == ASSIGNED && scope(mgid) == LINK_LOCAL;
    let has_flags = mgid.0[1] & RESERVED_FLAGS != 0 && !is_ipoib(mgid);
    mgid.0[0] == 0xff && !is_ours && !has_flags
}

/// Returns whether a GID has a signature of IPoIB (RFC 4391, section 4).
fn is_ipoib(mgid: Gid) -> bool {
    matches!(mgid.0[2..4], [0x40 | 0x60, 0x1b])
}

/// Returns the GID of the broadcast group of an IPoIB group's partition; none for the broadcast group itself and for other groups. Without
/// a broadcast group there are no other IPoIB groups.
fn broadcast_of(mgid: Gid) -> Option<Gid> {
    let mut broadcast = [0; 16];
    broadcast[..6].copy_from_slice(&mgid.0[..6]);
    broadcast[2] = 0x40;
    broadcast[12..].copy_from_slice(&[0xff; 4]);
    (is_ipoib(mgid) && mgid != Gid(broadcast)).then_some(Gid(broadcast))
}

/// Returns whether an IPoIB group has the parameters of its partition's broadcast group (RFC 4391, section 5), except MTU and rate.
fn agrees(group: &Group, like: &Group) -> bool {
    group.qkey == like.qkey
        && group.pkey.0 & 0x7fff == like.pkey.0 & 0x7fff
        && group.sl == like.sl
        && group.flow_label == like.flow_label
        && group.tclass == like.tclass
        && group.hop_limit == like.hop_limit
}

/// Returns how many groups one port may create: all but a quarter, which is reserved for others.
const fn most_of_port(capacity: u16) -> u16 {
    capacity - capacity / 4
}

/// Returns how many groups all switches have room for.
fn multicast_capacity(model: &Model) -> u16 {
    let switches = model.nodes().iter().filter_map(|node| node.switch.as_deref());
    let capacities = switches.map(|switch| switch.info.multicast_fdb_cap);
    capacities.filter(|&capacity| capacity > 0).min().unwrap_or(u16::MAX)
}
