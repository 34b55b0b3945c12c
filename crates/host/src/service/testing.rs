//! Helpers of unit tests of the service.

use std::net::Ipv4Addr;

use rdmux_testing::{TempDir, temp_dir};

use super::core::Core;
use super::options::ServiceOptions;
use super::poller::Poller;
use super::random_bytes;
use crate::error::HostError;
use crate::names::{HostName, RuntimeDir};

/// Makes the state of a service on a loopback address of its own, without an event loop.
pub(super) fn core() -> (Core, TempDir) {
    let dir = temp_dir();
    let runtime = RuntimeDir::at(dir.path().join("run")).unwrap();
    let options = ServiceOptions::new(HostName::new("test").unwrap(), runtime);
    loop {
        let [high, low] = random_bytes().unwrap();
        let address = Ipv4Addr::new(127, 78, high, low.clamp(1, 254)).into();
        match Core::new(options.clone(), Poller::new().unwrap(), Some(vec![address])) {
            Ok(core) => return (core, dir),
            Err(HostError::PortInUse { .. }) => {}
            Err(e) => panic!("{e}"),
        }
    }
}
