//! The client, which sends commands, and the operations that tests are built from.

use std::net::{IpAddr, TcpStream};

use anyhow::{Context as _, Result, bail, ensure};
use rdmux::{Context, RemoteMr, Rkey, SendWr, Sge, WcOpcode, WcStatus};

use super::tests::TESTS;
use super::{Control, Peer, Side, Wants, Words};
use crate::exchange::{LOST_ANSWER, REGION, fill};

/// The state ERR, as the server reports it.
const FAILED: &str = "6";

/// Runs the tests whose names begin with one of `names`, or all, with a line for each. Returns whether all passed.
///
/// # Errors
/// When the device cannot be opened.
pub fn run(address: IpAddr, port: u16, names: &[String]) -> Result<bool> {
    let context = Context::open()?;
    let mut good = true;
    for test in TESTS {
        if !names.is_empty() && !names.iter().any(|n| test.name.starts_with(n.as_str())) {
            continue;
        }
        let result = Session::open(&context, address, port, test.wants)
            .context("open the session")
            .and_then(|mut session| (test.run)(&mut session));
        match result {
            Ok(()) => println!("ok {}", test.name),
            Err(e) => {
                good = false;
                println!("FAILED {}: {e:#}", test.name);
            }
        }
    }
    Ok(good)
}

/// A completion that the server saw.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// The immediate data, or the key that was invalidated.
    pub(super) extra: u32,
    pub(super) flags: u32,
    pub(super) src_qp: u32,
}

/// A session with a server.
pub(super) struct Session {
    control: Control,
    pub(super) peer: Peer,
    pub(super) you: Side,
}

impl Session {
    fn open(context: &Context, address: IpAddr, port: u16, wants: Wants) -> Result<Self> {
        let mut control = Control::new(TcpStream::connect((address, port))?)?;
        let ours = Wants { rights: super::ALL_RIGHTS, srq: false, ..wants };
        let peer = Peer::new(context, control.local()?, ours)?;
        let name = format!("{:?}", wants.qp_type).to_lowercase();
        let name = if wants.srq { "srq" } else { &name };
        let line = format!("open {name} {:x} {}", wants.rights.bits(), peer.me.line());
        let answer = ask(&mut control, &line)?;
        let mut words = Words::new(&answer);
        let mut you = words.side()?;
        let (addr, rkey) = (words.hex()?, Rkey(words.hex32()?));
        you.memory = RemoteMr { addr, rkey, len: REGION as u64 };
        peer.connect(&you)?;
        Ok(Self { control, peer, you })
    }

    /// Sends a command to the server, and returns its answer.
    pub(super) fn ask(&mut self, line: &str) -> Result<String> {
        ask(&mut self.control, line)
    }

    /// Ends the session on the server's side only.
    pub(super) fn hang_up(&mut self) -> Result<()> {
        self.control.close()
    }

    /// Fills the send buffer with the data of `seed`.
    pub(super) fn fill(&self, len: usize, seed: u32) {
        let mut data = vec![0; len];
        fill(&mut data, seed);
        self.peer.mr.write(REGION, &data);
    }

    /// Returns the first `len` bytes of the buffer for sends and READs.
    pub(super) fn local(&self, len: usize) -> Sge {
        self.peer.mr.slice(REGION..REGION + len)
    }

    /// Returns the server's memory from `offset`.
    pub(super) fn remote(&self, offset: u64) -> RemoteMr {
        self.you.memory.at(offset)
    }

    /// Posts a request over the first `len` bytes.
    pub(super) fn post(&self, wr: SendWr<'_>, len: usize) -> Result<()> {
        let list = [self.local(len)];
        let list = if len == 0 { &[] } else { &list[..] };
        Ok(self.peer.qp.post_send(&wr.sges(list).signaled())?)
    }

    /// Checks that the next completion of the client has this status.
    pub(super) fn done(&self, status: WcStatus) -> Result<()> {
        let wc = self.peer.completion()?;
        ensure!(wc.status == status, "completed with {:?}, not {status:?}", wc.status);
        Ok(())
    }

    /// Checks that the next completion of the client has one of these statuses, by which the server's queue pair reports, before
    /// it fails, that it cannot execute the request.
    ///
    /// The NAK is sent once: a failed queue pair drops incoming packets (IBTA 9.9.3, 10.3.1). If the wire
    /// lost the NAK, the request is retransmitted unanswered until its retries are exhausted, and only the server's
    /// state shows that it was refused. That is an error that begins with [`LOST_ANSWER`].
    pub(super) fn refused(&mut self, statuses: &[WcStatus]) -> Result<()> {
        let status = self.peer.completion()?.status;
        if status == WcStatus::RetryExcErr && self.ask("state")?.trim() == FAILED {
            bail!("{LOST_ANSWER}: the server's queue pair failed, but its NAK did not arrive");
        }
        ensure!(statuses.contains(&status), "completed with {status:?}, not {statuses:?}");
        Ok(())
    }

    /// Checks that the next completion of the client is a success.
    pub(super) fn succeeds(&self) -> Result<()> {
        self.done(WcStatus::Success)
    }

    /// Checks that the server received `len` bytes of the data of `seed`.
    pub(super) fn received(&mut self, seed: u32, opcode: WcOpcode, len: usize) -> Result<Seen> {
        let answer = self.ask(&format!("wait {seed:x}"))?;
        let mut words = Words::new(&answer);
        let (status, code, got) = (words.hex()?, words.hex32()?, words.size()?);
        if status != 0 || code != opcode as u32 || got != len {
            bail!(
                "the server completed with status {status} opcode {code} length {got}, not {len}"
            );
        }
        let (extra, flags) = (words.hex32()?, words.hex32()?);
        let diff = words.word()?;
        ensure!(diff == "-", "wrong byte at {diff} of {len:x}");
        Ok(Seen { extra, flags, src_qp: words.hex32()? })
    }

    /// Checks that eight bytes of the server's region have this value.
    pub(super) fn server_has(&mut self, offset: u64, value: u64) -> Result<()> {
        let answer = self.ask(&format!("peek {offset:x}"))?;
        let got = Words::new(&answer).hex()?;
        ensure!(got == value, "the server has {got:x}, not {value:x}");
        Ok(())
    }

    /// Checks that an atomic returned this value.
    pub(super) fn original(&self, value: u64) -> Result<()> {
        self.succeeds()?;
        let got = self.peer.mr.load(REGION);
        ensure!(got == value, "the atomic returned {got:x}, not {value:x}");
        Ok(())
    }
}

fn ask(control: &mut Control, line: &str) -> Result<String> {
    control.put(line)?;
    let answer = control.get()?.context("the server closed the control connection")?;
    match answer.strip_prefix("ok") {
        Some(rest) => Ok(rest.trim().to_owned()),
        None => bail!("the server answered {line:?} with {answer:?}"),
    }
}
