//! Package perftest. What it measures is not judged, only that it can be measured.

use crate::exchange::{End, Exchange, Ready};
use crate::proof::Proof::Perftest;
use crate::row::{Row, Way};

/// The sizes of `-a`: powers of two up to 2^23; UD stops at the MTU.
const ALL_SIZES: usize = 23;
/// The same for programs whose messages are at least so many bytes that fewer sizes are left.
const ALL_SIZES_UD: usize = 12;

/// How many seconds they may take. ib_write_lat looks at memory in a loop and calls nothing meanwhile: where there
/// are few processors and much to do, that keeps the thread away that would write there.
const PATIENCE: u64 = 300;

/// Options that every program is run with.
const ALL: &[&str] = &["", "-R", "-e", "-z"];

/// What else a program is run with.
const MORE: &[(&str, &[&str])] = &[
    (
        "ib_send_bw",
        &[
            "-a -n 50",
            "-b",
            "-q 8",
            "-q 4 -b -e",
            "-R -q 4 -b",
            "-R -e",
            "-I 64 -s 64",
            "-l 10",
            "--recv_post_list=10",
            "-Q 1 -t 16",
            "-m 256 -s 4096",
            "--use-srq -q 4",
            "--odp",
            "--use_old_post_send",
            "--mr_per_qp -q 4",
            "-s 1048576 -n 100",
            "-N",
            "-D 1",
            // Nothing holds these back: at once they send no more than a socket buffers.
            "-c UC -s 1024 -n 100",
            "-c UC -s 256 -n 100 -b -q 4",
            "-c UD -s 1024 -n 100",
            "-c UD -s 256 -n 100 -q 4",
            "-c UD -s 512 -n 100 -b -e",
            "-c UD -a -n 10",
            "-c UD -R -s 1024 -n 100",
            "-c XRC",
            "-c XRC -a -n 50",
            "-c XRC -b -q 4",
            "-c XRC -q 4 -b -e",
            "-c XRC -I 64 -s 64",
            "-c XRC -m 256 -s 4096",
            "-c XRC --odp",
            "-c XRC -l 10",
            "-c XRC -D 1",
        ],
    ),
    (
        "ib_send_lat",
        &[
            "-a -n 50",
            "-s 64",
            "-I 0 -s 64",
            "-R -s 4096",
            "-R -e",
            "--use-srq",
            "--odp",
            "--use_old_post_send",
            "-D 1",
            "-c UC",
            "-c UC -e",
            "-c UD",
            "-c UD -e",
            "-c UD -R",
            "-c UD -a -n 50",
            "-c XRC",
            "-c XRC -e",
            "-c XRC -a -n 50",
            "-c XRC --use_old_post_send",
        ],
    ),
    (
        "ib_write_bw",
        &[
            "-a -n 50",
            "-b",
            "-q 8",
            "-q 16 -b",
            "-R -q 4 -b",
            "-I 128 -s 128",
            "-l 10",
            "-m 256 -s 4096",
            "--odp",
            "--use_old_post_send",
            "--reversed",
            "--perform_warm_up",
            "-s 1048576 -n 100",
            "-D 1",
            "-c UC",
            "-c UC -b -q 4",
            "-c XRC",
            "-c XRC -a -n 50",
            "-c XRC -b -q 4",
        ],
    ),
    (
        "ib_write_lat",
        &[
            "-a -n 10",
            "-s 64",
            "-I 0 -s 64",
            "-R -s 4096",
            "--odp",
            "--use_old_post_send",
            "-D 1",
            "-c UC",
            "-c XRC",
        ],
    ),
    (
        "ib_read_bw",
        &[
            "-a -n 50",
            "-b",
            "-q 8",
            "-o 1",
            "-R -q 4 -b",
            "-m 256 -s 4096",
            "--odp",
            "--use_old_post_send",
            "-s 1048576 -n 100",
            "-D 1",
            "-c XRC",
            "-c XRC -b -q 4",
        ],
    ),
    (
        "ib_read_lat",
        &[
            "-a -n 50",
            "-s 64",
            "-o 1",
            "-R -e",
            "--odp",
            "--use_old_post_send",
            "-D 1",
            "-c XRC",
            "-c XRC -e",
        ],
    ),
    (
        "ib_atomic_bw",
        &[
            "-A CMP_AND_SWAP",
            "-b",
            "-q 8",
            "-o 1",
            "-R -q 4",
            "--use_old_post_send",
            "-D 1",
            "-c XRC",
            "-c XRC -b -q 4",
        ],
    ),
    (
        "ib_atomic_lat",
        &[
            "-A CMP_AND_SWAP",
            "-o 1",
            "-R -A CMP_AND_SWAP",
            "--use_old_post_send",
            "-D 1",
            "-c XRC",
            "-c XRC -A CMP_AND_SWAP",
        ],
    ),
];

pub(super) fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for (program, more) in MORE {
        for options in ALL.iter().chain(*more) {
            // These look at memory, or have nobody who could sleep: they refuse it.
            if program.starts_with("ib_write") && options.split(' ').any(|o| o == "-e") {
                continue;
            }
            rows.extend(Row::each(Way::HERE, &perftest(program, options)));
        }
        // Over IPv6 they find each other by IPv4, and `-R` knows nothing else.
        let elsewhere: [(&[Way], _); 4] = [
            (Way::IPV6, ""),
            (&[Way::Wire4], "-R"),
            (&[Way::Default], ""),
            // Not on the default host: the file that their domain is of is that of the first user who ran one.
            (&[Way::Wire4, Way::Wire6], "-c XRC"),
        ];
        for (ways, options) in elsewhere {
            rows.extend(Row::each(ways, &perftest(program, options)));
        }
    }
    rows.extend(Row::each(&[Way::Default], &as_a_new_user()));
    rows
}

/// What is not run over a stream, by parts of the options.
const NOT_BY_STREAM: &[(&str, &str)] = &[
    ("-R", "it is over the connection manager already"),
    ("-c ", "iWARP has reliable connections only, and no XRC"),
    ("-m ", "the MTU is not the program's to choose"),
    ("--reversed", "with -R it makes the program that knows no address connect"),
];

/// Over the connection manager what is run without it elsewhere, for devices on which that is the only way.
pub(super) fn by_stream() -> Vec<Exchange> {
    let mut rows = Vec::new();
    for (program, all) in MORE {
        for options in *all {
            let stays = NOT_BY_STREAM.iter().any(|(part, _)| options.contains(part));
            let options = format!("-R {options}");
            if !stays && !all.contains(&options.as_str()) {
                rows.push(perftest(program, &options));
            }
        }
    }
    rows
}

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
        .patience(PATIENCE)
        .server(line.clone(), ready, End::Alone)
        .client(line + " {server4}")
        .proof(Perftest { lines, iterations: (!counted).then_some(1000 * queue_pairs(options)) })
}

/// How many queue pairs each side has.
fn queue_pairs(options: &str) -> u64 {
    let mut words = options.split(' ').skip_while(|w| *w != "-q");
    words.nth(1).and_then(|n| n.parse().ok()).unwrap_or(1)
}

/// Without any option, as the README says it.
fn as_a_new_user() -> Exchange {
    Exchange::new("ib_write_bw & ib_write_bw localhost")
        .server("ib_write_bw", Ready::TcpPort(18515), End::Alone)
        .client("ib_write_bw localhost")
        .proof(Perftest { lines: 1, iterations: None })
}
