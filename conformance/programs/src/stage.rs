//! The hosts between which programs run: two virtual ones, and default ones in network namespaces.
//!
//! All of them have runtime directories of their own, so that they do not meet anything else on
//! the machine; the namespaces separate the default hosts' sockets too.

mod namespace;
mod side;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

pub(crate) use self::namespace::Whose;
pub(crate) use self::side::{Side, find_program, is_assignment};
use crate::management::{Ground, ManagedBy};
use crate::ports;
use crate::process::Process;
use crate::row::{Device, Row, Trouble, Way};

/// The timeout of operations that take milliseconds, on a busy machine.
pub(crate) const SHORTLY: Duration = Duration::from_secs(30);

/// The state that rows share.
#[derive(Debug)]
pub(crate) struct Stage {
    logs: PathBuf,
    /// The folder of the program and the shared object, under the names that programs know, and of the
    /// hosts' runtime directories. A plain user can read it.
    work: PathBuf,
    /// The number of rows that have been run.
    rows: u32,
    pair: Option<[Side; 2]>,
    /// Two virtual hosts on a fabric.
    subnet: Option<[Side; 2]>,
    /// Two more, on a fabric that OpenSM manages from the first.
    managed: Option<[Side; 2]>,
    /// Two that have two ports on a fabric.
    ports: Option<[Side; 2]>,
    solo: Option<Side>,
    /// Whether that host is on a fabric.
    solo_is_plugged: bool,
    wire: Option<Wire>,
    /// Two sides in network namespaces of their own, for each kind of owner that a row needed.
    namespaces: Vec<(Whose, [Side; 2])>,
    /// The owners whose namespaces are on a fabric of the first one.
    joined: Vec<Whose>,
    /// The fabric of rows that only query one, with its manager.
    ground: Option<Ground>,
    /// The results of pyverbs' own tests on a device, once they have been run.
    pub(crate) pyverbs: Option<(Device, crate::pyverbs::Results)>,
    /// Programs that hold namespaces open.
    _holders: Vec<Process>,
}

/// Two sides on a wire, under their IPv4 and under their IPv6 addresses.
#[derive(Debug)]
struct Wire {
    v4: [Side; 2],
    v6: [Side; 2],
}

impl Stage {
    /// Creates a stage. `rdmux` is the program, with the shared object beside it.
    ///
    /// # Errors
    /// When they do not exist or cannot be copied.
    pub(crate) fn new(rdmux: &Path, logs: &Path) -> Result<Self> {
        fs::create_dir_all(logs).with_context(|| logs.display().to_string())?;
        let work = std::env::temp_dir().join(format!("rdmux-programs-{}", std::process::id()));
        side::lay_out(&work, rdmux)?;
        Ok(Self {
            logs: logs.to_path_buf(),
            work,
            rows: 0,
            pair: None,
            subnet: None,
            managed: None,
            ports: None,
            solo: None,
            solo_is_plugged: false,
            wire: None,
            namespaces: Vec::new(),
            joined: Vec::new(),
            ground: None,
            pyverbs: None,
            _holders: Vec::new(),
        })
    }

    /// Returns the environment of a row: its running hosts, a port and folders for its output.
    ///
    /// # Errors
    /// When the hosts cannot be started.
    pub(crate) fn scene(&mut self, row: &Row) -> Result<Scene, Trouble> {
        self.rows += 1;
        let [server, client] = match row.way {
            Way::Ring if row.device == Device::Ib => {
                let [one, _] = self.subnet()?;
                [one.clone(), one]
            }
            Way::Udp if row.device == Device::Ib => self.subnet()?,
            Way::OpenSm => self.managed()?,
            Way::OwnPorts => {
                let [one, _] = self.ports()?;
                [one.clone(), one]
            }
            Way::Ports => self.ports()?,
            Way::Ring => {
                let [one, _] = self.pair()?;
                [one.clone(), one]
            }
            Way::Udp => self.pair()?,
            Way::Default | Way::Loopback6 => {
                let address = if row.way == Way::Default { "127.0.0.1" } else { "::1" };
                let solo = self.solo()?.at(address)?;
                if row.device == Device::Ib {
                    self.plug_solo(&solo)?;
                }
                [solo.clone(), solo]
            }
            Way::Wire4 => self.wire()?.v4.clone(),
            Way::Wire6 => self.wire()?.v6.clone(),
            Way::Namespaces | Way::UserNamespaces => {
                let user = row.way == Way::UserNamespaces;
                let whose = if user { Whose::PlainUsers } else { Whose::Ours };
                match row.device {
                    Device::Ib => self.joined(whose)?,
                    _ => self.namespaces(whose)?,
                }
            }
            Way::Management => return Err(anyhow::anyhow!("a fabric has no scene").into()),
        };
        let logs = self.logs_of(&row.title);
        let scratch = self.work.join(format!("scratch-{}", self.rows));
        side::public_folder(&scratch)?;
        let (device, crossed) = (row.device, server.crossed());
        Ok(Scene {
            device,
            crossed,
            server,
            client,
            port: ports::free()?,
            group: self.group(),
            logs,
            scratch,
        })
    }

    /// Returns the folder for files of rows, which is removed afterwards.
    pub(crate) fn work(&self) -> &Path {
        &self.work
    }

    /// Returns the prefix of a row's logs.
    fn logs_of(&self, title: &str) -> PathBuf {
        let name = title.chars().map(|c| if c.is_alphanumeric() { c } else { '_' });
        let name: String = name.take(60).collect();
        self.logs.join(format!("{:03}-{name}", self.rows))
    }

    /// Brings up a fabric for one row, with hosts and without a manager.
    ///
    /// # Errors
    /// When it does not come up.
    pub(crate) fn ground(&mut self, shape: &str, title: &str) -> Result<Ground> {
        self.ground_with(shape, &["--no-sm"], title)
    }

    /// Brings up a fabric for one row, with hosts. The options are those of `rdmux fabric up` for its manager.
    ///
    /// # Errors
    /// When it does not come up.
    pub(crate) fn ground_with(
        &mut self,
        shape: &str,
        options: &[&str],
        title: &str,
    ) -> Result<Ground> {
        self.rows += 1;
        self.leave_ground();
        let dir = self.work.join(format!("fabric-{}", self.rows));
        side::private_folder(&dir)?;
        Ground::up(&self.work.join("rdmux"), dir, shape, options, self.logs_of(title))
    }

    /// Returns a fabric of this shape with a manager, which rows share.
    ///
    /// # Errors
    /// When it does not come up.
    pub(crate) fn managed_ground(
        &mut self,
        shape: &str,
        by: ManagedBy,
        title: &str,
    ) -> Result<&Ground> {
        if self.ground.as_ref().is_some_and(|ground| ground.is_like(shape, by)) {
            self.rows += 1;
        } else {
            let ground = match by {
                ManagedBy::OpenSm => self.ground(shape, title)?.managed_by_opensm()?,
                ManagedBy::Fabric => self.ground_with(shape, &[], title)?.managed_by_itself()?,
            };
            self.ground = Some(ground);
        }
        let logs = self.logs_of(title);
        let ground = self.ground.as_mut().context("a fabric")?;
        ground.log_to(logs);
        Ok(ground)
    }

    /// Shuts down the fabric that rows share: the next row gets another one.
    pub(crate) fn leave_ground(&mut self) {
        self.ground = None;
    }

    /// Returns a multicast group that no other row joins.
    fn group(&self) -> String {
        let [.., high, low] = self.rows.to_be_bytes();
        format!("239.{}.{high}.{low}", std::process::id() % 255)
    }

    fn pair(&mut self) -> Result<[Side; 2]> {
        if self.pair.is_none() {
            let runtime = self.work.join("virtual");
            let up = |name: &str| Side::virtual_host(&self.work, &runtime, name, &[]);
            self.pair = Some([up("one")?, up("two")?]);
        }
        self.pair.clone().context("two virtual hosts")
    }

    /// Returns two hosts on a fabric with a manager of its own, once their ports are up.
    fn subnet(&mut self) -> Result<[Side; 2]> {
        if self.subnet.is_none() {
            let runtime = self.work.join("subnet");
            let up = |name: &str| Side::virtual_host(&self.work, &runtime, name, &[]);
            let sides = [up("one")?, up("two")?];
            bring_up_fabric(&sides, &[])?;
            self.subnet = Some(sides);
        }
        self.subnet.clone().context("two hosts on a fabric")
    }

    /// Returns two with OpenSM as the manager, on the first host.
    fn managed(&mut self) -> Result<[Side; 2]> {
        if self.managed.is_none() {
            let runtime = self.work.join("managed");
            let up = |name: &str| Side::virtual_host(&self.work, &runtime, name, &[]);
            let sides = [up("one")?, up("two")?];
            sides[0].rdmux(&["fabric", "up", "--shape", "switch:4", "--no-sm"])?;
            self.start_opensm(&sides[0], "managed")?;
            wait_for_ports(&sides)?;
            self.managed = Some(sides);
        }
        self.managed.clone().context("two hosts on a fabric that OpenSM manages")
    }

    /// Starts OpenSM on a host, with its files in a folder of that name.
    fn start_opensm(&mut self, side: &Side, name: &str) -> Result<()> {
        let dir = self.work.join(format!("opensm-{name}"));
        side::public_folder(&dir)?;
        let dir = dir.display();
        let (tmp, cache) = (format!("OSM_TMP_DIR={dir}"), format!("OSM_CACHE_DIR={dir}"));
        let log = format!("{dir}/log");
        let words = [&tmp[..], &cache, "opensm", "-f", &log];
        let command = side.command(&["--device", "ib"], &[], &words);
        let output = self.logs.join(format!("{name}-opensm.log"));
        self._holders.push(Process::start(command, "opensm", &output)?);
        Ok(())
    }

    /// Returns two with two ports each, four LIDs for each port, and the partition 0x20 in addition to the default one.
    fn ports(&mut self) -> Result<[Side; 2]> {
        const PARTITIONS: &str = "Default=0x7fff, ipoib: ALL=full;\nLab=0x20: ALL=full;\n";
        if self.ports.is_none() {
            let runtime = self.work.join("ports");
            let options = ["--fabric", "default"].repeat(2);
            let up = |name: &str| Side::virtual_host(&self.work, &runtime, name, &options);
            let sides = [up("one")?, up("two")?];
            let file = self.work.join("partitions.conf");
            fs::write(&file, PARTITIONS)?;
            let file = file.to_str().context("a path")?;
            bring_up_fabric(&sides, &["--sm-lmc", "2", "--partitions", file])?;
            self.ports = Some(sides);
        }
        self.ports.clone().context("two hosts with two ports")
    }

    /// Attaches the default host to a fabric of its own.
    fn plug_solo(&mut self, solo: &Side) -> Result<()> {
        if !self.solo_is_plugged {
            bring_up_fabric(std::slice::from_ref(solo), &[])?;
            self.solo_is_plugged = true;
        }
        Ok(())
    }

    fn solo(&mut self) -> Result<Side> {
        if self.solo.is_none() {
            let enter = match namespace::alone(&self.logs, Whose::Ours) {
                Ok(held) => {
                    let enter = held.enter();
                    self._holders.push(held.into_process());
                    enter
                }
                // The machine's default host suffices, if no other process runs one.
                Err(_) => Vec::new(),
            };
            self.solo = Some(Side::default_host(&self.work, "solo", enter, true)?);
        }
        self.solo.clone().context("a default host")
    }

    fn wire(&mut self) -> Result<&Wire, Trouble> {
        if self.wire.is_none() {
            let ends = self.ends(Whose::Ours)?;
            let mut sides = Vec::new();
            match self.make_wire(ends, &mut sides) {
                Ok(wire) => self.wire = Some(wire),
                Err(e) => {
                    // The next row starts anew.
                    for side in &sides {
                        let _ = side.rdmux(&["host", "down"]);
                    }
                    return Err(e.into());
                }
            }
        }
        Ok(self.wire.as_ref().context("the row has no wire")?)
    }

    /// Creates two namespaces with a wire between them.
    fn ends(&self, whose: Whose) -> Result<[namespace::Held; 2], Trouble> {
        let left = namespace::alone(&self.logs, whose)
            .map_err(|e| Trouble::NotHere(format!("cannot create network namespaces: {e:#}")))?;
        Ok(namespace::wire(&self.logs, whose, left)?)
    }

    /// Starts the default hosts at both ends, and adds them to `sides`.
    fn make_wire(&mut self, ends: [namespace::Held; 2], sides: &mut Vec<Side>) -> Result<Wire> {
        for (name, end) in ["left", "right"].into_iter().zip(ends) {
            sides.push(Side::default_host(&self.work, name, end.enter(), false)?);
            self._holders.push(end.into_process());
        }
        let [left, right] = &sides[..] else { bail!("two ends") };
        let at = |[l, r]: [&str; 2]| Ok::<_, anyhow::Error>([left.at(l)?, right.at(r)?]);
        Ok(Wire { v4: at(namespace::V4)?, v6: at(namespace::V6)? })
    }

    /// Returns the default hosts of two namespaces of one user, in the usual directories. That such a host comes up is
    /// part of the test.
    fn namespaces(&mut self, whose: Whose) -> Result<[Side; 2], Trouble> {
        if let Some((_, sides)) = self.namespaces.iter().find(|(of, _)| *of == whose) {
            return Ok(sides.clone());
        }
        let ends = self.ends(whose)?;
        // A plain user's host is found without any variable.
        let runtime = match whose {
            Whose::Ours => Some(self.work.join("usual")),
            Whose::PlainUsers => None,
        };
        let mut sides = Vec::new();
        for end in ends {
            let side = Side::usual_host(&self.work, runtime.as_deref(), end.enter());
            sides.push(side?.with_wire(end.wire()));
            self._holders.push(end.into_process());
        }
        let sides = <[Side; 2]>::try_from(sides).map_err(|_| anyhow::anyhow!("two ends"))?;
        self.namespaces.push((whose, sides.clone()));
        Ok(sides)
    }

    /// Returns the default hosts of two namespaces on a fabric of the first machine, which the second has joined, once their
    /// ports are up. OpenSM, on the first host, manages the fabric of a plain user.
    fn joined(&mut self, whose: Whose) -> Result<[Side; 2], Trouble> {
        let sides = self.namespaces(whose)?;
        if self.joined.contains(&whose) {
            return Ok(sides);
        }
        let [here, there] = &sides;
        let at = format!("{}:0", namespace::V4[0]);
        let mut up = vec!["fabric", "up", "--shape", "switch:4", "--listen", &at];
        up.extend((whose == Whose::PlainUsers).then_some("--no-sm"));
        let said = here.rdmux(&up)?;
        let between = |before: &str, after: &str| {
            let rest = said.split_once(before)?.1;
            Some(rest.split_once(after)?.0.to_owned())
        };
        let listens =
            between("it listens at ", ";").context("`rdmux fabric up` printed no address")?;
        let secret = between("with a copy of ", ":\n")
            .context("`rdmux fabric up` printed no path of the secret")?;
        there.rdmux(&["fabric", "up", "--join", &listens, "--secret", &secret])?;
        self.joined.push(whose);
        if whose == Whose::PlainUsers {
            self.start_opensm(here, "joined")?;
        }
        wait_for_ports(&sides)?;
        Ok(sides)
    }

    fn sides(&self) -> impl Iterator<Item = &Side> {
        let wire = self.wire.iter().flat_map(|w| &w.v4);
        let namespaces = self.namespaces.iter().flat_map(|(_, sides)| sides);
        let virtuals = self.pair.iter().chain(&self.subnet).chain(&self.managed).chain(&self.ports);
        let virtuals = virtuals.flatten();
        virtuals.chain(&self.solo).chain(wire).chain(namespaces)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.ground = None;
        for side in self.sides() {
            let _ = side.rdmux(&["host", "down"]);
        }
        let on_fabrics =
            [&self.subnet, &self.managed, &self.ports].into_iter().flatten().map(|[side, _]| side);
        let solo = self.solo.iter().filter(|_| self.solo_is_plugged);
        let joined = self.namespaces.iter().filter(|(whose, _)| self.joined.contains(whose));
        let joined = joined.map(|(_, [side, _])| side);
        for side in on_fabrics.chain(solo).chain(joined) {
            let _ = side.rdmux(&["fabric", "down"]);
        }
        let _ = fs::remove_dir_all(&self.work);
    }
}

/// Brings a fabric with a manager up, with these options, and waits until the ports of these hosts are active.
fn bring_up_fabric(sides: &[Side], manager: &[&str]) -> Result<()> {
    sides[0].rdmux(&[&["fabric", "up", "--shape", "switch:4"], manager].concat())?;
    wait_for_ports(sides)
}

/// Waits until the InfiniBand ports of hosts are active.
fn wait_for_ports(sides: &[Side]) -> Result<()> {
    let end = Instant::now() + SHORTLY;
    for side in sides {
        while !side.is_active("ib")? {
            ensure!(
                Instant::now() < end,
                "the ports of {} did not become active in time",
                side.name
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    Ok(())
}

/// The environment of one row.
#[derive(Debug)]
pub(crate) struct Scene {
    pub(crate) device: Device,
    /// The bytes that had crossed the wire before, if they are counted.
    crossed: Option<u64>,
    pub(crate) server: Side,
    pub(crate) client: Side,
    pub(crate) port: u16,
    group: String,
    logs: PathBuf,
    scratch: PathBuf,
}

impl Scene {
    /// Returns a folder that is removed with the row.
    pub(crate) fn scratch(&self) -> &Path {
        &self.scratch
    }

    /// Returns how many bytes have crossed the wire between the sides since the row began.
    ///
    /// # Errors
    /// When the sides have no wire with counters.
    pub(crate) fn crossed(&self) -> Result<u64> {
        let now = self.server.crossed().zip(self.crossed);
        now.map(|(now, before)| now.saturating_sub(before))
            .context("the wire's counters cannot be read")
    }

    /// Returns the words of a command line, with the placeholders replaced.
    pub(crate) fn fill(&self, side: &Side, line: &str) -> String {
        // Devices other than RoCE have one that is no address.
        let gid = if self.device == Device::Roce { side.gid_index } else { 0 };
        let server_gid = match line.contains("{server_gid}") {
            // The program's output then shows the error.
            true => self
                .server
                .gid(self.device)
                .unwrap_or_else(|e| format!("cannot read the GID: {e:#}")),
            false => String::new(),
        };
        line.replace("{server}", &self.server.address)
            .replace("{server_gid}", &server_gid)
            .replace("{host}", &self.server.name)
            .replace("{server4}", &self.server.address4)
            .replace("{client}", &self.client.address)
            .replace("{port}", &self.port.to_string())
            .replace("{gid}", &gid.to_string())
            .replace("{group}", &self.group)
            .replace("{dev}", self.device.name())
            .replace("{tmp}", &self.scratch.display().to_string())
    }

    /// Starts a program on one of the sides, with this device and these options of `rdmux run`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(crate) fn start(
        &self,
        side: &Side,
        role: &str,
        (device, options): (&str, &[&str]),
        line: &str,
    ) -> Result<Process> {
        let line = self.fill(side, line);
        let words: Vec<&str> = line.split_whitespace().collect();
        let program = words.iter().find(|w| !side::is_assignment(w));
        let program = program.context("an empty command line")?;
        ensure!(side::is_installed(program), "{program} is not installed");
        let mut log = self.logs.clone().into_os_string();
        log.push(format!("-{role}.log"));
        Process::start(side.command(&["--device", device], options, &words), &line, Path::new(&log))
    }

    /// Waits until the services of both sides have released the programs of this row.
    ///
    /// # Errors
    /// When they do not.
    pub(crate) fn nothing_is_left(&self) -> Result<()> {
        let end = Instant::now() + SHORTLY;
        for side in [&self.server, &self.client] {
            loop {
                let status = side.status()?;
                let count = |what: &str| status[what].as_array().map_or(0, Vec::len);
                let left: Vec<String> = ["processes", "ids", "groups"]
                    .iter()
                    .filter(|what| count(what) > 0)
                    .map(|what| format!("{} {what}", count(what)))
                    .collect();
                if left.is_empty() {
                    break;
                }
                if Instant::now() > end {
                    bail!(
                        "the programs left objects at the service of {}: {}",
                        side.name,
                        left.join(", ")
                    );
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        Ok(())
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.scratch);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::{Stage, Whose, namespace, side};
    use crate::exchange::Exchange;
    use crate::row::{Row, Trouble, Way};

    #[test]
    fn a_host_in_a_namespace_that_does_not_come_up_is_a_failure() {
        let dir = tempfile::tempdir().unwrap();
        for file in side::FILES {
            let file = dir.path().join(file);
            fs::write(&file, "#!/bin/sh\necho no host >&2\nexit 1\n").unwrap();
            fs::set_permissions(file, Permissions::from_mode(0o755)).unwrap();
        }
        let logs = dir.path().join("logs");
        let mut stage = Stage::new(&dir.path().join("rdmux"), &logs).unwrap();
        for (way, whose) in [
            (Way::Wire4, Whose::Ours),
            (Way::Wire6, Whose::Ours),
            (Way::Namespaces, Whose::Ours),
            (Way::UserNamespaces, Whose::PlainUsers),
        ] {
            if let Err(e) = namespace::alone(&logs, whose) {
                println!("SKIPPED: {way}: no network namespaces: {e:#}");
                continue;
            }
            let [row] = &Row::each(&[way], &Exchange::new("rping"))[..] else { panic!("a row") };
            match stage.scene(row).unwrap_err() {
                Trouble::Failed(e) => assert!(format!("{e:#}").ends_with("no host"), "{e:#}"),
                Trouble::NotHere(why) => panic!("{way} is skipped: {why}"),
            }
        }
    }
}
