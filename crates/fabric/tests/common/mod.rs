//! A fabric in a thread, and a program that manages its subnet.
#![allow(dead_code, reason = "each test uses some of it")]

pub(crate) mod asker;
pub(crate) mod counters;
pub(crate) mod traffic;

use std::path::Path;

use rdmux_fabric::client::{ConnectOptions, MadFile, admin};
use rdmux_fabric::proto::{ManagerStatus, NodeRef, PortRef, Snapshot};
use rdmux_fabric::server::{FIRST_GUID, ManagerSetup, Server, ServerHandle, ServerOptions, Setup};
use rdmux_fabric::{Config, FabricDir, FabricName};
use rdmux_runtime::UserDir;
use rdmux_subnet::topology::{Shape, Topology};
use rdmux_subnet::umad::{Registration, UserAddress, UserMad};
use rdmux_testing::{TempDir, temp_dir};
use rdmux_wire::mad::Method;
use rdmux_wire::smp::Smp;
use rdmux_wire::{Lid, Qpn};

/// A fabric in a thread.
pub(crate) struct Fabric {
    server: Option<ServerHandle>,
    pub(crate) options: ConnectOptions,
    pub(crate) name: FabricName,
    config: Config,
    _tmp: TempDir,
}

impl Fabric {
    /// Starts one of a shape, without a manager of its own.
    pub(crate) fn up(shape: &str) -> Self {
        Self::with(shape, unmanaged(), Config::default())
    }

    /// Starts one with this configuration.
    pub(crate) fn with(shape: &str, setup: Setup, config: Config) -> Self {
        Self::of(shape.parse::<Shape>().unwrap().topology(FIRST_GUID), setup, config)
    }

    /// Starts one with these nodes.
    pub(crate) fn of(topology: Topology, setup: Setup, config: Config) -> Self {
        let tmp = temp_dir();
        let user = UserDir::at(tmp.path().join("r")).unwrap();
        let name = FabricName::default();
        let dir = FabricDir::open(&user, &name).unwrap();
        setup.keep(&dir, Some(&topology)).unwrap();
        let options =
            ConnectOptions { user, config: config.clone(), embedded: true, program: None };
        let mut fabric = Self { server: None, options, name, config, _tmp: tmp };
        fabric.start();
        fabric
    }

    /// Starts it, or starts it again.
    pub(crate) fn start(&mut self) {
        let mut options = ServerOptions::new(self.name.clone(), self.options.user.clone());
        options.config = self.config.clone();
        self.server = Some(Server::spawn(options).unwrap());
    }

    /// Ends it.
    pub(crate) fn stop(&mut self) {
        self.server.take().unwrap().stop().unwrap();
    }

    /// Returns the folder of the test's files.
    pub(crate) fn tmp(&self) -> &Path {
        self._tmp.path()
    }

    /// Starts a program that manages the subnet from a port of a node.
    pub(crate) fn manager(&self, node: &str, port: u8) -> Manager {
        let port = PortRef { node: NodeRef::Name(node.to_owned()), port };
        Manager::open(&self.options, &self.name, &port)
    }
}

/// Returns a fabric with a manager, once it is up, and its nodes.
pub(crate) fn managed(shape: &str, setup: Setup) -> (Fabric, Snapshot) {
    let fabric = Fabric::with(shape, setup, Config::default());
    up(&fabric);
    let shown = admin::show(&fabric.options, &fabric.name).unwrap();
    (fabric, shown)
}

/// Returns the status of the fabric's manager, once it is master and has swept.
pub(crate) fn up(fabric: &Fabric) -> ManagerStatus {
    loop {
        let status = admin::status(&fabric.options, &fabric.name).unwrap().manager.unwrap();
        if status.state == "master" && status.sweeps > 0 && !status.sweeping {
            return status;
        }
        std::thread::yield_now();
    }
}

/// Returns the default setup, but without a manager in the fabric.
pub(crate) fn unmanaged() -> Setup {
    Setup { manager: ManagerSetup::off(), ..Setup::default() }
}

/// A program with an agent for directed-route SMPs.
pub(crate) struct Manager {
    pub(crate) file: MadFile,
    pub(crate) agent: u32,
    tid: u64,
}

/// The registration for directed-route SMPs.
pub(crate) const DIRECTED: Registration = Registration {
    qpn: 0,
    class: 0x81,
    class_version: 1,
    oui: [0; 3],
    methods: 0,
    rmpp_version: 0,
    flags: 0,
};

impl Manager {
    /// Opens a port.
    pub(crate) fn open(options: &ConnectOptions, fabric: &FabricName, port: &PortRef) -> Self {
        let file = MadFile::open(options, fabric, port).unwrap();
        let agent = file.register(&DIRECTED).unwrap();
        Self { file, agent, tid: 0 }
    }

    /// Makes a request along a route.
    pub(crate) fn request(&mut self, smp: &Smp) -> UserMad {
        self.tid += 1;
        let mut smp = *smp;
        smp.header.tid = self.tid;
        UserMad {
            agent: self.agent,
            status: 0,
            timeout_ms: 60_000,
            retries: 0,
            address: UserAddress { lid: Lid(0xffff), qpn: Qpn::QP0, ..UserAddress::default() },
            data: smp.to_bytes().to_vec(),
        }
    }

    /// Sends a request along a route, and waits for the response.
    pub(crate) fn ask(&mut self, smp: &Smp) -> Smp {
        let request = self.request(smp);
        self.file.send_mad(&request).unwrap();
        let answer = self.file.recv_mad().unwrap();
        assert_eq!((answer.agent, answer.status), (self.agent, 0));
        let answer = Smp::parse(&answer.data).unwrap();
        assert_eq!(answer.header.tid & 0xffff_ffff, self.tid);
        assert_eq!(answer.header.status & 0x7fff, 0, "{answer:?}");
        answer
    }

    /// Reads an attribute of the node at the end of a route.
    pub(crate) fn get(&mut self, route: &[u8], attr_id: u16, attr_mod: u32) -> Smp {
        self.ask(&Smp::directed(Method::GET, attr_id, attr_mod, route))
    }
}
