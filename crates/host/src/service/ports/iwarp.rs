//! The port of iWARP: TCP connections, until they are handed to queue pairs.
//!
//! `streams` has the connections, `listening` the sockets that accept them, `lingering` those that are closing, `tcp` the system
//! calls.

mod lingering;
mod listening;
mod streams;
mod tcp;

use std::net::IpAddr;

use rdmux_cm::iw;
use rdmux_verbs::control::Limits;

pub(in crate::service) use self::streams::Streams;
use super::ServicePort;
use crate::names::Config;
use crate::service::core::Core;

/// The operations for iWARP ports.
pub(super) struct Iwarp;

impl ServicePort for Iwarp {
    fn configure(&self, config: &Config, limits: &Limits, cm: &mut rdmux_cm::Config) {
        cm.iwarp = iw::Config {
            max_ird: limits.max_rd_atomic,
            max_ord: limits.max_init_rd_atomic,
            ..(&config.iwarp).into()
        };
    }

    /// Checks nothing, because TCP itself shows whether a host answers.
    fn probe(&self, _core: &Core, _src: IpAddr, _dst: IpAddr) -> Result<(), i32> {
        Ok(())
    }
}
