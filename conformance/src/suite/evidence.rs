//! Evidence for failures: the packets of a check with loss, and the state of both sides while a
//! process takes longer than it should.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::guest::{Process, RXE_PORT};
use super::{Guest, Place};

/// The running time after which a process may be stuck.
const LONG: Duration = Duration::from_secs(20);

/// The commands that show why a process does not end.
const STATE: &[(Place, &str)] = &[
    (Place::Rdmux, "rdmux host status default --json --all"),
    (Place::Rdmux, "tc -s qdisc show dev veth1"),
    (Place::Kernel, "tc -s qdisc show dev veth0"),
    (Place::Kernel, "rdma resource show cm_id"),
    (Place::Kernel, "rdma resource show qp"),
    (Place::Kernel, "cd RXE_PORT; grep -r '[1-9]' hw_counters cm_tx_msgs cm_tx_retries cm_rx_msgs"),
];

/// Records the state of both sides, once, when a process has run for long.
#[derive(Debug)]
pub(super) struct Watch {
    programs: PathBuf,
    file: PathBuf,
    since: Instant,
    noted: bool,
}

impl Watch {
    /// Starts to watch. `programs` is the folder of rdmux, the state is appended to `file`.
    pub(super) fn new(programs: &Path, file: PathBuf) -> Self {
        let (programs, since) = (programs.to_path_buf(), Instant::now());
        Self { programs, file, since, noted: false }
    }

    /// Checks the running time. Called now and then while waiting for `program`.
    pub(super) fn look(&mut self, program: &str) {
        if self.noted || self.since.elapsed() < LONG {
            return;
        }
        self.noted = true;
        if let Err(e) = self.note(program) {
            println!("     # cannot record the state of both sides: {e:#}");
        }
    }

    fn note(&self, program: &str) -> Result<()> {
        let mut file = File::options().append(true).create(true).open(&self.file)?;
        writeln!(file, "{program} has been running for {} s:", LONG.as_secs())?;
        for &(place, what) in STATE {
            let line = what.replace("RXE_PORT", RXE_PORT);
            writeln!(file, "$ {what}")?;
            let mut command = match place {
                Place::Kernel => Command::new("timeout"),
                Place::Rdmux => Command::new("ip"),
            };
            if place == Place::Rdmux {
                command.args(["netns", "exec", "b", "timeout"]);
            }
            let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", self.programs.display());
            let out = command.args(["10", "sh", "-c", &line]).env("PATH", path).output()?;
            file.write_all(&out.stdout)?;
            file.write_all(&out.stderr)?;
        }
        Ok(())
    }
}

/// The packets of a check, captured on the kernel's side: those that the wire lost are missing.
#[derive(Debug)]
pub(super) struct Capture {
    dump: Process,
}

impl Capture {
    /// The file until it is known whether they are needed.
    const FILE: &str = "/tmp/check.pcap";

    /// Starts. Keeps headers and management datagrams, and little of the payload.
    ///
    /// # Errors
    /// When it cannot.
    pub(super) fn start(guest: &Guest) -> Result<Self> {
        let dev = Place::Kernel.interface();
        let args = ["-i", dev, "-U", "-s", "330", "-w", Self::FILE, "tcp or udp port 4791"];
        let mut dump = guest.start(Place::Kernel, "tcpdump", &args)?;
        dump.says("listening on", guest.timeout())?;
        Ok(Self { dump })
    }

    /// Stops the capture, and keeps the packets.
    ///
    /// # Errors
    /// When the file cannot be copied.
    pub(super) fn keep(self, to: &Path) -> Result<()> {
        drop(self.dump);
        fs::copy(Self::FILE, to).with_context(|| to.display().to_string())?;
        Ok(())
    }
}

/// The number of DREQs that the kernel has sent, and of those retransmitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Goodbyes {
    sent: u64,
    again: u64,
}

impl Guest {
    /// Reads the counters; see [`Goodbyes`].
    ///
    /// # Errors
    /// When the kernel's counters cannot be read.
    pub(super) fn goodbyes(&self) -> Result<Goodbyes> {
        let count = |folder: &str| -> Result<u64> {
            let file = format!("{RXE_PORT}/{folder}/dreq");
            Ok(fs::read_to_string(&file).context(file)?.trim().parse()?)
        };
        Ok(Goodbyes { sent: count("cm_tx_msgs")?, again: count("cm_tx_retries")? })
    }

    /// Returns whether since `before` the kernel has sent one DREQ and will not retransmit it, because it no longer has
    /// the connection to the port of this check, while rdmux's service still has that connection: it never received the
    /// DREQ.
    ///
    /// # Errors
    /// When either side cannot be queried.
    pub(super) fn goodbye_was_lost(&self, before: Goodbyes) -> Result<bool> {
        let once = Goodbyes { sent: before.sent + 1, ..before };
        let forgotten = !has_connection(
            &self.must(Place::Kernel, "rdma", &["resource", "show", "cm_id"])?,
            '\n',
            self.port(),
        );
        let status = ["host", "status", "default", "--json"];
        let ours = has_connection(&self.must(Place::Rdmux, "rdmux", &status)?, '{', self.port());
        Ok(self.goodbyes()? == once && forgotten && ours)
    }
}

/// Returns whether a list of ids, separated by `separator`, has a connection with this port. The kernel and
/// rdmux's service use the same name for the state.
fn has_connection(list: &str, separator: char, port: u16) -> bool {
    let port = format!(":{port}");
    let has_port = |id: &str| {
        id.match_indices(&port)
            .any(|(at, _)| !id[at + port.len()..].starts_with(|next: char| next.is_ascii_digit()))
    };
    list.split(separator).any(|id| id.contains("CONNECT") && has_port(id))
}

#[cfg(test)]
mod tests {
    use super::has_connection;

    #[test]
    fn connections_are_found_by_state_and_port() {
        let kernel = "$ rdma resource show cm_id\n\
            link rxe0/1 cm-idn 0 state LISTEN ps TCP pid 9 comm rping src-addr 10.77.0.1:7344 \n\
            link rxe0/1 lqpn 17 qp-type RC state CONNECT ps TCP pid 9 comm rping \
            src-addr 10.77.0.1:40000 dst-addr 10.77.0.2:7345 \n";
        assert!(has_connection(kernel, '\n', 7345));
        assert!(!has_connection(kernel, '\n', 7344));
        assert!(!has_connection(kernel, '\n', 734));
        let ours = r#"{"ids":[{"dst":null,"src":"10.77.0.2:7344","state":"LISTEN"},
            {"dst":"10.77.0.1:40000","src":"10.77.0.2:7345","state":"CONNECT"}]}"#;
        assert!(has_connection(ours, '{', 7345));
        assert!(!has_connection(ours, '{', 7344));
    }
}
