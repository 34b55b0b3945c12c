//! The operations of programs.

use rand::Rng;
use rdmux_transport::attr::{Access, QpState};
use rdmux_transport::wr::{RecvWr, SendData, SendFlags, SendOp, SendWr, Sge};
use rdmux_wire::Lkey;

use super::Mistake;
use super::world::{MAX_INLINE, World};
use crate::endpoint::{Expected, Kind, RecvRecord, SendRecord};
use crate::memory::{CANARY, Mr, pattern};

/// The access rights of every region.
const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

/// Guard bytes between the elements of a scatter/gather list.
const GAP: usize = 8;

impl World {
    /// Posts the next operation of an end. Returns false if none is left, or if there is no room for it.
    pub(super) fn post_next(&mut self, id: usize) -> Result<bool, String> {
        let end = &self.ends[id];
        let usable = matches!(end.qp.state(), QpState::Rts | QpState::Sqd | QpState::Err);
        if end.to_post == 0 || end.sends.len() >= self.scenario.depth as usize || !usable {
            return Ok(false);
        }
        let mistake = self.scenario.mistake.filter(|&(e, at, _)| e == id && at == end.posted);
        let (mut record, op, imm) = match mistake {
            Some((_, _, mistake)) => {
                self.doom();
                self.erred = Some(mistake);
                self.wrong(id, mistake)
            }
            None => self.right(id),
        };
        record.poisoned = mistake.is_some();
        self.post(id, record, op, imm)?;
        Ok(true)
    }

    /// Returns how many messages may be sent: the peer's receives that no message has claimed, or, if messages wait, as many
    /// as the peer will post soon.
    fn credit(&self, id: usize) -> usize {
        let peer = &self.ends[1 - id];
        if !self.scenario.receive_wait[1 - id].is_zero() {
            return (self.scenario.depth as usize).saturating_sub(peer.expected.len());
        }
        (peer.process.srq.len() + peer.process.srq_taken.len() + peer.recvs.len())
            .saturating_sub(peer.expected.len())
    }

    fn right(&mut self, id: usize) -> (SendRecord, SendOp, Option<[u8; 4]>) {
        let most = self.scenario.max_len;
        let len = match self.rng.random_range(0..4) {
            0 => self.rng.random_range(0..=64),
            1 => most,
            _ => self.rng.random_range(0..=most),
        };
        let may_send = self.credit(id) != 0;
        let imm = (may_send && self.rng.random_bool(0.3)).then(|| self.rng.random());
        let kind = self.rng.random_range(if may_send { 0..10 } else { 3..9 });
        match kind {
            0 | 1 => (self.source(id, len, Kind::Send), SendOp::Send, None),
            2 => {
                let victim = self.ends[1 - id].process.memory.register(vec![0; 8], ALL);
                let record = self.source(id, len, Kind::SendInv(victim));
                (record, SendOp::SendInv(victim.rkey()), None)
            }
            3..=5 => self.write(id, len, imm),
            6 | 7 => self.read(id, len),
            8 => self.atomic(id),
            _ => {
                let victim = self.ends[id].process.memory.blank(8, ALL);
                let record = self.record(Kind::LocalInv(victim), 0);
                (record, SendOp::LocalInv(victim.rkey()), None)
            }
        }
    }

    fn wrong(&mut self, id: usize, mistake: Mistake) -> (SendRecord, SendOp, Option<[u8; 4]>) {
        match mistake {
            Mistake::WriteKey => {
                let (record, mut op, imm) = self.write(id, 100, None);
                if let SendOp::Write { rkey, .. } = &mut op {
                    rkey.0 += 1 << 20;
                }
                // The WRITE never takes effect.
                (SendRecord { kind: Kind::Send, ..record }, op, imm)
            }
            Mistake::ReadBounds => {
                let (record, mut op, imm) = self.read(id, 100);
                if let SendOp::Read { remote_addr, .. } = &mut op {
                    *remote_addr += 1;
                }
                (record, op, imm)
            }
            Mistake::Misaligned => {
                let (record, mut op, imm) = self.atomic(id);
                if let SendOp::FetchAdd { remote_addr, .. } = &mut op {
                    *remote_addr += 1;
                }
                (record, op, imm)
            }
            Mistake::LocalKey => {
                let record = self.record(Kind::Send, 100);
                let sges = vec![Sge { addr: 0, length: 100, lkey: Lkey(u32::MAX) }];
                (SendRecord { sges, ..record }, SendOp::Send, None)
            }
            Mistake::TooLong => {
                let len = self.scenario.max_len + 1;
                (self.source(id, len, Kind::Send), SendOp::Send, None)
            }
            Mistake::NoReceive => {
                let peer = &mut self.ends[1 - id];
                peer.process.srq.clear();
                (self.source(id, 8, Kind::Send), SendOp::Send, None)
            }
        }
    }

    fn record(&mut self, kind: Kind, len: u32) -> SendRecord {
        self.last_op += 1;
        SendRecord {
            wr_id: self.last_op ^ 7 << 48,
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
        let mr = self.ends[id].process.memory.register(bytes, ALL);
        record.sges = ranges.into_iter().map(|r| mr.part(r)).collect();
        record.local = Some(mr);
    }

    fn remote(&mut self, id: usize, bytes: Vec<u8>) -> Mr {
        self.ends[1 - id].process.memory.register(bytes, ALL)
    }

    fn write(
        &mut self,
        id: usize,
        len: u32,
        imm: Option<[u8; 4]>,
    ) -> (SendRecord, SendOp, Option<[u8; 4]>) {
        let target = self.remote(id, vec![CANARY; len as usize]);
        let (remote_addr, rkey) = (target.addr, target.rkey());
        let (kind, op) = match imm {
            Some(imm) => (Kind::WriteImm(target), SendOp::WriteImm { remote_addr, rkey, imm }),
            None => (Kind::Write(target), SendOp::Write { remote_addr, rkey }),
        };
        (self.source(id, len, kind), op, imm)
    }

    fn read(&mut self, id: usize, len: u32) -> (SendRecord, SendOp, Option<[u8; 4]>) {
        let mut record = self.record(Kind::Send, len);
        self.lay_out(id, &mut record, None);
        let target = self.remote(id, pattern(record.op, len as usize));
        record.kind = Kind::Read(target);
        (record, SendOp::Read { remote_addr: target.addr, rkey: target.rkey() }, None)
    }

    fn atomic(&mut self, id: usize) -> (SendRecord, SendOp, Option<[u8; 4]>) {
        let counter = self.ends[1 - id].counter;
        let original = self.ends[id].peer_counter;
        let mut record = self.record(Kind::Atomic { original }, 8);
        self.lay_out(id, &mut record, None);
        let add: u64 = self.rng.random();
        self.ends[id].peer_counter = original.wrapping_add(add);
        let op = SendOp::FetchAdd { remote_addr: counter.addr, rkey: counter.rkey(), add };
        (record, op, None)
    }

    fn post(
        &mut self,
        id: usize,
        mut record: SendRecord,
        op: SendOp,
        imm: Option<[u8; 4]>,
    ) -> Result<(), String> {
        let depth = self.scenario.depth as usize;
        // The last operation, and the last that fits the queue, must be signaled.
        let must = self.ends[id].to_post == 1 || self.ends[id].sends.len() + 1 == depth;
        record.signaled = self.scenario.signal_all || must || self.rng.random_bool(0.5);
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, record.signaled);
        flags.set(SendFlags::FENCE, self.rng.random_bool(0.1));
        flags.set(SendFlags::SOLICITED, self.rng.random_bool(0.1));
        let data = pattern(record.op, record.len as usize);
        let pieces: Vec<&[u8]> = data.chunks(10).collect();
        let sends = matches!(record.kind, Kind::Send | Kind::SendInv(_) | Kind::Write(_));
        let inline = sends
            && record.local.is_some()
            && record.len <= MAX_INLINE
            && self.rng.random_bool(0.5);
        let wr = SendWr::new(
            record.wr_id,
            op,
            if inline { SendData::Inline(&pieces) } else { SendData::Sges(&record.sges) },
        );
        self.trace(format_args!("end {id} posts {:x} {op:?} {flags:?}", record.wr_id));
        let now = self.agenda.now();
        let end = &mut self.ends[id];
        end.qp.post_send(now, &SendWr { flags, ..wr }).map_err(|e| format!("post_send: {e}"))?;
        if inline && let Some(mr) = record.local.take() {
            // Inline data is copied when posted, so the memory can be deregistered at once.
            end.process.memory.deregister(&mr);
        }
        end.to_post -= 1;
        end.posted += 1;
        self.expect(id, &record, op, imm);
        self.ends[id].sends.push_back(record);
        Ok(())
    }

    /// Records that the peer will receive this.
    fn expect(&mut self, id: usize, record: &SendRecord, op: SendOp, imm: Option<[u8; 4]>) {
        let (in_receive, invalidates) = match op {
            SendOp::Send => (true, None),
            SendOp::SendInv(rkey) => (true, Some(rkey)),
            SendOp::WriteImm { .. } => (false, None),
            _ => return,
        };
        let (op, len) = (record.op, record.len);
        let expected = Expected { op, process: 0, len, imm, invalidates, in_receive };
        self.ends[1 - id].expected.push_back(expected);
    }

    /// Posts one receive.
    pub(super) fn post_receive(&mut self, id: usize) -> Result<(), String> {
        let len = self.scenario.max_len as usize;
        let end = &mut self.ends[id];
        // For a SEND that is to find no receive, none is posted.
        let withheld = self.erred == Some(Mistake::NoReceive)
            && self.scenario.mistake.is_some_and(|(peer, ..)| peer != id);
        if end.qp.state() == QpState::Err || withheld {
            return Ok(());
        }
        self.look_again_soon(id);
        let end = &mut self.ends[id];
        let mr = end.process.memory.blank(len, ALL);
        let cut = self.rng.random_range(0..=len);
        let sges = vec![mr.part(0..cut), mr.part(cut..len)];
        self.last_op += 1;
        let record = RecvRecord { wr_id: self.last_op, mr, sges };
        if self.scenario.shared[id] {
            end.process.srq.push_back(record);
            return Ok(());
        }
        let wr = RecvWr { wr_id: record.wr_id, sges: &record.sges };
        end.qp.post_recv(&wr).map_err(|e| format!("post_recv: {e}"))?;
        end.recvs.push_back(record);
        Ok(())
    }
}
