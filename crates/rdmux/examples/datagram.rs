//! Datagrams: one endpoint exchanges them with many peers and with groups.

mod common;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use rdmux::{Context, Options};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The group that the server joins.
const GROUP: IpAddr = IpAddr::V4(Ipv4Addr::new(239, 77, 0, 1));
/// The timeout of a receive, because a datagram may be lost.
const TIMEOUT: Duration = Duration::from_secs(5);

fn main() -> Result {
    common::play(7473, server, client)
}

fn server(context: Context, at: SocketAddr, ready: &dyn Fn(SocketAddr)) -> Result {
    // The endpoint can be resolved by this address, and receives the group's datagrams as well.
    let mut endpoint = Options::new().context(&context).datagram(at)?;
    endpoint.join(GROUP)?;
    ready(endpoint.local_addr());
    loop {
        // A datagram carries its sender, which is enough to answer it.
        let (message, from) = endpoint.recv_from()?;
        let text = String::from_utf8_lossy(&message).into_owned();
        println!("server: {text:?} from {} at {}", from.qpn, from.ah.ip());
        endpoint.send_to(&from, format!("you said {text:?}").as_bytes())?;
        if text == "bye" {
            return Ok(());
        }
    }
}

fn client(context: Context, server: SocketAddr) -> Result {
    let here = SocketAddr::new(context.address()?, 0);
    let mut endpoint = Options::new().context(&context).datagram(here)?;
    println!("client: at {}, up to {} bytes", endpoint.local_addr(), endpoint.max_len());

    // An address names a service; the peer's host returns its queue pair and Q_Key.
    let peer = endpoint.resolve(server)?;
    println!("client: {server} is queue pair {}", peer.qpn);
    endpoint.send_to(&peer, b"hello")?;
    println!("client: {}", text(&endpoint.recv_timeout(TIMEOUT)?.0));

    // A group has no queue pair of its own: every member receives its datagrams, the sender included.
    let everybody = endpoint.join(GROUP)?;
    endpoint.send_to(&everybody, b"hello, all")?;
    for _ in 0..2 {
        let (message, from) = endpoint.recv_timeout(TIMEOUT)?;
        println!("client: {} from {}", text(&message), from.ah.ip());
    }
    endpoint.leave(GROUP)?;

    endpoint.send_to(&peer, b"bye")?;
    println!("client: {}", text(&endpoint.recv_timeout(TIMEOUT)?.0));
    Ok(())
}

fn text(message: &[u8]) -> String {
    String::from_utf8_lossy(message).into_owned()
}
