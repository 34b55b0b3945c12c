//! Command-line words as addresses.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, ToSocketAddrs as _};
use std::str::FromStr;

use rdmux_wire::acm::{Address, Name};
use rdmux_wire::sa::PathRecord;
use rdmux_wire::{Gid, Lid};

/// How words are interpreted: the letter of `-f`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Format {
    /// `u`: by their form.
    #[default]
    Unspecified,
    /// `i`
    Ip,
    /// `n`
    Name,
    /// `l`
    Lid,
    /// `g`
    Gid,
}

impl FromStr for Format {
    type Err = String;

    /// Parses a format by its first letter only.
    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text.chars().next() {
            Some('u') => Self::Unspecified,
            Some('i') => Self::Ip,
            Some('n') => Self::Name,
            Some('l') => Self::Lid,
            Some('g') => Self::Gid,
            _ => return Err(format!("\"{text}\" is not an address format: use i, n, l, g or u")),
        })
    }
}

/// A query for the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// A path between two names.
    Name(Option<Address>, Address),
    /// A path between two IP addresses.
    Ip(Option<Address>, Address),
    /// The path that matches this record.
    Path(Box<PathRecord>),
}

impl Question {
    /// Returns the name of the library's call, as in messages.
    pub(crate) const fn call(&self) -> &'static str {
        match self {
            Self::Name(..) => "ib_acm_resolve_name",
            Self::Ip(..) => "ib_acm_resolve_ip",
            Self::Path(_) => "ib_acm_resolve_path",
        }
    }
}

/// A word as an address, and how it is displayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Destination {
    /// The word, or its IP address.
    pub(crate) shown: String,
    /// How it is interpreted.
    pub(crate) format: Format,
}

impl Destination {
    /// Interprets a word. With an unspecified format, a number is a LID; an IP address, or a word that the operating
    /// system resolves to one, is an IP address; everything else is a name.
    pub(crate) fn new(word: &str, format: Format) -> Self {
        let (shown, format) = match format {
            Format::Unspecified => guess(word),
            _ => (word.to_owned(), format),
        };
        Self { shown, format }
    }

    /// Returns the query for the path from a source to this destination.
    ///
    /// # Errors
    /// A line that names the word which is not an address of the format.
    pub(crate) fn question(&self, source: Option<&str>, guessed: bool) -> Result<Question, String> {
        match self.format {
            Format::Ip => self.ip_question(source, guessed),
            Format::Gid | Format::Lid => Ok(Question::Path(Box::new(self.record(source)?))),
            Format::Name | Format::Unspecified => {
                let source = source.map(|s| name(s, "source")).transpose()?;
                Ok(Question::Name(source, name(&self.shown, "destination")?))
            }
        }
    }

    fn ip_question(&self, source: Option<&str>, guessed: bool) -> Result<Question, String> {
        // ib_acme of rdma-core checks the source first.
        let source = source.map(|word| ip_source(word, guessed)).transpose()?;
        let ip = self.shown.parse::<IpAddr>();
        let dest = ip.map_err(|_| refused("destination", &self.shown))?;
        if source.is_some_and(|source| source.is_ipv4() != dest.is_ipv4()) {
            return Err("source and destination address families don't match".to_owned());
        }
        Ok(Question::Ip(source.map(Address::from), dest.into()))
    }

    fn record(&self, source: Option<&str>) -> Result<PathRecord, String> {
        let mut record = PathRecord { reversible: true, numb_path: 1, ..PathRecord::default() };
        if self.format == Format::Gid {
            if let Some(word) = source {
                record.sgid = gid(word).ok_or_else(|| refused("source", word))?;
            }
            record.dgid = gid(&self.shown).ok_or_else(|| refused("dest", &self.shown))?;
        } else {
            if let Some(word) = source {
                record.slid = lid(word).ok_or_else(|| no_lid("source", word))?;
            }
            record.dlid = lid(&self.shown).ok_or_else(|| no_lid("destination", &self.shown))?;
        }
        Ok(record)
    }
}

/// Parses the address of a source alone, for `-P s`.
///
/// # Errors
/// A line with the kind of address that the word is not.
pub(crate) fn source(word: &str, format: Format) -> Result<Address, String> {
    let Destination { shown, format } = Destination::new(word, format);
    match format {
        Format::Ip => shown
            .parse::<IpAddr>()
            .map(Address::from)
            .map_err(|_| format!("inet_pton error on src address ({shown}): 0x0")),
        Format::Gid => gid(&shown).map(Address::Gid).ok_or_else(|| refused("source", &shown)),
        Format::Lid => lid(&shown).map(Address::Lid).ok_or_else(|| no_lid("source", &shown)),
        Format::Name | Format::Unspecified => name(&shown, "source"),
    }
}

fn guess(word: &str) -> (String, Format) {
    // A number that is too large for a LID is an error here: the resolver would read it as an IPv4 address.
    if lid(word).is_some() || word.bytes().all(|b| b.is_ascii_digit()) {
        return (word.to_owned(), Format::Lid);
    }
    let ip = word.parse().ok().or_else(|| lookup(word).next());
    ip.map_or_else(|| (word.to_owned(), Format::Name), |ip: IpAddr| (ip.to_string(), Format::Ip))
}

/// Returns the addresses of a name in the operating system.
fn lookup(word: &str) -> impl Iterator<Item = IpAddr> {
    (word, 0).to_socket_addrs().into_iter().flatten().map(|address| address.ip())
}

/// Parses the source for a destination that is an IP address. With an unspecified format it may be a name that the
/// operating system resolves.
fn ip_source(word: &str, guessed: bool) -> Result<IpAddr, String> {
    let parsed = word.parse().ok();
    parsed
        .or_else(|| lookup(word).next().filter(|_| guessed))
        .ok_or_else(|| refused("source", word))
}

fn name(word: &str, which: &str) -> Result<Address, String> {
    let name = Name::new(word).map(Address::Name);
    name.ok_or_else(|| format!("{which} ({word}) is not a name: it needs 1 to {} bytes", Name::MAX))
}

fn gid(word: &str) -> Option<Gid> {
    word.parse::<Ipv6Addr>().ok().map(|ip| Gid(ip.octets()))
}

/// Parses a LID in decimal, or in hexadecimal after 0x; not 0.
fn lid(word: &str) -> Option<Lid> {
    let digits = |text: &str, radix| {
        let plain = text.bytes().all(|b| b.is_ascii_hexdigit());
        u16::from_str_radix(text, radix).ok().filter(|_| plain)
    };
    let number = match word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")) {
        Some(hex) => digits(hex, 16),
        None => digits(word, 10),
    };
    number.filter(|&number| number != 0).map(Lid)
}

fn refused(which: &str, word: &str) -> String {
    format!("inet_pton error on {which} address ({word}): 0x0")
}

fn no_lid(which: &str, word: &str) -> String {
    format!("{which} ({word}) is not a LID: a number from 1 to 65535, or 0x1 to 0xffff")
}

/// A GID formatted like inet_ntop(3) of the C library.
pub(crate) struct Text(pub(crate) Gid);

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ip = Ipv6Addr::from(self.0.0);
        match ip.segments() {
            // IPv4-compatible: the C library still writes it with dots.
            [0, 0, 0, 0, 0, 0, high, _] if high != 0 => match ip.to_ipv4() {
                Some(ip) => write!(f, "::{ip}"),
                None => ip.fmt(f),
            },
            _ => ip.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(word: &str, format: Format, source: Option<&str>) -> Result<Question, String> {
        Destination::new(word, format).question(source, format == Format::Unspecified)
    }

    #[test]
    fn words_of_unspecified_format_are_lids_addresses_or_names() {
        for (word, shown, format) in [
            ("17", "17", Format::Lid),
            ("0x1F", "0x1F", Format::Lid),
            ("10.0.0.2", "10.0.0.2", Format::Ip),
            ("fe80::0:1", "fe80::1", Format::Ip),
            ("no such name", "no such name", Format::Name),
        ] {
            let expected = Destination { shown: shown.into(), format };
            assert_eq!(Destination::new(word, Format::Unspecified), expected);
        }
    }

    #[test]
    fn name_that_the_system_does_not_know_is_asked_by_name() {
        let asked = question("no such name", Format::Unspecified, None).unwrap();
        assert_eq!(asked, Question::Name(None, Address::name("no such name").unwrap()));
    }

    #[test]
    fn words_that_are_not_of_the_format_are_named() {
        let error = |word, format, source| question(word, format, source).unwrap_err();
        let ip = "inet_pton error on destination address (foo): 0x0";
        assert_eq!(error("foo", Format::Ip, None), ip);
        let source = "inet_pton error on source address (s): 0x0";
        assert_eq!(error("foo", Format::Ip, Some("s")), source);
        assert_eq!(error("::1", Format::Gid, Some("s")), source);
        assert_eq!(error("zz", Format::Gid, None), "inet_pton error on dest address (zz): 0x0");
        let families = "source and destination address families don't match";
        assert_eq!(error("10.0.0.2", Format::Unspecified, Some("::1")), families);
        assert!(error("zz", Format::Lid, None).contains("(zz) is not a LID"));
        assert!(error("70000", Format::Lid, None).contains("(70000) is not a LID"));
        assert!(error("1", Format::Lid, Some("+2")).contains("(+2) is not a LID"));
        assert!(error("", Format::Name, None).contains("is not a name"));
    }

    #[test]
    fn lids_and_gids_go_into_a_reversible_record() {
        let Question::Path(record) = question("0x11", Format::Lid, Some("3")).unwrap() else {
            panic!("no record")
        };
        assert_eq!((record.dlid, record.slid), (Lid(17), Lid(3)));
        assert!(record.reversible && record.numb_path == 1);
        let Question::Path(record) = question("fe80::5", Format::Gid, Some("fe80::6")).unwrap()
        else {
            panic!("no record")
        };
        assert_eq!((record.dgid.0[15], record.sgid.0[15]), (5, 6));
    }

    #[test]
    fn gids_are_written_as_the_c_library_does() {
        let text = |ip: &str| Text(Gid(ip.parse::<Ipv6Addr>().unwrap().octets())).to_string();
        for (ip, expected) in [
            ("fe80::2", "fe80::2"),
            ("::ffff:10.0.0.1", "::ffff:10.0.0.1"),
            ("::1.2.3.4", "::1.2.3.4"),
            ("::1", "::1"),
            ("::", "::"),
            ("fe80:0:0:1:2:0:3:4", "fe80::1:2:0:3:4"),
        ] {
            assert_eq!(text(ip), expected);
        }
    }

    #[test]
    fn number_that_is_no_lid_is_refused_and_not_an_ip_address() {
        for word in ["65536", "99999999"] {
            assert!(question(word, Format::Unspecified, None).unwrap_err().contains(word));
        }
        assert_eq!(Destination::new("99999999", Format::Ip).format, Format::Ip);
    }
}
