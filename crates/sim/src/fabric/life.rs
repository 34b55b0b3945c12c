//! How queue pairs connect, run and end, and what must be true then.

use std::collections::VecDeque;
use std::time::Duration;

use rand::Rng;
use rand::seq::IndexedRandom;
use rdmux_subnet::Time;
use rdmux_testing::env::link;
use rdmux_testing::qp::steps;
use rdmux_transport::attr::{Access, AddressVector, AttrMask, QpAttr, QpState, QpType};
use rdmux_transport::env::{QpEvent, Side};
use rdmux_transport::{Qp, TxState};
use rdmux_wire::{AckTimeout, Psn, Qkey, RnrTimer};

use super::end::End;
use super::host::pkey_table;
use super::world::{Event, World};
use crate::check::ensure;
use crate::env::{Processes, SimEnv};
use crate::memory::{CANARY, pattern};

/// The Q_Key of every datagram queue pair.
pub(super) const QKEY: Qkey = Qkey(0x0b1b);

impl World {
    /// Creates the ends of a plan, and connects them if both ports can.
    pub(super) fn connect(&mut self, plan_index: usize) -> Result<(), String> {
        let plan = self.scenario.plans[plan_index].clone();
        let keys = self.common_keys(plan.hosts);
        let ready = plan.hosts.iter().all(|host| self.view(*host).lid().is_unicast());
        let Some(&keys) = keys.choose(&mut self.rng).filter(|_| ready) else {
            return self.try_again(plan_index);
        };
        let count = if plan.qp_type == QpType::Ud { 1 } else { 2 };
        let first = self.ends.len();
        for end in 0..count {
            let counter = {
                let memory = &mut self.hosts[plan.hosts[end]].process.memory;
                memory.register(vec![0; 8], Access::REMOTE_ATOMIC)
            };
            let id = first + end;
            let mut new = End::new(id, &plan, (plan_index, end), counter);
            new.to_post = self.left[plan_index][end];
            if plan.qp_type == QpType::Ud {
                new.groups = (0..self.groups.len()).filter(|_| self.rng.random_bool(0.6)).collect();
            }
            self.hosts[new.host].qps.insert(new.qp.qpn(), id);
            self.ends.push(new);
        }
        self.pairs[plan_index].0 = Some([first, first + count - 1]);
        let psns: [Psn; 2] = [Psn::new(self.rng.random()), Psn::new(self.rng.random())];
        self.draw_paths(first, count, plan.grh, plan.sl);
        for end in 0..count {
            self.bring_up(first + end, psns[end], psns[count - 1 - end], keys[end])?;
        }
        Ok(())
    }

    /// Returns pairs of P_Key indexes with which two hosts can communicate.
    fn common_keys(&self, hosts: [usize; 2]) -> Vec<[u16; 2]> {
        let [a, b] = hosts.map(|host| self.view(host).pkeys().to_vec());
        let mut common = Vec::new();
        for (i, own) in (0..).zip(&a) {
            let fits = (0..).zip(&b).filter(|(_, far)| own.admits(**far));
            common.extend(fits.map(|(j, _)| [i, j]));
        }
        common
    }

    /// Schedules another attempt for a plan whose ends cannot connect now, or ends the plan.
    fn try_again(&mut self, plan: usize) -> Result<(), String> {
        let lives = &mut self.pairs[plan].1;
        if *lives == 0 {
            self.left[plan] = [0, 0];
            return Ok(());
        }
        *lives -= 1;
        let delay = self.micros(300_000);
        self.agenda.after(delay, Event::Connect(plan));
        Ok(())
    }

    /// Gives both ends of a connection the path to the other, with any of its LIDs.
    fn draw_paths(&mut self, first: usize, count: usize, grh: bool, sl: u8) {
        let bits: [u8; 2] = [self.rng.random_range(0..4), self.rng.random_range(0..4)];
        for end in 0..count {
            let id = first + end;
            let far = self.ends[self.ends[id].peer].host;
            let mut path = self.path_to(far, bits[count - 1 - end], sl);
            path.is_global = grh;
            path.src_path_bits = bits[end];
            self.ends[id].path = path;
        }
    }

    /// Returns a path to a host, as the present state defines it.
    pub(super) fn path_to(&self, host: usize, path_bits: u8, sl: u8) -> AddressVector {
        let view = self.view(host);
        let mask = (1 << view.lmc()) - 1;
        AddressVector {
            dgid: self.gid(host),
            hop_limit: 1,
            dlid: view.lid().0 & !mask | u16::from(path_bits) & mask,
            sl,
            port_num: 1,
            ..AddressVector::default()
        }
    }

    fn bring_up(&mut self, id: usize, psn: Psn, peers: Psn, pkey_index: u16) -> Result<(), String> {
        let plan = self.scenario.plans[self.ends[id].plan.0].clone();
        let (end, peer) = (&self.ends[id], &self.ends[self.ends[id].peer]);
        let mut attr = end.qp.attr();
        (attr.port_num, attr.pkey_index, attr.qkey) = (1, pkey_index, QKEY);
        attr.access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        (attr.av, attr.path_mtu, attr.dest_qpn) = (end.path, plan.mtu, peer.qp.qpn());
        (attr.sq_psn, attr.rq_psn) = (psn, peers);
        (attr.max_rd_atomic, attr.max_dest_rd_atomic) = (plan.rd_atomic, plan.rd_atomic);
        attr.min_rnr_timer = RnrTimer::new(plan.rnr_timer);
        attr.timeout = AckTimeout::new(plan.timeout);
        (attr.retry_cnt, attr.rnr_retry) = (7, 7);
        for (state, mask) in steps(plan.qp_type, QpState::Rts) {
            self.modify(id, &QpAttr { state, ..attr }, mask)?;
        }
        for _ in 0..=plan.depth {
            self.refill(id);
        }
        self.post_soon(id);
        Ok(())
    }

    fn modify(&mut self, id: usize, attr: &QpAttr, mask: AttrMask) -> Result<(), String> {
        self.act(id, |qp, now, env| qp.modify(now, attr, mask, env))?
            .map_err(|error| format!("ep {id}: {error}"))
    }

    /// Calls a queue pair and executes its output.
    pub(super) fn act<R>(
        &mut self,
        id: usize,
        f: impl FnOnce(&mut Qp, Time, &mut SimEnv<'_>) -> R,
    ) -> Result<R, String> {
        let now = self.agenda.now();
        let host = self.ends[id].host;
        let pkeys = pkey_table(self.view(host));
        let processes = std::slice::from_mut(&mut self.hosts[host].process);
        let mut env = SimEnv::new(link(4096, false), Processes::new(processes, None));
        env.buffers_out_of_order = self.scenario.keeps;
        env.pkeys = pkeys;
        let result = f(&mut self.ends[id].qp, now, &mut env);
        let SimEnv { packets, paths, completions, events, .. } = env;
        self.all_leave(id, &packets, &paths)?;
        for (side, wc) in completions {
            match side {
                Side::Send => self.send_completed(id, &wc)?,
                Side::Recv => self.receive_completed(id, &wc)?,
            }
        }
        for event in events {
            let is_due = event == QpEvent::CommEst || self.ends[id].closing;
            ensure!(is_due, "ep {id}: {event:?} for no reason");
        }
        if self.ends[id].qp.state() == QpState::Err {
            self.ended(id)?;
        }
        self.set_timer(id);
        Ok(result)
    }

    fn all_leave(
        &mut self,
        id: usize,
        packets: &VecDeque<Vec<u8>>,
        paths: &VecDeque<AddressVector>,
    ) -> Result<(), String> {
        for (packet, path) in packets.iter().zip(paths) {
            self.send(id, path, packet)?;
            // The driver need not flush at once.
            if self.rng.random_bool(0.1) {
                self.flush(self.ends[id].host)?;
            }
        }
        if packets.is_empty() { Ok(()) } else { self.flush(self.ends[id].host) }
    }

    /// Handles a queue pair's transition to the error state.
    fn ended(&mut self, id: usize) -> Result<(), String> {
        let (plan, end) = self.ends[id].plan;
        self.left[plan][end] = self.ends[id].to_post;
        self.ends[id].to_post = 0;
        self.last_completion_is_out(id)
    }

    fn set_timer(&mut self, id: usize) {
        let end = &mut self.ends[id];
        if let Some(at) = end.qp.poll_timeout()
            && at < end.timer
        {
            end.timer = at;
            self.agenda.at(at, Event::Timer(id));
        }
    }

    /// Handles the timer event of an end.
    pub(super) fn timer(&mut self, id: usize) -> Result<(), String> {
        let now = self.agenda.now();
        if self.ends[id].timer > now {
            return Ok(());
        }
        self.ends[id].timer = Time::NEVER;
        if self.ends[id].qp.poll_timeout().is_some_and(|at| at <= now) {
            self.trace(format_args!("ep {id} times out"));
            self.act(id, |qp, now, env| qp.handle_timeout(now, env))?;
            self.wake_soon(id, 1);
        }
        self.set_timer(id);
        Ok(())
    }

    /// Schedules a wake-up of an end, unless one is scheduled.
    pub(super) fn wake_soon(&mut self, id: usize, most_micros: u64) {
        if !self.ends[id].awake {
            self.ends[id].awake = true;
            let delay = self.micros(most_micros);
            self.agenda.after(delay, Event::Wake(id));
        }
    }

    /// Handles the wake-up of an end: sends its packets, and checks its completions.
    pub(super) fn wake(&mut self, id: usize) -> Result<(), String> {
        if self.ends[id].closed {
            return Ok(());
        }
        if self.ends[id].qp.wants_ack() && self.rng.random_bool(0.3) {
            self.act(id, |qp, now, env| qp.flush_ack(now, env))?;
        }
        let budget = self.rng.random_range(1..=64);
        let state = self.act(id, |qp, now, env| qp.poll_transmit(now, budget, env))?;
        if state != TxState::Idle || self.ends[id].qp.wants_ack() {
            self.wake_soon(id, 1);
        }
        self.look_at(self.ends[id].plan.0)
    }

    /// Replaces ends that are done, if one of them has failed and may try again.
    fn look_at(&mut self, plan: usize) -> Result<(), String> {
        let (Some([a, b]), lives) = self.pairs[plan] else { return Ok(()) };
        let failed = self.ends[a].failed || self.ends[b].failed;
        if !failed || lives == 0 || !self.is_done(a) || !self.is_done(b) {
            return Ok(());
        }
        self.close(a)?;
        self.close(b)?;
        self.pairs[plan] = (None, lives - 1);
        self.stats.reconnects += 1;
        let delay = self.micros(200_000);
        self.agenda.after(delay, Event::Connect(plan));
        Ok(())
    }

    /// Returns whether an end's application has nothing left to do or to wait for.
    fn is_done(&self, id: usize) -> bool {
        let end = &self.ends[id];
        let peer = &self.ends[end.peer];
        let waits = end.qp.qp_type() == QpType::Rc
            && !(end.failed || peer.failed)
            && !end.expected.is_empty();
        end.to_post == 0 && end.sends.is_empty() && !waits
    }

    /// Returns whether the trouble is over and all plans are done.
    pub(super) fn is_finished(&self) -> bool {
        self.calm.is_some()
            && self.pairs.iter().zip(&self.left).all(|(pair, left)| match *pair {
                (Some([a, b]), lives) => {
                    let again = lives > 0 && (self.ends[a].failed || self.ends[b].failed);
                    !again && self.is_done(a) && self.is_done(b)
                }
                (None, _) => *left == [0, 0],
            })
    }

    /// Returns a description of the ends that are not done.
    pub(super) fn unfinished(&self) -> String {
        let waits = |(id, end): (usize, &End)| {
            let busy = !end.closed && !self.is_done(id);
            busy.then(|| {
                let (sends, to_post, state) = (end.sends.len(), end.to_post, end.qp.state());
                format!("ep {id} ({state:?}) has {sends} sends outstanding, {to_post} to post, {} to come", end.expected.len())
            })
        };
        let list: Vec<String> = self.ends.iter().enumerate().filter_map(waits).collect();
        format!("{}; {:?}", list.join("; "), self.pairs)
    }

    /// Closes an end.
    fn close(&mut self, id: usize) -> Result<(), String> {
        if std::mem::replace(&mut self.ends[id].closed, true) {
            return Ok(());
        }
        self.ends[id].closing = true;
        let attr = QpAttr { state: QpState::Err, ..self.ends[id].qp.attr() };
        self.modify(id, &attr, AttrMask::STATE)?;
        let end = &mut self.ends[id];
        ensure!(end.recvs.is_empty(), "ep {id}: {} receives were not flushed", end.recvs.len());
        ensure!(end.sends.is_empty(), "ep {id}: {} sends were not flushed", end.sends.len());
        ensure!(end.qp.poll_timeout().is_none(), "ep {id}: a timer runs in ERR");
        let (host, qpn) = (end.host, end.qp.qpn());
        self.hosts[host].qps.remove(&qpn);
        // The peer's queue pair is in ERR, too, or does not answer any more.
        let peer = self.ends[id].peer;
        if self.ends[peer].closed {
            self.clear(id)?;
            if peer != id {
                self.clear(peer)?;
            }
        }
        Ok(())
    }

    /// Cleans up after a connection when both its ends are closed.
    fn clear(&mut self, id: usize) -> Result<(), String> {
        let end = &mut self.ends[id];
        let (host, counter) = (end.host, end.counter);
        let (debris, litter) = (std::mem::take(&mut end.debris), std::mem::take(&mut end.litter));
        for (op, host, mr) in debris {
            let bytes = self.hosts[host].process.memory.deregister(&mr);
            let want = pattern(op, mr.len);
            let right = bytes.iter().zip(&want).all(|(b, w)| b == w || *b == CANARY);
            ensure!(right, "ep {id}: {op} wrote other bytes");
        }
        for mr in litter {
            self.hosts[host].process.memory.deregister(&mr);
        }
        self.hosts[host].process.memory.deregister(&counter);
        Ok(())
    }

    /// Closes all queue pairs, and checks that nothing is left.
    pub(super) fn take_down(&mut self) -> Result<(), String> {
        for id in 0..self.ends.len() {
            let (end, peer) = (&self.ends[id], &self.ends[self.ends[id].peer]);
            let is_well = end.qp.state() == QpState::Rts;
            let state = end.qp.state();
            ensure!(end.closed || is_well || end.failed || peer.failed, "ep {id} is in {state:?}");
            let want = end.peer_counter;
            if end.qp.qp_type() == QpType::Rc && !end.closed && !end.failed && !peer.failed {
                let got = self.hosts[peer.host].process.memory.bytes(&peer.counter);
                ensure!(got == want.to_ne_bytes(), "ep {id}: the peer's counter is {got:02x?}");
            }
        }
        for id in 0..self.ends.len() {
            self.close(id)?;
        }
        for host in 0..self.hosts.len() {
            let left = self.hosts[host].process.memory.len();
            ensure!(left == 0, "host {host}: {left} regions are left");
            ensure!(self.hosts[host].qps.is_empty(), "host {host}: queue pairs are left");
            self.detach(host);
        }
        ensure!(self.published.is_idle(), "route tables are kept without hosts");
        Ok(())
    }

    /// Schedules the application's next post, if it has operations left.
    pub(super) fn post_soon(&mut self, id: usize) {
        let pace = self.scenario.plans[self.ends[id].plan.0].pace;
        let end = &mut self.ends[id];
        if end.to_post > 0 && !end.posting {
            end.posting = true;
            let delay = pace.mul_f64(self.rng.random());
            self.agenda.after(delay, Event::Post(id));
        }
    }

    /// Schedules the next receive of an end.
    pub(super) fn refill(&mut self, id: usize) {
        let most = self.scenario.plans[self.ends[id].plan.0].refill;
        let delay: Duration = most.mul_f64(self.rng.random());
        self.agenda.after(delay, Event::Refill(id));
    }
}
