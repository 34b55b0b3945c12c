//! The fabric's side of bridges: hosts of other machines connect here.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rdmux_link::Doorbell;
use rdmux_runtime::socket;
use rustix::event::{PollFd, PollFlags, poll};

use super::machines::{Machines, Preface, Via};
use super::unproved::{Pending, Unproved};
use super::{handshake, pump, secret};
use crate::client::connect_socket;
use crate::proto::{Greeting, Role};
use crate::{FabricDir, FabricError};

/// Maximum number of connections from other machines that know the secret.
pub(super) const MAX_CONNECTIONS: usize = 1024;
/// The pause between warnings of the same cause.
const SELDOM: Duration = Duration::from_secs(60);
/// Time that the fabric may take to accept a connection at its Unix socket.
const ACCEPT: Duration = Duration::from_secs(10);

/// Listens for other machines, until it is dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: Doorbell,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens, with the secret in the fabric's directory, which is generated if there is none.
    ///
    /// # Errors
    /// [`FabricError::Io`] when it cannot listen at the address, [`FabricError::File`] for a bad secret.
    pub(crate) fn open(
        at: SocketAddr,
        dir: &FabricDir,
        machines: Machines,
    ) -> Result<Self, FabricError> {
        let secret: Arc<[u8]> = secret::read_or_draw(dir)?.into();
        let fail = |e: io::Error| FabricError::io(format!("listen at {at}"), e);
        let listener = TcpListener::bind(at).map_err(fail)?;
        listener.set_nonblocking(true).map_err(fail)?;
        let address = listener.local_addr().map_err(fail)?;
        let stop = Doorbell::new().map_err(fail)?;
        let (stopped, dir) = (stop.try_clone().map_err(fail)?, dir.clone());
        let thread = thread::Builder::new().name("rdmux-listen".to_owned());
        let thread = thread.spawn(move || listen(&listener, &stopped, &dir, &secret, &machines));
        Ok(Self { address, stop, thread: Some(thread.map_err(fail)?) })
    }

    /// Returns the address where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take()
            && self.stop.ring().is_ok()
        {
            drop(thread.join());
        }
    }
}

/// Accepts connections until the server ends. Each connection has its own threads, which end with the
/// fabric's sockets.
fn listen(
    listener: &TcpListener,
    stop: &Doorbell,
    dir: &FabricDir,
    secret: &Arc<[u8]>,
    machines: &Machines,
) {
    let (count, unproved) = (Arc::new(AtomicUsize::new(0)), Unproved::default());
    let mut warned = None;
    loop {
        let mut fds = [PollFd::new(listener, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        match poll(&mut fds, None) {
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => {
                return tracing::warn!(%error, "the listener failed; no more machines are accepted");
            }
            Ok(_) if !fds[1].revents().is_empty() => return,
            Ok(_) => {}
        }
        let (tcp, from) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(e) if e.kind() == ErrorKind::WouldBlock => continue,
            Err(error) => {
                tracing::debug!(%error, "cannot accept a machine");
                // Without descriptors the socket stays readable, so this would spin.
                thread::sleep(Duration::from_millis(50));
                continue;
            }
        };
        let (pending, replaced) = unproved.add(from.ip(), tcp);
        if replaced && warned.is_none_or(|since: Instant| since.elapsed() >= SELDOM) {
            warned = Some(Instant::now());
            tracing::warn!(
                "too many connections of other machines do not show the secret; the last is from {from}: check which \
                 machines can reach the port"
            );
        }
        let (dir, secret, machines) = (dir.clone(), Arc::clone(secret), machines.clone());
        let count = Arc::clone(&count);
        let served = thread::Builder::new().name("rdmux-bridge".to_owned()).spawn(move || {
            if let Err(error) = serve(pending, &count, &dir, &secret, &machines) {
                tracing::debug!(%error, "the connection of a machine failed");
            }
        });
        if let Err(error) = served {
            tracing::debug!(%error, "cannot start a thread for a machine");
        }
    }
}

fn serve(
    pending: Pending,
    count: &Arc<AtomicUsize>,
    dir: &FabricDir,
    secret: &[u8],
    machines: &Machines,
) -> io::Result<()> {
    let tcp = pending.tcp();
    tcp.set_nonblocking(false)?;
    pump::prepare(tcp)?;
    let mut timed = pump::Timed::new(tcp);
    handshake::accept(&mut timed, secret)?;
    let mut buf = [0; 64];
    let preface = pump::read_frame(&mut timed, &mut buf)?.unwrap_or_default();
    let preface: Preface = socket::decode(preface).map_err(io::Error::other)?;
    let mut buf = pump::buffer();
    let Some(greeting) = pump::read_frame(&mut timed, &mut buf)? else { return Ok(()) };
    let role = Greeting::decode(greeting).map(|greeting| greeting.role);
    let is_tables = matches!(role, Ok(Role::Tables));
    if is_tables {
        pump::detect_loss_in_flight(tcp)?;
    }
    let Some(tcp) = pending.proved() else { return Err(ErrorKind::ConnectionAborted.into()) };
    let Some(_place) = Place::take(count) else {
        tracing::warn!("a bridge is refused: there are {MAX_CONNECTIONS} connections already");
        return Ok(());
    };
    let (far, near) = (tcp.peer_addr()?.ip(), tcp.local_addr()?.ip());
    let machine = machines.of(preface.machine, far, near);
    let machine = machine.ok_or_else(|| io::Error::other("too many machines"))?;
    let tcp = Arc::new(tcp);
    if !machine.add(&tcp) {
        return Err(io::Error::other("its bridge has ended"));
    }
    let unix = connect_socket(dir, ACCEPT).map_err(io::Error::other)?;
    let unix = unix.ok_or_else(|| io::Error::other("the fabric has ended"))?;
    let via = Via::new(&machine, preface.connection).encode().map_err(io::Error::other)?;
    pump::hand_over(&unix, &via)?;
    pump::hand_over(&unix, greeting)?;
    drop(buf);
    let (its, mut frame) = (Arc::clone(&machine), Vec::new());
    let outward = move |tcp: &TcpStream, message: &[u8], _| {
        // Messages carry the number of the update that preceded them.
        pump::write_numbered(&mut &*tcp, machine.sequence(), message, &mut frame)
    };
    let result = pump::run(unix, tcp, outward, pump::hand_over);
    if is_tables {
        // This one is always read, so its end shows that the bridge has ended, or its machine has vanished. The others would notice that
        // much later, if data is in flight.
        its.end();
    }
    result
}

/// A claim to one of the allowed connections.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(count: &Arc<AtomicUsize>) -> Option<Self> {
        let place = Self(Arc::clone(count));
        (count.fetch_add(1, Ordering::Relaxed) < MAX_CONNECTIONS).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bridge_connections_are_limited_and_closed_ones_free_their_place() {
        let count = Arc::default();
        let mut all: Vec<_> = (0..MAX_CONNECTIONS).map_while(|_| Place::take(&count)).collect();
        assert_eq!(all.len(), MAX_CONNECTIONS);
        assert!(Place::take(&count).is_none() && Place::take(&count).is_none());
        all.pop();
        let again = Place::take(&count);
        assert!(again.is_some() && Place::take(&count).is_none());
    }
}
