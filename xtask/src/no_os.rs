//! `cargo xtask no-os`: builds the crates without I/O for a target without an operating system.

use anyhow::{Context, Result};

use crate::report::Report;
use crate::sh;

const TARGET: &str = "x86_64-unknown-none";

/// The crates to build, as cargo arguments.
const BUILDS: &[(&str, &[&str])] = &[
    ("wire", &["-p", "rdmux-wire", "--no-default-features"]),
    ("transport", &["-p", "rdmux-transport"]),
    ("cm", &["-p", "rdmux-cm"]),
    ("ipoib", &["-p", "rdmux-ipoib"]),
    ("acm", &["-p", "rdmux-acm"]),
    ("subnet", &["-p", "rdmux-subnet"]),
];

/// Builds the crates, after fetching the target's core library if needed.
pub(crate) fn run(report: &mut Report) {
    report.heading("builds without an operating system");
    if let Err(e) = install() {
        report.skip("no-os", &format!("target {TARGET} is not installed and cannot be: {e:#}"));
        return;
    }
    for (name, args) in BUILDS {
        let mut cargo = sh::cargo();
        cargo.args(["build", "--quiet", "--target", TARGET]).args(*args);
        // The result is not run.
        cargo.env("CARGO_PROFILE_DEV_OPT_LEVEL", "0");
        report.check(&format!("no-os {name}"), sh::run(&mut cargo));
    }
}

fn install() -> Result<()> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let sysroot = sh::output(sh::command(rustc).args(["--print", "sysroot"]))?;
    let lib = std::path::Path::new(&sysroot).join("lib/rustlib").join(TARGET).join("lib");
    if lib.is_dir() {
        return Ok(());
    }
    sh::run(sh::command("rustup").args(["target", "add", TARGET])).context("rustup target add")
}
