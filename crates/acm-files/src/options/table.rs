//! The table of all options, with their descriptions, parsers and formatters.

use rdmux_acm::{ClaimPolicy, GroupSpec, RouteProtocol};
use rdmux_wire::acm::MAX_GROUPS;

use super::value::{
    boolean, boolean_of_ibacm, expiry, expiry_word, millis, millis_word, mtu, number, one_of, path,
    path_word, rate, rate_word, word_of, yes_no,
};
use super::{LogFile, Options, ServerMode, SocketAccess};

/// An option.
#[derive(Debug)]
pub struct Row {
    /// The name of the option.
    pub name: &'static str,
    /// Whether the option is an addition to those of ibacm.
    pub ours: bool,
    /// The description of the option, in lines.
    pub about: &'static str,
    /// An example, for a file that does not set it.
    pub example: &'static str,
    /// The maximum number of words of its value.
    pub(super) words: usize,
    /// Whether all lines with the option count, not only the last one.
    pub(super) repeats: bool,
    /// The option that sets the same value in another unit. Of both, only one can express a value.
    pub(super) twin: Option<&'static str>,
    /// Sets a value, perhaps with a warning, or returns what is wrong with it.
    pub(super) set: Set,
    /// Returns the values, one for each line.
    pub(super) get: fn(&Options) -> Vec<String>,
}

type Set = fn(&mut Options, &[&str]) -> Result<Option<String>, String>;

const fn row(
    name: &'static str,
    about: &'static str,
    set: Set,
    get: fn(&Options) -> Vec<String>,
) -> Row {
    Row { name, ours: false, about, example: "", words: 1, repeats: false, twin: None, set, get }
}

const fn ours(
    name: &'static str,
    about: &'static str,
    set: Set,
    get: fn(&Options) -> Vec<String>,
) -> Row {
    Row { ours: true, ..row(name, about, set, get) }
}

/// Expands to a row whose value is stored in one field without a warning.
macro_rules! field {
    ($kind:ident $name:literal, $about:literal, $($field:ident).+, |$word:ident| $read:expr, |$value:ident| $write:expr) => {
        $kind(
            $name,
            $about,
            |options, words| {
                let $word = words[0];
                options.$($field).+ = $read?;
                Ok(None)
            },
            |options| {
                let $value = &options.$($field).+;
                vec![$write]
            },
        )
    };
}

const MODES: &[(&str, ServerMode)] =
    &[("unix", ServerMode::Unix), ("loop", ServerMode::Loop), ("open", ServerMode::Open)];
const ACCESS: &[(&str, SocketAccess)] =
    &[("owner", SocketAccess::Owner), ("all", SocketAccess::All)];
const ROUTES: &[(&str, RouteProtocol)] = &[("sa", RouteProtocol::Sa), ("acm", RouteProtocol::Acm)];
const LOOPBACK: &[(&str, bool)] = &[("local", true), ("none", false)];
const ROUTE_PRELOAD: &[(&str, bool)] =
    &[("none", false), ("no", false), ("opensm_full_v1", true), ("full_opensm_v1", true)];
const ADDR_PRELOAD: &[(&str, bool)] = &[("none", false), ("no", false), ("acm_hosts", true)];
const CLAIMS: &[(&str, ClaimPolicy)] = &[
    ("first", ClaimPolicy::First),
    ("newest", ClaimPolicy::Newest),
    ("verified", ClaimPolicy::Verified),
];

/// The maximum values that make sense.
const MAX_MILLIS: u64 = 3_600_000;
const MAX_DEPTH: u64 = 1 << 20;
const MAX_ENTRIES: u64 = 1 << 24;

/// All options: those of ibacm, then the additional ones.
pub const OPTIONS: &[Row] = &[
    Row {
        example: "/var/log/ibacm.log",
        ..row(
            "log_file",
            "The log: a file, stdout or stderr (in the foreground). The default is a file in the service's folder.",
            |options, words| {
                options.log_file = Some(match words[0] {
                    "stdout" => LogFile::Stdout,
                    "stderr" => LogFile::Stderr,
                    word => LogFile::File(path(word)?),
                });
                Ok(None)
            },
            |options| match &options.log_file {
                None => Vec::new(),
                Some(LogFile::Stdout) => vec!["stdout".to_owned()],
                Some(LogFile::Stderr) => vec!["stderr".to_owned()],
                Some(LogFile::File(path)) => path_word(Some(path)),
            },
        )
    },
    field!(row "log_level", "The level of detail of the log: 0 errors, 1 configuration, 2 operation.",
        log_level, |word| number(word, 0..=255), |value| value.to_string()),
    field!(row "umad_debug_level", "The level of detail of libibumad's log: 0 nothing, 1 basic, 2 verbose.",
        umad_debug_level, |word| number(word, 0..=2), |value| value.to_string()),
    Row {
        example: "/run/ibacm.pid",
        ..row(
            "lock_file",
            "The lock file, which ensures that only one service runs. The default is a file in the \
             folder of the service.",
            |options, words| {
                options.lock_file = Some(path(words[0])?);
                Ok(None)
            },
            |options| path_word(options.lock_file.as_ref()),
        )
    },
    row(
        "addr_prot",
        "The protocol that resolves addresses: acm, which multicasts requests, is the only one.",
        |_, words| one_of(words[0], &[("acm", ())]).map(|()| None),
        |_| vec!["acm".to_owned()],
    ),
    Row {
        twin: Some("addr_timeout_s"),
        ..row(
            "addr_timeout",
            "The lifetime of a cached address in minutes. 1440 is a day; -1 is forever.",
            |options, words| {
                options.machine.address_timeout = expiry(words[0], 60)?;
                Ok(None)
            },
            |options| expiry_word(options.machine.address_timeout, 60).into_iter().collect(),
        )
    },
    field!(row "route_prot", "The source of paths: sa, subnet administration, a query for each pair; acm, multicast groups, which scales.",
        machine.route_protocol, |word| one_of(word, ROUTES), |value| word_of(value, ROUTES)),
    Row {
        twin: Some("route_timeout_s"),
        ..row(
            "route_timeout",
            "The lifetime of a cached path in minutes, at most that of its address. -1 is as long as the address.",
            |options, words| {
                options.machine.route_timeout = expiry(words[0], 60)?;
                Ok(None)
            },
            |options| expiry_word(options.machine.route_timeout, 60).into_iter().collect(),
        )
    },
    field!(row "loopback_prot", "The resolution of this host's own addresses: local, without requests; none, like all others.",
        machine.local_loopback, |word| one_of(word, LOOPBACK), |value| word_of(value, LOOPBACK)),
    field!(row "server_port", "The TCP port for clients, in the modes loop and open.",
        server_port, |word| number(word, 1..=65535), |value| value.to_string()),
    field!(row "server_mode", "How clients connect: unix, by a socket file; loop, by TCP from this host; open, by TCP from everywhere.",
        server_mode, |word| one_of(word, MODES), |value| word_of(value, MODES)),
    row(
        "acme_plus_kernel_only",
        "With yes, connection managers do not discover the service by themselves.",
        |options, words| {
            let (value, warning) = boolean_of_ibacm(words[0], &["true", "yes"])?;
            options.acme_plus_kernel_only = value;
            Ok(warning)
        },
        |options| vec![yes_no(options.acme_plus_kernel_only)],
    ),
    field!(row "timeout", "The time to wait for an answer in milliseconds, in addition to the subnet's own timeout.",
        machine.timeout, |word| millis(word, 0..=MAX_MILLIS), |value| millis_word(*value)),
    field!(row "retries", "The number of retries of a request.",
        machine.retries, |word| number(word, 0..=255), |value| value.to_string()),
    field!(row "resolve_depth", "The maximum number of addresses that an endpoint resolves at once.",
        machine.resolve_depth, |word| number(word, 1..=MAX_DEPTH), |value| value.to_string()),
    field!(row "sa_depth", "The maximum number of queries of a port to subnet administration at once.",
        machine.sa_depth, |word| number(word, 1..=MAX_DEPTH), |value| value.to_string()),
    field!(row "send_depth", "The maximum number of answers of an endpoint in flight.",
        machine.send_depth, |word| number(word, 1..=MAX_DEPTH), |value| value.to_string()),
    field!(row "recv_depth", "The number of datagrams that an endpoint can buffer.",
        machine.recv_depth, |word| number(word, 1..=MAX_DEPTH), |value| value.to_string()),
    field!(row "min_mtu", "The MTU that every endpoint of the subnet can receive: 256, 512, 1024, 2048 or 4096.",
        machine.min_mtu, |word| mtu(word), |value| value.bytes().to_string()),
    row(
        "min_rate",
        "The rate that every endpoint of the subnet has, in Gb/s: 2 (for 2.5), 5, 10, 14, 20, 25, 30, 40 and so on.",
        |options, words| {
            let (rate, is_known) = rate(words[0])?;
            options.machine.min_rate = rate;
            Ok((!is_known)
                .then(|| format!("ibacm does not know the rate {rate}, and uses 10 Gb/s")))
        },
        |options| vec![rate_word(options.machine.min_rate)],
    ),
    row(
        "route_preload",
        "The initial paths: none, or opensm_full_v1, from a dump of OpenSM's routes.",
        |options, words| {
            options.preloads_routes = one_of(words[0], ROUTE_PRELOAD)?;
            let is_manual = words[0].eq_ignore_ascii_case("full_opensm_v1");
            Ok(is_manual.then(|| {
                "ibacm accepts only the name opensm_full_v1; its manual is wrong".to_owned()
            }))
        },
        |options| vec![word_of(&options.preloads_routes, ROUTE_PRELOAD)],
    ),
    Row {
        example: "/etc/rdma/ibacm_route.data",
        ..row(
            "route_data_file",
            "The dump file of route_preload.",
            |options, words| {
                options.route_data_file = Some(path(words[0])?);
                Ok(None)
            },
            |options| path_word(options.route_data_file.as_ref()),
        )
    },
    field!(row "addr_preload", "The initial addresses: none, or acm_hosts, from a file of addresses and GIDs.",
        preloads_addresses, |word| one_of(word, ADDR_PRELOAD), |value| word_of(value, ADDR_PRELOAD)),
    Row {
        example: "/etc/rdma/ibacm_hosts.data",
        ..row(
            "addr_data_file",
            "The file of addr_preload, with addresses and GIDs.",
            |options, words| {
                options.addr_data_file = Some(path(words[0])?);
                Ok(None)
            },
            |options| path_word(options.addr_data_file.as_ref()),
        )
    },
    row(
        "support_ips_in_addr_cfg",
        "With 1, the address file may contain IP addresses as well as names.",
        |options, words| {
            let (value, warning) = boolean_of_ibacm(words[0], &[])?;
            options.support_ips_in_addr_cfg = value;
            Ok(warning)
        },
        |options| vec![u8::from(options.support_ips_in_addr_cfg).to_string()],
    ),
    Row {
        example: "/usr/lib/ibacm",
        ..row(
            "provider_lib_path",
            "The folder of ibacm's providers.",
            |_, _| Ok(Some("this service loads no providers; the option is ignored".to_owned())),
            |_| Vec::new(),
        )
    },
    Row {
        example: "ibacmp default",
        words: 2,
        repeats: true,
        ..row("provider", "The provider of each subnet: ibacmp for all of them.", provider, |_| {
            Vec::new()
        })
    },
    row_s(
        "addr_timeout",
        "addr_timeout_s",
        "The same as addr_timeout, in seconds.",
        |options, words| {
            options.machine.address_timeout = expiry(words[0], 1)?;
            Ok(None)
        },
        |options| in_seconds(options.machine.address_timeout),
    ),
    row_s(
        "route_timeout",
        "route_timeout_s",
        "The same as route_timeout, in seconds.",
        |options, words| {
            options.machine.route_timeout = expiry(words[0], 1)?;
            Ok(None)
        },
        |options| in_seconds(options.machine.route_timeout),
    ),
    field!(ours "negative_timeout_ms", "The time in milliseconds during which an unresolved address is refused without another request.",
        machine.negative_timeout, |word| millis(word, 0..=MAX_MILLIS), |value| millis_word(*value)),
    field!(ours "deadline_ms", "The maximum time that a client waits for its answer, in milliseconds.",
        machine.deadline, |word| millis(word, 1..=MAX_MILLIS), |value| millis_word(*value)),
    field!(ours "refresh", "With yes, cache entries in use are refreshed before they expire.",
        machine.refresh, |word| boolean(word), |value| yes_no(*value)),
    field!(ours "announce", "With yes, changes of addresses, LIDs and GIDs are announced to other services.",
        machine.announce, |word| boolean(word), |value| yes_no(*value)),
    field!(ours "claim_policy", "The policy when two endpoints claim the same address: first, newest (as ibacm does), or verified.",
        machine.claims, |word| one_of(word, CLAIMS), |value| word_of(value, CLAIMS)),
    field!(ours "cache_entries", "The maximum number of addresses in the cache of an endpoint.",
        machine.max_entries, |word| number(word, 1..=MAX_ENTRIES), |value| value.to_string()),
    field!(ours "max_groups", "The maximum number of multicast groups that an endpoint joins: 1 to 6.",
        machine.max_groups, |word| number(word, 1..=MAX_GROUPS as u64), |value| value.to_string()),
    Row {
        example: "100 4096 0",
        words: 4,
        repeats: true,
        ..ours(
            "group",
            "A group to join in addition to those of min_rate and min_mtu and of the port: RATE MTU \
             [SL [TOS]]. One line for each.",
            group,
            |options| options.machine.groups.iter().map(group_words).collect(),
        )
    },
    field!(ours "receive_rate", "The datagrams per second that a receiver can handle, from all senders together. 0 is 20 times recv_depth.",
        machine.receive_rate, |word| number(word, 0..=u32::MAX.into()), |value| value.to_string()),
    field!(ours "subnet_size", "The number of endpoints of the subnet. 0 lets the service estimate it.",
        machine.subnet_size, |word| number(word, 0..=u32::MAX.into()), |value| value.to_string()),
    field!(ours "max_requests", "The maximum number of pending requests of all clients together.",
        machine.max_requests, |word| number(word, 1..=MAX_ENTRIES), |value| value.to_string()),
    field!(ours "client_requests", "The maximum number of pending requests of one client.",
        machine.max_requests_per_client, |word| number(word, 1..=MAX_ENTRIES), |value| value.to_string()),
    field!(ours "max_clients", "The maximum number of connected clients.",
        max_clients, |word| number(word, 1..=65536), |value| value.to_string()),
    field!(ours "socket_access", "The users that may connect to the socket file: owner, or all.",
        socket_access, |word| one_of(word, ACCESS), |value| word_of(value, ACCESS)),
];

/// Returns the row of an option in seconds, which is written only when minutes cannot express the value.
const fn row_s(
    in_minutes: &'static str,
    name: &'static str,
    about: &'static str,
    set: Set,
    get: fn(&Options) -> Vec<String>,
) -> Row {
    Row { example: "90", twin: Some(in_minutes), ..ours(name, about, set, get) }
}

fn in_seconds(time: std::time::Duration) -> Vec<String> {
    match expiry_word(time, 60) {
        Some(_) => Vec::new(),
        None => expiry_word(time, 1).into_iter().collect(),
    }
}

fn provider(_: &mut Options, words: &[&str]) -> Result<Option<String>, String> {
    let subnet = *words.get(1).ok_or("a provider has a name, and a subnet prefix or default")?;
    let digits = subnet.strip_prefix("0x").or_else(|| subnet.strip_prefix("0X")).unwrap_or(subnet);
    if !subnet.eq_ignore_ascii_case("default") && u64::from_str_radix(digits, 16).is_err() {
        return Err(format!("a subnet prefix is hexadecimal of 64 bits, not {subnet:?}"));
    }
    let is_known = words[0].eq_ignore_ascii_case("ibacmp");
    Ok((!is_known).then(|| format!("this service has no provider {:?}; ibacmp resolves", words[0])))
}

fn group(options: &mut Options, words: &[&str]) -> Result<Option<String>, String> {
    let [first, second, rest @ ..] = words else {
        return Err("a group has a rate and an MTU".to_owned());
    };
    let sl = rest.first().map_or(Ok(0), |word| number(word, 0..=15))?;
    let tos = rest.get(1).map_or(Ok(0), |word| number(word, 0..=255))?;
    let spec = GroupSpec { rate: rate(first)?.0, mtu: mtu(second)?, sl, tos };
    if options.machine.groups.len() == MAX_GROUPS - 1 {
        return Err(format!("an endpoint joins at most {MAX_GROUPS} groups; this one is ignored"));
    }
    options.machine.groups.push(spec);
    Ok(None)
}

fn group_words(group: &GroupSpec) -> String {
    let GroupSpec { rate, mtu, sl, tos } = group;
    format!("{} {} {sl} {tos}", rate_word(*rate), mtu.bytes())
}
