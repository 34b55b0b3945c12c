//! The processes of the rows on XRC: three receivers and a sender, and the file of their domain.

use std::os::unix::fs::MetadataExt as _;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rdmux::{Access, Context, Cq, EMPTY, Endpoint, Gid, Mr, Qp, QpType, Qpn, SendWr, WcStatus};
use rdmux_host::proto::{DomainStatus, Status, TargetStatus};
use tempfile::{NamedTempFile, TempPath};

use super::MESSAGE;
use super::receiver::{Answer, Ask, DEPTH};
use crate::demo::protocol::Data;
use crate::demo::side::{TIMEOUT, pattern};
use crate::demo::stage::Stage;
use rdmux_command::child::Child;

/// The processes of the rows, and their state.
pub(in crate::demo) struct Cast {
    pub(super) receivers: [Receiver; 3],
    pub(super) file: DomainFile,
    /// The number of the target, once it exists.
    pub(super) target: Option<u32>,
    sender: Option<Sender>,
    /// The GID of the receivers' host.
    there: Gid,
    /// The number of steps performed.
    pub(super) played: usize,
}

/// A receiving process.
pub(super) struct Receiver {
    child: Child,
    pub(super) pid: i32,
    /// The number of its shared receive queue.
    pub(super) srqn: u32,
}

/// The only sending queue pair, in this process.
pub(super) struct Sender {
    pub(super) qp: Qp,
    cq: Cq,
    memory: Mr,
}

/// A file that no other process uses. Removed when dropped.
pub(super) struct DomainFile {
    pub(super) path: TempPath,
    /// Device and inode.
    key: (u64, u64),
}

impl Cast {
    /// Starts three processes on the other side's host.
    pub(super) fn start(s: &Stage) -> Result<Self> {
        let receivers =
            [Receiver::start(s, "R1")?, Receiver::start(s, "R2")?, Receiver::start(s, "R3")?];
        let (file, there) = (DomainFile::create()?, s.addr.into());
        Ok(Self { receivers, file, target: None, sender: None, there, played: 0 })
    }

    /// Creates the sending queue pair.
    pub(super) fn make_sender(&mut self, context: &Context) -> Result<()> {
        let (pd, cq) = (context.pd(), context.cq(2 * DEPTH)?);
        let qp = pd.qp(QpType::XrcSend).cq(&cq).max_send_wr(DEPTH).signal_all().build()?;
        let memory = pd.alloc(DEPTH as usize * MESSAGE, Access::empty())?;
        self.sender = Some(Sender { qp, cq, memory });
        Ok(())
    }

    pub(super) fn sender(&self) -> Result<&Sender> {
        self.sender.as_ref().context("the sender has no queue pair yet")
    }

    /// Connects the queue pair to the target.
    pub(super) fn connect(&self) -> Result<()> {
        let qpn = Qpn::new(self.target.context("the sender has no target queue pair yet")?);
        let target = Endpoint::new(self.there, qpn);
        Ok(self.sender()?.qp.connect(target, 0, Access::empty())?)
    }

    /// Sends a message, from place `slot` of the memory, to a receiver.
    pub(super) fn post(&self, to: usize, slot: usize, data: Data) -> Result<()> {
        let (sender, at) = (self.sender()?, slot * MESSAGE);
        sender.memory.write(at, &pattern(data));
        let piece = [sender.memory.slice(at..at + data.len)];
        let wr = SendWr::send(1).srq(self.receivers[to].srqn).sges(&piece);
        Ok(sender.qp.post_send(&wr)?)
    }

    /// Waits until a message is acknowledged.
    pub(super) fn completed(&self) -> Result<()> {
        self.sender()?.cq.wait_one(Some(TIMEOUT))?;
        Ok(())
    }

    /// Waits until a send has completed with any status.
    pub(super) fn ended(&self) -> Result<WcStatus> {
        let mut one = [EMPTY];
        ensure!(
            self.sender()?.cq.wait(&mut one, Some(TIMEOUT))? == 1,
            "the work request did not complete in time"
        );
        Ok(one[0].status)
    }

    /// Returns the host's status of the domain.
    pub(super) fn domain<'s>(&self, status: &'s Status) -> Option<&'s DomainStatus> {
        status.xrc_domains.iter().find(|d| d.file == Some(self.file.key))
    }

    /// Returns the host's status of the target.
    pub(super) fn target<'s>(&self, status: &'s Status) -> Option<&'s TargetStatus> {
        status.xrc_targets.iter().find(|t| Some(t.qpn) == self.target)
    }

    /// Returns whether exactly these receivers are registered for the target.
    pub(super) fn is_held_by(&self, status: &Status, who: &[usize]) -> bool {
        let Some(target) = self.target(status) else { return false };
        let registered = |pid| target.holders.iter().any(|h| h.pid == pid && h.registered);
        target.holders.len() == who.len() && who.iter().all(|&n| registered(self.receivers[n].pid))
    }
}

impl Stage {
    /// Returns the processes of the rows on XRC.
    pub(super) fn cast(&mut self) -> Result<&mut Cast> {
        self.xrc.as_mut().context("the processes of the rows on XRC have not been started")
    }

    /// Waits until the host's status is as expected: it detects a process's death a moment later. `otherwise`
    /// describes the error if it does not become so.
    pub(super) fn until(
        &self,
        otherwise: &str,
        is_so: impl Fn(&Cast, &Status) -> bool,
    ) -> Result<()> {
        let (cast, start) = (
            self.xrc.as_ref().context("the processes of the rows on XRC have not been started")?,
            Instant::now(),
        );
        loop {
            let status = self.status()?;
            if is_so(cast, &status) {
                return Ok(());
            }
            if start.elapsed() > TIMEOUT {
                bail!("{otherwise}: {:?}, {:?}", status.xrc_domains, status.xrc_targets);
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until exactly these receivers are registered for the target.
    pub(super) fn held_by(&self, who: &[usize]) -> Result<()> {
        self.until("others are registered", |cast, status| cast.is_held_by(status, who))
    }
}

impl Receiver {
    fn start(s: &Stage, name: &str) -> Result<Self> {
        let child = Child::spawn(name, &["--host", s.host(), "part", "receiver"])?;
        let pid = i32::try_from(child.id())?;
        Ok(Self { child, pid, srqn: 0 })
    }

    /// Sends a request to the process.
    pub(super) fn tell(&mut self, ask: &Ask) -> Result<()> {
        self.child.tell(ask)
    }

    /// Waits until the process's request is done.
    pub(super) fn done(&mut self) -> Result<()> {
        match self.child.hear()? {
            Answer::Done => Ok(()),
            other => bail!("the receiver sent {other:?}, not Done"),
        }
    }

    /// Sends a request that is answered by `Done`.
    pub(super) fn ask(&mut self, ask: &Ask) -> Result<()> {
        self.tell(ask)?;
        self.done()
    }

    /// Sends a request that is answered by a number.
    pub(super) fn number(&mut self, ask: &Ask) -> Result<u32> {
        match self.child.ask(ask)? {
            Answer::Number(number) => Ok(number),
            other => bail!("{ask:?} was answered by {other:?}"),
        }
    }

    /// Kills the process, as `kill -9` does, and waits until it is dead.
    pub(super) fn kill(&mut self) -> Result<()> {
        self.child.kill()
    }
}

impl DomainFile {
    fn create() -> Result<Self> {
        let file = NamedTempFile::new()?;
        let metadata = file.as_file().metadata()?;
        Ok(Self { path: file.into_temp_path(), key: (metadata.dev(), metadata.ino()) })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn domain_file_does_not_write_through_links_of_other_users() {
        let dir = rdmux_testing::temp_dir();
        let victim = dir.path().join("victim");
        fs::write(&victim, "text").unwrap();
        let guess = std::env::temp_dir().join(format!("rdmux-demo-{}", std::process::id()));
        std::os::unix::fs::symlink(&victim, &guess).unwrap();
        let file = DomainFile::create();
        fs::remove_file(&guess).unwrap();
        assert_ne!(*file.unwrap().path, *guess);
        assert_eq!(fs::read_to_string(&victim).unwrap(), "text");
    }
}
