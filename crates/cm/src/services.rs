//! Service IDs that do not encode ports, with their ids, GIDs and partitions (IBTA 12.7.3).

use alloc::vec::Vec;
use core::iter;

use rdmux_wire::{Gid, Pkey, ServiceId};

use crate::address::IbAddr;
use crate::ports::PortError;
use crate::sink::IdHandle;

/// The first byte of the service IDs that the connection manager assigns, as in Linux (`IB_CM_ASSIGN_SERVICE_ID`).
const ASSIGNED: u64 = 0x02 << 56;

/// The number of service IDs that are tried. Other ids may have claimed any part of the range, even all, by their masks.
const TRIES: usize = 64;

/// The service IDs in use.
#[derive(Debug, Default)]
pub(crate) struct ServiceTable {
    services: Vec<Service>,
}

/// A service ID or a range of them, with the id that has claimed it.
#[derive(Clone, Copy, Debug)]
struct Service {
    id: IdHandle,
    addr: IbAddr,
    listening: bool,
}

impl Service {
    /// Returns whether a request for a service at a GID, by a packet of a partition, matches this one.
    fn covers(&self, sid: ServiceId, gid: Gid, pkey: Pkey) -> bool {
        let IbAddr { sid: own, sid_mask, .. } = self.addr;
        (own.0 ^ sid.0) & sid_mask == 0 && self.is_at(gid, pkey)
    }

    fn is_at(&self, gid: Gid, pkey: Pkey) -> bool {
        let IbAddr { gid: own, pkey: key, .. } = self.addr;
        let same_partition = key.0 & 0x7fff == 0 || (key.0 ^ pkey.0) & 0x7fff == 0;
        (own.is_zero() || own == gid) && same_partition
    }

    /// Returns whether a request could match both.
    fn overlaps(&self, other: &IbAddr) -> bool {
        let own = &self.addr;
        let same_service = (own.sid.0 ^ other.sid.0) & own.sid_mask & other.sid_mask == 0;
        let anywhere = own.gid.is_zero() || other.gid.is_zero() || own.gid == other.gid;
        let any_partition = own.pkey.0 & 0x7fff == 0 || other.pkey.0 & 0x7fff == 0;
        same_service && anywhere && (any_partition || (own.pkey.0 ^ other.pkey.0) & 0x7fff == 0)
    }
}

impl ServiceTable {
    /// Claims a service ID for an id. If none of its bits is given, a random one that is free.
    pub(crate) fn claim(
        &mut self,
        id: IdHandle,
        addr: IbAddr,
        random: impl FnMut() -> u64,
    ) -> Result<IbAddr, PortError> {
        let addr = if addr.sid_mask == 0 {
            self.assigned(addr, random).ok_or(PortError::NoServiceId)?
        } else if self.is_free(&addr) {
            addr
        } else {
            return Err(PortError::InUse);
        };
        self.services.push(Service { id, addr, listening: false });
        Ok(addr)
    }

    fn assigned(&self, addr: IbAddr, random: impl FnMut() -> u64) -> Option<IbAddr> {
        let sids = iter::repeat_with(random).map(|random| ServiceId(ASSIGNED | random >> 8));
        let addrs = sids.map(|sid| IbAddr { sid, sid_mask: u64::MAX, ..addr });
        addrs.take(TRIES).find(|addr| self.is_free(addr))
    }

    fn is_free(&self, addr: &IbAddr) -> bool {
        !self.services.iter().any(|service| service.overlaps(addr))
    }

    /// Marks the id as a listener. Returns false if it has no service ID.
    pub(crate) fn listen(&mut self, id: IdHandle) -> bool {
        let own = self.services.iter_mut().find(|service| service.id == id);
        own.map(|service| service.listening = true).is_some()
    }

    /// Returns the listener for a request; of several the most specific by service ID, then GID, then partition.
    pub(crate) fn listener(&self, sid: ServiceId, gid: Gid, pkey: Pkey) -> Option<IdHandle> {
        let fits = self.services.iter().filter(|s| s.listening && s.covers(sid, gid, pkey));
        let says = |s: &&Service| {
            (s.addr.sid_mask.count_ones(), !s.addr.gid.is_zero(), s.addr.pkey.0 & 0x7fff != 0)
        };
        fits.max_by_key(says).map(|service| service.id)
    }

    /// Releases an id's service ID.
    pub(crate) fn release(&mut self, id: IdHandle) {
        self.services.retain(|service| service.id != id);
    }

    /// Returns how many are in use.
    pub(crate) fn len(&self) -> usize {
        self.services.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmux_wire::Guid;

    const A: Gid = Gid([1; 16]);
    const B: Gid = Gid([2; 16]);
    const ANY: Gid = Gid::ZERO;

    fn at(gid: Gid, sid: u64, sid_mask: u64, pkey: u16) -> IbAddr {
        IbAddr { sid_mask, pkey: Pkey(pkey), ..IbAddr::new(gid, ServiceId(sid)) }
    }

    #[test]
    fn service_claims_conflict_by_masked_service_id_gid_and_pkey() {
        let whole = u64::MAX;
        let free: &[(IbAddr, IbAddr, bool)] = &[
            (at(A, 7, whole, 0), at(A, 7, whole, 0), false),
            (at(A, 7, whole, 0), at(A, 8, whole, 0), true),
            (at(A, 7, whole, 0), at(B, 7, whole, 0), true),
            (at(A, 7, whole, 0), at(ANY, 7, whole, 0), false),
            (at(A, 7, whole, 0x8001), at(A, 7, whole, 0x8002), true),
            (at(A, 7, whole, 0x8001), at(A, 7, whole, 0x0001), false),
            (at(A, 7, whole, 0x8001), at(A, 7, whole, 0), false),
            (at(A, 0x700, !0xff, 0), at(A, 0x7ff, whole, 0), false),
            (at(A, 0x700, !0xff, 0), at(A, 0x800, whole, 0), true),
        ];
        for (first, second, is_free) in free {
            let mut table = ServiceTable::default();
            table.claim(IdHandle(1), *first, || 0).unwrap();
            let claimed = table.claim(IdHandle(2), *second, || 0);
            assert_eq!(claimed.is_ok(), *is_free, "{first} {second}");
        }
    }

    #[test]
    fn request_is_matched_to_a_listening_id_by_service_id_mask_gid_and_pkey() {
        let mut table = ServiceTable::default();
        for (id, addr) in [
            (1, at(A, 7, u64::MAX, 0x8001)),
            (2, at(A, 7, u64::MAX, 0x8002)),
            (3, at(B, 7, 0xff, 0)),
        ] {
            table.claim(IdHandle(id), addr, || 0).unwrap();
        }
        let of = |table: &ServiceTable, gid, sid, pkey| {
            table.listener(ServiceId(sid), gid, Pkey(pkey)).map(|id| id.0)
        };
        assert_eq!(of(&table, A, 7, 1), None, "nobody listens yet");
        assert!((1..=3).all(|id| table.listen(IdHandle(id))) && !table.listen(IdHandle(4)));
        assert_eq!(of(&table, A, 7, 1), Some(1));
        assert_eq!(of(&table, A, 7, 0x8002), Some(2));
        assert_eq!(of(&table, A, 7, 0x8003), None);
        assert_eq!(of(&table, A, 8, 1), None);
        assert_eq!(of(&table, B, 0x507, 0x8009), Some(3));
        table.release(IdHandle(1));
        assert_eq!((of(&table, A, 7, 1), table.len()), (None, 2));
    }

    #[test]
    fn assigned_service_ids_are_distinct_and_have_prefix_0x02() {
        let mut table = ServiceTable::default();
        let any = IbAddr::of_port(Gid::new(0, Guid(1)));
        let mut numbers = [7, 7, 9].map(|n| n << 8).into_iter();
        for (id, sid) in [(1, 0x0200_0000_0000_0007), (2, 0x0200_0000_0000_0009)] {
            let claimed = table.claim(IdHandle(id), any, || numbers.next().unwrap()).unwrap();
            assert_eq!((claimed.sid, claimed.sid_mask), (ServiceId(sid), u64::MAX));
        }
    }

    #[test]
    fn bind_without_service_id_fails_when_the_gids_service_ids_are_all_taken() {
        let mut table = ServiceTable::default();
        table.claim(IdHandle(1), at(A, 0, 1 << 63, 0), || 0).unwrap();
        let refused = table.claim(IdHandle(2), IbAddr::of_port(A), || 7);
        assert_eq!(refused, Err(PortError::NoServiceId));
        table.claim(IdHandle(3), IbAddr::of_port(B), || 7).unwrap();
    }
}
