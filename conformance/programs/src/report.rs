//! The results of the rows: a line for each, a total, and JUnit XML.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use crate::proof::Uncalibrated;
use crate::row::{Outcome, Row, Trouble};

/// How often a row is run if its programs could not calibrate their clock.
const CALIBRATIONS: u32 = 10;

/// The results so far.
pub(crate) struct Report {
    junit: PathBuf,
    start: Instant,
    /// Whether the first try counts.
    strict: bool,
    /// The time within which rows may start.
    within: Option<Duration>,
    /// The number of rows that were retried.
    again: usize,
    /// How often a row was repeated because perftest's clock was not calibrated, which is no fault of the tested stack.
    uncalibrated: usize,
    cases: Vec<Case>,
}

/// A row in one of its ways, with its outcome.
struct Case {
    way: String,
    title: String,
    took: Duration,
    outcome: Outcome,
}

impl Report {
    /// Creates an empty report, to be written to this file at the end.
    pub(crate) fn new(junit: &Path, strict: bool, within: Option<Duration>) -> Self {
        let (junit, start) = (junit.to_path_buf(), Instant::now());
        Self { junit, start, strict, within, again: 0, uncalibrated: 0, cases: Vec::new() }
    }

    /// Runs a row until its programs have calibrated their clock.
    fn run(&mut self, row: &Row, run: &mut impl FnMut() -> Outcome) -> Outcome {
        for _ in 1..CALIBRATIONS {
            match run() {
                Err(Trouble::Failed(e)) if e.is::<Uncalibrated>() => {
                    println!("clock | {row} | {}", one_line(&format!("{e:#}")));
                    self.uncalibrated += 1;
                }
                outcome => return outcome,
            }
        }
        run()
    }

    /// Runs a row, a second time if it fails, and prints its line. A row that starts too late fails.
    pub(crate) fn take(&mut self, row: &Row, mut run: impl FnMut() -> Outcome) {
        let start = Instant::now();
        let is_late = self.within.is_some_and(|within| self.start.elapsed() > within);
        let mut outcome = if is_late {
            Err(Trouble::Failed(anyhow!("not run: the previous rows took too long")))
        } else {
            self.run(row, &mut run)
        };
        if let Err(Trouble::Failed(e)) = &outcome
            && !self.strict
            && !is_late
        {
            println!("again | {row} | {}", one_line(&format!("{e:#}")));
            self.again += 1;
            outcome = self.run(row, &mut run);
        }
        let took = start.elapsed();
        let s = took.as_secs_f32();
        match &outcome {
            Ok(()) => println!("pass | {row} | {s:.1} s"),
            Err(Trouble::NotHere(why)) => println!("skip | {row} | {} | {s:.1} s", one_line(why)),
            Err(Trouble::Failed(e)) => {
                println!("FAIL | {row} | {} | {s:.1} s", one_line(&format!("{e:#}")));
            }
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
        let Self { again, uncalibrated, .. } = self;
        println!(
            "     # {passed} passed, {failed} failed, {skipped} skipped, {again} tried twice, \
             {uncalibrated} repeated for perftest's clock calibration, in {s} s"
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

/// Escapes text for an attribute's value. Characters that XML does not allow become question marks.
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
    use std::path::Path;

    use super::{CALIBRATIONS, Report, escape};
    use crate::exchange::Exchange;
    use crate::proof::Uncalibrated;
    use crate::row::{Row, Trouble, Way};

    fn row() -> Row {
        Row::each(&[Way::Ring], &Exchange::new("ib_send_lat")).remove(0)
    }

    #[test]
    fn a_clock_that_was_not_calibrated_is_no_second_try() {
        let mut report = Report::new(Path::new("junit.xml"), true, None);
        let mut runs = 0;
        report.take(&row(), || {
            runs += 1;
            let failure = anyhow::anyhow!("not sensible numbers").context(Uncalibrated);
            if runs < 3 { Err(Trouble::Failed(failure)) } else { Ok(()) }
        });
        assert_eq!((runs, report.counts(), report.again), (3, [1, 0, 0], 0));
        assert_eq!(report.uncalibrated, 2);
    }

    #[test]
    fn a_clock_that_never_is_calibrated_is_a_failure() {
        let mut report = Report::new(Path::new("junit.xml"), true, None);
        let mut runs = 0;
        report.take(&row(), || {
            runs += 1;
            Err(Trouble::Failed(anyhow::anyhow!("not sensible numbers").context(Uncalibrated)))
        });
        assert_eq!((runs, report.counts()), (CALIBRATIONS, [0, 0, 1]));
    }

    #[test]
    fn a_strict_report_takes_the_first_failure() {
        let mut report = Report::new(Path::new("junit.xml"), true, None);
        let mut runs = 0;
        report.take(&row(), || {
            runs += 1;
            Err(Trouble::Failed(anyhow::anyhow!("status 1")))
        });
        assert_eq!((runs, report.counts()), (1, [0, 0, 1]));
    }

    #[test]
    fn attributes_are_escaped() {
        assert_eq!(escape("a <b> & \"c\"\x1b"), "a &lt;b&gt; &amp; &quot;c&quot;?");
    }
}
