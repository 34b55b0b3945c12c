//! The origin of MAD files: the fabric that has the port, which the host's service knows. No other part of this library
//! depends on that.

use std::os::fd::{AsFd, BorrowedFd};

use rdmux_fabric::client::{self, ConnectOptions};
use rdmux_fabric::proto::{NodeRef, PortRef, mad::decode};
use rdmux_fabric::{Config, FabricError, FabricName};
use rdmux_host::client::Hold;
use rdmux_host::{DeviceRow, HostName};
use rdmux_subnet::umad::Registration;
use rdmux_verbs::port::Managed;

use super::buffer::HEADER;
use super::file::{MadFile, Received};
use crate::boundary::{Errno, Result};
use crate::verbs::devices::connect_options;

/// Opens the MAD file of a port.
///
/// # Errors
/// ENODEV for a port that has none, and without a service or a fabric; other errors of the connection.
pub(super) fn open(ca: &str, port: u8) -> Result<Box<dyn MadFile>> {
    let host = HostName::of_environment().map_err(|_| Errno::EINVAL)?;
    let (hold, devices) = connect_options()?.hold(&host)?;
    let managed = managed(&devices, ca, port).ok_or(Errno(libc::ENODEV))?;
    let file = connect(&ConnectOptions::of_environment(Config::default())?, managed)?;
    Ok(Box::new(FabricFile { file, _hold: Some(hold) }))
}

/// Returns the fabric's port behind a device's port.
fn managed<'d>(devices: &'d [DeviceRow], ca: &str, port: u8) -> Option<&'d Managed> {
    let device = devices.iter().find(|device| device.name == ca)?;
    device.ports.get(usize::from(port).checked_sub(1)?)?.managed.as_ref()
}

fn connect(options: &ConnectOptions, port: &Managed) -> Result<client::MadFile> {
    let fabric = FabricName::new(&port.fabric).map_err(|_| Errno(libc::ENODEV))?;
    let Ok(node) = port.node.parse::<NodeRef>();
    Ok(client::MadFile::open(options, &fabric, &PortRef { node, port: port.port })?)
}

/// A MAD file of a fabric.
#[derive(Debug)]
struct FabricFile {
    file: client::MadFile,
    /// Keeps the host's service running, and with it the adapter.
    _hold: Option<Hold>,
}

impl AsFd for FabricFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl MadFile for FabricFile {
    fn register(&self, registration: &Registration) -> Result<u32> {
        Ok(self.file.register(registration)?)
    }

    fn unregister(&self, agent: u32) -> Result<()> {
        Ok(self.file.unregister(agent)?)
    }

    fn check(&self, header: &[u8; HEADER], mad: &[u8]) -> Result<()> {
        let mut record = header.to_vec();
        record.extend_from_slice(mad);
        let length = u32::try_from(record.len()).map_err(|_| Errno::EINVAL)?;
        record[16..20].copy_from_slice(&length.to_le_bytes());
        Ok(self.file.check(&decode(&record).map_err(|_| Errno::EINVAL)?)?)
    }

    fn send(&self, header: &[u8; HEADER], mad: &[u8]) -> Result<()> {
        Ok(self.file.send(header, mad)?)
    }

    fn read(&self, buffer: &mut [u8]) -> Result<Received> {
        Ok(match self.file.read(buffer)? {
            client::Received::Whole(length) => Received::Whole(length),
            client::Received::TooLong(length) => Received::TooLong(length),
            client::Received::Nothing => Received::Nothing,
        })
    }
}

impl From<FabricError> for Errno {
    fn from(error: FabricError) -> Self {
        tracing::debug!(%error, "a call failed with an errno");
        Self(error.errno())
    }
}

#[cfg(test)]
mod tests {
    use super::super::agent::umad_register;
    use super::super::buffer::umad_set_addr;
    use super::super::open::OpenPort;
    use super::super::ports::{insert, umad_close_port};
    use super::super::transfer::{umad_poll, umad_recv, umad_send};
    use super::*;
    use rdmux_fabric::FabricDir;
    use rdmux_fabric::client::admin;
    use rdmux_fabric::server::{
        FIRST_GUID, ManagerSetup, Server, ServerHandle, ServerOptions, Setup,
    };
    use rdmux_runtime::UserDir;
    use rdmux_subnet::topology::Shape;
    use rdmux_testing::{TempDir, temp_dir};
    use rdmux_verbs::kind::{self, DeviceKind};
    use rdmux_verbs::port::Port;
    use rdmux_wire::Guid;
    use std::ffi::c_int;
    use std::ptr;

    /// Two adapters back to back, and an open port of the first.
    struct Fabric {
        server: ServerHandle,
        port: c_int,
        agent: c_int,
        _dir: TempDir,
    }

    fn up() -> Fabric {
        let dir = temp_dir();
        let user = UserDir::at(dir.path().join("r")).unwrap();
        let name = FabricName::default();
        let topology = "two".parse::<Shape>().unwrap().topology(FIRST_GUID);
        let folder = FabricDir::open(&user, &name).unwrap();
        let setup = Setup { manager: ManagerSetup::off(), ..Setup::default() };
        setup.keep(&folder, Some(&topology)).unwrap();
        let config = Config::default();
        let options = ConnectOptions { user: user.clone(), config, embedded: true, program: None };
        let server = Server::spawn(ServerOptions::new(name.clone(), user)).unwrap();
        let node = admin::show(&options, &name).unwrap().nodes[0].id.clone();
        let fabric = name.to_string();
        let managed = Managed { fabric, node, port: 1, counters: Vec::new() };
        let file = connect(&options, &managed).unwrap();
        let port = insert(OpenPort::new(Box::new(FabricFile { file, _hold: None })));
        // SAFETY: no mask.
        let agent = unsafe { umad_register(port, 0x81, 1, 0, ptr::null_mut()) };
        Fabric { server, port, agent, _dir: dir }
    }

    impl Fabric {
        /// Requests NodeInfo along a route of port numbers.
        fn ask(&self, route: &[u8], tid: u8, timeout_ms: c_int) -> (c_int, c_int) {
            let mut buffer = [0; HEADER + 256];
            let mad = &mut buffer[HEADER..];
            mad[..4].copy_from_slice(&[1, 0x81, 1, 1]);
            mad[7] = u8::try_from(route.len()).unwrap();
            (mad[15], mad[17]) = (tid, 0x11);
            // Without LID-routed parts.
            mad[32..36].fill(0xff);
            mad[129..129 + route.len()].copy_from_slice(route);
            let umad = buffer.as_mut_ptr().cast();
            Errno(0).set();
            // SAFETY: a buffer of this length.
            let sent = unsafe {
                umad_set_addr(umad, 0xffff, 0, 0, 0);
                umad_send(self.port, self.agent, umad, 256, timeout_ms, 0)
            };
            (sent, Errno::last().0)
        }

        /// Receives the next MAD: the result, the status in the header, the MAD.
        fn answer(&self) -> (c_int, u32, Vec<u8>) {
            let mut buffer = [0; HEADER + 256];
            let mut length = 256;
            let umad = buffer.as_mut_ptr().cast();
            // SAFETY: a buffer of this length.
            let received = unsafe { umad_recv(self.port, umad, &raw mut length, -1) };
            let status = u32::from_ne_bytes(buffer[4..8].try_into().unwrap());
            let length = usize::try_from(length).unwrap();
            (received, status, buffer[HEADER..HEADER + length].to_vec())
        }
    }

    #[test]
    fn nodes_answer_along_directed_routes() {
        let fabric = up();
        let guid = |route: &[u8], tid: u8| {
            assert_eq!(fabric.ask(route, tid, 60_000), (0, 0));
            let (agent, status, mad) = fabric.answer();
            assert_eq!((agent, status, mad.len()), (fabric.agent, 0, 256));
            // A response to this ID, without an error.
            assert_eq!((mad[3], mad[15], mad[4] & 0x7f, mad[5]), (0x81, tid, 0, 0));
            Guid(u64::from_be_bytes(mad[64 + 12..64 + 20].try_into().unwrap()))
        };
        assert_eq!(guid(&[], 1), FIRST_GUID);
        assert_ne!(guid(&[1], 2), FIRST_GUID);
        // The first request's answer was read.
        assert_eq!(guid(&[], 1), FIRST_GUID);
        assert_eq!(umad_close_port(fabric.port), 0);
        fabric.server.stop().unwrap();
    }

    #[test]
    fn unanswered_umad_request_is_returned_with_etimedout() {
        let fabric = up();
        // An adapter does not forward.
        let nowhere = [1, 1];
        assert_eq!(fabric.ask(&nowhere, 7, 60_000), (0, 0));
        assert_eq!(fabric.ask(&nowhere, 7, 60_000), (-libc::EIO, libc::EINVAL));
        assert_eq!(fabric.ask(&nowhere, 8, 1), (0, 0));
        let (agent, status, mad) = fabric.answer();
        assert_eq!((agent, status), (fabric.agent, libc::ETIMEDOUT.cast_unsigned()));
        assert_eq!((mad.len(), mad[3], mad[15]), (24, 1, 8));
        assert_eq!(umad_poll(fabric.port, 0), -libc::ETIMEDOUT);
        assert_eq!(umad_close_port(fabric.port), 0);
        fabric.server.stop().unwrap();
    }

    #[test]
    fn umad_port_of_a_stopped_fabric_is_eio() {
        let Fabric { server, port, agent, _dir } = up();
        server.stop().unwrap();
        assert_eq!(umad_poll(port, -1), 0);
        let mut buffer = [0_u8; HEADER + 256];
        let (umad, mut length) = (buffer.as_mut_ptr().cast(), 256);
        // SAFETY: a buffer of this length; no mask.
        unsafe {
            assert_eq!(umad_recv(port, umad, &raw mut length, -1), -libc::EIO);
            assert_eq!(umad_send(port, agent, umad, 256, 0, 0), -libc::EIO);
            assert_eq!(umad_register(port, 4, 1, 0, ptr::null_mut()), -libc::EPERM);
        }
        assert_eq!(umad_close_port(port), 0);
    }

    #[test]
    fn only_managed_ports_have_a_mad_file() {
        let kind = DeviceKind::default();
        let port = Port::over_ip(kind, Guid(1), Vec::new());
        let counters = Vec::new();
        let there = Managed { fabric: "default".into(), node: "a".into(), port: 1, counters };
        let ports = vec![port.clone(), Port { managed: Some(there.clone()), ..port }];
        let name = kind::rows()[0].device_name.to_owned();
        let devices =
            [DeviceRow { kind, name: name.clone(), node_guid: Guid(1), adapter: None, ports }];
        assert_eq!(managed(&devices, &name, 2), Some(&there));
        for (ca, port) in [(name.as_str(), 0), (&name, 1), (&name, 3), ("x", 2)] {
            assert_eq!(managed(&devices, ca, port), None, "{ca} {port}");
        }
    }
}
