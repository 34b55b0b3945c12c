//! rxe and rdmux in one guest, measured by the same programs: the kernel's driver in the first network namespace,
//! rdmux in namespace `b`, because both use UDP port 4791.
//!
//! The guest is that of conformance/peer-vm. It is emulated, so only the ratios of its figures are meaningful.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use clap::ValueEnum as _;

use super::super::programs::{Uncalibrated, require};
use super::figure::Figure;
use super::parse;
use super::spec::Row;
use rdmux_command::library;

/// The script that runs in the guest.
const SCRIPT: &str = include_str!("guest.sh");
/// The path in the workspace of the program that makes the guest.
const MAKER: &str = "conformance/peer-vm/peer-vm";
/// The maximum number of rounds, because an emulated guest is slow.
const ROUNDS: u32 = 3;

/// Measures these rows in one guest. Returns each row with its figure, or the reason why there is none. A row that
/// cannot be measured does not affect the others.
pub(super) fn measure(rows: &[Row], rounds: u32) -> Result<Vec<(Row, Result<Figure>)>> {
    require("qemu-system-x86_64")?;
    let share = tempfile::tempdir()?;
    let own = std::env::current_exe()?;
    copy(&own, share.path(), "rdmux")?;
    copy(&library::find()?.object, share.path(), "librdmux_capi.so")?;
    fs::write(share.path().join("guest.sh"), SCRIPT)?;
    let mut vm = Command::new(maker()?);
    vm.args(["run", "--no-siw", "--quiet", "--timeout", "240", "--share"]).arg(share.path());
    vm.args(["--", "bash", "/host/guest.sh", &rounds.min(ROUNDS).to_string()]);
    vm.args(rows.iter().map(|row| name(*row)));
    let output = vm.stdin(Stdio::null()).output().context("cannot start the guest")?;
    let said = String::from_utf8_lossy(&output.stdout);
    let complaints = String::from_utf8_lossy(&output.stderr);
    Ok(figures(rows, &said, &complaints, output.status))
}

/// Parses the guest's output. It may have failed after some rows were complete.
fn figures(
    rows: &[Row],
    said: &str,
    complaints: &str,
    status: ExitStatus,
) -> Vec<(Row, Result<Figure>)> {
    let why = || format!("the guest ended ({status}):\n{}\n{complaints}", last_lines(said));
    rows.iter().map(|row| (*row, figure(*row, said).with_context(why))).collect()
}

/// Returns the script's name of a row, which is that of `--only`.
fn name(row: Row) -> String {
    row.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

fn copy(file: &Path, to: &Path, name: &str) -> Result<()> {
    fs::copy(file, to.join(name)).with_context(|| format!("cannot copy {}", file.display()))?;
    Ok(())
}

/// Returns the program that makes the guest, which is part of the sources: in the workspace from which cargo runs
/// this program, or in the one of the working directory.
fn maker() -> Result<PathBuf> {
    let here = std::env::current_dir()?;
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let folders = manifest.iter().chain([&here]).flat_map(|folder| folder.ancestors());
    let found = folders.map(|folder| folder.join(MAKER)).find(|file| file.is_file());
    found.with_context(|| {
        format!("there is no {MAKER} above {}: run this command in the source tree", here.display())
    })
}

/// Parses a row from the complete output of the guest.
fn figure(row: Row, said: &str) -> Result<Figure> {
    let parse = match row {
        Row::GuestBw => parse::perftest_bandwidth,
        Row::GuestLat => parse::perftest_latency,
        Row::GuestCm => |output: &str| Ok(1.0 / parse::cmtime(output)?),
        other => bail!("{other:?} is not measured in a guest"),
    };
    let values = |side| {
        let title = format!("{} {side}", name(row));
        let values: Result<Vec<f64>> = sections(said, &title)
            .filter(|text| !Uncalibrated::is_said_in(text))
            .map(|text| parse(text).with_context(|| format!("{title} printed:\n{text}\n")))
            .collect();
        let values = values?;
        ensure!(!values.is_empty(), "the guest printed no figure for {title}:\n{said}");
        Ok(values)
    };
    Ok(Figure::new(row, &values("rdmux")?, &values("rxe")?))
}

/// Returns enough of the output to show what failed.
fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

/// Returns the text after each line `== TITLE` up to the next such line.
fn sections<'t>(text: &'t str, title: &str) -> impl Iterator<Item = &'t str> {
    let parts = text.split("== ").skip(1).filter_map(|part| part.split_once('\n'));
    parts.filter(move |(t, _)| t.trim() == title).map(|(_, body)| body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guest_output_is_split_into_rounds() {
        let bandwidth = include_str!("samples/ib_write_bw.txt");
        let faster = bandwidth.replace("35.71", "71.42");
        let connections = include_str!("samples/cmtime.txt");
        let said = format!(
            "== guest-bw rxe\n{bandwidth}\n== guest-bw rdmux\n{faster}== guest-bw rxe\n{bandwidth}\
             == guest-bw rdmux\n{faster}== guest-cm rxe\n{connections}"
        );
        let figure = figure(Row::GuestBw, &said).unwrap();
        assert!((figure.ratio - 2.0).abs() < 1e-9);
        assert_eq!(figure.ours.rounds, 2);
        let e = super::figure(Row::GuestCm, &said).unwrap_err();
        assert!(e.to_string().starts_with("the guest printed no figure for guest-cm rdmux"), "{e}");
    }

    #[test]
    fn a_row_that_fails_in_the_guest_leaves_the_others() {
        let (bandwidth, latency) =
            (include_str!("samples/ib_write_bw.txt"), include_str!("samples/ib_send_lat.txt"));
        let connections = include_str!("samples/cmtime.txt");
        let broken = latency.replace("23.84", "  inf");
        let said = format!(
            "== guest-bw rxe\n{bandwidth}\n== guest-bw rdmux\n{bandwidth}\n== guest-lat rxe\n{latency}\
             == guest-lat rdmux\n{broken}== guest-cm rxe\n{connections}== guest-cm rdmux\n{connections}"
        );
        let rows = [Row::GuestBw, Row::GuestLat, Row::GuestCm];
        let figures = figures(&rows, &said, "guest-lat failed", ExitStatus::default());
        let outcomes: Vec<_> = figures.iter().map(|(row, figure)| (*row, figure.is_ok())).collect();
        let expected = [(Row::GuestBw, true), (Row::GuestLat, false), (Row::GuestCm, true)];
        assert_eq!(outcomes, expected);
        let e = figures[1].1.as_ref().unwrap_err();
        assert!(e.to_string().ends_with("guest-lat failed"), "{e}");
    }

    #[test]
    fn a_round_without_a_clock_is_not_counted() {
        let latency = include_str!("samples/ib_send_lat.txt");
        let broken = latency.replace("23.84", "  inf");
        let said = format!(
            "== guest-lat rxe\n{latency}== guest-lat rdmux\n{broken}\nCorrelation coefficient r^2: \
             0.69636 < 0.9\n== guest-lat rdmux\n{latency}"
        );
        assert_eq!(figure(Row::GuestLat, &said).unwrap().ours.rounds, 1);
    }
}
