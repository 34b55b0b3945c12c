//! Options files: of ibacm, of rdmux, and invalid ones.

use std::time::Duration;

use rdmux_acm::{ClaimPolicy, GroupSpec, RouteProtocol};
use rdmux_wire::Mtu;
use rdmux_wire::sa::Rate;

use super::*;

fn read(text: &str) -> (Options, Report) {
    parse("opts", text.as_bytes())
}

#[track_caller]
fn clean(text: &str) -> Options {
    let (options, report) = read(text);
    assert!(report.is_clean(), "{report}");
    options
}

#[track_caller]
fn told(line: &str, what: &str) {
    let report = read(line).1.to_string();
    assert_eq!(report, format!("opts:1: {what}\n"));
}

#[test]
fn empty_file_has_the_defaults_of_ibacm() {
    let options = clean("");
    assert_eq!(options, Options::default());
    let machine = options.machine;
    assert_eq!(machine.address_timeout, Duration::from_secs(1440 * 60));
    assert_eq!(machine.route_timeout, Duration::MAX);
    assert_eq!((machine.timeout, machine.retries), (Duration::from_secs(2), 2));
    assert_eq!((machine.resolve_depth, machine.sa_depth, machine.send_depth), (1, 1, 1));
    assert_eq!((machine.recv_depth, options.server_port), (1024, 6125));
    assert_eq!((machine.min_mtu, machine.min_rate), (Mtu::M2048, Rate::GBPS_10));
}

#[test]
fn all_options_of_ibacm_are_read() {
    let options = clean(
        "\
log_file stdout
log_level 2
umad_debug_level 1
lock_file /tmp/acm.pid
addr_prot acm
addr_timeout -1
route_prot acm
route_timeout 10
loopback_prot none
server_port 7000
server_mode loop
acme_plus_kernel_only true
timeout 1000
retries 5
resolve_depth 2
sa_depth 3
send_depth 4
recv_depth 2048
min_mtu 4096
min_rate 2
route_preload opensm_full_v1
route_data_file /a
addr_preload acm_hosts
addr_data_file /b
support_ips_in_addr_cfg 1
provider ibacmp 0xFE80000000000000
provider ibacmp default
",
    );
    let machine = &options.machine;
    assert_eq!(options.log_file, Some(LogFile::Stdout));
    assert_eq!((options.log_level, options.umad_debug_level), (2, 1));
    assert_eq!(options.lock_file, Some("/tmp/acm.pid".into()));
    assert_eq!(machine.address_timeout, Duration::MAX);
    assert_eq!(machine.route_timeout, Duration::from_secs(600));
    assert_eq!((machine.route_protocol, machine.local_loopback), (RouteProtocol::Acm, false));
    assert_eq!((options.server_port, options.server_mode), (7000, ServerMode::Loop));
    assert!(options.acme_plus_kernel_only && options.support_ips_in_addr_cfg);
    assert_eq!((machine.timeout, machine.retries), (Duration::from_secs(1), 5));
    let depths = (machine.resolve_depth, machine.sa_depth, machine.send_depth, machine.recv_depth);
    assert_eq!(depths, (2, 3, 4, 2048));
    assert_eq!((machine.min_mtu, machine.min_rate), (Mtu::M4096, Rate::GBPS_2_5));
    assert!(options.preloads_routes && options.preloads_addresses);
    assert_eq!(options.route_data_file, Some("/a".into()));
    assert_eq!(options.addr_data_file, Some("/b".into()));
}

#[test]
fn options_beyond_those_of_ibacm_are_read() {
    let options = clean(
        "\
addr_timeout_s 90
route_timeout_s 5
negative_timeout_ms 0
deadline_ms 100
refresh no
announce no
claim_policy verified
cache_entries 1000
max_groups 3
group 100 4096
group 10 2048 3 7
receive_rate 5000
subnet_size 64
max_requests 10
client_requests 5
max_clients 7
socket_access all
",
    );
    let machine = &options.machine;
    assert_eq!(machine.address_timeout, Duration::from_secs(90));
    assert_eq!(machine.route_timeout, Duration::from_secs(5));
    assert_eq!(
        (machine.negative_timeout, machine.deadline),
        (Duration::ZERO, Duration::from_millis(100))
    );
    assert_eq!((machine.refresh, machine.announce), (false, false));
    assert_eq!(
        (machine.claims, machine.max_entries, machine.max_groups),
        (ClaimPolicy::Verified, 1000, 3)
    );
    let spec = |rate, mtu, sl, tos| GroupSpec { rate, mtu, sl, tos };
    let groups = [spec(Rate::GBPS_100, Mtu::M4096, 0, 0), spec(Rate::GBPS_10, Mtu::M2048, 3, 7)];
    assert_eq!(machine.groups, groups);
    assert_eq!((machine.receive_rate, machine.subnet_size), (5000, 64));
    assert_eq!((machine.max_requests, machine.max_requests_per_client), (10, 5));
    assert_eq!((options.max_clients, options.socket_access), (7, SocketAccess::All));
}

#[test]
fn names_are_known_in_any_case_and_the_last_line_counts() {
    let (options, report) = read("Retries 3\nRETRIES 4\n");
    assert_eq!(options.machine.retries, 4);
    let right = "opts:2: warning: retries is also in line 1; the last one counts\n";
    assert_eq!(report.to_string(), right);
    assert_eq!(clean("addr_timeout 5\naddr_timeout_s 7\n").machine.address_timeout.as_secs(), 7);
    assert_eq!(clean("addr_timeout_s 7\naddr_timeout 5\n").machine.address_timeout.as_secs(), 300);
}

#[test]
fn unknown_options_are_ignored_with_a_warning() {
    told("no_such 1", "warning: unknown option \"no_such\"; it is ignored");
    told("retries 2 # twice", "warning: \"#\" and the rest of the line are ignored");
    told(
        "provider other default",
        "warning: provider: this service has no provider \"other\"; ibacmp resolves",
    );
    told(
        "provider_lib_path /x",
        "warning: provider_lib_path: this service loads no providers; the option is ignored",
    );
    told(
        "min_rate 400",
        "warning: min_rate: ibacm does not know the rate 400 Gb/s, and uses 10 Gb/s",
    );
    told(
        "route_preload full_opensm_v1",
        "warning: route_preload: ibacm accepts only the name opensm_full_v1; its manual is wrong",
    );
}

#[test]
fn wrong_values_are_errors_that_say_why_and_the_default_stays() {
    let many = "x".repeat(2000);
    for (line, what) in [
        ("retries", "retries has no value"),
        ("retries abc", "retries: a number from 0 to 255 is needed, not \"abc\""),
        ("retries -1", "retries: a number from 0 to 255 is needed, not \"-1\""),
        ("resolve_depth 0", "resolve_depth: a number from 1 to 1048576 is needed, not \"0\""),
        ("server_port 65536", "server_port: a number from 1 to 65535 is needed, not \"65536\""),
        ("server_mode tcp", "server_mode: one of unix, loop, open is needed, not \"tcp\""),
        ("addr_prot sa", "addr_prot: one of acm is needed, not \"sa\""),
        ("addr_timeout day", "addr_timeout: a number is needed, or -1 for no expiry, not \"day\""),
        ("min_mtu 1500", "min_mtu: an MTU is one of 256, 512, 1024, 2048, 4096, not \"1500\""),
        ("refresh perhaps", "refresh: yes or no is needed, not \"perhaps\""),
        ("log_file acm.log", "log_file: an absolute path is needed, not \"acm.log\""),
        ("max_groups 7", "max_groups: a number from 1 to 6 is needed, not \"7\""),
        ("group 10", "group: a group has a rate and an MTU"),
        ("group 10 2048 16", "group: a number from 0 to 15 is needed, not \"16\""),
        ("provider ibacmp", "provider: a provider has a name, and a subnet prefix or default"),
        ("provider ibacmp x", "provider: a subnet prefix is hexadecimal of 64 bits, not \"x\""),
        (many.as_str(), "the line is longer than 1024 bytes"),
    ] {
        told(line, &format!("error: {what}"));
        assert_eq!(read(line).0, Options::default());
    }
    let rates =
        "2, 5, 10, 14, 20, 25, 28, 30, 40, 50, 56, 60, 80, 100, 112, 120, 168, 200, 300, 400, 600";
    told("min_rate 11", &format!("error: min_rate: a rate in Gb/s is one of {rates}, not \"11\""));
}

#[test]
fn groups_are_bounded() {
    let (options, report) = read(&"group 10 2048\n".repeat(7));
    assert_eq!((options.machine.groups.len(), report.errors()), (5, 2));
}

#[test]
fn negative_or_huge_timeouts_never_expire() {
    let text = format!("addr_timeout {}\n", i64::MAX);
    assert_eq!(clean(&text).machine.address_timeout, Duration::MAX);
    assert_eq!(clean("route_timeout -7").machine.route_timeout, Duration::MAX);
}

#[test]
fn written_file_is_read_as_the_same_options() {
    let mut options = Options::fitted(300);
    options.machine.address_timeout = Duration::from_secs(90);
    options.machine.min_rate = Rate::GBPS_2_5;
    options.machine.groups =
        vec![GroupSpec { rate: Rate::GBPS_40, mtu: Mtu::M1024, sl: 1, tos: 2 }];
    options.log_file = Some(LogFile::File("/var/log/acm.log".into()));
    options.preloads_routes = true;
    options.route_data_file = Some("/x".into());
    options.server_mode = ServerMode::Open;
    options.socket_access = SocketAccess::All;
    for options in [options, Options::default()] {
        assert_eq!(clean(&write(&options)), options);
    }
}

/// ibacm reads `%31s%255s` of lines of at most 119 bytes.
#[test]
fn written_file_keeps_to_the_limits_of_ibacm() {
    let text = write(&Options::fitted(1));
    for line in text.lines() {
        assert!(line.len() <= 119, "{line}");
        assert!(line.is_empty() || line.starts_with('#') || line.split(' ').count() == 2, "{line}");
    }
    let names: Vec<&str> = OPTIONS.iter().map(|row| row.name).collect();
    assert!(names.iter().all(|name| name.len() <= 31));
    // All options of ibacm have a line, as a value or as an example.
    for name in names {
        let has = |line: &str| line.trim_start_matches("# ").starts_with(&format!("{name} "));
        assert!(text.lines().any(has), "{name}");
    }
}

#[test]
fn written_defaults_are_the_golden_file() {
    let values: Vec<String> = write(&Options::default())
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(str::to_owned)
        .collect();
    let golden = "\
log_level 0
umad_debug_level 0
addr_prot acm
addr_timeout 1440
route_prot sa
route_timeout -1
loopback_prot local
server_port 6125
server_mode unix
acme_plus_kernel_only no
timeout 2000
retries 2
resolve_depth 1
sa_depth 1
send_depth 1
recv_depth 1024
min_mtu 2048
min_rate 10
route_preload none
addr_preload none
support_ips_in_addr_cfg 0
negative_timeout_ms 1000
deadline_ms 30000
refresh yes
announce yes
claim_policy newest
cache_entries 131072
max_groups 6
receive_rate 0
subnet_size 0
max_requests 65536
client_requests 4096
max_clients 1023
socket_access owner";
    assert_eq!(values.join("\n"), golden);
}

#[test]
fn options_fit_the_size_of_the_subnet() {
    let of = |size| {
        let machine = Options::fitted(size).machine;
        (machine.resolve_depth, machine.sa_depth, machine.recv_depth, machine.timeout.as_millis())
    };
    assert_eq!(of(0), (64, 32, 1024, 500));
    assert_eq!(of(64), (16, 32, 1024, 504));
    assert_eq!(of(1024), (1, 2, 1024, 564));
    assert_eq!(of(5000), (1, 1, 8192, 812));
    assert_eq!(of(65536), (1, 1, 16384, 4596));
    assert_eq!(of(u32::MAX).3, 8000);
    for size in [1, 10, 100, 1000, 10_000] {
        let machine = Options::fitted(size).machine;
        let outstanding = u64::from(machine.resolve_depth) * u64::from(size);
        assert!(outstanding <= u64::from(machine.recv_depth), "{size}");
    }
}

#[test]
fn word_that_is_yes_here_and_no_for_ibacm_is_a_warning() {
    let warnings = |line: &str| {
        let (options, report) = parse("opts", line.as_bytes());
        assert!(options.support_ips_in_addr_cfg != options.acme_plus_kernel_only, "{line}");
        report.warnings()
    };
    for (line, count) in [
        ("support_ips_in_addr_cfg yes", 1),
        ("support_ips_in_addr_cfg true", 1),
        ("support_ips_in_addr_cfg 1", 0),
        ("acme_plus_kernel_only on", 1),
        ("acme_plus_kernel_only Yes", 0),
        ("acme_plus_kernel_only 2", 0),
    ] {
        assert_eq!(warnings(line), count, "{line}");
    }
}

#[test]
fn option_that_is_wrong_in_a_file_that_is_read_anew_is_as_it_was() {
    let before = clean("retries 7\nroute_prot acm\ngroup 10 2048\ngroup 20 4096\ntimeout 50\n");
    let text = "retries x\nroute_prot\ngroup y\ngroup 10\nsend_depth 3\nsend_depth none\n";
    let (options, report) = parse_anew("opts", text.as_bytes(), &before);
    assert_eq!((options.machine.retries, options.machine.route_protocol), (7, RouteProtocol::Acm));
    assert_eq!(options.machine.groups, before.machine.groups);
    // One that a line sets rightly, and one that the file does not set.
    assert_eq!((options.machine.send_depth, options.machine.timeout), (3, Duration::from_secs(2)));
    let report = report.to_string();
    assert!(report.contains("opts:1: warning: retries stays as it was"), "{report}");
    assert_eq!(report.matches("stays as it was").count(), 3, "{report}");
    assert_eq!(parse("opts", text.as_bytes()).0.machine.retries, 2);
    let (options, _) = parse_anew("opts", b"addr_timeout_s 90\naddr_timeout x\n", &before);
    assert_eq!(options.machine.address_timeout, Duration::from_secs(90), "another line sets it");
    // A lifetime in seconds or minutes that the wrong line's own unit cannot express, or whose other option is set.
    for (before, text, seconds, kept) in [
        ("addr_timeout_s 120\n", "addr_timeout_s 12o\n", 120, 1),
        ("addr_timeout_s 90\n", "addr_timeout 1o\n", 90, 1),
        ("addr_timeout_s 90\n", "addr_timeout 10\naddr_timeout_s 9x\n", 600, 0),
    ] {
        let (options, report) = parse_anew("opts", text.as_bytes(), &clean(before));
        assert_eq!(options.machine.address_timeout, Duration::from_secs(seconds), "{text}");
        assert_eq!(report.to_string().matches("stays as it was").count(), kept, "{text}");
    }
}
