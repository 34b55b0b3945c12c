//! A receiver: a separate process, which serves requests.

use std::fs::File;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use rdmux::{Access, Context, Cq, Endpoint, Mr, Qpn, Srq, Xrcd, XrcdFlags};
use serde::{Deserialize, Serialize};

use super::MESSAGE;
use crate::demo::protocol::Data;
use crate::demo::side::{TIMEOUT, compare, pattern};
use rdmux_command::child;

/// The capacity of a receive queue.
pub(super) const DEPTH: u32 = 32;

/// A request to a receiver.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Ask {
    /// Open the domain of this file.
    Open(PathBuf),
    /// Create a shared receive queue; answered by its number.
    MakeQueue,
    /// Create a target for the sender with this endpoint; answered by its number.
    Alloc(Vec<u8>),
    /// Register for the target with this number.
    Register(u32),
    /// Unregister.
    Unregister(u32),
    /// Post this many receives.
    Post(u32),
    /// Wait for these messages, in this order, and compare them.
    Receive(Vec<Data>),
}

/// An answer of a receiver.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Answer {
    /// The request is done.
    Done,
    /// The number of the created object.
    Number(u32),
}

/// The objects of a receiver.
struct Receiver {
    context: Context,
    domain: Option<Xrcd>,
    queue: Option<Queue>,
}

/// A queue, with memory for as many messages as it holds receives.
struct Queue {
    srq: Srq,
    cq: Cq,
    memory: Mr,
    /// The place of the next receive.
    next: usize,
}

/// Serves requests until its input closes.
pub(in crate::demo) fn run(context: Context) -> Result<()> {
    let mut receiver = Receiver { context, domain: None, queue: None };
    child::serve(|ask, _| receiver.answer(ask))
}

impl Receiver {
    fn domain(&self) -> Result<&Xrcd> {
        self.domain.as_ref().context("no domain is open")
    }

    fn queue(&mut self) -> Result<&mut Queue> {
        self.queue.as_mut().context("the receiver has no shared receive queue yet")
    }

    fn answer(&mut self, ask: Ask) -> Result<Answer> {
        match ask {
            Ask::Open(path) => {
                let file = File::open(&path).with_context(|| path.display().to_string())?;
                let flags = XrcdFlags { create: true, exclusive: false };
                self.domain = Some(Xrcd::of_file(&self.context, &file, flags)?);
            }
            Ask::MakeQueue => {
                let queue = Queue::new(&self.context, self.domain()?)?;
                let number =
                    queue.srq.number().context("the shared receive queue has no number")?;
                self.queue = Some(queue);
                return Ok(Answer::Number(number));
            }
            Ask::Alloc(peer) => {
                let peer = Endpoint::from_bytes(&peer).context("the peer's endpoint is invalid")?;
                let target = self.domain()?.alloc(peer, 0, Access::empty())?;
                return Ok(Answer::Number(target.get()));
            }
            Ask::Register(target) => self.domain()?.register(Qpn::new(target))?,
            Ask::Unregister(target) => self.domain()?.unregister(Qpn::new(target))?,
            Ask::Post(count) => self.queue()?.post(count)?,
            Ask::Receive(all) => {
                all.into_iter().try_for_each(|data| self.queue()?.receive(data))?
            }
        }
        Ok(Answer::Done)
    }
}

impl Queue {
    fn new(context: &Context, domain: &Xrcd) -> Result<Self> {
        let (pd, cq) = (context.pd(), context.cq(DEPTH)?);
        let srq = pd.xrc_srq(domain, &cq, DEPTH, 1)?;
        let memory = pd.alloc(DEPTH as usize * MESSAGE, Access::LOCAL_WRITE)?;
        Ok(Self { srq, cq, memory, next: 0 })
    }

    /// The work request id of a receive is its place.
    fn post(&mut self, count: u32) -> Result<()> {
        for _ in 0..count {
            let at = self.next * MESSAGE;
            self.srq.post_recv(at as u64, &[self.memory.slice(at..at + MESSAGE)])?;
            self.next = (self.next + 1) % DEPTH as usize;
        }
        Ok(())
    }

    fn receive(&mut self, data: Data) -> Result<()> {
        let done = self.cq.wait_one(Some(TIMEOUT)).context("no message arrived in time")?;
        let (at, len) = (usize::try_from(done.wr_id)?, done.byte_len as usize);
        ensure!(len == data.len, "the message has {len} bytes, not {}", data.len);
        compare("the message", &self.memory.to_vec(at..at + len), &pattern(data))
    }
}
