//! The service `ib_acm`, for tests.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rdmux_acm_client::{Client, Error, Places, Target};
use rdmux_wire::acm::Address;
use rdmux_wire::acm::client::{Paths, Status};
use rustix::process::{Pid, Signal, kill_process};

use super::Net;

pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A service in the foreground, which ends when this is dropped.
pub(crate) struct Service {
    pub(crate) child: Child,
    pub(crate) places: Places,
}

impl Service {
    /// Starts the service of a host and waits until it is ready.
    pub(crate) fn start(net: &Net, host: &str, options: &str) -> Self {
        Self::start_by(command(net, host), places(net, host), options)
    }

    /// Starts a service with this command.
    pub(crate) fn start_by(mut command: Command, places: Places, options: &str) -> Self {
        fs::create_dir_all(places.config()).unwrap();
        fs::write(places.config().join("ibacm_opts.cfg"), options).unwrap();
        command.args(["--on-demand"]).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "ready\n");
        Self { child, places }
    }

    pub(crate) fn client(&self) -> Client {
        Client::new([Target::Tools(self.places.clone())])
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    }

    /// Returns a counter of the service.
    pub(crate) fn counted(&self, name: &str) -> u64 {
        let all = self.client().statistics(LONG).unwrap();
        all.iter().find(|s| s.name.as_bytes() == name.as_bytes()).unwrap().value
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the locations of a host's service's files: its configuration is in the test's directory, too.
pub(crate) fn places(net: &Net, host: &str) -> Places {
    Places::of_host(&net.path().join("hosts").join(host), &net.path().join("config"), host)
}

pub(crate) fn command(net: &Net, host: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ib_acm"));
    command.args(["--host", host]);
    configure(&mut command, net);
    command
}

/// Makes a service find all that it needs in the test's directory, and serve the InfiniBand device.
pub(crate) fn configure(command: &mut Command, net: &Net) {
    command.env("RDMUX_RUNTIME_DIR", net.path()).env("RDMUX_DEVICE", "ib");
    command.env("XDG_CONFIG_HOME", net.path().join("config"));
    command.env("RDMUX_DAEMON", env!("CARGO_BIN_EXE_rdmux"));
    command.env_remove("RDMUX_HOST").env_remove("RUST_LOG").env_remove("RDMUX_ACM_DIR");
    net.become_user(command);
}

/// Returns two hosts on a fabric with a subnet manager; services run on without clients.
pub(crate) fn fabric() -> Net {
    fabric_with(&[])
}

/// Like [`fabric`], with other options of the fabric.
pub(crate) fn fabric_with(options: &[&str]) -> Net {
    fabric_of(Net::new(), options)
}

/// Like [`fabric_with`], in this directory.
pub(crate) fn fabric_of(net: Net, options: &[&str]) -> Net {
    let config = net.path().join("config/rdmux");
    fs::create_dir_all(&config).unwrap();
    fs::write(config.join("config.toml"), "[service]\nidle_exit_seconds = 0\n").unwrap();
    let net = net.hosts(&["a", "b"]);
    net.ok(&[&["fabric", "up", "--shape", "switch:3"], options].concat());
    net
}

pub(crate) fn name(text: &str) -> Address {
    Address::name(text).unwrap()
}

/// Resolves until there is an answer, because ports come up and groups are joined first.
pub(crate) fn resolve(client: &Client, source: Option<Address>, dest: Address) -> Paths {
    loop {
        match client.resolve(source, dest, LONG) {
            Ok(paths) => return paths,
            Err(Error::Status(
                _,
                Status::NOT_CONNECTED | Status::TIMED_OUT | Status::SOURCE_ADDRESS,
            )) => {
                std::thread::yield_now();
            }
            Err(e) => panic!("{dest}: {e}"),
        }
    }
}

pub(crate) const QUICK: &str = "timeout 200\nretries 2\n";
