//! The seam to the driver: what the machine asks for, and the names it uses for it.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use rdmux_transport::attr::TransportType;
use rdmux_wire::{Guid, Mtu};

use crate::event::Event;
use crate::iw::StreamWish;
use crate::path::{MadPath, PathQuery};

/// The number of an id; unique in a [`Manager`](crate::Manager) and never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct IdHandle(pub u64);

impl core::fmt::Display for IdHandle {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "id {}", self.0)
    }
}

/// The driver's name for an event channel. It must not be used again for another channel
/// before [`Manager::channel_gone`](crate::Manager::channel_gone).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ChannelId(pub u64);

/// An address of this host by which connections can be made, and the device behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LocalAddress {
    /// The address.
    pub ip: IpAddr,
    /// The device's number, of the driver's choice; told back in [`Route`](crate::Route).
    pub device: u32,
    /// What carries the device's messages.
    pub transport: TransportType,
    /// The device's port, from 1.
    pub port_num: u8,
    /// Index of the address in the port's GID table.
    pub sgid_index: u8,
    /// The node GUID, which CM messages carry as CA GUID.
    pub node_guid: Guid,
    /// The largest path MTU that the port can do.
    pub mtu: Mtu,
}

/// A question that the driver answers with
/// [`Manager::handle_resolved`](crate::Manager::handle_resolved) or
/// [`Manager::handle_resolve_failed`](crate::Manager::handle_resolve_failed): each once, and those
/// of one id in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteQuery {
    /// Where to.
    pub dst: SocketAddr,
    /// From which address, if the program said.
    pub src_hint: Option<IpAddr>,
    /// Type of service.
    pub tos: u8,
    /// The only transport that will do, if only one.
    pub transport: Option<TransportType>,
    /// After this the machine gives up by itself and takes no notice of the answer.
    pub timeout: Duration,
}

/// The answer to a [`RouteQuery`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// The local address that the kernel would send from; it must be one of
    /// [`Manager::set_addresses`](crate::Manager::set_addresses).
    pub src: IpAddr,
    /// The path MTU if it is known to be less than the port's.
    pub mtu: Option<Mtu>,
}

/// A question to join a multicast group; the driver answers with
/// [`Manager::handle_joined`](crate::Manager::handle_joined).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinQuery {
    /// On which local address.
    pub local: IpAddr,
    /// The group.
    pub group: IpAddr,
    /// Whether the id only sends: the network need not be told.
    pub send_only: bool,
}

/// What the driver does for the machine. Calls come from within the machine's own methods; they
/// must not block, and they cannot call back.
pub trait Sink {
    /// Sends a management datagram from QP1. A datagram may be lost; the machine retries.
    fn send_mad(&mut self, path: &MadPath, mad: &[u8; 256]);
    /// Gives an event to the process that owns the channel.
    fn event(&mut self, channel: ChannelId, event: Event);
    /// Asks for the way to an address.
    fn resolve(&mut self, id: IdHandle, query: RouteQuery);
    /// Asks for the path to a peer whose address is resolved. RoCE and iWARP answer at once, with
    /// [`PathQuery::by_address`].
    fn query_path(&mut self, id: IdHandle, query: PathQuery);
    /// Takes a path query back that was not answered: its time is over, or the id or its device is gone. An answer that
    /// comes nonetheless is ignored. A driver that answers at once has nothing to do here.
    fn cancel_path(&mut self, _id: IdHandle, _attempt: u32) {}
    /// Asks to join a multicast group at the network for `id`. Each join is left once.
    fn join_multicast(&mut self, id: IdHandle, query: JoinQuery);
    /// Takes a join back.
    fn leave_multicast(&mut self, id: IdHandle, query: JoinQuery);
    /// Does something with a TCP connection. A driver whose addresses are of no iWARP device is
    /// never asked.
    fn stream(&mut self, _wish: StreamWish) {}
}
