//! Network namespaces, for users who may create them: root, and others where user namespaces are allowed.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::{SHORTLY, side};
use crate::process::Process;

/// The addresses of both ends of the wire.
pub(super) const V4: [&str; 2] = ["10.78.0.1", "10.78.0.2"];
/// The IPv6 addresses of the two ends.
pub(super) const V6: [&str; 2] = ["fd78::1", "fd78::2"];

/// Hardware addresses. Each end is configured with the other's: a new interface answers ARP only after a second,
/// which is longer than programs retry.
const MAC: [&str; 2] = ["02:00:00:00:78:01", "02:00:00:00:78:02"];

/// The owner of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// The user who runs this.
    Ours,
    /// A user without privilege, also if root runs this.
    PlainUsers,
}

/// A namespace, which exists as long as the program that holds it.
pub(super) struct Held {
    holder: Process,
    whose: Whose,
    /// Whether the namespace is in a user namespace of its own.
    user: bool,
    /// Its end of a wire.
    device: Option<&'static str>,
}

impl Held {
    /// Returns the words before a command line that make it run inside.
    pub(super) fn enter(&self) -> Vec<String> {
        let target = self.holder.pid().to_string();
        let mut words = vec!["nsenter", "--target", &target, "--net"];
        if self.user {
            words.extend(["--user", "--preserve-credentials"]);
        }
        if self.whose == Whose::PlainUsers {
            words.push("--mount");
        }
        words.push("--");
        let words = words.into_iter().map(str::to_owned);
        side::as_whom(self.whose).into_iter().chain(words).collect()
    }

    /// Returns a process inside, and the device of its end of the wire.
    pub(super) fn wire(&self) -> Option<(u32, &'static str)> {
        Some((self.holder.pid(), self.device?))
    }

    pub(super) fn into_process(self) -> Process {
        self.holder
    }
}

/// Creates a namespace with only its loopback interface.
///
/// # Errors
/// When the operating system forbids it.
pub(super) fn alone(logs: &Path, whose: Whose) -> Result<Held> {
    let user = whose == Whose::PlainUsers || !rustix::process::geteuid().is_root();
    let how: &[&str] = match whose {
        Whose::PlainUsers => &["unshare", "-Urnm"],
        Whose::Ours if user => &["unshare", "-r", "-n"],
        Whose::Ours => &["unshare", "-n"],
    };
    let how = side::as_whom(whose).into_iter().chain(how.iter().map(|word| (*word).to_owned()));
    hold(&how.collect::<Vec<_>>(), whose, user, &logs.join(format!("namespace-{whose:?}.log")))
}

/// Creates a namespace with a wire to the one from [`alone`]; see [`V4`] and [`V6`].
///
/// # Errors
/// When that fails, although the operating system allowed the first one.
pub(super) fn wire(logs: &Path, whose: Whose, mut left: Held) -> Result<[Held; 2]> {
    let mut enter = left.enter();
    if !left.user {
        enter.clear();
    }
    enter.extend(["unshare", "-n"].map(str::to_owned));
    let mut right = hold(&enter, whose, left.user, &logs.join(format!("wire-{whose:?}.log")))?;
    (left.device, right.device) = (Some("wire0"), Some("wire1"));
    let peer = right.holder.pid().to_string();
    let [here, there] = MAC;
    let ends = format!("wire0 address {here} type veth peer name wire1 address {there}");
    inside(&left, &format!("ip link add {ends} netns {peer}"))?;
    for (end, dev, n) in [(&left, "wire0", 0), (&right, "wire1", 1)] {
        inside(end, &format!("ip address add {}/24 dev {dev}", V4[n]))?;
        inside(end, &format!("ip address add {}/64 dev {dev} nodad", V6[n]))?;
    }
    for (end, dev, other) in [(&left, "wire0", 1), (&right, "wire1", 0)] {
        inside(end, &format!("ip link set {dev} up"))?;
        for address in [V4[other], V6[other]] {
            let neighbour = format!("{address} lladdr {} dev {dev} nud permanent", MAC[other]);
            inside(end, &format!("ip neighbour replace {neighbour}"))?;
        }
    }
    Ok([left, right])
}

/// Starts the program that holds a namespace, and waits until the namespace exists.
fn hold(how: &[String], whose: Whose, user: bool, log: &Path) -> Result<Held> {
    let mut command = Command::new(&how[0]);
    command.args(&how[1..]);
    command.args(["sh", "-c", "ip link set lo up && echo ready && exec sleep infinity"]);
    let mut holder = Process::start(command, "unshare", log)?;
    holder.until("a namespace", SHORTLY, |p| Ok(p.output().contains("ready")))?;
    Ok(Held { holder, whose, user, device: None })
}

fn inside(end: &Held, line: &str) -> Result<()> {
    let enter = end.enter();
    let out = Command::new(&enter[0])
        .args(&enter[1..])
        .args(line.split_whitespace())
        .output()
        .with_context(|| line.to_owned())?;
    if !out.status.success() {
        bail!("{line}: {}", String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(())
}
