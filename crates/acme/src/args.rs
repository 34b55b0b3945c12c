//! The command line that ib_acme has had since 2009, parsed like getopt(3).
//!
//! Options have one letter, and some an optional argument: it is attached (`-e2`), or is the next word unless that starts
//! with a dash (`-e 2`). As in rdma-core, words that are not options are ignored. `--json` and `--host` are new.

use std::ffi::OsString;
use std::path::PathBuf;

use lexopt::{Arg, Parser, ValueExt as _};

use crate::address::Format;
use crate::extra;

/// The argument of `-P`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Perf {
    /// The counters of the service, or of one endpoint, in one row.
    Row,
    /// The counters of the service, or of one endpoint, with one line per counter.
    Column,
    /// The counters of each endpoint.
    All,
    /// The counters of the endpoint with the address of `-s`.
    Source,
}

/// The parsed options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// `-e`: list endpoints.
    pub(crate) endpoints: bool,
    /// The number given to `-e` or `-P`, whichever comes last: the endpoint for both, from 1 on; 0 means all together.
    pub(crate) index: u8,
    /// `-f`
    pub(crate) format: Format,
    /// `-s`
    pub(crate) sources: Option<String>,
    /// `-d`
    pub(crate) destinations: Option<String>,
    /// `-v`
    pub(crate) verify: bool,
    /// `-c`
    pub(crate) cached: bool,
    /// `-P`
    pub(crate) perf: Option<Perf>,
    /// `-S`
    pub(crate) services: Option<String>,
    /// `-C`; 0 is 1.
    pub(crate) repetitions: u32,
    /// `-A`: the file's name, or none for the default.
    pub(crate) addresses: Option<Option<PathBuf>>,
    /// `-O`: the file's name, or none for the default.
    pub(crate) options: Option<Option<PathBuf>>,
    /// `-D`
    pub(crate) directory: Option<PathBuf>,
    /// `-V`
    pub(crate) verbose: bool,
    /// `--json`
    pub(crate) json: bool,
    /// `--host`
    pub(crate) host: Option<String>,
    /// The first word that is neither an option nor an argument. It is ignored if there is something to do.
    pub(crate) stray: Option<String>,
}

/// The result of parsing a command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Parsed {
    /// Run with these options.
    Run(Box<Options>),
    /// `--help`
    Help,
    /// `--version`
    Version,
    /// A usage error. The text gives the reason, unless the command line merely requests nothing.
    Usage(Option<String>),
}

/// Parses a command line, without the program's name.
pub(crate) fn parse(args: impl IntoIterator<Item = OsString>) -> Parsed {
    match options(Parser::from_args(args)) {
        Ok(Parsed::Run(options)) => match contradiction(&options) {
            Some(why) => Parsed::Usage(why),
            None => Parsed::Run(options),
        },
        Ok(other) => other,
        Err(error) => Parsed::Usage(Some(error.to_string())),
    }
}

fn options(mut parser: Parser) -> Result<Parsed, lexopt::Error> {
    let mut o = Options::default();
    while let Some(arg) = parser.next()? {
        match arg {
            Arg::Short('e') => {
                o.endpoints = true;
                if let Some(index) = optional(&mut parser)?.map(text).transpose()? {
                    o.index = endpoint(&index)?;
                }
            }
            Arg::Short('f') => o.format = text(parser.value()?)?.parse()?,
            Arg::Short('s') => o.sources = Some(text(parser.value()?)?),
            Arg::Short('d') => o.destinations = Some(text(parser.value()?)?),
            Arg::Short('v') => o.verify = true,
            Arg::Short('c') => o.cached = true,
            Arg::Short('A') => o.addresses = Some(optional(&mut parser)?.map(PathBuf::from)),
            Arg::Short('O') => o.options = Some(optional(&mut parser)?.map(PathBuf::from)),
            Arg::Short('D') => o.directory = Some(parser.value()?.into()),
            Arg::Short('P') => {
                let what = optional(&mut parser)?.map(text).transpose()?;
                o.perf = Some(what.as_deref().and_then(perf).unwrap_or(Perf::Row));
                if let Some(index) = what.filter(|what| perf(what).is_none()) {
                    o.index = endpoint(&index)?;
                }
            }
            Arg::Short('S') => o.services = Some(text(parser.value()?)?),
            Arg::Short('C') => o.repetitions = repetitions(&text(parser.value()?)?)?,
            Arg::Short('V') => o.verbose = true,
            Arg::Long("json") => o.json = true,
            Arg::Long("host") => o.host = Some(text(parser.value()?)?),
            Arg::Short('h') | Arg::Long("help") => return Ok(Parsed::Help),
            Arg::Long("version") => return Ok(Parsed::Version),
            Arg::Value(word) => o.stray = o.stray.or_else(|| word.into_string().ok()),
            _ => return Err(arg.unexpected()),
        }
    }
    Ok(Parsed::Run(Box::new(o)))
}

/// Takes an optional argument.
fn optional(parser: &mut Parser) -> Result<Option<OsString>, lexopt::Error> {
    if let Some(attached) = parser.optional_value() {
        return Ok(Some(attached));
    }
    let mut rest = parser.raw_args()?;
    let is_argument = |word: &std::ffi::OsStr| !word.as_encoded_bytes().starts_with(b"-");
    Ok(if rest.peek().is_some_and(is_argument) { rest.next() } else { None })
}

fn text(word: OsString) -> Result<String, lexopt::Error> {
    word.string()
}

/// Returns the leading digits of a word, which atoi(3) reads.
fn digits(text: &str) -> &str {
    text.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default()
}

/// Parses the number of an endpoint. A word without a number is 0, as in atoi(3).
fn endpoint(text: &str) -> Result<u8, lexopt::Error> {
    let digits = digits(text);
    if digits.is_empty() {
        return Ok(0);
    }
    digits.parse().map_err(|_| format!("{text} is not an endpoint's number: use 1 to 255").into())
}

/// Parses a number of repetitions. A word without a number is 0, as in atoi(3).
fn repetitions(text: &str) -> Result<u32, lexopt::Error> {
    let digits = digits(text);
    if digits.is_empty() && !text.starts_with('-') {
        return Ok(0);
    }
    digits.parse().map_err(|_| format!("{text}: -C takes the numbers 1 to {}", u32::MAX).into())
}

/// Parses the words of `-P` by their first letters, as in rdma-core; everything else is a number.
fn perf(text: &str) -> Option<Perf> {
    let starts = |word: &str| text.get(..3).is_some_and(|start| start.eq_ignore_ascii_case(word));
    match text {
        "s" => Some(Perf::Source),
        _ if starts("col") => Some(Perf::Column),
        _ if starts("all") => Some(Perf::All),
        _ => None,
    }
}

/// Detects options that make no sense together, with a reason for some of them.
#[expect(clippy::option_option, reason = "a usage error with or without a reason")]
fn contradiction(o: &Options) -> Option<Option<String>> {
    let by_source = o.perf == Some(Perf::Source);
    let generate = o.addresses.is_some() || o.options.is_some();
    let query = o.destinations.is_some() || o.perf.is_some() || o.endpoints;
    match &o.sources {
        Some(_) if o.destinations.is_none() && !by_source => {
            Some(Some("-s needs a destination (-d)".to_owned()))
        }
        None if by_source => Some(Some("-P s needs a source (-s)".to_owned())),
        _ if !query && !generate => Some(o.stray.as_deref().map(not_a_command)),
        _ => None,
    }
}

fn not_a_command(word: &str) -> String {
    if extra::is_word(word) {
        return format!("{word} is a command, and comes first: ib_acme {word}");
    }
    format!("\"{word}\" is not a command (watch, flush, top); for a destination use -d {word}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(line: &str) -> Options {
        match parse(line.split(' ').map(OsString::from)) {
            Parsed::Run(options) => *options,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn optional_option_arguments_may_be_attached_or_separate() {
        for (line, endpoints, index, perf) in [
            ("-e", true, 0, None),
            ("-e2", true, 2, None),
            ("-e 2", true, 2, None),
            ("-e x", true, 0, None),
            ("-e -P", true, 0, Some(Perf::Row)),
            ("-P 3x", false, 3, Some(Perf::Row)),
            ("-P 0", false, 0, Some(Perf::Row)),
            ("-P x", false, 0, Some(Perf::Row)),
            ("-Pcol -e", true, 0, Some(Perf::Column)),
            ("-P Column", false, 0, Some(Perf::Column)),
            ("-P all", false, 0, Some(Perf::All)),
            ("-P s -s a", false, 0, Some(Perf::Source)),
            ("-e 1 more", true, 1, None),
            ("-P 2 -e", true, 2, Some(Perf::Row)),
            ("-P 2 -e 1", true, 1, Some(Perf::Row)),
            ("-e 2 -P 0", true, 0, Some(Perf::Row)),
            ("-e 2 -P col", true, 2, Some(Perf::Column)),
        ] {
            let options = run(line);
            let found = (options.endpoints, options.index, options.perf);
            assert_eq!(found, (endpoints, index, perf), "{line}");
        }
    }

    #[test]
    fn repetitions_are_the_number_that_the_word_begins_with() {
        for (word, repetitions) in [("3", 3), ("3x", 3), ("x", 0), ("0", 0)] {
            assert_eq!(run(&format!("-d a -C {word}")).repetitions, repetitions, "{word}");
        }
    }

    #[test]
    fn generated_file_names_are_optional_arguments() {
        let both = run("-A -O");
        assert_eq!((both.addresses, both.options), (Some(None), Some(None)));
        let named = run("-A a.cfg -Oo.cfg -D /x -V");
        assert_eq!(named.addresses, Some(Some("a.cfg".into())));
        assert_eq!(named.options, Some(Some("o.cfg".into())));
        assert_eq!((named.directory, named.verbose), (Some("/x".into()), true));
    }

    #[test]
    fn letters_share_a_dash_and_arguments_may_start_with_one() {
        let options = run("-vcd -f -fn -C 3");
        assert_eq!(options.destinations.as_deref(), Some("-f"));
        assert_eq!((options.verify, options.cached, options.repetitions), (true, true, 3));
        assert_eq!(options.format, Format::Name);
    }

    #[test]
    fn invalid_arguments_are_usage_errors() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        for line in [
            "junk",
            "-v",
            "-c",
            "-s a",
            "-P s",
            "-P so -s a",
            "-f x -d a",
            "-z",
            "-d",
            "-e -1",
            "-e 256",
            "-C -1 -d a",
            "-C 4294967296 -d a",
            "-V",
        ] {
            assert!(matches!(parse(words(line)), Parsed::Usage(_)), "{line}");
        }
        assert_eq!(parse([]), Parsed::Usage(None));
        for word in ["wtach", "b"] {
            let said = parse(words(word));
            let names =
                |why: &str| why.contains(word) && why.contains("-d") && why.contains("watch");
            assert!(matches!(&said, Parsed::Usage(Some(why)) if names(why)), "{said:?}");
        }
        let why = "top is a command, and comes first: ib_acme top".to_owned();
        assert_eq!(parse(words("-v top")), Parsed::Usage(Some(why)));
        assert_eq!(parse(words("-e --help")), Parsed::Help);
    }
}
