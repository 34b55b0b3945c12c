//! An echo server and its client.
//!
//! The server uses the high-level API: a listener, a connection, messages. The client does the same by hand with the
//! connection manager and verbs: address, route, queue pair, buffers, work requests, completions. Each side could be
//! written either way.

mod common;

use std::net::SocketAddr;
use std::time::Duration;

use rdmux::cm::{ConnParam, EventChannel, EventKind, Id, PortSpace};
use rdmux::{Access, Context, Options, QpType, SendWr};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> Result {
    common::play(7471, server, client)
}

/// Echoes every message until the client disconnects.
fn server(context: Context, at: SocketAddr, ready: &dyn Fn(SocketAddr)) -> Result {
    let mut listener = Options::new().context(&context).bind(at)?;
    ready(listener.local_addr());
    let mut client = listener.accept()?;
    while let Some(message) = client.recv()? {
        println!("server: {:?}", String::from_utf8_lossy(&message));
        client.send(&message)?;
    }
    println!("server: the client is gone");
    Ok(())
}

/// The client's timeout for each operation.
const TIMEOUT: Duration = Duration::from_secs(10);

fn client(context: Context, server: SocketAddr) -> Result {
    // An id is one side of a connection. Its events are raised on its event channel.
    let channel = EventChannel::new(&context)?;
    let id = Id::new(&channel, PortSpace::Tcp)?;

    // First resolve the local address and the route.
    id.resolve_addr(None, server, TIMEOUT)?;
    wait_for(&channel, EventKind::AddrResolved)?;
    id.resolve_route(TIMEOUT)?;
    wait_for(&channel, EventKind::RouteResolved)?;

    // Work requests are posted to a queue pair and complete in a completion queue. Both the memory and the queue pair
    // belong to one protection domain.
    let pd = context.pd();
    let cq = context.cq(16)?;
    let qp = pd.qp(QpType::Rc).cq(&cq).build()?;
    let buffer = pd.alloc(64, Access::LOCAL_WRITE)?;

    // The id moves the queue pair through its states from here on. The receive is posted before the connection is up:
    // a message that finds no receive would have to be retransmitted.
    id.attach_qp(&qp)?;
    const RECEIVE: u64 = 1;
    const SEND: u64 = 2;
    qp.post_recv(RECEIVE, &[buffer.slice(..)])?;
    id.connect(&ConnParam { retry_count: 7, rnr_retry_count: 7, ..ConnParam::default() })?;
    wait_for(&channel, EventKind::Established)?;
    println!("client: connected to {server}");

    for text in ["one", "two", "three"] {
        // Inline data are copied now; they need no registered memory.
        qp.post_send(&SendWr::send(SEND).inline(&[text.as_bytes()]).signaled())?;
        // Two work requests complete: the send when the server has the message, the receive when it answered.
        for _ in 0..2 {
            let done = cq.wait_one(Some(TIMEOUT))?;
            if done.wr_id == RECEIVE {
                let answer = buffer.to_vec(..done.byte_len as usize);
                println!("client: {:?} came back", String::from_utf8_lossy(&answer));
                qp.post_recv(RECEIVE, &[buffer.slice(..)])?;
            }
        }
    }

    id.disconnect()?;
    wait_for(&channel, EventKind::Disconnected)?;
    Ok(())
}

/// Waits for an event of this kind. An event of another kind is the error to report.
fn wait_for(channel: &EventChannel, kind: EventKind) -> Result {
    let event = channel.next(Some(TIMEOUT))?.ok_or("no answer")?;
    // Dropping an event acknowledges it.
    event.expect(kind, "connect")?;
    Ok(())
}
