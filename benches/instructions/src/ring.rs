//! Two queue pairs of one device that communicate through shared memory, like processes of one host.

use std::hint::black_box;

use anyhow::{Result, bail, ensure};
use rdmux::umad::Fabric;
use rdmux::{Access, Context, Cq, DeviceKind, EMPTY, Mr, PortState, Qp, QpType, SendWr, ok};

/// Opens a device of a kind, with its port up.
fn device(kind: DeviceKind) -> Result<Context> {
    let builder = Context::builder().embedded().device(kind);
    if !kind.is_on_fabric() {
        return Ok(builder.open()?);
    }
    let context = builder.fabric(&Fabric::managed("two")?).open()?;
    while context.query_port()?.state != PortState::Active {
        context.next_event(None)?;
    }
    Ok(context)
}

/// The objects of a connection.
struct Pair {
    a: Qp,
    b: Qp,
    cq: Cq,
    memory: Mr,
    context: Context,
}

impl Pair {
    fn new(kind: DeviceKind) -> Result<Self> {
        let context = device(kind)?;
        let (pd, cq) = (context.pd(), context.cq(256)?);
        let qp = || pd.qp(QpType::Rc).cq(&cq).max_inline(64).build();
        let (a, b) = (qp()?, qp()?);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        a.connect(b.endpoint(0)?, 0, access)?;
        b.connect(a.endpoint(0)?, 0, access)?;
        ensure!(a.is_same_host(), "the queue pairs do not talk through shared memory");
        let memory = pd.alloc(4096, access)?;
        Ok(Self { a, b, cq, memory, context })
    }

    /// Polls until this many completions have arrived.
    fn complete(&self, mut count: usize) -> Result<()> {
        let mut batch = [EMPTY; 4];
        for _ in 0..1 << 20 {
            let n = self.cq.poll(&mut batch);
            for done in &batch[..n] {
                ok(*done)?;
            }
            count = count.saturating_sub(n);
            if count == 0 {
                return Ok(());
            }
        }
        bail!("{count} completions do not come")
    }
}

pub(crate) fn send(kind: DeviceKind, count: u32) -> Result<()> {
    let pair = Pair::new(kind)?;
    let (piece, data) = ([pair.memory.slice(..64)], [7; 8]);
    for _ in 0..count {
        pair.b.post_recv(0, &piece)?;
        pair.a.post_send(&SendWr::send(1).inline(&[&data]).signaled())?;
        pair.complete(2)?;
    }
    Ok(())
}

/// Sends messages in alternating directions, so that each piggybacks the ACK of the one before: the cost of one way.
pub(crate) fn answer(kind: DeviceKind, count: u32) -> Result<()> {
    let pair = Pair::new(kind)?;
    let (piece, data) = ([pair.memory.slice(..64)], [7; 8]);
    let mut both = [&pair.a, &pair.b];
    for i in 0..count {
        let [from, to] = both;
        to.post_recv(0, &piece)?;
        from.post_send(&SendWr::send(1).inline(&[&data]).signaled())?;
        // The received message, and the completion of the previous send.
        pair.complete(if i == 0 { 1 } else { 2 })?;
        both.reverse();
    }
    Ok(())
}

pub(crate) fn write(kind: DeviceKind, count: u32) -> Result<()> {
    let pair = Pair::new(kind)?;
    let to = pair.memory.remote();
    for _ in 0..count {
        pair.a.post_send(&SendWr::write(1, to).inline(&[&[7; 8]]).signaled())?;
        pair.complete(1)?;
    }
    Ok(())
}

pub(crate) fn poll(kind: DeviceKind, count: u32) -> Result<()> {
    let pair = Pair::new(kind)?;
    let cq = pair.context.cq(16)?;
    for _ in 0..count {
        black_box(cq.poll(&mut [EMPTY]));
    }
    Ok(())
}
