//! A query to ACM, and the check of its answer.

use std::net::IpAddr;

use rdmux_cm::{Addr, PathData, Route};
use rdmux_wire::acm::Address;
use rdmux_wire::acm::client::Query;
use rdmux_wire::sa::PathRecord;
use rdmux_wire::{Gid, Pkey};

/// A query for a path: its ends, and what is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    /// The source. None leaves the choice to the service.
    pub(crate) from: Option<Address>,
    /// The destination.
    pub(crate) to: Address,
    /// The path's partition, if both ends are GIDs. None is any.
    pub(crate) pkey: Option<Pkey>,
    /// Whether only a path that the service has cached is requested.
    pub(crate) cached: bool,
    /// The fields of the path that the connection manager has resolved already.
    known: Known,
}

/// The fields that an answer must not contradict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Known {
    sgid: Option<Gid>,
    dgid: Option<Gid>,
    /// The traffic class, if the program has set the id's type of service.
    tclass: Option<u8>,
}

impl Question {
    /// Returns the query for the path of an id whose address is resolved. On a fabric, IP addresses are sent as such, for
    /// services that have learned them by multicast. Off a fabric they are sent as GIDs, because a port on a fabric may have the
    /// same IP addresses.
    pub(crate) fn of_route(route: &Route) -> Self {
        let known = Known {
            sgid: Some(route.sgid),
            dgid: Some(route.av.dgid),
            tclass: Some(route.av.traffic_class).filter(|&tclass| tclass != 0),
        };
        let by_gid = |pkey| {
            let (from, to) = (Some(route.sgid.into()), route.av.dgid.into());
            Self { from, to, pkey, cached: false, known }
        };
        match (route.src, route.dst) {
            (Addr::Ip(src), Addr::Ip(_)) if Gid::from(src.ip()) == route.sgid => by_gid(None),
            (Addr::Ip(src), Addr::Ip(dst)) => {
                Self { known, ..Self::of_ip(Some(src.ip()), dst.ip()) }
            }
            _ => by_gid(Some(route.pkey)),
        }
    }

    /// Returns the query for the path to an address. A source address of another family is ignored.
    pub(crate) fn of_addresses(src: Option<Addr>, dst: Addr) -> Self {
        match dst {
            Addr::Ip(dst) => {
                Self::of_ip(src.and_then(|src| src.socket()).map(|src| src.ip()), dst.ip())
            }
            Addr::Ib(dst) => {
                let src = src.and_then(|src| src.ib().copied()).filter(|src| !src.gid.is_zero());
                Self {
                    from: src.map(|src| src.gid.into()),
                    to: dst.gid.into(),
                    pkey: Some(dst.pkey).filter(|pkey| pkey.0 != 0),
                    cached: false,
                    known: Known { dgid: Some(dst.gid), ..Known::default() },
                }
            }
        }
    }

    /// Returns the query for the path to an IP address. A wildcard source is ignored.
    pub(crate) fn of_ip(src: Option<IpAddr>, dst: IpAddr) -> Self {
        let src = src.filter(|src| !src.is_unspecified());
        Self {
            from: src.map(|src| src.to_canonical().into()),
            to: dst.to_canonical().into(),
            pkey: None,
            cached: false,
            known: Known::default(),
        }
    }

    /// Returns the query with IP addresses as GIDs, for devices off a fabric: a port on a fabric may have the same IP addresses.
    pub(crate) fn off_fabric(self) -> Self {
        let by_gid = |address| match address {
            Address::Ip4(ip) => Gid::from(ip).into(),
            Address::Ip6(ip) => Gid::from(ip).into(),
            other => other,
        };
        Self { from: self.from.map(by_gid), to: by_gid(self.to), ..self }
    }

    /// Returns the query for the path to an endpoint by its name, or none if no endpoint can have that name.
    pub(crate) fn of_name(src: Option<IpAddr>, name: &str) -> Option<Self> {
        Some(Self { to: Address::name(name)?, ..Self::of_ip(src, [0; 4].into()) })
    }

    /// Returns the query in the service's form.
    pub(super) fn query(&self) -> Query {
        let cached_only = self.cached;
        match (self.from, self.to, self.pkey) {
            (Some(Address::Gid(sgid)), Address::Gid(dgid), Some(pkey)) => {
                let path = PathRecord { sgid, dgid, pkey, ..PathRecord::default() };
                Query::ResolvePath { path, cached_only }
            }
            (source, dest, _) => Query::Resolve { source, dest, cached_only },
        }
    }

    /// Restricts the question to cached paths, or lifts the restriction.
    pub(crate) fn cached(self, cached: bool) -> Self {
        Self { cached, ..self }
    }

    /// Returns the service's answer if it is a path that fits the question.
    pub(crate) fn checked(&self, record: PathRecord) -> Option<PathData> {
        let known = &self.known;
        let is_or_unknown = |known: Option<Gid>, gid| known.is_none_or(|known| known == gid);
        let fits = !record.sgid.is_zero()
            && !record.dgid.is_zero()
            && is_or_unknown(known.sgid, record.sgid)
            && is_or_unknown(known.dgid, record.dgid)
            && known.tclass.is_none_or(|tclass| tclass == record.tclass)
            && self.pkey.is_none_or(|pkey| (pkey.0 ^ record.pkey.0) & 0x7fff == 0);
        fits.then_some(PathData { flags: PathData::WHOLE, record })
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use rdmux_cm::IbAddr;
    use rdmux_transport::attr::AddressVector;
    use rdmux_wire::{Lid, Mtu, ServiceId};

    use super::*;

    fn gid(last: u8) -> Gid {
        Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last])
    }

    fn route(src: impl Into<Addr>, dst: impl Into<Addr>) -> Route {
        Route {
            src: src.into(),
            dst: dst.into(),
            device: 0,
            sgid: gid(1),
            slid: Lid(1),
            av: AddressVector { dgid: gid(2), ..AddressVector::default() },
            mtu: Mtu::M2048,
            pkey: Pkey::DEFAULT,
            pkey_index: 0,
            packet_lifetime: 0,
        }
    }

    fn socket(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn acm_question_uses_ip_or_gid_by_which_the_id_was_resolved() {
        let by_ip = Question::of_route(&route(socket("10.0.0.1:0"), socket("[::ffff:10.0.0.2]:7")));
        assert_eq!(by_ip.from, Some(IpAddr::from([10, 0, 0, 1]).into()));
        assert_eq!(by_ip.to, IpAddr::from([10, 0, 0, 2]).into());
        let by_gid = |gid| IbAddr::new(gid, ServiceId(1));
        let by_gid = Question::of_route(&route(by_gid(gid(1)), by_gid(gid(2))));
        assert_eq!((by_gid.from, by_gid.to), (Some(gid(1).into()), gid(2).into()));
        assert_eq!(by_gid.pkey, Some(Pkey::DEFAULT));
    }

    /// A port on a fabric may have the same IP addresses, but not the same GIDs.
    #[test]
    fn ids_whose_ip_addresses_are_gids_ask_by_those() {
        for (src, dst) in
            [("10.0.0.1:0", "10.0.0.2:7"), ("[fd00::1]:0", "[fd00::2]:7"), ("[::1]:0", "[::2]:7")]
        {
            let (src, dst) = (socket(src), socket(dst));
            let (sgid, dgid) = (Gid::from(src.ip()), Gid::from(dst.ip()));
            let on_fabric = route(src, dst);
            let av = AddressVector { dgid, ..on_fabric.av };
            let question = Question::of_route(&Route { sgid, slid: Lid(0), av, ..on_fabric });
            let query =
                Query::Resolve { source: Some(sgid.into()), dest: dgid.into(), cached_only: false };
            assert_eq!(question.query(), query);
            let good = PathRecord { sgid, dgid, ..PathRecord::default() };
            assert!(question.checked(good).is_some());
            assert_eq!(question.checked(PathRecord { sgid: gid(1), ..good }), None);
        }
    }

    #[test]
    fn acm_path_with_other_gids_or_traffic_class_is_rejected() {
        let question = Question::of_route(&route(socket("10.0.0.1:0"), socket("10.0.0.2:7")));
        let good = PathRecord { sgid: gid(1), dgid: gid(2), ..PathRecord::default() };
        assert_eq!(question.checked(good), Some(PathData { flags: PathData::WHOLE, record: good }));
        assert_eq!(question.checked(PathRecord { sgid: gid(3), ..good }), None);
        assert_eq!(question.checked(PathRecord { dgid: gid(3), ..good }), None);
        let mut with_tos = route(socket("10.0.0.1:0"), socket("10.0.0.2:7"));
        with_tos.av.traffic_class = 0x20;
        let question = Question::of_route(&with_tos);
        assert_eq!(question.checked(good), None);
        assert!(question.checked(PathRecord { tclass: 0x20, ..good }).is_some());
    }

    #[test]
    fn partition_counts_without_its_membership_bit() {
        let by_gid = |gid| IbAddr::new(gid, ServiceId(1));
        let question = Question::of_route(&route(by_gid(gid(1)), by_gid(gid(2))));
        let good =
            PathRecord { sgid: gid(1), dgid: gid(2), pkey: Pkey(0x7fff), ..PathRecord::default() };
        assert!(question.checked(good).is_some());
        assert_eq!(question.checked(PathRecord { pkey: Pkey(0x8020), ..good }), None);
    }

    #[test]
    fn acm_path_without_sgid_or_dgid_is_rejected() {
        let question = Question::of_ip(None, [10, 0, 0, 2].into());
        assert_eq!(question.checked(PathRecord { sgid: gid(1), ..PathRecord::default() }), None);
        assert_eq!(question.checked(PathRecord { dgid: gid(1), ..PathRecord::default() }), None);
        assert_eq!(Question::of_ip(Some([0; 4].into()), [10, 0, 0, 2].into()).from, None);
        assert!(Question::of_name(None, &"x".repeat(64)).is_none());
    }
}
