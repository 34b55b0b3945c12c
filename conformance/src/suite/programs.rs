//! The distribution's programs against themselves: on one side on the kernel's driver, on the other,
//! through `rdmux run`, on rdmux.

use std::fs;
use std::net::{IpAddr, Ipv6Addr};

use anyhow::{Context, Result, ensure};

use super::guest::{Process, RXE_PORT, WAIT};
use super::{Asks, Check, Family, Guest, Place, rping};

/// A program, and its command lines on both sides.
///
/// In the command lines `{to}` is replaced by the server's address, `{tcp}` by its IPv4 address, `{here}`
/// by the address of the side itself, `{gid}` by the index of that address in its GID table, `{port}` by
/// a port and `{group}` by a multicast group.
#[derive(Debug, PartialEq, Eq)]
pub struct Program {
    /// The program and its options, for the row's name.
    pub name: &'static str,
    server: &'static str,
    client: &'static str,
    ready: Ready,
    /// The text that both print on success, because an exit status of 0 is not enough.
    proof: &'static str,
}

/// The sign that a server is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ready {
    /// The server listens on TCP port `{port}`.
    Tcp,
    /// The server listens on this port of the connection manager, or on `{port}`.
    Cm(Option<u16>),
    /// The server prints this.
    Says(&'static str),
}

/// The end of perftest's output: so many iterations.
pub(super) const RESULT: &str = "  200  ";

/// Its output on both sides if only the client prints the result.
pub(super) const STARTED: &str = "remote address:";

/// The only port that udaddy supports.
const UDADDY: u16 = 7174;

/// A program whose two sides exchange queue pair parameters over TCP, over IPv4
/// whatever the queue pairs will use.
const fn by_tcp(name: &'static str, line: [&'static str; 2], proof: &'static str) -> Program {
    Program { name, server: line[0], client: line[1], ready: Ready::Tcp, proof }
}

/// A program that connects by the connection manager.
const fn by_cm(name: &'static str, line: [&'static str; 2], proof: &'static str) -> Program {
    Program { name, server: line[0], client: line[1], ready: Ready::Cm(None), proof }
}

/// Command lines of a server and its client.
macro_rules! lines {
    ($line:literal) => {
        [$line, concat!($line, " {tcp}")]
    };
}

/// Command lines of perftest. An ACK timeout of 1.1 s (code 18), because its own of 67 ms is short on a
/// busy machine.
macro_rules! perftest {
    ($line:literal) => {
        [
            concat!($line, " -F -n 200 -u 18 -x {gid} -p {port}"),
            concat!($line, " -F -n 200 -u 18 -x {gid} -p {port} {tcp}"),
        ]
    };
}

/// Programs that are run over IPv4 and IPv6.
pub(super) const PROGRAMS: &[Program] = &[
    by_tcp(
        "ibv_rc_pingpong",
        lines!("ibv_rc_pingpong -c -n 200 -g {gid} -p {port}"),
        "200 iters in",
    ),
    by_tcp(
        "ibv_uc_pingpong",
        lines!("ibv_uc_pingpong -c -n 200 -g {gid} -p {port}"),
        "200 iters in",
    ),
    by_tcp(
        "ibv_ud_pingpong",
        lines!("ibv_ud_pingpong -c -n 200 -s 1000 -g {gid} -p {port}"),
        "200 iters in",
    ),
    by_cm(
        "rping -v",
        [
            "rping -s -v -C 50 -S 4000 -a {to} -p {port}",
            "rping -c -v -V -C 50 -S 4000 -a {to} -p {port}",
        ],
        "ping data: rdma-ping-49:",
    ),
    by_cm(
        "ucmatose",
        [
            "ucmatose -c 10 -C 20 -S 3000 -b {to} -p {port}",
            "ucmatose -c 10 -C 20 -S 3000 -s {to} -p {port}",
        ],
        "return status 0",
    ),
    Program {
        name: "udaddy",
        server: "udaddy -c 5 -C 20 -S 900 -b {to}",
        client: "udaddy -c 5 -C 20 -S 900 -s {to}",
        ready: Ready::Cm(Some(UDADDY)),
        proof: "return status 0",
    },
    by_tcp("ib_send_bw", perftest!("ib_send_bw -s 16384"), RESULT),
    by_tcp("ib_write_bw", perftest!("ib_write_bw -s 16384"), RESULT),
    by_tcp("ib_read_bw", perftest!("ib_read_bw -s 16384"), RESULT),
    by_tcp("ib_atomic_lat", perftest!("ib_atomic_lat"), STARTED),
];

/// Programs that are run over IPv4 only.
pub(super) const MORE: &[Program] = &[
    Program {
        name: "mckey",
        // The program's output would be delayed by buffering when it is a file.
        server: "stdbuf -oL mckey -m {group} -b {here} -C 10 -S 500",
        client: "mckey -m {group} -b {here} -C 10 -S 500 -s",
        ready: Ready::Says("joined dgid"),
        proof: "return status 0",
    },
    by_tcp("ib_send_lat", perftest!("ib_send_lat"), RESULT),
    by_tcp("ib_send_bw -c UD", perftest!("ib_send_bw -c UD -s 1024"), RESULT),
    by_tcp("ib_atomic_bw -A CMP_AND_SWAP", perftest!("ib_atomic_bw -A CMP_AND_SWAP"), RESULT),
];

/// Checks that both exit successfully and print the proof.
pub(super) fn run(guest: &Guest, check: &Check, program: &Program) -> Result<()> {
    let [server_at, client_at] = [check.asks.server(), check.asks.client()];
    let mut server = start(guest, check, server_at, program.server)?;
    match program.ready {
        Ready::Tcp => tcp_listens(&mut server, guest.port())?,
        Ready::Cm(port) => cm_listens(guest, &mut server, server_at, port.unwrap_or(guest.port()))?,
        Ready::Says(words) => server.says(words, guest.timeout())?,
    }
    let mut client = start(guest, check, client_at, program.client)?;
    let ended = if program.name.starts_with("rping") { rping::ended } else { Process::succeed };
    ended(&mut client, guest.timeout())?;
    ended(&mut server, guest.timeout())?;
    for (who, process) in [("server", &server), ("client", &client)] {
        let said = process.said();
        ensure!(said.contains(program.proof), "the {who} does not print {:?}", program.proof);
    }
    Ok(())
}

fn start(guest: &Guest, check: &Check, at: Place, line: &str) -> Result<Process> {
    let mut line = line
        .replace("{to}", check.asks.server().address(check.family))
        .replace("{tcp}", check.asks.server().address(Family::V4))
        .replace("{here}", at.address(check.family))
        .replace("{port}", &guest.port().to_string())
        .replace("{group}", &group(guest, check));
    if line.contains("{gid}") {
        line = line.replace("{gid}", &gid_index(guest, at, check.family)?);
    }
    launch(guest, at, &line.split_whitespace().collect::<Vec<_>>())
}

/// Runs a program on one of the sides.
fn launch(guest: &Guest, at: Place, words: &[&str]) -> Result<Process> {
    match at {
        Place::Kernel => guest.start(at, words[0], &words[1..]),
        Place::Rdmux => guest.start(at, "rdmux", &[&["run", "--"], words].concat()),
    }
}

/// A group for each direction of each check.
fn group(guest: &Guest, check: &Check) -> String {
    let direction = if check.asks == Asks::Kernel { 1 } else { 2 };
    format!("239.78.{direction}.{}", guest.port() % 200)
}

/// Returns the index of a side's address in its GID table.
fn gid_index(guest: &Guest, at: Place, family: Family) -> Result<String> {
    let gid = match at.address(family).parse()? {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    let index = match at {
        Place::Kernel => index_in_sysfs(gid),
        Place::Rdmux => index_in_devinfo(gid, &guest.devinfo(devinfo)?),
    };
    index.with_context(|| format!("the device has no GID {gid}"))
}

/// Returns the output of `ibv_devinfo` for rdmux's device.
fn devinfo(guest: &Guest) -> Result<String> {
    let mut devinfo = launch(guest, Place::Rdmux, &["ibv_devinfo", "-v"])?;
    devinfo.succeed(WAIT)?;
    Ok(devinfo.said())
}

/// Finds the index in lines like `GID[  1]: ::ffff:10.77.0.1, RoCE v2`.
fn index_in_devinfo(gid: Ipv6Addr, devinfo: &str) -> Option<String> {
    devinfo.lines().find_map(|line| {
        let (index, rest) = line.trim().strip_prefix("GID[")?.split_once("]:")?;
        let (address, kind) = rest.split_once(',')?;
        let found = address.trim().parse() == Ok(gid) && kind.trim() == "RoCE v2";
        found.then(|| index.trim().to_owned())
    })
}

/// Finds the index in the files of the kernel's device. A free entry cannot be read.
fn index_in_sysfs(gid: Ipv6Addr) -> Option<String> {
    (0..16).map(|index| index.to_string()).find(|index| {
        let read =
            |file: String| fs::read_to_string(format!("{RXE_PORT}/{file}")).unwrap_or_default();
        read(format!("gids/{index}")).trim().parse() == Ok(gid)
            && read(format!("gid_attrs/types/{index}")).trim() == "RoCE v2"
    })
}

/// Waits until a process listens on a TCP port.
fn tcp_listens(process: &mut Process, port: u16) -> Result<()> {
    /// The state `TCP_LISTEN` in `/proc/net/tcp`.
    const LISTEN: &str = "0A";
    let port = format!(":{port:04X}");
    process.until("a listener on TCP", WAIT, |process| {
        let tables = ["tcp", "tcp6"].map(|t| format!("/proc/{}/net/{t}", process.id()));
        let listens = |line: &str| {
            let mut words = line.split_whitespace().skip(1);
            let local = words.next();
            local.is_some_and(|l| l.ends_with(&port)) && words.nth(1) == Some(LISTEN)
        };
        let read = |table| fs::read_to_string(table).unwrap_or_default();
        Ok(tables.into_iter().any(|table| read(table).lines().any(listens)))
    })
}

/// Waits until a process on a side listens on this port of the connection manager.
pub(super) fn cm_listens(guest: &Guest, server: &mut Process, at: Place, port: u16) -> Result<()> {
    if at == Place::Kernel {
        return guest.kernel_listens(port);
    }
    let wanted = format!(":{port}\"");
    server.until("a listener of rdmux", WAIT, |_| {
        let args = ["host", "status", "default", "--json"];
        let mut status = guest.start(at, "rdmux", &args)?;
        if !status.finish(WAIT)?.success() {
            // The service starts when the server needs it.
            return Ok(false);
        }
        let json = status.said();
        // Each id is a JSON object of its own, with its state and its address.
        Ok(json.split('}').any(|id| id.contains("\"LISTEN\"") && id.contains(&wanted)))
    })
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::{MORE, PROGRAMS, index_in_devinfo};

    #[test]
    fn client_command_lines_contain_the_server_address() {
        for program in PROGRAMS.iter().chain(MORE) {
            let told = ["{to}", "{tcp}", "{group}"].iter().any(|at| program.client.contains(at));
            assert!(told, "{}", program.name);
            assert!(program.client.starts_with(program.name.split(' ').next().unwrap()));
        }
    }

    #[test]
    fn a_gid_is_found_by_its_address() {
        let devinfo = "\t\tport:\t1\n\t\t\tGID[  0]:\t\t::ffff:10.77.0.2, RoCE v2\n\
            \t\t\tGID[ 11]:\t\tfd77::2, IB/RoCE v1\n\t\t\tGID[ 12]:\t\tfd77::2, RoCE v2\n";
        let index = |gid: Ipv6Addr| index_in_devinfo(gid, devinfo);
        assert_eq!(index(Ipv4Addr::new(10, 77, 0, 2).to_ipv6_mapped()).as_deref(), Some("0"));
        assert_eq!(index("fd77::2".parse().unwrap()).as_deref(), Some("12"));
        assert_eq!(index("fd77::1".parse().unwrap()), None);
    }
}
