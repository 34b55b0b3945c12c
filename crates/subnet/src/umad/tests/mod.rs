//! Two ports with LIDs and two without, and a network between them that delivers as instructed.

mod agents;
mod requests;
mod transfers;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec;
use alloc::vec::Vec;

use rdmux_wire::mad::MAD_LEN;
use rdmux_wire::{Gid, Lid, Pkey, Qkey, Qpn};

use super::*;
use crate::{MadPacket, NodeId};

pub(super) const A: PortId = PortId { node: NodeId(0), number: 1 };
pub(super) const B: PortId = PortId { node: NodeId(1), number: 1 };
/// Ports that have GIDs only.
pub(super) const C: PortId = PortId { node: NodeId(2), number: 1 };
pub(super) const D: PortId = PortId { node: NodeId(3), number: 1 };

pub(super) const SA: u8 = 3;
pub(super) const PERF: u8 = 4;
pub(super) const GET: u8 = 0x01;
pub(super) const GET_TABLE: u8 = 0x12;
pub(super) const GET_MULTI: u8 = 0x14;
pub(super) const RESPONSE: u8 = 0x80;

/// A has LIDs 4 to 7, B has 8 to 11.
pub(super) struct Tables;

impl Ports for Tables {
    fn lid(&self, port: PortId) -> Option<(Lid, u8)> {
        match port {
            A => Some((Lid(4), 2)),
            B => Some((Lid(8), 2)),
            _ => None,
        }
    }
    fn pkey(&self, _: PortId, index: u16) -> Option<Pkey> {
        [Pkey(0xffff), Pkey(0x8001)].get(usize::from(index)).copied()
    }
    fn gid(&self, port: PortId, index: u8) -> Option<Gid> {
        let mut gid = [0xfe; 16];
        gid[14..].copy_from_slice(&[port.node.0.to_be_bytes()[3], index]);
        (index < 2).then_some(Gid(gid))
    }
}

/// The output of the device.
#[derive(Default)]
pub(super) struct Out {
    pub(super) sent: VecDeque<(PortId, MadPacket)>,
    pub(super) read: BTreeMap<FileId, VecDeque<UserMad>>,
    pub(super) is_sm: Vec<(PortId, bool)>,
}

impl UmadSink for Out {
    fn transmit(&mut self, port: PortId, packet: MadPacket) {
        self.sent.push_back((port, packet));
    }
    fn readable(&mut self, file: FileId, record: UserMad) {
        self.read.entry(file).or_default().push_back(record);
    }
    fn set_is_sm(&mut self, port: PortId, is_sm: bool) {
        self.is_sm.push((port, is_sm));
    }
}

pub(super) struct Net {
    pub(super) umad: Umad,
    pub(super) out: Out,
    pub(super) now: Time,
}

impl Net {
    pub(super) fn new() -> Self {
        Self::with(Config::default())
    }

    pub(super) fn with(config: Config) -> Self {
        Self { umad: Umad::new(config), out: Out::default(), now: Time(1) }
    }

    /// Opens a file of a port with one agent.
    pub(super) fn agent(&mut self, port: PortId, what: Registration) -> FileId {
        let file = self.umad.open(port);
        assert_eq!(self.umad.register(file, &what), Ok(0));
        file
    }

    pub(super) fn write(&mut self, file: FileId, mad: UserMad) -> Result<(), Errno> {
        let checked = self.umad.check_write(file, &mad, &Tables);
        let written = self.umad.write(self.now, file, mad, &Tables, &mut self.out);
        assert_eq!(checked, written);
        written
    }

    pub(super) fn read(&mut self, file: FileId) -> Option<UserMad> {
        self.out.read.get_mut(&file)?.pop_front()
    }

    pub(super) fn arrive(&mut self, port: PortId, packet: &MadPacket) {
        self.umad.arrived(self.now, port, packet, &Tables, &mut self.out);
    }

    /// Delivers packets and the packets that they cause, as often as `copies` returns, until none is in flight.
    pub(super) fn deliver_if(&mut self, mut copies: impl FnMut(&MadPacket) -> usize) {
        while let Some((_, packet)) = self.out.sent.pop_front() {
            let Some(port) = destination(&packet) else { continue };
            for _ in 0..copies(&packet) {
                self.arrive(port, &packet);
            }
        }
    }

    pub(super) fn deliver(&mut self) {
        self.deliver_if(|_| 1);
    }

    /// Advances time to the next timeout and handles it. Returns false if there is none.
    pub(super) fn pass(&mut self) -> bool {
        let Some(at) = self.umad.next_timeout() else { return false };
        self.now = self.now.max(at);
        self.umad.handle_timeout(self.now, &mut self.out);
        true
    }

    /// Returns the MADs in flight.
    pub(super) fn on_the_way(&mut self) -> Vec<MadPacket> {
        self.out.sent.drain(..).map(|(_, packet)| packet).collect()
    }

    pub(super) fn close(&mut self, file: FileId) {
        self.umad.close(file, &mut self.out);
    }
}

fn destination(packet: &MadPacket) -> Option<PortId> {
    let at = |port: &PortId| match packet.grh {
        Some(grh) => (0..2).any(|i| Tables.gid(*port, i) == Some(grh.dgid)),
        None => Tables.lid(*port).is_some_and(|(lid, _)| packet.dlid.0 & !3 == lid.0),
    };
    [A, B, C, D].into_iter().find(at)
}

/// Returns the registration of a QP1 agent that owns these methods.
pub(super) fn gsi(class: u8, methods: &[u8]) -> Registration {
    let methods = methods.iter().fold(0, |mask, method| mask | 1 << method);
    let class_version = if class == SA { 2 } else { 1 };
    Registration { qpn: 1, class, class_version, methods, ..Registration::default() }
}

/// Returns the registration of a subnet administration agent with RMPP.
pub(super) fn sa(methods: &[u8]) -> Registration {
    Registration { rmpp_version: 1, ..gsi(SA, methods) }
}

/// Returns the address of a port by its LID.
pub(super) fn to(port: PortId) -> UserAddress {
    let lid = Tables.lid(port).map_or(Lid(0), |(lid, _)| lid);
    UserAddress { qpn: Qpn::QP1, qkey: Qkey::QP1, lid, ..UserAddress::default() }
}

/// Returns the address of a port by its GID.
pub(super) fn by_gid(port: PortId) -> UserAddress {
    let gid = Tables.gid(port, 1).expect("two of them");
    let grh = UserGrh { gid_index: 1, gid, hop_limit: 9, traffic_class: 3, flow_label: 0x1_2345 };
    UserAddress { grh: Some(grh), lid: Lid(0), ..to(port) }
}

/// Builds a MAD of 256 bytes.
pub(super) fn mad(class: u8, method: u8, tid: u64) -> Vec<u8> {
    let mut mad = vec![0; MAD_LEN];
    let version = if class == SA { 2 } else { 1 };
    mad[..4].copy_from_slice(&[1, class, version, method]);
    mad[8..16].copy_from_slice(&tid.to_be_bytes());
    mad[16..18].copy_from_slice(&[0, 0x11]);
    mad[200..204].copy_from_slice(b"body");
    mad
}

/// Builds a long MAD of subnet administration with this many data bytes. Its RMPP header has only the flag ACTIVE.
pub(super) fn long(method: u8, tid: u64, data: usize) -> Vec<u8> {
    let mut long = mad(SA, method, tid);
    long.truncate(56);
    long[26] = 1;
    long.extend((0..241_u8).cycle().take(data));
    long
}

/// Builds a request that waits 100 ms and is sent 1 + 2 times.
pub(super) fn request(data: Vec<u8>, address: UserAddress) -> UserMad {
    UserMad { agent: 0, status: 0, timeout_ms: 100, retries: 2, address, data }
}

/// Builds the answer to a record that a program has read.
pub(super) fn response(of: &UserMad, data: Vec<u8>) -> UserMad {
    let mut data = data;
    data[8..16].copy_from_slice(&of.data[8..16]);
    UserMad { agent: of.agent, status: 0, timeout_ms: 0, retries: 2, address: of.address, data }
}

pub(super) fn tid(data: &[u8]) -> u64 {
    u64::from_be_bytes(*data[8..].first_chunk().expect("a header"))
}
