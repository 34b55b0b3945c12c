//! The outcome of a chore: counts, names of failures, and reasons for skipped checks.

use std::process::ExitCode;
use std::time::Instant;

/// The outcome of a chore. Every check is counted once, as passed, failed or skipped.
pub(crate) struct Report {
    passed: u64,
    failed: u64,
    skipped: u64,
    failures: Vec<String>,
    skips: Vec<String>,
    /// Whether a required check was skipped.
    incomplete: bool,
    strict: bool,
    /// The present activity and its start.
    current: Option<(String, Instant)>,
    /// Completed activities and their duration in seconds.
    took: Vec<(String, f64)>,
}

impl Report {
    /// Creates an empty report. Under `CI=true` a check that cannot run is a failure unless it is optional.
    pub(crate) fn new() -> Self {
        let strict = std::env::var("CI").is_ok_and(|v| v == "true" || v == "1");
        Self {
            passed: 0,
            failed: 0,
            skipped: 0,
            failures: Vec::new(),
            skips: Vec::new(),
            incomplete: false,
            strict,
            current: None,
            took: Vec::new(),
        }
    }

    /// Prints the next activity.
    pub(crate) fn heading(&mut self, name: &str) {
        self.end();
        println!("\n== {name}");
        self.current = Some((name.to_owned(), Instant::now()));
    }

    /// Records the duration of the last activity.
    fn end(&mut self) {
        if let Some((name, start)) = self.current.take() {
            self.took.push((name, start.elapsed().as_secs_f64()));
        }
    }

    /// Returns the number of failed checks.
    #[cfg(test)]
    pub(crate) fn failed(&self) -> u64 {
        self.failed
    }

    /// Returns whether a required check was skipped.
    #[cfg(test)]
    pub(crate) fn is_incomplete(&self) -> bool {
        self.incomplete
    }

    /// Adds checks that a program counted itself.
    pub(crate) fn add(&mut self, passed: u64, failed: u64, skipped: u64) {
        self.passed += passed;
        self.failed += failed;
        self.skipped += skipped;
    }

    /// Counts one check that passed.
    pub(crate) fn pass(&mut self) {
        self.passed += 1;
    }

    /// Counts one check that failed.
    pub(crate) fn fail(&mut self, name: &str, why: &str) {
        self.failed += 1;
        self.note_failure(name, why);
    }

    /// Names a failure that is already counted.
    pub(crate) fn note_failure(&mut self, name: &str, why: &str) {
        println!("FAILED {name}: {why}");
        self.failures.push(format!("{name}: {why}"));
    }

    /// Counts one check by its result.
    pub(crate) fn check(&mut self, name: &str, result: anyhow::Result<()>) {
        match result {
            Ok(()) => self.pass(),
            Err(e) => self.fail(name, &format!("{e:#}")),
        }
    }

    /// Counts a check that could not run here. It makes a strict run fail.
    pub(crate) fn skip(&mut self, name: &str, why: &str) {
        self.incomplete = true;
        self.skip_optional(name, why);
    }

    /// Counts an optional check that could not run here.
    pub(crate) fn skip_optional(&mut self, name: &str, why: &str) {
        println!("SKIPPED {name}: {why}");
        self.skipped += 1;
        self.skips.push(format!("{name}: {why}"));
    }

    /// Prints all durations, failures and skipped checks, and the closing line.
    pub(crate) fn close(mut self) -> ExitCode {
        self.end();
        println!();
        for (name, seconds) in &self.took {
            println!("{seconds:>7.1} s  {name}");
        }
        for s in &self.skips {
            println!("not run here: {s}");
        }
        for f in &self.failures {
            println!("failed: {f}");
        }
        let incomplete = self.strict && self.incomplete;
        if incomplete {
            println!("CI=true: what is not run counts as a failure of this run");
        }
        println!("rdmux: {} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped);
        if self.failed > 0 || incomplete { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }
}
