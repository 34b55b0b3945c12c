//! A C program on Debian's librdmacm, over rdmux's libibverbs. The library queries rdmux's ACM service by itself, and its result is that
//! of subnet administration.
//!
//! The program only calls rdma_getaddrinfo(3), because the rest of that library needs the kernel's device.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use rdmux_wire::mad::Method;
use rdmux_wire::sa::{PathRecord, PathRecordMask, SaMad};

use super::TIMEOUT;
use super::client::Client;
use super::ground::{Ground, HOSTS};
use crate::process::Process;
use crate::stage::find_program;

/// The path of Debian's library.
const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/librdmacm.so.1";

/// The flags of a path for all purposes, in both directions.
const FLAGS: u32 = 0x2b;

/// The size of a path record.
const LEN: usize = 64;

/// Checks that rdma_getaddrinfo(3) of Debian's library returns the path that subnet administration knows.
pub(crate) fn finds_the_route(ground: &Ground) -> Result<()> {
    ensure!(Path::new(LIBRARY).is_file(), "librdmacm1 is not installed");
    let program = compile(ground.dir())?;
    let mut services = Vec::new();
    for host in HOSTS {
        services.push(serve(ground, host)?);
    }
    let [own, other] = HOSTS.map(|host| ground.address(host));
    let (own, other) = (own?, other?);
    // The second host's port is also that of the client of administration.
    let found = ground.said_on(HOSTS[1], &format!("{} {LIBRARY} {own}", program.display()))?;
    let route = found.lines().find_map(|line| line.split_once(" route ")).map(|(_, route)| route);
    let route = bytes(route.with_context(|| format!("no route in {found:?}"))?)?;
    let (flags, record) = route.split_at_checked(8).context("the route has no record")?;
    ensure!(flags[..4] == FLAGS.to_ne_bytes(), "the route has flags {flags:02x?}");
    let record: [u8; LEN] = record.try_into().context("the route has another length")?;
    let told = administration_says(ground, &PathRecord::from_bytes(&record))?;
    ensure!(
        record == told,
        "the path to {other} is {record:02x?}; subnet administration returns {told:02x?}"
    );
    Ok(())
}

/// Starts rdmux's service on a host, whose port has the host's IP address.
fn serve(ground: &Ground, host: &str) -> Result<Process> {
    let ip = ground.address(host)?;
    let [addresses, options] =
        ["addr", "opts"].map(|it| ground.dir().join(format!("{host}-{it}.cfg")));
    fs::write(&addresses, format!("{ip} rdmux_ib0 1 default\n"))?;
    fs::write(&options, "route_prot sa\nsupport_ips_in_addr_cfg 1\n")?;
    let (ib_acm, addresses, options) =
        (ground.beside("ib_acm"), addresses.display(), options.display());
    let line = format!("{} -P -A {addresses} -O {options}", ib_acm.display());
    let mut service = ground.start(host, &format!("{host}-ib_acm"), &line)?;
    let socket = ground.dir().join(format!("run/hosts/{host}/acm/ibacm.sock"));
    service.until("listening", TIMEOUT, |_| Ok(socket.exists()))?;
    Ok(service)
}

fn compile(folder: &Path) -> Result<PathBuf> {
    let (source, program) = (folder.join("route.c"), folder.join("route"));
    fs::write(&source, include_str!("../../c/route.c"))?;
    let mut cc = Command::new(find_program("cc").context("cc is not installed")?);
    cc.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-o"]).args([&program, &source]);
    let out = cc.arg("-ldl").output().context("cc")?;
    ensure!(out.status.success(), "cc: {}", String::from_utf8_lossy(&out.stderr));
    Ok(program)
}

/// Returns administration's record for the ends of a path.
fn administration_says(ground: &Ground, path: &PathRecord) -> Result<[u8; LEN]> {
    let ends = PathRecord { sgid: path.sgid, dgid: path.dgid, ..PathRecord::default() };
    let mask = PathRecordMask::SGID | PathRecordMask::DGID;
    let mut client = Client::open(ground)?;
    let answer = client.ask(Method::GET, PathRecord::ATTR_ID, &ends.to_bytes(), mask.bits())?;
    let answer = SaMad::parse(&answer)?;
    answer.data.get(..LEN).and_then(|data| data.try_into().ok()).context("the answer is too short")
}

fn bytes(hex: &str) -> Result<Vec<u8>> {
    let pairs = hex.as_bytes().chunks(2).map(std::str::from_utf8);
    let bytes = pairs.map(|pair| Ok(u8::from_str_radix(pair?, 16)?)).collect::<Result<_>>();
    bytes.with_context(|| format!("{hex:?} is not hexadecimal"))
}
