//! Symbols, version nodes, and the default version of each symbol.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::report::Report;
use crate::sh;

/// The libraries by soname, with the prefix of their nodes.
const LIBRARIES: &[(&str, &str)] = &[
    ("libibverbs.so.1", "IBVERBS_"),
    ("librdmacm.so.1", "RDMACM_"),
    ("libibumad.so.3", "IBUMAD_"),
];

/// The folders where distributions install them.
const FOLDERS: &[&str] =
    &["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];

/// Nodes of rdmux that rdma-core 44 does not have: those of later releases, and rdmux's own.
const BEYOND: &[&str] = &[
    "IBVERBS_1.15",
    "IBVERBS_1.16",
    "IBVERBS_1.17",
    "IBVERBS_1.18",
    "RDMACM_1.4",
    "RDMACM_1.5",
    "RDMUX_0.1",
    "RDMUX_XRC_1.0",
    "RDMUX_1.0",
];

/// Symbols that interpose the C library. They have no version, so that they are found first.
const BEFORE_LIBC: &[&str] = &["FUNC sigaction", "FUNC signal"];

/// The private node of rdmux. Its number, and its contents, change with the releases.
const PRIVATE: &str = "IBVERBS_PRIVATE_34";

pub(super) fn run(report: &mut Report) {
    let ours = match super::shared_object().and_then(|so| Exports::of(&so)) {
        Ok(ours) => ours,
        Err(e) => return report.fail("exports", &format!("{e:#}")),
    };
    report.check("exports beyond the tables", nothing_else(&ours));
    for &(library, nodes) in LIBRARIES {
        let table = super::tables().join(format!("{library}.txt"));
        let check = Exports::read(&table).and_then(|theirs| all_there(&ours, &theirs));
        report.check(&format!("exports of {library}"), check);
        match installed(library) {
            Some(file) => {
                let check = Exports::of(&file).and_then(|theirs| {
                    ensure!(
                        theirs.0.iter().any(|e| e.contains(nodes)),
                        "the library exports no expected symbol"
                    );
                    all_there(&ours, &theirs.without_foreign_private())
                });
                report.check(&format!("exports of {}", file.display()), check);
            }
            None => {
                report.skip(&format!("exports of the distribution's {library}"), "not installed")
            }
        }
    }
}

/// Returns the distribution's own file. The loader is not asked, because it may return rdmux's.
fn installed(library: &str) -> Option<PathBuf> {
    FOLDERS.iter().map(|folder| Path::new(folder).join(library)).find(|file| file.is_file())
}

/// Checks that rdmux exports everything that the distribution's library exports, with the same node, kind, and default version.
fn all_there(ours: &Exports, theirs: &Exports) -> Result<()> {
    let missing: Vec<&str> = theirs.0.difference(&ours.0).map(String::as_str).collect();
    ensure!(missing.is_empty(), "{} symbols are missing:\n{}", missing.len(), missing.join("\n"));
    println!("{} symbols in order", theirs.0.len());
    Ok(())
}

/// Checks that all other exports of rdmux are known and have a node, except those that interpose the C library.
fn nothing_else(ours: &Exports) -> Result<()> {
    let mut extra = ours.0.clone();
    for (library, _) in LIBRARIES {
        for export in Exports::read(&super::tables().join(format!("{library}.txt")))?.0 {
            extra.remove(&export);
        }
    }
    extra.retain(|export| {
        !BEFORE_LIBC.contains(&export.as_str())
            && node(export).is_none_or(|node| !BEYOND.contains(&node))
    });
    let extra: Vec<String> = extra.into_iter().collect();
    ensure!(extra.is_empty(), "symbols that no table lists:\n{}", extra.join("\n"));
    Ok(())
}

/// Checks that a file exports exactly what a table lists, each as `NODE NAME`.
pub(super) fn are_listed(file: &Path, table: &Path) -> Result<()> {
    let text = std::fs::read_to_string(table).with_context(|| table.display().to_string())?;
    let listed = text.lines().filter_map(|line| match line.split_once(' ') {
        Some((node, name)) if !line.starts_with('#') => Some(format!("FUNC {name}@@{node}")),
        _ => None,
    });
    let (listed, found) = (listed.collect::<BTreeSet<_>>(), Exports::of(file)?.0);
    let wrong: Vec<&str> = listed.symmetric_difference(&found).map(String::as_str).collect();
    ensure!(
        wrong.is_empty() && !found.is_empty(),
        "only in the table or only in the library:\n{}",
        wrong.join("\n")
    );
    println!("{} symbols in order", found.len());
    Ok(())
}

/// The exports of a file, each as `KIND NAME@@NODE`, or as `KIND NAME@NODE` if it is not the default.
#[derive(Clone, Debug, PartialEq)]
struct Exports(BTreeSet<String>);

impl Exports {
    /// Reads the dynamic symbols of a shared object.
    fn of(file: &Path) -> Result<Self> {
        let mut readelf = sh::command("readelf");
        let list = sh::output(readelf.args(["--wide", "--dyn-syms"]).arg(file))
            .context("reading symbols (with readelf, of binutils)")?;
        Ok(Self(list.lines().filter_map(symbol).collect()))
    }

    /// Reads a committed table, which has these lines.
    fn read(table: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(table).with_context(|| table.display().to_string())?;
        Ok(Self(text.lines().map(str::to_owned).collect()))
    }

    fn without_foreign_private(mut self) -> Self {
        self.0.retain(|export| {
            node(export).is_none_or(|node| node == PRIVATE || !node.contains("_PRIVATE_"))
        });
        self
    }
}

/// Parses a line of readelf, `51: ADDRESS SIZE KIND BINDING VISIBILITY SECTION NAME`, if it defines a symbol.
fn symbol(line: &str) -> Option<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [_, _, _, kind, _, _, section, name, ..] = words[..] else { return None };
    let defined = section.parse::<u32>().is_ok();
    // Ignore symbols that the linker itself adds.
    (defined && ["FUNC", "OBJECT", "IFUNC", "TLS"].contains(&kind))
        .then(|| format!("{kind} {name}"))
}

fn node(export: &str) -> Option<&str> {
    export.split_once('@').map(|(_, node)| node.trim_start_matches('@'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "
Symbol table '.dynsym' contains 4 entries:
   Num:    Value          Size Type    Bind   Vis      Ndx Name
     1: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND getenv@GLIBC_2.2.5 (3)
     2: 0000000000009f40    12 FUNC    GLOBAL DEFAULT   13 ibv_query_port@IBVERBS_1.0
     3: 000000000000a000    12 FUNC    GLOBAL DEFAULT   13 ibv_query_port@@IBVERBS_1.1
     4: 0000000000000000     0 OBJECT  GLOBAL DEFAULT  ABS IBVERBS_1.1";

    fn exports(list: &[&str]) -> Exports {
        Exports(list.iter().map(|e| (*e).to_owned()).collect())
    }

    #[test]
    fn only_defined_symbols_are_exports() {
        let found = Exports(LIST.lines().filter_map(symbol).collect());
        let expected =
            exports(&["FUNC ibv_query_port@IBVERBS_1.0", "FUNC ibv_query_port@@IBVERBS_1.1"]);
        assert_eq!(found, expected);
    }

    #[test]
    fn a_version_that_is_not_the_default_is_missing() {
        let theirs = exports(&["FUNC a@@IBVERBS_1.1"]);
        assert!(all_there(&exports(&["FUNC a@IBVERBS_1.1"]), &theirs).is_err());
        assert!(all_there(&exports(&["FUNC a@@IBVERBS_1.0"]), &theirs).is_err());
        assert!(all_there(&exports(&["FUNC a@@IBVERBS_1.1", "FUNC b"]), &theirs).is_ok());
    }

    #[test]
    fn only_known_symbols_are_exported() {
        assert!(nothing_else(&exports(&["FUNC rdmux_x@@RDMUX_0.1"])).is_ok());
        assert!(nothing_else(&exports(&["FUNC rdmux_x"])).is_err());
        assert!(nothing_else(&exports(&["FUNC ibv_x@@IBVERBS_1.1"])).is_err());
    }

    #[test]
    fn private_symbols_of_another_release_do_not_matter() {
        let theirs = exports(&[
            "FUNC a@@IBVERBS_PRIVATE_59",
            "FUNC b@@IBVERBS_PRIVATE_34",
            "FUNC c@@IBVERBS_1.1",
        ]);
        let expected = exports(&["FUNC b@@IBVERBS_PRIVATE_34", "FUNC c@@IBVERBS_1.1"]);
        assert_eq!(theirs.without_foreign_private(), expected);
    }
}
