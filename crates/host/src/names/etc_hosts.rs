//! The file that is mounted over `/etc/hosts` (hosts(5)) in a view: the machine's own text, then a line for each
//! virtual host.
//!
//! A mount keeps referring to the file that existed when it was made. So the file is written in place, and laid out so
//! that changes are small: each virtual host has a record of [`RECORD`] bytes, a power of two, which never crosses a
//! page of the page cache, and a new host is one more record at the end. A reader finds a host or does not find it yet,
//! but never half a name.
//!
//! glibc answers with all lines that have a name. Inside a view the name must resolve to the virtual host alone, so it
//! is blanked out where the machine's text has it, too.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use super::{HostName, RegistryEntry};

/// The machine's file.
const MACHINE: &str = "/etc/hosts";
/// Maximum number of its bytes that are copied.
const MAX_MACHINE: u64 = 1 << 20;
/// Maximum number of bytes read of the view's file: the machine's text, and a record for each address.
const MAX_BYTES: u64 = 32 << 20;
/// The length of a host's record, with its newline: more than the longest name and address.
const RECORD: usize = 128;
/// The text of the record before the hosts' records. `rdmux_preload::names` has the same.
const MARKER: &str = "# Virtual hosts of rdmux";

/// Returns whether a host is found by its name. Excluded are names that have another meaning everywhere (`localhost`,
/// and strings that inet_aton(3) parses as an address), and the default host, which has the machine's names.
pub(super) fn has_name(host: &HostName) -> bool {
    let name = host.as_str();
    let is_hex = |digits: &str| digits.bytes().all(|b| b.is_ascii_hexdigit());
    let is_number =
        name.bytes().all(|b| b.is_ascii_digit()) || name.strip_prefix("0x").is_some_and(is_hex);
    !host.is_default() && name != "localhost" && !is_number
}

/// Updates the file at `path`. The caller holds the lock of the registry.
///
/// # Errors
/// Those of open(2), read(2) and write(2).
pub(super) fn update(path: &Path, entries: &[RegistryEntry]) -> io::Result<()> {
    update_from(Path::new(MACHINE), path, entries)
}

fn update_from(machine: &Path, path: &Path, entries: &[RegistryEntry]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).custom_flags(libc::O_NOFOLLOW);
    let file = options.open(path)?;
    if file.metadata()?.mode() & 0o777 != 0o644 {
        // In a view of root's, other users' programs read it, too.
        file.set_permissions(Permissions::from_mode(0o644))?;
    }
    let mut old = Vec::new();
    (&file).take(MAX_BYTES).read_to_end(&mut old)?;
    let own = if is_same(machine, &file)? {
        // This process is in a view, where `/etc/hosts` is this very file.
        let end = last_marker(&old).unwrap_or(old.len());
        old[..end].to_vec()
    } else {
        read_machine(machine)?
    };
    rewrite(&file, &old, &compose(&own, entries))
}

/// Returns whether a path leads to this file.
fn is_same(path: &Path, file: &File) -> io::Result<bool> {
    let own = file.metadata()?;
    Ok(fs::metadata(path).is_ok_and(|m| (m.dev(), m.ino()) == (own.dev(), own.ino())))
}

/// Reads the machine's text. Empty without a file.
fn read_machine(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    match File::open(path) {
        Ok(file) => file.take(MAX_MACHINE).read_to_end(&mut text)?,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(text),
        Err(e) => return Err(e),
    };
    if text.len() as u64 == MAX_MACHINE {
        // The last line may have been cut.
        text.truncate(text.iter().rposition(|&b| b == b'\n').map_or(0, |at| at + 1));
    }
    Ok(text)
}

/// Composes the whole file.
fn compose(machine: &[u8], entries: &[RegistryEntry]) -> Vec<u8> {
    let shown: Vec<_> = entries.iter().filter(|e| has_name(&e.name)).collect();
    let names = shown.iter().map(|e| e.name.as_str()).collect();
    let mut text = without(machine, &names);
    text.truncate(text.iter().rposition(|&b| b != b'\n').map_or(0, |at| at + 1));
    if !text.is_empty() {
        text.push(b'\n');
    }
    text.resize(text.len().next_multiple_of(RECORD), b'\n');
    push_record(&mut text, MARKER);
    for entry in shown {
        push_record(&mut text, &format!("{} {}", entry.address, entry.name));
    }
    text
}

fn push_record(text: &mut Vec<u8>, line: &str) {
    let end = text.len() + RECORD - 1;
    text.extend_from_slice(line.as_bytes());
    text.resize(end, b' ');
    text.push(b'\n');
}

/// Returns the machine's lines with these names blanked out, and their lengths unchanged. A line with no other name
/// becomes a comment.
fn without(machine: &[u8], names: &HashSet<&str>) -> Vec<u8> {
    let mut text = machine.to_vec();
    for line in text.split_mut(|&b| b == b'\n') {
        let end = line.iter().position(|&b| b == b'#').unwrap_or(line.len());
        blank_names(&mut line[..end], names);
    }
    text
}

/// Blanks out names in the part of a line before a comment.
fn blank_names(line: &mut [u8], names: &HashSet<&str>) {
    let is_ours = |word: &[u8]| {
        std::str::from_utf8(word).is_ok_and(|word| names.contains(&*word.to_ascii_lowercase()))
    };
    let mut words = line.split_mut(|b| b.is_ascii_whitespace()).filter(|word| !word.is_empty());
    let Some(address) = words.next() else { return };
    let (mut kept, mut blanked) = (false, false);
    for word in words {
        if is_ours(word) {
            word.fill(b' ');
            blanked = true;
        } else {
            kept = true;
        }
    }
    if blanked && !kept {
        address[0] = b'#';
    }
}

/// Finds the last record that is the marker.
fn last_marker(text: &[u8]) -> Option<usize> {
    let mut records = text.chunks_exact(RECORD);
    let last = records.rposition(|record| record.trim_ascii_end() == MARKER.as_bytes())?;
    Some(last * RECORD)
}

/// Writes the differing part, in one system call. If that fails, the file keeps its length.
fn rewrite(file: &File, old: &[u8], new: &[u8]) -> io::Result<()> {
    let same = |(a, b): (&u8, &u8)| a == b;
    let start = old.iter().zip(new).take_while(|&pair| same(pair)).count();
    let end = if old.len() == new.len() {
        let tail = old[start..].iter().rev().zip(new[start..].iter().rev());
        new.len() - tail.take_while(|&pair| same(pair)).count()
    } else {
        new.len()
    };
    file.write_all_at(&new[start..end], start as u64).inspect_err(|_| {
        // Restoring the old length is all that can be done.
        let _ = file.set_len(old.len() as u64);
    })?;
    if new.len() < old.len() { file.set_len(new.len() as u64) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmux_testing::temp_dir;

    fn entry(name: &str, address: &str) -> RegistryEntry {
        let (name, address) = (HostName::new(name).unwrap(), address.parse().unwrap());
        RegistryEntry { name, address, assigned: false }
    }

    /// Returns the lines of a text, without their padding.
    fn lines(text: &[u8]) -> Vec<String> {
        let text = String::from_utf8(text.to_vec()).unwrap();
        text.lines().map(|l| l.trim_end().to_owned()).filter(|l| !l.is_empty()).collect()
    }

    #[test]
    fn hosts_follow_the_machines_lines_in_records_of_one_size() {
        let long = "x".repeat(HostName::MAX);
        let longest = "1111:2222:3333:4444:5555:6666:7777:8888";
        let text =
            compose(b"127.0.0.1 localhost", &[entry("a", "127.77.0.1"), entry(&long, longest)]);
        let expected =
            ["127.0.0.1 localhost", MARKER, "127.77.0.1 a", &format!("{longest} {long}")];
        assert_eq!(lines(&text), expected);
        assert_eq!(text.len(), 4 * RECORD);
        assert!(text.chunks(RECORD).all(|record| record.ends_with(b"\n")));
        assert_eq!(4096 % RECORD, 0);
    }

    #[test]
    fn numeric_host_names_and_localhost_are_not_in_etc_hosts() {
        let names = ["a", "localhost", "default", "127", "0x7f", "0x", "0xg", "1a"];
        let shown: Vec<_> =
            names.into_iter().filter(|n| has_name(&HostName::new(n).unwrap())).collect();
        assert_eq!(shown, ["a", "0xg", "1a"]);
        let text = compose(b"", &[entry("localhost", "127.77.0.1"), entry("b", "127.77.0.2")]);
        assert_eq!(lines(&text), [MARKER, "127.77.0.2 b"]);
    }

    #[test]
    fn a_name_of_a_host_is_blanked_out_of_the_machines_lines() {
        let machine =
            b"10.0.0.1 A a.example\n\t10.0.0.2\ta # a\n10.0.0.3 ab\n::1 b\xff a\n# a\n10.0.0.4\n";
        let names = HashSet::from(["a"]);
        let text = without(machine, &names);
        let expected =
            b"10.0.0.1   a.example\n\t#0.0.0.2\t  # a\n10.0.0.3 ab\n::1 b\xff  \n# a\n10.0.0.4\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_change_is_written_in_place_and_a_new_host_at_the_end() {
        let dir = temp_dir();
        let (machine, path) = (dir.path().join("machine"), dir.path().join("etc-hosts"));
        fs::write(&machine, "127.0.0.1 localhost\n10.0.0.1 b\n").unwrap();
        let update = |entries: &[RegistryEntry]| {
            update_from(&machine, &path, entries).unwrap();
            fs::read(&path).unwrap()
        };
        let one = update(&[entry("a", "127.77.0.1")]);
        let open = File::open(&path).unwrap();
        assert_eq!(open.metadata().unwrap().mode() & 0o777, 0o644);
        let two = update(&[entry("a", "127.77.0.1"), entry("c", "127.77.0.2")]);
        assert_eq!(two[..one.len()], one);
        // The record is at the same place in the file, regardless of the name.
        let other = update(&[entry("a", "127.77.0.1"), entry("b", "127.77.0.2")]);
        assert_eq!(other.len(), two.len());
        let expected = ["127.0.0.1 localhost", "#0.0.0.1", MARKER, "127.77.0.1 a", "127.77.0.2 b"];
        assert_eq!(lines(&other), expected);
        // The machine's name is back when no virtual host has it, and the file is shorter.
        let expected = ["127.0.0.1 localhost", "10.0.0.1 b", MARKER];
        assert_eq!(lines(&update(&[])), expected);
        assert_eq!(lines(&fs::read(&path).unwrap()), expected);
        let mut seen = Vec::new();
        { open }.read_to_end(&mut seen).unwrap();
        assert_eq!(lines(&seen), expected, "it is the same file");
    }

    #[test]
    fn in_a_view_the_part_before_the_last_marker_is_the_machines() {
        let dir = temp_dir();
        let (machine, path) = (dir.path().join("machine"), dir.path().join("etc-hosts"));
        // The machine's file is itself a view of another user.
        fs::write(&machine, compose(b"127.0.0.1 localhost\n", &[entry("x", "127.77.9.9")]))
            .unwrap();
        update_from(&machine, &path, &[entry("a", "127.77.0.1")]).unwrap();
        let before = fs::read(&path).unwrap();
        update_from(&path, &path, &[entry("a", "127.77.0.1")]).unwrap();
        assert_eq!(fs::read(&path).unwrap(), before);
        update_from(&path, &path, &[entry("b", "127.77.0.1")]).unwrap();
        let now = lines(&fs::read(&path).unwrap());
        let expected = ["127.0.0.1 localhost", MARKER, "127.77.9.9 x", MARKER, "127.77.0.1 b"];
        assert_eq!(now, expected);
    }

    #[test]
    fn a_machines_file_without_end_is_cut_behind_a_line() {
        let dir = temp_dir();
        let (machine, path) = (dir.path().join("machine"), dir.path().join("etc-hosts"));
        fs::write(&machine, "10.0.0.1 some-name\n".repeat(100_000)).unwrap();
        update_from(&machine, &path, &[entry("a", "127.77.0.1")]).unwrap();
        let text = fs::read(&path).unwrap();
        assert!(text.len() as u64 <= MAX_MACHINE + 3 * RECORD as u64);
        assert_eq!(lines(&text).iter().filter(|l| !l.ends_with(" some-name")).count(), 2);
        fs::remove_file(&machine).unwrap();
        update_from(&machine, &path, &[entry("a", "127.77.0.1")]).unwrap();
        assert_eq!(lines(&fs::read(&path).unwrap()), [MARKER, "127.77.0.1 a"]);
    }
}
