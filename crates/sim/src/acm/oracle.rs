//! The history of addresses and LIDs, with which paths are compared.

use std::collections::BTreeMap;
use std::time::Duration;

use rdmux_acm::{ClaimPolicy, RouteProtocol};
use rdmux_transport::Time;
use rdmux_wire::acm::Address;
use rdmux_wire::sa::PathRecord;
use rdmux_wire::{Gid, Lid};

use super::AcmScenario;

/// A fact that was true during some time.
#[derive(Clone, Copy, Debug)]
struct Period<T> {
    what: T,
    from: Time,
    until: Time,
}

/// The facts in order of time.
#[derive(Debug)]
struct History<T>(Vec<Period<T>>);

impl<T: PartialEq + Copy> History<T> {
    fn add(&mut self, what: T, from: Time, until: Time) {
        self.0.push(Period { what, from, until });
    }

    /// Ends all facts that are still true.
    fn end(&mut self, now: Time) {
        for period in self.0.iter_mut().filter(|period| period.until == Time::NEVER) {
            period.until = now;
        }
    }

    /// Returns whether a fact was true at some time since `since`.
    fn was(&self, what: T, since: Time) -> bool {
        self.0.iter().any(|period| period.what == what && period.until >= since)
    }

    fn is(&self, what: T, now: Time) -> bool {
        self.0.iter().any(|p| p.what == what && p.from <= now && p.until == Time::NEVER)
    }
}

impl<T> Default for History<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

/// The history of all addresses and LIDs.
#[derive(Debug, Default)]
pub(super) struct Oracle {
    holders: BTreeMap<Address, History<Gid>>,
    lids: BTreeMap<Gid, History<Lid>>,
}

impl Oracle {
    /// Records that an address belongs to a host from now on, or to none.
    pub(super) fn moved(&mut self, now: Time, address: Address, to: Option<Gid>) {
        let history = self.holders.entry(address).or_default();
        history.end(now);
        if let Some(gid) = to {
            history.add(gid, now, Time::NEVER);
        }
    }

    /// Records a false claim of an address: it may be believed until its cache entry expires.
    pub(super) fn lied(&mut self, now: Time, address: Address, gid: Gid) {
        self.holders.entry(address).or_default().add(gid, now, now);
    }

    /// Records that a port has a new LID.
    pub(super) fn renumbered(&mut self, now: Time, gid: Gid, lid: Lid) {
        let history = self.lids.entry(gid).or_default();
        history.end(now);
        history.add(lid, now, Time::NEVER);
    }

    /// Returns whether a host has the address now.
    pub(super) fn is_held(&self, now: Time, address: &Address) -> bool {
        let gids: Vec<_> = self.lids.keys().copied().collect();
        match address {
            Address::Gid(gid) => self.lids.contains_key(gid),
            Address::Lid(lid) => self.lids.values().any(|history| history.is(*lid, now)),
            _ => gids
                .iter()
                .any(|gid| self.holders.get(address).is_some_and(|history| history.is(*gid, now))),
        }
    }

    /// Returns whether an address belongs to this host now.
    pub(super) fn is_holder(&self, now: Time, address: &Address, gid: Gid) -> bool {
        self.holders.get(address).is_some_and(|history| history.is(gid, now))
    }

    /// Checks whether a path from `own` to an address may be returned now. Returns whether it is also true now.
    pub(super) fn judge(
        &self,
        now: Time,
        scenario: &AcmScenario,
        own: Gid,
        address: &Address,
        path: &PathRecord,
    ) -> Result<bool, String> {
        let options = &scenario.options;
        let by_address = before(now, options.address_timeout + slack(scenario));
        let lid_life = match options.route_protocol {
            RouteProtocol::Sa => options.address_timeout.min(options.route_timeout),
            RouteProtocol::Acm => options.address_timeout,
        };
        let by_lid = before(now, lid_life + slack(scenario));
        let (dgid, dlid) = (path.dgid, path.dlid);
        let lids =
            self.lids.get(&dgid).ok_or(format!("the path leads to {dgid}, which is no port"))?;
        let holds = |since: Option<Time>| match (address, since) {
            (Address::Gid(gid), _) => *gid == dgid,
            (Address::Lid(lid), Some(since)) => lids.was(*lid, since),
            (Address::Lid(lid), None) => lids.is(*lid, now),
            (_, Some(since)) => self.holders.get(address).is_some_and(|h| h.was(dgid, since)),
            (_, None) => self.holders.get(address).is_some_and(|h| h.is(dgid, now)),
        };
        if !holds(Some(by_address)) {
            return Err(format!(
                "{address} leads to {dgid}, which has not had it since {}",
                by_address.0
            ));
        }
        if !lids.was(dlid, by_lid) {
            return Err(format!(
                "{address} leads to LID {dlid} of {dgid}, which has not had it since {}",
                by_lid.0
            ));
        }
        let own_lids = self.lids.get(&own).ok_or("no such host")?;
        let since = before(now, slack(scenario));
        if path.sgid != own || !own_lids.was(path.slid, since) {
            return Err(format!(
                "the path begins at {} LID {}, which {own} has not",
                path.sgid, path.slid
            ));
        }
        Ok(holds(None) && lids.is(dlid, now))
    }
}

/// Returns how long after its origin a fact may be returned: datagrams in flight, queries and searches in progress, and the
/// request itself.
pub(super) fn slack(scenario: &AcmScenario) -> Duration {
    let options = &scenario.options;
    let search = options.timeout.saturating_mul(options.retries + 2).max(Duration::from_secs(1));
    let claim = if options.claims == ClaimPolicy::Verified { search * 2 } else { search };
    options.deadline + claim + scenario.delay * 4 + scenario.think + Duration::from_millis(10)
}

fn before(now: Time, by: Duration) -> Time {
    Time(now.0.saturating_sub(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
}
