//! The agents of administration and of programs.

use rdmux_subnet::administration::Config;
use rdmux_subnet::partitions::Partitions;
use rdmux_subnet::service::Service;
use rdmux_subnet::umad::{FileId, Registration, Umad, UmadSink, UserMad};
use rdmux_subnet::{MadPacket, PortId};
use rdmux_wire::mad::{Method, MgmtClass};

/// The output of the device in one call.
#[derive(Default)]
pub(super) struct Agents {
    pub(super) sent: Vec<(PortId, MadPacket)>,
    pub(super) read: Vec<(FileId, UserMad)>,
}

impl UmadSink for Agents {
    fn transmit(&mut self, port: PortId, packet: MadPacket) {
        self.sent.push((port, packet));
    }
    fn readable(&mut self, file: FileId, record: UserMad) {
        self.read.push((file, record));
    }
    fn set_is_sm(&mut self, _: PortId, _: bool) {}
}

/// Opens administration and its file on a port.
pub(super) fn open_service(umad: &mut Umad, port: PortId) -> (Service, FileId) {
    let file = umad.open(port);
    let sends_only = Registration {
        class: MgmtClass::SUBN_DIRECTED.0,
        class_version: 1,
        ..Registration::default()
    };
    umad.register(file, &Service::REGISTRATION).expect("nobody else has these methods");
    let directed = umad.register(file, &sends_only).expect("it has no methods");
    (Service::new(Config::default(), Partitions::default(), directed), file)
}

/// Opens the file of a program that queries administration and gets Reports.
pub(super) fn open_program(umad: &mut Umad, port: PortId) -> FileId {
    let file = umad.open(port);
    let what = Registration { methods: 1 << Method::REPORT.0, ..Service::REGISTRATION };
    umad.register(file, &what).expect("nobody else has this method");
    file
}
