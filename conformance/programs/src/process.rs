//! One program, its output and its end.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// The polling interval for conditions without a notification.
const GLANCE: Duration = Duration::from_millis(10);

/// A started program. It and its descendants are killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    name: String,
    log: PathBuf,
}

impl Process {
    /// Starts a program, with its output in a file that begins with the command line.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(crate) fn start(mut command: Command, line: &str, log: &Path) -> Result<Self> {
        let mut out = fresh(log)?;
        writeln!(out, "$ {line}")?;
        // Each stream has a file: in one file they would interrupt each other in the middle of a line.
        command.stdin(Stdio::null()).stdout(out).stderr(fresh(&errors(log))?);
        command.process_group(0);
        let name = line.split_whitespace().find(|w| !w.contains('=')).unwrap_or("?").to_owned();
        let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        Ok(Self { child, name, log: log.to_path_buf() })
    }

    /// Returns the process ID.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the program's output so far: standard output, followed by standard error.
    pub(crate) fn output(&self) -> String {
        self.printed() + &read(&errors(&self.log))
    }

    /// Returns the program's standard output so far.
    pub(crate) fn printed(&self) -> String {
        let text = read(&self.log);
        text.split_once('\n').map_or("", |(_command, said)| said).to_owned()
    }

    /// Waits until `there` returns true, or the program ends.
    ///
    /// # Errors
    /// When it ends, or `timeout` expires.
    pub(crate) fn until(
        &mut self,
        what: &str,
        timeout: Duration,
        mut there: impl FnMut(&Self) -> Result<bool>,
    ) -> Result<()> {
        let end = Instant::now() + timeout;
        while !there(self)? {
            if let Some(status) = self.child.try_wait()? {
                bail!(
                    "{} {} while waiting for \"{what}\": {}",
                    self.name,
                    ended(status),
                    self.last_line()
                );
            }
            ensure!(
                Instant::now() < end,
                "{} timed out waiting for \"{what}\": {}",
                self.name,
                self.last_line()
            );
            sleep(GLANCE);
        }
        Ok(())
    }

    /// Waits for the program's end.
    ///
    /// # Errors
    /// When it does not end within `timeout`.
    pub(crate) fn finish(&mut self, timeout: Duration) -> Result<ExitStatus> {
        let end = Instant::now() + timeout;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() >= end {
                let s = timeout.as_secs();
                bail!("{} did not end in {s} s: {}", self.name, self.last_line());
            }
            sleep(GLANCE);
        }
    }

    /// Waits for the program's end, which must be a success.
    ///
    /// # Errors
    /// When it is not, or it does not end within `timeout`.
    pub(crate) fn succeed(&mut self, timeout: Duration) -> Result<()> {
        let status = self.finish(timeout)?;
        ensure!(status.success(), "{} {}: {}", self.name, ended(status), self.last_line());
        Ok(())
    }

    /// Sends the program a signal, by which it must end, or exit with status 0.
    ///
    /// # Errors
    /// When it ends otherwise, or not within `timeout`.
    pub(crate) fn stop(&mut self, signal: Signal, timeout: Duration) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("{} {} before it was signalled: {}", self.name, ended(status), self.last_line());
        }
        kill_process(self.process_id()?, signal)?;
        let status = self.finish(timeout)?;
        let as_told = status.success() || status.signal() == Some(signal.as_raw());
        ensure!(as_told, "{} {}: {}", self.name, ended(status), self.last_line());
        Ok(())
    }

    /// Sends the process a signal that does not end it.
    ///
    /// # Errors
    /// When there is no such process.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(self.process_id()?, signal).with_context(|| self.name.clone())
    }

    /// Kills the program and its descendants, and waits for its end.
    ///
    /// # Errors
    /// When it had ended before, or does not end within `timeout`.
    pub(crate) fn kill(&mut self, timeout: Duration) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("{} {} before it was killed: {}", self.name, ended(status), self.last_line());
        }
        kill_process_group(self.process_id()?, Signal::KILL)?;
        self.finish(timeout).map(drop)
    }

    fn process_id(&self) -> Result<Pid> {
        let id = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        id.context("the process has no id")
    }

    /// Returns the end of its output, for messages.
    fn last_line(&self) -> String {
        let output = self.output();
        let line = output.lines().rev().find(|l| l.chars().any(char::is_alphanumeric));
        line.map_or_else(|| "it printed nothing".to_owned(), |l| format!("\"{}\"", l.trim()))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Ok(pid) = self.process_id() {
            // Its process group has its own number and includes its descendants.
            let _ = kill_process_group(pid, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

fn read(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

/// Creates an empty file that is only appended to.
fn fresh(path: &Path) -> Result<File> {
    let old = fs::remove_file(path);
    ensure!(old.is_ok() || !path.exists(), "cannot replace {}", path.display());
    File::options().append(true).create(true).open(path).with_context(|| path.display().to_string())
}

/// Returns the file for the standard error of a program whose output goes to `log`.
fn errors(log: &Path) -> PathBuf {
    log.with_extension("err.log")
}

/// Describes an exit status.
fn ended(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with status {code}"),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}
