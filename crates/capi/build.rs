//! Gives every exported function its version node, from the tables in `exports/`.
//!
//! A line is `NODE NAME`, or `NODE NAME = FUNCTION` where the symbol is another name for a function of
//! this crate, given by its name in C or by its path. That is the name's default version
//! (`NAME@@NODE`), which programs linked today get. A line that begins with `old` is a version for
//! programs linked long ago (`NAME@NODE`).

use std::collections::BTreeSet;
use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// Version nodes of each library, oldest first: each inherits from the one before.
const LIBRARIES: &[&[&str]] = &[
    &[
        "IBVERBS_1.0",
        "IBVERBS_1.1",
        "IBVERBS_1.5",
        "IBVERBS_1.6",
        "IBVERBS_1.7",
        "IBVERBS_1.8",
        "IBVERBS_1.9",
        "IBVERBS_1.10",
        "IBVERBS_1.11",
        "IBVERBS_1.12",
        "IBVERBS_1.13",
        "IBVERBS_1.14",
        "IBVERBS_1.15",
        "IBVERBS_1.16",
        "IBVERBS_1.17",
        "IBVERBS_1.18",
    ],
    &["IBVERBS_PRIVATE_34"],
    &["RDMACM_1.0", "RDMACM_1.1", "RDMACM_1.2", "RDMACM_1.3", "RDMACM_1.4", "RDMACM_1.5"],
    &["IBUMAD_1.0", "IBUMAD_1.1", "IBUMAD_1.2"],
    &["RDMUX_0.1"],
    &["RDMUX_XRC_1.0"],
    &["RDMUX_1.0"],
];

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let exports = Exports::read(&root.join("exports"));
    fs::write(out.join("exports.rs"), exports.global_asm()).expect("writing to the build's folder");
    let map = out.join("exports.map");
    fs::write(&map, version_script()).expect("writing to the build's folder");
    println!("cargo::rustc-cdylib-link-arg=-Wl,--version-script={}", map.display());
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libibverbs.so.1");
    // The library runs threads of its own, so it must stay loaded when a program closes it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}

/// Returns the version script: the nodes and how they inherit. The symbols themselves carry their nodes.
fn version_script() -> String {
    let mut map = String::new();
    for library in LIBRARIES {
        let mut parent = "";
        for node in *library {
            let _ = writeln!(map, "{node} {{ }} {parent};");
            parent = node;
        }
    }
    map
}

/// The contents of all tables.
#[derive(Default)]
struct Exports {
    asm: String,
    /// Names that have a default version.
    defaults: BTreeSet<String>,
    /// Paths of functions that have no name in C.
    paths: BTreeSet<String>,
}

impl Exports {
    fn read(folder: &Path) -> Self {
        println!("cargo::rerun-if-changed={}", folder.display());
        let mut exports = Self::default();
        for entry in fs::read_dir(folder).expect("the folder of export tables") {
            let file = entry.expect("an export table").path();
            let table = fs::read_to_string(&file).expect("an export table");
            for (number, line) in table.lines().enumerate() {
                let line = line.split('#').next().unwrap_or_default().trim();
                if !line.is_empty()
                    && let Err(wrong) = exports.take(line)
                {
                    panic!("{}:{}: {wrong}", file.display(), number + 1);
                }
            }
        }
        exports
    }

    fn take(&mut self, line: &str) -> Result<(), String> {
        let (symbol, target) = match line.split_once('=') {
            Some((symbol, target)) => (symbol.trim(), Some(target.trim())),
            None => (line, None),
        };
        let (at, symbol) = symbol.strip_prefix("old ").map_or(("@@", symbol), |old| ("@", old));
        let mut words = symbol.split_whitespace();
        let (Some(node), Some(name), None) = (words.next(), words.next(), words.next()) else {
            return Err("not `[old] NODE NAME [= FUNCTION]`".into());
        };
        if !LIBRARIES.iter().any(|library| library.contains(&node)) {
            return Err(format!("no node {node}"));
        }
        if at == "@@" && !self.defaults.insert(name.to_owned()) {
            return Err(format!("a second default version of {name}"));
        }
        self.export(name, &format!("{name}{at}{node}"), target);
        Ok(())
    }

    /// Adds a symbol for one version: the function itself, or a jump to another one.
    fn export(&mut self, name: &str, versioned: &str, target: Option<&str>) {
        let Some(target) = target else {
            let _ = writeln!(self.asm, ".symver {name}, {versioned}");
            return;
        };
        let target = if target.contains("::") {
            self.paths.insert(target.to_owned());
            format!("{{{}}}", operand(target))
        } else {
            target.to_owned()
        };
        let local = format!("rdmux_export_{}", versioned.replace(['@', '.'], "_"));
        let _ = write!(
            self.asm,
            ".globl {local}\n.type {local}, @function\n{local}:\njmp {target}\n\
             .size {local}, . - {local}\n.symver {local}, {versioned}\n"
        );
    }

    /// Returns the macro call that defines all symbols.
    fn global_asm(&self) -> String {
        let mut call = format!("core::arch::global_asm!(\n{:?}", self.asm);
        for path in &self.paths {
            let _ = write!(call, ",\n{} = sym crate::{path}", operand(path));
        }
        call + ");\n"
    }
}

/// Returns the name of the operand for a function in the assembly.
fn operand(path: &str) -> String {
    path.replace("::", "_")
}
