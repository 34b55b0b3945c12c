//! The distribution's programs against themselves: on one side on the kernel's driver, on the other,
//! through `rdmux run`, on ours.

use std::net::IpAddr;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::guest::{Process, WAIT, wait_for};
use super::{Asks, Check, Family, Guest, Place};

/// A program, and how it is run on both sides.
///
/// In the command lines `{to}` stands for the server's address, `{here}` for that of the side itself,
/// `{gid}` for where that is in its GID table, `{port}` for a port and `{group}` for a multicast group.
#[derive(Debug, PartialEq, Eq)]
pub struct Program {
    /// The program and its options, for the row's name.
    pub name: &'static str,
    server: &'static str,
    client: &'static str,
    ready: Ready,
    /// What both print when it went well, and an exit status of 0 does not tell.
    proof: &'static str,
}

/// How one sees that the server can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ready {
    /// It listens on TCP port `{port}`.
    Tcp,
    /// It listens on this port of the connection manager, or on `{port}`.
    Cm(Option<u16>),
    /// It is a member of `{group}`.
    Member,
}

/// The only port that udaddy knows.
const UDADDY: u16 = 7174;

/// A program whose server is told nothing but to be one, and whose client the server's address.
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
        [$line, concat!($line, " {to}")]
    };
}

/// Those that are run over IPv4 and IPv6.
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
    by_tcp("ib_send_bw", lines!("ib_send_bw -F -n 200 -s 16384 -x {gid} -p {port}"), "200 "),
    by_tcp("ib_write_bw", lines!("ib_write_bw -F -n 200 -s 16384 -x {gid} -p {port}"), "200 "),
    by_tcp("ib_read_bw", lines!("ib_read_bw -F -n 200 -s 16384 -x {gid} -p {port}"), "200 "),
    by_tcp("ib_atomic_lat", lines!("ib_atomic_lat -F -n 200 -x {gid} -p {port}"), "GID index"),
];

/// Those that are run over IPv4 only.
pub(super) const MORE: &[Program] = &[
    Program {
        name: "mckey",
        server: "mckey -m {group} -b {here} -C 10 -S 500",
        client: "mckey -m {group} -b {here} -C 10 -S 500 -s",
        ready: Ready::Member,
        proof: "return status 0",
    },
    by_cm("ib_send_bw -R", lines!("ib_send_bw -F -R -n 200 -s 16384 -p {port}"), "200 "),
    by_cm("ib_write_bw -R", lines!("ib_write_bw -F -R -n 200 -s 16384 -p {port}"), "200 "),
    by_tcp("ib_send_lat", lines!("ib_send_lat -F -n 200 -x {gid} -p {port}"), "200 "),
    by_tcp(
        "ib_send_bw -c UD",
        lines!("ib_send_bw -F -c UD -n 200 -s 1024 -x {gid} -p {port}"),
        "200 ",
    ),
    by_tcp(
        "ib_atomic_bw -A CMP_AND_SWAP",
        lines!("ib_atomic_bw -F -A CMP_AND_SWAP -n 200 -x {gid} -p {port}"),
        "GID index",
    ),
];

/// Both must end well and say so.
pub(super) fn run(guest: &Guest, check: &Check, program: &Program) -> Result<()> {
    let [server_at, client_at] = [check.asks.server(), check.asks.client()];
    // Our service is there before anybody asks how it is.
    let _holder = guest.our_service()?;
    let mut server = start(guest, check, server_at, program.server)?;
    match program.ready {
        Ready::Tcp => tcp_listens(guest, server_at)?,
        Ready::Cm(port) => cm_listens(guest, server_at, port.unwrap_or(guest.port()))?,
        Ready::Member => guest.member(server_at, &group(guest, check), true)?,
    }
    let mut client = start(guest, check, client_at, program.client)?;
    client.succeed(guest.patience())?;
    server.succeed(guest.patience())?;
    for (who, process) in [("server", &server), ("client", &client)] {
        let said = process.output();
        ensure!(said.contains(program.proof), "the {who} does not say {:?}", program.proof);
    }
    Ok(())
}

fn start(guest: &Guest, check: &Check, at: Place, line: &str) -> Result<Process> {
    let mut line = line
        .replace("{to}", check.asks.server().address(check.family))
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

/// Where the address of a side is in its GID table, as `ibv_devinfo` shows that:
/// `GID[  1]: ::ffff:10.77.0.1, RoCE v2`.
fn gid_index(guest: &Guest, at: Place, family: Family) -> Result<String> {
    let gid = match at.address(family).parse()? {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    let mut devinfo = launch(guest, at, &["ibv_devinfo", "-v"])?;
    devinfo.succeed(WAIT)?;
    let output = devinfo.output();
    let index = output.lines().find_map(|line| {
        let (index, rest) = line.trim().strip_prefix("GID[")?.split_once("]:")?;
        let (address, kind) = rest.split_once(',')?;
        let found = address.trim().parse() == Ok(gid) && kind.trim() == "RoCE v2";
        found.then(|| index.trim().to_owned())
    });
    index.with_context(|| format!("no GID {gid} in ibv_devinfo -v"))
}

/// Waits until somebody on a side listens on this check's TCP port.
fn tcp_listens(guest: &Guest, at: Place) -> Result<()> {
    /// The state `TCP_LISTEN` in `/proc/net/tcp`.
    const LISTEN: &str = "0A";
    let port = format!(":{:04X}", guest.port());
    wait_for("a listener on TCP", WAIT, || {
        let mut cat = match at {
            Place::Kernel => Command::new("cat"),
            Place::Rdmux => Command::new("ip"),
        };
        if at == Place::Rdmux {
            cat.args(["netns", "exec", "b", "cat"]);
        }
        let out = cat.args(["/proc/net/tcp", "/proc/net/tcp6"]).output()?;
        Ok(String::from_utf8_lossy(&out.stdout).lines().any(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words.len() > 3 && words[1].ends_with(&port) && words[3] == LISTEN
        }))
    })
}

/// Waits until somebody on a side listens on this port of the connection manager.
fn cm_listens(guest: &Guest, at: Place, port: u16) -> Result<()> {
    if at == Place::Kernel {
        return guest.kernel_listens(port);
    }
    let wanted = format!(":{port}\"");
    wait_for("a listener of ours", WAIT, || {
        let args = ["host", "status", "default", "--json"];
        let mut status = guest.start(at, "rdmux", &args)?;
        status.succeed(WAIT)?;
        let json = status.output();
        // Each id is an object of its own, with its state and its address.
        Ok(json.split('}').any(|id| id.contains("\"LISTEN\"") && id.contains(&wanted)))
    })
}

#[cfg(test)]
mod tests {
    use super::{MORE, PROGRAMS};

    #[test]
    fn clients_are_told_where_the_server_is() {
        for program in PROGRAMS.iter().chain(MORE) {
            let told = program.client.contains("{to}") || program.client.contains("{group}");
            assert!(told, "{}", program.name);
            assert!(program.client.starts_with(program.name.split(' ').next().unwrap()));
        }
    }
}
