//! What rounds remember, so that they need not look it up under a lock for each message: who got something lately, and
//! where it was put. Only rounds use it, and they exclude each other; whoever changes what is remembered takes a round's
//! turn to have it forgotten.

use std::sync::Arc;

use rdmux_transport::wr::Sge;
use rdmux_wire::{Lkey, Qpn};

use crate::device::Device;
use crate::pd::PdId;
use crate::qp::QpCore;

/// How many queue pairs are remembered: as many as a program with a thread on each may have. Those of numbers in a row
/// do not displace each other.
const QPS: usize = 256;

/// Queue pairs that got something lately.
#[derive(Debug)]
pub(super) struct Lately(Box<[Option<Arc<QpCore>>; QPS]>);

impl Default for Lately {
    fn default() -> Self {
        Self(Box::new([const { None }; QPS]))
    }
}

impl Lately {
    /// The queue pair with a number.
    #[inline]
    pub(super) fn get(&mut self, device: &Device, qpn: Qpn) -> Option<&Arc<QpCore>> {
        let place = &mut self.0[place(qpn)];
        if place.as_ref().is_none_or(|core| core.qpn != qpn) {
            *place = device.qps().read().get(qpn).cloned();
        }
        place.as_ref()
    }

    /// Forgets one.
    pub(super) fn forget(&mut self, qpn: Qpn) {
        self.0[place(qpn)].take_if(|core| core.qpn == qpn);
    }
}

/// Where a queue pair is remembered, if it is.
#[inline]
fn place(qpn: Qpn) -> usize {
    qpn.get() as usize % QPS
}

/// Memory of the process's own that was used lately.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spot {
    pd: PdId,
    lkey: Lkey,
    /// Where it begins.
    addr: u64,
    /// Bytes; zero of none.
    length: u64,
}

impl Default for Spot {
    fn default() -> Self {
        Self::new(PdId::default(), Lkey(0), 0, 0)
    }
}

impl Spot {
    /// `length` bytes of the process's own memory at `addr`, which the protection domain calls `lkey` and by their own
    /// addresses.
    pub(crate) fn new(pd: PdId, lkey: Lkey, addr: u64, length: u64) -> Self {
        Self { pd, lkey, addr, length }
    }

    /// Whether an entry of a list lies in it.
    #[inline]
    pub(super) fn holds(&self, pd: PdId, sge: &Sge, len: u32) -> bool {
        let offset = sge.addr.wrapping_sub(self.addr);
        let fits = offset <= self.length && u64::from(len) <= self.length - offset;
        fits && sge.lkey == self.lkey && pd == self.pd && self.length != 0
    }
}

#[cfg(test)]
mod tests {
    use rdmux_transport::attr::QpType;

    use super::*;
    use crate::lab::{Lab, Node};
    use crate::pd::Pd;

    #[test]
    fn queue_pairs_in_a_row_are_remembered_without_the_table() {
        let (device, control) = Lab::new(true).process("127.77.205.1");
        let pd = Pd::new(&device);
        let node = || Node::on(device.clone(), control.clone(), pd.clone(), QpType::Rc, 8, None);
        let nodes: Vec<_> = std::iter::repeat_with(node).take(QPS).collect();
        let numbers = || nodes.iter().map(|node| node.qp.qpn());
        let mut lately = Lately::default();
        numbers().for_each(|qpn| drop(lately.get(&device, qpn).unwrap().clone()));
        let _held = device.qps().write();
        assert!(numbers().all(|qpn| lately.get(&device, qpn).unwrap().qpn == qpn));
        numbers().for_each(|qpn| lately.forget(qpn));
        assert!(lately.0.iter().all(Option::is_none));
    }

    #[test]
    fn a_spot_holds_what_lies_in_it() {
        let (pd, lkey) = (PdId(7), Lkey(0x105));
        let spot = Spot::new(pd, lkey, 1000, 24);
        let holds = |pd, lkey, addr, len| spot.holds(pd, &Sge { addr, length: len, lkey }, len);
        assert!(holds(pd, lkey, 1000, 24) && holds(pd, lkey, 1023, 1) && holds(pd, lkey, 1024, 0));
        assert!(
            !holds(pd, lkey, 1001, 24) && !holds(pd, lkey, 999, 1) && !holds(pd, lkey, 1025, 0)
        );
        assert!(!holds(PdId(8), lkey, 1000, 1) && !holds(pd, Lkey(0x106), 1000, 1));
        assert!(!Spot::default().holds(PdId(0), &Sge { addr: 0, length: 0, lkey: Lkey(0) }, 0));
    }
}
