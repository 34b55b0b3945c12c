//! Runs programs from the workspace's root.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// Returns the workspace's root folder.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// Returns cargo's output folder.
pub(crate) fn target_dir() -> PathBuf {
    let dir =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    root().join(dir)
}

/// Returns a command for the cargo that runs xtask, from the workspace's root.
///
/// In CI it keeps no incremental data: CI never builds twice, and the data is half of what a build leaves on the disk.
pub(crate) fn cargo() -> Command {
    let mut c = command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    if std::env::var_os("CI").is_some_and(|v| v != "false") {
        c.env("CARGO_INCREMENTAL", "0");
    }
    c
}

/// Builds programs of the workspace. Returns their folder, whose `deps` has the shared objects that the command needs.
///
/// Cargo selects features by the packages that it builds. These options select those of `cargo test --workspace
/// --all-features`, so that nothing is built twice. They include a test, because tests have development dependencies; the one
/// named here is small.
pub(crate) fn build(programs: &[&str]) -> Result<PathBuf> {
    let mut c = cargo();
    c.args(["build", "--quiet", "--workspace", "--all-features", "--test", "round_trips"]);
    run(c.args(programs.iter().flat_map(|program| ["--bin", program])))?;
    Ok(target_dir().join("debug"))
}

/// Returns a command that runs from the workspace's root, without a terminal for prompts.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut c = Command::new(program);
    c.current_dir(root()).stdin(Stdio::null());
    c
}

/// Returns whether a program of this name can be started.
pub(crate) fn have(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|p| std::env::split_paths(&p).any(|d| d.join(program).is_file()))
}

/// Runs a command. Any exit status but 0 is an error.
pub(crate) fn run(c: &mut Command) -> Result<()> {
    say(c);
    let status = c.status().with_context(|| format!("cannot start {}", name(c)))?;
    if !status.success() {
        bail!("{} ended with {status}", name(c));
    }
    Ok(())
}

/// Runs a command, and passes each line of its output to `line` as well as to standard output. Returns whether it succeeded.
pub(crate) fn run_lines(c: &mut Command, mut line: impl FnMut(&str)) -> Result<bool> {
    say(c);
    let mut child =
        c.stdout(Stdio::piped()).spawn().with_context(|| format!("cannot start {}", name(c)))?;
    let out = child.stdout.take().context("no output to read")?;
    for l in BufReader::new(out).split(b'\n') {
        let l = l.with_context(|| format!("reading from {}", name(c)))?;
        let l = String::from_utf8_lossy(&l);
        println!("{l}");
        line(&l);
    }
    Ok(child.wait()?.success())
}

/// Runs a command as [`run_lines`] does, and terminates it after a time limit.
pub(crate) fn run_lines_within(
    limit: Duration,
    c: &mut Command,
    line: impl FnMut(&str),
) -> Result<bool> {
    // timeout(1) controls the whole process group, and terminates processes that a program leaves running with its end of the output.
    let mut timed = command("timeout");
    timed.args(["--signal=KILL", &limit.as_secs().to_string()]);
    timed.arg(c.get_program()).args(c.get_args());
    for (name, value) in c.get_envs() {
        match value {
            Some(value) => timed.env(name, value),
            None => timed.env_remove(name),
        };
    }
    run_lines(&mut timed, line)
}

/// Runs a command quietly and returns its output.
pub(crate) fn output(c: &mut Command) -> Result<String> {
    let out = c.output().with_context(|| format!("cannot start {}", name(c)))?;
    if !out.status.success() {
        let err = String::from_utf8_lossy(&out.stderr);
        bail!("{} ended with {}: {}", name(c), out.status, err.trim());
    }
    Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

fn name(c: &Command) -> String {
    Path::new(c.get_program())
        .file_name()
        .map_or_else(|| "?".into(), |n| n.to_string_lossy().into_owned())
}

fn say(c: &Command) {
    let args: Vec<_> = c.get_args().map(OsStr::to_string_lossy).collect();
    println!("$ {} {}", name(c), args.join(" "));
}
