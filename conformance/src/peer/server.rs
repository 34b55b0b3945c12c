//! The server, which executes the client's commands.

use std::net::{IpAddr, TcpListener};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rdmux::{
    Access, AsyncEvent, Context, Mr, QpEvent, QpType, RemoteMr, WcFlags, WcOpcode, WcStatus,
};

use super::{ALL_RIGHTS, Control, Peer, Transport, Wants, Words};
use crate::exchange::{GRH, LOCAL, REGION, fill};

/// Answers clients, one session after another, for ever.
///
/// # Errors
/// When the port is not available or the device cannot be opened.
pub fn serve(address: IpAddr, port: u16) -> Result<()> {
    let context = Context::open()?;
    let listener = TcpListener::bind((address, port)).context("listen")?;
    println!("serving");
    loop {
        let (stream, _) = listener.accept()?;
        if let Err(e) = session(&context, Control::new(stream)?) {
            eprintln!("verbs-peer: {e:#}");
        }
    }
}

fn session(context: &Context, mut control: Control) -> Result<()> {
    let mut open = None;
    while let Some(line) = control.get()? {
        let answer = match handle(context, &mut open, &control, &line) {
            Ok(answer) => format!("ok {answer}"),
            Err(e) => format!("err {e:#}"),
        };
        control.put(&answer)?;
        if let Some(ms) = line.strip_prefix("compute ") {
            compute(u32::from_str_radix(ms, 16)?);
        }
    }
    Ok(())
}

/// The open session, and the memory whose key may be invalidated.
struct Open {
    peer: Peer,
    window: Option<Mr>,
}

fn handle(
    context: &Context,
    open: &mut Option<Open>,
    control: &Control,
    line: &str,
) -> Result<String> {
    let mut words = Words::new(line);
    let what = words.word()?;
    if what == "open" {
        ensure!(open.is_none(), "the session is open already");
        let (peer, answer) = do_open(context, control, &mut words)?;
        *open = Some(Open { peer, window: None });
        return Ok(answer);
    }
    let Some(Open { peer, window }) = open else { bail!("the session is not open") };
    match what {
        "recv" => {
            let len = words.size()?;
            ensure!(len <= LOCAL, "the receive is longer than the local buffer");
            peer.post_recv(len)?;
            Ok(String::new())
        }
        "wait" => do_wait(peer, words.hex32()?),
        "bind" => {
            let mr = peer.pd.alloc(words.size()?.min(REGION), ALL_RIGHTS)?;
            let answer = format!("{:x} {:x}", mr.rkey().0, mr.addr());
            *window = Some(mr);
            Ok(answer)
        }
        "limit" => {
            peer.srq
                .as_ref()
                .context("the session has no shared receive queue")?
                .set_limit(words.hex32()?)?;
            Ok(String::new())
        }
        "event" => do_event(context),
        "drop" => {
            peer.mr = peer.pd.alloc(REGION + LOCAL, ALL_RIGHTS)?;
            Ok(String::new())
        }
        "state" => Ok(format!("{:x}", peer.qp.state() as u8)),
        "compute" => Ok(String::new()), // after the answer
        "peek" | "poke" | "fill" | "check" => do_region(peer, what, &mut words),
        _ => bail!("unknown"),
    }
}

fn do_open(context: &Context, control: &Control, words: &mut Words<'_>) -> Result<(Peer, String)> {
    let name = words.word()?;
    let Transport(qp_type) = name.parse()?;
    let rights = Access::from_bits_truncate(words.hex32()?) - Access::MW_BIND;
    let you = words.side()?;
    let wants = Wants { qp_type, rights, rnr_retry: 7, retry_cnt: 7, srq: name == "srq" };
    let peer = Peer::new(context, control.local()?, wants)?;
    peer.connect(&you)?;
    let RemoteMr { addr, rkey, .. } = peer.me.memory;
    let answer = format!("{} {addr:x} {:x}", peer.me.line(), rkey.0);
    Ok((peer, answer))
}

fn do_wait(peer: &Peer, seed: u32) -> Result<String> {
    let wc = peer.completion()?;
    let good = wc.status == WcStatus::Success;
    let len = if good { wc.byte_len as usize } else { 0 };
    let skip = if peer.wants.qp_type == QpType::Ud { GRH } else { 0 };
    let diff = if good && wc.opcode == WcOpcode::Recv && len >= skip {
        peer.difference(REGION + skip, len - skip, seed)
    } else {
        None
    };
    let extra = if wc.flags.contains(WcFlags::WITH_INV) {
        wc.invalidated.0
    } else {
        u32::from_be_bytes(wc.imm)
    };
    let diff = diff.map_or_else(|| "-".to_owned(), |at| format!("{at:x}"));
    let (status, opcode, flags) = (wc.status as u8, wc.opcode as u8, wc.flags.bits());
    Ok(format!("{status:x} {opcode:x} {len:x} {extra:x} {flags:x} {diff} {:x}", wc.src_qp.get()))
}

/// Waits for the next asynchronous event except "communication established".
fn do_event(context: &Context) -> Result<String> {
    loop {
        match context
            .next_event(Some(Duration::from_secs(10)))?
            .context("no event arrived in time")?
        {
            AsyncEvent::Qp { event: QpEvent::CommEst, .. } => {}
            AsyncEvent::SrqLimit => return Ok("f".into()), // as ibv_event_type has it
            other => bail!("unexpected event {other:?}"),
        }
    }
}

/// Uses no verb for so many milliseconds.
fn compute(ms: u32) {
    let until = Instant::now() + Duration::from_millis(ms.into());
    while Instant::now() < until {
        std::hint::spin_loop();
    }
}

fn do_region(peer: &Peer, what: &str, words: &mut Words<'_>) -> Result<String> {
    let off = words.size()?;
    ensure!(off <= REGION - 8, "outside the region");
    match what {
        "peek" => return Ok(format!("{:x}", peer.mr.load(off))),
        "poke" => {
            peer.mr.store(off, words.hex()?);
            return Ok(String::new());
        }
        _ => {}
    }
    let (len, seed) = (words.size()?, words.hex32()?);
    ensure!(len <= REGION - off, "outside the region");
    if what == "fill" {
        let mut data = vec![0; len];
        fill(&mut data, seed);
        peer.mr.write(off, &data);
    } else if let Some(at) = peer.difference(off, len, seed) {
        bail!("{at:x}");
    }
    Ok(String::new())
}
