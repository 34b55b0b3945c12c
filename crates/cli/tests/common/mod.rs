//! Code that the tests of the command share.
#![allow(dead_code, reason = "each test file uses a part of it")]

pub(crate) mod acm;
pub(crate) mod namespace;
pub(crate) mod subnet;

use std::fs::DirBuilder;
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};

use rdmux_testing::{TempDir, temp_dir};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// The hosts of one test, in a private directory. They end with it, and with the test's process, however that ends:
/// their services are in separate process groups, and would survive otherwise.
pub(crate) struct Net {
    dir: TempDir,
    second: u8,
    /// The user of all programs, if it is another one.
    user: Option<u32>,
    /// Ends the services when its standard input closes.
    cleaner: Child,
}

impl Net {
    pub(crate) fn new() -> Self {
        Self::of(None)
    }

    /// Creates a directory of a user other than root, as whom all programs run. That is this process's user, unless it is root. None if the
    /// user cannot run the programs.
    pub(crate) fn of_ordinary_user() -> Option<Self> {
        const USER: u32 = 4001;
        if !rustix::process::geteuid().is_root() {
            return Some(Self::new());
        }
        let net = Self::of(Some(USER));
        let tried = net.command(&["--version"]).output();
        if tried.is_ok_and(|output| output.status.success()) {
            return Some(net);
        }
        missing_here(&format!("user {USER} cannot run {}", env!("CARGO_BIN_EXE_rdmux")));
        None
    }

    fn of(user: Option<u32>) -> Self {
        static COUNT: AtomicU8 = AtomicU8::new(0);
        let dir = temp_dir();
        let mut cleaner = cleaner(dir.path());
        if let Some(user) = user {
            chown(dir.path(), Some(user), Some(user)).unwrap();
            become_user(&mut cleaner, user, dir.path());
        }
        let cleaner = cleaner.spawn().unwrap();
        Self { second: 100 + COUNT.fetch_add(1, Ordering::Relaxed), user, cleaner, dir }
    }

    /// Returns an address that no other test has: tests of one process differ in the second number.
    pub(crate) fn address(&self, host: u8) -> String {
        let [.., high, low] = std::process::id().to_be_bytes();
        format!("127.{}.{high}.{}", self.second, low.wrapping_mul(4).wrapping_add(host))
    }

    /// Starts hosts with these names.
    pub(crate) fn hosts(self, names: &[&str]) -> Self {
        for (i, name) in (1..).zip(names) {
            self.ok(&["host", "up", name, "--addr", &self.address(i)]);
        }
        self
    }

    /// Returns the directory.
    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rdmux"));
        command.args(args).env("RDMUX_RUNTIME_DIR", self.dir.path());
        command.env_remove("RDMUX_HOST").env_remove("RUST_LOG");
        self.become_user(&mut command);
        command
    }

    /// Makes a command run as the user of all programs.
    pub(crate) fn become_user(&self, command: &mut Command) {
        if let Some(user) = self.user {
            become_user(command, user, self.dir.path());
        }
    }

    pub(crate) fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Runs a command that must succeed. Returns its output.
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let output = self.run(args);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// Runs a command that must fail with this status. Returns its error output.
    pub(crate) fn fails(&self, args: &[&str], status: i32) -> String {
        let output = self.run(args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{args:?}: {said}");
        said
    }

    /// Starts a server and waits until it prints its address. Returns its port.
    pub(crate) fn server(&self, args: &[&str]) -> (Child, String) {
        start_server(self.command(args))
    }
}

/// Starts a server by this command, and waits until it prints its address. Returns its port.
pub(crate) fn start_server(mut command: Command) -> (Child, String) {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let port = line.trim().rsplit(':').next().unwrap().to_owned();
    (child, port)
}

impl Net {
    /// Ends all services, including stopped ones, and removes the directory, as the end of this process would.
    pub(crate) fn end(&mut self) {
        drop(self.cleaner.stdin.take());
        let _ = self.cleaner.wait();
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        self.end();
    }
}

/// Makes a command run as a user, with this home directory.
fn become_user(command: &mut Command, user: u32, home: &Path) {
    command.uid(user).gid(user).env("HOME", home);
}

/// Returns a command that waits for the end of this process, and then ends the services of a directory.
fn cleaner(dir: &Path) -> Command {
    // A failed test may have left anything.
    let script =
        r#"cat; "$0" host down --force; "$0" fabric down --all; rm -rf "$RDMUX_RUNTIME_DIR""#;
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_rdmux")]);
    command.env("RDMUX_RUNTIME_DIR", dir).env_remove("RDMUX_HOST").env_remove("RUST_LOG");
    // A signal to the test's process group must not end this.
    command.process_group(0).stdin(Stdio::piped());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Stops a process, as a terminal or a debugger does, and waits until it has stopped.
pub(crate) fn stop(pid: rustix::process::Pid) {
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    loop {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap();
        if stat.rsplit_once(") ").unwrap().1.starts_with('T') {
            return;
        }
        std::thread::yield_now();
    }
}

/// Listens at the socket of a service that does not run, in its place.
pub(crate) fn listen_as(service: &Path) -> OwnedFd {
    DirBuilder::new().recursive(true).mode(0o700).create(service).unwrap();
    let address = SocketAddrUnix::new(service.join("sock")).unwrap();
    // Programs that the test starts must not keep it open.
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    let listener = net::socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
    net::bind(&listener, &address).unwrap();
    net::listen(&listener, 16).unwrap();
    listener
}

/// Accepts a connection.
pub(crate) fn accept(listener: &OwnedFd) -> OwnedFd {
    // Only a failing test waits this long.
    let timeout = Timespec { tv_sec: 60, tv_nsec: 0 };
    let ready = poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&timeout)).unwrap();
    assert_eq!(ready, 1, "nothing connects");
    net::accept_with(listener, SocketFlags::CLOEXEC).unwrap()
}

/// Compiles one of the C programs in `tests/programs`; none if this machine cannot. `libraries` are the libraries
/// that it needs: without a compiler or these, prints a message, and fails where tests must not be skipped.
pub(crate) fn compile(net: &Net, name: &str, libraries: &[&str]) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name);
    let program = net.path().join(name).with_extension("");
    let has = |lib: &&str| {
        let mut cc = Command::new("cc");
        let output = cc.arg(format!("-print-file-name=lib{lib}.so")).output();
        // The output is a path if the library exists.
        output.is_ok_and(|o| o.stdout.contains(&b'/'))
    };
    let missing: Vec<_> = libraries.iter().filter(|lib| !has(lib)).collect();
    if !missing.is_empty() || Command::new("cc").arg("--version").output().is_err() {
        missing_here(&format!("{name} is not compiled: no cc, or without {missing:?}"));
        return None;
    }
    let capi = Path::new(env!("CARGO_MANIFEST_DIR")).join("../capi");
    let status = Command::new("cc")
        .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program)
        .arg(source)
        .arg(format!("-I{}", capi.join("include").display()))
        .args(libraries.iter().map(|lib| format!("-l{lib}")))
        .status()
        .unwrap();
    assert!(status.success(), "{name}");
    Some(program)
}

/// Reports that a test is skipped, which is a failure where tests must not be skipped.
pub(crate) fn missing_here(what: &str) {
    assert!(std::env::var("CI").as_deref() != Ok("true"), "CI=true: {what}");
    eprintln!("left out: {what}");
}
