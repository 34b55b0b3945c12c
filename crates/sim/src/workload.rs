//! The operations of applications: random ones, and receives for those of the peer.

use rand::Rng;
use rdmux_transport::attr::{Access, QpType};
use rdmux_transport::wr::{RecvWr, SendData, SendFlags, SendOp, SendWr, Sge, UdDest};
use rdmux_wire::{Lkey, Qkey, Rkey};

use crate::endpoint::{Expected, Kind, PROCESSES, RecvRecord, SendRecord, srqn_of};
use crate::memory::{CANARY, Mr, pattern};
use crate::scenario::Poison;
use crate::world::World;

/// The access rights of every region.
const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

/// The most bytes posted inline.
pub(crate) const MAX_INLINE: u32 = 64;

/// The Q_Key of every datagram queue pair.
pub(crate) const QKEY: Qkey = Qkey(0x1234);

/// Guard bytes between the elements of a scatter/gather list.
const GAP: usize = 8;

/// An operation before it is posted.
struct Draft {
    record: SendRecord,
    op: SendOp,
    srqn: u32,
    imm: Option<[u8; 4]>,
    inline: Option<Vec<u8>>,
}

impl Draft {
    fn new(record: SendRecord, op: SendOp) -> Self {
        Self { srqn: srqn_of(record.process), record, op, imm: None, inline: None }
    }
}

impl World {
    /// Posts the next operation of an endpoint. Returns false if none is left, or if there is no room for it.
    pub(crate) fn post_next(&mut self, id: usize) -> Result<bool, String> {
        let (plan, end) = self.endpoints[id].plan;
        let plan = self.scenario.plans[plan].clone();
        let ep = &self.endpoints[id];
        if ep.to_post == 0 || ep.sends.len() >= plan.depth as usize {
            return Ok(false);
        }
        let poison = plan.poison.filter(|&(e, at, _)| e == end && at == ep.posted);
        let draft = match poison {
            Some((_, _, poison)) => {
                for side in [id, self.endpoints[id].peer] {
                    self.endpoints[side].doomed = true;
                }
                self.poisoned(id, poison)
            }
            None => self.healthy(id, &plan),
        };
        self.post(id, draft)?;
        Ok(true)
    }

    fn healthy(&mut self, id: usize, plan: &crate::scenario::Plan) -> Draft {
        let qp_type = plan.qp_type;
        let kind = match qp_type {
            QpType::Ud => 0,
            QpType::Uc => self.rng.random_range(0..4),
            QpType::Rc | QpType::XrcSend | QpType::XrcRecv => self.rng.random_range(0..10),
        };
        let least = if qp_type.is_reliable() { 0 } else { 8 };
        let len = match self.rng.random_range(0..4) {
            0 => self.rng.random_range(least..=64.min(plan.max_len)),
            1 => plan.max_len,
            2 => {
                let mtu = self.mtu(qp_type);
                (self.rng.random_range(1..=4) * mtu).clamp(least, plan.max_len)
            }
            _ => self.rng.random_range(least..=plan.max_len),
        };
        let with_imm = self.rng.random_bool(0.3);
        match kind {
            0 | 1 => self.draft_send(id, len, with_imm),
            2..=4 => self.draft_write(id, len, with_imm),
            5 | 6 => self.draft_read(id, len),
            7 => self.draft_atomic(id),
            8 => self.draft_send_inv(id, len),
            _ => self.draft_local_inv(id),
        }
    }

    fn poisoned(&mut self, id: usize, poison: Poison) -> Draft {
        let mut draft = match poison {
            Poison::RemoteKey => {
                let mut d = self.draft_write(id, 100, false);
                if let SendOp::Write { rkey, .. } = &mut d.op {
                    rkey.0 += 1 << 20;
                }
                d
            }
            Poison::RemoteBounds => {
                let mut d = self.draft_read(id, 100);
                if let SendOp::Read { remote_addr, .. } = &mut d.op {
                    *remote_addr += 1;
                }
                d
            }
            Poison::Misaligned => {
                let mut d = self.draft_atomic(id);
                if let SendOp::FetchAdd { remote_addr, .. } | SendOp::CmpSwap { remote_addr, .. } =
                    &mut d.op
                {
                    *remote_addr += 1;
                }
                d
            }
            Poison::AtomicKey => {
                let mut d = self.draft_atomic(id);
                if let SendOp::FetchAdd { rkey, .. } | SendOp::CmpSwap { rkey, .. } = &mut d.op {
                    rkey.0 += 1 << 20;
                }
                d
            }
            Poison::Queue => {
                let d = self.draft_send(id, 100, false);
                Draft { srqn: srqn_of(PROCESSES), ..d }
            }
            Poison::LocalKey => {
                let mut d = self.draft_send(id, 100, false);
                d.inline = None;
                d.record.sges = vec![Sge { addr: 0, length: 100, lkey: Lkey(u32::MAX) }];
                d
            }
            Poison::TooLong => {
                let peer = self.endpoints[id].peer;
                let is_xrc = self.endpoints[peer].qp.qp_type() == QpType::XrcRecv;
                let longest = self.longest_receive(peer, usize::from(is_xrc));
                self.draft_send(id, longest + 1, false)
            }
        };
        draft.record.poisoned = true;
        draft
    }

    fn record(&mut self, id: usize, kind: Kind, len: u32) -> SendRecord {
        self.last_op += 1;
        let peer = self.endpoints[id].peer;
        let process = match self.endpoints[peer].qp.qp_type() {
            QpType::XrcRecv => self.rng.random_range(1..PROCESSES),
            _ => 0,
        };
        SendRecord {
            wr_id: self.last_op ^ (id as u64) << 48,
            op: self.last_op,
            process,
            kind,
            signaled: true,
            local: None,
            sges: Vec::new(),
            len,
            poisoned: false,
        }
    }

    /// Creates a record whose local memory holds its pattern, in several parts.
    fn source(&mut self, id: usize, len: u32) -> SendRecord {
        let mut record = self.record(id, Kind::Send, len);
        let data = pattern(record.op, len as usize);
        self.lay_out(id, &mut record, Some(&data));
        record
    }

    /// Allocates memory for a record in one to four parts, with gaps between.
    fn lay_out(&mut self, id: usize, record: &mut SendRecord, data: Option<&[u8]>) {
        let len = record.len as usize;
        let parts = self.rng.random_range(1..=4);
        let mut cuts: Vec<usize> = (1..parts).map(|_| self.rng.random_range(0..=len)).collect();
        cuts.push(len);
        cuts.sort_unstable();
        let mut bytes = vec![CANARY; len + GAP * cuts.len()];
        let (mut from, mut ranges) = (0, Vec::new());
        for (i, &to) in cuts.iter().enumerate() {
            let at = from + GAP * i;
            if let Some(data) = data {
                bytes[at..at + to - from].copy_from_slice(&data[from..to]);
            }
            ranges.push(at..at + to - from);
            from = to;
        }
        let mr = self.memory(id, 0).register(bytes, ALL);
        record.sges = ranges.into_iter().map(|r| mr.part(r)).collect();
        record.local = Some(mr);
    }

    fn remote(&mut self, id: usize, process: usize, bytes: Vec<u8>) -> Mr {
        self.peer_memory(id, process).register(bytes, ALL)
    }

    fn inline(&mut self, record: &SendRecord) -> Option<Vec<u8>> {
        let short = record.len <= MAX_INLINE && self.rng.random_bool(0.5);
        short.then(|| pattern(record.op, record.len as usize))
    }

    fn imm(&mut self, wanted: bool) -> Option<[u8; 4]> {
        wanted.then(|| self.rng.random())
    }

    fn draft_send(&mut self, id: usize, len: u32, with_imm: bool) -> Draft {
        let record = self.source(id, len);
        let imm = self.imm(with_imm);
        let inline = self.inline(&record);
        Draft { imm, inline, ..Draft::new(record, imm.map_or(SendOp::Send, SendOp::SendImm)) }
    }

    fn draft_send_inv(&mut self, id: usize, len: u32) -> Draft {
        let mut record = self.source(id, len);
        let victim = self.remote(id, record.process, vec![0; 8]);
        record.kind = Kind::SendInv(victim);
        let inline = self.inline(&record);
        Draft { inline, ..Draft::new(record, SendOp::SendInv(victim.rkey())) }
    }

    fn draft_write(&mut self, id: usize, len: u32, with_imm: bool) -> Draft {
        let mut record = self.source(id, len);
        let target = self.remote(id, record.process, vec![CANARY; len as usize]);
        let (remote_addr, rkey) = (target.addr, target.rkey());
        let imm = self.imm(with_imm);
        let inline = self.inline(&record);
        let op = match imm {
            Some(imm) => SendOp::WriteImm { remote_addr, rkey, imm },
            None => SendOp::Write { remote_addr, rkey },
        };
        record.kind = if imm.is_some() { Kind::WriteImm(target) } else { Kind::Write(target) };
        Draft { imm, inline, ..Draft::new(record, op) }
    }

    fn draft_read(&mut self, id: usize, len: u32) -> Draft {
        let mut record = self.record(id, Kind::Send, len);
        self.lay_out(id, &mut record, None);
        let target = self.remote(id, record.process, pattern(record.op, len as usize));
        record.kind = Kind::Read(target);
        let op = SendOp::Read { remote_addr: target.addr, rkey: target.rkey() };
        Draft::new(record, op)
    }

    fn draft_atomic(&mut self, id: usize) -> Draft {
        let peer = self.endpoints[id].peer;
        let mut record = self.record(id, Kind::Send, 8);
        let process = record.process;
        let counter = self.endpoints[peer].counters[process];
        let original = self.endpoints[id].peer_counters[process];
        record.kind = Kind::Atomic { original };
        let (remote_addr, rkey) = (counter.addr, counter.rkey());
        self.lay_out(id, &mut record, None);
        let operand: u64 = self.rng.random();
        let (op, after) = match self.rng.random_range(0..3) {
            0 => {
                let compare = original ^ 1;
                (SendOp::CmpSwap { remote_addr, rkey, compare, swap: operand }, original)
            }
            1 => {
                let compare = original;
                (SendOp::CmpSwap { remote_addr, rkey, compare, swap: operand }, operand)
            }
            _ => {
                let op = SendOp::FetchAdd { remote_addr, rkey, add: operand };
                (op, original.wrapping_add(operand))
            }
        };
        self.endpoints[id].peer_counters[process] = after;
        Draft::new(record, op)
    }

    fn draft_local_inv(&mut self, id: usize) -> Draft {
        let victim = self.memory(id, 0).blank(8, ALL);
        let record = self.record(id, Kind::LocalInv(victim), 0);
        Draft::new(record, SendOp::LocalInv(victim.rkey()))
    }

    fn post(&mut self, id: usize, mut draft: Draft) -> Result<(), String> {
        let plan = &self.scenario.plans[self.endpoints[id].plan.0];
        let (all, depth) = (plan.signal_all, plan.depth as usize);
        let peer = self.endpoints[id].peer;
        let mut flags = SendFlags::empty();
        // The last operation, and the last that fits the queue, must be signaled.
        let must = self.endpoints[id].to_post == 1 || self.endpoints[id].sends.len() + 1 == depth;
        draft.record.signaled = all || must || self.rng.random_bool(0.5);
        flags.set(SendFlags::SIGNALED, draft.record.signaled);
        flags.set(SendFlags::FENCE, self.rng.random_bool(0.1));
        flags.set(SendFlags::SOLICITED, self.rng.random_bool(0.1));
        let dest = (self.endpoints[id].qp.qp_type() == QpType::Ud).then(|| UdDest {
            av: self.way(id, 0),
            qpn: self.endpoints[peer].qp.qpn(),
            qkey: QKEY,
        });
        let pieces: Vec<&[u8]> = draft.inline.iter().flat_map(|d| d.chunks(10)).collect();
        let data = match draft.inline {
            Some(_) => SendData::Inline(&pieces),
            None => SendData::Sges(&draft.record.sges),
        };
        let (wr_id, srqn) = (draft.record.wr_id, draft.srqn);
        let wr = SendWr { flags, dest, srqn, ..SendWr::new(wr_id, draft.op, data) };
        let now = self.agenda.now();
        self.trace(format_args!("ep {id} posts {:x} {:?} {flags:?}", wr.wr_id, draft.op));
        self.endpoints[id].qp.post_send(now, &wr).map_err(|e| format!("post_send: {e}"))?;
        self.expect(peer, &draft);
        let ep = &mut self.endpoints[id];
        if draft.inline.is_some()
            && let Some(mr) = draft.record.local.take()
        {
            // Inline data is copied when posted, so the memory can be deregistered at once.
            self.nodes[ep.node].processes[0].memory.deregister(&mr);
        }
        ep.to_post -= 1;
        ep.posted += 1;
        ep.sends.push_back(draft.record);
        Ok(())
    }

    /// Records that the peer will receive this.
    fn expect(&mut self, peer: usize, draft: &Draft) {
        let (in_receive, invalidates) = match draft.record.kind {
            Kind::Send => (true, None),
            Kind::SendInv(mr) => (true, Some(Rkey(mr.key))),
            Kind::WriteImm(_) => (false, None),
            _ => return,
        };
        let SendRecord { op, process, len, .. } = draft.record;
        let imm = draft.imm;
        let expected = Expected { op, process, len, imm, invalidates, in_receive };
        self.endpoints[peer].expected.push_back(expected);
    }

    /// Posts one receive, to the queue pair or to a process's shared queue.
    pub(crate) fn post_receive(&mut self, id: usize, process: usize) -> Result<(), String> {
        let len = self.longest_receive(id, process) as usize;
        let parts = self.rng.random_range(1..=3);
        let mr = self.memory(id, process).blank(len, ALL);
        let mut cuts: Vec<usize> = (1..parts).map(|_| self.rng.random_range(0..=len)).collect();
        cuts.push(len);
        cuts.sort_unstable();
        let mut from = 0;
        let sges = cuts
            .into_iter()
            .map(|to| mr.part(core::mem::replace(&mut from, to)..to))
            .collect::<Vec<_>>();
        self.last_op += 1;
        let record = RecvRecord { wr_id: self.last_op, mr, sges };
        let ep = &mut self.endpoints[id];
        let node = &mut self.nodes[ep.node];
        if node.has_srq || process != 0 {
            node.processes[process].srq.push_back(record);
            return Ok(());
        }
        let wr = RecvWr { wr_id: record.wr_id, sges: &record.sges };
        ep.qp.post_recv(&wr).map_err(|e| format!("post_recv: {e}"))?;
        ep.recvs.push_back(record);
        Ok(())
    }

    /// Returns the length of an endpoint's receives: enough for any message, on any queue pair that shares them.
    fn longest_receive(&self, id: usize, process: usize) -> u32 {
        let node = self.endpoints[id].node;
        let shared = self.nodes[node].has_srq || process != 0;
        let longest = self
            .endpoints
            .iter()
            .enumerate()
            .filter(|(i, ep)| *i == id || shared && ep.node == node)
            .map(|(_, ep)| self.scenario.plans[ep.plan.0].max_len)
            .max();
        longest.unwrap_or(0) + rdmux_transport::GRH_AREA
    }
}
