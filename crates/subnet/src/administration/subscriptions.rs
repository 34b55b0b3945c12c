//! Subscriptions to events (IBTA 13.4.8.3), and Reports of them (IBTA 13.4.8.2).
//!
//! A Report is a request: the user MAD device retransmits it until it is answered, and stops eventually.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use rdmux_wire::mad::{MadHeader, Method, status};
use rdmux_wire::sa::{
    InformInfo, InformInfoRecord, InformInfoRecordMask as Mask, ReportedNotice, SaMad,
};
use rdmux_wire::sm::{Notice, Producer};
use rdmux_wire::{Gid, Guid, Lid, Pkey, Qpn};

use super::access::share_partition;
use super::groups::has_partition;
use super::request::Request;
use super::table::Table;
use super::{AdministrationSink, Context, State, Status, View};
use crate::manager::model::Port;
use crate::umad::{UserAddress, UserMad};

/// Stands for any value in a subscription.
const ANY: u16 = 0xffff;
const ANY_PRODUCER: Producer = Producer(0x00ff_ffff);

/// The upper 16 bits of the transaction IDs of Reports, as in OpenSM; the lower 16 count.
const REPORT_TID: u32 = 0x02da_0000;
const REPORT_TIDS: u32 = 0x1_0000;

/// How many transaction IDs must be free for each unanswered Report of a port.
const REPORT_SHARE: usize = 1024;

/// Security traps, which only their issuer and trusted clients receive.
const SECURITY: core::ops::RangeInclusive<u16> = 256..=259;

/// The cost of checking access to a LID, in bytes.
const LOOK: usize = 16;

/// The subscriptions and the outstanding Reports.
#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    by_port: BTreeMap<Guid, Vec<Subscription>>,
    count: usize,
    /// The subscribers of unanswered Reports, by transaction ID.
    outstanding: BTreeMap<u32, Guid>,
    /// The number of unanswered Reports of each port.
    behind: BTreeMap<Guid, usize>,
    next: u32,
}

/// A subscription.
#[derive(Clone, Copy, Debug)]
struct Subscription {
    what: InformInfo,
    address: UserAddress,
    agent: u32,
    trusted: bool,
}

/// The ports that may see an event.
#[derive(Clone, Copy, Debug)]
pub(super) enum Audience<'a> {
    /// Ports with a partition in common with this port.
    Of(&'a Port),
    /// Members of a partition.
    Partition(Pkey),
}

impl Subscription {
    /// Returns whether a subscription equals this one in all fields that identify it.
    fn is(&self, what: &InformInfo) -> bool {
        key(&self.what) == key(what)
    }

    /// Returns whether it is a subscription to a security trap.
    fn is_security(&self) -> bool {
        is_security(self.what.is_generic != 0, self.what.trap_number)
    }

    fn wants(&self, notice: &Notice, issuer: Gid) -> bool {
        let what = &self.what;
        let is_kind = what.is_generic != 0;
        let about = if !what.gid.is_zero() {
            what.gid == issuer
        } else {
            let (first, last) =
                (what.lid_range_begin, what.lid_range_end.max(what.lid_range_begin));
            first.0 == ANY || (first..=last).contains(&notice.issuer_lid)
        };
        is_kind == notice.is_generic
            && about
            && (what.notice_type == ANY || what.notice_type == u16::from(notice.notice_type.0))
            && (what.trap_number == ANY || what.trap_number == notice.trap_number)
            && (what.producer == ANY_PRODUCER || what.producer == notice.producer)
    }
}

/// Returns whether this is the number of a security trap. A vendor's notice has a device ID instead.
fn is_security(is_generic: bool, trap_number: u16) -> bool {
    is_generic && SECURITY.contains(&trap_number)
}

/// Returns the fields that identify a subscription.
fn key(what: &InformInfo) -> InformInfo {
    let mut key = *what;
    (key.subscribe, key.qpn, key.resp_time_value) = (0, Qpn::QP0, 0);
    (key.reserved20, key.reserved31, key.reserved32) = (0, 0, 0);
    key
}

impl Subscriptions {
    /// Removes the subscriptions of a port that is gone, and its outstanding Reports.
    pub(super) fn remove_port(&mut self, port: Guid) {
        self.count -= self.by_port.remove(&port).map_or(0, |all| all.len());
        if self.behind.remove(&port).is_some() {
            self.outstanding.retain(|_, subscriber| *subscriber != port);
        }
    }

    /// Handles the response to a Report, or its timeout. Returns whether the Report was outstanding.
    pub(super) fn handle_response(&mut self, tid: u32) -> bool {
        let Some(port) = self.outstanding.remove(&tid) else { return false };
        if let Some(behind) = self.behind.get_mut(&port) {
            *behind -= 1;
            if *behind == 0 {
                self.behind.remove(&port);
            }
        }
        true
    }

    fn free_tid(&mut self) -> Option<u32> {
        if self.outstanding.len() >= REPORT_TIDS as usize {
            return None;
        }
        loop {
            self.next = (self.next + 1) % REPORT_TIDS;
            let tid = REPORT_TID | self.next;
            if !self.outstanding.contains_key(&tid) {
                return Some(tid);
            }
        }
    }

    /// Returns whether a port has as many unanswered Reports as it may have: at most one for each [`REPORT_SHARE`] transaction IDs that
    /// are free. So the more Reports ports leave unanswered, the fewer each may, and others still get theirs.
    fn is_behind(&self, port: Guid, most: usize) -> bool {
        let free = (REPORT_TIDS as usize).saturating_sub(self.outstanding.len());
        let most = most.min(free.div_ceil(REPORT_SHARE));
        self.behind.get(&port).is_some_and(|behind| *behind >= most)
    }

    /// Reports an event to all subscribers that want it and may see it. Returns how many Reports were dropped because all
    /// transaction IDs were in use, the receiver had too many outstanding, or the send failed.
    pub(super) fn report(
        &mut self,
        cx: &Context<'_>,
        notice: &Notice,
        issuer: Gid,
        audience: Audience<'_>,
        sink: &mut dyn AdministrationSink,
    ) -> u64 {
        let mut wanted = Vec::new();
        for (&guid, all) in &self.by_port {
            let Some(port) = cx.model.by_port_guid(guid).and_then(|at| cx.model.port(at)) else {
                continue;
            };
            let may = match audience {
                Audience::Of(subject) => share_partition(port, subject),
                Audience::Partition(pkey) => has_partition(&port.pkeys, pkey),
            };
            let is_security = is_security(notice.is_generic, notice.trap_number);
            let foreign = is_security && issuer.guid() != guid;
            let is_wanted = |s: &&Subscription| s.wants(notice, issuer) && (s.trusted || !foreign);
            // A port gets one Report, however many of its subscriptions match.
            if let (true, Some(first), Some(lid)) = (may, all.iter().find(is_wanted), port.lid()) {
                wanted.push((guid, lid, *first));
            }
        }
        let mut dropped = 0;
        for (guid, lid, subscription) in wanted {
            let tid = if self.is_behind(guid, cx.config.reports_of_port) {
                None
            } else {
                self.free_tid()
            };
            let Some(tid) = tid else {
                dropped += 1;
                continue;
            };
            let mut data = [0; ReportedNotice::LEN];
            ReportedNotice { notice: *notice, issuer_gid: issuer }.emit(&mut data);
            let mut mad = SaMad::new(Method::REPORT, ReportedNotice::ATTR_ID, &data);
            mad.header = MadHeader { tid: tid.into(), ..mad.header };
            mad.sa.attribute_offset = u16::try_from(ReportedNotice::LEN / 8).unwrap_or(0);
            let sent = sink.send(UserMad {
                agent: subscription.agent,
                status: 0,
                timeout_ms: cx.config.timeout_ms,
                retries: cx.config.retries,
                address: UserAddress { lid, qpn: Qpn::QP1, ..subscription.address },
                data: mad.to_bytes().to_vec(),
            });
            if sent {
                self.outstanding.insert(tid, guid);
                *self.behind.entry(guid).or_default() += 1;
            } else {
                dropped += 1;
            }
        }
        dropped
    }
}

/// Handles a Set of InformInfo: subscribes or unsubscribes.
pub(super) fn set(
    state: &mut State,
    cx: &Context<'_>,
    request: &Request<'_>,
    table: &mut Table,
    _: &mut dyn AdministrationSink,
) -> Result<(), Status> {
    let invalid = status::SA_REQUEST_INVALID;
    let what = InformInfo::parse(request.sa.data).map_err(|_| invalid)?;
    if is_security(what.is_generic != 0, what.trap_number) && !request.trusted {
        return Err(invalid);
    }
    if what.subscribe == 1 && !may_see_issuers(cx, request, &what, table) {
        return Err(invalid);
    }
    let guid = request.requester.guid;
    let subscriptions = &mut state.subscriptions;
    let own = subscriptions.by_port.entry(guid).or_default();
    let at = own.iter().position(|subscription| subscription.is(&what));
    let result = match (what.subscribe, at) {
        (1, Some(at)) => {
            own[at].address = request.mad.address;
            own[at].trusted |= request.trusted;
            Ok(())
        }
        (1, None)
            if own.len() >= cx.config.subscriptions_of_port
                || subscriptions.count >= cx.config.subscriptions =>
        {
            Err(status::SA_NO_RESOURCES)
        }
        (1, None) => {
            own.push(Subscription {
                what,
                address: request.mad.address,
                agent: request.mad.agent,
                trusted: request.trusted,
            });
            subscriptions.count += 1;
            Ok(())
        }
        (0, Some(at)) if what.qpn == Qpn::QP1 => {
            own.remove(at);
            subscriptions.count -= 1;
            Ok(())
        }
        _ => Err(invalid),
    };
    if own.is_empty() {
        subscriptions.by_port.remove(&guid);
    }
    result?;
    table.push(&what)
}

/// Returns whether the requester may see the ports that a subscription names (IBTA o13-14.1.1): the port with the GID, or every port in
/// the range of LIDs, which must begin below the end of those in use. True if it names all ports.
fn may_see_issuers(
    cx: &Context<'_>,
    request: &Request<'_>,
    what: &InformInfo,
    table: &mut Table,
) -> bool {
    let may_see = |at| cx.model.port(at).is_some_and(|port| request.may_see(port));
    if !what.gid.is_zero() {
        return cx.model.by_port_guid(what.gid.guid()).is_some_and(may_see);
    }
    let (Lid(first), Lid(highest)) = (what.lid_range_begin, cx.model.highest_lid());
    if first == ANY || first > highest {
        return first == ANY;
    }
    let mut named = first..=what.lid_range_end.0.clamp(first, highest);
    table.charge(named.len() * LOOK);
    named.all(|lid| cx.model.by_lid(Lid(lid)).is_none_or(may_see))
}

/// Answers a Get or GetTable of InformInfoRecord.
pub(super) fn read(
    view: &View<'_>,
    request: &Request<'_>,
    table: &mut Table,
) -> Result<(), Status> {
    let pattern = request.pattern::<InformInfoRecord>(0)?;
    let wanted: InformInfoRecord = request.record()?;
    let model = view.model;
    // Only a trusted requester is shown the queue pair (IBTA C15-0.2-1.16).
    let qpn = if request.trusted { Qpn::QP1 } else { Qpn::QP0 };
    for (&guid, all) in &view.state.subscriptions.by_port {
        let port = model.by_port_guid(guid).and_then(|at| model.port(at));
        let Some(port) = port.filter(|port| request.may_see(port)) else { continue };
        let own = guid == request.requester.guid;
        for (enumeration, subscription) in (0..).zip(all) {
            if subscription.is_security() && !own && !request.trusted {
                continue;
            }
            let record = InformInfoRecord {
                subscriber_gid: Gid::new(view.cx.config.gid_prefix, port.guid),
                enumeration,
                inform_info: InformInfo { subscribe: 1, qpn, ..subscription.what },
                ..InformInfoRecord::default()
            };
            if !request.has(Mask::SUBSCRIBER_GID.bits())
                || wanted.subscriber_gid == record.subscriber_gid
            {
                table.push_if(&pattern, &record)?;
            }
        }
    }
    Ok(())
}

/// Returns the port that issued a notice, by its LID.
pub(super) fn issuer<'a>(cx: &Context<'a>, lid: Lid) -> Option<&'a Port> {
    cx.model.by_lid(lid).and_then(|at| cx.model.port(at))
}
