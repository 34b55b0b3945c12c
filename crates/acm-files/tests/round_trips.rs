//! Written files are parsed to the same values, and no bytes make a parser panic.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use rdmux_acm::{ClaimPolicy, GroupSpec, RouteProtocol};
use rdmux_acm_files::addresses::{self, Assignment, PkeyChoice};
use rdmux_acm_files::options::{self, LogFile, Options, ServerMode, SocketAccess};
use rdmux_acm_files::routes::{self, DumpedPort};
use rdmux_acm_files::{Report, hosts};
use rdmux_wire::acm::Address;
use rdmux_wire::sa::Rate;
use rdmux_wire::{Guid, Lid, Mtu, Pkey};

fn mtu() -> impl Strategy<Value = Mtu> {
    (1..=5_u8).prop_map(|code| Mtu::from_code(code).expect("a code"))
}

fn rate() -> impl Strategy<Value = Rate> {
    (2..=22_u8).prop_map(Rate)
}

fn expiry() -> impl Strategy<Value = Duration> {
    prop_oneof![Just(Duration::MAX), (0..1_u64 << 40).prop_map(Duration::from_secs)]
}

fn millis() -> impl Strategy<Value = Duration> {
    (1..=3_600_000_u64).prop_map(Duration::from_millis)
}

fn group() -> impl Strategy<Value = GroupSpec> {
    (rate(), mtu(), 0..16_u8, any::<u8>()).prop_map(|(rate, mtu, sl, tos)| GroupSpec {
        rate,
        mtu,
        sl,
        tos,
    })
}

fn machine() -> impl Strategy<Value = rdmux_acm::Options> {
    let times = (expiry(), expiry(), millis(), millis(), millis());
    let numbers = [1..=1000_u32, 1..=1000, 1..=1000, 1..=1000, 0..=255, 0..=1000, 0..=1000];
    let choices = (any::<[bool; 4]>(), 0..3_u8, 1..=6_usize);
    let groups = (rate(), mtu(), vec(group(), 0..=5));
    (times, numbers, choices, groups).prop_map(|(times, numbers, choices, groups)| {
        let [resolve_depth, sa_depth, send_depth, recv_depth, retries, receive_rate, subnet_size] =
            numbers;
        let ([acm, local_loopback, refresh, announce], claims, max_groups) = choices;
        let claims = match claims {
            0 => ClaimPolicy::First,
            1 => ClaimPolicy::Newest,
            _ => ClaimPolicy::Verified,
        };
        let (min_rate, min_mtu, groups) = groups;
        rdmux_acm::Options {
            address_timeout: times.0,
            route_timeout: times.1,
            negative_timeout: times.2,
            timeout: times.3,
            deadline: times.4,
            resolve_depth,
            sa_depth,
            send_depth,
            recv_depth,
            retries,
            receive_rate,
            subnet_size,
            route_protocol: if acm { RouteProtocol::Acm } else { RouteProtocol::Sa },
            local_loopback,
            refresh,
            announce,
            claims,
            max_groups,
            min_rate,
            min_mtu,
            groups,
            ..rdmux_acm::Options::default()
        }
    })
}

fn all_options() -> impl Strategy<Value = Options> {
    let path = || proptest::option::of("/[a-z0-9/._-]{0,80}");
    (
        machine(),
        any::<[bool; 5]>(),
        (path(), path(), path(), path()),
        (0..3_u8, any::<u8>(), 1..=65535_u16),
    )
        .prop_map(
            |(
                machine,
                [all, kernel, routes, addresses, ips],
                paths,
                (mode, log_level, server_port),
            )| Options {
                machine,
                log_file: paths.0.map(|path| LogFile::File(path.into())),
                lock_file: paths.1.map(Into::into),
                route_data_file: paths.2.map(Into::into),
                addr_data_file: paths.3.map(Into::into),
                log_level,
                server_port,
                server_mode: match mode {
                    0 => ServerMode::Unix,
                    1 => ServerMode::Loop,
                    _ => ServerMode::Open,
                },
                socket_access: if all { SocketAccess::All } else { SocketAccess::Owner },
                acme_plus_kernel_only: kernel,
                preloads_routes: routes,
                preloads_addresses: addresses,
                support_ips_in_addr_cfg: ips,
                ..Options::default()
            },
        )
}

fn assignment() -> impl Strategy<Value = Assignment> {
    let address = prop_oneof![
        "[a-z][a-z0-9.-]{0,62}".prop_map(|name| Address::name(name).expect("short")),
        any::<[u8; 4]>().prop_map(|ip| std::net::Ipv4Addr::from(ip).into()),
        any::<[u8; 16]>().prop_map(|ip| std::net::Ipv6Addr::from(ip).into()),
    ];
    let pkey = prop_oneof![
        Just(PkeyChoice::First),
        (1..=0x7fff_u16, any::<bool>())
            .prop_map(|(key, full)| PkeyChoice::Of(Pkey(key | u16::from(full) << 15))),
    ];
    (address, "[a-z0-9_]{1,31}", 1..=u8::MAX, pkey)
        .prop_map(|(address, device, port, pkey)| Assignment { address, device, port, pkey })
}

/// Generates lines that are nearly valid.
fn nearly() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        "[a-z_]{1,20}",
        "[0-9:.x-]{1,20}",
        Just("Switch 0x11, base LID 1".to_owned()),
        Just("0x2 : 0 : 4 : 3".to_owned()),
        Just("group 10 2048".to_owned()),
        Just("fe80::1".to_owned()),
        "\\PC{0,10}",
    ];
    let line = vec(word, 0..6).prop_map(|words| words.join(" "));
    vec(prop_oneof![line.prop_map(String::into_bytes), vec(any::<u8>(), 0..40)], 0..20)
        .prop_map(|lines| lines.join(&b"\n"[..]))
}

fn has_no_errors(report: &Report) -> bool {
    report.errors() == 0
}

proptest! {
    #[test]
    fn written_options_parse_to_the_same_options(options in all_options()) {
        let (read, report) = options::parse("opts", options::write(&options).as_bytes());
        prop_assert!(has_no_errors(&report), "{report}");
        prop_assert_eq!(read, options);
    }

    #[test]
    fn options_fitted_to_subnet_size_parse_to_the_same_options(endpoints: u32) {
        let options = Options::fitted(endpoints);
        let (read, report) = options::parse("opts", options::write(&options).as_bytes());
        prop_assert!(report.is_clean(), "{report}");
        prop_assert_eq!(read, options);
    }

    #[test]
    fn written_addresses_parse_to_the_same_addresses(all in vec(assignment(), 0..20)) {
        let mut once = Vec::new();
        all.into_iter().for_each(|one| if !once.contains(&one) { once.push(one) });
        let (read, report) = addresses::parse("addr", addresses::write(&once).as_bytes(), true);
        prop_assert!(has_no_errors(&report), "{report}");
        prop_assert_eq!(read.all, once);
    }

    #[test]
    fn random_near_valid_files_parse_and_round_trip(bytes in nearly()) {
        let (options, _) = options::parse("f", &bytes[..]);
        prop_assert_eq!(options::parse("f", options::write(&options).as_bytes()).0, options);
        let (found, _) = addresses::parse("f", &bytes[..], true);
        prop_assert_eq!(addresses::parse("f", addresses::write(&found.all).as_bytes(), true).0.all, found.all);
        let (hosts, _) = hosts::parse("f", &bytes[..]);
        prop_assert!(hosts.values().all(|gid| !gid.is_multicast()));
        let local = DumpedPort { guid: Guid(0x11), base_lid: Lid(1) };
        let (routes, _) = routes::parse("f", &bytes[..], &[local]);
        prop_assert!(routes.of.values().flatten().all(|(lid, _)| lid.is_unicast()));
    }
}
