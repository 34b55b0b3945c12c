//! A server, a client, or a receiver that only registers: a separate process.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rdmux::{
    Access, Context, Cq, Endpoint, Gid, Mr, Pd, Qp, QpType, Qpn, SendWr, Srq, Xrcd, XrcdFlags,
};
use serde::{Deserialize, Serialize};

use rdmux_command::child;

/// The number of concurrent connections.
pub(super) const BATCH: u32 = 16;
/// The bytes of a message: the number of its target.
const MESSAGE: usize = 4;
/// How long a side waits for the other.
const TIMEOUT: Option<Duration> = Some(Duration::from_secs(20));

/// A request to a process.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Ask {
    /// Act as the server: open the domain of a file and create a shared receive queue; answered by its number.
    Serve(PathBuf),
    /// Create a target for each of these queue pairs, at this GID; answered by their numbers.
    Accept { gid: [u8; 16], peers: Vec<u32> },
    /// Wait for a message to each of the targets, and release them.
    Finish,
    /// Create this many queue pairs; answered by their numbers.
    Make(u32),
    /// Connect them to these targets, at this GID, and send a message over each.
    Send { gid: [u8; 16], targets: Vec<u32>, srqn: u32 },
    /// Destroy them.
    HangUp,
    /// Register for a target of the domain of a file.
    Register(PathBuf, u32),
}

/// An answer of a process.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// The request is done.
    Done,
    /// The numbers of the created objects.
    Numbers(Vec<u32>),
}

/// The objects of a process.
struct Part {
    context: Context,
    server: Option<Server>,
    client: Client,
    registered: Option<Xrcd>,
}

/// The receiving side: its XRC domain and queue, and the numbers of its targets.
struct Server {
    domain: Xrcd,
    srq: Srq,
    cq: Cq,
    memory: Mr,
    targets: Vec<u32>,
}

/// The sending side and its queue pairs.
struct Client {
    pd: Pd,
    cq: Cq,
    qps: Vec<Qp>,
}

/// Serves requests until its input closes.
pub(super) fn run(context: Context) -> Result<()> {
    let client = Client::new(&context)?;
    let mut part = Part { context, server: None, client, registered: None };
    child::serve(|ask, _| part.answer(ask))
}

impl Part {
    fn server(&mut self) -> Result<&mut Server> {
        self.server.as_mut().context("this process is not a server")
    }

    fn answer(&mut self, ask: Ask) -> Result<Answer> {
        match ask {
            Ask::Serve(file) => {
                let server = Server::new(&self.context, &file)?;
                let number =
                    server.srq.number().context("the shared receive queue has no number")?;
                self.server = Some(server);
                return Ok(Answer::Numbers(vec![number]));
            }
            Ask::Accept { gid, peers } => {
                return Ok(Answer::Numbers(self.server()?.accept(Gid(gid), &peers)?));
            }
            Ask::Finish => self.server()?.finish()?,
            Ask::Make(count) => return Ok(Answer::Numbers(self.client.make(count)?)),
            Ask::Send { gid, targets, srqn } => self.client.send(Gid(gid), &targets, srqn)?,
            Ask::HangUp => self.client.qps.clear(),
            Ask::Register(file, target) => {
                let domain = open(&self.context, &file)?;
                domain.register(Qpn::new(target))?;
                self.registered = Some(domain);
            }
        }
        Ok(Answer::Done)
    }
}

fn open(context: &Context, file: &Path) -> Result<Xrcd> {
    let opened = File::open(file).with_context(|| file.display().to_string())?;
    Ok(Xrcd::of_file(context, &opened, XrcdFlags { create: true, exclusive: false })?)
}

impl Server {
    fn new(context: &Context, file: &Path) -> Result<Self> {
        let (domain, pd, cq) = (open(context, file)?, context.pd(), context.cq(BATCH)?);
        let srq = pd.xrc_srq(&domain, &cq, BATCH, 1)?;
        let memory = pd.alloc(BATCH as usize * MESSAGE, Access::LOCAL_WRITE)?;
        Ok(Self { domain, srq, cq, memory, targets: Vec::new() })
    }

    fn accept(&mut self, gid: Gid, peers: &[u32]) -> Result<Vec<u32>> {
        self.targets.clear();
        for (n, peer) in peers.iter().enumerate() {
            let at = n * MESSAGE;
            self.srq.post_recv(at as u64, &[self.memory.slice(at..at + MESSAGE)])?;
            let peer = Endpoint::new(gid, Qpn::new(*peer));
            self.targets.push(self.domain.alloc(peer, 0, Access::empty())?.get());
        }
        Ok(self.targets.clone())
    }

    fn finish(&mut self) -> Result<()> {
        let mut heard = BTreeSet::new();
        for _ in &self.targets {
            let done = self.cq.wait_one(TIMEOUT).context("no message arrived in time")?;
            let mut message = [0; MESSAGE];
            self.memory.read(usize::try_from(done.wr_id)?, &mut message);
            heard.insert(u32::from_be_bytes(message));
        }
        let sent: BTreeSet<_> = self.targets.iter().copied().collect();
        ensure!(heard == sent, "of the messages {sent:x?}, only {heard:x?} arrived");
        let targets = std::mem::take(&mut self.targets);
        Ok(targets.iter().try_for_each(|t| self.domain.unregister(Qpn::new(*t)))?)
    }
}

impl Client {
    fn new(context: &Context) -> Result<Self> {
        let (pd, cq) = (context.pd(), context.cq(BATCH)?);
        Ok(Self { pd, cq, qps: Vec::new() })
    }

    fn make(&mut self, count: u32) -> Result<Vec<u32>> {
        let new = || self.pd.qp(QpType::XrcSend).cq(&self.cq).max_send_wr(4).signal_all().build();
        self.qps = (0..count).map(|_| new()).collect::<Result<_, _>>()?;
        Ok(self.qps.iter().map(|qp| qp.qpn().get()).collect())
    }

    fn send(&self, gid: Gid, targets: &[u32], srqn: u32) -> Result<()> {
        for (qp, &target) in self.qps.iter().zip(targets) {
            let there = Endpoint::new(gid, Qpn::new(target));
            qp.connect(there, 0, Access::empty())?;
            qp.post_send(&SendWr::send(0).srq(srqn).inline(&[&target.to_be_bytes()]))?;
        }
        for _ in targets {
            self.cq.wait_one(TIMEOUT)?;
        }
        Ok(())
    }
}
