//! The locations of an ACM service's files.
//!
//! ```text
//! <runtime>/ibacm-unix.sock  the socket (ibacm(1))
//!           ibacm.sock       a symbolic link to it, for the connection manager's clients
//!           ibacm-tcp.port   in TCP mode, the port's number in text
//!           ibacm.port       a symbolic link to it, for the connection manager's clients
//!           ibacm.pid        locked by the service while it runs, with its process id
//!           paths            the socket that passes the cache in shared memory to clients
//!           ibacm.log        what the service logs
//! <config>/ibacm_addr.cfg    names of endpoints (or acm_addr.cfg)
//!          ibacm_opts.cfg    options (or acm_opts.cfg)
//! ```
//!
//! `<runtime>` of a host is the directory `acm` in its runtime directory, and `<config>` is `rdmux/acm/HOST` in the user's
//! configuration directory. For the machine's own service they are `/run` and `/etc/rdma`, and the log is in `/var/log`.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use rdmux_runtime::name::is_label;
use rdmux_runtime::start::file_of_environment;
use rdmux_runtime::{UserDir, environment};
use rustix::fs::{Mode, OFlags};

/// The files of a service, in two directories: one that is cleared at boot, and one that is permanent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    runtime: PathBuf,
    config: PathBuf,
    logs: PathBuf,
}

/// The address of a service.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// The path of a Unix stream socket.
    Unix(PathBuf),
    /// A TCP port.
    Tcp(SocketAddr),
}

impl Places {
    /// The environment variable with the directory of the files of the service to use, instead of the host's. A relative path
    /// begins at the directory in which the process was when it first used such a variable.
    pub const VARIABLE: &'static str = "RDMUX_ACM_DIR";

    /// Returns the files in two directories. The log is in the first.
    pub fn new(runtime: impl Into<PathBuf>, config: impl Into<PathBuf>) -> Self {
        let runtime = runtime.into();
        Self { logs: runtime.clone(), runtime, config: config.into() }
    }

    /// Returns the files of a host's service, given the host's runtime directory, the user's configuration directory
    /// (`$XDG_CONFIG_HOME`, or else `~/.config`), and the host's name.
    pub fn of_host(runtime: &Path, config_home: &Path, host: &str) -> Self {
        Self::new(runtime.join("acm"), config_home.join("rdmux/acm").join(host))
    }

    /// Returns the files of the service that the machine's administrator runs.
    pub fn of_system() -> Self {
        let logs = "/var/log".into();
        Self { runtime: "/run".into(), config: "/etc/rdma".into(), logs }
    }

    /// Returns these files, with `$RDMUX_ACM_DIR` as runtime directory if it is set.
    #[must_use]
    pub fn or_of_environment(self) -> Self {
        match file_of_environment(Self::VARIABLE) {
            Some(runtime) => Self::new(runtime, self.config),
            None => self,
        }
    }

    /// Returns the files in `$RDMUX_ACM_DIR`, including those of the configuration, if it is set.
    pub fn of_variable() -> Option<Self> {
        file_of_environment(Self::VARIABLE).map(|runtime| Self::new(runtime.clone(), runtime))
    }

    /// Returns the files of the service of this process's host (`$RDMUX_HOST`), ignoring `$RDMUX_ACM_DIR`. For programs that have no other
    /// knowledge of hosts. None if the user has no directory for them, or the variable is not a valid host name.
    pub fn of_environment() -> Option<Self> {
        let host = env::var_os("RDMUX_HOST").filter(|name| !name.is_empty());
        let host = host.map_or_else(|| Ok("default".into()), OsString::into_string);
        let host = host.ok().filter(|name| is_label(name))?;
        let home = environment::path("HOME").map(|home| Path::new(&home).join(".config"));
        let config = environment::path("XDG_CONFIG_HOME").map(PathBuf::from).or(home);
        let hosts = UserDir::of_environment().ok()?.folder("hosts");
        Some(Self::of_host(&hosts.join(&host), &config.unwrap_or_else(|| "/etc".into()), &host))
    }

    /// Returns the runtime directory.
    pub fn runtime(&self) -> &Path {
        &self.runtime
    }

    /// Returns the configuration directory.
    pub fn config(&self) -> &Path {
        &self.config
    }

    /// Returns the socket.
    pub fn socket(&self) -> PathBuf {
        self.runtime.join("ibacm-unix.sock")
    }

    /// Returns the link to the socket through which connection managers connect.
    pub fn socket_link(&self) -> PathBuf {
        self.runtime.join("ibacm.sock")
    }

    /// Returns the file with the TCP port's number, which exists if the service listens on one.
    pub fn port(&self) -> PathBuf {
        self.runtime.join("ibacm-tcp.port")
    }

    /// Returns the link to that file for connection managers.
    pub fn port_link(&self) -> PathBuf {
        self.runtime.join("ibacm.port")
    }

    /// Returns the file that the service locks, with its process id.
    pub fn pid(&self) -> PathBuf {
        self.runtime.join("ibacm.pid")
    }

    /// Returns the socket that passes the cache in shared memory to clients.
    pub fn paths(&self) -> PathBuf {
        self.runtime.join("paths")
    }

    /// Returns the log.
    pub fn log(&self) -> PathBuf {
        self.logs.join("ibacm.log")
    }

    /// Returns the file with the names and addresses of endpoints: `ibacm_addr.cfg`, or `acm_addr.cfg` if only that
    /// exists.
    pub fn addresses(&self) -> PathBuf {
        self.either("ibacm_addr.cfg", "acm_addr.cfg")
    }

    /// Returns the file with the options: `ibacm_opts.cfg`, or `acm_opts.cfg` if only that exists.
    pub fn options(&self) -> PathBuf {
        self.either("ibacm_opts.cfg", "acm_opts.cfg")
    }

    /// Returns the address at which connection managers find the service: its TCP port if it has one (a number other
    /// than zero in [`port_link`](Self::port_link)), or else its socket.
    pub fn address(&self) -> Address {
        address(&self.port_link(), self.socket_link())
    }

    /// Returns the address at which tools find the service, even if it is hidden from connection managers.
    pub fn address_of_tools(&self) -> Address {
        address(&self.port(), self.socket())
    }

    fn either(&self, name: &str, old: &str) -> PathBuf {
        let [name, old] = [name, old].map(|name| self.config.join(name));
        if !name.exists() && old.exists() { old } else { name }
    }
}

fn address(port: &Path, socket: PathBuf) -> Address {
    match read_port(port) {
        Ok(Some(port)) => Address::Tcp((Ipv4Addr::LOCALHOST, port).into()),
        Ok(None) | Err(_) => Address::Unix(socket),
    }
}

/// Reads the number in a port file, at most as many bytes as a number has.
fn read_port(path: &Path) -> io::Result<Option<u16>> {
    // Do not wait for the writer of a FIFO.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = fs::File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let mut text = String::new();
    file.take(16).read_to_string(&mut text)?;
    Ok(text.trim().parse().ok().filter(|port| *port != 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmux_testing::temp_dir;

    #[test]
    fn acm_file_paths_of_a_host_and_of_the_system() {
        let host =
            Places::of_host("/run/user/1/rdmux/hosts/a".as_ref(), "/home/u/.config".as_ref(), "a");
        assert_eq!(host.socket(), Path::new("/run/user/1/rdmux/hosts/a/acm/ibacm-unix.sock"));
        assert_eq!(host.log(), Path::new("/run/user/1/rdmux/hosts/a/acm/ibacm.log"));
        assert_eq!(host.options(), Path::new("/home/u/.config/rdmux/acm/a/ibacm_opts.cfg"));
        let system = Places::of_system();
        assert_eq!(system.socket_link(), Path::new("/run/ibacm.sock"));
        assert_eq!(system.log(), Path::new("/var/log/ibacm.log"));
        assert_eq!(system.addresses(), Path::new("/etc/rdma/ibacm_addr.cfg"));
    }

    #[test]
    fn old_acm_opts_file_is_used_only_without_ibacm_opts() {
        let dir = temp_dir();
        let places = Places::new("/nowhere", dir.path());
        assert_eq!(places.options(), dir.path().join("ibacm_opts.cfg"));
        fs::write(dir.path().join("acm_opts.cfg"), "").unwrap();
        assert_eq!(places.options(), dir.path().join("acm_opts.cfg"));
        fs::write(dir.path().join("ibacm_opts.cfg"), "").unwrap();
        assert_eq!(places.options(), dir.path().join("ibacm_opts.cfg"));
    }

    #[test]
    fn port_file_with_a_valid_number_selects_tcp() {
        let dir = temp_dir();
        let places = Places::new(dir.path(), "/nowhere");
        assert_eq!(places.address(), Address::Unix(places.socket_link()));
        for bad in ["", "0\n", "70000\n", "port\n", "1 2", "\u{0}\u{0}"] {
            fs::write(places.port_link(), bad).unwrap();
            assert_eq!(places.address(), Address::Unix(places.socket_link()), "{bad:?}");
        }
        fs::write(places.port_link(), "6125\n").unwrap();
        assert_eq!(places.address(), Address::Tcp("127.0.0.1:6125".parse().unwrap()));
        assert_eq!(places.address_of_tools(), Address::Unix(places.socket()));
    }

    #[test]
    fn relative_directory_of_the_environment_stays_where_it_is() {
        const IN_CHILD: &str = "RDMUX_TEST_IN_CHILD";
        if env::var_os(IN_CHILD).is_some() {
            let folder = env::current_dir().unwrap().join("acm");
            let places = Places::of_variable().unwrap();
            assert_eq!(places, Places::new(&folder, &folder));
            let places = Places::new("/nowhere", "/config").or_of_environment();
            assert_eq!(places, Places::new(&folder, "/config"));
            return;
        }
        let dir = temp_dir();
        let test = "places::tests::relative_directory_of_the_environment_stays_where_it_is";
        let mut child = std::process::Command::new(env::current_exe().unwrap());
        child.args(["--exact", test]).env(IN_CHILD, "1").current_dir(dir.path());
        let output = child.env(Places::VARIABLE, "acm").output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
    }
}
