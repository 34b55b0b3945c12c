//! Network namespaces for tests.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use super::missing_here;

/// A network namespace, which exists as long as this value.
pub(crate) struct Namespace {
    pub(crate) holder: Child,
    /// Whether the network namespace is in a separate user namespace.
    user: bool,
}

impl Namespace {
    /// Creates a namespace, for users other than root in a new user namespace. `None` where the kernel forbids that.
    pub(crate) fn new() -> Option<Self> {
        let user = !rustix::process::geteuid().is_root();
        let mut command = Command::new("unshare");
        if user {
            command.args(["--map-root-user", "--user"]);
        }
        command.args(["--net", "sh", "-c", "ip link set lo up && echo entered && exec cat"]);
        Self::hold(command, user)
    }

    /// Creates another one in the same user namespace.
    pub(crate) fn beside(&self) -> Option<Self> {
        let mut command = self.command("unshare");
        command.args(["--net", "sh", "-c", "ip link set lo up && echo entered && exec cat"]);
        Self::hold(command, self.user)
    }

    /// The program ends when its standard input closes, at the latest when this process ends.
    fn hold(mut command: Command, user: bool) -> Option<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut holder = command.spawn().unwrap();
        let mut said = String::new();
        BufReader::new(holder.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
        if said == "entered\n" {
            return Some(Self { holder, user });
        }
        let output = holder.wait_with_output().unwrap();
        missing_here(&format!("no network namespace: {}", String::from_utf8_lossy(&output.stderr)));
        None
    }

    /// Returns a command for a program in the namespace.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.holder.id().to_string(), "--net"]);
        if self.user {
            command.args(["--user", "--preserve-credentials"]);
        }
        command.args(["--", program]).env_remove("RDMUX_HOST").env_remove("RUST_LOG");
        command
    }

    /// Runs a command in the namespace that must succeed. Returns its output.
    pub(crate) fn ok(&self, line: &str) -> String {
        let mut words = line.split(' ');
        let mut command = self.command(words.next().unwrap());
        let output = command.args(words).output().unwrap();
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}
