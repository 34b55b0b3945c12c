//! Compares route tables with the oracle: each host's route to each LID of the others, with every service level and P_Key,
//! and the receivers of each group.

use rdmux_link::routes::{RouteView, Way};
use rdmux_wire::{Lid, Pkey};

use super::oracle::Headers;
use super::world::World;
use crate::check::ensure;

/// The payload is zero, because the MTU is checked when packets are sent.
const PAYLOAD: usize = 0;

impl World {
    /// Compares all tables.
    pub(super) fn audit(&mut self) -> Result<(), String> {
        let attached: Vec<usize> =
            (0..self.hosts.len()).filter(|h| self.hosts[*h].attached).collect();
        for &from in &attached {
            let table = self.hosts[from].wire.routes().view();
            let table = table.ok_or_else(|| format!("host {from} has no table"))?;
            for &to in attached.iter().filter(|to| **to != from) {
                for lid in self.lids(to) {
                    self.audit_way(&table, from, to, lid)?;
                }
            }
            for group in 0..self.groups.len() {
                self.audit_group(&table, from, self.groups[group].mlid)?;
            }
        }
        Ok(())
    }

    /// Returns the LIDs of a host's port.
    fn lids(&self, host: usize) -> Vec<Lid> {
        let view = self.view(host);
        let count = 1 << view.lmc();
        let first = view.lid().0 / count * count;
        (first..first + count).map(Lid).filter(|lid| lid.is_unicast()).collect()
    }

    /// Returns whether a packet with this service level, P_Key index and payload gets from a host to another's LID.
    fn passes(
        &mut self,
        from: usize,
        to: usize,
        dlid: Lid,
        sl: u8,
        key: usize,
        payload: usize,
    ) -> bool {
        let pkey = self.view(from).pkeys()[key];
        let (start, end) = (self.hosts[from].port, self.hosts[to].port);
        // The table does not cover packets that a port does not send because of its own state.
        if pkey.0 & 0x7fff == 0 {
            return false;
        }
        let headers = Headers { dlid, sl, pkey, payload };
        self.oracle().unicast(start, &headers) == Some(end)
    }

    fn audit_way(
        &mut self,
        table: &RouteView,
        from: usize,
        to: usize,
        lid: Lid,
    ) -> Result<(), String> {
        self.stats.ways += 1;
        // Two ports may have the same LID; the route then leads to one of them.
        let peer = self.hosts[to].addr;
        let leads_there = |way: &Way| table.peer(way.peer).is_some_and(|found| found.addr == peer);
        let way = table.way(lid).filter(leads_there);
        let own = self.view(from);
        // Without a LID nothing is sent, whatever routes there are.
        let sends = own.lid().is_unicast();
        let keys = own.pkeys().len();
        let says = |way: &Option<Way>, sl, key| {
            way.as_ref().is_some_and(|way| way.takes_sl(sl) && way.takes_pkey(key))
        };
        for sl in (0..16).filter(|_| sends) {
            for key in 0..keys {
                let passes = self.passes(from, to, lid, sl, key, PAYLOAD);
                let said = says(&way, sl, key);
                ensure!(
                    said == passes,
                    "host {from} to LID {lid} of host {to}, service level {sl}, P_Key {key}: the table says {said}, the switches {passes}: {way:?}"
                );
            }
        }
        let Some(way) = way.filter(|_| sends) else { return Ok(()) };
        self.audit_way_back(from, to, &way)
    }

    /// Checks that a route has the right path bits and P_Keys of the sender for which answers arrive. What it states about
    /// P_Keys holds for all path bits by which any answer arrives.
    fn audit_way_back(&mut self, from: usize, to: usize, way: &Way) -> Result<(), String> {
        let lids = self.lids(from);
        let answered: Vec<u128> =
            lids.iter().map(|lid| self.answered(from, to, *lid, way)).collect();
        let each =
            answered.iter().filter(|keys| **keys != 0).fold(u128::MAX, |all, keys| all & keys);
        let all_keys = 0..self.view(from).pkeys().len();
        for ((lid, bit), keys) in lids.iter().zip(0..).zip(answered) {
            for key in all_keys.clone() {
                let (comes, said) = (keys & each & 1 << key != 0, way.comes_back(bit, key));
                ensure!(
                    said == comes,
                    "host {to} back to LID {lid} of host {from}, P_Key {key}: the table says {said}, the switches {comes}: {way:?}"
                );
            }
        }
        Ok(())
    }

    /// Returns the sender's P_Keys, by index, with which answers to one of its LIDs arrive. Answers are as long
    /// as the route's MTU, and must arrive with each of its service levels.
    fn answered(&mut self, from: usize, to: usize, lid: Lid, way: &Way) -> u128 {
        let (ours, theirs) = [from, to].map(|host| self.view(host).pkeys().to_vec()).into();
        let levels: Vec<u8> = (0..16).filter(|sl| way.takes_sl(*sl)).collect();
        let payload = way.mtu.bytes() as usize;
        let arrives: Vec<usize> = (0..theirs.len())
            .filter(|key| levels.iter().all(|sl| self.passes(to, from, lid, *sl, *key, payload)))
            .collect();
        let is_answered = |pkey: &Pkey| arrives.iter().any(|key| pkey.admits(theirs[*key]));
        let keys = ours.iter().zip(0..).filter(|(pkey, _)| is_answered(pkey));
        keys.fold(0, |set, (_, index)| set | 1 << index)
    }

    fn audit_group(&mut self, table: &RouteView, from: usize, mlid: Lid) -> Result<(), String> {
        self.stats.ways += 1;
        let mut ways = Vec::new();
        table.group(mlid, &mut ways);
        let port = self.hosts[from].port;
        let keys = self.view(from).pkeys().to_vec();
        for sl in 0..16 {
            for (index, &pkey) in keys.iter().enumerate().filter(|(_, key)| key.0 & 0x7fff != 0) {
                let headers = Headers { dlid: mlid, sl, pkey, payload: PAYLOAD };
                if !self.oracle().may_send(port, &headers) {
                    continue;
                }
                let found = self.oracle().multicast(port, &headers);
                let host_of = |port| self.hosts.iter().find(|h| h.port == port && h.attached);
                let mut found: Vec<_> =
                    found.into_iter().filter_map(host_of).map(|h| h.addr).collect();
                let takes = ways.iter().filter(|way| way.takes_sl(sl) && way.takes_pkey(index));
                let mut said: Vec<_> =
                    takes.filter_map(|way| table.peer(way.peer)).map(|p| p.addr).collect();
                found.sort_unstable();
                said.sort_unstable();
                ensure!(
                    said == found,
                    "host {from} to group {mlid}, service level {sl}, {pkey}: the table has {said:?}, the switches {found:?}"
                );
            }
        }
        Ok(())
    }
}
