//! The options file, `ibacm_opts.cfg`: one name and value per line.
//!
//! ```text
//! # comment
//! addr_timeout  1440
//! route_prot    acm
//! ```
//!
//! All options of ibacm are known, with its defaults, and additional ones, which ibacm ignores. [`OPTIONS`] is the list. Names are
//! case insensitive, and the last line of a name counts.

use std::fmt::Write;
use std::io::BufRead;
use std::path::PathBuf;

use crate::Report;
use crate::addresses::quoted;
use crate::lines::{Line, each_line};
use crate::problem::Reporter;

mod fit;
mod table;
mod value;

pub use table::{OPTIONS, Row};

/// The options of the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The options of the resolving machine.
    pub machine: rdmux_acm::Options,
    /// The target of the log (`log_file`); by default a file in the service's directory.
    pub log_file: Option<LogFile>,
    /// The log level (`log_level`): 0 is errors, 1 configuration, 2 and above operation.
    pub log_level: u8,
    /// The debug level of libibumad (`umad_debug_level`), 0 to 2.
    pub umad_debug_level: u8,
    /// The lock file (`lock_file`); by default in the service's directory.
    pub lock_file: Option<PathBuf>,
    /// The way in which clients connect (`server_mode`).
    pub server_mode: ServerMode,
    /// The port in TCP modes (`server_port`).
    pub server_port: u16,
    /// The users that may connect to the Unix socket (`socket_access`).
    pub socket_access: SocketAccess,
    /// The maximum number of connected clients (`max_clients`).
    pub max_clients: usize,
    /// Whether the service is hidden from connection managers (`acme_plus_kernel_only`).
    pub acme_plus_kernel_only: bool,
    /// Whether paths are loaded from OpenSM's dump (`route_preload opensm_full_v1`).
    pub preloads_routes: bool,
    /// The dump (`route_data_file`); by default `ibacm_route.data` beside the options file.
    pub route_data_file: Option<PathBuf>,
    /// Whether addresses are loaded from a hosts file (`addr_preload acm_hosts`).
    pub preloads_addresses: bool,
    /// The hosts file (`addr_data_file`); by default `ibacm_hosts.data` beside the options file.
    pub addr_data_file: Option<PathBuf>,
    /// Whether IP addresses in the address file are used (`support_ips_in_addr_cfg`).
    pub support_ips_in_addr_cfg: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            machine: rdmux_acm::Options::default(),
            log_file: None,
            log_level: 0,
            umad_debug_level: 0,
            lock_file: None,
            server_mode: ServerMode::Unix,
            server_port: 6125,
            socket_access: SocketAccess::Owner,
            max_clients: 1023,
            acme_plus_kernel_only: false,
            preloads_routes: false,
            route_data_file: None,
            preloads_addresses: false,
            addr_data_file: None,
            support_ips_in_addr_cfg: false,
        }
    }
}

/// The target of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogFile {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// A file.
    File(PathBuf),
}

/// The way in which clients connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ServerMode {
    /// Clients connect over a Unix socket.
    #[default]
    Unix,
    /// Clients of this host connect over TCP.
    Loop,
    /// Clients connect over TCP from anywhere, without any check.
    Open,
}

/// The users that may connect to the Unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SocketAccess {
    /// The user that runs the service, and root: mode 0600.
    #[default]
    Owner,
    /// Every user may connect, as with ibacm: mode 0666.
    All,
}

/// Parses an options file. `name` is its name in problems. Options that the file does not set, or sets to invalid values,
/// keep their defaults.
pub fn parse(name: &str, input: impl BufRead) -> (Options, Report) {
    let (options, _, report) = parse_onto(Options::default(), name, input);
    (options, report)
}

/// Parses an options file again: options that the file sets only to invalid values keep their values of `before`.
pub fn parse_anew(name: &str, text: &[u8], before: &Options) -> (Options, Report) {
    let (mut base, mut stays) = (Options::default(), Reporter::new(name));
    let (_, lines, _) = parse_onto(Options::default(), name, text);
    let is_set =
        |row: &Row| OPTIONS.iter().zip(&lines).any(|(r, l)| r.name == row.name && l.set != 0);
    let wrong = OPTIONS.iter().zip(&lines).filter(|(_, lines)| lines.wrong != 0);
    for (row, lines) in wrong.filter(|(row, _)| !is_set(row) && !twin(row).is_some_and(is_set)) {
        if restore(row, before, &mut base) {
            stays.warning(lines.wrong, format!("{} stays as it was", row.name));
        }
    }
    let (options, _, mut report) = parse_onto(base, name, text);
    report.append(stays.finish());
    (options, report)
}

fn parse_onto(
    mut options: Options,
    name: &str,
    input: impl BufRead,
) -> (Options, Vec<Lines>, Report) {
    let mut problems = Reporter::new(name);
    let mut lines = vec![Lines::default(); OPTIONS.len()];
    each_line(input, &mut problems, |line, problems| {
        if let Err(what) = set(line, &mut options, &mut lines, problems) {
            problems.error(line.number, what);
        }
    });
    (options, lines, problems.finish())
}

/// The last line that sets an option, and the last one with an invalid value for it; 0 is none.
#[derive(Clone, Copy, Default)]
struct Lines {
    set: u32,
    wrong: u32,
}

/// Returns the option that sets the same value in another unit.
fn twin(row: &Row) -> Option<&'static Row> {
    OPTIONS.iter().find(|other| row.twin == Some(other.name))
}

/// Sets an option to its value of `before`. Returns whether it had one.
fn restore(row: &Row, before: &Options, options: &mut Options) -> bool {
    let twin = twin(row).filter(|_| (row.get)(before).is_empty());
    let row = twin.unwrap_or(row);
    let values = (row.get)(before);
    let set = |value: &String| {
        let words: Vec<&str> = value.split_ascii_whitespace().collect();
        (row.set)(options, &words).is_ok()
    };
    !values.is_empty() && values.iter().all(set)
}

fn set(
    line: Line<'_>,
    options: &mut Options,
    lines: &mut [Lines],
    problems: &mut Reporter<'_>,
) -> Result<(), String> {
    let mut words = line.words();
    let name = words.next().unwrap_or_default();
    let Some(at) = OPTIONS.iter().position(|row| row.name.eq_ignore_ascii_case(name)) else {
        problems.warning(line.number, format!("unknown option {}; it is ignored", quoted(name)));
        return Ok(());
    };
    let row = &OPTIONS[at];
    let values: Vec<&str> = words.collect();
    if values.is_empty() {
        lines[at].wrong = line.number;
        return Err(format!("{} has no value", row.name));
    }
    if values.len() > row.words {
        let what = format!("{} and the rest of the line are ignored", quoted(values[row.words]));
        problems.warning(line.number, what);
    }
    let values = &values[..values.len().min(row.words)];
    let warning = (row.set)(options, values).map_err(|what| {
        lines[at].wrong = line.number;
        format!("{}: {what}", row.name)
    })?;
    if let Some(what) = warning {
        problems.warning(line.number, format!("{}: {what}", row.name));
    }
    let before = lines[at].set;
    if before != 0 && !row.repeats {
        let what = format!("{} is also in line {before}; the last one counts", row.name);
        problems.warning(line.number, what);
    }
    lines[at].set = line.number;
    Ok(())
}

/// Returns the text of an options file that ibacm can read, too: all options, each under a comment that explains it. Options
/// without a value are commented out.
pub fn write(options: &Options) -> String {
    let mut text = String::from(HEAD);
    for (ours, head) in [(false, ""), (true, OURS)] {
        text.push_str(head);
        OPTIONS
            .iter()
            .filter(|row| row.ours == ours)
            .for_each(|row| write_row(row, options, &mut text));
    }
    text
}

fn write_row(row: &Row, options: &Options, text: &mut String) {
    text.push('\n');
    row.about.lines().for_each(|line| {
        let _ = writeln!(text, "# {line}");
    });
    let values = (row.get)(options);
    if values.is_empty() {
        let _ = writeln!(text, "# {} {}", row.name, row.example);
    }
    for value in values {
        let _ = writeln!(text, "{} {value}", row.name);
    }
}

const HEAD: &str = "\
# Options of an ACM service: NAME VALUE in each line.
# A comment begins with # in the first column.
";

const OURS: &str = "
# The following options are those of rdmux's service. ibacm ignores them.
";

#[cfg(test)]
mod tests;
