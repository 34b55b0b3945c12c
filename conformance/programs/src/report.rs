//! What the rows add up to: a line for each, a total, and JUnit XML.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::row::{Outcome, Row, Trouble};

/// The rows that have been run.
pub(crate) struct Report {
    junit: PathBuf,
    start: Instant,
    /// Whether the first try counts.
    strict: bool,
    /// How many rows were given a second one.
    again: usize,
    cases: Vec<Case>,
}

struct Case {
    way: String,
    title: String,
    took: Duration,
    outcome: Outcome,
}

impl Report {
    /// An empty one, to be written to this file in the end.
    pub(crate) fn new(junit: &Path, strict: bool) -> Self {
        let (junit, start) = (junit.to_path_buf(), Instant::now());
        Self { junit, start, strict, again: 0, cases: Vec::new() }
    }

    /// Runs a row, a second time if it fails, and prints its line.
    pub(crate) fn take(&mut self, row: &Row, mut run: impl FnMut() -> Outcome) {
        let start = Instant::now();
        let mut outcome = run();
        if let Err(Trouble::Failed(e)) = &outcome
            && !self.strict
        {
            println!("again | {row} | {}", one_line(&format!("{e:#}")));
            self.again += 1;
            outcome = run();
        }
        let took = start.elapsed();
        match &outcome {
            Ok(()) => println!("pass | {row}"),
            Err(Trouble::NotHere(why)) => println!("skip | {row} | {}", one_line(why)),
            Err(Trouble::Failed(e)) => println!("FAIL | {row} | {}", one_line(&format!("{e:#}"))),
        }
        let name = row.to_string();
        let (way, title) = name.split_once(" | ").unwrap_or(("", &name));
        let (way, title) = (way.trim().to_owned(), title.to_owned());
        self.cases.push(Case { way, title, took, outcome });
    }

    /// Prints the total and writes the file.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn close(self) -> Result<ExitCode> {
        let [passed, skipped, failed] = self.counts();
        fs::write(&self.junit, self.xml()).with_context(|| self.junit.display().to_string())?;
        let s = self.start.elapsed().as_secs();
        let again = self.again;
        println!(
            "     # {passed} passed, {failed} failed, {skipped} skipped, {again} tried twice, in {s} s"
        );
        Ok(if failed == 0 && passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn counts(&self) -> [usize; 3] {
        let count =
            |which: fn(&Outcome) -> bool| self.cases.iter().filter(|c| which(&c.outcome)).count();
        [
            count(Result::is_ok),
            count(|o| matches!(o, Err(Trouble::NotHere(_)))),
            count(|o| matches!(o, Err(Trouble::Failed(_)))),
        ]
    }

    fn xml(&self) -> String {
        let [_, skipped, failed] = self.counts();
        let mut x = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
        let _ = writeln!(
            x,
            "<testsuite name=\"programs\" tests=\"{}\" failures=\"{failed}\" skipped=\"{skipped}\" \
             time=\"{:.3}\">",
            self.cases.len(),
            self.start.elapsed().as_secs_f32(),
        );
        for c in &self.cases {
            let (way, title, took) = (escape(&c.way), escape(&c.title), c.took.as_secs_f32());
            let _ = write!(
                x,
                "  <testcase classname=\"programs.{way}\" name=\"{title}\" time=\"{took:.3}\""
            );
            let _ = match &c.outcome {
                Ok(()) => writeln!(x, "/>"),
                Err(Trouble::NotHere(why)) => {
                    writeln!(x, "><skipped message=\"{}\"/></testcase>", escape(why))
                }
                Err(Trouble::Failed(e)) => {
                    let why = escape(&format!("{e:#}"));
                    writeln!(x, "><failure message=\"{why}\"/></testcase>")
                }
            };
        }
        x + "</testsuite>\n"
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace(" | ", " ")
}

/// Text as an attribute's value. What XML cannot say becomes a question mark.
fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' => escaped.push_str("&#10;"),
            c if c.is_control() => escaped.push('?'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::escape;

    #[test]
    fn attributes_are_escaped() {
        assert_eq!(escape("a <b> & \"c\"\x1b"), "a &lt;b&gt; &amp; &quot;c&quot;?");
    }
}
