//! The C programs of `conformance/c` on the shared object, on virtual hosts of their own.

mod documented;

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::report::Report;
use crate::rows::Rows;
use crate::sh;

/// The programs, in an order in which earlier failures explain later ones.
const PROGRAMS: &[&str] = &[
    "loading",
    "arguments",
    "adapters",
    "limits",
    "cm_arguments",
    "cm_xrc",
    "hostile",
    "descriptors",
    "threads",
    "forks",
    "unmapped",
    "exits",
    "xrc",
    "xrc_number",
    "iwarp",
    "umad",
    "umad_agents",
    "umad_transfers",
    "port_events",
    "infiniband",
    "native",
    "cm_acm",
    "multicast",
    "migration",
    "cm_messages",
    "cycles",
];

/// The name of the documentation's programs.
const DOCUMENTED: &str = "documented";

/// Programs that run a second time, on a subnet that the fabric's manager manages. In other programs on a fabric the test is
/// the manager.
const MANAGED_TOO: &[&str] = &["xrc_number", "umad_agents", "umad_transfers"];

/// The program that runs only on a host with two ports.
const TWO_PORTS: &str = "infiniband";

/// The program that runs without a subnet, and on a host with two ports.
const BOTH_LINKS: &str = "native";

/// The program that runs on a host with two addresses, and on one with two ports.
const TWO_PATHS: &str = "migration";

/// Another program that runs on a host with two addresses, and on one with two ports.
const TWO_PATHS_OF_CM: &str = "cm_messages";

/// The header of programs that need a port of a subnet.
const ON_FABRIC: &str = "\"umad_fixture.h\"";

/// Programs that include it, and those on a fabric, are linked with its library.
const UMAD_HEADER: &str = "/usr/include/infiniband/umad.h";

/// The time limit of a program. Each of its tests has a limit of its own, so this is for unexpected hangs.
const LIMIT: Duration = Duration::from_secs(300);

/// How long the service may take to notice that a process has ended.
const TIMEOUT: Duration = Duration::from_secs(20);

pub(super) fn run(only: &[String], report: &mut Report) {
    if !Path::new("/usr/include/infiniband/verbs.h").is_file() {
        return report
            .skip("behaviour of the C library", "no headers (libibverbs-dev, librdmacm-dev)");
    }
    let host = match Host::start() {
        Ok(host) => host,
        Err(e) => return report.fail("behaviour of the C library", &format!("{e:#}")),
    };
    for name in only.iter().filter(|name| !PROGRAMS.contains(&&***name) && *name != DOCUMENTED) {
        report
            .fail(name, "no program of conformance/c that runs on the shared object has this name");
    }
    for program in PROGRAMS {
        if !only.is_empty() && !only.iter().any(|name| name == program) {
            continue;
        }
        if (program.starts_with("umad")
            || ["port_events", "multicast", TWO_PORTS, BOTH_LINKS].contains(program))
            && !Path::new(UMAD_HEADER).is_file()
        {
            report.skip(program, "no headers (libibumad-dev)");
            continue;
        }
        let subnets = match *program {
            TWO_PORTS => vec![Subnet::TwoPorts],
            BOTH_LINKS => vec![Subnet::Plain, Subnet::TwoPorts],
            TWO_PATHS | TWO_PATHS_OF_CM => vec![Subnet::Addresses, Subnet::TwoPorts],
            _ if MANAGED_TOO.contains(program) => vec![Subnet::Plain, Subnet::Managed],
            _ => vec![Subnet::Plain],
        };
        for (n, subnet) in subnets.into_iter().enumerate() {
            let mut rows = Rows::default();
            let prefix = if n == 0 { "" } else { subnet.prefix() };
            if let Err(e) = host.run(program, subnet, &mut rows) {
                report.fail(&format!("{prefix}{program}"), &format!("{e:#}"));
            }
            rows.named(prefix).report(report);
            report.check(
                &format!("{prefix}{program} leaves nothing at the service"),
                host.is_empty(),
            );
        }
    }
    if only.is_empty() || only.iter().any(|name| name == DOCUMENTED) {
        documented::run(&host, report);
    }
}

/// The subnets that programs may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subnet {
    /// A subnet without a manager.
    Plain,
    /// A subnet that the fabric's manager manages.
    Managed,
    /// A managed subnet with four LIDs per port and a second partition. The host has two ports.
    TwoPorts,
    /// No subnet: the host has two addresses.
    Addresses,
}

impl Subnet {
    /// Returns the name of the fabric.
    const fn fabric(self) -> &'static str {
        match self {
            Self::Plain => "default",
            Self::Managed => "managed",
            Self::TwoPorts => "ports",
            Self::Addresses => "none",
        }
    }

    /// Returns the name of the host on this subnet.
    const fn host(self) -> &'static str {
        match self {
            Self::Plain => Host::NAME,
            Self::Managed => Host::MANAGED,
            Self::TwoPorts => Host::TWO_PORTS,
            Self::Addresses => Host::TWO_ADDRESSES,
        }
    }

    /// Returns the prefix of the rows on this subnet.
    const fn prefix(self) -> &'static str {
        match self {
            Self::Plain | Self::Addresses => "",
            Self::Managed => "managed: ",
            Self::TwoPorts => "two ports: ",
        }
    }
}

/// A virtual host, three more that programs may open, and two on managed subnets, in their own runtime directory.
struct Host {
    /// The folder of programs and of links to the library.
    place: PathBuf,
    runtime: PathBuf,
    rdmux: PathBuf,
    /// The fabrics that were brought up.
    fabrics: RefCell<Vec<Subnet>>,
}

impl Host {
    const NAME: &str = "abi";
    const OTHER: &str = "abi-other";
    /// The host whose device has small limits.
    const SMALL: &str = "abi-small";
    /// The host that uses the first revision of MPA when it connects.
    const OLD: &str = "abi-old";
    /// The host on a managed subnet.
    const MANAGED: &str = "abi-managed";
    /// The host with two ports.
    const TWO_PORTS: &str = "abi-ports";
    /// The host with two addresses: the default host, whose addresses are configured.
    const TWO_ADDRESSES: &str = "default";
    const ALL: [&str; 7] = [
        Self::NAME,
        Self::OTHER,
        Self::SMALL,
        Self::OLD,
        Self::MANAGED,
        Self::TWO_PORTS,
        Self::TWO_ADDRESSES,
    ];
    /// The second byte of the first host's address.
    const FIRST_NET: u8 = 79;
    /// The partitions of the subnet with two ports.
    const PARTITIONS: &str = "Default=0x7fff, ipoib: ALL=full;\nLab=0x20, ipoib: ALL=full;\n";
    /// The limits of the small device.
    const LIMITS: &str = "[limits]\n\
        max_qp = 6\nmax_cq = 5\nmax_pd = 4\nmax_mr = 5\nmax_mw = 3\nmax_srq = 3\nmax_ah = 4\n\
        max_mcast_grp = 2\nmax_mcast_qp_attach = 2\nmax_qp_wr = 64\nmax_cqe = 500\n\
        max_srq_wr = 40\nmax_sge = 5\nmax_inline_data = 16\nmax_rd_atomic = 3\nmax_init_rd_atomic = 5\n";

    fn start() -> Result<Self> {
        let library = super::shared_object()?;
        // The programs that it starts must be in the same folder.
        sh::build(&["rdmux", "ib_acme", "ib_acm"])?;
        let place = sh::target_dir().join("abi");
        let links = place.join("lib");
        fs::create_dir_all(&links).with_context(|| links.display().to_string())?;
        for name in ["libibverbs.so.1", "librdmacm.so.1", "libibumad.so.3"] {
            let link = links.join(name);
            if fs::read_link(&link).ok().as_ref() != Some(&library) {
                let _ = fs::remove_file(&link);
                std::os::unix::fs::symlink(&library, &link)
                    .with_context(|| link.display().to_string())?;
            }
        }
        // The folder has sockets, so its path must be short.
        let runtime = std::env::temp_dir().join(format!("rdmux-abi-{}", std::process::id()));
        // A killed process with the same number may have left it.
        let _ = fs::remove_dir_all(&runtime);
        fs::create_dir(&runtime).with_context(|| runtime.display().to_string())?;
        let rdmux = sh::target_dir().join("debug/rdmux");
        let host = Self { place, runtime, rdmux, fabrics: RefCell::default() };
        let config = host.runtime.join("small.toml");
        fs::write(&config, Self::LIMITS).with_context(|| config.display().to_string())?;
        let old = host.runtime.join("old.toml");
        fs::write(&old, "[iwarp]\nrevision = 1\n").with_context(|| old.display().to_string())?;
        for (name, net) in Self::ALL.into_iter().zip(Self::FIRST_NET..) {
            let address = Self::address(net);
            let mut up = host.command(&host.rdmux);
            up.args(["host", "up", name]);
            if name == Self::TWO_ADDRESSES {
                let addresses = host.runtime.join("addresses.toml");
                let next = Self::address(net + 1);
                fs::write(&addresses, format!("addresses = ['{address}', '{next}']\n"))?;
                up.env("RDMUX_CONFIG", &addresses);
            } else {
                up.args(["--addr", &address]);
            }
            if name == Self::SMALL {
                up.env("RDMUX_CONFIG", &config);
            }
            if name == Self::OLD {
                up.env("RDMUX_CONFIG", &old);
            }
            if [Self::SMALL, Self::OLD, Self::TWO_ADDRESSES].contains(&name) {
                // On a nonexistent fabric, since they might otherwise take all adapters before the other hosts attach.
                up.args(["--fabric", "absent"]);
            }
            if name == Self::MANAGED {
                up.args(["--fabric", Subnet::Managed.fabric()]);
            }
            if name == Self::TWO_PORTS {
                up.args(["--fabric", Subnet::TwoPorts.fabric()].repeat(2));
            }
            sh::run(&mut up)?;
        }
        Ok(host)
    }

    /// Returns the address of the host with this number.
    fn address(net: u8) -> String {
        let [.., high, low] = std::process::id().to_be_bytes();
        format!("127.{net}.{high}.{low}")
    }

    /// Returns the address of the host on a subnet.
    fn address_on(subnet: Subnet) -> String {
        let hosts = Self::ALL.into_iter().zip(Self::FIRST_NET..);
        let at = hosts.filter(|(name, _)| *name == subnet.host()).map(|(_, net)| net).next();
        Self::address(at.unwrap_or(Self::FIRST_NET))
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = sh::command(program);
        command.env("RDMUX_RUNTIME_DIR", &self.runtime).env("RDMUX_HOST", Self::NAME);
        command
    }

    /// Compiles a program and runs its tests.
    fn run(&self, name: &str, subnet: Subnet, rows: &mut Rows) -> Result<()> {
        let program = self.compile(name)?;
        let library = self.place.join("lib");
        let mut list = sh::command(&program);
        rows.expect(&sh::output(list.arg("--list").env("LD_LIBRARY_PATH", &library))?);
        let source = fs::read_to_string(sources().join(format!("{name}.c")))?;
        let on_fabric =
            source.contains(ON_FABRIC) || matches!(subnet, Subnet::Managed | Subnet::TwoPorts);
        let mut run = if on_fabric {
            self.bring_up(subnet)?;
            // The program examines the files of the adapter, which the command shows.
            let mut run = self.command(&self.rdmux);
            run.args(["run", "--device", "ib", "--"]).arg(&program);
            run
        } else {
            self.command(&program)
        };
        run.env("LD_LIBRARY_PATH", &library).env("RDMUX_HOST", subnet.host());
        run.env("RDMUX_OTHER_HOST", Self::OTHER).env("RDMUX_SMALL_HOST", Self::SMALL);
        run.env("RDMUX_OLD_HOST", Self::OLD);
        run.env("RDMUX_ADDRESS", Self::address_on(subnet));
        if name == "umad" {
            // The program's tests check which files exist.
            run.env("LD_PRELOAD", sh::target_dir().join("debug/deps/librdmux_view.so"));
        }
        let ended_well = sh::run_lines_within(LIMIT, &mut run, |line| rows.take(line))?;
        ensure!(ended_well || rows.any_failed(), "the program did not run to its end");
        if on_fabric { self.has_no_files(subnet) } else { Ok(()) }
    }

    /// Brings up the fabric that the host of this subnet attaches to. It stays up for further programs.
    fn bring_up(&self, subnet: Subnet) -> Result<()> {
        if self.fabrics.borrow().contains(&subnet) {
            return Ok(());
        }
        self.fabrics.borrow_mut().push(subnet);
        let mut up = self.command(&self.rdmux);
        up.args(["fabric", "up", "--shape", "switch:4", "--fabric", subnet.fabric()]);
        let devices = ["devices", "--device", "ib", "--json"];
        match subnet {
            Subnet::Plain | Subnet::Addresses => sh::run(up.arg("--no-sm")),
            Subnet::Managed => {
                sh::run(&mut up)?;
                self.until_told(subnet, &devices, "\"state\":\"active\"", 1)
            }
            Subnet::TwoPorts => {
                let partitions = self.runtime.join("partitions.conf");
                fs::write(&partitions, Self::PARTITIONS)?;
                up.args(["--sm-lmc", "2", "--partitions"]).arg(&partitions);
                sh::run(&mut up)?;
                self.until_told(subnet, &devices, "\"state\":\"active\"", 2)
            }
        }
    }

    /// Waits until the fabric has no open management interface except those of hosts' services, which query subnet
    /// administration. Those of killed programs must be gone, too.
    fn has_no_files(&self, subnet: Subnet) -> Result<()> {
        let status = ["fabric", "status", "--fabric", subnet.fabric(), "--json"];
        let only_services = |told: &str| {
            let of = |comm: &str| told.matches(&format!("\"comm\":{comm}")).count();
            told.contains("\"files\":") && of("\"") == of("\"rdmux\"")
        };
        self.until(subnet, &status, "that no program has a file open", only_services)
    }

    /// Waits until the rdmux command, on the host of this subnet, prints a text at least this many times, ignoring spaces.
    fn until_told(&self, subnet: Subnet, line: &[&str], what: &str, times: usize) -> Result<()> {
        self.until(subnet, line, what, |told| told.matches(what).count() >= times)
    }

    /// Waits until the output of the rdmux command, without spaces, satisfies a condition.
    fn until(
        &self,
        subnet: Subnet,
        line: &[&str],
        what: &str,
        is_right: impl Fn(&str) -> bool,
    ) -> Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let mut command = self.command(&self.rdmux);
            let told = sh::output(command.args(line).env("RDMUX_HOST", subnet.host()))?;
            let text: String = told.split_whitespace().collect();
            if is_right(&text) {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "`rdmux {}` did not report {what} in time:\n{told}",
                line.join(" ")
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn compile(&self, name: &str) -> Result<PathBuf> {
        let sources = sources();
        let source = sources.join(format!("{name}.c"));
        let text = fs::read_to_string(&source).with_context(|| source.display().to_string())?;
        let program = self.place.join(name);
        let mut cc = sh::command("cc");
        cc.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
        cc.arg(source).arg(sources.join("check.c"));
        cc.arg("-I").arg(sh::root().join("crates/capi/include"));
        let xrc = text.contains("\"xrc_fixture.h\"");
        if xrc || text.contains("\"fixture.h\"") {
            cc.arg(sources.join("fixture.c"));
        }
        if xrc {
            // Symbols that only rdmux's library has, which must come before the distribution's.
            cc.arg(sources.join("xrc_fixture.c"));
            cc.arg(self.place.join("lib/libibverbs.so.1"));
        }
        if ["<rdmux/cm.h>", "<rdmux/iwarp.h>", "<rdmux/multicast.h>"]
            .iter()
            .any(|header| text.contains(header))
        {
            cc.arg(self.place.join("lib/librdmacm.so.1"));
        }
        // A program that loads the libraries itself must not be linked with them.
        cc.args(["-Wl,--as-needed", "-pthread", "-libverbs", "-lrdmacm"]);
        if text.contains(ON_FABRIC) {
            cc.arg(sources.join("umad_fixture.c"));
        }
        if text.contains(ON_FABRIC) || text.contains("<infiniband/umad.h>") {
            cc.arg("-libumad");
        }
        sh::run(&mut cc)?;
        Ok(program)
    }

    /// Waits until no service has any process, connection id or ring.
    fn is_empty(&self) -> Result<()> {
        Self::ALL.into_iter().try_for_each(|name| self.is_idle(name))
    }

    fn is_idle(&self, name: &str) -> Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let mut status = self.command(&self.rdmux);
            let status = sh::output(status.args(["host", "status", name]))?;
            let left: Vec<&str> = status.lines().filter(|line| tells_of_something(line)).collect();
            if left.is_empty() {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("the program left objects at the service:\n{status}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        for subnet in self.fabrics.take() {
            let mut down = self.command(&self.rdmux);
            let _ = sh::run(down.args(["fabric", "down", "--fabric", subnet.fabric()]));
        }
        for name in Self::ALL {
            let mut down = self.command(&self.rdmux);
            let _ = sh::run(down.args(["host", "down", name]));
        }
        let _ = fs::remove_dir_all(&self.runtime);
    }
}

/// Returns the folder of the programs.
fn sources() -> PathBuf {
    sh::root().join("conformance/c")
}

/// The tables of `rdmux host status` that are shown only when they have entries.
const TABLES: &[&str] =
    &["PROCESSES", "CONNECTIONS AND LISTENERS", "XRC DOMAINS", "XRC RECEIVE QUEUE PAIRS"];

/// Returns whether a line of `rdmux host status` shows a client or its objects.
fn tells_of_something(line: &str) -> bool {
    let in_use =
        line.strip_prefix("slots").is_some_and(|l| !l.trim_start().starts_with("0 in use, 0 "));
    in_use || TABLES.contains(&line)
}

#[cfg(test)]
mod tests {
    use super::tells_of_something;

    #[test]
    fn host_status_shows_whether_slots_rings_or_processes_exist() {
        assert!(!tells_of_something("slots      0 in use, 0 ring pairs"));
        assert!(tells_of_something("slots      1 in use, 0 ring pairs"));
        assert!(tells_of_something("slots      0 in use, 1 ring pairs"));
        assert!(tells_of_something("PROCESSES"));
        assert!(tells_of_something("XRC DOMAINS"));
        assert!(!tells_of_something("host       abi"));
    }
}
