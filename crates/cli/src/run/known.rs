//! Recognizes programs that look for devices in the file system themselves, or for virtual hosts by name.
//!
//! This is not needed if namespaces are allowed. Elsewhere a library is preloaded, into these programs only. The guess is
//! cheap: by the program's name, by the libraries whose names are in its file, and by the directories that the file or its
//! arguments name. `--view` overrides a wrong guess.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use rdmux_command::child::find_program;

/// Programs by name, or by a prefix of it: interpreters, whose programs may load one of [`LIBRARIES`] at any
/// time, and launchers of such programs.
const PROGRAMS: [&str; 7] = ["python", "pypy", "ucx_", "mpirun", "mpiexec", "orterun", "prterun"];
/// Libraries that look for devices in the file system: those of UCX, those of MPI, which loads UCX or its own modules,
/// and those for management datagrams.
const LIBRARIES: [&str; 10] = [
    "libucp.so",
    "libuct.so",
    "libmpi.so",
    "libmpi_",
    "libmpich",
    "liboshmem.so",
    "libibumad.so",
    "libibmad.so",
    "libibnetdisc.so",
    "libosmvendor.so",
];
/// The directories in which programs look for devices.
const DIRECTORIES: [&str; 2] = ["/sys/class/infiniband", "/dev/infiniband"];
/// The number of bytes of a file that are read.
const MAX_FILE: u64 = 64 << 20;

/// Returns whether a program is known to look for devices in the file system.
pub(crate) fn looks(program: &OsStr, args: &[OsString]) -> bool {
    has_name(Path::new(program))
        || args.iter().any(|a| has_any(a.as_encoded_bytes(), &DIRECTORIES))
        || find_program(program).is_some_and(|path| file_looks(&path))
}

/// Returns whether an argument is the name of a host, or a list of such names.
pub(crate) fn names_host(args: &[OsString], is_host: impl Fn(&str) -> bool) -> bool {
    let mut words = args.iter().filter_map(|a| a.to_str()).flat_map(|a| a.split([',', ':', '=']));
    words.any(|word| !word.is_empty() && is_host(word))
}

fn has_name(program: &Path) -> bool {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    PROGRAMS.iter().any(|p| name.starts_with(p))
}

fn file_looks(path: &Path) -> bool {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_FILE).read_to_end(&mut bytes));
    if read.is_err() {
        return false;
    }
    match bytes.strip_prefix(b"#!") {
        None => has_any(&bytes, &LIBRARIES) || names_directory(&bytes),
        Some(script) => {
            let line = script.split(|&b| b == b'\n').next().unwrap_or_default();
            // Matches `#!/usr/bin/env -S python3 -u` as well as `#!/usr/bin/python3`.
            let interpreter = String::from_utf8_lossy(line)
                .split_whitespace()
                .any(|word| has_name(Path::new(word)));
            interpreter || has_any(script, &DIRECTORIES)
        }
    }
}

/// Returns whether a program's constants name one of the directories. A path that continues with a format's `%` does not
/// count: its program already has the device's name from the library, like perftest, which reads counters there and works
/// without them.
fn names_directory(bytes: &[u8]) -> bool {
    let goes_on = |at: usize, word: &str| bytes[at + word.len()..].starts_with(b"/%");
    let named = |at: usize| {
        bytes[at] == b'/'
            && DIRECTORIES
                .iter()
                .any(|word| bytes[at..].starts_with(word.as_bytes()) && !goes_on(at, word))
    };
    (0..bytes.len()).any(named)
}

fn has_any(text: &[u8], words: &[&str]) -> bool {
    let starts = |at: usize, word: &[u8]| text[at] == word[0] && text[at..].starts_with(word);
    (0..text.len()).any(|at| words.iter().any(|word| starts(at, word.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks_with(program: &str, args: &[&str]) -> bool {
        let args: Vec<_> = args.iter().map(OsString::from).collect();
        looks(OsStr::new(program), &args)
    }

    #[test]
    fn sysfs_use_is_guessed_from_program_name_and_arguments() {
        assert!(looks_with("/nowhere/python3.11", &[]));
        assert!(looks_with("ucx_perftest", &["-t", "tag_lat"]));
        assert!(looks_with("/nowhere/sh", &["-c", "ls /sys/class/infiniband"]));
        assert!(!looks_with("/nowhere/ib_write_bw", &["-a", "localhost"]));
    }

    #[test]
    fn an_argument_names_a_host_as_a_whole() {
        let names = |args: &[&str]| {
            let args: Vec<_> = args.iter().map(OsString::from).collect();
            names_host(&args, |word| word == "a")
        };
        for named in [&["-c", "-a", "a"][..], &["--host", "b:1,a:2"], &["--server=a"]] {
            assert!(names(named), "{named:?}");
        }
        for other in [&["-a", "-aa"][..], &["b", "a.example", ""], &[]] {
            assert!(!names(other), "{other:?}");
        }
    }

    #[test]
    fn sysfs_use_is_guessed_from_program_file_contents() {
        let dir = rdmux_testing::temp_dir();
        let file = dir.path().join("program");
        for (text, expected) in [
            ("#!/usr/bin/env python3\n", true),
            ("#! /bin/sh\ncat /dev/infiniband/uverbs0\n", true),
            ("#!/bin/sh\nib_write_bw\n", false),
            ("\x7fELF\0\0libm.so.6\0libucp.so.0\0", true),
            ("\x7fELF\0\0libm.so.6\0libibumad.so.3\0", true),
            // A string constant of Rust has no terminator, and another one may follow.
            ("\x7fELF\0\0no device/sys/class/infinibandopen", true),
            ("\x7fELF\0\0/dev/infiniband/uverbs%d\0", true),
            // perftest has this for its counters, and works without them.
            ("\x7fELF\0\0/sys/class/infiniband/%s/ports/%d/counters/%s\0", false),
        ] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(looks_with(file.to_str().unwrap(), &[]), expected, "{text:?}");
        }
    }
}
