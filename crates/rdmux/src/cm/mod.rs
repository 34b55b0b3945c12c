//! The connection manager: connect by address, as sockets do.
//!
//! An [`Id`] is one side of a connection, a listener or a datagram peer (`rdma_cm_id`). Calls that take time only
//! start an operation. Its outcome is an [`Event`] on the id's [`EventChannel`], which has a descriptor to poll. The
//! usual course:
//!
//! ```text
//!   active                                     passive
//!   Id::new                                    Id::new, bind, listen
//!   resolve_addr    -> AddrResolved
//!   resolve_route   -> RouteResolved
//!   attach_qp, connect                         -> ConnectRequest, with a new id
//!                                              attach_qp, accept
//!                   -> Established             -> Established
//!   disconnect                                 -> Disconnected
//!                   -> Disconnected
//! ```
//!
//! Over iWARP the stream moves the queue pair to RTS. The connection request determines which side may send first: see
//! [`ConnParam::peer_to_peer`], [`IdOption::PeerToPeer`], or the configuration.
//!
//! An id moves an attached queue pair through its states by itself. If no queue pair is attached, [`Event::negotiated`] has the
//! attributes that the program needs to do so.
//!
//! ```
//! use std::time::Duration;
//! use rdmux::cm::{ConnParam, EventChannel, EventKind, Id, PortSpace};
//! use rdmux::{Cause, QpType};
//!
//! # fn main() -> rdmux::Result<()> {
//! # let context = rdmux::Context::builder().embedded().open()?;
//! # let nobody = std::net::SocketAddr::from((context.address()?, 7471));
//! let timeout = Duration::from_secs(2);
//! let channel = EventChannel::new(&context)?;
//! let next = |kind, asked| channel.next(Some(timeout))?.expect("an answer").expect(kind, asked);
//!
//! let id = Id::new(&channel, PortSpace::Tcp)?;
//! id.resolve_addr(None, nobody, timeout)?;
//! next(EventKind::AddrResolved, "find the way")?;
//! id.resolve_route(timeout)?;
//! next(EventKind::RouteResolved, "find the way")?;
//!
//! let qp = context.pd().qp(QpType::Rc).cq(&context.cq(16)?).build()?;
//! id.attach_qp(&qp)?;
//! id.connect(&ConnParam::default())?;
//! let error = next(EventKind::Established, "connect").unwrap_err();
//! assert!(matches!(error.cause(), Cause::Rejected { reason: 8, .. })); // nobody listens there
//! # Ok(())
//! # }
//! ```
//!
//! Over InfiniBand and RoCE all of InfiniBand's connection management is available: its fields ([`CmOption`]), rejects with
//! additional information and redirection ([`Id::reject_with`], [`Id::redirect`]), MRAs ([`Id::ask_for_time`]), and alternate paths
//! ([`Id::set_paths`] for the first one, [`Id::load_alternate`] for later ones).
//!
//! An event is acknowledged by dropping it. [`Id::destroy`] waits until all events of the id are acknowledged. An id
//! that is dropped is destroyed as soon as they are.

mod channel;
mod core;
mod event;
mod group;
mod id;
mod messages;

pub use channel::EventChannel;
pub(crate) use channel::Ids;
pub use event::Event;
pub use id::Id;
pub use rdmux_cm::{
    Addr, Alternate, CmOption, ConnParam, Courtesy, EventKind, Failover, GroupAddr, GroupWish,
    IbAddr, IdHandle, IdOption, JoinFlags, Negotiated, PathData, PortSpace, Redirect, Refusal,
    Route, UdParam,
};
pub use rdmux_wire::ServiceId;
pub use rdmux_wire::cm::{AprStatus, CmMad, Message, RejReason, SidrStatus};
pub use rdmux_wire::sa::{JoinState, McMemberRecord, McMemberRecordMask, PathRecord};
