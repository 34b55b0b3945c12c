//! The connection by which the fabric reports changes of route tables. It ends with the fabric, so that the bridge detects this even if no
//! client uses it.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use super::client::Shared;
use super::pump;

/// Reads updates until it is dropped.
pub(super) struct Watch {
    tcp: TcpStream,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// Applies the updates of a connection, in a thread. The bridge ends when the connection does. Another thread reports the hosts' counts to
/// the fabric.
///
/// # Errors
/// When no thread or descriptor is left.
pub(super) fn start(shared: &Arc<Shared>, tcp: &TcpStream) -> io::Result<Watch> {
    tcp.set_read_timeout(None)?;
    let mut watch =
        Watch { tcp: tcp.try_clone()?, shared: Arc::clone(shared), threads: Vec::new() };
    let (ours, tcp) = (Arc::clone(shared), tcp.try_clone()?);
    let updates = thread::Builder::new().name("rdmux-watch".to_owned()).spawn(move || {
        let result = update(&tcp, &ours);
        if !ours.state.is_ending() {
            match result {
                Ok(()) => tracing::info!("the fabric ended; the bridge exits"),
                Err(error) => {
                    tracing::warn!(%error, "the connection to the fabric failed; the bridge exits")
                }
            }
        }
        ours.copies.end();
        ours.state.end();
    })?;
    watch.threads.push(updates);
    let ours = Arc::clone(shared);
    let rows = thread::Builder::new().name("rdmux-rows".to_owned());
    watch.threads.push(rows.spawn(move || ours.copies.report_until_end())?);
    Ok(watch)
}

/// Applies updates. TCP keep-alive detects that the fabric's machine is gone.
fn update(tcp: &TcpStream, shared: &Shared) -> io::Result<()> {
    let mut buf = pump::buffer();
    while let Some(frame) = pump::read_frame(&mut &*tcp, &mut buf)? {
        let (_, message) = pump::numbered(frame)?;
        shared.copies.update(message)?;
    }
    Ok(())
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.state.end();
        // It may have ended by itself.
        let _ = self.tcp.shutdown(Shutdown::Both);
        self.shared.copies.end();
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}
