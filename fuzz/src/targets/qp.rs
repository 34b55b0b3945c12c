//! A queue pair under a script of posts, arrivals and time.

use std::time::Duration;

use rdmux_testing::env::{TestEnv, link};
use rdmux_testing::ledger::Ledger;
use rdmux_testing::memory::Zeroes;
use rdmux_testing::qp::steps;
use rdmux_transport::attr::{Access, AddressVector, AttrMask, QpAttr, QpCaps, QpState, QpType};
use rdmux_transport::env::{AccessFault, Side};
use rdmux_transport::wr::{RecvWr, SendData, SendFlags, SendOp, SendWr, Sge, UdDest};
use rdmux_transport::{Qp, QpInit, RxPacket, Source, Time};
use rdmux_wire::{
    AckTimeout, Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Gid, Ieth, ImmDt, Lkey, Mtu, Opcode,
    Packet, Pkey, Psn, Qkey, Qpn, Reth, Rkey, RnrTimer, Service, XrcEth,
};

/// Runs an RC queue pair.
pub fn qp_rc(data: &[u8]) {
    Script::new(QpType::Rc, data).run();
}

/// Runs a UC queue pair.
pub fn qp_uc(data: &[u8]) {
    Script::new(QpType::Uc, data).run();
}

/// Runs a UD queue pair.
pub fn qp_ud(data: &[u8]) {
    Script::new(QpType::Ud, data).run();
}

/// Runs the initiator of an XRC connection.
pub fn qp_xrc_send(data: &[u8]) {
    Script::new(QpType::XrcSend, data).run();
}

/// Runs the target of an XRC connection, whose processes are busy at times and execute atomics later.
pub fn qp_xrc_recv(data: &[u8]) {
    Script::new(QpType::XrcRecv, data).run();
}

const PEER: Gid = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 2]);
const QPN: Qpn = Qpn::new(0x1234);
/// Zeroes for payloads.
static ZEROES: [u8; 8192] = [0; 8192];

/// A queue pair, with the rest of the input.
struct Script<'a> {
    data: &'a [u8],
    now: Time,
    qp: Qp,
    env: TestEnv,
    ledger: Ledger,
    /// The last PSN sent, for the script's answers.
    last_psn: Psn,
    /// The first operation of the message in progress: SEND or WRITE.
    inside: Option<u8>,
    /// The shared receive queue in its packets.
    srqn: u32,
}

impl<'a> Script<'a> {
    fn new(qp_type: QpType, data: &'a [u8]) -> Self {
        let caps = QpCaps {
            max_send_wr: 16,
            max_recv_wr: 16,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: 64,
        };
        let flags = data.first().copied().unwrap_or_default();
        let (has_srq, lossless) = (flags & 1 != 0, flags & 2 != 0);
        let init = QpInit { qpn: QPN, qp_type, caps, sq_sig_all: flags & 4 != 0, has_srq };
        let memory = Zeroes {
            size: 1 << 20,
            // Few keys are invalid.
            is_wrong: |key| key % 64 == 63,
            queues: 12,
            ..Zeroes::default()
        };
        let mut env = TestEnv::new(link(if lossless { 8192 } else { 1024 }, lossless), memory);
        env.later = flags & 8 != 0;
        Self {
            data: data.get(1..).unwrap_or_default(),
            now: Time::ZERO,
            qp: Qp::new(&init),
            env,
            ledger: Ledger::default(),
            last_psn: Psn::new(0),
            inside: None,
            srqn: 0,
        }
    }

    fn is_target(&self) -> bool {
        self.qp.qp_type() == QpType::XrcRecv
    }

    /// Deselects the receive queue before each call of an XRC target.
    fn choose_none(&mut self) {
        self.env.selected = (!self.is_target()).then_some(0);
    }

    /// Records what was sent, consumed and completed, after each call.
    fn settle(&mut self) {
        if let Some(bytes) = self.env.packets.back() {
            self.last_psn = Packet::parse(bytes).expect("it was checked").bth.psn;
        }
        self.ledger.enter(&mut self.env);
        self.env.forget();
    }

    fn byte(&mut self) -> u8 {
        let Some((&b, rest)) = self.data.split_first() else { return 0 };
        self.data = rest;
        b
    }
    fn u32(&mut self) -> u32 {
        u32::from_be_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }
    /// Returns a length: usually small, sometimes arbitrary.
    fn length(&mut self) -> u32 {
        match self.byte() {
            0..=9 => self.u32(),
            10..=60 => self.u32() % 10_000,
            b => u32::from(b),
        }
    }
    fn address(&mut self) -> u64 {
        u64::from(self.byte()) * 8 + u64::from(self.byte() < 8)
    }

    fn run(mut self) {
        self.bring_up();
        while !self.data.is_empty() {
            self.choose_none();
            match self.byte() % 16 {
                0..=2 => self.post_send(),
                3 => self.post_recv(),
                4..=5 => self.transmit(),
                6 => self.wait(),
                7 => self.modify(),
                8 => self.oddities(),
                _ => self.packet(),
            }
            self.settle();
            if matches!(self.qp.state(), QpState::Err | QpState::Sqe) {
                self.end();
                self.bring_up();
            }
        }
        self.end();
    }

    /// Checks that everything outstanding is flushed at the end, and that a reset restores the initial state.
    fn end(&mut self) {
        for state in [QpState::Err, QpState::Reset] {
            self.choose_none();
            let attr = QpAttr { state, ..self.qp.attr() };
            let moved = self.qp.modify(self.now, &attr, AttrMask::STATE, &mut self.env);
            moved.expect("from any state");
            self.qp.poll_transmit(self.now, 64, &mut self.env);
            assert!(self.qp.poll_timeout().is_none(), "a timer runs in state {state:?}");
        }
        self.env.put_off.clear();
        self.settle();
        self.ledger.assert_balanced(self.qp.init().sq_sig_all);
    }

    fn bring_up(&mut self) {
        self.inside = None;
        let attr = QpAttr {
            path_mtu: Mtu::at_most(1024).expect("there is one"),
            qkey: Qkey(1),
            rq_psn: Psn::new(0xff_fffe),
            sq_psn: Psn::new(0xff_fff0),
            dest_qpn: Qpn::new(2),
            access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
            av: AddressVector {
                is_global: true,
                dgid: PEER,
                port_num: 1,
                ..AddressVector::default()
            },
            port_num: 1,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            min_rnr_timer: RnrTimer::new(1),
            timeout: AckTimeout::new(14),
            retry_cnt: 3,
            rnr_retry: 3,
            ..self.qp.attr()
        };
        for (state, mask) in steps(self.qp.qp_type(), QpState::Rts) {
            let attr = QpAttr { state, ..attr };
            self.qp.modify(self.now, &attr, mask, &mut self.env).expect("all that is required");
        }
    }

    fn sges(&mut self) -> Vec<Sge> {
        let n = usize::from(self.byte() % 16).min(5) / 2;
        let one = |s: &mut Self| Sge {
            addr: s.address(),
            length: s.length(),
            lkey: Lkey(s.byte().into()),
        };
        (0..n).map(|_| one(self)).collect()
    }

    fn post_send(&mut self) {
        let (remote_addr, rkey) = (self.address(), Rkey(self.byte().into()));
        let op = match self.byte() % 9 {
            0 => SendOp::Send,
            1 => SendOp::SendImm([1; 4]),
            2 => SendOp::SendInv(rkey),
            3 => SendOp::Write { remote_addr, rkey },
            4 => SendOp::WriteImm { remote_addr, rkey, imm: [2; 4] },
            5 => SendOp::Read { remote_addr, rkey },
            6 => SendOp::FetchAdd { remote_addr, rkey, add: 1 },
            7 => SendOp::CmpSwap { remote_addr, rkey, compare: 1, swap: 2 },
            _ => SendOp::LocalInv(rkey),
        };
        let sges = self.sges();
        let inline = [&ZEROES[..usize::from(self.byte() % 80)]];
        let few = self.byte();
        let data = if few < 64 { SendData::Inline(&inline) } else { SendData::Sges(&sges) };
        let dest = (!few.is_multiple_of(4)).then(|| UdDest {
            av: AddressVector { is_global: true, dgid: PEER, ..AddressVector::default() },
            qpn: Qpn::new(few.into()),
            qkey: Qkey(1),
        });
        let flags = SendFlags::from_bits_truncate(self.byte().into());
        let srqn = u32::from(few) << 16;
        let wr = SendWr { flags, dest, srqn, ..SendWr::new(1, op, data) };
        if self.qp.post_send(self.now, &wr).is_ok() {
            self.ledger.posted(Side::Send);
        }
    }

    fn post_recv(&mut self) {
        let sges = self.sges();
        self.env.memory.receives += u32::from(self.byte() % 3);
        if self.qp.post_recv(&RecvWr { wr_id: 2, sges: &sges }).is_ok() {
            self.ledger.posted(Side::Recv);
        }
    }

    fn transmit(&mut self) {
        let budget = u32::from(self.byte() % 40);
        let room = self.byte();
        self.env.room = if room < 192 { usize::MAX } else { usize::from(room % 4) };
        self.qp.poll_transmit(self.now, budget, &mut self.env);
    }

    fn wait(&mut self) {
        let us = u64::from(self.byte()) * u64::from(self.byte());
        self.now = self.now.after(Duration::from_micros(us));
        if let Some(at) = self.qp.poll_timeout() {
            self.now = self.now.max(at);
            self.qp.handle_timeout(self.now, &mut self.env);
        }
    }

    fn modify(&mut self) {
        let states = [QpState::Rts, QpState::Sqd, QpState::Rts, QpState::Rtr, QpState::Sqe];
        let attr = QpAttr {
            state: states[usize::from(self.byte()) % states.len()],
            min_rnr_timer: RnrTimer::new(self.byte() & 31),
            ..self.qp.attr()
        };
        let mask = AttrMask::from_bits_truncate(self.u32()) | AttrMask::STATE;
        let _ = self.qp.modify(self.now, &attr, mask, &mut self.env);
    }

    fn oddities(&mut self) {
        match self.byte() % 16 {
            0 => self.qp.peer_gone(self.now),
            1..=8 => self.qp.flush_ack(self.now, &mut self.env),
            9..=11 => self.atomic_done(),
            12 if self.is_target() => self.env.memory.until_fault = u32::from(self.byte() % 4),
            _ => self.qp.handle_timeout(self.now, &mut self.env),
        }
    }

    /// Reports an executed atomic, usually a deferred one and usually successful.
    fn atomic_done(&mut self) {
        let (which, how) = (usize::from(self.byte()), self.byte());
        let waiting = self.env.put_off.len();
        let taken = if how < 240 && waiting != 0 {
            self.env.put_off.swap_remove_back(which % waiting)
        } else {
            None
        };
        let psn = match taken {
            Some(atomic) => atomic.psn,
            None => self.qp.attr().rq_psn.sub(self.byte().into()),
        };
        let result = if how % 16 == 15 { Err(AccessFault::Gone) } else { Ok(7) };
        self.qp.atomic_done(self.now, psn, result, &mut self.env);
    }

    /// Delivers a packet that is usually valid and in order.
    fn packet(&mut self) {
        let service = match self.qp.qp_type() {
            QpType::Rc => 0,
            QpType::Uc => 0x20,
            QpType::Ud => 0x60,
            QpType::XrcSend | QpType::XrcRecv => 0xa0,
        };
        let how = self.byte();
        let opcode = Opcode(if how < 10 { self.byte() } else { service | self.operation(how) });
        if opcode.service() == Service::Rd {
            return; // its packets are not decoded
        }
        let flags = self.byte();
        let shift = if flags & 0x0c == 0 { u32::from(self.byte() % 8) } else { 0 };
        let near = if opcode.is_response() { self.last_psn } else { self.qp.attr().rq_psn };
        let psn = if flags & 0x10 == 0 { near.add(shift) } else { near.sub(shift) };
        let len = self.payload_len(opcode);
        let bth = Bth {
            solicited: flags & 1 != 0,
            mig_req: true,
            pad: u8::try_from(len.wrapping_neg() % 4).unwrap_or(0),
            pkey: if how == 255 { Pkey(1) } else { Pkey::DEFAULT },
            ack_req: flags & 2 != 0,
            ..Bth::new(opcode, QPN, psn)
        };
        let bytes = self.packet_bytes(bth, len);
        let Ok(packet) = Packet::parse(&bytes) else { return };
        let grh = [0; 40];
        let sgid = if how == 254 { Gid::ZERO } else { PEER };
        let source = Source {
            sgid,
            dgid: Gid::ZERO,
            grh: &grh,
            slid: 0,
            sl: 0,
            dlid_path_bits: 0,
            has_grh: true,
        };
        self.qp.handle_packet(
            self.now,
            &RxPacket { packet: &packet, source: &source },
            &mut self.env,
        );
    }

    /// Returns an operation, usually one that continues after the last packet.
    fn operation(&mut self, how: u8) -> u8 {
        let any = self.byte() % 0x18;
        if how < 40 {
            return any;
        }
        if self.qp.qp_type() == QpType::XrcSend {
            return 0x0d + any % 6; // a response
        }
        let operation = match (self.inside, any) {
            (Some(first), 0..=11) => first + 1,
            (Some(first), _) => first + 2,
            (None, 1 | 7) => any - 1,
            (None, 2 | 3 | 8 | 9 | 22) => any % 8 + 4,
            (None, _) => any,
        };
        self.inside = match operation {
            0 | 6 => Some(operation),
            1 | 7 => self.inside,
            _ => None,
        };
        operation
    }

    /// Returns a payload length, usually a valid one for the opcode.
    fn payload_len(&mut self, opcode: Opcode) -> usize {
        match self.byte() {
            b @ 0..=15 => usize::from(b) * 100,
            _ if !opcode.has_payload() => 0,
            _ if opcode.is_last() || opcode.is_only() => usize::from(self.byte()) * 4 % 1025,
            _ => 1024,
        }
    }

    fn packet_bytes(&mut self, bth: Bth, len: usize) -> Vec<u8> {
        let opcode = bth.opcode;
        let mut packet = Packet::new(bth, &[]);
        let rkey = Rkey(self.byte().into());
        // Input is consumed only for headers that are present, so that scripts stay dense.
        if opcode.has_xrceth() {
            let other = u32::from(self.byte());
            self.srqn = if other < 16 { other } else { self.srqn };
            packet.xrceth = Some(XrcEth { srqn: self.srqn });
        }
        packet.deth = opcode
            .has_deth()
            .then(|| Deth { qkey: Qkey(u32::from(self.byte() > 16)), src_qpn: Qpn::new(9) });
        packet.reth = opcode.has_reth().then(|| Reth {
            va: self.address(),
            rkey,
            dma_len: match self.byte() {
                0..=200 if !opcode.is_only() || !opcode.has_payload() => self.length(),
                _ => u32::try_from(len).unwrap_or(0),
            },
        });
        packet.atomic = opcode.has_atomic().then(|| AtomicEth {
            va: self.address(),
            rkey,
            swap_add: 1,
            compare: 7,
        });
        packet.aeth = opcode.has_aeth().then(|| {
            let code = self.byte();
            let syndrome = [if code < 128 { 0x1f } else { code }, 0, 0, self.byte()];
            Aeth::parse(&syndrome).expect("any bytes are one")
        });
        packet.atomic_ack = opcode.has_atomic_ack().then_some(AtomicAckEth { original: 5 });
        packet.imm = opcode.has_imm().then_some(ImmDt([1, 2, 3, 4]));
        packet.ieth = opcode.has_ieth().then_some(Ieth(rkey));
        let mut bytes = packet.header().as_slice().to_vec();
        bytes.extend_from_slice(&ZEROES[..len + usize::from(bth.pad)]);
        bytes
    }
}
