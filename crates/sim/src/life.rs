//! How queue pairs are brought up, pause and are closed, and what must be true at the end.

use rand::Rng;
use rdmux_testing::qp::steps;
use rdmux_transport::attr::{Access, AttrMask, QpAttr, QpState, QpType};
use rdmux_wire::{AckTimeout, Psn, RnrTimer};

use crate::check::ensure;
use crate::endpoint::PROCESSES;
use crate::memory::{CANARY, Mr, pattern};
use crate::workload::QKEY;
use crate::world::{Event, World};

impl World {
    /// Modifies an endpoint's queue pair.
    pub(crate) fn modify(
        &mut self,
        id: usize,
        attr: &QpAttr,
        mask: AttrMask,
    ) -> Result<(), String> {
        self.act(id, |ep, now, env| ep.qp.modify(now, attr, mask, env))?
            .map_err(|e| format!("ep {id}: {e}"))
    }

    /// Brings all queue pairs up.
    pub(crate) fn connect_all(&mut self) -> Result<(), String> {
        let psns: Vec<Psn> =
            (0..self.endpoints.len()).map(|_| Psn::new(self.rng.random())).collect();
        for id in 0..self.endpoints.len() {
            let attr = self.attributes(id, &psns);
            let qp_type = self.endpoints[id].qp.qp_type();
            // RTR suffices for an XRC target.
            let moves = self.scenario.plans[self.endpoints[id].plan.0].moves.is_some();
            let short = qp_type == QpType::XrcRecv && self.rng.random_bool(0.5) && !moves;
            let last = if short { QpState::Rtr } else { QpState::Rts };
            for (state, mask) in steps(qp_type, last) {
                self.modify(id, &QpAttr { state, ..attr }, mask)?;
            }
            let plan = &self.scenario.plans[self.endpoints[id].plan.0];
            let (depth, drain) = (plan.depth, plan.drain);
            // A queue pair whose peer is gone may hold one of the shared receives forever.
            let receivers = match qp_type {
                QpType::XrcSend => 0..0,
                QpType::XrcRecv => 1..PROCESSES,
                _ => 0..1,
            };
            for process in receivers {
                for _ in 0..=depth {
                    self.refill(id, process);
                }
            }
            self.post_soon(id);
            if drain {
                let delay = self.micros(2000);
                self.put(delay, Event::Drain(id));
            }
        }
        Ok(())
    }

    fn attributes(&self, id: usize, psns: &[Psn]) -> QpAttr {
        let ep = &self.endpoints[id];
        let plan = &self.scenario.plans[ep.plan.0];
        let peer = &self.endpoints[ep.peer];
        let mut attr = ep.qp.attr();
        attr.port_num = 1;
        attr.access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        attr.qkey = QKEY;
        attr.av = self.way(id, 0);
        attr.path_mtu = self.scenario.mtu;
        attr.dest_qpn = peer.qp.qpn();
        (attr.sq_psn, attr.rq_psn) = (psns[id], psns[ep.peer]);
        (attr.max_rd_atomic, attr.max_dest_rd_atomic) = (plan.rd_atomic, plan.rd_atomic);
        attr.min_rnr_timer = RnrTimer::new(plan.rnr_timer);
        attr.timeout = AckTimeout::new(plan.timeout);
        (attr.retry_cnt, attr.rnr_retry) = (7, 7);
        attr
    }

    /// Starts to drain the send queue of an endpoint (SQD).
    pub(crate) fn drain(&mut self, id: usize) -> Result<(), String> {
        if self.endpoints[id].qp.state() != QpState::Rts || !self.is_alive(id) {
            return Ok(());
        }
        self.endpoints[id].draining = true;
        let mut attr = self.endpoints[id].qp.attr();
        (attr.state, attr.en_sqd_async_notify) = (QpState::Sqd, true);
        self.modify(id, &attr, AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY)
    }

    /// Takes a drained queue pair back to RTS.
    pub(crate) fn resume(&mut self, id: usize) -> Result<(), String> {
        if self.endpoints[id].qp.state() != QpState::Sqd || !self.is_alive(id) {
            return Ok(());
        }
        self.endpoints[id].draining = false;
        let attr = QpAttr { state: QpState::Rts, ..self.endpoints[id].qp.attr() };
        self.modify(id, &attr, AttrMask::STATE)?;
        self.wake_soon(id, 1);
        Ok(())
    }

    /// Closes every queue pair, and checks the final state.
    pub(crate) fn take_down(&mut self) -> Result<(), String> {
        self.ending = true;
        for id in 0..self.endpoints.len() {
            if !self.is_alive(id) {
                continue;
            }
            let state = self.endpoints[id].qp.state();
            let is_target = self.endpoints[id].qp.qp_type() == QpType::XrcRecv;
            let healthy =
                matches!(state, QpState::Rts | QpState::Sqd) || is_target && state == QpState::Rtr;
            let excused = self.endpoints[id].doomed;
            ensure!(healthy || excused && state == QpState::Err, "ep {id} ended in {state:?}");
            let attr = QpAttr { state: QpState::Err, ..self.endpoints[id].qp.attr() };
            self.modify(id, &attr, AttrMask::STATE)?;
            let ep = &self.endpoints[id];
            ensure!(ep.recvs.is_empty(), "ep {id}: {} receives were not flushed", ep.recvs.len());
            ensure!(ep.qp.poll_timeout().is_none(), "ep {id}: a timer runs in ERR");
            self.check_unreliable_writes(id)?;
        }
        for (n, node) in self.nodes.iter().enumerate() {
            let taken = node.processes.iter().any(|p| !p.srq_taken.is_empty());
            let leak = taken && !self.net.is_down(n);
            ensure!(!leak, "node {n}: shared receives were taken and never completed");
        }
        self.check_counters()
    }

    fn check_unreliable_writes(&mut self, id: usize) -> Result<(), String> {
        let writes: Vec<(u64, Mr)> = std::mem::take(&mut self.endpoints[id].unreliable_writes);
        for (op, mr) in writes {
            let want = pattern(op, mr.len);
            let got = self.peer_memory(id, 0).bytes(&mr);
            let right = got.iter().zip(&want).all(|(g, w)| g == w || *g == CANARY);
            ensure!(right, "ep {id}: WRITE {op} wrote other bytes");
        }
        Ok(())
    }

    /// Checks that every atomic was executed exactly once.
    fn check_counters(&mut self) -> Result<(), String> {
        for id in 0..self.endpoints.len() {
            let peer = self.endpoints[id].peer;
            if self.endpoints[id].doomed {
                continue;
            }
            for process in 0..PROCESSES {
                let counter = self.endpoints[peer].counters[process];
                let want = self.endpoints[id].peer_counters[process].to_ne_bytes();
                let got = self.peer_memory(id, process).bytes(&counter);
                ensure!(got == want, "ep {id}: the peer's counter is {got:02x?}, not {want:02x?}");
            }
        }
        Ok(())
    }
}
