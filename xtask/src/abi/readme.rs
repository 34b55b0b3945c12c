//! Checks that the README's C snippet compiles.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::report::Report;
use crate::sh;

pub(super) fn run(report: &mut Report) {
    if Path::new("/usr/include/rdma/rdma_verbs.h").is_file() {
        report.check("the README's C snippet", compile());
    } else {
        report.skip("the README's C snippet", "no headers (libibverbs-dev, librdmacm-dev)");
    }
}

fn compile() -> Result<()> {
    let readme = fs::read_to_string(sh::root().join("README.md")).context("README.md")?;
    let snippet = snippet(&readme).context("the README has no snippet of C")?;
    let dir = sh::target_dir().join("abi");
    fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
    let source = dir.join("readme.c");
    fs::write(&source, snippet).with_context(|| source.display().to_string())?;
    let mut cc = sh::command("cc");
    cc.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-o"]).arg(dir.join("readme"));
    sh::run(cc.arg(&source).args(["-lrdmacm", "-libverbs"]))
}

/// Returns the first fenced C block.
pub(super) fn snippet(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("\n```c\n")?;
    Some(rest.split_once("\n```")?.0)
}

#[cfg(test)]
mod tests {
    use super::snippet;

    #[test]
    fn the_block_of_c_is_found() {
        assert_eq!(snippet("a\n```sh\ncc\n```\n```c\nint x;\n```\n"), Some("int x;"));
        assert_eq!(snippet("```sh\ncc\n```\n"), None);
    }
}
