//! Package perftest. The results of its measurements are not judged, only that it can measure.

use std::collections::BTreeSet;

use crate::exchange::{End, Exchange, Ready};
use crate::proof::Proof::Perftest;
use crate::row::{Options, Row, Way, both, one_host, rest, two_hosts};

/// The sizes of `-a`: powers of two up to 2^23; UD stops at the MTU.
const ALL_SIZES: usize = 23;
/// The number of sizes for programs with a larger minimum message size.
const ALL_SIZES_UD: usize = 12;

/// The timeout in seconds. ib_write_lat busy-polls memory without system calls: on a busy machine with few
/// processors that keeps the thread away that would write there.
const TIMEOUT: u64 = 300;

/// Options that every program is run with.
const ALL: &[Options] = &[both(""), two_hosts("-R"), one_host("-e"), two_hosts("-z")];

/// Further options of a program.
const MORE: &[(&str, &[Options])] = &[
    (
        "ib_send_bw",
        &[
            two_hosts("-a -n 50"),
            both("-b"),
            two_hosts("-q 8"),
            one_host("-q 4 -b -e"),
            two_hosts("-R -q 4 -b"),
            one_host("-R -e"),
            both("-I 64 -s 64"),
            both("-l 10"),
            one_host("--recv_post_list=10"),
            two_hosts("-Q 1 -t 16"),
            two_hosts("-m 256 -s 4096"),
            both("--use-srq -q 4"),
            one_host("--odp"),
            two_hosts("--use_old_post_send"),
            one_host("--mr_per_qp -q 4"),
            both("-s 1048576 -n 100"),
            two_hosts("-N"),
            one_host("-D 1"),
            // Unreliable transports have no flow control: these rows send at once no more than a socket buffers.
            one_host("-c UC -s 1024 -n 100"),
            two_hosts("-c UC -s 256 -n 100 -b -q 4"),
            two_hosts("-c UD -s 1024 -n 100"),
            one_host("-c UD -s 256 -n 100 -q 4"),
            two_hosts("-c UD -s 512 -n 100 -b -e"),
            one_host("-c UD -a -n 10"),
            two_hosts("-c UD -R -s 1024 -n 100"),
            both("-c XRC"),
            one_host("-c XRC -a -n 50"),
            two_hosts("-c XRC -b -q 4"),
            both("-c XRC -q 4 -b -e"),
            one_host("-c XRC -I 64 -s 64"),
            two_hosts("-c XRC -m 256 -s 4096"),
            one_host("-c XRC --odp"),
            two_hosts("-c XRC -l 10"),
            rest("-c XRC -D 1"),
        ],
    ),
    (
        "ib_send_lat",
        &[
            two_hosts("-a -n 50"),
            one_host("-s 64"),
            both("-I 0 -s 64"),
            two_hosts("-R -s 4096"),
            one_host("-R -e"),
            two_hosts("--use-srq"),
            rest("--odp"),
            one_host("--use_old_post_send"),
            two_hosts("-D 1"),
            one_host("-c UC"),
            two_hosts("-c UC -e"),
            both("-c UD"),
            one_host("-c UD -e"),
            two_hosts("-c UD -R"),
            rest("-c UD -a -n 50"),
            one_host("-c XRC"),
            both("-c XRC -e"),
            rest("-c XRC -a -n 50"),
            two_hosts("-c XRC --use_old_post_send"),
        ],
    ),
    (
        "ib_write_bw",
        &[
            both("-a -n 50"),
            two_hosts("-b"),
            one_host("-q 8"),
            two_hosts("-q 16 -b"),
            one_host("-R -q 4 -b"),
            two_hosts("-I 128 -s 128"),
            one_host("-l 10"),
            two_hosts("-m 256 -s 4096"),
            two_hosts("--odp"),
            rest("--use_old_post_send"),
            two_hosts("--reversed"),
            one_host("--perform_warm_up"),
            both("-s 1048576 -n 100"),
            rest("-D 1"),
            both("-c UC"),
            two_hosts("-c UC -b -q 4"),
            one_host("-c XRC"),
            rest("-c XRC -a -n 50"),
            one_host("-c XRC -b -q 4"),
        ],
    ),
    (
        "ib_write_lat",
        &[
            rest("-a -n 10"),
            two_hosts("-s 64"),
            one_host("-I 0 -s 64"),
            two_hosts("-R -s 4096"),
            one_host("--odp"),
            rest("--use_old_post_send"),
            rest("-D 1"),
            two_hosts("-c UC"),
            both("-c XRC"),
        ],
    ),
    (
        "ib_read_bw",
        &[
            both("-a -n 50"),
            one_host("-b"),
            two_hosts("-q 8"),
            two_hosts("-o 1"),
            one_host("-R -q 4 -b"),
            two_hosts("-m 256 -s 4096"),
            one_host("--odp"),
            rest("--use_old_post_send"),
            both("-s 1048576 -n 100"),
            rest("-D 1"),
            both("-c XRC"),
            two_hosts("-c XRC -b -q 4"),
        ],
    ),
    (
        "ib_read_lat",
        &[
            rest("-a -n 50"),
            one_host("-s 64"),
            two_hosts("-o 1"),
            one_host("-R -e"),
            two_hosts("--odp"),
            rest("--use_old_post_send"),
            rest("-D 1"),
            two_hosts("-c XRC"),
            one_host("-c XRC -e"),
        ],
    ),
    (
        "ib_atomic_bw",
        &[
            both("-A CMP_AND_SWAP"),
            two_hosts("-b"),
            one_host("-q 8"),
            two_hosts("-o 1"),
            two_hosts("-R -q 4"),
            one_host("--use_old_post_send"),
            rest("-D 1"),
            both("-c XRC"),
            one_host("-c XRC -b -q 4"),
        ],
    ),
    (
        "ib_atomic_lat",
        &[
            one_host("-A CMP_AND_SWAP"),
            one_host("-o 1"),
            two_hosts("-R -A CMP_AND_SWAP"),
            rest("--use_old_post_send"),
            rest("-D 1"),
            one_host("-c XRC"),
            two_hosts("-c XRC -A CMP_AND_SWAP"),
        ],
    ),
];

/// The programs that CI also runs on other hosts than those of most rows: all connect in the same way.
const ELSEWHERE: &[&str] = &["ib_send_bw", "ib_atomic_lat"];

pub(super) fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for (program, more) in MORE {
        for options in ALL.iter().chain(*more) {
            // These programs busy-poll memory, or have nothing to wait for: they refuse the option.
            if program.starts_with("ib_write") && options.text.split(' ').any(|o| o == "-e") {
                continue;
            }
            rows.extend(Row::each(
                Way::HERE,
                &perftest(program, options.text).brief(options.brief),
            ));
        }
        // Over IPv6 they exchange parameters by IPv4, and `-R` supports nothing else.
        let elsewhere: [(&'static [Way], _); 4] = [
            (Way::IPV6, ""),
            (&[Way::Wire4], "-R"),
            (&[Way::Default], ""),
            // Not on the default host: the file of their domain belongs to the first user who ran one.
            (&[Way::Wire4, Way::Wire6], "-c XRC"),
        ];
        for (ways, options) in elsewhere {
            let brief = if ELSEWHERE.contains(program) { ways } else { &[] };
            rows.extend(Row::each(ways, &perftest(program, options).brief(brief)));
        }
    }
    rows.extend(Row::each(&[Way::Default], &as_a_new_user()));
    mark(&mut rows);
    rows
}

/// Marks brief rows. The programs have the same options: CI runs each program, and each option with the first that has it, with any number.
fn mark(rows: &mut [Row]) {
    let mut known = BTreeSet::new();
    for row in rows {
        if let Some((_, options)) = row.title.split_once(' ') {
            row.brief &= known.insert((row.way.to_string(), options.replace(char::is_numeric, "")));
        }
    }
}

/// The options that are not run over a stream, by parts of them.
const NOT_BY_STREAM: &[(&str, &str)] = &[
    ("-R", "it is over the connection manager already"),
    ("-c ", "iWARP has reliable connections only, and no XRC"),
    ("-m ", "the MTU is not the program's to choose"),
    // On iWARP ib_send_bw counts credits for each queue pair, by the receive that a message consumed. In a shared queue that may be
    // another queue pair's. A queue pair that is a few messages behind the others then has more credits than it has sent, and
    // the difference, which is unsigned, never lets it send again.
    ("--use-srq -q", "the program waits for ever when its queue pairs do not keep step"),
    ("--reversed", "with -R it makes the program that knows no address connect"),
];

/// Returns exchanges over the connection manager, for devices on which that is the only way, of what is run without it elsewhere.
pub(super) fn by_stream() -> Vec<Exchange> {
    let mut rows = Vec::new();
    for (program, all) in MORE {
        for options in *all {
            let stays = NOT_BY_STREAM.iter().any(|(part, _)| options.text.contains(part));
            let options = format!("-R {}", options.text);
            if !stays && !all.iter().any(|o| o.text == options) {
                rows.push(perftest(program, &options));
            }
        }
    }
    rows
}

/// Returns the row of a program of perftest with these options.
pub(super) fn perftest(program: &str, options: &str) -> Exchange {
    let counted = options.contains("-n ") || options.contains("-D ");
    let iterations = if counted { "" } else { " -n 1000" };
    let title = [program, options].join(" ").trim_end().to_owned();
    let line = format!("{title} -F -p {{port}} -x {{gid}}{iterations}");
    let by_cm = ["-R", "-z"].iter().any(|o| options.split(' ').any(|w| w == *o));
    let lines = match () {
        () if !options.contains("-a") => 1,
        () if options.contains("UD") => ALL_SIZES_UD,
        () => ALL_SIZES,
    };
    let ready = if by_cm { Ready::Cm } else { Ready::Tcp };
    Exchange::new(title)
        .timeout(TIMEOUT)
        .server(line.clone(), ready, End::Alone)
        .client(line + " {server4}")
        .proof(Perftest { lines, iterations: (!counted).then_some(1000 * queue_pairs(options)) })
}

/// Returns how many queue pairs each side has.
fn queue_pairs(options: &str) -> u64 {
    let mut words = options.split(' ').skip_while(|w| *w != "-q");
    words.nth(1).and_then(|n| n.parse().ok()).unwrap_or(1)
}

/// Returns the row without any option, as in the README.
fn as_a_new_user() -> Exchange {
    Exchange::new("ib_write_bw & ib_write_bw localhost")
        .server("ib_write_bw", Ready::TcpPort(18515), End::Alone)
        .client("ib_write_bw localhost")
        .proof(Perftest { lines: 1, iterations: None })
        .brief(&[Way::Default])
}
