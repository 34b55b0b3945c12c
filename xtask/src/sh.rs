//! Running programs from the workspace's root.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// The workspace's root folder.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// Where cargo puts what it builds.
pub(crate) fn target_dir() -> PathBuf {
    let dir =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    root().join(dir)
}

/// The cargo that runs us, from the workspace's root.
///
/// Where CI is set it keeps nothing for incremental builds: nobody builds there twice, and they
/// are half of what a build leaves on the disk.
pub(crate) fn cargo() -> Command {
    let mut c = command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    if std::env::var_os("CI").is_some_and(|v| v != "false") {
        c.env("CARGO_INCREMENTAL", "0");
    }
    c
}

/// Builds programs of the workspace; the folder that has them, and in `deps` the shared objects that the command needs.
///
/// Cargo chooses features by what it is asked to build. With these options they are those of `cargo test --workspace --all-features`,
/// so that nothing is built twice: of a test, too, which has development dependencies. The one that is named here is small.
pub(crate) fn build(programs: &[&str]) -> Result<PathBuf> {
    let mut c = cargo();
    c.args(["build", "--quiet", "--workspace", "--all-features", "--test", "round_trips"]);
    run(c.args(programs.iter().flat_map(|program| ["--bin", program])))?;
    Ok(target_dir().join("debug"))
}

/// A program, from the workspace's root, without a terminal to ask anything on.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut c = Command::new(program);
    c.current_dir(root()).stdin(Stdio::null());
    c
}

/// Whether a program of this name can be started.
pub(crate) fn have(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|p| std::env::split_paths(&p).any(|d| d.join(program).is_file()))
}

/// Runs it; anything but exit status 0 is an error.
pub(crate) fn run(c: &mut Command) -> Result<()> {
    say(c);
    let status = c.status().with_context(|| format!("cannot start {}", name(c)))?;
    if !status.success() {
        bail!("{} ended with {status}", name(c));
    }
    Ok(())
}

/// Runs it and hands each line of its output to `line` as well as to our own; returns whether it
/// succeeded.
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

/// As [`run_lines`], but ends it if it takes longer.
pub(crate) fn run_lines_within(
    limit: Duration,
    c: &mut Command,
    line: impl FnMut(&str),
) -> Result<bool> {
    // It watches over the whole group, and ends what a program leaves running with our end of its output.
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

/// Runs it quietly and returns what it printed.
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
