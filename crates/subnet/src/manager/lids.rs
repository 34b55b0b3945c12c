//! LID assignment: every end port gets 2^LMC LIDs and keeps them as long as possible.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use rdmux_wire::{Guid, Lid};

use super::Manager;
use super::status::ProblemKind;
use crate::topology::PortRef;

/// One past the last unicast LID.
const END: usize = Lid::FIRST_MULTICAST.0 as usize;

/// A port that needs LIDs.
#[derive(Clone, Copy, Debug)]
struct Claim {
    port: PortRef,
    guid: Guid,
    lmc: u8,
    /// The LID that the port reports.
    current: Lid,
    /// The LID that the port had last.
    last: Lid,
}

/// LIDs in use, indexed by LID.
struct Taken(Vec<bool>);

impl Taken {
    /// Takes 2^lmc LIDs starting at `lid`, if they are valid and free.
    fn take(&mut self, lid: Lid, lmc: u8) -> bool {
        let (first, count) = (usize::from(lid.0), 1 << lmc);
        let fits = lid.is_unicast() && first.is_multiple_of(count);
        let Some(range) = self.0.get_mut(first..first + count).filter(|_| fits) else {
            return false;
        };
        if range.contains(&true) {
            return false;
        }
        range.fill(true);
        true
    }

    /// Takes 2^lmc LIDs starting at `lid`, or only `lid` if a port with that LMC cannot have it.
    fn reserve(&mut self, lid: Lid, lmc: u8) {
        let first = usize::from(lid.0);
        let count = Some(1 << lmc).filter(|count| first.is_multiple_of(*count)).unwrap_or(1);
        self.0.iter_mut().skip(first).take(count).for_each(|entry| *entry = true);
    }

    /// Takes the first free LIDs at or above `from` that are not reserved for other ports.
    fn take_free(&mut self, from: usize, lmc: u8, reserved: &Taken) -> Option<Lid> {
        let count = 1_usize << lmc;
        let mut first = from.next_multiple_of(count).max(count);
        while first < self.0.len() {
            let range = first..first + count;
            let free =
                |taken: &Taken| taken.0.get(range.clone()).is_some_and(|r| !r.contains(&true));
            let lid = Lid(u16::try_from(first).ok()?);
            if free(reserved) && self.take(lid, lmc) {
                return Some(lid);
            }
            first += count;
        }
        None
    }
}

impl Manager {
    /// Assigns the LIDs of all end ports of the model.
    ///
    /// A port keeps its LID if it is free. Otherwise it gets the LID that it had last, and otherwise the first LID that is
    /// free and was never another port's. The LID of a port that is gone is reused only when there is no other.
    pub(super) fn assign_lids(&mut self) {
        let claims = self.claims();
        let end = self.lid_end();
        let mut taken = Taken(vec![false; end]);
        let mut chosen: Vec<Option<Lid>> = vec![None; claims.len()];
        let mut rest = 1;
        // First ports that still have their last LID, then ports whose LID no other port had last, then ports that lost theirs.
        let owners: BTreeMap<Lid, Guid> = claims.iter().map(|c| (c.last, c.guid)).collect();
        let is_others = |c: &Claim| owners.get(&c.current).is_some_and(|guid| *guid != c.guid);
        let rounds: [&dyn Fn(&Claim) -> Lid; 4] = [
            &|c| if c.current == c.last { c.current } else { Lid::NONE },
            &|c| if is_others(c) { Lid::NONE } else { c.current },
            &|c| c.last,
            &|c| c.current,
        ];
        for round in rounds {
            for (claim, chosen) in claims.iter().zip(&mut chosen).filter(|(_, c)| c.is_none()) {
                let lid = round(claim);
                *chosen = taken.take(lid, claim.lmc).then_some(lid);
            }
        }
        let mut reserved = Taken(vec![false; end]);
        for (guid, lid) in &self.lids {
            // A port that is gone may return with all its LIDs.
            let place = self.model.by_port_guid(*guid);
            let port = place.and_then(|place| self.model.port(place));
            let has_claim = port.is_some_and(|port| port.info.is_some());
            reserved.reserve(*lid, if has_claim { 0 } else { self.config.lmc.min(7) });
        }
        let nothing = Taken(vec![false; end]);
        for (claim, chosen) in claims.iter().zip(&mut chosen).filter(|(_, c)| c.is_none()) {
            let free = taken.take_free(rest, claim.lmc, &reserved);
            rest = free.map_or(rest, |lid| usize::from(lid.0));
            *chosen = free.or_else(|| taken.take_free(1, claim.lmc, &nothing));
        }
        for (claim, chosen) in claims.iter().zip(chosen) {
            match chosen {
                Some(lid) => {
                    self.model.assign(claim.port, lid, claim.lmc);
                    self.lids.insert(claim.guid, lid);
                }
                None => self.problem(ProblemKind::NoLid, claim.port),
            }
        }
        self.forget_lids();
    }

    /// Returns the ports that can have LIDs. A port with a duplicate GUID gets none.
    fn claims(&self) -> Vec<Claim> {
        let mut claims = Vec::new();
        for (place, port) in self.model.end_ports() {
            let Some(info) = port.info.as_ref() else { continue };
            if self.model.by_port_guid(port.guid) != Some(place) {
                continue;
            }
            let node = self.model.node(place.node);
            let switch = node.and_then(|node| node.switch.as_ref());
            let lmc = match switch {
                Some(switch) if !switch.info.enhanced_port0 => 0,
                _ => self.config.lmc.min(7),
            };
            let last = self.lids.get(&port.guid).copied().unwrap_or(Lid::NONE);
            claims.push(Claim { port: place, guid: port.guid, lmc, current: info.lid, last });
        }
        claims
    }

    /// Returns one past the last LID that all switches have room for.
    fn lid_end(&self) -> usize {
        let switches = self.model.nodes().iter().filter_map(|node| node.switch.as_ref());
        let caps = switches.map(|switch| usize::from(switch.info.linear_fdb_cap));
        // A switch that reports no table does not prevent LIDs for all others.
        caps.filter(|&cap| cap >= MIN_CAP).min().unwrap_or(END).min(END)
    }

    /// Removes the LIDs of ports that are gone when there are many, so that changing GUIDs cannot exhaust memory.
    fn forget_lids(&mut self) {
        if self.lids.len() > END {
            let model = &self.model;
            self.lids.retain(|guid, _| model.by_port_guid(*guid).is_some());
        }
    }
}

/// A smaller linear forwarding table counts as none.
const MIN_CAP: usize = 1024;
