//! The boundary to the operating system: all transports of packets into and out of a process.
//!
//! In the order in which a packet passes them:
//!
//! - [`wire`]: the [`Wire`] trait, which all of them implement, packets to send and received packets
//! - [`udp`]: RoCEv2 over UDP port 4791: the socket group of an address, sending in batches with segmentation offload, receiving in batches
//!   with receive offload, multicast
//! - [`tcp`]: iWARP over a stream
//! - [`ring`]: packets to a process on the same host, through shared memory
//! - [`shm`]: plain shared memory, for rings and for pages of counters
//! - [`doorbell`]: wakeups between threads or processes
//! - [`Inbox`]: messages of any socket, several in one system call
//! - [`spin_wait`]: busy-polling briefly before sleeping
//! - [`signals`]: threads that run no signal handler of the program
//! - [`cancel`]: deferral of thread cancellation while Rust code runs
//! - [`guarded`]: guarded access to the program's own memory, which may be unmapped
//! - [`procmem`]: the memory of another process, by cross-process copy
//! - [`ib`]: InfiniBand packets over UDP, directly to the port to which the subnet's switches would deliver them
//! - [`routes`]: the routes of an InfiniBand port's packets, as the owner of the subnet publishes them
//! - [`rows`]: a process's counts of the packets that it sends by such a port, for the ports on their path
//! - [`acm`]: the paths that an ACM service has resolved, for its clients to read
//! - [`board`]: the regions and queue pairs that a process publishes, so that others access its memory without its help
//! - [`capture`]: the format of frames for the capturing program
//! - [`peer_credentials`]: the process at the other end of a Unix socket; [`unread_by_peer`]: what it has not read
//! - [`namespace`]: replacement of files for a process and its children
//!
//! # Safety
//!
//! The data path's unsafe code is here and in `verbs` (registered memory). In this crate it is in `sys` (system calls that take pointers),
//! [`tcp`] (payload received to its destination), `mmap` (mapped memory; with `--cfg loom` also its stand-in, `model`), [`wire`] (memory
//! given by pointer), [`ring`] (records that the peer may still change), `robust` (a list that the kernel reads), `fence`, [`cancel`],
//! [`signals`], [`inherited`], [`guarded`], [`procmem`] and [`namespace`]. All input from a socket, from shared memory or from a file
//! descriptor that a peer passed is checked and bounded: a hostile peer can only make a link fail.
#![deny(unsafe_code)]

pub mod acm;
pub mod board;
#[expect(unsafe_code, reason = "a function of the C library without a wrapper")]
pub mod cancel;
pub mod capture;
mod credentials;
pub mod doorbell;
#[cfg(not(loom))]
#[expect(unsafe_code, reason = "a system call without a wrapper")]
mod fence;
#[expect(unsafe_code, reason = "touches memory that may not be there")]
pub mod guarded;
pub mod ib;
mod inbox;
#[expect(unsafe_code, reason = "system calls without a wrapper")]
pub mod inherited;
#[cfg_attr(loom, allow(dead_code, reason = "only what is no model uses it"))]
#[expect(unsafe_code, reason = "maps memory")]
mod mmap;
#[cfg(loom)]
#[expect(unsafe_code, reason = "several mappings of one memory")]
mod model;
#[expect(unsafe_code, reason = "a system call that is unsafe with other arguments")]
pub mod namespace;
#[expect(unsafe_code, reason = "reads and writes another process's memory by pointer")]
pub mod procmem;
pub mod ring;
#[cfg(not(loom))]
#[expect(unsafe_code, reason = "a system call without a wrapper, and a list that the kernel reads")]
mod robust;
pub mod routes;
pub mod rows;
mod shared;
pub mod shm;
#[expect(unsafe_code, reason = "functions of the C library without a wrapper")]
pub mod signals;
pub mod spin_wait;
#[expect(unsafe_code, reason = "system calls that take pointers")]
mod sys;
pub mod tcp;
pub mod udp;
mod unread;
mod usage;
pub mod wire;

pub use board::{Board, PeerBoard};
pub use credentials::{PeerCredentials, peer_credentials};
pub use doorbell::{Doorbell, PeerBell};
pub use guarded::Unmapped;
pub use ib::IbWire;
pub use inbox::Inbox;
pub use mmap::has_room;
pub use procmem::{ProcMemError, ProcessMemory};
pub use ring::{Consumer, Producer, Record, Ring, RingFds, RingPair};
pub use shm::SharedMem;
pub use tcp::TcpStream;
pub use udp::{Destination, IcrcCheck, McastSocket, RxBatch, TxBatch, UdpGroup, UdpPort};
pub use unread::unread_by_peer;
pub use usage::Usage;
pub use wire::{Arrival, Frame, LinkCaps, LinkError, Payload, Piece, Wire};
