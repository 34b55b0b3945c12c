//! Memory of another program: written, read and changed without that program's involvement.
//!
//! The server registers memory, sends its address to the client, and waits for a message. The client does the rest.

mod common;

use std::net::SocketAddr;

use rdmux::{Access, Context, Options, RemoteMr};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The server's memory: a counter, a lock, and text.
const COUNTER: usize = 0;
const LOCK: usize = 8;
const TEXT: usize = 16;
const SIZE: usize = 4096;

fn main() -> Result {
    common::play(7472, server, client)
}

fn server(context: Context, at: SocketAddr, ready: &dyn Fn(SocketAddr)) -> Result {
    let mut listener = Options::new().context(&context).bind(at)?;
    ready(listener.local_addr());
    let mut client = listener.accept()?;

    // The access rights of peers are set when memory is registered. Its bytes are accessed by copying only, because
    // from now on they may change at any moment.
    let access =
        Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let memory = client.pd().alloc(SIZE, access)?;
    memory.store(COUNTER, 40);
    memory.write(TEXT, b"the server wrote this");

    // Address, key and length: any peer that has these 20 bytes and a connection has the access allowed above.
    client.send(&memory.remote().to_bytes())?;

    // One-sided operations complete at the client only, so it sends a message when it is done. Everything that the
    // client did before it sent the message is in memory when the message arrives.
    let message = client.recv()?.ok_or("the client hung up")?;
    println!("server: the client says {:?}", String::from_utf8_lossy(&message));
    let text = memory.to_vec(TEXT..TEXT + 21);
    println!("server: the memory says {:?}", String::from_utf8_lossy(&text));
    println!("server: the counter is {}", memory.load(COUNTER));
    Ok(())
    // The memory is deregistered here. From now on its key is invalid for every process that still has it.
}

fn client(context: Context, server: SocketAddr) -> Result {
    let mut server = Options::new().context(&context).connect(server)?;
    let message = server.recv()?.ok_or("the server hung up")?;
    let remote = RemoteMr::from_bytes(&message).ok_or("that is no memory")?;
    println!("client: {} bytes of the server's memory, key {}", remote.len, remote.rkey);

    // The local side of a transfer is registered memory, too.
    let local = server.pd().alloc(64, Access::LOCAL_WRITE)?;

    // READ.
    server.read(local.slice(..21), remote.at(TEXT as u64))?;
    println!("client: read {:?}", String::from_utf8_lossy(&local.to_vec(..21)));

    // Atomics are for data that several clients share: here a lock, taken by the client that changes 0 into 1.
    while server.compare_and_swap(remote.at(LOCK as u64), 0, 1)? != 0 {}
    let before = server.fetch_add(remote.at(COUNTER as u64), 2)?;
    println!("client: the counter was {before}, now it is {}", before + 2);

    // WRITE.
    local.write(0, b"the client wrote this");
    server.write(local.slice(..21), remote.at(TEXT as u64))?;

    server.compare_and_swap(remote.at(LOCK as u64), 1, 0)?;
    server.send(b"done")?;
    server.close()?;
    Ok(())
}
