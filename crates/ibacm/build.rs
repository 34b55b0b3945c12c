//! Gives every exported function its version node, from the table in `exports/`, whose lines are `NODE NAME`.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

/// The version nodes, oldest first: each inherits from the one before.
const NODES: &[&str] = &["IBACM_1.0"];

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let table = root.join("exports/ibacm.txt");
    println!("cargo::rerun-if-changed={}", table.display());
    let table = fs::read_to_string(&table).expect("the table of exports");
    let mut asm = String::new();
    for line in table.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (node, name) = line.split_once(' ').expect("a line is `NODE NAME`");
        assert!(NODES.contains(&node), "no node {node}");
        let _ = writeln!(asm, ".symver {name}, {name}@@{node}");
    }
    let asm = format!("core::arch::global_asm!(\n{asm:?});\n");
    fs::write(out.join("exports.rs"), asm).expect("writing to the build's folder");
    let (mut script, mut parent) = (String::new(), "");
    for node in NODES {
        let _ = writeln!(script, "{node} {{ }} {parent};");
        parent = node;
    }
    let map = out.join("exports.map");
    fs::write(&map, script).expect("writing to the build's folder");
    println!("cargo::rustc-cdylib-link-arg=-Wl,--version-script={}", map.display());
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libibacm.so.1");
}
