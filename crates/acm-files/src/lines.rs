//! Lines of words, common to all these files: bounded, numbered, without comments.

use std::io::{BufRead, Read};

use crate::problem::Reporter;

/// The maximum length of a line, in bytes.
const MAX_LINE: usize = 1024;

/// The maximum length of a line that ibacm reads in one piece, in bytes.
const IBACM_LINE: usize = 119;

/// A line with at least one word.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line<'a> {
    /// The number, from 1 on.
    pub(crate) number: u32,
    /// The text.
    pub(crate) text: &'a str,
}

impl<'a> Line<'a> {
    pub(crate) fn words(&self) -> impl Iterator<Item = &'a str> {
        self.text.split_ascii_whitespace()
    }

    /// Returns the first `N` words, if the line has that many, and the next one.
    pub(crate) fn fields<const N: usize>(&self) -> Option<([&'a str; N], Option<&'a str>)> {
        let mut words = self.words();
        let mut fields = [""; N];
        for field in &mut fields {
            *field = words.next()?;
        }
        Some((fields, words.next()))
    }
}

/// Calls `each` for every line that has words and is not a comment. Unreadable lines are reported.
pub(crate) fn each_line(
    input: impl BufRead,
    problems: &mut Reporter<'_>,
    mut each: impl FnMut(Line<'_>, &mut Reporter<'_>),
) {
    each_raw_line(input, problems, |number, bytes, problems| {
        match checked(number, bytes, problems).map(str::from_utf8) {
            Some(Ok(text)) => each(Line { number, text }, problems),
            Some(Err(_)) => problems.error(number, "the line is not UTF-8"),
            None => {}
        }
    });
}

/// Calls `each` for every line, with its number and at least the beginning of its bytes.
pub(crate) fn each_raw_line(
    mut input: impl BufRead,
    problems: &mut Reporter<'_>,
    mut each: impl FnMut(u32, &[u8], &mut Reporter<'_>),
) {
    let mut bytes = Vec::new();
    for number in 1..=u32::MAX {
        bytes.clear();
        match next_line(&mut input, &mut bytes) {
            Ok(0) => return,
            Ok(_) => each(number, &bytes, problems),
            Err(e) => {
                return problems
                    .error(number, format!("cannot read the file from this line on: {e}"));
            }
        }
    }
}

/// Reads a line, and keeps at most one byte more than a line may have.
fn next_line(input: &mut impl BufRead, bytes: &mut Vec<u8>) -> std::io::Result<usize> {
    let read = input.take(MAX_LINE as u64 + 1).read_until(b'\n', bytes)?;
    if read > MAX_LINE && bytes.last() != Some(&b'\n') {
        input.skip_until(b'\n')?;
    }
    Ok(read)
}

/// Returns the line without blanks at its end, unless it has no words, is a comment or is too long. Long lines and comments that
/// ibacm does not recognize are reported.
pub(crate) fn checked<'a>(
    number: u32,
    bytes: &'a [u8],
    problems: &mut Reporter<'_>,
) -> Option<&'a [u8]> {
    let bytes = bytes.trim_ascii_end();
    if bytes.is_empty() || bytes.starts_with(b"#") {
        return None;
    }
    if bytes.len() > MAX_LINE {
        problems.error(number, format!("the line is longer than {MAX_LINE} bytes"));
        return None;
    }
    if bytes.trim_ascii_start().starts_with(b"#") {
        problems.warning(
            number,
            "a comment; ibacm recognizes comments only with # in the first column",
        );
        return None;
    }
    if bytes.len() > IBACM_LINE {
        let what = format!("ibacm splits lines of more than {IBACM_LINE} bytes");
        problems.warning(number, what);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Report;

    fn read(bytes: &[u8]) -> (Vec<(u32, String)>, Report) {
        let (mut problems, mut lines) = (Reporter::new("f"), Vec::new());
        each_line(bytes, &mut problems, |line, _| lines.push((line.number, line.text.to_owned())));
        (lines, problems.finish())
    }

    #[test]
    fn comments_and_empty_lines_count_but_are_skipped() {
        let (lines, report) = read(b"# one\n\n  \r\na b\r\nc");
        assert_eq!(lines, [(4, "a b".to_owned()), (5, "c".to_owned())]);
        assert!(report.is_clean(), "{report}");
        let (lines, report) = read(b" # one\n");
        assert_eq!((lines.len(), report.warnings()), (0, 1));
    }

    #[test]
    fn long_lines_are_cut_off_and_the_next_one_is_whole() {
        let long = [&[b'x'; 120][..], b"\n", &[b'y'; 5000], b"\nz\n"].concat();
        let (lines, report) = read(&long);
        assert_eq!(lines.iter().map(|(n, _)| *n).collect::<Vec<_>>(), [1, 3]);
        assert_eq!((report.errors(), report.warnings()), (1, 1), "{report}");
        let exact = [&[b'y'; MAX_LINE][..], b"\nz"].concat();
        assert_eq!(read(&exact).0.len(), 2);
    }

    #[test]
    fn bytes_that_are_no_text_are_reported() {
        let (lines, report) = read(b"a\xff\nb\n");
        assert_eq!(lines, [(2, "b".to_owned())]);
        assert_eq!(report.to_string(), "f:1: error: the line is not UTF-8\n");
    }

    #[test]
    fn input_that_fails_is_reported_where_it_does() {
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
                Err(std::io::Error::other("the disk is gone"))
            }
        }
        let input = std::io::BufReader::new((&b"a\n"[..]).chain(Broken));
        let (mut problems, mut lines) = (Reporter::new("f"), 0);
        each_line(input, &mut problems, |_, _| lines += 1);
        assert_eq!(lines, 1);
        let report = problems.finish().to_string();
        assert_eq!(
            report,
            "f:2: error: cannot read the file from this line on: the disk is gone\n"
        );
    }
}
