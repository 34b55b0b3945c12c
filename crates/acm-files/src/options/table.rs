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
    /// Its name.
    pub name: &'static str,
    /// Whether ibacm does not have it.
    pub ours: bool,
    /// Its description, in lines.
    pub about: &'static str,
    /// An example, for a file that does not set it.
    pub example: &'static str,
    /// The maximum number of words of its value.
    pub(super) words: usize,
    /// Whether all of its lines count, not only the last one.
    pub(super) repeats: bool,
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
    Row { name, ours: false, about, example: "", words: 1, repeats: false, set, get }
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
            "Where the log goes: a file, stdout or stderr. By default, to the folder of the service.",
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
    field!(row "log_level", "How much is logged: 0 errors, 1 configuration, 2 operation.",
        log_level, |word| number(word, 0..=255), |value| value.to_string()),
    field!(row "umad_debug_level", "What libibumad logs: 0 nothing, 1 basic, 2 verbose.",
        umad_debug_level, |word| number(word, 0..=2), |value| value.to_string()),
    Row {
        example: "/run/ibacm.pid",
        ..row(
            "lock_file",
            "The file that is locked, so that there is one service only. By default, in the folder of the service.",
            |options, words| {
                options.lock_file = Some(path(words[0])?);
                Ok(None)
            },
            |options| path_word(options.lock_file.as_ref()),
        )
    },
    row(
        "addr_prot",
        "How addresses are resolved: acm, by multicast. There is no other way.",
        |_, words| one_of(words[0], &[("acm", ())]).map(|()| None),
        |_| vec!["acm".to_owned()],
    ),
    row(
        "addr_timeout",
        "For how many minutes an address is known. 1440 is a day; -1 is for ever.",
        |options, words| {
            options.machine.address_timeout = expiry(words[0], 60)?;
            Ok(None)
        },
        |options| expiry_word(options.machine.address_timeout, 60).into_iter().collect(),
    ),
    field!(row "route_prot", "Where paths come from: sa, the subnet administration; acm, the records of multicast groups.",
        machine.route_protocol, |word| one_of(word, ROUTES), |value| word_of(value, ROUTES)),
    row(
        "route_timeout",
        "For how many minutes a path is known, at most as long as its address. -1 is as long as that.",
        |options, words| {
            options.machine.route_timeout = expiry(words[0], 60)?;
            Ok(None)
        },
        |options| expiry_word(options.machine.route_timeout, 60).into_iter().collect(),
    ),
    field!(row "loopback_prot", "How addresses of this host are resolved: local, without asking; none, like all others.",
        machine.local_loopback, |word| one_of(word, LOOPBACK), |value| word_of(value, LOOPBACK)),
    field!(row "server_port", "The TCP port for clients, in the modes loop and open.",
        server_port, |word| number(word, 1..=65535), |value| value.to_string()),
    field!(row "server_mode", "How clients connect: unix, by a socket file; loop, by TCP from this host; open, by TCP from everywhere.",
        server_mode, |word| one_of(word, MODES), |value| word_of(value, MODES)),
    row(
        "acme_plus_kernel_only",
        "With yes, connection managers do not find the service by themselves.",
        |options, words| {
            let (value, warning) = boolean_of_ibacm(words[0], &["true", "yes"])?;
            options.acme_plus_kernel_only = value;
            Ok(warning)
        },
        |options| vec![yes_no(options.acme_plus_kernel_only)],
    ),
    field!(row "timeout", "How many milliseconds to wait for an answer, beside the subnet's own timeout.",
        machine.timeout, |word| millis(word, 0..=MAX_MILLIS), |value| millis_word(*value)),
    field!(row "retries", "How often to ask again.",
        machine.retries, |word| number(word, 0..=255), |value| value.to_string()),
    field!(row "resolve_depth", "How many addresses an endpoint asks for at once.",
        machine.resolve_depth, |word| number(word, 1..=MAX_DEPTH), |value| value.to_string()),
    field!(row "sa_depth", "How many questions a port has with the subnet administration at once.",
        machine.sa_depth, |word| number(word, 1..=MAX_DEPTH), |value| value.to_string()),
    field!(row "send_depth", "How many answers an endpoint has on their way at once.",
        machine.send_depth, |word| number(word, 1..=MAX_DEPTH), |value| value.to_string()),
    field!(row "recv_depth", "For how many datagrams at once an endpoint has buffers.",
        machine.recv_depth, |word| number(word, 1..=MAX_DEPTH), |value| value.to_string()),
    field!(row "min_mtu", "The MTU that every endpoint of the subnet can receive: 256, 512, 1024, 2048 or 4096.",
        machine.min_mtu, |word| mtu(word), |value| value.bytes().to_string()),
    row(
        "min_rate",
        "The rate that every endpoint of the subnet has, in Gb/s: 2 (for 2.5), 5, 10, 14, 20, 25, 30, 40 and so on.",
        |options, words| {
            let (rate, is_known) = rate(words[0])?;
            options.machine.min_rate = rate;
            Ok((!is_known).then(|| format!("ibacm does not know {rate}, and takes 10 Gb/s")))
        },
        |options| vec![rate_word(options.machine.min_rate)],
    ),
    row(
        "route_preload",
        "Paths to begin with: none, or opensm_full_v1, from a dump of OpenSM's.",
        |options, words| {
            options.preloads_routes = one_of(words[0], ROUTE_PRELOAD)?;
            let is_manual = words[0].eq_ignore_ascii_case("full_opensm_v1");
            Ok(is_manual
                .then(|| "ibacm's own name is opensm_full_v1, its manual is wrong".to_owned()))
        },
        |options| vec![word_of(&options.preloads_routes, ROUTE_PRELOAD)],
    ),
    Row {
        example: "/etc/rdma/ibacm_route.data",
        ..row(
            "route_data_file",
            "The dump.",
            |options, words| {
                options.route_data_file = Some(path(words[0])?);
                Ok(None)
            },
            |options| path_word(options.route_data_file.as_ref()),
        )
    },
    field!(row "addr_preload", "Addresses to begin with: none, or acm_hosts, from a file of addresses and GIDs.",
        preloads_addresses, |word| one_of(word, ADDR_PRELOAD), |value| word_of(value, ADDR_PRELOAD)),
    Row {
        example: "/etc/rdma/ibacm_hosts.data",
        ..row(
            "addr_data_file",
            "The file of addresses and GIDs.",
            |options, words| {
                options.addr_data_file = Some(path(words[0])?);
                Ok(None)
            },
            |options| path_word(options.addr_data_file.as_ref()),
        )
    },
    row(
        "support_ips_in_addr_cfg",
        "With 1, the address file may have IP addresses beside names.",
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
            |_, _| Ok(Some("there are no providers to load here; it is ignored".to_owned())),
            |_| Vec::new(),
        )
    },
    Row {
        example: "ibacmp default",
        words: 2,
        repeats: true,
        ..row("provider", "Who resolves on which subnet: ibacmp on all of them.", provider, |_| {
            Vec::new()
        })
    },
    row_s(
        "addr_timeout_s",
        "The same as addr_timeout, in seconds.",
        |options, words| {
            options.machine.address_timeout = expiry(words[0], 1)?;
            Ok(None)
        },
        |options| in_seconds(options.machine.address_timeout),
    ),
    row_s(
        "route_timeout_s",
        "The same as route_timeout, in seconds.",
        |options, words| {
            options.machine.route_timeout = expiry(words[0], 1)?;
            Ok(None)
        },
        |options| in_seconds(options.machine.route_timeout),
    ),
    field!(ours "negative_timeout_ms", "For how many milliseconds an address that nobody has is refused without asking again.",
        machine.negative_timeout, |word| millis(word, 0..=MAX_MILLIS), |value| millis_word(*value)),
    field!(ours "deadline_ms", "The longest that a client waits for its answer, in milliseconds.",
        machine.deadline, |word| millis(word, 1..=MAX_MILLIS), |value| millis_word(*value)),
    field!(ours "refresh", "With yes, what is used is asked for again before it expires.",
        machine.refresh, |word| boolean(word), |value| yes_no(*value)),
    field!(ours "announce", "With yes, other services are told of changes of addresses, LIDs and GIDs.",
        machine.announce, |word| boolean(word), |value| yes_no(*value)),
    field!(ours "claim_policy", "Whom to believe when two have the same address: first, newest (as ibacm does), or verified.",
        machine.claims, |word| one_of(word, CLAIMS), |value| word_of(value, CLAIMS)),
    field!(ours "cache_entries", "How many addresses an endpoint remembers at most.",
        machine.max_entries, |word| number(word, 1..=MAX_ENTRIES), |value| value.to_string()),
    field!(ours "max_groups", "How many multicast groups an endpoint joins at most: 1 to 6.",
        machine.max_groups, |word| number(word, 1..=MAX_GROUPS as u64), |value| value.to_string()),
    Row {
        example: "100 4096 0",
        words: 4,
        repeats: true,
        ..ours(
            "group",
            "A group to join beside those of min_rate and min_mtu, and of the port: RATE MTU [SL [TOS]]. A line for each.",
            group,
            |options| options.machine.groups.iter().map(group_words).collect(),
        )
    },
    field!(ours "receive_rate", "How many datagrams in a second a receiver can take, from all together. 0 is 20 times recv_depth.",
        machine.receive_rate, |word| number(word, 0..=u32::MAX.into()), |value| value.to_string()),
    field!(ours "subnet_size", "How many endpoints the subnet has. 0 is a guess.",
        machine.subnet_size, |word| number(word, 0..=u32::MAX.into()), |value| value.to_string()),
    field!(ours "max_requests", "How many requests of all clients wait at most.",
        machine.max_requests, |word| number(word, 1..=MAX_ENTRIES), |value| value.to_string()),
    field!(ours "client_requests", "How many requests of one client wait at most.",
        machine.max_requests_per_client, |word| number(word, 1..=MAX_ENTRIES), |value| value.to_string()),
    field!(ours "max_clients", "How many clients are connected at once.",
        max_clients, |word| number(word, 1..=65536), |value| value.to_string()),
    field!(ours "socket_access", "Who can connect to the socket file: owner, or all users.",
        socket_access, |word| one_of(word, ACCESS), |value| word_of(value, ACCESS)),
];

/// Returns the row of an option in seconds, which is written only when minutes cannot express the value.
const fn row_s(
    name: &'static str,
    about: &'static str,
    set: Set,
    get: fn(&Options) -> Vec<String>,
) -> Row {
    Row { example: "90", ..ours(name, about, set, get) }
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
    Ok((!is_known).then(|| format!("there is no provider {:?} here; ibacmp resolves", words[0])))
}

fn group(options: &mut Options, words: &[&str]) -> Result<Option<String>, String> {
    let [first, second, rest @ ..] = words else {
        return Err("a group has a rate and an MTU".to_owned());
    };
    let sl = rest.first().map_or(Ok(0), |word| number(word, 0..=15))?;
    let tos = rest.get(1).map_or(Ok(0), |word| number(word, 0..=255))?;
    let spec = GroupSpec { rate: rate(first)?.0, mtu: mtu(second)?, sl, tos };
    if options.machine.groups.len() == MAX_GROUPS - 1 {
        return Err(format!("an endpoint has at most {MAX_GROUPS} groups; this one is not joined"));
    }
    options.machine.groups.push(spec);
    Ok(None)
}

fn group_words(group: &GroupSpec) -> String {
    let GroupSpec { rate, mtu, sl, tos } = group;
    format!("{} {} {sl} {tos}", rate_word(*rate), mtu.bytes())
}
