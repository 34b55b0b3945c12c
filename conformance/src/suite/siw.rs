//! iWARP against the kernel's `siw`: programs of the distribution on both sides, with peer-to-peer mode and
//! CRCs on and off, and the connection manager's events with private data, refusals and killed processes.

use std::fs;

use anyhow::{Context as _, Result, ensure};

use super::guest::Process;
use super::programs::{RESULT, STARTED, cm_listens};
use super::rping;
use super::{Asks, Family, Guest, Link, Place};

/// The configuration of rdmux's service.
const CONFIG: &str = "/tmp/rdmux-siw.toml";
/// The folder of siw's module parameters.
const PARAMETERS: &str = "/sys/module/siw/parameters";

/// A program of the distribution, against itself.
#[derive(Debug)]
struct Program {
    name: &'static str,
    /// The options of both sides.
    options: &'static str,
    /// The options of the server alone, and of the client alone.
    roles: [&'static str; 2],
    /// The text that both print on success.
    proof: &'static str,
}

/// Options of perftest for so many iterations, over the connection manager, as iWARP needs it.
macro_rules! perftest {
    ($name:literal, $more:literal, $proof:expr) => {
        Program {
            name: $name,
            options: concat!("-R -F -n 200 -p {port} ", $more),
            roles: ["", "{to}"],
            proof: $proof,
        }
    };
}

const RPING: Program = Program {
    name: "rping",
    options: "-v -C 20 -S 16000 -a {to} -p {port}",
    roles: ["-s", "-c -V"],
    proof: "ping data: rdma-ping-19:",
};
const UCMATOSE: Program = Program {
    name: "ucmatose",
    options: "-c 4 -C 10 -S 3000 -p {port}",
    roles: ["-b {to}", "-s {to}"],
    proof: "return status 0",
};
const PROGRAMS: &[Program] = &[
    RPING,
    UCMATOSE,
    perftest!("ib_send_bw", "-s 16384", RESULT),
    perftest!("ib_write_bw", "-s 16384", RESULT),
    perftest!("ib_read_bw", "-s 16384", RESULT),
    perftest!("ib_send_lat", "", RESULT),
    perftest!("ib_write_lat", "", RESULT),
    perftest!("ib_read_lat", "", STARTED),
];
/// Programs for which the size of segments matters.
const LONG: &[Program] = &[
    RPING,
    perftest!("ib_write_bw", "-s 65536", RESULT),
    perftest!("ib_read_bw", "-s 65536", RESULT),
];

/// A mode of MPA's start-up, and the programs that CI runs in it.
struct Mode {
    peer_to_peer: bool,
    crc: bool,
    brief: &'static [&'static str],
}

/// All four modes. CI runs every program in the usual one, and sends and READs in the others.
const MODES: &[Mode] = &[
    Mode {
        peer_to_peer: true,
        crc: false,
        brief: &[
            "rping",
            "ucmatose",
            "ib_send_bw",
            "ib_write_bw",
            "ib_read_bw",
            "ib_send_lat",
            "ib_write_lat",
            "ib_read_lat",
        ],
    },
    Mode { peer_to_peer: false, crc: false, brief: &["rping", "ib_send_bw"] },
    Mode { peer_to_peer: true, crc: true, brief: &["rping", "ib_write_bw", "ib_read_bw"] },
    Mode { peer_to_peer: false, crc: true, brief: &["ucmatose", "ib_send_lat"] },
];

/// The test of a row.
#[derive(Clone, Copy, Debug)]
enum What {
    Program(&'static Program),
    /// Each side gets the other's private data, and the end of the connection.
    PrivateData,
    /// The client gets the refusal, with the server's private data.
    Refused,
    /// The client gets an error because there is no listener.
    NobodyListens,
    /// The server gets an event because the client was killed.
    Killed,
}

/// A run of two processes, a row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Siw {
    what: What,
    asks: Asks,
    family: Family,
    /// The conditions on the wire.
    pub link: Link,
    peer_to_peer: bool,
    crc: bool,
    /// Whether CI runs the row; `--all` runs the others too.
    pub brief: bool,
}

/// Returns all rows, in the order in which they are run.
pub fn siw() -> Vec<Siw> {
    const PLAIN: Link = Link { mtu: 1024, loss: 0, offload: false };
    const LARGE: Link = Link { mtu: 4096, loss: 0, offload: false };
    const GSO: Link = Link { mtu: 1024, loss: 0, offload: true };
    const LOSSY: Link = Link { mtu: 1024, loss: 2, offload: false };
    let mut table = Vec::new();
    let mut add = |link, family, mode: &Mode, what, brief| {
        for asks in [Asks::Rdmux, Asks::Kernel] {
            let Mode { peer_to_peer, crc, .. } = *mode;
            table.push(Siw { what, asks, family, link, peer_to_peer, crc, brief });
        }
    };
    for mode in MODES {
        for program in PROGRAMS {
            let brief = mode.brief.contains(&program.name);
            add(PLAIN, Family::V4, mode, What::Program(program), brief);
        }
        for what in [What::PrivateData, What::Refused, What::NobodyListens, What::Killed] {
            if !mode.crc {
                add(PLAIN, Family::V4, mode, what, mode.peer_to_peer);
            }
        }
    }
    let [usual, with_crc] = [&MODES[0], &MODES[2]];
    for (program, brief) in [(&PROGRAMS[0], true), (&PROGRAMS[1], false)] {
        add(PLAIN, Family::V6, usual, What::Program(program), brief);
    }
    for (link, brief) in [(LARGE, "ib_write_bw"), (GSO, "ib_read_bw")] {
        for program in LONG {
            add(link, Family::V4, usual, What::Program(program), program.name == brief);
        }
    }
    add(LOSSY, Family::V4, with_crc, What::Program(&RPING), true);
    table
}

impl Siw {
    /// Returns the name of its row.
    pub fn row(&self) -> String {
        let what = match self.what {
            What::Program(program) => program.name,
            What::PrivateData => "private data both ways",
            What::Refused => "refused, with private data",
            What::NobodyListens => "nobody listens",
            What::Killed => "the client is killed",
        };
        let mode = if self.peer_to_peer { "peer-to-peer" } else { "client-server" };
        let crc = if self.crc { "CRC" } else { "no CRC" };
        let Self { asks, family, link, .. } = self;
        let link = link.to_string().replace("MTU 1024", "MTU 1500").replace("MTU 4096", "MTU 4300");
        format!("siw | {what:<26} | {asks:<11} | {family} | {link} | {mode} | {crc}")
    }

    /// Runs the row.
    ///
    /// # Errors
    /// The reason of a failure.
    pub fn run(&self, guest: &Guest) -> Result<()> {
        self.set_up(guest)?;
        match self.what {
            What::Program(program) => self.program(guest, program),
            What::PrivateData => self.words(guest),
            What::Refused => self.refused(guest),
            What::NobodyListens => self.nobody_listens(guest),
            What::Killed => self.killed(guest),
        }
    }

    /// Configures peer-to-peer mode and CRCs on both sides. siw's switches are constants in the original
    /// driver; the guest's driver has them as module parameters.
    fn set_up(&self, guest: &Guest) -> Result<()> {
        for (parameter, on) in [("peer_to_peer", self.peer_to_peer), ("mpa_crc_required", self.crc)]
        {
            let file = format!("{PARAMETERS}/{parameter}");
            fs::write(&file, if on { "1" } else { "0" }).context(file)?;
        }
        let config = format!("[iwarp]\ncrc = {}\n", self.crc);
        if fs::read_to_string(CONFIG).ok().as_ref() != Some(&config) {
            // The service reads its configuration when it starts. The file is written when the old service has ended, so that a row
            // after a failure does not take it for done.
            let _ = fs::remove_file(CONFIG);
            guest.must(Place::Rdmux, "rdmux", &["host", "down"])?;
            fs::write(CONFIG, config)?;
        }
        Ok(())
    }

    fn program(&self, guest: &Guest, program: &Program) -> Result<()> {
        let line = |role: usize| format!("{} {}", program.options, program.roles[role]);
        let [mut server, mut client] = self.pair(guest, program.name, [&line(0), &line(1)])?;
        let ended = if program.name == "rping" { rping::ended } else { Process::succeed };
        ended(&mut client, guest.timeout())?;
        ended(&mut server, guest.timeout())?;
        for (who, process) in [("server", &server), ("client", &client)] {
            ensure!(
                process.said().contains(program.proof),
                "the {who} does not print {:?}",
                program.proof
            );
        }
        Ok(())
    }

    fn words(&self, guest: &Guest) -> Result<()> {
        let lines = ["listen {to} {port} accept pleased", "connect {to} {port} hello"];
        let [mut server, mut client] = self.pair(guest, WORDS, lines)?;
        client.succeed(guest.timeout())?;
        server.succeed(guest.timeout())?;
        says(&server, "RDMA_CM_EVENT_CONNECT_REQUEST 0 \"hello\"")?;
        says(&client, "RDMA_CM_EVENT_ESTABLISHED 0 \"pleased\"")
    }

    fn refused(&self, guest: &Guest) -> Result<()> {
        let lines = ["listen {to} {port} reject sorry", "connect {to} {port} hello"];
        let [mut server, mut client] = self.pair(guest, WORDS, lines)?;
        server.succeed(guest.timeout())?;
        client.finish(guest.timeout())?;
        says(&client, "RDMA_CM_EVENT_REJECTED")?;
        says(&client, "\"sorry\"")
    }

    fn nobody_listens(&self, guest: &Guest) -> Result<()> {
        let mut client =
            self.start(guest, self.asks.client(), WORDS, "connect {to} {port} hello")?;
        client.finish(guest.timeout())?;
        // siw's rdma_connect connects TCP synchronously, and fails at once.
        let word = if self.asks == Asks::Rdmux {
            "RDMA_CM_EVENT_REJECTED"
        } else {
            "rdma_connect: Connection refused"
        };
        says(&client, word)
    }

    fn killed(&self, guest: &Guest) -> Result<()> {
        let lines = ["listen {to} {port} accept pleased", "connect {to} {port} hello stay"];
        let [mut server, mut client] = self.pair(guest, WORDS, lines)?;
        client.says("RDMA_CM_EVENT_ESTABLISHED", guest.timeout())?;
        server.says("RDMA_CM_EVENT_ESTABLISHED", guest.timeout())?;
        drop(client);
        server.succeed(guest.timeout())?;
        says(&server, "RDMA_CM_EVENT_DISCONNECTED")
    }

    /// Starts a server, and its client when it listens.
    fn pair(&self, guest: &Guest, name: &str, [server, client]: [&str; 2]) -> Result<[Process; 2]> {
        let at = self.asks.server();
        let mut server = self.start(guest, at, name, server)?;
        cm_listens(guest, &mut server, at, guest.port())?;
        let client = self.start(guest, self.asks.client(), name, client)?;
        Ok([server, client])
    }

    fn start(&self, guest: &Guest, at: Place, name: &str, options: &str) -> Result<Process> {
        let options = options
            .replace("{to}", self.asks.server().address(self.family))
            .replace("{port}", &guest.port().to_string());
        let ours = guest.program(name);
        let name = if ours.is_file() { ours.display().to_string() } else { name.to_owned() };
        let words = std::iter::once(name.as_str()).chain(options.split_whitespace());
        let config = format!("RDMUX_CONFIG={CONFIG}");
        let mode = format!("RDMUX_PEER_TO_PEER={}", u8::from(self.peer_to_peer));
        let rdmux = guest.program("rdmux").display().to_string();
        let run = [&config, &mode, &rdmux, "run", "--device", "iw", "--"];
        let run = if at == Place::Rdmux { &run[..] } else { &[] };
        let words: Vec<&str> = run.iter().copied().chain(words).collect();
        guest.start(at, "env", &words)
    }
}

/// The program that prints the connection manager's events.
const WORDS: &str = "cm_words";
fn says(process: &Process, words: &str) -> Result<()> {
    ensure!(process.said().contains(words), "{words:?} is not in {:?}", process.said());
    Ok(())
}

/// Attaches siw to the wire, to which rxe is attached in other suites.
///
/// # Errors
/// When the guest has no siw.
pub fn take_the_wire(guest: &Guest) -> Result<()> {
    for device in ["rxe0", "siw0"] {
        guest.must(Place::Kernel, "rdma", &["link", "delete", device])?;
    }
    let interface = Place::Kernel.interface();
    guest.must(
        Place::Kernel,
        "rdma",
        &["link", "add", "siw0", "type", "siw", "netdev", interface],
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    #[test]
    fn every_row_has_a_name_of_its_own() {
        let rows: Vec<String> = super::siw().iter().map(super::Siw::row).collect();
        let distinct: BTreeSet<&String> = rows.iter().collect();
        assert_eq!(distinct.len(), rows.len());
    }
}
