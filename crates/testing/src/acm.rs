//! An ACM service with scripted replies.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::fs::symlink;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use rdmux_wire::acm::client::{Answer, Frame, MAX_LEN, Op, Paths, Reply, Request, Status};
use rdmux_wire::sa::PathRecord;

/// The reaction to a request.
#[derive(Clone, Debug)]
pub enum Step {
    /// Sends these bytes.
    Say(Vec<u8>),
    /// Sends these bytes and closes the connection.
    SayAndClose(Vec<u8>),
    /// Sends nothing until the client closes the connection.
    Hang,
}

/// A service at the socket of a directory, with a thread for each connection. Dropping it closes
/// all connections and removes the socket.
#[derive(Debug)]
pub struct AcmService {
    socket: PathBuf,
    shared: Arc<Shared>,
    listener: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    ends: AtomicBool,
    connections: Mutex<Vec<UnixStream>>,
    questions: AtomicUsize,
}

impl AcmService {
    /// Starts a service that follows the script in a directory, which is created.
    ///
    /// # Panics
    /// If the socket cannot be created.
    pub fn start(folder: &Path, script: impl Fn(&Request) -> Step + Send + Sync + 'static) -> Self {
        std::fs::create_dir_all(folder).expect("a folder");
        let socket = folder.join("ibacm-unix.sock");
        let link = folder.join("ibacm.sock");
        let listener = UnixListener::bind(&socket).expect("a socket");
        if !link.is_symlink() {
            symlink("ibacm-unix.sock", link).expect("a link");
        }
        let shared = Arc::new(Shared::default());
        let (of_thread, script) = (Arc::clone(&shared), Arc::new(script));
        let listener = thread::spawn(move || accept(&listener, &of_thread, &script));
        Self { socket, shared, listener: Some(listener) }
    }

    /// Returns the number of connections accepted.
    pub fn connections(&self) -> usize {
        self.shared.connections.lock().map_or(0, |connections| connections.len())
    }

    /// Returns the number of requests received.
    pub fn questions(&self) -> usize {
        self.shared.questions.load(Ordering::Acquire)
    }
}

impl Drop for AcmService {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Release);
        // Wakes the thread that waits for another connection.
        let last = UnixStream::connect(&self.socket);
        let _ = std::fs::remove_file(&self.socket);
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
        drop(last);
        if let Ok(connections) = self.shared.connections.lock() {
            for connection in connections.iter() {
                let _ = connection.shutdown(Shutdown::Both);
            }
        }
    }
}

fn accept<S>(listener: &UnixListener, shared: &Arc<Shared>, script: &Arc<S>)
where
    S: Fn(&Request) -> Step + Send + Sync + 'static,
{
    while let Ok((stream, _)) = listener.accept() {
        if shared.ends.load(Ordering::Acquire) {
            return;
        }
        let kept = stream.try_clone().expect("a descriptor");
        shared.connections.lock().expect("no thread has panicked").push(kept);
        let (shared, script) = (Arc::clone(shared), Arc::clone(script));
        thread::spawn(move || serve(stream, &shared, &*script));
    }
}

fn serve(mut stream: UnixStream, shared: &Shared, script: &impl Fn(&Request) -> Step) {
    while let Some(request) = receive(&mut stream) {
        shared.questions.fetch_add(1, Ordering::AcqRel);
        match script(&request) {
            Step::Say(bytes) => {
                let _ = stream.write_all(&bytes);
            }
            Step::SayAndClose(bytes) => {
                let _ = stream.write_all(&bytes);
                let _ = stream.shutdown(Shutdown::Both);
                return;
            }
            Step::Hang => {}
        }
    }
}

/// Returns the next request; none if the client has closed the connection, or has sent an invalid one.
fn receive(stream: &mut UnixStream) -> Option<Request> {
    let (mut bytes, mut len) = ([0; MAX_LEN], 0);
    loop {
        match Frame::of_request(&bytes[..len]).ok()? {
            Frame::Whole(whole) => return Request::parse(&bytes[..whole]).ok(),
            Frame::Needs(needs) => {
                stream.read_exact(&mut bytes[len..needs]).ok()?;
                len = needs;
            }
        }
    }
}

/// Returns a reply with a path.
pub fn path(request: &Request, path: PathRecord) -> Vec<u8> {
    bytes(&Reply { tid: request.tid, answer: Answer::Paths(Paths::one(path, None)) })
}

/// Returns a reply with a failure status.
pub fn failure(request: &Request, status: Status) -> Vec<u8> {
    bytes(&Reply { tid: request.tid, answer: Answer::Failed(Op::RESOLVE, status) })
}

/// Returns the bytes of a reply.
pub fn bytes(reply: &Reply<'_>) -> Vec<u8> {
    let mut bytes = vec![0; reply.wire_len()];
    reply.emit(&mut bytes);
    bytes
}
