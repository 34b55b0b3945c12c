//! Code that the examples share: which side to run, and on which host.

use std::net::{IpAddr, SocketAddr};
use std::thread;

use rdmux::Context;

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Runs the side that the command line names. If it names none, runs both sides, each on a private
/// host.
///
/// `server` binds its context's address and reports it through `ready`, and `client` connects to
/// it.
pub(crate) fn play(
    port: u16,
    server: impl FnOnce(Context, SocketAddr, &dyn Fn(SocketAddr)) -> Result + Send + 'static,
    client: impl FnOnce(Context, SocketAddr) -> Result,
) -> Result {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["--role", "server"] => {
            let context = Context::open()?;
            let at = SocketAddr::new(context.address()?, port);
            server(context, at, &|at| println!("server: at {at}"))
        }
        ["--role", "client", address] => {
            let address: IpAddr = address.parse()?;
            client(Context::open()?, SocketAddr::new(address, port))
        }
        [] => both(server, client),
        _ => Err("usage: [--role server | --role client ADDRESS]".into()),
    }
}

/// Runs both sides on two hosts within this process, with the network between them.
fn both(
    server: impl FnOnce(Context, SocketAddr, &dyn Fn(SocketAddr)) -> Result + Send + 'static,
    client: impl FnOnce(Context, SocketAddr) -> Result,
) -> Result {
    let (a, b) = (Context::builder().embedded().open()?, Context::builder().embedded().open()?);
    let at = SocketAddr::new(a.address()?, 0);
    let (ready, address) = std::sync::mpsc::channel();
    let thread = thread::spawn(move || {
        server(a, at, &move |at| {
            println!("server: at {at}");
            // The client waits for it unless it failed. Then the address is not needed.
            let _ = ready.send(at);
        })
    });
    let Ok(address) = address.recv() else {
        return thread.join().unwrap_or_else(|_| Err("the server panicked".into()));
    };
    client(b, address)?;
    thread.join().unwrap_or_else(|_| Err("the server panicked".into()))
}
