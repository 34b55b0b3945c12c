//! Changes below a running service `ib_acm`: it follows them, and keeps valid cache entries.

mod common;

use std::fs;
use std::net::IpAddr;
use std::process::Command;

use common::Net;
use common::acm::{LONG, QUICK, Service, configure, fabric, fabric_with, name, places, resolve};
use common::namespace::Namespace;
use common::subnet::change_port;
use rdmux_acm_client::{Client, Error};
use rdmux_wire::acm::Address;
use rdmux_wire::acm::client::{Paths, Status};
use rdmux_wire::sa::{PathRecord, Rate};
use rdmux_wire::{Gid, Guid, Lid, Pkey};
use rustix::process::Signal;

const BY_GROUPS: &str = "timeout 200\nretries 2\nroute_prot acm\n";

/// The ends of a path. The rest depends on which groups were joined when it was resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ends {
    sgid: Gid,
    slid: Lid,
    dgid: Gid,
    dlid: Lid,
}

impl Ends {
    fn of(paths: &Paths) -> Self {
        let PathRecord { sgid, slid, dgid, dlid, .. } = paths.paths[0].path;
        Self { sgid, slid, dgid, dlid }
    }
}

/// Returns the path from one host to the other, resolved by the first host's service.
fn path(client: &Client, from: &str, to: &str) -> Ends {
    Ends::of(&resolve(client, Some(name(from)), name(to)))
}

/// Returns the path if it is cached.
fn known(client: &Client, from: &str, to: &str) -> Option<Ends> {
    client.resolve_cached(Some(name(from)), name(to), LONG).ok().map(|paths| Ends::of(&paths))
}

/// Returns the adapter of a service's host.
fn adapter(client: &Client) -> Guid {
    client.endpoint(1, 1, LONG).unwrap().info.dev_guid
}

fn until(mut is_so: impl FnMut() -> bool) {
    while !is_so() {
        std::thread::yield_now();
    }
}

/// Returns whether an address is none of the service's.
fn is_no_source(client: &Client, source: Address, dest: Address) -> bool {
    let answer = client.resolve(Some(source), dest, LONG);
    matches!(answer, Err(Error::Status(_, Status::SOURCE_ADDRESS)))
}

#[test]
fn endpoint_follows_its_partition_and_other_endpoints_keep_their_paths() {
    let net = fabric();
    let partitions = |text: &str| {
        let file = net.path().join("partitions.conf");
        fs::write(&file, text).unwrap();
        net.ok(&["fabric", "partitions", file.to_str().unwrap()]);
    };
    let config = places(&net, "a").config().to_owned();
    fs::create_dir_all(&config).unwrap();
    let lines = "a rdmux_ib0 1 default\nten rdmux_ib0 1 0x8010\n";
    fs::write(config.join("ibacm_addr.cfg"), lines).unwrap();
    let services = ["a", "b"].map(|host| Service::start(&net, host, BY_GROUPS));
    let client = services[0].client();
    let before = path(&client, "a", "b");
    assert!(is_no_source(&client, name("ten"), name("ten")));
    partitions("Default=0x7fff: ALL=full;\nTen=0x10: ALL=full;\n");
    let ten = resolve(&client, Some(name("ten")), name("ten"));
    assert_eq!(ten.paths[0].path.pkey, Pkey(0x8010));
    assert_eq!(known(&client, "a", "b"), Some(before));
    partitions("Default=0x7fff: ALL=full;\n");
    until(|| is_no_source(&client, name("ten"), name("ten")));
    assert_eq!(known(&client, "a", "b"), Some(before));
    resolve(&client, Some(name("a")), name("b"));
    // The path is in shared memory again.
    until(|| client.cached(Some(&name("a")), &name("b")).is_some());
}

#[test]
fn lid_change_is_announced_and_cached_paths_are_updated_without_queries() {
    // The manager does not notice what this test changes in its place.
    let net = fabric_with(&["--sm-sweep=3600"]);
    let services = ["a", "b"].map(|host| Service::start(&net, host, BY_GROUPS));
    let [a, b] = services.each_ref().map(Service::client);
    let (there, back) = (path(&a, "a", "b"), path(&b, "b", "a"));
    let sent = services[0].counted("sent_requests");
    change_port(&net, adapter(&b), |info| info.lid = Lid(0x123));
    until(|| path(&b, "b", "a").slid == Lid(0x123));
    assert_eq!(known(&b, "b", "a"), Some(Ends { slid: Lid(0x123), ..back }));
    until(|| path(&a, "a", "b").dlid == Lid(0x123));
    assert_eq!(known(&a, "a", "b"), Some(Ends { dlid: Lid(0x123), ..there }));
    assert_eq!(services[0].counted("sent_requests"), sent, "it was told, and did not ask");
}

/// Takes the link of the switch to a service's adapter down and up again.
fn flap(net: &Net, client: &Client) {
    let adapter = adapter(client).to_string();
    net.ok(&["fabric", "link", "down", "switch", &adapter]);
    let answer = || client.resolve(Some(name("a")), name("a"), LONG);
    until(|| matches!(answer(), Err(Error::Status(_, Status::NOT_CONNECTED))));
    net.ok(&["fabric", "link", "up", "switch", &adapter]);
}

#[test]
fn link_that_goes_down_and_up_costs_no_queries_where_paths_come_from_groups() {
    let net = fabric();
    let services = ["a", "b"].map(|host| Service::start(&net, host, BY_GROUPS));
    let client = services[0].client();
    let before = path(&client, "a", "b");
    let counted = || ["sent_requests", "route_queries"].map(|of| services[0].counted(of));
    let (sent, queries) = (counted()[0], counted()[1]);
    flap(&net, &client);
    assert_eq!(path(&client, "a", "b"), before);
    assert_eq!(known(&client, "a", "b"), Some(before));
    // Its path to itself, which was requested while the link was down, comes from subnet administration.
    assert!(counted()[0] == sent && counted()[1] <= queries + 1, "{:?}", counted());
}

#[test]
fn service_goes_on_after_its_host_and_the_fabric_started_again() {
    let net = fabric();
    let services = ["a", "b"].map(|host| Service::start(&net, host, QUICK));
    let client = services[0].client();
    let before = path(&client, "a", "b");
    net.ok(&["host", "down", "--force", "a"]);
    net.ok(&["host", "up", "a"]);
    let after = path(&client, "a", "b");
    assert_eq!((after.sgid, after.dgid), (before.sgid, before.dgid));
    net.ok(&["fabric", "down"]);
    net.ok(&["fabric", "up", "--shape", "switch:3"]);
    let after = path(&client, "a", "b");
    assert_eq!((after.sgid, after.dgid), (before.sgid, before.dgid));
}

#[test]
fn groups_of_the_options_are_joined_and_preferred_by_service_level_until_they_are_removed() {
    let net = fabric();
    let groups: String = [1, 2, 5].map(|sl| format!("group 100 4096 {sl} {sl}\n")).concat();
    let services =
        ["a", "b"].map(|host| Service::start(&net, host, &format!("{BY_GROUPS}{groups}")));
    let client = services[0].client();
    let sl = |client: &Client| resolve(client, Some(name("a")), name("b")).paths[0].path.sl;
    let fresh = |client: &Client| {
        client.flush(None, LONG).unwrap();
        sl(client)
    };
    until(|| fresh(&client) == 5);
    for service in &services {
        fs::write(service.places.config().join("ibacm_opts.cfg"), BY_GROUPS).unwrap();
        service.signal(Signal::HUP);
    }
    until(|| fresh(&client) == 0);
}

#[test]
fn both_ports_of_an_adapter_resolve_and_have_paths_of_their_own() {
    let net = fabric();
    // The switch has three ports.
    net.ok(&["host", "down", "a"]);
    net.ok(&["host", "up", "two", "--fabric", "default", "--fabric", "default"]);
    let config = places(&net, "two").config().to_owned();
    fs::create_dir_all(&config).unwrap();
    let lines = "first rdmux_ib0 1 default\nsecond rdmux_ib0 2 default\n";
    fs::write(config.join("ibacm_addr.cfg"), lines).unwrap();
    let services = ["two", "b"].map(|host| Service::start(&net, host, BY_GROUPS));
    let [two, b] = services.each_ref().map(Service::client);
    let [there, there2] =
        ["first", "second"].map(|from| Ends::of(&resolve(&two, Some(name(from)), name("b"))));
    assert_eq!((there.dgid, there.dlid), (there2.dgid, there2.dlid));
    assert!(there.sgid != there2.sgid && there.slid != there2.slid);
    let [back, back2] =
        ["first", "second"].map(|to| Ends::of(&resolve(&b, Some(name("b")), name(to))));
    for (there, back) in [(there, back), (there2, back2)] {
        let Ends { sgid, slid, dgid, dlid } = there;
        assert_eq!(back, Ends { sgid: dgid, slid: dlid, dgid: sgid, dlid: slid });
    }
}

#[test]
fn dump_is_loaded_when_the_port_has_the_lid_that_the_dump_names() {
    let net = fabric_with(&["--sm-sweep=3600"]);
    let config = places(&net, "a").config().to_owned();
    let service = Service::start(&net, "a", "route_preload opensm_full_v1\n");
    let client = service.client();
    let own = resolve(&client, Some(name("a")), name("a")).paths[0].path;
    let there = Address::Lid(Lid(0x55));
    let dump = format!(
        "Channel Adapter 0x{:016x}, base LID 291, LMC 0\n0x0055 : 0 : 4 : 3\n\
         Channel Adapter 0x00c0ffee, base LID 85, LMC 0\n",
        own.sgid.guid().0
    );
    fs::write(config.join("ibacm_route.data"), dump).unwrap();
    service.signal(Signal::HUP);
    let known = || client.resolve_cached(Some(name("a")), there, LONG);
    assert!(known().is_err(), "its LID is another one");
    change_port(&net, adapter(&client), |info| info.lid = Lid(291));
    until(|| known().is_ok());
    let PathRecord { slid, dgid, mtu, rate, pkey, packet_life_time, .. } =
        known().unwrap().paths[0].path;
    assert_eq!((slid, dgid.guid(), mtu, rate), (Lid(291), Guid(0x00c0_ffee), 4, Rate::GBPS_10));
    assert!(pkey == own.pkey && pkey == Pkey::DEFAULT && packet_life_time > 0, "{own:?}");
    change_port(&net, adapter(&client), |info| info.lid = own.slid);
    until(|| known().is_err());
}

#[test]
fn another_manager_is_asked_for_paths_and_addresses_stay_known() {
    let net = fabric_with(&["--sm-sweep=3600"]);
    let services = ["a", "b"].map(|host| Service::start(&net, host, QUICK));
    let client = services[0].client();
    let before = path(&client, "a", "b");
    let sent = services[0].counted("sent_requests");
    // No port has that LID.
    let mut manager = Lid::NONE;
    change_port(&net, adapter(&client), |info| {
        manager = std::mem::replace(&mut info.sm_lid, Lid(0x777));
    });
    until(|| client.resolve(Some(name("a")), name("b"), LONG).is_err());
    change_port(&net, adapter(&client), |info| info.sm_lid = manager);
    assert_eq!(path(&client, "a", "b"), before);
    assert_eq!(services[0].counted("sent_requests"), sent, "the address was known");
}

#[test]
fn groups_are_joined_at_another_manager_while_the_earlier_one_does_not_answer() {
    let net = fabric_with(&["--sm-sweep=3600"]);
    let there = Service::start(&net, "b", QUICK);
    until(|| there.counted("joins") > 0);
    // A query without answer lasts longer than any request.
    let service = Service::start(&net, "a", "timeout 600000\nretries 0\n");
    let client = service.client();
    let before = path(&client, "a", "b");
    // No port has that LID.
    let mut manager = Lid::NONE;
    change_port(&net, adapter(&client), |info| {
        manager = std::mem::replace(&mut info.sm_lid, Lid(0x777));
    });
    until(|| known(&client, "a", "b").is_none());
    client.flush(None, LONG).unwrap();
    change_port(&net, adapter(&client), |info| {
        (info.sm_lid, info.client_reregister) = (manager, true);
    });
    until(|| client.endpoint(1, 1, LONG).is_ok());
    let after = client.resolve(Some(name("a")), name("b"), LONG).unwrap();
    assert_eq!(Ends::of(&after), before);
}

#[test]
fn another_subnet_prefix_is_in_paths_and_the_old_subnet_is_forgotten() {
    const PREFIX: u64 = 0xfec0_0000_0000_0007;
    let net = fabric_with(&["--sm-sweep=3600"]);
    let services = ["a", "b"].map(|host| Service::start(&net, host, BY_GROUPS));
    let client = services[0].client();
    let before = path(&client, "a", "b");
    let change = |prefix| change_port(&net, adapter(&client), |info| info.gid_prefix = prefix);
    change(PREFIX);
    until(|| path(&client, "a", "a").sgid.prefix() == PREFIX);
    assert_eq!(known(&client, "a", "b"), None);
    change(before.sgid.prefix());
    until(|| path(&client, "a", "a").sgid == before.sgid);
    assert_eq!(path(&client, "a", "b"), before);
}

/// The default host of a network namespace with its own interface, and the service there.
struct Machine {
    namespace: Namespace,
    net: Net,
}

impl Machine {
    /// Returns none where namespaces are not available.
    fn new() -> Option<Self> {
        let namespace = Namespace::new()?;
        namespace.ok("ip link add v0 type veth peer name v1");
        for line in ["link set v0 up", "link set v1 up", "address add 10.79.1.1/24 dev v0"] {
            namespace.ok(&format!("ip {line}"));
        }
        let net = Net::new();
        let config = net.path().join("config/rdmux");
        fs::create_dir_all(&config).unwrap();
        fs::write(config.join("config.toml"), "[service]\nidle_exit_seconds = 0\n").unwrap();
        Some(Self { namespace, net })
    }

    fn command(&self, program: &str) -> Command {
        let mut command = self.namespace.command(program);
        configure(&mut command, &self.net);
        command
    }

    fn ok(&self, args: &[&str]) {
        let output = self.command(env!("CARGO_BIN_EXE_rdmux")).args(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    fn serve(&self, host: &str, device: &str) -> Service {
        let mut command = self.command(env!("CARGO_BIN_EXE_ib_acm"));
        command.args(["--host", host]).env("RDMUX_DEVICE", device);
        Service::start_by(command, places(&self.net, host), BY_GROUPS)
    }
}

/// Adds an address and removes it again: while it exists it is a source, and `stays` is true before, in between and afterwards.
fn come_and_go(machine: &Machine, client: &Client, stays: impl Fn() -> bool) {
    let first = Address::from("10.79.1.1".parse::<IpAddr>().unwrap());
    resolve(client, Some(first), first);
    for (address, more) in [("10.79.1.2", "/24"), ("fd00:79::2", "/64 nodad")] {
        let own = Address::from(address.parse::<IpAddr>().unwrap());
        assert!(is_no_source(client, own, first) && stays(), "{address}");
        let change = |what: &str| machine.namespace.ok(&format!("ip address {what} dev v0"));
        change(&format!("add {address}{more}"));
        resolve(client, Some(own), first);
        assert!(stays(), "{address} came");
        change(&format!("del {address}{}", more.trim_end_matches(" nodad")));
        until(|| is_no_source(client, own, first));
        assert!(stays(), "{address} is gone");
        assert!(client.cached(Some(&own), &first).is_none());
    }
}

#[test]
fn addresses_of_an_infiniband_host_come_and_go() {
    let Some(machine) = Machine::new() else { return };
    machine.ok(&["fabric", "up", "--shape", "switch:3"]);
    machine.ok(&["host", "up", "b", "--addr", &machine.net.address(1)]);
    let (a, _b) = (machine.serve("default", "ib"), machine.serve("b", "ib"));
    let client = a.client();
    let source = Address::from("10.79.1.1".parse::<IpAddr>().unwrap());
    let before = Ends::of(&resolve(&client, Some(source), name("b")));
    come_and_go(&machine, &client, || {
        let found = client.resolve_cached(Some(source), name("b"), LONG);
        found.is_ok_and(|found| Ends::of(&found) == before)
    });
}

#[test]
fn addresses_of_a_roce_host_come_and_go() {
    let Some(machine) = Machine::new() else { return };
    let service = machine.serve("default", "roce");
    let client = service.client();
    let [source, dest] =
        ["10.79.1.1", "10.79.1.9"].map(|ip| Address::from(ip.parse::<IpAddr>().unwrap()));
    let before = Ends::of(&resolve(&client, Some(source), dest));
    come_and_go(&machine, &client, || {
        let found = client.resolve_cached(Some(source), dest, LONG);
        found.is_ok_and(|found| Ends::of(&found) == before)
    });
}
