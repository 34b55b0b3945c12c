//! The C programs in the documentation: compiled with the libraries that it names, and run on each kind of device.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};

use super::{Host, Subnet};
use crate::abi::readme;
use crate::report::Report;
use crate::sh;

/// A group that no other test uses.
const GROUP: &str = "239.77.79.1";
/// The port of the program that connects by name, as shown by status.
const SERVICE: &str = ":7471";
/// The kinds of device, each with a subnet that has it.
const DEVICES: [(&str, Subnet); 3] =
    [("roce", Subnet::Plain), ("ib", Subnet::Managed), ("iw", Subnet::Plain)];

pub(super) fn run(host: &Host, report: &mut Report) {
    for (device, subnet) in DEVICES {
        if device != "iw" {
            let what = format!("the program of docs/multicast.md, on {device}");
            report.check(&what, host.joins_a_group(subnet, device));
        }
        let what = format!("the program of docs/connections.md, on {device}");
        report.check(&what, host.connects_by_name(subnet, device));
    }
}

impl Host {
    /// Runs the program that joins a group and sends to it by address.
    fn joins_a_group(&self, subnet: Subnet, device: &str) -> Result<()> {
        let program = self.compile_snippet("multicast")?;
        let mut run = self.on_device(subnet, device, &program)?;
        sh::run(run.args([&Self::address_on(subnet), GROUP, "hello"]))
    }

    /// Runs the program that listens at a name, and sends text to one.
    fn connects_by_name(&self, subnet: Subnet, device: &str) -> Result<()> {
        let program = self.compile_snippet("connections")?;
        let name = subnet.host();
        let mut waits = self.on_device(subnet, device, &program)?;
        let waits = waits.arg(name).stdout(Stdio::piped()).spawn().context("the listener")?;
        let status = ["host", "status", name];
        let listens = self.until(subnet, &status, "of the listener", |told| told.contains(SERVICE));
        let mut says = self.on_device(subnet, device, &program)?;
        let said = listens.and_then(|()| sh::output(says.args([name, "hello"])));
        let mut waits = waits;
        if said.is_err() {
            let _ = waits.kill();
        }
        let heard = waits.wait_with_output().context("the listener")?;
        said?;
        let heard = String::from_utf8_lossy(&heard.stdout);
        ensure!(
            heard.trim_end() == format!("rdmux_{device}0: hello"),
            "the listener heard: {heard}"
        );
        Ok(())
    }

    /// Compiles the first C program of a document.
    fn compile_snippet(&self, document: &str) -> Result<PathBuf> {
        let path = sh::root().join(format!("docs/{document}.md"));
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let snippet = readme::snippet(&text).with_context(|| format!("no C in {document}.md"))?;
        let program = self.place.join(format!("documented-{document}"));
        let source = program.with_extension("c");
        fs::write(&source, snippet).with_context(|| source.display().to_string())?;
        let mut cc = sh::command("cc");
        cc.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-I"]);
        cc.arg(sh::root().join("crates/capi/include")).arg("-o").arg(&program).arg(&source);
        let library = self.place.join("lib/librdmacm.so.1");
        sh::run(cc.arg(library).args(["-lrdmacm", "-libverbs"]))?;
        Ok(program)
    }

    /// Returns the command that runs a program on a device of a host.
    fn on_device(
        &self,
        subnet: Subnet,
        device: &str,
        program: &PathBuf,
    ) -> Result<std::process::Command> {
        if device == "ib" {
            self.bring_up(subnet)?;
        }
        let mut run = self.command(&self.rdmux);
        run.args(["run", "--device", device, "--"]).arg(program);
        run.env("LD_LIBRARY_PATH", self.place.join("lib")).env("RDMUX_HOST", subnet.host());
        Ok(run)
    }
}
