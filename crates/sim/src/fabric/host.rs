//! A host: an adapter's port, a wire without a socket, memory and queue pairs.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use rdmux_link::ib::{BareWire, IbDrop, Name, Outlet, Routes};
use rdmux_link::routes::{Peer, RouteView};
use rdmux_subnet::{PortId, PortView};
use rdmux_wire::{Gid, Lid, Pkey, Qpn};

use super::world::World;
use crate::endpoint::Process;

/// The size of a port's P_Key table, as programs see it.
const PKEYS: usize = 64;

/// Collects the datagrams that a wire sends.
#[derive(Debug)]
pub(super) struct Outbox {
    addr: SocketAddr,
    /// The largest datagram that the network carries.
    narrow: Option<usize>,
    segments: Cell<bool>,
    sent: RefCell<Vec<(SocketAddr, Vec<u8>)>>,
}

impl Outbox {
    /// Takes the packets that were sent.
    pub(super) fn take(&self) -> Vec<(SocketAddr, Vec<u8>)> {
        self.sent.take()
    }
}

impl Outlet for Outbox {
    fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    // Whether it can is found out by trying.
    fn segments(&self, _to: SocketAddr) -> bool {
        true
    }

    fn refuse_segments(&self, _to: SocketAddr) {}

    fn send(&self, to: &Name, segment: usize, bytes: &[u8]) -> io::Result<()> {
        let several = bytes.len() > segment;
        let too_large = self.narrow.is_some_and(|most| segment.min(bytes.len()) > most);
        if several && (too_large || !self.segments.get()) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        if too_large {
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        let datagrams = bytes.chunks(segment).map(|datagram| (to.addr(), datagram.to_vec()));
        self.sent.borrow_mut().extend(datagrams);
        Ok(())
    }
}

/// A host: an adapter's port, a wire without a socket, memory and queue pairs.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) port: PortId,
    pub(super) addr: SocketAddr,
    pub(super) wire: BareWire<Outbox>,
    /// Whether the host is attached to the fabric.
    pub(super) attached: bool,
    pub(super) process: Process,
    /// The existing queue pairs.
    pub(super) qps: BTreeMap<Qpn, usize>,
    gids: Vec<Gid>,
}

impl Host {
    pub(super) fn new(index: usize, port: PortId, narrow: Option<usize>, segments: bool) -> Self {
        let number = u8::try_from(index + 1).expect("few hosts");
        let addr = SocketAddr::from((Ipv4Addr::new(127, 0, 0, number), 4791));
        let sent = RefCell::default();
        let outbox = Outbox { addr, narrow, segments: Cell::new(segments), sent };
        Self {
            port,
            addr,
            // The only socket also receives multicast, as a service's does.
            wire: BareWire::new(outbox, 0, Arc::new(Routes::new(1))),
            attached: false,
            process: Process::default(),
            qps: BTreeMap::new(),
            gids: Vec::new(),
        }
    }

    /// Returns the drops of its wire, by reason.
    pub(super) fn drops(&self) -> impl Iterator<Item = u64> {
        IbDrop::ALL.iter().map(|why| self.wire.routes().dropped(*why))
    }

    /// Sets the GID table, as the service does.
    fn set_gid(&mut self, gid: Gid) {
        if self.gids != [gid] {
            self.gids = vec![gid];
            self.wire.routes().set_gids(&self.gids);
        }
    }
}

/// Returns a P_Key table as programs see it.
pub(super) fn pkey_table(view: PortView<'_>) -> Vec<Pkey> {
    let mut keys = view.pkeys().to_vec();
    keys.resize(PKEYS, Pkey(0));
    keys
}

impl World {
    /// Returns a host's port in the subnet.
    pub(super) fn view(&self, host: usize) -> PortView<'_> {
        self.subnet.port(self.hosts[host].port).expect("hosts are on ports of the subnet")
    }

    /// Returns the first GID of a host's port.
    pub(super) fn gid(&self, host: usize) -> Gid {
        self.view(host).gid(0).unwrap_or_default()
    }

    /// Attaches a host to the fabric, with the address at which it receives packets.
    pub(super) fn attach(&mut self, host: usize) -> Result<(), String> {
        let (port, addr) = (self.hosts[host].port, self.hosts[host].addr);
        let port_guid = self.view(host).guid();
        let table = self.published.open(port, None).ok_or("no memory for a route table")?;
        let peer = Peer { addr, port_guid, lid: Lid::NONE, lmc: 0, multicast: false };
        self.published.set_endpoint(port, peer, false);
        self.published.publish(&mut self.subnet);
        let view = RouteView::map(&table).map_err(|error| error.to_string())?;
        self.hosts[host].wire.routes().set_view(Some(view));
        self.hosts[host].attached = true;
        Ok(())
    }

    /// Detaches a host from the fabric.
    pub(super) fn detach(&mut self, host: usize) {
        self.published.close(&mut self.subnet, self.hosts[host].port);
        self.published.publish(&mut self.subnet);
        self.hosts[host].wire.routes().set_view(None);
        self.hosts[host].attached = false;
    }

    /// Updates route tables and GIDs before anything else happens.
    pub(super) fn publish(&mut self) {
        self.published.publish(&mut self.subnet);
        for host in 0..self.hosts.len() {
            let gid = self.gid(host);
            self.hosts[host].set_gid(gid);
        }
    }

    /// Returns the host that receives packets at an address.
    pub(super) fn host_at(&self, addr: SocketAddr) -> Option<usize> {
        self.hosts.iter().position(|host| host.addr == addr)
    }
}
