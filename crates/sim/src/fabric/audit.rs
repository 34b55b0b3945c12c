//! Route tables, compared with what the oracle finds: each host's way to each LID of the others, with every service level and P_Key,
//! and who gets what is sent to each group.

use rdmux_link::routes::{RouteView, Way};
use rdmux_wire::Lid;

use super::oracle::Headers;
use super::world::World;
use crate::check::ensure;

/// What is sent has no payload: the MTU is looked at when packets are sent.
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

    /// The LIDs of a host's port.
    fn lids(&self, host: usize) -> Vec<Lid> {
        let view = self.view(host);
        let count = 1 << view.lmc();
        let first = view.lid().0 / count * count;
        (first..first + count).map(Lid).filter(|lid| lid.is_unicast()).collect()
    }

    /// Whether a packet with this service level and the P_Key at this index gets from a host to another's LID.
    fn passes(&mut self, from: usize, to: usize, dlid: Lid, sl: u8, key: usize) -> bool {
        let pkey = self.view(from).pkeys()[key];
        let (start, end) = (self.hosts[from].port, self.hosts[to].port);
        // What a port does not send because of its own state is not the table's to say.
        if pkey.0 & 0x7fff == 0 {
            return false;
        }
        let headers = Headers { dlid, sl, pkey, payload: PAYLOAD };
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
        // Two ports may have one LID; then the way leads to one of them.
        let peer = self.hosts[to].addr;
        let leads_there = |way: &Way| table.peer(way.peer).is_some_and(|found| found.addr == peer);
        let way = table.way(lid).filter(leads_there);
        let own = self.view(from);
        // Without a LID nothing is sent, whatever ways there are.
        let sends = own.lid().is_unicast();
        let (keys, bits) = (own.pkeys().len(), 1_u8 << own.lmc());
        let says = |way: &Option<Way>, sl, key| {
            way.as_ref().is_some_and(|way| way.takes_sl(sl) && way.takes_pkey(key))
        };
        for sl in (0..16).filter(|_| sends) {
            for key in 0..keys {
                let passes = self.passes(from, to, lid, sl, key);
                let said = says(&way, sl, key);
                ensure!(
                    said == passes,
                    "host {from} to LID {lid} of host {to}, service level {sl}, P_Key {key}: the table says {said}, the switches {passes}: {way:?}"
                );
            }
        }
        let Some(way) = way.filter(|_| sends) else { return Ok(()) };
        for bit in 0..bits {
            let back = Lid(self.lids(from)[usize::from(bit)].0);
            let theirs = self.view(to).pkeys().to_vec();
            for key in (0..keys).filter(|key| way.comes_back(bit, *key)) {
                let pkey = self.view(from).pkeys()[key];
                let answers = (0..theirs.len()).filter(|at| pkey.admits(theirs[*at]));
                let answers: Vec<_> = answers.collect();
                for sl in (0..16).filter(|sl| way.takes_sl(*sl)) {
                    let passes = |at: &usize| self.passes(to, from, back, sl, *at);
                    ensure!(
                        answers.iter().any(passes),
                        "host {to} back to LID {back} of host {from}, service level {sl}, {pkey}: the table says that answers arrive, the switches do not"
                    );
                }
            }
        }
        Ok(())
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
