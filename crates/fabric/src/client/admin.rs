//! Administration of fabrics: start, stop, show, change.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rdmux_runtime::file::replace;
use rdmux_runtime::{Lock, socket, wait_for_end};
use rdmux_subnet::{Fault, Topology};
use rdmux_wire::Guid;
use serde::de::DeserializeOwned;

use super::ConnectOptions;
use super::connect::{TIMEOUT, connect_socket};
use super::link::Link;
use crate::proto::{AdminRequest, End, NodeRef, Role, Snapshot, Status, Tables};
use crate::server::{PartitionsFile, Setup};
use crate::{FabricDir, FabricError, FabricName, bridge};

/// The largest answer that is accepted, in bytes.
const MAX_ANSWER: u64 = 256 << 20;

/// The configuration of a fabric to be brought up.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The setup with which the fabric is brought up.
    pub setup: Setup,
    /// The fabric's nodes and cables, if it starts without previous state: without LIDs.
    pub topology: Option<Topology>,
    /// The secret of the other machine's fabric, for a bridge.
    pub secret: Option<Vec<u8>>,
}

impl Plan {
    /// Stores the plan for a fabric that is not up.
    ///
    /// # Errors
    /// [`FabricError::AlreadyUp`], and those of writing.
    pub fn keep(&self, options: &ConnectOptions, fabric: &FabricName) -> Result<Kept, FabricError> {
        let dir = options.dir(fabric)?;
        let lock = dir.lock_start()?;
        if connect_socket(&dir, TIMEOUT)?.is_some() {
            return Err(FabricError::AlreadyUp { fabric: fabric.clone() });
        }
        let kept = Kept::new(&dir, lock);
        let secret = self.secret.as_ref().map_or(Ok(()), |it| bridge::keep_secret(&dir, it));
        match secret.and_then(|()| self.setup.keep(&dir, self.topology.as_ref())) {
            Ok(()) => Ok(kept),
            Err(e) => {
                kept.undo();
                Err(e)
            }
        }
    }
}

/// A plan that was stored, and the earlier files. While this lives, no other process starts the fabric.
#[derive(Debug)]
pub struct Kept {
    /// The files and their texts; none if a file did not exist. Files that could not be read are missing.
    before: Vec<(PathBuf, Option<Vec<u8>>)>,
    _lock: Option<Lock>,
}

impl Kept {
    fn new(dir: &FabricDir, lock: Option<Lock>) -> Self {
        let read = |path: PathBuf| match std::fs::read(&path) {
            Ok(text) => Some((path, Some(text))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Some((path, None)),
            Err(_) => None,
        };
        let files = [dir.options(), dir.topology(), dir.hosts(), dir.secret()];
        Self { before: files.into_iter().filter_map(read).collect(), _lock: lock }
    }

    /// Restores the earlier files, for a fabric that did not start.
    pub fn undo(self) {
        for (path, before) in self.before {
            let undone = match before {
                Some(text) => replace(&path, &text),
                None => match std::fs::remove_file(&path) {
                    Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
                    removed => removed,
                },
            };
            if let Err(e) = undone {
                tracing::warn!("cannot restore {}: {e}", path.display());
            }
        }
    }
}

/// Brings a fabric up, by the plan or else as it was the last time, and makes it stay. Returns its status.
///
/// # Errors
/// [`FabricError::AlreadyUp`] when it is up and there is a plan; [`FabricError::Start`] and others. A plan with which it
/// did not start is discarded.
pub fn up(
    options: &ConnectOptions,
    fabric: &FabricName,
    plan: Option<&Plan>,
) -> Result<Status, FabricError> {
    if let Some(plan) = plan {
        let kept = plan.keep(options, fabric)?;
        if let Err(e) = options.start_locked(&options.dir(fabric)?) {
            kept.undo();
            return Err(e);
        }
    }
    options
        .greet(fabric, |socket| ask_at(fabric, socket, &AdminRequest::Stay, "keep the fabric up"))
}

/// Ends a fabric, or the bridge to one, and waits until it no longer listens: then it can be brought up again.
///
/// # Errors
/// [`FabricError::NotUp`] and those of the connection; [`FabricError::Unresponsive`] if it does not end.
pub fn down(options: &ConnectOptions, fabric: &FabricName) -> Result<(), FabricError> {
    let what = || format!("end fabric \"{fabric}\"");
    let (dir, socket) = (options.dir(fabric)?, options.connect(fabric)?);
    let pid = rdmux_link::peer_credentials(&socket).ok().and_then(|peer| peer.pid);
    let connection = socket.try_clone().map_err(|e| FabricError::io("duplicate a socket", e))?;
    match Link::open::<()>(fabric, socket, Role::Shutdown, what) {
        Ok(_) | Err(FabricError::Gone { .. }) => {}
        Err(e) => return Err(e),
    }
    match wait_for_end(&dir, &connection, pid, TIMEOUT) {
        Ok(true) => Ok(()),
        Ok(false) => Err(FabricError::Unresponsive {
            fabric: fabric.clone(),
            pid: dir.service_lock_holder(),
            why: "it confirmed the request to end, but still runs".to_owned(),
        }),
        Err(e) => Err(FabricError::io(format!("connect to {}", dir.socket().display()), e)),
    }
}

/// Returns the status of a fabric.
///
/// # Errors
/// [`FabricError::NotUp`] and those of the connection.
pub fn status(options: &ConnectOptions, fabric: &FabricName) -> Result<Status, FabricError> {
    ask(options, fabric, &AdminRequest::Status, "get the fabric's status")
}

/// Lists the fabrics of this user that are up.
///
/// # Errors
/// [`FabricError::Directory`].
pub fn running(options: &ConnectOptions) -> Result<Vec<FabricName>, FabricError> {
    let mut up = FabricDir::names(&options.user)?;
    up.retain(|fabric| match options.dir(fabric).map(|dir| connect_socket(&dir, TIMEOUT)) {
        Ok(Ok(socket)) => socket.is_some(),
        Ok(Err(_)) => true,
        Err(_) => false,
    });
    Ok(up)
}

/// Returns all nodes and cables.
///
/// # Errors
/// [`FabricError::NotUp`] and those of the connection.
pub fn show(options: &ConnectOptions, fabric: &FabricName) -> Result<Snapshot, FabricError> {
    ask(options, fabric, &AdminRequest::Show, "list the fabric's nodes")
}

/// Returns the topology in the format of `ibnetdiscover(8)`.
///
/// # Errors
/// [`FabricError::NotUp`] and those of the connection.
pub fn topology(options: &ConnectOptions, fabric: &FabricName) -> Result<String, FabricError> {
    ask(options, fabric, &AdminRequest::Topology, "get the fabric's topology")
}

/// Returns the forwarding tables of all switches.
///
/// # Errors
/// [`FabricError::NotUp`] and those of the connection.
pub fn tables(options: &ConnectOptions, fabric: &FabricName) -> Result<Tables, FabricError> {
    ask(options, fabric, &AdminRequest::Tables, "get the fabric's forwarding tables")
}

/// Connects two free ports with a cable. Returns a message that names them.
///
/// # Errors
/// [`FabricError::Refused`], [`FabricError::NotUp`] and those of the connection.
pub fn plug(
    options: &ConnectOptions,
    fabric: &FabricName,
    a: &End,
    b: &End,
) -> Result<String, FabricError> {
    let request = AdminRequest::Plug { a: a.clone(), b: b.clone() };
    ask(options, fabric, &request, &format!("plug {a} to {b}"))
}

/// Removes a cable. Returns a message that names it.
///
/// # Errors
/// As [`plug`].
pub fn unplug(
    options: &ConnectOptions,
    fabric: &FabricName,
    end: &End,
) -> Result<String, FabricError> {
    ask(options, fabric, &AdminRequest::Unplug(end.clone()), &format!("unplug {end}"))
}

/// Takes the links between two nodes down, or up again. Returns a message that names them.
///
/// # Errors
/// As [`plug`].
pub fn link(
    options: &ConnectOptions,
    fabric: &FabricName,
    up: bool,
    a: &End,
    b: &End,
) -> Result<String, FabricError> {
    let request = AdminRequest::Link { up, a: a.clone(), b: b.clone() };
    let way = if up { "up" } else { "down" };
    ask(options, fabric, &request, &format!("take the link of {a} and {b} {way}"))
}

/// Resets a switch. Returns a message that names it.
///
/// # Errors
/// As [`plug`].
pub fn reset(
    options: &ConnectOptions,
    fabric: &FabricName,
    switch: &NodeRef,
) -> Result<String, FabricError> {
    ask(options, fabric, &AdminRequest::Reset(switch.clone()), &format!("reset {switch}"))
}

/// Makes a port see this many link faults in a row. Returns a message about the result.
///
/// # Errors
/// As [`plug`].
pub fn fault(
    options: &ConnectOptions,
    fabric: &FabricName,
    at: &End,
    fault: Fault,
    times: u32,
) -> Result<String, FabricError> {
    let request = AdminRequest::Fault { at: at.clone(), fault, times };
    ask(options, fabric, &request, &format!("inject a fault at {at}"))
}

/// Changes the GUID of a node's system. Returns a message that names the node.
///
/// # Errors
/// As [`plug`].
pub fn set_system_guid(
    options: &ConnectOptions,
    fabric: &FabricName,
    node: &NodeRef,
    guid: Guid,
) -> Result<String, FabricError> {
    let request = AdminRequest::SystemGuid { node: node.clone(), guid };
    ask(options, fabric, &request, &format!("change the system GUID of {node}"))
}

/// Replaces the partitions of a running fabric, and stores them with its options. Returns a message with their number.
///
/// # Errors
/// As [`plug`]; [`FabricError::File`] when the file of options cannot be read, [`FabricError::Io`] when it cannot be written. The earlier
/// partitions then stay in force.
pub fn set_partitions(
    options: &ConnectOptions,
    fabric: &FabricName,
    file: PartitionsFile,
) -> Result<String, FabricError> {
    const WHAT: &str = "change the fabric's partitions";
    let dir = FabricDir::open(&options.user, fabric)?;
    let old = Setup::load(&dir)?;
    let why = match (status(options, fabric)?.manager, old.join) {
        (_, Some(_)) => "the fabric runs on another machine: change them there",
        (None, None) => "the fabric has no subnet manager of its own",
        (Some(_), None) => "",
    };
    if !why.is_empty() {
        let (what, why) = (WHAT.to_owned(), why.to_owned());
        return Err(FabricError::Refused { what, why, errno: libc::ENODEV });
    }
    let mut new = old.clone();
    new.manager.partitions = Some(file);
    new.keep(&dir, None)?;
    let said = ask(options, fabric, &AdminRequest::Partitions, WHAT);
    if said.is_err() {
        old.keep(&dir, None)?;
    }
    said
}

fn ask<T: DeserializeOwned>(
    options: &ConnectOptions,
    fabric: &FabricName,
    request: &AdminRequest,
    what: &str,
) -> Result<T, FabricError> {
    ask_at(fabric, options.connect(fabric)?, request, what)
}

/// Sends a request on a socket: the answer is a length, and then messages of that many bytes in all.
fn ask_at<T: DeserializeOwned>(
    fabric: &FabricName,
    socket: OwnedFd,
    request: &AdminRequest,
    what: &str,
) -> Result<T, FabricError> {
    let (mut link, ()) = Link::open(fabric, socket, Role::Admin, || what.to_owned())?;
    let length: u64 = link.call(request, || what.to_owned())?;
    let protocol =
        |why: &str| FabricError::Protocol { fabric: fabric.clone(), why: why.to_owned() };
    if length > MAX_ANSWER {
        return Err(protocol("a reply that is too long"));
    }
    let mut answer = Vec::new();
    while (answer.len() as u64) < length {
        answer.extend_from_slice(link.receive_bytes()?);
    }
    socket::decode(&answer).map_err(|e| link.broken(&e))
}
