//! The cache in shared memory, which programs read without a request: the paths that the machine publishes, by the keys that
//! clients look up.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use rdmux_acm::{EndpointId, Time};
use rdmux_acm_client::{Offer, Places, Users};
use rdmux_link::acm::{Entry, Key, PathTable};
use rdmux_wire::acm::Address;
use rdmux_wire::acm::client::{PathData, PathFlags};
use rdmux_wire::sa::PathRecord;

pub(crate) use rdmux_link::acm::now;

/// The number of slots of the table; memory is allocated only for slots in use.
const SLOTS: usize = 1 << 17;
/// Time for which readers trust a table whose lease is not renewed.
const LEASE: Duration = Duration::from_secs(10);
/// Interval at which the lease is renewed.
const RENEW: Duration = Duration::from_secs(4);
/// Number of an endpoint's addresses that are used as sources in keys, and number of its GIDs.
const SOURCES: usize = 4;

/// All addresses of endpoints, because the service chooses a source among all of them.
type Sources = BTreeMap<EndpointId, Vec<Address>>;

/// The cache, and the socket that passes it to clients.
pub(crate) struct Cache {
    shared: Option<Shared>,
    sources: Sources,
    /// The endpoints that are not up.
    down: BTreeSet<EndpointId>,
    /// The sources in the keys of each endpoint; none if they must be recomputed.
    keys: Option<BTreeMap<EndpointId, Keys>>,
    renew: Instant,
}

/// The sources by which the paths of an endpoint are looked up.
#[derive(Debug, Default)]
struct Keys {
    /// The sources that clients name.
    named: Vec<Address>,
    /// The sources that the service chooses because there is only one of the kind: at most one of IPv4 and one of
    /// IPv6.
    only: Vec<IpAddr>,
}

/// The table, and the socket that passes it to clients.
struct Shared {
    table: PathTable,
    offer: Offer,
}

impl Cache {
    /// Creates the table and the socket that passes it to these users. If that fails, programs send requests instead.
    pub(crate) fn open(places: &Places, users: Users) -> Self {
        let shared = Shared::open(places, users).inspect_err(|e| {
            tracing::warn!(
                "cannot share the cache at {}, so programs send requests instead: {e}",
                places.paths().display()
            );
        });
        let now = Instant::now();
        let mut this = Self {
            shared: shared.ok(),
            sources: Sources::new(),
            down: BTreeSet::new(),
            keys: None,
            renew: now,
        };
        this.renew(now);
        this
    }

    /// Changes which users may have the cache.
    pub(crate) fn set_users(&self, users: Users) {
        if let Some(Err(e)) = self.shared.as_ref().map(|shared| shared.offer.set_users(users)) {
            tracing::warn!("cannot change the mode of the shared cache's socket: {e}");
        }
    }

    /// Returns how many connections for the cache were refused.
    pub(crate) fn refused(&self) -> u64 {
        self.shared.as_ref().map_or(0, |shared| shared.offer.refused())
    }

    /// Returns when the lease must be renewed.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.shared.as_ref().map(|_| self.renew)
    }

    /// Renews the lease, if it is time.
    pub(crate) fn renew(&mut self, at: Instant) {
        if let Some(shared) = &mut self.shared
            && at >= self.renew
        {
            let lease = u64::try_from(LEASE.as_nanos()).unwrap_or(0);
            shared.table.renew(now().saturating_add(lease));
            self.renew = at + RENEW;
        }
    }

    /// Sets the addresses of an endpoint, and the GIDs by which programs name it as a source. Returns true if everything was
    /// withdrawn, which happens when they changed: paths may have been published for a source that belongs to another endpoint now, or
    /// without a source because there was only one.
    #[must_use]
    pub(crate) fn set_endpoint(&mut self, id: EndpointId, addresses: &[Address]) -> bool {
        let is_other = self.sources.get(&id).is_none_or(|sources| sources != addresses);
        if is_other {
            self.sources.insert(id, addresses.to_vec());
            self.keys = None;
            self.flush();
        }
        is_other
    }

    /// Sets the endpoints that are not up. Returns true if everything was withdrawn, which happens when the choice between endpoints
    /// with the same address changes.
    #[must_use]
    pub(crate) fn set_down(&mut self, down: BTreeSet<EndpointId>) -> bool {
        if self.down == down {
            return false;
        }
        self.down = down;
        self.keys = None;
        let mut all = BTreeSet::new();
        let is_shared = !self.sources.values().flatten().all(|source| all.insert(source));
        if is_shared {
            self.flush();
        }
        is_shared
    }

    /// Removes an endpoint. Returns true if everything was withdrawn.
    #[must_use]
    pub(crate) fn forget(&mut self, id: EndpointId) -> bool {
        let was_there = self.sources.remove(&id).is_some();
        if was_there {
            self.keys = None;
            self.flush();
        }
        was_there
    }

    /// Invalidates all entries.
    fn flush(&mut self) {
        if let Some(shared) = &mut self.shared {
            shared.table.flush();
        }
    }

    /// Publishes a path.
    pub(crate) fn publish(
        &mut self,
        id: EndpointId,
        dest: &Address,
        path: &PathRecord,
        until: Time,
    ) {
        let Some(shared) = &mut self.shared else { return };
        let keys = self.keys.get_or_insert_with(|| keys(&self.sources, &self.down));
        for (key, source) in keys.get(&id).into_iter().flat_map(|keys| keys.of(dest)) {
            let path = PathData { flags: PathFlags::RESOLVED, path: *path };
            let entry = Entry { path, source, expiry: until.0 };
            shared.table.put(&key, &entry, now());
        }
    }

    /// Withdraws a path.
    pub(crate) fn withdraw(&mut self, id: EndpointId, dest: &Address) {
        let Some(shared) = &mut self.shared else { return };
        let keys = self.keys.get_or_insert_with(|| keys(&self.sources, &self.down));
        for (key, _) in keys.get(&id).into_iter().flat_map(|keys| keys.of(dest)) {
            shared.table.remove(&key);
        }
    }
}

/// Returns the sources in the keys of each endpoint. These are some of its addresses, those that are not names first, and some of
/// its GIDs, except those that the service would resolve to another endpoint. For each kind of IP address they include the only one
/// that the service could choose.
fn keys(all: &Sources, down: &BTreeSet<EndpointId>) -> BTreeMap<EndpointId, Keys> {
    let rank = |id: &EndpointId| (down.contains(id), *id);
    let mut chosen = BTreeMap::new();
    for (id, addresses) in all {
        for address in addresses {
            let best = chosen.entry(address).or_insert_with(|| rank(id));
            *best = rank(id).min(*best);
        }
    }
    let only = |is_kind: fn(&IpAddr) -> bool| {
        let mut ips = all.values().flatten().filter_map(ip_of).filter(is_kind);
        ips.next().filter(|_| ips.next().is_none())
    };
    let only: Vec<IpAddr> =
        [only(IpAddr::is_ipv4), only(IpAddr::is_ipv6)].into_iter().flatten().collect();
    let of_endpoint = |(id, addresses): (&EndpointId, &Vec<Address>)| {
        let of = |is_kind: fn(&Address) -> bool| {
            addresses.iter().filter(move |address| is_kind(address))
        };
        let ips = of(|address| ip_of(address).is_some());
        let others = of(|address| ip_of(address).is_none() && !matches!(address, Address::Gid(_)));
        let gids = of(|address| matches!(address, Address::Gid(_))).take(SOURCES);
        let sources = ips.chain(others).take(SOURCES).chain(gids);
        let is_chosen = |source: &&Address| chosen.get(source) == Some(&rank(id));
        let is_own = |ip: &&IpAddr| addresses.contains(&Address::from(**ip));
        let named = sources.filter(is_chosen).copied().collect();
        (*id, Keys { named, only: only.iter().filter(is_own).copied().collect() })
    };
    all.iter().map(of_endpoint).collect()
}

fn ip_of(address: &Address) -> Option<IpAddr> {
    match address {
        Address::Ip4(ip) => Some((*ip).into()),
        Address::Ip6(ip) => Some((*ip).into()),
        _ => None,
    }
}

impl Keys {
    /// Returns the keys for a path, each with the source that it implies: a key without a source exists for IP
    /// addresses only.
    fn of(&self, dest: &Address) -> impl Iterator<Item = (Key, Option<IpAddr>)> {
        let dest = *dest;
        let is_alike =
            move |ip: &&IpAddr| ip_of(&dest).is_some_and(|dest| dest.is_ipv4() == ip.is_ipv4());
        let named = self.named.iter().map(|source| (Some(*source), None));
        let all = named.chain(self.only.iter().filter(is_alike).map(|only| (None, Some(*only))));
        all.map(move |(source, chosen)| (Key { source, dest }, chosen))
    }
}

impl Shared {
    fn open(places: &Places, users: Users) -> io::Result<Self> {
        let mut seed = [0; 8];
        getrandom::fill(&mut seed).map_err(io::Error::other)?;
        let table = PathTable::create(SLOTS, u64::from_ne_bytes(seed))?;
        let offer = Offer::start(places.paths(), &table, users)?;
        Ok(Self { table, offer })
    }
}

#[cfg(test)]
mod tests {
    use rdmux::{Gid, Lid};
    use rdmux_acm_client::Shared as Reader;
    use rdmux_testing::temp_dir;

    use super::*;

    fn ip(last: u8) -> Address {
        Address::Ip4([10, 0, 0, last].into())
    }

    fn path(dlid: u16) -> PathRecord {
        PathRecord { dlid: Lid(dlid), dgid: Gid([1; 16]), ..PathRecord::default() }
    }

    /// Returns the directory of a cache, the cache, and a reader as programs have it.
    fn world() -> (tempfile::TempDir, Cache, Reader) {
        let dir = temp_dir();
        let places = Places::new(dir.path(), "/nowhere");
        let cache = Cache::open(&places, Users::NONE);
        let reader = Reader::new(places.paths());
        while !reader.is_there() {
            std::thread::yield_now();
        }
        (dir, cache, reader)
    }

    const ENDPOINT: EndpointId = EndpointId(1);

    #[test]
    fn published_path_is_found_by_its_source_and_without_one_while_there_is_one_choice() {
        let (_dir, mut cache, reader) = world();
        assert!(cache.set_endpoint(ENDPOINT, &[Address::name("a").unwrap(), ip(1)]));
        cache.publish(ENDPOINT, &ip(2), &path(7), Time::NEVER);
        for source in [Some(ip(1)), None] {
            let found = reader.get(source.as_ref(), &ip(2)).unwrap();
            assert_eq!(found.paths[0].path.dlid, Lid(7));
            assert_eq!(found.source, source.is_none().then_some(ip(1)));
        }
        assert!(reader.get(Some(&ip(3)), &ip(2)).is_none());
        cache.withdraw(ENDPOINT, &ip(2));
        assert!(reader.get(None, &ip(2)).is_none());
    }

    #[test]
    fn shared_cache_lookup_without_source_is_none_with_two_endpoints() {
        let (_dir, mut cache, reader) = world();
        assert!(cache.set_endpoint(ENDPOINT, &[ip(1)]));
        cache.publish(ENDPOINT, &ip(2), &path(7), Time::NEVER);
        assert!(reader.get(None, &ip(2)).is_some());
        assert!(cache.set_endpoint(EndpointId(2), &[ip(3)]));
        assert!(reader.get(None, &ip(2)).is_none());
        cache.publish(ENDPOINT, &ip(2), &path(7), Time::NEVER);
        assert!(reader.get(Some(&ip(1)), &ip(2)).is_some());
        assert!(reader.get(None, &ip(2)).is_none());
    }

    /// The fabric is down at first, so its endpoint, which precedes the other one, is not chosen.
    #[test]
    fn address_of_two_endpoints_has_the_paths_of_the_one_that_is_chosen() {
        let (_dir, mut cache, reader) = world();
        let (ib, roce) = (EndpointId(0), EndpointId(9));
        for id in [ib, roce] {
            assert!(cache.set_endpoint(id, &[ip(1)]));
        }
        let dlid = || reader.get(Some(&ip(1)), &ip(2)).map(|found| found.paths[0].path.dlid.0);
        assert!(cache.set_down([ib].into()));
        cache.publish(roce, &ip(2), &path(7), Time::NEVER);
        cache.publish(ib, &ip(2), &path(8), Time::NEVER);
        assert_eq!(dlid(), Some(7));
        assert!(!cache.set_down([ib].into()), "they are the same");
        assert!(cache.set_down([].into()));
        assert_eq!(dlid(), None);
        cache.publish(ib, &ip(2), &path(8), Time::NEVER);
        cache.withdraw(roce, &ip(2));
        assert_eq!(dlid(), Some(8));

        assert!(cache.set_endpoint(roce, &[ip(3)]));
        cache.publish(ib, &ip(2), &path(8), Time::NEVER);
        assert!(!cache.set_down([ib].into()), "known paths stay");
        assert_eq!(dlid(), Some(8));
    }

    #[test]
    fn gid_finds_the_paths_of_its_endpoint_where_another_one_has_the_same_addresses() {
        let (_dir, mut cache, reader) = world();
        let gid = |last| Address::Gid(std::net::Ipv4Addr::new(10, 0, 0, last).into());
        let (ib, roce) = (EndpointId(0), EndpointId(9));
        let addresses = [Address::name("a").unwrap(), ip(1), ip(2), ip(3), ip(4)];
        assert!(cache.set_endpoint(ib, &addresses));
        let of_roce: Vec<_> = addresses.into_iter().chain((1..=4).map(gid)).collect();
        assert!(cache.set_endpoint(roce, &of_roce));
        cache.publish(ib, &ip(7), &path(7), Time::NEVER);
        cache.publish(roce, &gid(7), &path(8), Time::NEVER);
        let dlid = |source, dest| reader.get(Some(&source), &dest).map(|f| f.paths[0].path.dlid.0);
        assert_eq!((dlid(ip(1), ip(7)), dlid(ip(1), gid(7))), (Some(7), None));
        assert_eq!((dlid(gid(1), gid(7)), dlid(gid(4), gid(7))), (Some(8), Some(8)));
    }

    /// Addresses that are not the source of any key also count when the service chooses.
    #[test]
    fn source_is_chosen_among_all_addresses() {
        let (_dir, mut cache, reader) = world();
        let (many, one) = (EndpointId(0), EndpointId(9));
        let ip6 = |last| Address::Ip6([0xfd, 0, 0, 0, 0, 0, 0, last].into());
        let addresses = [ip6(1), ip6(2), ip6(3), ip6(4), ip(1)];
        assert!(cache.set_endpoint(many, &addresses));
        assert!(cache.set_endpoint(one, &[ip(3)]));
        cache.publish(one, &ip(2), &path(7), Time::NEVER);
        assert!(reader.get(Some(&ip(3)), &ip(2)).is_some());
        assert!(reader.get(None, &ip(2)).is_none(), "there are two choices");
        assert!(cache.set_endpoint(one, &[ip(1)]));
        cache.publish(one, &ip(2), &path(7), Time::NEVER);
        assert!(reader.get(Some(&ip(1)), &ip(2)).is_none(), "the first endpoint has it, too");
        assert!(cache.set_endpoint(many, &addresses[..4]));
        cache.publish(one, &ip(2), &path(7), Time::NEVER);
        assert!(reader.get(Some(&ip(1)), &ip(2)).is_some());
        assert!(reader.get(None, &ip(2)).is_some());
    }

    #[test]
    fn endpoint_whose_addresses_change_leaves_nothing_behind() {
        let (_dir, mut cache, reader) = world();
        assert!(cache.set_endpoint(ENDPOINT, &[ip(1)]));
        cache.publish(ENDPOINT, &ip(2), &path(7), Time::NEVER);
        assert!(!cache.set_endpoint(ENDPOINT, &[ip(1)]), "they are the same");
        assert!(reader.get(Some(&ip(1)), &ip(2)).is_some());
        assert!(cache.set_endpoint(ENDPOINT, &[ip(9)]));
        assert!(reader.get(Some(&ip(1)), &ip(2)).is_none());
    }
}
