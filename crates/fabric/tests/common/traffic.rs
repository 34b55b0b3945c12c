//! Hosts whose processes exchange packets.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use rdmux_fabric::FabricName;
use rdmux_fabric::client::{Attachment, ConnectOptions};
use rdmux_fabric::proto::Described;
use rdmux_link::UdpGroup;
use rdmux_link::ib::{IbWire, Routes, Sender};
use rdmux_link::routes::RouteView;
use rdmux_link::rows::Rows;
use rdmux_link::udp::GroupOptions;
use rdmux_link::wire::{Arrivals, Frame, LinkError, Payload, Wire};
use rdmux_transport::attr::AddressVector;
use rdmux_wire::{Bth, Guid, Lid, Opcode, Pkey, Psn, Qpn};

use super::Fabric;

/// A host, whose service is played by the test.
pub(crate) struct Host {
    pub(crate) attachment: Attachment,
    pub(crate) described: Described,
    pub(crate) view: RouteView,
    pub(crate) group: UdpGroup,
    pub(crate) processes: Vec<Process>,
}

/// A process of a host.
pub(crate) struct Process {
    pub(crate) slot: u16,
    pub(crate) routes: Arc<Routes>,
    wire: IbWire,
    tx: Mutex<Sender>,
    rx: Arrivals,
}

impl Host {
    /// Attaches the adapter with this GUID.
    pub(crate) fn new(fabric: &Fabric, name: &str, guid: Guid, processes: u16) -> Self {
        Self::by(&fabric.options, &fabric.name, name, guid, processes)
    }

    /// Attaches the adapter with this GUID, perhaps through a bridge.
    pub(crate) fn by(
        options: &ConnectOptions,
        fabric: &FabricName,
        name: &str,
        guid: Guid,
        processes: u16,
    ) -> Self {
        let (attachment, described) = Attachment::open(options, fabric, name, guid).unwrap();
        let options = GroupOptions { port: 0, ..GroupOptions::default() };
        let ip = if described.is_joined { [0; 4] } else { [127, 0, 0, 1] };
        let group = UdpGroup::open(ip.into(), &options).unwrap();
        let view = RouteView::map(attachment.routes().unwrap()).unwrap();
        let mut host = Self { attachment, described, view, group, processes: Vec::new() };
        for slot in 1..=processes {
            host.start(slot);
        }
        host.says();
        host
    }

    /// Starts a process.
    pub(crate) fn start(&mut self, slot: u16) {
        let rows = Rows::create().unwrap();
        self.attachment.count_in(slot, rows.as_fd()).unwrap();
        let routes = Arc::new(Routes::new(1));
        let view = RouteView::map(self.attachment.routes().unwrap()).unwrap();
        routes.set_view_with(Some(view), Some(Rows::map(&rows).unwrap()));
        routes.set_gids(&self.described.port.gids);
        let wire = IbWire::new(self.group.socket(slot).unwrap(), slot, routes.clone()).unwrap();
        self.processes.push(Process {
            slot,
            routes,
            wire,
            tx: Mutex::default(),
            rx: Arrivals::default(),
        });
    }

    /// Kills a process: nothing of it is closed in order.
    pub(crate) fn kill(&mut self, index: usize) {
        let process = self.processes.remove(index);
        let slot = process.slot;
        std::mem::forget(process);
        self.attachment.process_gone(slot).unwrap();
    }

    /// Returns the address to which hosts of the same machine send packets.
    pub(crate) fn addr(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.group.local_addr().port()))
    }

    /// Reports to the fabric where the host receives packets, and waits for the answer.
    fn says(&mut self) {
        self.attachment.set_endpoint(self.addr(), self.described.is_joined, false).unwrap();
        let first = self.attachment.refresh().unwrap();
        let mut answers = usize::from(first.events.is_empty());
        while answers < 2 {
            match self.attachment.poll_update().unwrap() {
                Some(update) => answers += usize::from(update.events.is_empty()),
                None => std::thread::yield_now(),
            }
        }
    }

    pub(crate) fn lid(&self) -> Lid {
        self.view.own().lid
    }
}

/// A number of packets to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Burst {
    pub(crate) dlid: Lid,
    /// The receiving queue pair.
    pub(crate) to: Qpn,
    pub(crate) sl: u8,
    pub(crate) pkey: Pkey,
    pub(crate) payload: usize,
    pub(crate) packets: u64,
}

impl Burst {
    /// Makes packets to the first process of a host.
    pub(crate) fn to(host: &Host, packets: u64, payload: usize) -> Self {
        let (dlid, to) = (host.lid(), Qpn::new(0x1001));
        Self { dlid, to, sl: 0, pkey: Pkey::DEFAULT, payload, packets }
    }

    /// Returns the length of each in words, LRH to ICRC.
    pub(crate) fn words(&self) -> u64 {
        (8 + 12 + self.payload.next_multiple_of(4) as u64 + 4) / 4
    }
}

impl Process {
    pub(crate) fn send(&self, burst: &Burst) {
        let pad = self.payload_pad(burst.payload);
        let bth =
            Bth { pkey: burst.pkey, pad, ..Bth::new(Opcode::UC_SEND_ONLY, burst.to, Psn::new(0)) };
        let (header, payload) = (bth.to_bytes(), vec![0x5a; burst.payload]);
        let frame = Frame { header: &header, payload: Payload::Bytes(&payload), pad, ack: None };
        let (dlid, sl) = (burst.dlid.0, burst.sl);
        let av = AddressVector { dlid, sl, ..AddressVector::default() };
        let tx = &mut *self.tx.lock().unwrap();
        for _ in 0..burst.packets {
            while let Err(error) = self.wire.send(tx, &av, &frame) {
                assert!(matches!(error, LinkError::Full), "{error}");
                self.wire.flush(tx).unwrap();
            }
        }
        self.wire.flush(tx).unwrap();
    }

    fn payload_pad(&self, len: usize) -> u8 {
        (len.next_multiple_of(4) - len).to_le_bytes()[0]
    }

    /// Waits for this many packets.
    pub(crate) fn expect(&mut self, packets: u64) {
        let (mut came, since) = (0, Instant::now());
        while came < packets {
            came += self.receive() as u64;
            assert!(since.elapsed().as_secs() < 20, "{came} of {packets}");
        }
        assert_eq!(came, packets);
    }

    /// Returns how many packets have arrived since the last call.
    pub(crate) fn receive(&mut self) -> usize {
        self.wire.receive(&mut self.rx).unwrap();
        self.wire.intact(&self.rx, |_| true).count()
    }

    /// Returns the counts of drops.
    pub(crate) fn dropped(&self) -> Vec<(&'static str, u64)> {
        self.routes.counters().filter(|(_, n)| *n != 0).collect()
    }
}
