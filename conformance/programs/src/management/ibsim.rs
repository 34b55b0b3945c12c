//! ibsim, which reads the same topology files as rdmux.

use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use rdmux_subnet::topology::{Included, Topology};

use super::ground::{self, Ground};
use crate::stage::find_program;

/// A file with modules, aliases, included files and commands; `crates/subnet/tests/ibsim.rs` compares the parser of rdmux with
/// ibsim.
const FILES: [(&str, &str); 3] = [
    ("racks.net", include_str!("../../../../crates/subnet/tests/ibsim/racks.net")),
    ("rack-a.net", include_str!("../../../../crates/subnet/tests/ibsim/rack-a.net")),
    ("rack-b.net", include_str!("../../../../crates/subnet/tests/ibsim/rack-b.net")),
];
/// ibsim's dump of it.
const DUMP: &str = include_str!("../../../../crates/subnet/tests/ibsim/dump");

/// ibsim shows the nodes and cables that the tests of the parser expect, and a fabric comes up with the same.
pub(crate) fn same_file(ground: &Ground) -> Result<()> {
    let dir = ground.dir().join("racks");
    std::fs::create_dir_all(&dir)?;
    for (name, text) in FILES {
        std::fs::write(dir.join(name), text)?;
    }
    let program = find_program("ibsim").context("ibsim is not installed")?;
    let mut ibsim = Command::new(program);
    // ibsim resolves file names relative to its working directory.
    ibsim.args(["-s", FILES[0].0]).current_dir(&dir);
    ibsim.env("IBSIM_SOCKNAME", format!("rdmux-{}", std::process::id()));
    let mut ibsim =
        ibsim.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    ibsim.stdin.take().context("a pipe")?.write_all(b"dump\nquit\n")?;
    let output = String::from_utf8_lossy(&ibsim.wait_with_output()?.stdout).into_owned();
    let shown = output.replace("sim> ", "");
    let shown: Vec<_> = shown.lines().filter(|line| is_node_or_port(line)).collect();
    let expected: Vec<_> = DUMP.lines().collect();
    ensure!(shown == expected, "ibsim shows {shown:#?}, not {expected:#?}");

    let mut open = |_: &str, name: &str| {
        let file = FILES.iter().find(|(other, _)| *other == name).ok_or("no such file")?;
        Ok(Included { name: file.0.to_owned(), text: file.1.to_owned() })
    };
    let topology = Topology::parse_with(FILES[0].1, &mut open)
        .map_err(|e| anyhow::anyhow!("cannot parse a file that ibsim reads: {e}"))?;
    let file = dir.join(FILES[0].0);
    let file = file.to_str().context("a path")?;
    let fabric = ["--fabric", "racks"];
    ground.rdmux(
        &[&["fabric", "up", "--no-sm", "--simulate", "--topology", file], &fabric[..]].concat(),
    )?;
    let shown = ground.rdmux(&[&["fabric", "show", "--topology"], &fabric[..]].concat());
    ground.rdmux(&[&["fabric", "down"], &fabric[..]].concat())?;
    let shown = ground::parse(&shown?)?;
    ensure!(shown == topology, "the fabric shows {shown}, not {topology}");
    Ok(())
}

/// Returns whether a line shows a node, or a port, which begins with its GUID.
fn is_node_or_port(line: &str) -> bool {
    let (first, rest) = line.split_once([' ', '\t']).unwrap_or((line, ""));
    let is_guid = !first.is_empty() && first.bytes().all(|b| b.is_ascii_hexdigit());
    is_guid && rest.starts_with('[') || matches!(first, "Switch" | "Ca" | "Router")
}
