//! Checks of rdmux itself: the service, its addresses, the C library, the view.

use std::net::UdpSocket;

use rdmux_host::client::admin;
use rdmux_host::{ConnectOptions, DeviceChoice, DeviceRow, HostError, HostName};
use rdmux_verbs::port::Port;

use super::{Check, surroundings};
use crate::run::view::Place;
use crate::run::{self, view};
use rdmux_command::library;
use rdmux_command::library::Library;
use rdmux_command::output::text;

/// The newest version node of each library that programs of current distributions need, and the one needed by the
/// vendors' libraries, with which many programs are linked.
const NODES: [&str; 4] = ["IBVERBS_1.14", "IBVERBS_PRIVATE_34", "RDMACM_1.3", "IBUMAD_1.2"];

/// Runs all checks, in an order in which each builds on those before.
pub(super) fn all(host: &HostName) -> Vec<Check> {
    if let Some(missing) = surroundings::files() {
        // Every other failure would have this cause.
        return vec![missing];
    }
    let options = match run::connect_options() {
        Ok(options) => options,
        Err(e) => return vec![Check::fail("settings", text(&e))],
    };
    let started = run::devices_of(&options, host);
    let mut all = vec![
        surroundings::network(&options),
        loopback(),
        service(&options, host, started.as_ref().err()),
        c_library(),
    ];
    if let Ok(devices) = &started {
        all.push(namespace(&options, host));
        all.push(management(devices));
    }
    all
}

/// Checks the loopback addresses of virtual hosts, which differ from the usual one.
fn loopback() -> Check {
    let name = "loopback";
    match UdpSocket::bind("127.77.255.254:0") {
        Ok(_) => Check::ok(name, "virtual hosts can use every address of 127.0.0.0/8"),
        Err(e) => Check::warn(name, format!("127.77.0.0/16 cannot be used: {e}")).advice(
            "only the default host works; check that the interface lo is up and has 127.0.0.1/8",
        ),
    }
}

fn service(options: &ConnectOptions, host: &HostName, error: Option<&HostError>) -> Check {
    let name = "service";
    if let Some(e) = error {
        let e = e.to_string();
        let advice = surroundings::service_advice(host, &e);
        // This advice names the present command.
        let e = e.strip_suffix(HostError::ASK_DOCTOR).unwrap_or(&e);
        let check = Check::fail(name, e);
        return match advice {
            Some(advice) => check.advice(advice),
            None => check,
        };
    }
    match admin::status(&options.dir, host) {
        Ok(status) => {
            let addresses: Vec<_> =
                status.gids.iter().map(|row| row.gid.ip().to_string()).collect();
            let (addresses, port) = (addresses.join(" "), status.port);
            Check::ok(name, format!("host {host} starts and has UDP port {port} on {addresses}"))
        }
        Err(e) => Check::fail(name, e.to_string()),
    }
}

fn c_library() -> Check {
    let name = "C library";
    let found = match library::find() {
        Ok(found) => found,
        Err(e) => {
            return Check::warn(name, text(&e)).advice("`rdmux run` needs it");
        }
    };
    let path = found.object.display().to_string();
    match missing_nodes(&found) {
        Ok(missing) if missing.is_empty() => {
            Check::ok(name, format!("{path} has {}", NODES.join(", ")))
        }
        Ok(missing) => Check::fail(name, format!("{path} lacks {}", missing.join(", ")))
            .advice("the library is of another version than this program: rebuild both"),
        Err(e) => Check::fail(name, format!("cannot read {path}: {e}")),
    }
}

/// Returns the version nodes that a library lacks. Their names are strings in the file, as those of all symbols are.
fn missing_nodes(library: &Library) -> std::io::Result<Vec<&'static str>> {
    let bytes = std::fs::read(&library.object)?;
    let has = |node: &str| {
        let node = format!("{node}\0");
        bytes.windows(node.len()).any(|w| w == node.as_bytes())
    };
    Ok(NODES.into_iter().filter(|node| !has(node)).collect())
}

fn namespace(options: &ConnectOptions, host: &HostName) -> Check {
    let name = "namespaces";
    let place = Place { options, host, devices: DeviceChoice::default() };
    match view::namespaces(&place) {
        Ok(_) => Check::ok(name, "programs can see the device under /sys/class/infiniband"),
        Err(e) => Check::warn(
            name,
            format!("programs see the device only through a preloaded library: {}", text(&e)),
        )
        .advice(namespace_advice()),
    }
}

/// Checks from which ports programs can send management datagrams.
fn management(devices: &[DeviceRow]) -> Check {
    let name = "management";
    let ports = devices.iter().flat_map(|device| {
        (1..).zip(&device.ports).map(|(number, port)| (&device.name, number, port))
    });
    let of_fabric = |(device, number, port): (&String, u32, &Port)| {
        let fabric = &port.managed.as_ref()?.fabric;
        let state = port.attr.state.name().to_lowercase();
        Some(format!("{device} port {number} on fabric {fabric}, which is {state}"))
    };
    let managed: Vec<String> = ports.filter_map(of_fabric).collect();
    if managed.is_empty() {
        return Check::ok(
            name,
            "the host is on no fabric, so it has no InfiniBand port and no /dev/infiniband/umad0; `rdmux fabric up` \
             starts one",
        );
    }
    let found = format!(
        "libibumad opens {}; programs that open umadN without it cannot use it, and must open issmN with O_NONBLOCK or O_RDWR",
        managed.join(", ")
    );
    Check::ok(name, found)
}

/// Returns advice for the usual ways in which user namespaces are forbidden.
fn namespace_advice() -> String {
    if surroundings::is_chroot() {
        return "that is enough for most programs; this is a chroot, in which the kernel creates no user namespaces: a \
                container that changes its root by pivot_root(2) may create them (bwrap, systemd-nspawn)"
            .to_owned();
    }
    let is = |file: &str, value: &str| {
        std::fs::read_to_string(file).is_ok_and(|text| text.trim() == value)
    };
    let switches = [
        ("kernel.unprivileged_userns_clone", "0", "1"),
        ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
        ("user.max_user_namespaces", "0", "10000"),
    ];
    for (switch, bad, good) in switches {
        if is(&format!("/proc/sys/{}", switch.replace('.', "/")), bad) {
            return format!(
                "that is enough for most programs; to allow namespaces: sysctl {switch}={good}"
            );
        }
    }
    "that is enough for most programs; a container's seccomp profile may forbid namespaces (Docker: \
     --security-opt seccomp=unconfined)"
        .to_owned()
}
