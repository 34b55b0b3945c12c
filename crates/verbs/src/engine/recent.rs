//! A cache for rounds, so that they need no lookup under a lock for each message: the queue pairs that received most recently,
//! and the region that each one's data was written to. Only rounds use it, and they exclude each other. A thread that changes a
//! cached object takes a round's turn to invalidate the entry.

use std::sync::Arc;

use rdmux_wire::Qpn;

use crate::engine::device::Device;
use crate::engine::qp::QpCore;
use crate::objects::cached_region::CachedRegion;

/// The number of cached queue pairs: as many as a program with a thread on each may have. Consecutive numbers do not evict each
/// other.
const QPS: usize = 256;

/// A queue pair, and the region that its data was last written to.
type Entry = (Arc<QpCore>, CachedRegion);

/// The queue pairs that received most recently.
#[derive(Debug)]
pub(super) struct RecentQps(Box<[Option<Entry>; QPS]>);

impl Default for RecentQps {
    fn default() -> Self {
        Self(Box::new([const { None }; QPS]))
    }
}

impl RecentQps {
    /// Returns the queue pair with a number, and the cache entry for its memory.
    #[inline]
    pub(super) fn get(
        &mut self,
        device: &Device,
        qpn: Qpn,
    ) -> Option<(&Arc<QpCore>, &mut CachedRegion)> {
        let place = &mut self.0[place(qpn)];
        if place.as_ref().is_none_or(|(core, _)| core.qpn != qpn) {
            let core = device.qps().read().get(qpn).cloned();
            *place = core.map(|core| (core, CachedRegion::default()));
        }
        place.as_mut().map(|(core, cached)| (&*core, cached))
    }

    /// Evicts a queue pair.
    pub(super) fn forget(&mut self, qpn: Qpn) {
        self.0[place(qpn)].take_if(|(core, _)| core.qpn == qpn);
    }

    /// Invalidates the memory of all queue pairs.
    pub(super) fn forget_memory(&mut self) {
        self.0.iter_mut().flatten().for_each(|(_, cached)| *cached = CachedRegion::default());
    }
}

/// Returns the position of a queue pair in the cache.
#[inline]
fn place(qpn: Qpn) -> usize {
    qpn.get() as usize % QPS
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rdmux_transport::attr::QpType;
    use rdmux_transport::wr::{Completion, SendOp, WcStatus};

    use super::*;
    use crate::handles::pd::Pd;
    use crate::lab::{Lab, Node};

    #[test]
    fn recently_used_qps_are_found_without_the_qp_table_lock() {
        let (device, control) = Lab::new(true).process("127.77.205.1");
        let pd = Pd::new(&device);
        let node = || Node::on(device.clone(), control.clone(), pd.clone(), QpType::Rc, 8, None);
        let nodes: Vec<_> = std::iter::repeat_with(node).take(QPS).collect();
        let numbers = || nodes.iter().map(|node| node.qp.qpn());
        let mut recent = RecentQps::default();
        numbers().for_each(|qpn| drop(recent.get(&device, qpn).unwrap().0.clone()));
        let _held = device.qps().write();
        assert!(numbers().all(|qpn| recent.get(&device, qpn).unwrap().0.qpn == qpn));
        numbers().for_each(|qpn| recent.forget(qpn));
        assert!(recent.0.iter().all(Option::is_none));
    }

    #[test]
    fn alternating_receives_of_two_qps_need_no_region_table_lock() {
        /// A timeout far longer than a round, reached only by a round that waits for the table.
        const HANGS: Duration = Duration::from_secs(60);
        let lab = Lab::new(true);
        let nodes = || {
            let (device, control) = lab.process("127.77.206.1");
            let pd = Pd::new(&device);
            [(); 2].map(|()| {
                Node::on(device.clone(), control.clone(), pd.clone(), QpType::Rc, 64, None)
            })
        };
        let (from, to) = (nodes(), nodes());
        for (from, to) in from.iter().zip(&to) {
            from.connect(to);
            to.connect(from);
            (0..2).for_each(|n| to.recv(n, 0, 8));
        }
        let send = || from.iter().for_each(|node| node.send(0, SendOp::Send, 0, 8));
        send();
        to.iter().for_each(|node| assert_eq!(node.wait().status, WcStatus::Success));
        let held = to[0].device.regions().write();
        send();
        let (done, received) = std::sync::mpsc::channel();
        let polling = to.each_ref().map(|node| node.cq.clone());
        let thread = std::thread::spawn(move || {
            for cq in polling {
                while cq.poll(&mut [Completion::EMPTY]) == 0 {
                    std::thread::yield_now();
                }
            }
            done.send(()).unwrap();
        });
        let outcome = received.recv_timeout(HANGS);
        drop(held);
        thread.join().unwrap();
        outcome.expect("a round waits for the table of regions");
    }

    #[test]
    fn region_change_clears_the_cached_regions_of_all_qps() {
        let (device, control) = Lab::new(true).process("127.77.207.1");
        let pd = Pd::new(&device);
        let nodes = [(); 2]
            .map(|()| Node::on(device.clone(), control.clone(), pd.clone(), QpType::Rc, 64, None));
        let mut recent = RecentQps::default();
        let holds = |recent: &mut RecentQps, node: &Node| {
            let (_, cached) = recent.get(&node.device, node.qp.qpn()).unwrap();
            let held = cached.holds(node.pd.id(), &node.sge(0, 8), 8);
            *cached = CachedRegion::new(node.pd.id(), node.mr.lkey(), node.base(), 64);
            held
        };
        assert!(!nodes.iter().any(|node| holds(&mut recent, node)), "nothing is known yet");
        assert!(nodes.iter().all(|node| holds(&mut recent, node)), "each has its own");
        recent.forget_memory();
        assert!(!nodes.iter().any(|node| holds(&mut recent, node)));
    }
}
