//! Fabrics, to which the managed ports belong.

use std::fmt;
use std::sync::Arc;

use rdmux_fabric::client::{self, ConnectOptions, MadFile, admin};
use rdmux_fabric::proto::{NodeRef, NodeView, PortRef};
use rdmux_fabric::server::{FIRST_GUID, ManagerSetup, Server, ServerHandle, ServerOptions, Setup};
use rdmux_fabric::{Config, FabricDir, FabricError, FabricName};
use rdmux_runtime::UserDir;
use rdmux_subnet::topology::Shape;
use rdmux_wire::Guid;
use tempfile::TempDir;

use super::Port;
use crate::error::{Attempt, Cause, Result};

/// An InfiniBand fabric: switches, adapters, cables. Clones are the same fabric.
#[derive(Clone)]
pub struct Fabric(Arc<Inner>);

struct Inner {
    options: ConnectOptions,
    name: FabricName,
    embedded: Option<Embedded>,
}

/// A fabric in a thread, and the directory of its socket, which it may share. Both end when it is dropped.
struct Embedded {
    // Dropped before the directory.
    _server: ServerHandle,
    dir: Arc<TempDir>,
}

/// A node of a fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The node's name in the topology.
    pub name: String,
    /// The node's description.
    pub description: String,
    /// The node's GUID.
    pub guid: Guid,
    /// Whether the node is a switch; otherwise it is an adapter.
    pub is_switch: bool,
    /// The numbers of the node's ports; those of a switch begin with 0.
    pub ports: Vec<u8>,
}

/// A port's IsSM bit, which shows other nodes that a subnet manager runs there. It stays set as long as this value
/// lives, and not longer than the process.
#[derive(Debug)]
pub struct IsSm(#[expect(dead_code, reason = "dropping it clears the bit")] client::IsSm);

impl Fabric {
    /// Returns a fabric that other processes use, too, brought up by `rdmux fabric up --fabric NAME`. Does not connect
    /// to it yet.
    ///
    /// # Errors
    /// [`Cause::Invalid`] for an invalid name, [`Cause::Fabric`] when there is no runtime directory.
    pub fn open(name: &str) -> Result<Self> {
        let name = FabricName::new(name).map_err(|e| Cause::Invalid(e.to_string()));
        Self::at(name.on("a fabric", "be named")?)
    }

    /// Returns the fabric of `$RDMUX_FABRIC`, or the one named `default`.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn of_environment() -> Result<Self> {
        let name = std::env::var(FabricName::VARIABLE).ok().filter(|name| !name.is_empty());
        Self::open(name.as_deref().unwrap_or(FabricName::DEFAULT))
    }

    fn at(name: FabricName) -> Result<Self> {
        let options = ConnectOptions::of_environment(Config::default());
        let options = options.on(format_args!("fabric {name}"), "find its directory")?;
        Ok(Self(Arc::new(Inner { options, name, embedded: None })))
    }

    /// Returns the fabric of this name in a user's directory.
    pub(super) fn of_user(user: UserDir, name: FabricName) -> Self {
        let options =
            ConnectOptions { user, config: Config::default(), embedded: false, program: None };
        Self(Arc::new(Inner { options, name, embedded: None }))
    }

    /// Returns the fabric's directory and name.
    pub(crate) fn place(&self) -> (&UserDir, &FabricName) {
        (&self.0.options.user, &self.0.name)
    }

    /// Starts a fabric private to this process, isolated from all others, which ends with the returned value. `shape` is
    /// as in `rdmux fabric up --shape`: `two`, `switch:8`, `fattree:40`, `torus:3x3x3` and others. Links are up, but no
    /// subnet manager has assigned LIDs.
    ///
    /// # Errors
    /// [`Cause::Invalid`] for an invalid shape, [`Cause::Fabric`] and [`Cause::Os`] when it cannot be started.
    pub fn embedded(shape: &str) -> Result<Self> {
        Self::made(shape, ManagerSetup::off())
    }

    /// Starts a private fabric as [`embedded`](Self::embedded) does, with a subnet manager and subnet administration, which
    /// bring its ports up. Queue pairs exchange messages once [`Context::query_port`](crate::Context::query_port) reports their
    /// ports as active.
    ///
    /// # Errors
    /// As there.
    pub fn managed(shape: &str) -> Result<Self> {
        Self::made(shape, ManagerSetup::default())
    }

    fn made(shape: &str, manager: ManagerSetup) -> Result<Self> {
        let name = FabricName::default();
        let object = format!("fabric of shape {shape:?}");
        let shape: Result<Shape, _> = shape.parse();
        let shape = shape.map_err(|e| Cause::Invalid(e.to_string())).on(&object, "be made")?;
        Self::start(name, &shape, manager, None).on(&object, "be started")
    }

    /// Starts another private fabric of this name and shape, with a subnet manager, so that a host can have a port on each
    /// ([`ContextBuilder::fabric`](crate::ContextBuilder::fabric)).
    ///
    /// # Errors
    /// [`Cause::Invalid`] for an invalid name or shape, or if `self` is not a private fabric; otherwise as for
    /// [`embedded`](Self::embedded).
    pub fn beside(&self, name: &str, shape: &str) -> Result<Self> {
        let object = format!("fabric {name} of shape {shape:?}");
        let parsed = || -> Result<_, Cause> {
            let invalid = |e: &dyn fmt::Display| Cause::Invalid(e.to_string());
            let name = FabricName::new(name).map_err(|e| invalid(&e))?;
            let shape: Shape = shape.parse().map_err(|e| invalid(&e))?;
            let own = self.0.embedded.as_ref();
            let own = own
                .ok_or_else(|| invalid(&"the other fabric is not a private one of this process"))?;
            Ok((name, shape, own.dir.clone()))
        };
        let (name, shape, dir) = parsed().on(&object, "be made")?;
        Self::start(name, &shape, ManagerSetup::default(), Some(dir)).on(&object, "be started")
    }

    fn start(
        name: FabricName,
        shape: &Shape,
        manager: ManagerSetup,
        dir: Option<Arc<TempDir>>,
    ) -> Result<Self, Cause> {
        let new = || tempfile::Builder::new().prefix("rdmux-own-").tempdir().map(Arc::new);
        let dir = dir.map_or_else(new, Ok).map_err(Cause::Os)?;
        let user = UserDir::at(dir.path().join("r")).map_err(|e| Cause::Fabric(e.into()))?;
        let folder = FabricDir::open(&user, &name).map_err(|e| Cause::Fabric(e.into()))?;
        let setup = Setup { manager, ..Setup::default() };
        setup.keep(&folder, Some(&shape.topology(FIRST_GUID)))?;
        let server = Server::spawn(ServerOptions::new(name.clone(), user.clone()))?;
        let config = Config::default();
        let options = ConnectOptions { user, config, embedded: true, program: None };
        let embedded = Some(Embedded { _server: server, dir });
        Ok(Self(Arc::new(Inner { options, name, embedded })))
    }

    /// Returns the fabric's name.
    pub fn name(&self) -> &str {
        self.0.name.as_str()
    }

    /// Returns all nodes, in the order of the topology.
    ///
    /// # Errors
    /// [`Cause::Fabric`] when the fabric is not up, or belongs to another user.
    pub fn nodes(&self) -> Result<Vec<Node>> {
        let shown = admin::show(&self.0.options, &self.0.name).on(self, "show its nodes")?;
        Ok(shown.nodes.into_iter().map(Node::new).collect())
    }

    /// Opens the management interface of a port: of an adapter, or port 0 of a switch. `node` is the node's name, the name of
    /// its host, or a GUID as `0x` and hexadecimal digits. A port may be open any number of times.
    ///
    /// # Errors
    /// [`Cause::Fabric`] when the fabric is not up, there is no such port, or this user has no permission.
    pub fn port(&self, node: &str, port: u8) -> Result<Port> {
        let at = port_ref(node, port);
        let object = format!("port {port} of {}", at.node);
        let file = self.open_file(&at).on(&object, OPEN)?;
        Ok(Port::new(file, self.clone(), None, object))
    }

    pub(super) fn open_file(&self, at: &PortRef) -> Result<MadFile, FabricError> {
        MadFile::open(&self.0.options, &self.0.name, at)
    }

    /// Sets a port's IsSM bit. If another process has set it, waits until that process clears it, or fails with
    /// [`std::io::ErrorKind::WouldBlock`].
    ///
    /// # Errors
    /// [`Cause::Fabric`].
    pub fn hold_is_sm(&self, node: &str, port: u8, wait: bool) -> Result<IsSm> {
        let at = port_ref(node, port);
        let held = client::IsSm::set(&self.0.options, &self.0.name, &at, wait);
        held.on(format_args!("port {port} of {}", at.node), "set the IsSM bit").map(IsSm)
    }
}

/// The operation that errors name when a port cannot be opened.
pub(super) const OPEN: &str = "open its management interface";

/// Returns the reference of a node's port, by the node's name or GUID.
pub(super) fn port_ref(node: &str, port: u8) -> PortRef {
    let Ok(node) = node.parse::<NodeRef>();
    PortRef { node, port }
}

impl Node {
    fn new(view: NodeView) -> Self {
        let NodeView { is_switch, id, description, guid, ports, .. } = view;
        let ports = ports.iter().map(|port| port.number).collect();
        Self { name: id, description, guid, is_switch, ports }
    }
}

impl fmt::Display for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fabric {}", self.0.name)
    }
}

impl fmt::Debug for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fabric({})", self.0.name)
    }
}
