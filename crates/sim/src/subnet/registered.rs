//! The checks of administration when nothing has happened for some time.

use std::collections::{BTreeMap, BTreeSet};

use rand::Rng;
use rdmux_subnet::PortId;
use rdmux_subnet::umad::{UserAddress, UserMad};
use rdmux_wire::layout::Layout;
use rdmux_wire::mad::Method;
use rdmux_wire::sa::{
    InformInfoRecord, JoinState, PathRecord, PathRecordMask, SaMad, ServiceRecord,
};
use rdmux_wire::sm::SmState;
use rdmux_wire::{Gid, Guid, Lid, SmKey};

use super::programs::Program;
use super::wishes::{Item, MGIDS};
use super::world::World;

type Checked = Result<(), String>;

/// The number of port pairs whose paths are queried.
const PAIRS: usize = 40;

/// The trap of a new group.
const GROUP_CREATED: u16 = 66;

impl World {
    /// Returns the seat of the master of a part.
    pub(super) fn master(&self, part: &BTreeSet<PortId>) -> Option<usize> {
        self.seats.iter().position(|seat| {
            let state = seat.manager.as_ref().map(|manager| manager.status().state);
            part.contains(&seat.port) && state == Some(SmState::MASTER)
        })
    }

    fn programs_of<'a>(
        &'a self,
        part: &'a BTreeSet<PortId>,
    ) -> impl Iterator<Item = (usize, &'a Program)> {
        self.programs.iter().enumerate().filter(|(_, program)| part.contains(&program.port))
    }

    /// Queries a manager's administration for a table, without the network. With the SA key it returns everything.
    fn table<R: Layout>(
        &mut self,
        seat: usize,
        asks: Lid,
        (attr_id, mask): (u16, u64),
        record: &R,
    ) -> Result<Vec<R>, String> {
        let mut data = vec![0; R::LEN];
        record.write(&mut data);
        let mut mad = SaMad::new(Method::GET_TABLE, attr_id, &data);
        (mad.sa.component_mask, mad.sa.sm_key) = (mask, SmKey(1));
        let question = UserMad {
            agent: 0,
            status: 0,
            timeout_ms: 0,
            retries: 0,
            address: UserAddress::gsi(asks),
            data: mad.to_bytes().to_vec(),
        };
        let (now, seat) = (self.agenda.now(), &mut self.seats[seat]);
        let (Some(manager), Some(service)) = (&mut seat.manager, &mut seat.service) else {
            return Err("administration is not there".into());
        };
        service.handle_mad(now, manager, &question);
        let answer = service.next_mad().ok_or("administration does not answer")?;
        let answer = SaMad::parse(&answer.data).map_err(|e| e.to_string())?;
        match answer.header.status {
            0 => Ok(answer.records().collect()),
            code => Err(format!("administration answers with status {code:#06x}")),
        }
    }

    /// Checks that administration of a part has the registrations of its programs, and matches the switches.
    pub(super) fn check_administration(&mut self, part: &BTreeSet<PortId>) -> Checked {
        let Some(seat) = self.master(part) else { return Ok(()) };
        let Some(own) = self.subnet.port(self.seats[seat].port).map(|view| view.lid()) else {
            return Ok(());
        };
        for (index, program) in self.programs_of(part) {
            let open = program.wishes.iter().find(|(_, wish)| wish.done != Some(wish.wanted));
            if let Some(open) = open {
                return Err(format!("program {index} at {} waits for {open:?}", program.port));
            }
        }
        self.check_members(part, seat)?;
        self.check_services(part, seat, own)?;
        self.check_subscriptions(part, seat, own)?;
        self.check_paths(part, seat)
    }

    fn check_members(&mut self, part: &BTreeSet<PortId>, seat: usize) -> Checked {
        let Some(service) = &self.seats[seat].service else { return Ok(()) };
        let administration = service.administration();
        let mut groups: BTreeMap<Lid, BTreeMap<PortId, bool>> = BTreeMap::new();
        for mlid in administration.groups() {
            let members = groups.entry(mlid).or_default();
            for (guid, receives) in administration.members(mlid) {
                let port = self.subnet.ports().find(|view| view.guid() == guid);
                // All ports of a switch have the same GUID.
                let port = port.map(|view| view.id()).filter(|port| part.contains(port));
                let port = port.ok_or(format!("{guid} of {mlid} is not in this part"))?;
                members.insert(port, receives);
            }
        }
        let mut wanted: BTreeMap<Lid, BTreeMap<PortId, bool>> = BTreeMap::new();
        for group in 0..MGIDS.len() {
            let mut lids = BTreeSet::new();
            for (_, program) in self.programs_of(part) {
                let Some(wish) = program.wishes.get(&Item::Member(group)) else { continue };
                let state = program.states[group];
                let full = JoinState::FULL_MEMBER | JoinState::SEND_ONLY_FULL_MEMBER;
                let receives = JoinState::FULL_MEMBER | JoinState::NON_MEMBER;
                // Members that are not full members are removed with the last full member, without notification.
                let is_there =
                    groups.get(&wish.mlid).is_some_and(|group| group.contains_key(&program.port));
                if wish.wanted && (state.intersects(full) || is_there) {
                    lids.insert(wish.mlid);
                    let members = wanted.entry(wish.mlid).or_default();
                    members.insert(program.port, state.intersects(receives));
                }
            }
            if lids.len() > 1 {
                return Err(format!("members of group {group} know it as {lids:?}"));
            }
        }
        groups.retain(|_, members| !members.is_empty());
        if groups != wanted {
            return Err(format!("programs are members {wanted:?}, administration has {groups:?}"));
        }
        for (mlid, members) in &groups {
            self.check_group(part, *mlid, members)?;
        }
        self.check_no_group(part, &groups.keys().copied().collect())
    }

    fn check_services(&mut self, part: &BTreeSet<PortId>, seat: usize, own: Lid) -> Checked {
        let question = (ServiceRecord::ATTR_ID, 0);
        let all = self.table(seat, own, question, &ServiceRecord::default())?;
        let now = self.agenda.now();
        let mut there = BTreeSet::new();
        for record in all {
            let by = self.programs.iter().find(|program| program.gid == record.service_gid);
            let item = Item::Service(record.service_id.0);
            let wish = by.and_then(|program| program.wishes.get(&item));
            let wish = wish.ok_or(format!("nobody has registered {record:?}"))?;
            if wish.latest < now {
                return Err(format!("a service is there after its lease: {record:?}, {wish:?}"));
            }
            there.insert((record.service_gid, item));
        }
        for (index, program) in self.programs_of(part) {
            for (&item, wish) in &program.wishes {
                let Item::Service(_) = item else { continue };
                let is_there = there.contains(&(program.gid, item));
                let lease = std::time::Duration::from_secs(wish.lease.into());
                if wish.wanted && wish.since.after(lease) > now && !is_there {
                    return Err(format!("program {index}: {item:?} is gone, {wish:?}"));
                }
                if !wish.wanted && wish.is_certain && is_there {
                    return Err(format!("program {index}: {item:?} is still there, {wish:?}"));
                }
            }
        }
        Ok(())
    }

    fn check_subscriptions(&mut self, part: &BTreeSet<PortId>, seat: usize, own: Lid) -> Checked {
        let question = (InformInfoRecord::ATTR_ID, 0);
        let all = self.table(seat, own, question, &InformInfoRecord::default())?;
        let there: BTreeSet<(Gid, u16)> = all
            .iter()
            .map(|record| (record.subscriber_gid, record.inform_info.trap_number))
            .collect();
        let mut wanted = BTreeSet::new();
        for (_, program) in self.programs_of(part) {
            for (item, wish) in &program.wishes {
                if let (Item::Subscription(trap), true) = (item, wish.wanted) {
                    wanted.insert((program.gid, *trap));
                }
            }
        }
        // A port with the LID of another one subscribes for that one, until a moved cable or a second master is discovered.
        let may_be = self.stats.swaps > 0 || self.stats.masters > 1;
        let mistaken = if may_be { there.clone() } else { BTreeSet::new() };
        self.mistaken = there.difference(&wanted).map(|(gid, _)| *gid).collect();
        if !there.is_superset(&wanted) || !wanted.union(&mistaken).eq(there.iter()) {
            return Err(format!("programs subscribe {wanted:?}, administration has {there:?}"));
        }
        Ok(())
    }

    /// Checks that paths lead where they should, and back: those that programs have got, and those between some ports.
    pub(super) fn check_paths(&mut self, part: &BTreeSet<PortId>, seat: usize) -> Checked {
        let mut found = Vec::new();
        for (index, program) in self.programs_of(part) {
            for other in self.programs_of(part).map(|(_, other)| other.port) {
                let paths = program.paths.iter().find(|(to, _)| *to == other);
                match paths {
                    Some((_, paths)) => found.push((program.port, other, paths.clone())),
                    None if other == program.port => {}
                    None => return Err(format!("program {index} has found no path to {other}")),
                }
            }
        }
        let ends: Vec<PortId> = part.iter().copied().collect();
        for _ in 0..PAIRS {
            let from = ends[self.rng.random_range(0..ends.len())];
            let to = ends[self.rng.random_range(0..ends.len())];
            let view = |port| self.subnet.port(port).map(|view| (view.guid(), view.lid()));
            let (Some((sguid, asks)), Some((dguid, _))) = (view(from), view(to)) else { continue };
            let gid = |guid: Guid| Gid::new(Gid::DEFAULT_PREFIX, guid);
            let (sgid, dgid, reversible, numb_path) = (gid(sguid), gid(dguid), true, 127);
            let record = PathRecord { sgid, dgid, reversible, numb_path, ..PathRecord::default() };
            use PathRecordMask as Mask;
            let mask = Mask::SGID | Mask::DGID | Mask::REVERSIBLE | Mask::NUMB_PATH;
            let question = (PathRecord::ATTR_ID, mask.bits());
            found.push((from, to, self.table(seat, asks, question, &record)?));
        }
        for (from, to, paths) in found {
            if paths.is_empty() {
                return Err(format!("administration knows no path from {from} to {to}"));
            }
            for path in paths {
                self.stats.paths += 1;
                let (slid, dlid) = (path.slid, path.dlid);
                let own = |port: PortId, lid: Lid| {
                    let view = self.subnet.port(port);
                    view.is_some_and(|v| lid.0 & !((1 << v.lmc()) - 1) == v.lid().0)
                };
                if !own(from, slid) || !own(to, dlid) {
                    return Err(format!("LIDs of other ports: from {from} to {to} by {path:?}"));
                }
                let ways = self.reaches(from, to, dlid) && self.reaches(to, from, slid);
                if from != to && !ways {
                    return Err(format!("no way from {from} to {to} and back by {path:?}"));
                }
            }
        }
        Ok(())
    }

    /// Checks that programs that have everything they want send nothing.
    pub(super) fn check_silence(&self) -> Checked {
        for index in 0..self.seats.len() {
            if self.seats[index].manager.is_none() {
                continue;
            }
            let part = self.part(self.seats[index].port);
            let loud = self.programs_of(&part).find(|(_, p)| p.sent > 0 || !p.reports.is_empty());
            if let Some((index, program)) = loud {
                let (sent, reports) = (program.sent, &program.reports);
                return Err(format!(
                    "program {index} has sent {sent} requests and read of traps {reports:?}"
                ));
            }
        }
        Ok(())
    }

    /// Checks that subscribers have got one Report of the group that a program created.
    pub(super) fn check_reports(&self) -> Checked {
        let Some(maker) = self.maker else { return Ok(()) };
        let part = self.part(self.programs[maker].port);
        for (index, program) in self.programs_of(&part) {
            if self.mistaken.contains(&program.gid) {
                continue;
            }
            let wish = program.wishes.get(&Item::Subscription(GROUP_CREATED));
            let wanted = usize::from(wish.is_some_and(|wish| wish.wanted));
            let read = program.reports.iter().filter(|trap| **trap == GROUP_CREATED).count();
            if read != wanted || read != program.reports.len() {
                let reports = &program.reports;
                return Err(format!("program {index} wants {wanted} Reports of it: {reports:?}"));
            }
        }
        Ok(())
    }
}
