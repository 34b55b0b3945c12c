//! rdma-core's own tests, in Python on pyverbs: each is a row, with its expected outcome.
//!
//! `pyverbs/expected.txt` has a line for each test of 44.0 that is not specific to one vendor's adapters, and `pyverbs/infiniband.txt`
//! the exceptions for InfiniBand. They run on the default host, because those of the connection manager use the address of the
//! interface that sysfs names.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::Value;

use crate::row::{Device, Outcome, Row, Run, Way};
use crate::stage::{Scene, Stage};

const TABLE: &str = include_str!("../pyverbs/expected.txt");
const OF_INFINIBAND: &str = include_str!("../pyverbs/infiniband.txt");
const RUNNER: &str = include_str!("../pyverbs/runner.py");

/// The folder of Debian's package, with some files compressed.
const TESTS: &str = "/usr/share/doc/rdma-core/tests";
const PACKAGE: &str = "python3-pyverbs";

/// The least number of tests that must pass.
const ENOUGH: usize = 130;

/// The requirement of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Expected {
    /// This test passes.
    Pass(&'static str),
    /// This test is skipped, for one of these [`reasons`].
    Skip(&'static str, &'static str),
    /// This test passes, or is skipped for one of these.
    May(&'static str, &'static str),
    /// This many tests pass.
    Enough(usize),
    /// Every test has a row.
    NoOther,
}

/// The outcome of each test, by name; or the reason why there is none.
pub(crate) type Results = Result<BTreeMap<String, Ended>, String>;

/// The outcome of a test.
#[derive(Debug)]
pub(crate) struct Ended {
    outcome: String,
    why: String,
}

/// Returns a row for each line of the table, and those about all of them.
pub(crate) fn rows() -> Vec<Row> {
    let row = |device, title: String, expected| Row {
        device,
        title: format!("pyverbs: {title}"),
        way: Way::Default,
        // All of them are one run.
        brief: true,
        run: Run::Pyverbs(expected),
    };
    let mut rows = Vec::new();
    for device in [Device::Roce, Device::Ib] {
        let of_all = [Expected::Enough(ENOUGH), Expected::NoOther];
        rows.extend(table(device).into_iter().chain(of_all).map(|e| row(device, e.title(), e)));
    }
    rows
}

/// Returns the expected outcome of each test on a device.
fn table(device: Device) -> Vec<Expected> {
    let mut table: Vec<Expected> = lines(TABLE).collect();
    for other in lines(OF_INFINIBAND).filter(|_| device == Device::Ib) {
        if let Some(e) = table.iter_mut().find(|e| e.test() == other.test()) {
            *e = other;
        }
    }
    table
}

fn lines(table: &'static str) -> impl Iterator<Item = Expected> {
    let lines = table.lines().filter(|l| !l.is_empty() && !l.starts_with('#'));
    lines.map(|l| {
        let (word, rest) = l.split_once(' ').unwrap_or(("pass", l));
        let (test, why) = rest.split_once(": ").unwrap_or((rest, ""));
        match word {
            "skip" => Expected::Skip(test, why),
            "may" => Expected::May(test, why),
            _ => Expected::Pass(test),
        }
    })
}

/// Returns the possible beginnings of a skipped test's message.
fn reasons(why: &str) -> impl Iterator<Item = &str> {
    why.split(" | ")
}

impl Expected {
    fn title(self) -> String {
        match self {
            Self::Pass(test) => test.to_owned(),
            Self::Skip(test, _) => format!("{test} is skipped"),
            Self::May(test, _) => format!("{test} passes or is skipped"),
            Self::Enough(n) => format!("at least {n} pass"),
            Self::NoOther => "every test has its row".to_owned(),
        }
    }

    fn test(self) -> Option<&'static str> {
        match self {
            Self::Pass(test) | Self::Skip(test, _) | Self::May(test, _) => Some(test),
            Self::Enough(_) | Self::NoOther => None,
        }
    }

    /// Compares the expectation with the results. The first row runs all tests at once. A row with an
    /// unexpected result makes them run again when it is retried.
    pub(crate) fn check(self, stage: &mut Stage, scene: &Scene) -> Outcome {
        let device = scene.device;
        let run = || (device, all(scene).map_err(|e| format!("{e:#}")));
        let (_, results) = stage.pyverbs.take_if(|(of, _)| *of == device).unwrap_or_else(run);
        let compared = match &results {
            Ok(results) => self.compare(results, device),
            Err(e) => Err(anyhow!("{e}")),
        };
        stage.pyverbs = compared.is_ok().then_some((device, results));
        Ok(compared?)
    }

    fn compare(self, results: &BTreeMap<String, Ended>, device: Device) -> Result<()> {
        let ended = |test: &str| results.get(test).context("the test has no result");
        match self {
            Self::Pass(test) => {
                let e = ended(test)?;
                ensure!(e.outcome == "pass", "{}: {}", e.outcome, last_line(&e.why));
            }
            Self::Skip(test, why) => {
                let e = ended(test)?;
                ensure!(e.outcome == "skip", "{}: {}", e.outcome, last_line(&e.why));
                let known = reasons(why).any(|reason| e.why.starts_with(reason));
                ensure!(known, "skipped for another reason: {}", e.why);
            }
            Self::May(test, why) => {
                let passed = Self::Pass(test).compare(results, device);
                passed
                    .or_else(|e| Self::Skip(test, why).compare(results, device).map_err(|_| e))?;
            }
            Self::Enough(wanted) => {
                let n = results.values().filter(|e| e.outcome == "pass").count();
                ensure!(n >= wanted, "only {n} tests pass");
            }
            Self::NoOther => {
                let known: Vec<&str> = table(device).into_iter().filter_map(Self::test).collect();
                let mut other = results.keys().filter(|t| !known.contains(&t.as_str()));
                if let Some(test) = other.next() {
                    bail!("{test} has no row");
                }
            }
        }
        Ok(())
    }
}

/// Returns the line of a Python traceback with the error.
fn last_line(why: &str) -> &str {
    why.lines().rev().find(|l| !l.trim().is_empty()).unwrap_or_default()
}

/// Runs all of them.
fn all(scene: &Scene) -> Result<BTreeMap<String, Ended>> {
    let folder = scene.scratch().join("tests");
    unpack(&folder).context("rdma-core's tests")?;
    let runner = scene.scratch().join("runner.py");
    fs::write(&runner, RUNNER)?;
    let line = format!(
        "/usr/bin/python3 {} {} --dev {{dev}} --port 1 --gid {{gid}}",
        runner.display(),
        folder.display()
    );
    let mut process = scene.start(&scene.server, "tests", (scene.device.option(), &[]), &line)?;
    // If a test ends the interpreter, the rows after it report that they have no result.
    process.finish(Duration::from_secs(1200))?;
    let results = read(&process.output());
    ensure!(!results.is_empty(), "no test was run: {}", last_line(&process.output()));
    Ok(results)
}

fn read(output: &str) -> BTreeMap<String, Ended> {
    let line = |l: &str| {
        let v: Value = serde_json::from_str(l).ok()?;
        let text = |key: &str| v[key].as_str().map(str::to_owned);
        Some((text("test")?, Ended { outcome: text("outcome")?, why: text("why")? }))
    };
    output.lines().filter_map(line).collect()
}

/// Copies the tests from the package's folder, or, if documentation is not installed, from
/// the package itself.
fn unpack(to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    let here = Path::new(TESTS);
    if here.is_dir() {
        return copy(here, to);
    }
    let fetched = to.with_file_name("package");
    fs::create_dir_all(&fetched)?;
    let script = "get() { apt-get download -q \"$1\"; }
        get \"$1\" || { apt-get update -q && get \"$1\"; }
        dpkg-deb -x \"$1\"_*.deb .";
    let mut sh = Command::new("sh");
    let out = sh.args(["-ec", script, "sh", PACKAGE]).current_dir(&fetched).output()?;
    let said = String::from_utf8_lossy(&out.stderr);
    ensure!(
        out.status.success(),
        "{TESTS} is missing, and its package cannot be downloaded: {}",
        last_line(&said)
    );
    copy(&fetched.join(TESTS.trim_start_matches('/')), to)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let path = entry?.path();
        let Some(name) = path.file_name().and_then(|n| n.to_str()) else { continue };
        let Some(plain) = name.strip_suffix(".gz") else {
            fs::copy(&path, to.join(name))?;
            continue;
        };
        let mut gzip = Command::new("gzip");
        let out = File::create(to.join(plain))?;
        let status = gzip.arg("-dc").arg(&path).stdout(out).stdin(Stdio::null()).status()?;
        ensure!(status.success(), "gzip {}", path.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{ENOUGH, Expected, OF_INFINIBAND, TABLE, lines, read, reasons, table};
    use crate::row::Device;

    #[test]
    fn expected_pyverbs_passes_are_enough_and_unique() {
        for device in [Device::Roce, Device::Ib] {
            let table = table(device);
            let passes = table.iter().filter(|e| matches!(e, Expected::Pass(_))).count();
            assert!(passes >= ENOUGH, "{passes}");
            let tests: Vec<&str> = table.into_iter().filter_map(Expected::test).collect();
            assert_eq!(tests.iter().collect::<BTreeSet<_>>().len(), tests.len());
        }
    }

    #[test]
    fn infiniband_expectations_replace_tests_of_the_table() {
        let table = table(Device::Roce);
        for other in lines(OF_INFINIBAND) {
            assert!(table.iter().any(|e| e.test() == other.test()), "{other:?}");
        }
    }

    #[test]
    fn every_skip_has_a_reason() {
        for e in lines(TABLE).chain(lines(OF_INFINIBAND)) {
            if let Expected::Skip(test, why) | Expected::May(test, why) = e {
                assert!(reasons(why).all(|reason| !reason.is_empty()), "{test}");
            }
        }
    }

    #[test]
    fn pyverbs_results_are_parsed_among_other_output() {
        let said =
            "noise\n{\"test\": \"a.b\", \"outcome\": \"skip\", \"why\": \"no such thing\"}\n{}\n";
        let results = read(said);
        assert_eq!(results.len(), 1);
        assert!(Expected::Skip("a.b", "no such").compare(&results, Device::Roce).is_ok());
        assert!(Expected::Skip("a.b", "other").compare(&results, Device::Roce).is_err());
        assert!(Expected::Skip("a.b", "other | no such").compare(&results, Device::Roce).is_ok());
        assert!(Expected::May("a.b", "no such").compare(&results, Device::Roce).is_ok());
        assert!(Expected::May("a.b", "other").compare(&results, Device::Roce).is_err());
        assert!(Expected::Pass("a.b").compare(&results, Device::Roce).is_err());
        assert!(Expected::Pass("a.c").compare(&results, Device::Roce).is_err());
    }

    #[test]
    fn pyverbs_test_that_may_skip_may_also_pass() {
        let results = read("{\"test\": \"a.b\", \"outcome\": \"pass\", \"why\": \"\"}\n");
        assert!(Expected::May("a.b", "other").compare(&results, Device::Roce).is_ok());
        assert!(Expected::Skip("a.b", "").compare(&results, Device::Roce).is_err());
    }
}
