//! Child processes of this program: each is started with a hidden subcommand, and exchanges one JSON document per
//! line over its standard input and output.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child as Process, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::output::Output;

/// A child process of this program. It is killed when this is dropped.
pub struct Child {
    process: Process,
    /// None once it was told to end.
    requests: Option<ChildStdin>,
    replies: BufReader<ChildStdout>,
    name: String,
}

impl Child {
    /// Starts this program with `args`; `name` is for error messages.
    pub fn spawn(name: impl Into<String>, args: &[&str]) -> Result<Self> {
        Self::spawn_with(name, args, &[])
    }

    /// Starts this program as [`spawn`](Self::spawn) does, with these variables in its environment.
    pub fn spawn_with(
        name: impl Into<String>,
        args: &[&str],
        variables: &[(&str, &str)],
    ) -> Result<Self> {
        let name = name.into();
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let mut process = Command::new(program)
            .args(args)
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C is for this process alone, which then ends the child.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start the process {name}"))?;
        let requests =
            Some(process.stdin.take().context("the process's standard input is not a pipe")?);
        let replies = BufReader::new(
            process.stdout.take().context("the process's standard output is not a pipe")?,
        );
        Ok(Self { process, requests, replies, name })
    }

    /// Returns its process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Kills it and waits until it is dead.
    pub fn kill(&mut self) -> Result<()> {
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }

    /// Closes its input, so that it ends by itself, and waits until it has.
    pub fn end(&mut self) -> Result<()> {
        self.requests = None;
        let status = self.process.wait()?;
        ensure!(status.success(), "the process {} ended: {status}", self.name);
        Ok(())
    }

    /// Sends a request.
    pub fn tell<Q: Serialize>(&mut self, request: &Q) -> Result<()> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        let gone = || format!("the process {} is gone", self.name);
        self.requests.as_mut().with_context(gone)?.write_all(&line).with_context(gone)
    }

    /// Waits for its next answer.
    pub fn hear<A: DeserializeOwned>(&mut self) -> Result<A> {
        let mut line = String::new();
        if self.replies.read_line(&mut line)? == 0 {
            let status = self.process.wait()?;
            bail!("the process {} ended ({status}) before it answered", self.name);
        }
        match serde_json::from_str(&line)? {
            Answer::Ok(answer) => Ok(answer),
            Answer::Failed(why) => bail!("the process {}: {why}", self.name),
        }
    }

    /// Sends a request and waits for its answer.
    pub fn ask<Q: Serialize, A: DeserializeOwned>(&mut self, request: &Q) -> Result<A> {
        self.tell(request)?;
        self.hear()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // The process may have ended by itself; then there is nothing to do or report.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns the path at which execvp(3) finds a program.
pub fn find_program(program: &OsStr) -> Option<PathBuf> {
    if program.as_encoded_bytes().contains(&b'/') {
        return Some(program.into());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|p| p.is_file())
}

/// An answer as encoded on a line.
#[derive(serde::Serialize, serde::Deserialize)]
enum Answer<A> {
    /// The request succeeded.
    Ok(A),
    /// The request failed, for this reason.
    Failed(String),
}

/// Serves as the child: reads requests from standard input until it closes, and answers each through `handle`, which
/// may answer early by [`Reply::send`] and continue.
pub fn serve<Q, A>(mut handle: impl FnMut(Q, &mut Reply<A>) -> Result<A>) -> Result<()>
where
    Q: DeserializeOwned,
    A: Serialize,
{
    let mut reply = Reply { marker: std::marker::PhantomData };
    for line in io::stdin().lock().lines() {
        let request: Q = serde_json::from_str(&line?)?;
        let answer = match handle(request, &mut reply) {
            Ok(answer) => Answer::Ok(answer),
            Err(e) => Answer::Failed(format!("{e:#}")),
        };
        reply.line(&answer)?;
    }
    Ok(())
}

/// The output for answers.
pub struct Reply<A> {
    marker: std::marker::PhantomData<A>,
}

impl<A: Serialize> Reply<A> {
    /// Sends an answer before the work is done, such as "I am listening".
    pub fn send(&mut self, answer: A) -> Result<()> {
        self.line(&Answer::Ok(answer))
    }
    fn line(&mut self, answer: &Answer<A>) -> Result<()> {
        let mut line = serde_json::to_vec(answer)?;
        line.push(b'\n');
        let mut out = Output(io::stdout().lock());
        out.write_all(&line)?;
        Ok(out.flush()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::{is_closed, text};

    #[test]
    fn dead_child_is_a_failure_and_not_a_closed_output() {
        // The test's own program as a child, which lists its tests and ends.
        let mut child = Child::spawn("lister", &["--list"]).unwrap();
        child.process.wait().unwrap();
        let e = child.tell(&1).unwrap_err();
        assert!(text(&e).starts_with("the process lister is gone"), "{e:#}");
        assert!(!is_closed(&e), "{e:#}");
    }
}
