//! iWARP's connections: MPA's start-up frames over TCP (RFC 5044, RFC 6581).

mod config;
mod stream;

pub use config::{Config, Markers, Revision};
pub use stream::{StreamId, StreamWish};
