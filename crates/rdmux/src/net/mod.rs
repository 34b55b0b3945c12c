//! Messages between programs in a few lines: connections, listeners and datagrams.

mod connection;
mod datagram;
mod establish;
mod listener;
mod options;
mod receiver;
mod sender;

pub use connection::Connection;
pub use datagram::{Datagram, Peer};
pub use listener::Listener;
pub use options::Options;
pub use receiver::Receiver;
pub use sender::Sender;
