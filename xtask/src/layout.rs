//! Rules for files that no compiler checks.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::sh;

/// The maximum length of a Rust file.
const MAX_LINES: usize = 1000;

/// The crates that may use `unsafe`; all others forbid it.
const MAY_BE_UNSAFE: &[&str] = &[
    "crates/link",
    "crates/verbs",
    "crates/rdmux",
    "crates/capi",
    "crates/ibacm",
    "crates/preload",
];

/// Checks the length of files and which crates forbid unsafe code.
pub(crate) fn check() -> Result<()> {
    let root = sh::root();
    let mut wrong = Vec::new();
    let mut files = Vec::new();
    for top in ["crates", "conformance", "fuzz", "xtask", "examples", "benches"] {
        rust_files(&root.join(top), &mut files)?;
    }
    for file in &files {
        let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
        let name = file.strip_prefix(&root).unwrap_or(file);
        let lines = text.lines().count();
        if lines > MAX_LINES {
            wrong.push(format!("{}: {lines} lines; split it", name.display()));
        }
        let free = MAY_BE_UNSAFE.iter().any(|c| name.starts_with(c));
        if is_crate_root(name) && !free && !text.contains("#![forbid(unsafe_code)]") {
            wrong.push(format!("{}: does not forbid unsafe code", name.display()));
        }
    }
    if !wrong.is_empty() {
        bail!("{}", wrong.join("\n"));
    }
    println!("{} files in order", files.len());
    Ok(())
}

fn is_crate_root(name: &Path) -> bool {
    name.ends_with("src/lib.rs") || name.ends_with("src/main.rs")
}

/// Adds the Rust files in a folder and its subfolders.
pub(crate) fn rust_files(dir: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    if !dir.is_dir() {
        return Ok(());
    }
    for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            if path.file_name().is_none_or(|n| n != "target") {
                rust_files(&path, files)?;
            }
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
    Ok(())
}
