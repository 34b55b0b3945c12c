//! `cargo xtask instructions`: counts the instructions of the hot paths, and compares them with the recorded figures.
//!
//! A loop runs twice under callgrind, with two counts. The additional instructions of the longer run, divided by the
//! difference of the counts, are the cost of one iteration. Unlike times, these figures are nearly the same on a busy
//! machine, but if a thread waits long for a processor, timers expire, and their work is counted as well. So a path that has
//! grown is counted again, and the smallest count is used. The figures depend on the compiler: record them again when it
//! changes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::report::Report;
use crate::{programs, sh};

/// Iterations of the short run, enough to pass one-time work.
const FEW: u64 = 200;
/// Additional iterations of the long run, at first.
const MORE: u64 = 20_000;
/// The least additional instructions. Other work of a process differs by up to a hundred thousand between runs (a fabric that
/// starts, timers that expire), which is then 1 %. A path that is too short for this runs ten times as many iterations.
const ENOUGH: u64 = 10_000_000;
/// The tolerated increase over the recorded figure, in percent.
const TOLERANCE: f64 = 2.0;
/// The greatest decrease that is not suspicious, in percent: beyond it, the loop may not do its work, or the figure is out of date.
const DECREASE: f64 = -20.0;
/// How often a path that has grown is counted again.
const AGAIN: usize = 2;
const NAME: &str = "instructions";
/// The prefix of paths on InfiniBand; without it the path is the same on RoCE.
const INFINIBAND: &str = "InfiniBand, ";
pub(crate) const PROGRAM: &str = "rdmux-instructions";

/// The paths to count, and the use of the figures.
#[derive(clap::Args, Default)]
pub(crate) struct Args {
    /// Count only paths that contain this text
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Record the counts as the new figures
    #[arg(long)]
    record: bool,
}

/// Counts all paths. Unless figures are recorded, a path fails that takes over 2 % more than recorded, or less than four fifths, and so
/// does a path without a figure, or a figure without a path.
pub(crate) fn run(args: &Args, report: &mut Report) {
    report.heading("instructions of the hot paths");
    if sh::have("valgrind") {
        report.check(NAME, count(args));
    } else {
        report.skip(NAME, "valgrind is not installed (Debian package valgrind)");
    }
}

fn count(args: &Args) -> Result<()> {
    let program = programs::build()?.join(PROGRAM);
    let file = sh::root().join("benches/instructions/recorded.toml");
    let mut recorded = read(&file)?;
    let list = sh::output(&mut sh::command(&program))?;
    let wanted = |path: &&str| args.only.as_ref().is_none_or(|text| path.contains(text));
    let paths: Vec<&str> = list.lines().filter(wanted).collect();
    ensure!(!paths.is_empty(), "no path contains this text");
    if !args.record {
        let known: Vec<&str> = recorded.keys().map(String::as_str).collect();
        let strangers = unmatched(&list.lines().collect::<Vec<_>>(), &known);
        ensure!(strangers.is_empty(), "{}; record the figures with --record", strangers.join("; "));
    }
    println!("{:>12} {:>12} {:>9}  PATH", "INSTRUCTIONS", "RECORDED", "CHANGE");
    let (mut grown, mut shrunk, mut counted) = (Vec::new(), Vec::new(), BTreeMap::new());
    for path in paths {
        let old = recorded.get(path).copied();
        let change_of = |each: u64| {
            old.filter(|old| *old > 0).map(|old| (each as f64 / old as f64 - 1.0) * 100.0)
        };
        let mut each = of_one(&program, path)?;
        for _ in 0..AGAIN {
            if change_of(each).is_none_or(|change| change <= TOLERANCE) {
                break;
            }
            each = each.min(of_one(&program, path)?);
        }
        let change = change_of(each);
        recorded.insert(path.to_owned(), each);
        counted.insert(path, each);
        let shown = change.map_or(String::new(), |c| format!("{c:+.1} %"));
        println!("{each:>12} {:>12} {shown:>9}  {path}", old.map_or("-".into(), |o| o.to_string()));
        match change {
            Some(change) if change > TOLERANCE => grown.push(path),
            Some(change) if change < DECREASE => shrunk.push(path),
            _ => {}
        }
    }
    for (path, each) in &counted {
        let plain = path.strip_prefix(INFINIBAND).and_then(|plain| counted.get(plain));
        if let Some(plain) = plain.filter(|plain| **plain > 0) {
            println!("{:>12.3} by RoCE{:19}{path}", *each as f64 / *plain as f64, "");
        }
    }
    if args.record {
        let text = toml::to_string(&recorded).context("cannot write the figures")?;
        return fs::write(&file, text).with_context(|| file.display().to_string());
    }
    ensure!(grown.is_empty(), "more than {TOLERANCE} % more instructions: {}", grown.join("; "));
    let shrunk = shrunk.join("; ");
    ensure!(
        shrunk.is_empty(),
        "a fifth fewer instructions: {shrunk}; if that is right, record them with --record"
    );
    Ok(())
}

/// Returns what is wrong with paths that have no figure, and with figures that have no path.
fn unmatched(paths: &[&str], recorded: &[&str]) -> Vec<String> {
    let without = |of: &[&str], other: &[&str], what: &str| {
        let left = of.iter().filter(|name| !other.contains(name));
        left.map(|name| format!("{name:?} has no {what}")).collect::<Vec<_>>()
    };
    [without(paths, recorded, "figure"), without(recorded, paths, "path")].concat()
}

/// Returns the recorded figures; none if there is no file.
fn read(file: &Path) -> Result<BTreeMap<String, u64>> {
    match fs::read_to_string(file) {
        Ok(text) => toml::from_str(&text).with_context(|| file.display().to_string()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(BTreeMap::new()),
        Err(e) => Err(e).with_context(|| file.display().to_string()),
    }
}

/// Returns the instructions of one iteration of a path.
fn of_one(program: &Path, path: &str) -> Result<u64> {
    let short = counted(program, path, FEW)?;
    let added =
        |more| Ok::<_, anyhow::Error>(counted(program, path, FEW + more)?.saturating_sub(short));
    let mut more = MORE;
    let mut each = added(more)?;
    if each < ENOUGH {
        more *= 10;
        each = added(more)?;
    }
    Ok(each / more)
}

/// Returns all instructions of a run with this many iterations.
fn counted(program: &Path, path: &str, rounds: u64) -> Result<u64> {
    let mut valgrind = sh::command("valgrind");
    valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(program);
    valgrind.args([path, &rounds.to_string()]);
    let output = valgrind.output().context("cannot start valgrind")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{path} under valgrind: {}\n{said}", output.status);
    collected(&said).with_context(|| format!("valgrind printed no count:\n{said}"))
}

/// Returns the number after "Collected :".
fn collected(said: &str) -> Option<u64> {
    let line = said.lines().find_map(|line| line.split_once("Collected :"))?;
    line.1.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{collected, unmatched};

    #[test]
    fn paths_without_figures_and_figures_without_paths_are_found() {
        assert_eq!(unmatched(&["a", "b"], &["b", "a"]), [""; 0]);
        let found = unmatched(&["a", "b"], &["b", "c"]);
        assert_eq!(found, ["\"a\" has no figure", "\"c\" has no path"]);
    }

    #[test]
    fn the_summary_of_callgrind_is_found() {
        let said = "==7== Callgrind, a call-graph generating cache profiler\n==7== \n\
                    ==7== Events    : Ir\n==7== Collected : 1938477\n==7== \n==7== I   refs:      1,938,477\n";
        assert_eq!(collected(said), Some(1_938_477));
        assert_eq!(collected("valgrind: no such program"), None);
    }
}
