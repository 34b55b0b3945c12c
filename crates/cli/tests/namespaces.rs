//! Network namespaces are different machines: what a user meets in one is not what is in the other.

mod common;

use std::process::{Command, Output};

use common::{Net, missing_here};

/// Runs a shell's line in a network namespace of its own, with its loopback interface up. `None` where the kernel forbids
/// that.
fn in_another_namespace(line: &str, configure: impl FnOnce(&mut Command)) -> Option<Output> {
    const ENTERED: &str = "entered\n";
    let line = format!("ip link set lo up && echo entered && {line}");
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--user", "--net", "sh", "-c", &line]);
    command.env_remove("RDMUX_HOST").env_remove("RUST_LOG");
    configure(&mut command);
    let mut output = command.output().unwrap();
    let Some(said) = output.stdout.strip_prefix(ENTERED.as_bytes()) else {
        missing_here(&String::from_utf8_lossy(&output.stderr));
        return None;
    };
    output.stdout = said.to_vec();
    Some(output)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The command under test.
const RDMUX: &str = env!("CARGO_BIN_EXE_rdmux");

#[test]
fn a_service_of_another_network_namespace_is_refused_with_advice() {
    let net = Net::new().hosts(&["one"]);
    for args in ["devices", "run -- true", "doctor"] {
        let line = format!("'{RDMUX}' --host one {args}");
        let Some(output) = in_another_namespace(&line, |command| {
            command.env("RDMUX_RUNTIME_DIR", net.path());
        }) else {
            return;
        };
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(!output.status.success(), "{args}: {said}");
        assert!(said.contains("another network namespace"), "{args}: {said}");
        assert!(said.contains("RDMUX_RUNTIME_DIR"), "{args}: {said}");
    }
    // It can be seen and ended from there.
    let line = format!("'{RDMUX}' host status one && '{RDMUX}' host down one");
    let output = in_another_namespace(&line, |command| {
        command.env("RDMUX_RUNTIME_DIR", net.path());
    });
    let output = output.unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn each_network_namespace_has_hosts_of_its_own() {
    let net = Net::new();
    let usual = |command: &mut Command| {
        command.env_remove("RDMUX_RUNTIME_DIR").env("XDG_RUNTIME_DIR", net.path());
    };
    let here = |args: &[&str]| {
        let mut command = net.command(args);
        usual(&mut command);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    let address = net.address(1);
    here(&["host", "up", "one", "--addr", &address]);
    // The same name, and the same address, on what is another machine.
    let line = format!(
        "'{RDMUX}' host status && '{RDMUX}' host up one --addr {address} && '{RDMUX}' host down one \
         && '{RDMUX}' --host one run -- true && '{RDMUX}' host down"
    );
    let output = in_another_namespace(&line, usual);
    let mine = here(&["host", "status"]);
    here(&["host", "down", "one"]);
    let Some(output) = output else { return };
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}{}", text(&output.stderr));
    assert!(said.starts_with("no host is up"), "{said}");
    assert!(mine.contains(&address), "{mine}");
}
