//! Other projects' programs: runs a server and its client, and returns the client's output.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use rdmux_command::child::find_program;

/// The timeout until a server listens, and until a client has measured.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How long a server may outlive its client; some never exit.
const FAREWELL: Duration = Duration::from_millis(500);
/// The interval of checks whether a server listens. Nothing is measured meanwhile.
const GLANCE: Duration = Duration::from_millis(2);

/// The Debian packages of programs.
const PACKAGES: [(&str, &str); 8] = [
    ("ib_", "perftest"),
    ("ucx_perftest", "ucx-utils"),
    ("iperf3", "iperf3"),
    ("cmtime", "rdmacm-utils"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("opensm", "opensm"),
    ("ibsim", "ibsim-utils"),
    ("ibacm", "ibacm"),
];

/// Checks that a program is installed; the error names its package.
pub(super) fn require(program: &str) -> Result<()> {
    if find_program(OsStr::new(program)).is_some() {
        return Ok(());
    }
    match PACKAGES.iter().find(|(name, _)| program.starts_with(name)) {
        Some((_, package)) => bail!("{program} is missing: install the Debian package {package}"),
        None => bail!("{program} is missing"),
    }
}

/// Returns a command of this program that runs another one on a host.
pub(super) fn on_host(host: &str, program: &str) -> Result<Command> {
    require(program)?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--host", host, "run", "--", program]);
    Ok(command)
}

/// Returns a free TCP port, which a server will bind a moment later.
pub(super) fn free_port() -> Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// perftest could not calibrate its clock, and continued with a frequency of 0, so that all its results are 0, infinite
/// or not a number. It happens when other processes take the processor away meanwhile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Uncalibrated;

impl fmt::Display for Uncalibrated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("perftest could not calibrate its clock")
    }
}

impl Uncalibrated {
    /// Returns whether the output contains the line that reports it.
    pub(super) fn is_said_in(output: &str) -> bool {
        output.lines().any(|l| l.starts_with("Correlation coefficient r^2:") && l.contains(" < "))
    }
}

/// The number of runs of a program that cannot calibrate its clock.
const CALIBRATIONS: u32 = 10;

/// Measures with programs of perftest, and repeats it if one of them could not calibrate its clock.
pub(super) fn calibrated<T>(mut measure: impl FnMut() -> Result<T>) -> Result<T> {
    for _ in 1..CALIBRATIONS {
        match measure() {
            Err(e) if e.is::<Uncalibrated>() => {
                eprintln!("rdmux: {Uncalibrated}; repeating the measurement")
            }
            other => return other,
        }
    }
    measure()
}

/// Starts `server`, waits until `listens` returns true, and returns what `parse` finds in the output of `client`. The
/// error is [`Uncalibrated`] if one of them reports that as the reason.
pub(super) fn pair<T>(
    server: &mut Command,
    client: &mut Command,
    listens: impl Fn() -> Result<bool>,
    parse: impl FnOnce(&str) -> Result<T>,
) -> Result<T> {
    let mut server = Running::start(server)?;
    let start = Instant::now();
    while !listens()? {
        if let Some(status) = server.child.try_wait()? {
            bail!("{} ended ({status}) before it listened:\n{}", server.line, server.said());
        }
        if start.elapsed() > TIMEOUT {
            bail!("{} did not listen in time:\n{}", server.line, server.said());
        }
        thread::sleep(GLANCE);
    }
    let mut client = Running::start(client)?;
    let ended = wait(&mut client.child, TIMEOUT)?;
    let said = client.said();
    let outcome = if ended && client.child.wait()?.success() {
        wait(&mut server.child, FAREWELL)?;
        parse(&said).with_context(|| format!("{} printed:\n{said}\n", client.line))
    } else {
        let how = if ended { "failed" } else { "did not end in time" };
        let (client, server, heard) = (&client.line, &server.line, server.said());
        Err(anyhow!("{client} {how}:\n{said}\nits server {server}:\n{heard}"))
    };
    match outcome {
        Err(e) if [said, server.said()].iter().any(|said| Uncalibrated::is_said_in(said)) => {
            Err(e.context(Uncalibrated))
        }
        outcome => outcome,
    }
}

/// Returns whether a TCP socket listens at `port`.
pub(super) fn tcp_listens(port: u16) -> bool {
    // Without IPv6 the second file does not exist.
    ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .any(|file| std::fs::read_to_string(file).is_ok_and(|table| has_listener(&table, port)))
}

fn has_listener(table: &str, port: u16) -> bool {
    let at = format!(":{port:04X}");
    table.lines().skip(1).any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (local, _, state) = (fields.next(), fields.next(), fields.next());
        local.is_some_and(|local| local.ends_with(&at)) && state == Some("0A")
    })
}

/// A process and its output. It is killed when this is dropped.
struct Running {
    child: Child,
    /// Its command line.
    line: String,
    output: File,
}

impl Running {
    fn start(command: &mut Command) -> Result<Self> {
        let line = line_of(command);
        let output = tempfile::tempfile()?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output.try_clone()?);
        let child = command.spawn().with_context(|| format!("cannot start {line}"))?;
        Ok(Self { child, line, output })
    }

    fn said(&self) -> String {
        let (mut text, mut output) = (Vec::new(), &self.output);
        let read = output.rewind().and_then(|()| output.read_to_end(&mut text));
        match read {
            Ok(_) => String::from_utf8_lossy(&text).trim_end().to_owned(),
            Err(e) => format!("(its output cannot be read: {e})"),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The program may have exited by itself. Then there is nothing to do or report.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sleeps until the process has exited, at most for `limit`. Returns whether it has.
fn wait(child: &mut Child, limit: Duration) -> Result<bool> {
    if child.try_wait()?.is_some() {
        return Ok(true);
    }
    let pid = Pid::from_child(child);
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).context("cannot watch a process")?;
    let limit =
        Timespec { tv_sec: i64::try_from(limit.as_secs())?, tv_nsec: limit.subsec_nanos().into() };
    poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&limit))?;
    Ok(child.try_wait()?.is_some())
}

/// Formats a command approximately as in a shell.
fn line_of(command: &Command) -> String {
    let variables = command.get_envs().filter_map(|(name, value)| {
        Some(format!("{}={}", name.to_string_lossy(), value?.to_string_lossy()))
    });
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words = words.map(|word| word.to_string_lossy().into_owned());
    variables.chain(words).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Command {
        let mut sh = Command::new("sh");
        sh.args(["-c", script]);
        sh
    }

    #[test]
    fn missing_benchmark_program_error_names_its_debian_package() {
        let package = |name: &str| PACKAGES.iter().find(|(n, _)| name.starts_with(n)).unwrap().1;
        assert_eq!(package("ib_write_bw"), "perftest");
        assert_eq!(package("iperf3"), "iperf3");
        assert!(require("sh").is_ok());
        let e = require("ib_no_such_program").unwrap_err();
        assert!(e.to_string().ends_with("install the Debian package perftest"), "{e}");
    }

    #[test]
    fn client_output_is_parsed_and_server_is_terminated() {
        let parse = |said: &str| Ok(said.parse::<u8>()?);
        let pair = |client| pair(&mut sh("exec sleep 1000"), &mut sh(client), || Ok(true), parse);
        assert_eq!(pair("echo 7").unwrap(), 7);
        let e = format!("{:#}", pair("echo nothing").unwrap_err());
        assert!(e.starts_with("sh -c echo nothing printed:\nnothing\n: invalid digit"), "{e}");
    }

    /// The last output of perftest when it could not calibrate its clock.
    const UNCALIBRATED: &str = "echo 'Correlation coefficient r^2: 0.69636 < 0.9' >&2; echo inf";

    #[test]
    fn a_program_that_could_not_calibrate_its_clock_runs_again() {
        let mut runs = 0;
        let figure = calibrated(|| {
            runs += 1;
            let mut client = sh(if runs < 3 { UNCALIBRATED } else { "echo 7" });
            pair(
                &mut sh("exec sleep 1000"),
                &mut client,
                || Ok(true),
                |said| Ok(said.parse::<u8>()?),
            )
        });
        assert_eq!((figure.unwrap(), runs), (7, 3));
    }

    #[test]
    fn other_failures_are_not_tried_again_and_bad_clocks_not_for_ever() {
        let parse = |said: &str| Ok(said.parse::<u8>()?);
        for (client, expected) in [("echo inf", 1), (UNCALIBRATED, CALIBRATIONS)] {
            let mut runs = 0;
            let figure = calibrated(|| {
                runs += 1;
                pair(&mut sh("exec sleep 1000"), &mut sh(client), || Ok(true), parse)
            });
            assert!(figure.is_err());
            assert_eq!(runs, expected, "{client}");
        }
        let mut server = sh("echo 'Correlation coefficient r^2: 0.5 < 0.9' >&2; exec sleep 1000");
        let heard = || Ok(true);
        let e = pair(&mut server, &mut sh("sleep 0.1; exit 1"), heard, parse).unwrap_err();
        assert!(e.is::<Uncalibrated>(), "{e:#}");
    }

    #[test]
    fn a_failure_names_command_lines_and_output() {
        let mut client = sh("echo no way >&2; exit 3");
        client.env("KNOB", "1");
        let parse = |said: &str| Ok(said.to_owned());
        let e = pair(&mut sh("exec sleep 1000"), &mut client, || Ok(true), parse);
        let e = e.unwrap_err().to_string();
        assert!(e.contains("KNOB=1 sh -c echo no way >&2; exit 3 failed:\nno way"), "{e}");
        let e = pair(&mut sh("echo taken; exit 1"), &mut sh(":"), || Ok(false), parse);
        let e = e.unwrap_err();
        assert!(e.to_string().ends_with("before it listened:\ntaken"), "{e}");
    }

    #[test]
    fn tcp_listeners_are_found_in_proc_net_tcp() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(tcp_listens(listener.local_addr().unwrap().port()));
        let table = "  sl  local_address rem_address   st tx_queue\n\
                     0: 0100007F:1F90 00000000:0000 01 0\n   1: 00000000:1F91 00000000:0000 0A 0\n";
        assert!(has_listener(table, 0x1f91));
        assert!(!has_listener(table, 0x1f90));
    }
}
