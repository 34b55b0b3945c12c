//! The user MAD device and the RMPP receiver: any bytes as packets, as writes and as registrations, in any order.

use std::time::Duration;

use rdmux_subnet::rmpp::{Arrival, Limits, Reassembly, TransferId, check};
use rdmux_subnet::umad::{
    Config, FileId, Ports, Registration, Umad, UmadSink, UserAddress, UserGrh, UserMad,
};
use rdmux_subnet::{MadPacket, NodeId, PortId, Time};
use rdmux_wire::mad::MAD_LEN;
use rdmux_wire::{Gid, Grh, Lid, Pkey, Qkey, Qpn, Rmpp, RmppType};

const PORT: PortId = PortId { node: NodeId(0), number: 1 };

/// The number of programs.
const FILES: usize = 3;

/// The limit on outstanding MADs of a file.
const OUTSTANDING: usize = 8;

/// Feeds segments to a receiver. The input defines peer, TID and RMPP header of each.
pub fn rmpp_receiver(data: &[u8]) {
    let limits = Limits {
        message: 20_000,
        bytes: 60_000,
        transfers: 6,
        peer_bytes: 30_000,
        peer_transfers: 3,
        remembered: 4,
    };
    let mut input = Input(data);
    let mut receiver = Reassembly::new(limits);
    let mut now = Time(1);
    while !input.0.is_empty() {
        now = now.after(Duration::from_millis(input.byte().into()));
        let mad = input.mad();
        let rmpp = Rmpp::of(&mad);
        let id = TransferId {
            peer: input.byte() % 3,
            qpn: Qpn::QP1,
            tid: u64::from(input.byte() % 4),
            class: mad[1],
            method: mad[3],
        };
        if check(&rmpp).is_ok() && rmpp.kind == RmppType::DATA {
            let mut answers = 0;
            let arrival = receiver.handle_data(now, id, id.peer, (), &mad, |back| {
                answers += 1;
                assert_eq!(check(&Rmpp::of(&back)), Ok(()), "an answer that breaks the rules");
            });
            assert!(answers <= 1, "{answers} answers to one segment");
            if let Arrival::Whole(message) = arrival {
                assert!(message.len() <= limits.message + MAD_LEN && message.len() >= 36);
            }
        } else {
            match rmpp.segment % 3 {
                0 => receiver.end(&id),
                1 => receiver.turn(&id, rmpp.length),
                _ => while receiver.handle_timeout(now, |(), _| {}) {},
            }
        }
        assert!(receiver.bytes() <= limits.bytes, "{} bytes", receiver.bytes());
        assert!(receiver.len() <= limits.transfers + limits.remembered);
        assert_eq!(receiver.is_empty(), receiver.next_timeout().is_none());
    }
    while let Some(at) = receiver.next_timeout() {
        receiver.handle_timeout(at, |(), _| {});
    }
    assert_eq!((receiver.len(), receiver.bytes()), (0, 0), "something is left");
}

/// Runs programs that register, write and close, and packets that arrive.
pub fn umad(data: &[u8]) {
    let mut script = Script::new(data);
    while !script.input.0.is_empty() {
        script.step();
    }
    script.end();
}

/// The rest of the input, padded with zeros.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&b, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        b
    }

    fn word(&mut self) -> u32 {
        u32::from_be_bytes([(); 4].map(|()| self.byte()))
    }

    /// Returns one of a few usual values, or sometimes any.
    fn some(&mut self, usual: &[u8]) -> u8 {
        match self.byte() {
            b if b < 240 => usual[usize::from(b) % usual.len()],
            _ => self.byte(),
        }
    }

    /// Returns a MAD with usually valid header and RMPP header.
    fn mad(&mut self) -> [u8; MAD_LEN] {
        let mut mad = [0; MAD_LEN];
        mad[0] = self.some(&[1]);
        mad[1] = self.some(&[3, 3, 3, 0x32, 6, 4, 1, 0x81, 7, 5]);
        mad[2] = self.some(&[2, 2, 1]);
        mad[3] = self.some(&[0x12, 0x92, 0x14, 0x94, 1, 0x81, 2, 7, 5]);
        // The upper half of the TID is an agent's number.
        mad[11] = self.byte() % 8;
        mad[15] = self.byte() % 4;
        mad[23] = self.byte() & 1;
        mad[24] = self.some(&[1]);
        mad[25] = self.some(&[1, 1, 1, 2, 2, 3, 4]);
        mad[26] = self.some(&[1, 1, 3, 5, 7, 0]);
        mad[27] = self.some(&[0, 0, 0, 0, 1, 118, 127]);
        mad[31] = self.some(&[0, 1, 1, 1, 2, 2, 3, 4, 65, 66]);
        mad[35] = self.some(&[0, 1, 20, 65, 129, 132, 219, 220, 221]);
        mad[37..40].copy_from_slice(&[0, 0x14, self.byte() & 1]);
        mad[60] = self.byte();
        mad
    }
}

/// The ports' LIDs, P_Keys and GIDs, which are constant.
struct Tables;

impl Ports for Tables {
    fn lid(&self, _: PortId) -> Option<(Lid, u8)> {
        Some((Lid(4), 2))
    }
    fn pkey(&self, _: PortId, index: u16) -> Option<Pkey> {
        (index < 2).then_some(Pkey(0xffff - index))
    }
    fn gid(&self, _: PortId, index: u8) -> Option<Gid> {
        (index < 2).then(|| Gid([index + 1; 16]))
    }
}

/// The output of the device since the last check.
#[derive(Default)]
struct Out {
    sent: Vec<MadPacket>,
    /// Records delivered to open files.
    read: u64,
    open: Vec<FileId>,
}

impl UmadSink for Out {
    fn transmit(&mut self, port: PortId, packet: MadPacket) {
        assert_eq!(port, PORT);
        self.sent.push(packet);
    }
    fn readable(&mut self, file: FileId, record: UserMad) {
        assert!(self.open.contains(&file), "a record for a closed file");
        assert!(record.agent < 32);
        assert!(record.data.len() >= if record.status == 0 { 36 } else { 24 });
        self.read += 1;
    }
    fn set_is_sm(&mut self, _: PortId, _: bool) {}
}

/// The device and its programs, with the rest of the input.
struct Script<'a> {
    input: Input<'a>,
    now: Time,
    umad: Umad,
    out: Out,
    last: Vec<MadPacket>,
}

impl<'a> Script<'a> {
    fn new(data: &'a [u8]) -> Self {
        let incoming = Limits {
            message: 20_000,
            bytes: 40_000,
            transfers: 4,
            peer_bytes: 20_000,
            peer_transfers: 3,
            remembered: 4,
        };
        let config = Config {
            outstanding: OUTSTANDING,
            bytes: 100_000,
            responses_to_peer: 8,
            bytes_to_peer: 50_000,
            incoming,
            timers_per_call: 4,
            timers_per_turn: 2,
        };
        let mut umad = Umad::new(config);
        let open: Vec<_> = (0..FILES).map(|_| umad.open(PORT)).collect();
        let out = Out { open, ..Out::default() };
        let mut script = Self { input: Input(data), now: Time(1), umad, out, last: Vec::new() };
        for (file, methods) in [(0, 1 << 0x12 | 1 << 0x14 | 1 << 1), (1, 0), (2, 1 << 2)] {
            let what = sa(methods);
            let file = script.out.open[file];
            script.umad.register(file, &what).expect("nobody has these methods");
        }
        script
    }

    fn file(&mut self) -> (usize, FileId) {
        let which = usize::from(self.input.byte()) % FILES;
        (which, self.out.open[which])
    }

    fn step(&mut self) {
        match self.input.byte() % 8 {
            0 | 1 => self.write(),
            2..=4 => self.arrive(),
            5 => self.agents(),
            6 => {
                let millis = u64::from(self.input.byte()) * 20;
                self.now = self.now.after(Duration::from_millis(millis));
                self.umad.handle_timeout(self.now, &mut self.out);
            }
            _ => self.loop_back(),
        }
        self.check();
    }

    fn address(&mut self) -> UserAddress {
        let grh = UserGrh {
            gid_index: self.input.some(&[0, 1]),
            gid: Gid([self.input.byte() % 4; 16]),
            ..UserGrh::default()
        };
        UserAddress {
            qpn: Qpn::new(self.input.some(&[1, 1, 1, 0]).into()),
            qkey: Qkey(0),
            lid: Lid(u16::from(self.input.some(&[4, 5, 8, 9, 255]))),
            sl: self.input.byte(),
            path_bits: self.input.byte(),
            grh: self.input.byte().is_multiple_of(4).then_some(grh),
            pkey_index: self.input.some(&[0, 1]).into(),
        }
    }

    fn write(&mut self) {
        let (_, file) = self.file();
        let mut data = self.input.mad().to_vec();
        let len = match self.input.byte() {
            b if b < 128 => MAD_LEN,
            b if b < 240 => usize::from(b) * 40,
            b => usize::from(b - 240) * 3,
        };
        data.resize(len, 0xab);
        let mad = UserMad {
            agent: self.input.some(&[0, 0, 0, 1]).into(),
            status: 0,
            timeout_ms: match self.input.byte() {
                255 => self.input.word(),
                b => u32::from(b % 4) * 100,
            },
            retries: u32::from(self.input.byte() % 3),
            address: self.address(),
            data,
        };
        let expected = self.umad.check_write(file, &mad, &Tables);
        let result = self.umad.write(self.now, file, mad, &Tables, &mut self.out);
        assert_eq!(result, expected);
    }

    fn arrive(&mut self) {
        let address = self.address();
        let mad = Box::new(self.input.mad());
        let grh = address.grh.map(|grh| Grh {
            tclass: 0,
            flow_label: 0,
            pay_len: 280,
            next_hdr: Grh::NEXT_BTH,
            hop_limit: 0,
            sgid: grh.gid,
            dgid: Gid([1; 16]),
        });
        let packet = MadPacket {
            slid: address.lid,
            dlid: Lid(4 | u16::from(address.path_bits)),
            sl: address.sl,
            src_qpn: Qpn::QP1,
            dst_qpn: address.qpn,
            qkey: Qkey::QP1,
            pkey: Pkey(0xffff),
            grh,
            mad,
        };
        let before = self.out.sent.len();
        self.umad.arrived(self.now, PORT, &packet, &Tables, &mut self.out);
        let sent = self.out.sent.len() - before;
        assert!(sent <= 66, "{sent} packets for one");
    }

    /// Delivers a sent packet as from another host, with or without a changed RMPP header.
    fn loop_back(&mut self) {
        self.last.append(&mut self.out.sent);
        self.last.truncate(64);
        let Some(mut packet) = self.last.pop() else { return };
        core::mem::swap(&mut packet.slid, &mut packet.dlid);
        core::mem::swap(&mut packet.src_qpn, &mut packet.dst_qpn);
        if let Some(grh) = &mut packet.grh {
            core::mem::swap(&mut grh.sgid, &mut grh.dgid);
        }
        packet.mad[3] ^= 0x80;
        let mut rmpp = Rmpp::of(&packet.mad);
        if rmpp.kind == RmppType::DATA && !self.input.byte().is_multiple_of(8) {
            rmpp.kind = RmppType::ACK;
            rmpp.length = rmpp.segment + u32::from(self.input.byte() % 66);
        }
        rmpp.put(&mut packet.mad);
        self.umad.arrived(self.now, PORT, &packet, &Tables, &mut self.out);
    }

    /// Registers and unregisters agents, and opens and closes files.
    fn agents(&mut self) {
        let (which, file) = self.file();
        match self.input.byte() % 4 {
            0 => {
                self.umad.close(file, &mut self.out);
                self.out.open[which] = self.umad.open(PORT);
            }
            1 => {
                let agent = self.input.some(&[0, 1]).into();
                let _ = self.umad.unregister(file, agent);
            }
            2 => {
                let what = Registration {
                    qpn: self.input.some(&[1, 0]).into(),
                    class: self.input.some(&[3, 0x32, 1, 0x81, 0]),
                    class_version: self.input.some(&[2, 1]),
                    oui: [0, 0x14, self.input.byte() & 1],
                    methods: 1 << (self.input.byte() % 128),
                    rmpp_version: self.input.some(&[1, 0]),
                    flags: self.input.some(&[0, 0, 1]).into(),
                };
                let _ = self.umad.register(file, &what);
            }
            _ => {
                let _ = self.umad.register(file, &sa(0));
            }
        }
    }

    fn check(&mut self) {
        for &file in &self.out.open {
            let outstanding = self.umad.outstanding(file);
            assert!(outstanding <= OUTSTANDING, "{outstanding} outstanding");
        }
    }

    /// Ends everything and checks that nothing is left.
    fn end(mut self) {
        for &file in &self.out.open.clone() {
            self.umad.close(file, &mut self.out);
        }
        assert!(self.umad.is_idle(), "something is left");
    }
}

/// Returns the registration of a subnet administration agent with RMPP.
fn sa(methods: u128) -> Registration {
    let rmpp_version = 1;
    Registration { qpn: 1, class: 3, class_version: 2, methods, rmpp_version, ..Default::default() }
}
