//! The configuration: the service's files, and where they are.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rdmux::umad::RequestAttr;
use rdmux_acm_client::Places;
use rdmux_acm_files::addresses::{self, Assignments};
use rdmux_acm_files::hosts::{self, Hosts};
use rdmux_acm_files::names;
use rdmux_acm_files::open::{OpenError, open};
use rdmux_acm_files::options::{self, LogFile, Options, ServerMode};
use rdmux_acm_files::routes::{self, DumpedPort, Routes};
use rdmux_acm_files::{Problem, Report, Severity};
use rdmux_host::HostName;

use crate::log::Target;
use crate::watch::Files;
use crate::{Args, mads};

/// The size in bytes of the largest file of options or addresses that is read: the maximum number of lines, each of maximum length.
const MAX_FILE: u64 = 64 << 20;

/// The contents of the configuration files.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// The options.
    pub(crate) options: Options,
    /// The names and addresses of endpoints; none if there is no such file.
    pub(crate) assignments: Option<Assignments>,
    /// The target of the log.
    pub(crate) log: Target,
    /// The lock file.
    pub(crate) lock: PathBuf,
    /// The files to load.
    pub(crate) data: Data,
}

/// The files from which caches are filled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Data {
    /// OpenSM's dump, if the options name one.
    routes: Option<PathBuf>,
    /// The hosts file, if the options name one.
    hosts: Option<PathBuf>,
}

/// The paths and addresses that are loaded into the caches at the start.
#[derive(Clone, Debug, Default)]
pub(crate) struct Loaded {
    /// Paths of local ports.
    pub(crate) routes: Arc<Routes>,
    /// GIDs of names and addresses.
    pub(crate) hosts: Arc<Hosts>,
    /// The files that they are from.
    of: Data,
}

/// The locations of a service's files.
#[derive(Clone, Debug)]
pub(crate) struct Sources {
    /// The default locations, unless the command line names others.
    pub(crate) places: Places,
    /// The host's name, from which endpoints are named if no file names them.
    pub(crate) name: String,
    /// Whether the host's configuration admits users other than its owner.
    pub(crate) others: bool,
    is_of_systemd: bool,
    /// Whether standard output leads to the process that waits until clients can connect, and is no log.
    is_on_demand: bool,
    options: Option<PathBuf>,
    addresses: Option<PathBuf>,
}

impl Config {
    /// Returns the timeout and retries of queries to subnet administration.
    pub(crate) fn wait(&self) -> RequestAttr {
        let machine = &self.options.machine;
        mads::wait(machine.timeout.max(Duration::from_millis(1)), machine.retries)
    }

    /// Returns the warning that the addresses of the hosts file alone do not fit into a cache, if so. The routes of an endpoint, which
    /// also need room, are known when its port has a LID.
    pub(crate) fn surplus(&self, loaded: &Loaded) -> Report {
        let (all, most) = (loaded.hosts.len(), self.options.machine.max_entries);
        let mut report = Report::default();
        if let Some(path) = self.data.hosts.as_ref().filter(|_| all > most) {
            let (file, severity) = (path.display().to_string(), Severity::Warning);
            let what = surplus(&self.options, all - most, all);
            report.push(Problem { file, line: 0, severity, what });
        }
        report
    }
}

/// Returns the warning that so many of all addresses from files have no room in a cache.
pub(crate) fn surplus(options: &Options, left_out: usize, all: usize) -> String {
    let most = options.machine.max_entries;
    format!(
        "{left_out} of {all} addresses do not fit into cache_entries, which is {most}; raise it"
    )
}

impl Data {
    /// Returns whether the options name no file to load.
    pub(crate) fn is_empty(&self) -> bool {
        self.routes.is_none() && self.hosts.is_none()
    }

    /// Reads the files to load, for these ports. What was loaded `before` from a file that exists but cannot be read now stays.
    pub(crate) fn load(&self, local: &[DumpedPort], before: &Loaded) -> (Loaded, Report) {
        let (mut loaded, mut all) =
            (Loaded { of: self.clone(), ..Loaded::default() }, Report::default());
        if let Some(path) = &self.routes {
            let (routes, report) = read(path, |name, file| routes::parse(name, file, local));
            all.append(report);
            let stays = || (before.of.routes == self.routes).then(|| Arc::clone(&before.routes));
            loaded.routes = routes.or_before(path, stays, &mut all).unwrap_or_default();
        }
        if let Some(path) = &self.hosts {
            let (hosts, report) = read(path, hosts::parse);
            all.append(report);
            let stays = || (before.of.hosts == self.hosts).then(|| Arc::clone(&before.hosts));
            loaded.hosts = hosts.or_before(path, stays, &mut all).unwrap_or_default();
        }
        (loaded, all)
    }
}

impl Sources {
    /// Returns the locations for a host.
    pub(crate) fn new(places: Places, args: &Args, host: &HostName, others: bool) -> Self {
        let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        let (options, addresses) =
            (args.options.as_ref().map(absolute), args.addresses.as_ref().map(absolute));
        let name = endpoint_name(host);
        let (is_of_systemd, is_on_demand) = (args.systemd, args.on_demand);
        Self { places, name, others, is_of_systemd, is_on_demand, options, addresses }
    }

    /// Reads options and addresses, and reports all their problems. Invalid lines are ignored.
    pub(crate) fn read(&self) -> (Config, Report) {
        self.read_over(None)
    }

    /// Reads the files as [`read`](Self::read) does, over an earlier configuration: the contents of a file that exists but cannot be read
    /// now stay in force, as does an option whose value is invalid now.
    fn read_over(&self, old: Option<&Config>) -> (Config, Report) {
        let mut all = Report::default();
        let path = self.options_path();
        let before = old.map(|old| &old.options);
        let parse = |name: &str, file: &[u8]| match before {
            Some(before) => options::parse_anew(name, file, before),
            None => options::parse(name, file),
        };
        let (read, report) = read_whole(&path, self.options.is_some(), parse);
        all.append(report);
        let stays = || before.cloned();
        let mut options = read.or_before(&path, stays, &mut all).unwrap_or_default();
        if self.is_of_systemd && options.server_mode != ServerMode::Unix {
            options.server_mode = ServerMode::Unix;
            all.push(self.ignored_mode());
        }
        let takes_ips = options.support_ips_in_addr_cfg;
        let parse = |name: &str, file: &[u8]| addresses::parse(name, file, takes_ips);
        let path = self.addresses_path();
        let (read, report) = read_whole(&path, self.addresses.is_some(), parse);
        all.append(report);
        let stays = || old.and_then(|old| old.assignments.clone());
        let assignments = read.or_before(&path, stays, &mut all);
        let log = match &options.log_file {
            // The journal records standard error.
            None if self.is_of_systemd => Target::Stderr,
            None => Target::File(self.places.log()),
            // Standard output is for the start, and standard error may be the log of another service.
            Some(LogFile::Stdout | LogFile::Stderr) if self.is_on_demand && !self.is_of_systemd => {
                Target::File(self.places.log())
            }
            Some(LogFile::Stdout) => Target::Stdout,
            Some(LogFile::Stderr) => Target::Stderr,
            Some(LogFile::File(path)) => Target::File(self.own(path)),
        };
        let lock = options.lock_file.as_ref().map_or_else(|| self.places.pid(), |p| self.own(p));
        let data = |wanted: bool, path: &Option<PathBuf>, name: &str| {
            let default = || self.places.config().join(name);
            wanted.then(|| path.as_ref().map_or_else(default, |path| self.own(path)))
        };
        let routes = data(options.preloads_routes, &options.route_data_file, "ibacm_route.data");
        let hosts = data(options.preloads_addresses, &options.addr_data_file, "ibacm_hosts.data");
        (Config { options, assignments, log, lock, data: Data { routes, hosts } }, all)
    }

    /// Returns the warning that `server_mode` is ignored: as with ibacm, --systemd implies the Unix socket.
    fn ignored_mode(&self) -> Problem {
        let what = "server_mode is ignored: with --systemd clients connect to systemd's Unix socket \
                    only; for TCP, start ib_acm without --systemd";
        let (file, severity) = (self.options_path().display().to_string(), Severity::Warning);
        Problem { file, line: 0, severity, what: what.to_owned() }
    }

    fn options_path(&self) -> PathBuf {
        self.options.clone().unwrap_or_else(|| self.places.options())
    }

    /// Returns the path of the file with addresses.
    pub(crate) fn addresses_path(&self) -> PathBuf {
        self.addresses.clone().unwrap_or_else(|| self.places.addresses())
    }

    /// Reads the files as [`read`](Self::read) does, and watches them and the files to load, each from before it is read. Returns no
    /// watcher if none can be created. The settings of `old` stay in force for a file that exists but cannot be read.
    pub(crate) fn read_watched(&self, old: Option<&Config>) -> (Config, Report, Option<Files>) {
        self.watched(|| self.read_over(old))
    }

    fn watched(&self, read: impl FnOnce() -> (Config, Report)) -> (Config, Report, Option<Files>) {
        let unseen = |e: &io::Error| {
            tracing::warn!("changes of files go unseen: {e}; send SIGHUP");
        };
        let mut files = Files::new().inspect_err(unseen).ok();
        let mut watch = |path: &Path| files.iter_mut().for_each(|files| files.add(path));
        self.files().iter().for_each(|path| watch(path));
        let (config, report) = read();
        config.data.routes.iter().chain(&config.data.hosts).for_each(|path| watch(path));
        (config, report, files)
    }

    /// Returns the files with options and addresses, under both of their names, as either may be created.
    fn files(&self) -> Vec<PathBuf> {
        let named = |path: &Option<PathBuf>, names: [&str; 2]| match path {
            Some(path) => vec![path.clone()],
            None => names.map(|name| self.places.config().join(name)).to_vec(),
        };
        let options = named(&self.options, ["ibacm_opts.cfg", "acm_opts.cfg"]);
        let addresses = named(&self.addresses, ["ibacm_addr.cfg", "acm_addr.cfg"]);
        [options, addresses].concat()
    }

    /// Returns the path for this host of a file that belongs to the machine's service: options files are written for one service
    /// of the machine, and each virtual host has its own files.
    fn own(&self, path: &Path) -> PathBuf {
        let system = Places::of_system();
        let is_run = |name: &str| {
            path == Path::new("/run").join(name) || path == Path::new("/var/run").join(name)
        };
        if path == system.log() {
            self.places.log()
        } else if is_run("ibacm.pid") {
            self.places.pid()
        } else if let Ok(below) = path.strip_prefix(system.config())
            && !path.exists()
        {
            self.places.config().join(below)
        } else {
            path.to_owned()
        }
    }

    /// Returns the output of `--check`: the locations of the files, and the resulting options.
    pub(crate) fn describe(&self, config: &Config) -> String {
        let mut text = String::new();
        let is_there = |path: &Path| if path.exists() { "" } else { " (absent)" };
        let (options, addresses) = (self.options_path(), self.addresses_path());
        let log = match &config.log {
            Target::Stdout => "stdout".to_owned(),
            Target::Stderr => "stderr".to_owned(),
            Target::File(path) => path.display().to_string(),
        };
        let names = match &config.assignments {
            Some(file) => format!("{} in the file", file.all.len()),
            None => format!("{}, and the addresses of the host", self.name),
        };
        let rows = [
            ("options", format!("{}{}", options.display(), is_there(&options))),
            ("addresses", format!("{}{}", addresses.display(), is_there(&addresses))),
            ("socket", self.places.socket().display().to_string()),
            ("lock", config.lock.display().to_string()),
            ("log", log),
            ("names", names),
        ];
        for (name, value) in rows {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{name:<10} {value}");
        }
        text
    }
}

/// Returns the name by which other hosts know this one: that of the virtual host, or else of the machine, without its domain.
fn endpoint_name(host: &HostName) -> String {
    if host.is_default() { names::of_machine() } else { host.as_str().to_owned() }
}

/// The outcome of reading a file whose earlier contents may be in force.
enum Read<T> {
    /// The contents of the file.
    Says(T),
    /// The file does not exist.
    Missing,
    /// The file exists, but cannot be read.
    Failed,
}

impl<T> Read<T> {
    /// Returns the file's contents. If the file cannot be read, returns its earlier contents and reports that they stay in force.
    fn or_before(
        self,
        path: &Path,
        before: impl FnOnce() -> Option<T>,
        report: &mut Report,
    ) -> Option<T> {
        match self {
            Self::Says(what) => Some(what),
            Self::Missing => None,
            Self::Failed => before().inspect(|_| {
                let what = "what it said before stays in force".to_owned();
                let (file, severity) = (path.display().to_string(), Severity::Warning);
                report.push(Problem { file, line: 0, severity, what });
            }),
        }
    }
}

/// Reads a whole file before parsing it. A missing file is a problem only if it `must` exist.
fn read_whole<T>(
    path: &Path,
    must: bool,
    parse: impl FnOnce(&str, &[u8]) -> (T, Report),
) -> (Read<T>, Report) {
    let name = path.display().to_string();
    match rdmux_acm_files::open::read(path, MAX_FILE) {
        Ok(bytes) => {
            let (what, report) = parse(&name, &bytes);
            (Read::Says(what), report)
        }
        Err(e) if is_missing(&e) => {
            (Read::Missing, if must { unread(name, &e) } else { Report::default() })
        }
        Err(e) => (Read::Failed, unread(name, &e)),
    }
}

fn is_missing(e: &OpenError) -> bool {
    match e {
        OpenError::Missing(_) => true,
        OpenError::Io { source, .. } => source.kind() == io::ErrorKind::NotADirectory,
        _ => false,
    }
}

/// Reads a file, or reports why it cannot be read.
fn read<T>(
    path: &Path,
    parse: impl FnOnce(&str, BufReader<File>) -> (T, Report),
) -> (Read<Arc<T>>, Report) {
    let name = path.display().to_string();
    match open(path) {
        Ok(file) => {
            let (found, report) = parse(&name, BufReader::new(file));
            (Read::Says(Arc::new(found)), report)
        }
        Err(e) if is_missing(&e) => (Read::Missing, unread(name, &e)),
        Err(e) => (Read::Failed, unread(name, &e)),
    }
}

fn unread(file: String, why: &OpenError) -> Report {
    let mut report = Report::default();
    report.push(Problem { file, line: 0, severity: Severity::Error, what: why.to_string() });
    report
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use rdmux_testing::temp_dir;

    use super::*;

    struct World {
        dir: tempfile::TempDir,
        sources: Sources,
    }

    fn world() -> World {
        let dir = temp_dir();
        let places = Places::new(dir.path().join("run"), dir.path());
        let host = HostName::new("a").unwrap();
        let sources = Sources::new(places, &Args::default(), &host, false);
        World { dir, sources }
    }

    #[test]
    fn without_files_there_are_defaults_and_no_problem() {
        let world = world();
        let (config, report) = world.sources.read();
        assert!(report.is_clean(), "{report}");
        assert_eq!((config.options, config.assignments), (Options::default(), None));
        assert_eq!(config.lock, world.dir.path().join("run/ibacm.pid"));
    }

    #[test]
    fn ibacm_default_paths_map_to_the_hosts_own_folders() {
        let world = world();
        let text = "log_file /var/log/ibacm.log\nlock_file /var/run/ibacm.pid\naddr_preload acm_hosts\n\
             addr_data_file /etc/rdma/nowhere/hosts.data\nretries 7\n";
        fs::write(world.dir.path().join("ibacm_opts.cfg"), text).unwrap();
        let (config, report) = world.sources.read();
        assert!(report.is_clean(), "{report}");
        assert_eq!(config.log, Target::File(world.dir.path().join("run/ibacm.log")));
        assert_eq!(config.lock, world.dir.path().join("run/ibacm.pid"));
        assert_eq!(config.data.hosts, Some(world.dir.path().join("nowhere/hosts.data")));
        assert_eq!(config.options.machine.retries, 7);
        let (_, report) = config.data.load(&[], &Loaded::default());
        assert_eq!(report.errors(), 1, "the hosts file does not exist: {report}");
    }

    #[test]
    fn file_that_is_written_after_it_was_read_is_seen() {
        let world = world();
        let (options, hosts) =
            (world.dir.path().join("ibacm_opts.cfg"), world.dir.path().join("ibacm_hosts.data"));
        fs::write(&options, "addr_preload acm_hosts\n").unwrap();
        let (_, _, files) = world.sources.watched(|| {
            let read = world.sources.read();
            fs::write(&options, "addr_preload acm_hosts\nretries 7\n").unwrap();
            read
        });
        assert!(files.unwrap().take());
        let (config, _, files) = world.sources.read_watched(None);
        let files = files.unwrap();
        assert!(config.options.machine.retries == 7 && !files.take());
        // A file to load that did not exist.
        fs::write(&hosts, "").unwrap();
        assert!(files.take());
    }

    #[test]
    fn missing_options_file_of_the_command_line_is_an_error() {
        let mut world = world();
        world.sources.options = Some(world.dir.path().join("none.cfg"));
        let (_, report) = world.sources.read();
        assert_eq!(report.errors(), 1, "{report}");
        assert!(report.to_string().contains("none.cfg does not exist"), "{report}");
    }

    #[test]
    fn socket_activated_service_ignores_server_mode_and_has_no_tcp() {
        let mut world = world();
        fs::write(world.dir.path().join("ibacm_opts.cfg"), "server_mode open\n").unwrap();
        let (config, report) = world.sources.read();
        assert!(report.is_clean() && config.options.server_mode == ServerMode::Open);
        world.sources.is_of_systemd = true;
        let (config, report) = world.sources.read();
        assert_eq!(config.options.server_mode, ServerMode::Unix);
        assert!(report.to_string().contains("server_mode is ignored"), "{report}");
    }

    #[test]
    fn service_that_was_started_on_demand_logs_to_its_file_instead_of_stdout_and_stderr() {
        let mut world = world();
        let file = Target::File(world.sources.places.log());
        for (word, target) in [("stdout", Target::Stdout), ("stderr", Target::Stderr)] {
            let text = format!("log_file {word}\n");
            fs::write(world.dir.path().join("ibacm_opts.cfg"), text).unwrap();
            world.sources.is_on_demand = false;
            assert_eq!(world.sources.read().0.log, target);
            world.sources.is_on_demand = true;
            assert_eq!(world.sources.read().0.log, file);
        }
    }

    #[test]
    fn file_that_cannot_be_read_anew_leaves_in_force_what_it_said() {
        let world = world();
        let [options, addresses] =
            ["ibacm_opts.cfg", "ibacm_addr.cfg"].map(|name| world.dir.path().join(name));
        let write = || {
            fs::write(&options, "retries 7\nsocket_access all\n").unwrap();
            fs::write(&addresses, "a rdmux_ib0 1 default\n").unwrap();
        };
        write();
        let (old, _) = world.sources.read();
        let keeps = |errors: usize| {
            let (config, report, _) = world.sources.read_watched(Some(&old));
            assert_eq!((&config.options, &config.assignments), (&old.options, &old.assignments));
            assert_eq!(report.errors(), errors, "{report}");
            assert_eq!(report.to_string().matches("stays in force").count(), errors, "{report}");
        };
        keeps(0);
        fs::write(&options, "retries x\nsocket_access all\n").unwrap();
        let (config, ..) = world.sources.read_watched(Some(&old));
        assert_eq!(config.options, old.options, "a value that is wrong");
        for path in [&options, &addresses] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o646)).unwrap();
        }
        keeps(2);
        for path in [&options, &addresses] {
            fs::remove_file(path).unwrap();
            std::os::unix::fs::symlink(world.dir.path().join("nowhere"), path).unwrap();
        }
        keeps(2);
        for path in [&options, &addresses] {
            fs::remove_file(path).unwrap();
        }
        let (config, report, _) = world.sources.read_watched(Some(&old));
        assert_eq!((config.options, config.assignments), (Options::default(), None));
        assert!(report.is_clean(), "{report}");
    }

    #[test]
    fn file_to_load_that_cannot_be_read_anew_leaves_its_entries_in_force() {
        let world = world();
        let path = world.dir.path().join("hosts.data");
        let hosts = Some(path.clone());
        let data = Data { hosts, ..Data::default() };
        fs::write(&path, "a fe80::1\nb fe80::2\n").unwrap();
        let (before, report) = data.load(&[], &Loaded::default());
        assert!(report.is_clean() && before.hosts.len() == 2, "{report}");
        let trusts = |is: bool| {
            let mode = if is { 0o644 } else { 0o646 };
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        };
        trusts(false);
        let (loaded, report) = data.load(&[], &before);
        assert_eq!(loaded.hosts, before.hosts);
        assert!(report.errors() == 1 && report.to_string().contains("stays in force"), "{report}");
        // Entries of another file do not stay, nor those of a file that is removed.
        let of = Data { hosts: Some(world.dir.path().join("other")), ..Data::default() };
        let (loaded, _) = data.load(&[], &Loaded { of, ..before.clone() });
        assert!(loaded.hosts.is_empty());
        trusts(true);
        fs::write(&path, "a fe80::1\n").unwrap();
        assert_eq!(data.load(&[], &before).0.hosts.len(), 1);
        fs::remove_file(&path).unwrap();
        assert!(data.load(&[], &before).0.hosts.is_empty());
    }

    #[test]
    fn wrong_address_line_is_reported_and_other_lines_are_used() {
        let world = world();
        let file = world.dir.path().join("ibacm_addr.cfg");
        fs::write(&file, "a rdmux_ib0 1 default\nb rdmux_ib0\n").unwrap();
        let (config, report) = world.sources.read();
        assert_eq!(config.assignments.unwrap().all.len(), 1);
        assert!(
            report.to_string().starts_with(&format!("{}:2: error", file.display())),
            "{report}"
        );
    }
}
