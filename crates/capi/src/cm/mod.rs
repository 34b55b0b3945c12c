//! librdmacm.
//!
//! The host service keeps the ids and tells in events what happens to them ([`rdmux_host::EventChannel`]); what is
//! here turns those into C objects and lets queue pairs follow, in the course that rdma_cm(7) describes.
//!
//! | file | what |
//! |---|---|
//! | `process`, `device` | what a process has once: its devices, their default domains, the ids by number |
//! | `id`, `event`, `channel` | the objects behind the pointers; `phase`, `group` and `found` are parts of ids |
//! | `create` | ids made, moved and ended |
//! | `follow` | what an event does to its id |
//! | `take` | events taken, by the program and by calls that wait for theirs |
//! | `socket_address`, `address` | socket addresses; those and the route that programs read |
//! | `resolve`, `connect`, `multicast` | the calls that start something; events tell how it went |
//! | `membership`, `sendto` | groups as options of ids, and datagrams to a group's address |
//! | `qp`, `srq`, `attr` | queue pairs of ids |
//! | `endpoint` | rdma_create_ep and rdma_get_request |
//! | `addrinfo`, `resolving` | rdma_getaddrinfo and its asynchronous form |
//! | `along`, `messages` | <rdmux/cm.h>: addresses and paths together; what connection managers of InfiniBand say |
//! | `option`, `ece` | what may be set |
//! | `verbs` | the part of libibverbs that is used |
//! | `rsocket` | what exists of <rdma/rsocket.h> |

mod address;
mod addrinfo;
mod along;
mod attr;
mod channel;
mod connect;
mod create;
mod device;
mod ece;
mod endpoint;
mod event;
mod follow;
mod found;
mod group;
mod id;
mod membership;
mod messages;
mod multicast;
mod option;
mod phase;
mod process;
mod qp;
mod resolve;
mod resolving;
pub(crate) mod rsocket;
mod sendto;
mod socket_address;
mod srq;
mod stale;
mod take;
mod verbs;
