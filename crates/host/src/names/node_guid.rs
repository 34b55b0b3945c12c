//! The GUID of a host's node: generated once, and kept in the host's directory.
//!
//! The manufacturer of an adapter assigns its GUID. Nothing on this machine can replace that: in a container the machine-id, like any
//! persistent file, is missing or that of the image. So the GUID is random, and persists as long as the runtime directory, which is
//! in no image.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::str::FromStr;

use rdmux_runtime::DirectoryError;
use rdmux_runtime::file::replace;
use rdmux_wire::Guid;
use serde::Deserialize;

use super::{HostDir, HostName, RuntimeDir};
use crate::error::HostError;

/// The bit of an EUI-64 that is set if no manufacturer assigned it (IEEE 802, the universal/local bit).
const LOCALLY_ADMINISTERED: u64 = 0x02 << 56;
/// Longer than any such file.
const MAX_FILE: u64 = 64;
/// The bits that distinguish the devices of a node.
const DEVICE: u64 = 3;

/// The GUID of a host's node. The first device has this GUID, and the second one the adjacent GUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct NodeGuid(u64);

/// The reason why a string is not a [`NodeGuid`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a GUID: use 16 hexadecimal digits, not all 0, as in 0x0211223344556676")]
pub struct InvalidNodeGuid(String);

impl NodeGuid {
    /// Returns the GUID.
    pub fn guid(self) -> Guid {
        Guid(self.0)
    }

    /// Makes a GUID from 54 random bits.
    fn drawn(random: u64) -> Self {
        Self(random & !(0xff << 56) & !DEVICE | LOCALLY_ADMINISTERED)
    }

    /// Returns whether two nodes would share a device's GUID.
    fn overlaps(self, other: Self) -> bool {
        self.0 | DEVICE == other.0 | DEVICE
    }

    /// Assigns this GUID to a host. A running service keeps the old one until it is restarted.
    ///
    /// # Errors
    /// [`HostError::GuidTaken`] when another host of this user has it; [`HostError::Directory`] when it cannot be
    /// stored.
    pub fn assign(self, dir: &RuntimeDir, host: &HostName) -> Result<(), HostError> {
        let path = dir.host(host)?.guid();
        let _lock = dir.lock_hosts()?;
        let guid = self.unless_taken(dir, host)?;
        write(&path, guid).map_err(|e| DirectoryError::new(&path, e).into())
    }

    fn unless_taken(self, dir: &RuntimeDir, host: &HostName) -> Result<Self, HostError> {
        match owner(dir, host, self)? {
            Some(owner) => Err(HostError::GuidTaken { guid: self, owner }),
            None => Ok(self),
        }
    }

    /// Returns the GUID of a host that starts: the configured one, else the stored one, else a new one. One that cannot be
    /// stored, for example on a full disk, is used nevertheless.
    ///
    /// # Errors
    /// [`HostError::GuidTaken`] if another host of this user has the configured one; errors of `random`.
    pub(crate) fn of_host(
        dir: &RuntimeDir,
        host: &HostName,
        wish: Option<Self>,
        random: impl Fn() -> Result<u64, HostError>,
    ) -> Result<Self, HostError> {
        let own = dir.host(host)?;
        let _lock = dir.lock_hosts()?;
        let kept = read(&own);
        let guid = match (wish, kept) {
            (Some(wish), _) => wish.unless_taken(dir, host)?,
            (None, Some(kept)) => kept,
            (None, None) => loop {
                let drawn = Self::drawn(random()?);
                if owner(dir, host, drawn)?.is_none() {
                    break drawn;
                }
            },
        };
        if kept != Some(guid)
            && let Err(e) = write(&own.guid(), guid)
        {
            tracing::warn!(
                "cannot write {}: {e}; the host's next service uses another GUID",
                own.guid().display()
            );
        }
        Ok(guid)
    }
}

/// Reads the GUID that is stored for a host, if it is a valid one.
fn read(host: &HostDir) -> Option<NodeGuid> {
    let path = host.guid();
    let mut text = Vec::new();
    let opened = File::open(&path).and_then(|file| file.take(MAX_FILE).read_to_end(&mut text));
    let text = opened.map(|_| String::from_utf8_lossy(&text));
    match text {
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        Err(e) => {
            tracing::warn!("cannot read {}: {e}; the host gets a new GUID", path.display());
            None
        }
        Ok(text) => text
            .trim_end()
            .parse()
            .inspect_err(|e| tracing::warn!("{}: {e}; the host gets a new GUID", path.display()))
            .ok(),
    }
}

/// Returns the host that has a GUID already: another one of this user and network namespace, or one that is up in another
/// of the user's namespaces.
fn owner(dir: &RuntimeDir, host: &HostName, guid: NodeGuid) -> Result<Option<String>, HostError> {
    for other in dir.hosts()?.into_iter().filter(|other| other != host) {
        if read(&dir.host(&other)?).is_some_and(|kept| kept.overlaps(guid)) {
            return Ok(Some(format!("host \"{other}\"")));
        }
    }
    for elsewhere in dir.other_namespaces() {
        for other in elsewhere.hosts().unwrap_or_default() {
            let Ok(theirs) = elsewhere.host(&other) else { continue };
            // Directories of namespaces that are gone do not count.
            let is_up = || theirs.lock_service().is_ok_and(|lock| lock.is_none());
            if read(&theirs).is_some_and(|kept| kept.overlaps(guid)) && is_up() {
                return Ok(Some(format!("host \"{other}\" of {}", elsewhere.path().display())));
            }
        }
    }
    Ok(None)
}

fn write(path: &Path, guid: NodeGuid) -> io::Result<()> {
    replace(path, format!("{guid}\n").as_bytes())
}

impl FromStr for NodeGuid {
    type Err = InvalidNodeGuid;
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let digits: String =
            s.strip_prefix("0x").unwrap_or(s).chars().filter(|c| *c != ':').collect();
        let all = digits.len() == 16 && digits.bytes().all(|b| b.is_ascii_hexdigit());
        let value = u64::from_str_radix(&digits, 16).ok().filter(|value| all && *value != 0);
        value.map(Self).ok_or_else(|| InvalidNodeGuid(s.to_owned()))
    }
}
impl TryFrom<String> for NodeGuid {
    type Error = InvalidNodeGuid;
    fn try_from(s: String) -> Result<Self, Self::Error> {
        s.parse()
    }
}
impl fmt::Display for NodeGuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.guid().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmux_testing::temp_dir;
    use std::cell::Cell;
    use std::fs;

    fn name(s: &str) -> HostName {
        HostName::new(s).unwrap()
    }
    /// Returns the GUID that a host gets if the random numbers are these.
    fn of(
        dir: &RuntimeDir,
        host: &str,
        wish: Option<&str>,
        draws: &[u64],
    ) -> Result<String, HostError> {
        let next = Cell::new(draws.iter());
        let random = || {
            let mut rest = next.take();
            let drawn = *rest.next().expect("another draw");
            next.set(rest);
            Ok(drawn)
        };
        let wish = wish.map(|wish| wish.parse().unwrap());
        NodeGuid::of_host(dir, &name(host), wish, random).map(|guid| guid.to_string())
    }

    #[test]
    fn node_guid_is_drawn_once_per_host_and_never_collides_with_another_host() {
        let tmp = temp_dir();
        let dir = RuntimeDir::at(tmp.path().join("r")).unwrap();
        assert_eq!(of(&dir, "a", None, &[0xff11_2233_4455_6677]).unwrap(), "0x0211223344556674");
        assert_eq!(of(&dir, "a", None, &[]).unwrap(), "0x0211223344556674");
        let draws = [0x0011_2233_4455_6676, 8];
        assert_eq!(of(&dir, "b", None, &draws).unwrap(), "0x0200000000000008");
    }

    #[test]
    fn a_guid_that_is_given_is_kept_unless_another_host_has_it() {
        let tmp = temp_dir();
        let dir = RuntimeDir::at(tmp.path().join("r")).unwrap();
        of(&dir, "a", Some("0x0002c90300001234"), &[]).unwrap();
        assert_eq!(of(&dir, "a", None, &[]).unwrap(), "0x0002c90300001234");
        // The second device of `a` would have the GUID of the first one of `b`.
        let e = of(&dir, "b", Some("0002:c903:0000:1235"), &[]).unwrap_err().to_string();
        assert!(e.contains("host \"a\"") && e.contains("0x0002c90300001235"), "{e}");
    }

    #[test]
    fn a_damaged_file_is_replaced_by_a_new_draw() {
        let tmp = temp_dir();
        let dir = RuntimeDir::at(tmp.path().join("r")).unwrap();
        let file = dir.host(&name("a")).unwrap().guid();
        for damaged in
            [&b"0211:2233"[..], b"", b"0000:0000:0000:0000\n", b"\xff\xfe", b"+211:2233:4455:667"]
        {
            fs::write(&file, damaged).unwrap();
            assert_eq!(of(&dir, "a", None, &[4]).unwrap(), "0x0200000000000004", "{damaged:?}");
            assert_eq!(fs::read_to_string(&file).unwrap(), "0x0200000000000004\n");
        }
        // A service that was killed left a partial write.
        fs::write(file.with_extension("new"), "half").unwrap();
        assert_eq!(of(&dir, "a", Some("1234:5678:9abc:def0"), &[]).unwrap(), "0x123456789abcdef0");
    }

    #[test]
    fn a_guid_that_cannot_be_kept_is_used_all_the_same() {
        let tmp = temp_dir();
        let dir = RuntimeDir::at(tmp.path().join("r")).unwrap();
        let host = dir.host(&name("a")).unwrap();
        // A directory blocks the new file, and cannot be removed as a file.
        fs::create_dir_all(host.guid().with_extension("new")).unwrap();
        assert_eq!(of(&dir, "a", None, &[4]).unwrap(), "0x0200000000000004");
    }

    #[test]
    fn a_host_that_is_up_in_another_network_namespace_keeps_its_guid_to_itself() {
        let tmp = temp_dir();
        let [here, there] =
            ["rdmux/netns-1", "rdmux/netns-2"].map(|d| RuntimeDir::at(tmp.path().join(d)).unwrap());
        of(&there, "default", Some("1234:5678:9abc:def0"), &[]).unwrap();
        let up = there.host(&name("default")).unwrap().lock_service().unwrap();
        let e = of(&here, "default", Some("1234:5678:9abc:def0"), &[]).unwrap_err().to_string();
        assert!(e.contains("netns-2"), "{e}");
        drop(up);
        of(&here, "default", Some("1234:5678:9abc:def0"), &[]).unwrap();
    }
}
