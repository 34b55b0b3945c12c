//! The server: reads the client's memory, and writes the data back.

use std::thread;

use anyhow::{Result, bail};
use rdmux::cm::{EventChannel, EventKind, Id, PortSpace};
use rdmux::{Context, Mr, SendWr};

use super::PingArgs;
use super::endpoint::{Endpoint, Over};
use super::exchange::{self, MAX_SIZE};
use rdmux_command::cmutil;
use rdmux_command::say;

/// Serves one client, or one client after another.
pub(super) fn run(context: &Context, args: &PingArgs) -> Result<()> {
    let at = cmutil::local(args.addr.as_deref(), args.port)?;
    let channel = EventChannel::new(context)?;
    let listener = Id::new(&channel, PortSpace::Tcp)?;
    let at = listener.bind(at)?;
    listener.listen(3)?;
    if !args.quiet {
        say!("waiting for clients on {at}");
    }
    loop {
        let Some(mut event) = channel.next(None)? else { continue };
        let Some(id) = event.take_id().filter(|_| event.kind() == EventKind::ConnectRequest) else {
            continue;
        };
        drop(event);
        if !args.persistent {
            return serve(context, id, args);
        }
        let (context, args) = (context.clone(), args.clone());
        thread::Builder::new().name("ping-client".into()).spawn(move || {
            if let Err(error) = serve(&context, id, &args) {
                eprintln!("rdmux: a client failed: {error:#}");
            }
        })?;
    }
}

/// Serves one client until it disconnects.
fn serve(context: &Context, id: Id, args: &PingArgs) -> Result<()> {
    let channel = EventChannel::new(context)?;
    id.migrate(&channel)?;
    let peer = id.peer_addr().map_or_else(|| "a client".to_owned(), |a| a.to_string());
    let mut endpoint = Endpoint::new(&channel, id, args.timeout())?;
    endpoint.id.accept(&Endpoint::conn_param())?;
    cmutil::expect(&channel, EventKind::Established, "accept", args.timeout())?;
    if !args.quiet {
        say!("{peer} connected");
    }
    let buffer = endpoint.buffer(MAX_SIZE)?;
    let mut pings = 0;
    while let Ok(()) = ping(&mut endpoint, &buffer, args)? {
        pings += 1;
    }
    // The client has already disconnected: this only answers it.
    let _ = endpoint.id.disconnect();
    if !args.quiet {
        say!("{peer} disconnected after {pings} pings");
    }
    Ok(())
}

/// Serves one ping. The client may disconnect before it, but not within.
fn ping(
    endpoint: &mut Endpoint,
    buffer: &Mr,
    args: &PingArgs,
) -> Result<std::result::Result<(), Over>> {
    const WITHIN: &str = "the client disconnected in the middle of a ping";
    let source = match endpoint.hear()? {
        Ok(source) => source,
        Err(over) => return Ok(Err(over)),
    };
    let len = usize::try_from(source.len)?;
    if len > MAX_SIZE {
        bail!("the client offers {len} bytes; at most {MAX_SIZE} are allowed");
    }
    if endpoint.transfer(SendWr::read(1, source).sges(&[buffer.slice(..len)]))?.is_err() {
        bail!(WITHIN);
    }
    let data = buffer.to_vec(..len);
    let echo = exchange::echo_len(&data);
    if args.data {
        say!("ping data: {}", String::from_utf8_lossy(&data[..echo.saturating_sub(1)]));
    }
    endpoint.advertise(buffer.remote())?;

    let Ok(sink) = endpoint.hear()? else { bail!(WITHIN) };
    if sink.len < echo as u64 {
        bail!("the client's sink has only {} bytes for {echo} bytes of data", sink.len);
    }
    if endpoint.transfer(SendWr::write(2, sink).sges(&[buffer.slice(..echo)]))?.is_err() {
        bail!(WITHIN);
    }
    endpoint.advertise(buffer.remote())?;
    Ok(Ok(()))
}
