//! Gives every exported function its version node, from the tables in `exports/`.
//!
//! A line is `NODE NAME`, or `NODE NAME = FUNCTION` where the symbol is another name for a function of
//! ours. The first node of a name that is listed is its default (`NAME@@NODE`), later ones are for programs linked
//! long ago (`NAME@NODE`).

use std::collections::BTreeSet;
use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

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
    &["RDMUX_0.1"],
];

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let tables = root.join("exports");
    println!("cargo::rerun-if-changed={}", tables.display());

    let mut files: Vec<_> = fs::read_dir(&tables)
        .expect("the folder of export tables")
        .map(|entry| entry.expect("an export table").path())
        .collect();
    files.sort();
    let mut asm = String::new();
    let mut seen = BTreeSet::new();
    for file in files {
        println!("cargo::rerun-if-changed={}", file.display());
        let table = fs::read_to_string(&file).expect("an export table");
        for (number, line) in table.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let place = || format!("{}:{}", file.display(), number + 1);
            let (symbol, target) = match line.split_once('=') {
                Some((symbol, target)) => (symbol.trim(), Some(target.trim())),
                None => (line, None),
            };
            let Some((node, name)) = symbol.split_once(' ').map(|(a, b)| (a, b.trim())) else {
                panic!("{}: not `NODE NAME [= FUNCTION]`", place());
            };
            assert!(LIBRARIES.iter().any(|l| l.contains(&node)), "{}: no node {node}", place());
            let at = if seen.insert(name.to_owned()) { "@@" } else { "@" };
            export(&mut asm, node, name, at, target);
        }
    }
    fs::write(out.join("exports.s"), asm).expect("writing to the build's folder");

    let mut map = String::new();
    for library in LIBRARIES {
        let mut parent = "";
        for node in *library {
            let _ = writeln!(map, "{node} {{ }} {parent};");
            parent = node;
        }
    }
    let map_file = out.join("exports.map");
    fs::write(&map_file, map).expect("writing to the build's folder");
    println!("cargo::rustc-cdylib-link-arg=-Wl,--version-script={}", map_file.display());
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libibverbs.so.1");
}

/// A symbol of its own for each version: the function itself, or a jump to another one.
fn export(asm: &mut String, node: &str, name: &str, at: &str, target: Option<&str>) {
    match target {
        None => {
            let _ = writeln!(asm, ".symver {name}, {name}{at}{node}");
        }
        Some(target) => {
            let local = format!("rdmux_export_{name}_{}", node.replace('.', "_"));
            let _ =
                writeln!(asm, ".globl {local}\n.type {local}, @function\n{local}:\njmp {target}");
            let _ = writeln!(asm, ".size {local}, . - {local}\n.symver {local}, {name}{at}{node}");
        }
    }
}
