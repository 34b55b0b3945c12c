//! librdmacm.
//!
//! The host service keeps the ids and reports their events ([`rdmux_host::EventChannel`]). The code
//! here converts the events to C objects and updates queue pairs accordingly, in the sequence that rdma_cm(7) describes.
//!
//! | file | contents |
//! |---|---|
//! | `process`, `device` | singletons of a process: its devices, their default domains, the ids by number |
//! | `id`, `event`, `channel` | the objects behind the pointers; `phase`, `group` and `found` are parts of ids |
//! | `create` | creation, migration and destruction of ids |
//! | `follow` | the effects of an event on its id |
//! | `take` | reading of events, by the program and by synchronous calls |
//! | `socket_address`, `address` | socket addresses; the addresses and the route that programs read |
//! | `resolve`, `connect`, `multicast` | the calls that start something, whose outcome events report |
//! | `membership`, `sendto` | groups as options of ids, and datagrams to a group's address |
//! | `qp`, `srq`, `attr` | queue pairs of ids |
//! | `endpoint` | rdma_create_ep and rdma_get_request |
//! | `addrinfo`, `resolving` | rdma_getaddrinfo and its asynchronous form |
//! | `along`, `messages` | <rdmux/cm.h>: addresses and paths together; the messages of InfiniBand's connection managers |
//! | `option`, `ece` | options |
//! | `verbs` | the part of libibverbs that is used |
//! | `rsocket` | the implemented part of <rdma/rsocket.h> |

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
