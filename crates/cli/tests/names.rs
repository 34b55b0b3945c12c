//! Lookup of virtual hosts by name: in a view, by the preloaded library, and by rdmux's own lookups.

mod common;

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Output, Stdio};

use common::{Net, compile, missing_here};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a program on the first host in this view.
fn run(net: &Net, view: &str, program: &[&str]) -> Output {
    net.run(&[&["--host", "one", "run", "--view", view, "--"], program].concat())
}

/// Returns whether the kernel refuses views by a namespace.
fn is_refused(view: &str, output: &Output) -> bool {
    let refused = view == "namespace" && output.status.code() == Some(125);
    if refused {
        missing_here(&text(&output.stderr));
    }
    refused
}

/// Returns all results of getaddrinfo(3) for a name.
fn found(output: &Output) -> Vec<String> {
    let mut addresses: Vec<_> = text(&output.stdout)
        .lines()
        .filter_map(|line| line.split_whitespace().next().map(str::to_owned))
        .collect();
    addresses.dedup();
    addresses
}

#[test]
fn getaddrinfo_finds_virtual_hosts_and_what_the_machine_knows() {
    let net = Net::new().hosts(&["one", "two"]);
    // The service of host `six` need not run: the address is the user's choice.
    let six = "::1";
    net.run(&["host", "up", "six", "--addr", six]);
    for view in ["namespace", "preload"] {
        for (name, address) in [("one", net.address(1)), ("TWO", net.address(2))] {
            let output = run(&net, view, &["getent", "ahosts", name]);
            if is_refused(view, &output) {
                break;
            }
            assert_eq!(found(&output), [address], "{view} {name} {}", text(&output.stderr));
        }
        let output = run(&net, view, &["getent", "hosts", "two"]);
        if is_refused(view, &output) {
            continue;
        }
        assert_eq!(found(&output), [net.address(2)], "{view}");
        assert_eq!(found(&run(&net, view, &["getent", "ahosts", "six"])), [six], "{view}");
        let none = run(&net, view, &["getent", "ahosts", "three"]);
        assert_eq!(none.status.code(), Some(2), "{view}: {}", text(&none.stdout));
        let machine = Command::new("getent").args(["ahosts", "localhost"]).output().unwrap();
        let here = run(&net, view, &["getent", "ahosts", "localhost"]);
        assert_eq!(found(&here), found(&machine), "{view}");
        let file = text(&run(&net, view, &["cat", "/etc/hosts"]).stdout);
        assert!(file.contains(&format!("\n{} two ", net.address(2))), "{view}: {file}");
    }
    let outside = run(&net, "none", &["getent", "ahosts", "two"]);
    assert_eq!(outside.status.code(), Some(2), "{}", text(&outside.stdout));
}

#[test]
fn a_program_that_runs_already_finds_a_host_that_comes_later() {
    let net = Net::new().hosts(&["one"]);
    let script = "getent ahosts late; echo ready; read go; getent ahosts late";
    for (view, late, n) in [("namespace", "late", 2), ("preload", "later", 3)] {
        let script = script.replace("late", late);
        let mut command =
            net.command(&["--host", "one", "run", "--view", view, "--", "sh", "-c", &script]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        if line == "ready\n" {
            net.ok(&["host", "up", late, "--addr", &net.address(n)]);
            child.stdin.take().unwrap().write_all(b"\n").unwrap();
        }
        let output = child.wait_with_output().unwrap();
        if is_refused(view, &output) {
            continue;
        }
        assert_eq!(line, "ready\n", "{}", text(&output.stderr));
        assert_eq!(found(&output), [net.address(n)], "{view}");
    }
}

#[test]
fn where_there_can_be_no_namespace_an_argument_that_names_a_host_is_enough() {
    let net = Net::new().hosts(&["one"]);
    let Some(forbid) = compile(&net, "forbid.c", &[]) else { return };
    let rdmux = env!("CARGO_BIN_EXE_rdmux");
    let forbidden = |program: &[&str]| {
        let mut command = Command::new(&forbid);
        command.args([rdmux, "--host", "one", "run", "--"]).args(program);
        command.env("RDMUX_RUNTIME_DIR", net.path()).env_remove("RDMUX_HOST");
        command.output().unwrap()
    };
    let output = forbidden(&["getent", "ahosts", "one"]);
    let said = text(&output.stderr);
    assert_eq!(found(&output), [net.address(1)], "{said}");
    assert!(said.lines().count() == 1 && said.contains("names of virtual hosts"), "{said}");
    let output = forbidden(&["getent", "ahosts", "127.0.0.1"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
}

#[test]
fn rdmux_ping_and_librdmacm_resolve_virtual_hosts_without_a_view() {
    let net = Net::new().hosts(&["one", "two"]);
    let (mut server, port) = net.server(&["--host", "two", "ping", "-s", "-a", "two", "-p", "0"]);
    net.ok(&["--host", "one", "ping", "-c", "-a", "two", "-p", &port, "-C", "3"]);
    assert!(server.wait().unwrap().success());

    let Some(names) = compile(&net, "names.c", &["ibverbs", "rdmacm"]) else { return };
    let names = names.to_str().unwrap();
    let output = run(&net, "none", &[names, "two", "ONE", "127.0.0.1", "no-such-host.invalid"]);
    let expected = format!("{}\n{}\n127.0.0.1\nnone\n", net.address(2), net.address(1));
    assert_eq!(text(&output.stdout), expected, "{}", text(&output.stderr));
}
