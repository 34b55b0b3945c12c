//! The operations of applications.

use rand::Rng;
use rand::seq::IndexedRandom;
use rdmux_transport::attr::{Access, QpState, QpType};
use rdmux_transport::wr::{RecvWr, SendData, SendFlags, SendOp, SendWr, UdDest};
use rdmux_wire::Qkey;

use super::end::{Datagram, MAX_INLINE, Target};
use super::life::QKEY;
use super::world::World;
use crate::endpoint::{Expected, Kind, RecvRecord, SendRecord};
use crate::memory::{CANARY, Mr, pattern};

/// The access rights of every region.
const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

/// Guard bytes between the elements of a scatter/gather list.
const GAP: usize = 8;

/// The shortest message of an unreliable service: it has room for its number.
const SHORTEST: u32 = 8;

/// An operation with its parameters.
struct Draft {
    record: SendRecord,
    op: SendOp,
    imm: Option<[u8; 4]>,
    dest: Option<UdDest>,
}

impl World {
    /// Posts some of the next operations of an end.
    pub(super) fn post_some(&mut self, id: usize) -> Result<(), String> {
        self.ends[id].posting = false;
        let mut posts = !self.ends[id].closed;
        for _ in 0..self.rng.random_range(1..=4) {
            posts = posts && self.post_next(id)?;
        }
        self.wake_soon(id, 2);
        if posts {
            self.post_soon(id);
        }
        Ok(())
    }

    /// Posts the next operation of an end. Returns false if none is left, or if there is no room for it.
    fn post_next(&mut self, id: usize) -> Result<bool, String> {
        let end = &self.ends[id];
        let depth = self.scenario.plans[end.plan.0].depth as usize;
        if end.to_post == 0 || end.sends.len() >= depth || end.qp.state() != QpState::Rts {
            return Ok(false);
        }
        let draft = match end.qp.qp_type() {
            QpType::Ud => self.datagram(id),
            qp_type => self.message(id, qp_type),
        };
        self.post(id, draft)?;
        Ok(true)
    }

    fn length(&mut self, id: usize) -> u32 {
        let plan = &self.scenario.plans[self.ends[id].plan.0];
        let least = if plan.qp_type == QpType::Rc { 0 } else { SHORTEST };
        let (most, mtu) = (plan.max_len, plan.mtu.bytes());
        match self.rng.random_range(0..4) {
            0 => self.rng.random_range(least..=64),
            1 => most,
            2 => (self.rng.random_range(1..=4) * mtu).min(most),
            _ => self.rng.random_range(least..=most),
        }
    }

    fn message(&mut self, id: usize, qp_type: QpType) -> Draft {
        let len = self.length(id);
        let imm = self.rng.random_bool(0.3).then(|| self.rng.random());
        let kinds = if qp_type == QpType::Rc { 10 } else { 5 };
        let (record, op) = match self.rng.random_range(0..kinds) {
            0..=2 => (self.source(id, len, Kind::Send), imm.map_or(SendOp::Send, SendOp::SendImm)),
            3 | 4 => self.write(id, len, imm),
            5..=7 => self.read(id, len),
            _ => self.atomic(id),
        };
        Draft { record, op, imm, dest: None }
    }

    /// Drafts a datagram to any other datagram queue pair, or to a group.
    fn datagram(&mut self, id: usize) -> Draft {
        let mut targets: Vec<Target> = (0..self.groups.len()).map(Target::Group).collect();
        let is_one =
            |end: &usize| self.ends[*end].qp.qp_type() == QpType::Ud && !self.ends[*end].closed;
        targets.extend((0..self.ends.len()).filter(is_one).map(Target::End));
        let to = *targets.choose(&mut self.rng).expect("itself at least");
        let len = self.length(id);
        let imm: Option<[u8; 4]> = self.rng.random_bool(0.3).then(|| self.rng.random());
        let has_key = self.rng.random_bool(0.95);
        let record = self.source(id, len, Kind::Send);
        let dest = self.address(id, to, has_key);
        let sent = Datagram { from: id, to, len, imm, has_key, sent: None, came: Vec::new() };
        self.datagrams.insert(record.op, sent);
        let op = imm.map_or(SendOp::Send, SendOp::SendImm);
        Draft { record, op, imm, dest: Some(dest) }
    }

    /// Returns an address handle, as an application creates it.
    fn address(&mut self, id: usize, to: Target, has_key: bool) -> UdDest {
        let plan = &self.scenario.plans[self.ends[id].plan.0];
        let (sl, grh) = (plan.sl, plan.grh || self.rng.random_bool(0.3));
        let bits = self.rng.random_range(0..4);
        let qkey = if has_key { QKEY } else { Qkey(QKEY.0 ^ 1) };
        let (mut av, qpn) = match to {
            Target::End(end) => {
                let mut av = self.path_to(self.ends[end].host, bits, sl);
                av.is_global = grh;
                (av, self.ends[end].qp.qpn())
            }
            Target::Group(group) => {
                let group = &self.groups[group];
                let mut av = self.path_to(self.ends[id].host, 0, sl);
                (av.is_global, av.dgid, av.dlid) = (true, group.mgid, group.mlid.0);
                (av, rdmux_wire::Qpn::MULTICAST)
            }
        };
        av.src_path_bits = self.rng.random_range(0..4);
        (av.traffic_class, av.flow_label) = (self.rng.random(), self.rng.random::<u32>() >> 12);
        UdDest { av, qpn, qkey }
    }

    fn record(&mut self, kind: Kind, len: u32) -> SendRecord {
        self.last_op += 1;
        SendRecord {
            wr_id: self.last_op ^ 3 << 48,
            op: self.last_op,
            process: 0,
            kind,
            signaled: true,
            local: None,
            sges: Vec::new(),
            len,
            poisoned: false,
        }
    }

    /// Creates a record whose memory holds its pattern, in several parts.
    fn source(&mut self, id: usize, len: u32, kind: Kind) -> SendRecord {
        let mut record = self.record(kind, len);
        let data = pattern(record.op, len as usize);
        self.lay_out(id, &mut record, Some(&data));
        record
    }

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
        let mr = self.hosts[self.ends[id].host].process.memory.register(bytes, ALL);
        record.sges = ranges.into_iter().map(|r| mr.part(r)).collect();
        record.local = Some(mr);
    }

    /// Registers memory of the peer.
    fn remote(&mut self, id: usize, bytes: Vec<u8>) -> Mr {
        let host = self.ends[self.ends[id].peer].host;
        self.hosts[host].process.memory.register(bytes, ALL)
    }

    fn write(&mut self, id: usize, len: u32, imm: Option<[u8; 4]>) -> (SendRecord, SendOp) {
        let target = self.remote(id, vec![CANARY; len as usize]);
        let (remote_addr, rkey) = (target.addr, target.rkey());
        let (kind, op) = match imm {
            Some(imm) => (Kind::WriteImm(target), SendOp::WriteImm { remote_addr, rkey, imm }),
            None => (Kind::Write(target), SendOp::Write { remote_addr, rkey }),
        };
        (self.source(id, len, kind), op)
    }

    fn read(&mut self, id: usize, len: u32) -> (SendRecord, SendOp) {
        let mut record = self.record(Kind::Send, len);
        self.lay_out(id, &mut record, None);
        let target = self.remote(id, pattern(record.op, len as usize));
        record.kind = Kind::Read(target);
        (record, SendOp::Read { remote_addr: target.addr, rkey: target.rkey() })
    }

    fn atomic(&mut self, id: usize) -> (SendRecord, SendOp) {
        let counter = self.ends[self.ends[id].peer].counter;
        let original = self.ends[id].peer_counter;
        let mut record = self.record(Kind::Atomic { original }, 8);
        self.lay_out(id, &mut record, None);
        let add: u64 = self.rng.random();
        self.ends[id].peer_counter = original.wrapping_add(add);
        (record, SendOp::FetchAdd { remote_addr: counter.addr, rkey: counter.rkey(), add })
    }

    fn post(&mut self, id: usize, draft: Draft) -> Result<(), String> {
        let Draft { mut record, op, imm, dest } = draft;
        let plan = &self.scenario.plans[self.ends[id].plan.0];
        let (all, depth) = (plan.signal_all, plan.depth as usize);
        // The last operation, and the last that fits the queue, must be signaled.
        let must = self.ends[id].to_post == 1 || self.ends[id].sends.len() + 1 == depth;
        record.signaled = all || must || self.rng.random_bool(0.5);
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, record.signaled);
        flags.set(SendFlags::FENCE, self.rng.random_bool(0.1));
        flags.set(SendFlags::SOLICITED, self.rng.random_bool(0.1));
        let data = pattern(record.op, record.len as usize);
        let pieces: Vec<&[u8]> = data.chunks(10).collect();
        let carries = matches!(record.kind, Kind::Send | Kind::Write(_) | Kind::WriteImm(_));
        let inline = carries && record.len <= MAX_INLINE && self.rng.random_bool(0.5);
        let data = if inline { SendData::Inline(&pieces) } else { SendData::Sges(&record.sges) };
        let wr = SendWr { flags, dest, ..SendWr::new(record.wr_id, op, data) };
        self.trace(format_args!("ep {id} posts {:x} {op:?} {flags:?}", record.wr_id));
        let now = self.agenda.now();
        let end = &mut self.ends[id];
        end.qp.post_send(now, &wr).map_err(|error| format!("post_send: {error}"))?;
        if inline && let Some(mr) = record.local.take() {
            // Inline data is copied when posted, so the memory can be deregistered at once.
            self.hosts[end.host].process.memory.deregister(&mr);
        }
        end.to_post -= 1;
        self.expect(id, &record, imm);
        self.ends[id].sends.push_back(record);
        Ok(())
    }

    /// Records that the peer of a connection will receive this.
    fn expect(&mut self, id: usize, record: &SendRecord, imm: Option<[u8; 4]>) {
        let in_receive = match record.kind {
            Kind::Send => true,
            Kind::WriteImm(_) => false,
            _ => return,
        };
        let peer = self.ends[id].peer;
        if peer != id {
            let (op, len) = (record.op, record.len);
            let expected = Expected { op, process: 0, len, imm, invalidates: None, in_receive };
            self.ends[peer].expected.push_back(expected);
        }
    }

    /// Posts one receive.
    pub(super) fn post_receive(&mut self, id: usize) -> Result<(), String> {
        let len = self.scenario.plans[self.ends[id].plan.0].max_len + rdmux_transport::GRH_AREA;
        if self.ends[id].closed || self.ends[id].qp.state() == QpState::Err {
            return Ok(());
        }
        let memory = &mut self.hosts[self.ends[id].host].process.memory;
        let mr = memory.blank(len as usize, ALL);
        let cut = self.rng.random_range(0..=len as usize);
        let sges = vec![mr.part(0..cut), mr.part(cut..len as usize)];
        self.last_op += 1;
        let record = RecvRecord { wr_id: self.last_op, mr, sges };
        let wr = RecvWr { wr_id: record.wr_id, sges: &record.sges };
        let end = &mut self.ends[id];
        end.qp.post_recv(&wr).map_err(|error| format!("post_recv: {error}"))?;
        end.recvs.push_back(record);
        Ok(())
    }
}
