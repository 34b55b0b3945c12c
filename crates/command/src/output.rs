//! Output of commands: tables for people, JSON for scripts, numbers with units.

use std::io::{self, Write};
use std::time::Duration;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;

/// A plain table with headings, rows, and right-aligned columns of numbers.
pub struct Report {
    table: Table,
}

impl Report {
    /// Returns a table with these headings.
    pub fn new(headings: &[&str]) -> Self {
        let mut table = Table::new();
        table.load_preset(presets::NOTHING);
        table.set_content_arrangement(ContentArrangement::Dynamic);
        table.set_header(headings);
        Self { table }
    }
    /// Right-aligns these columns.
    pub fn right(mut self, columns: &[usize]) -> Self {
        for c in columns {
            if let Some(column) = self.table.column_mut(*c) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        self
    }
    /// Adds a row.
    pub fn row<I: IntoIterator<Item = String>>(&mut self, cells: I) {
        self.table.add_row(cells);
    }
    /// Prints it, as [`line()`] does.
    pub fn print(&self) {
        line(format_args!("{}", self.table.trim_fmt()));
    }
    /// Prints it, as [`try_line`] does.
    ///
    /// # Errors
    /// Those of [`try_line`].
    pub fn try_print(&self) -> anyhow::Result<()> {
        try_line(format_args!("{}", self.table.trim_fmt()))
    }
}

/// Prints a line; see `say!`.
pub fn line(text: std::fmt::Arguments<'_>) {
    if let Err(e) = writeln!(io::stdout().lock(), "{text}") {
        stop(&e);
    }
}

/// Prints a line, for a command that has something to end when the reader has closed the output. [`is_closed`] recognizes that.
///
/// # Errors
/// Those of write(2).
pub fn try_line(text: std::fmt::Arguments<'_>) -> anyhow::Result<()> {
    use anyhow::Context as _;
    writeln!(Output(io::stdout().lock()), "{text}").context("cannot print")
}

/// Prints a line of bytes, which need not be text.
pub fn raw_line(line: &[u8]) {
    let mut out = io::stdout().lock();
    if let Err(e) = out.write_all(line).and_then(|()| out.write_all(b"\n")) {
        stop(&e);
    }
}

/// The output of a command: a writer after whose errors [`is_closed`] tells whether the reader has closed it.
pub struct Output<W>(pub W);

impl<W: Write> Write for Output<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(marked)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(marked)
    }
}

/// The reader of the output has closed it.
#[derive(Debug, thiserror::Error)]
#[error("the reader of the output has closed it")]
struct Closed;

/// Marks an error of an [`Output`], which other pipes and sockets of the program may have, too.
fn marked(e: io::Error) -> io::Error {
    match e.kind() {
        io::ErrorKind::BrokenPipe => io::Error::new(e.kind(), Closed),
        _ => e,
    }
}

/// Returns whether the reader of an [`Output`] has closed it, as `head` does: this is no error.
pub fn is_closed(e: &anyhow::Error) -> bool {
    let io = e.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    io.filter_map(io::Error::get_ref).any(|marker| marker.is::<Closed>())
}

/// Ends the program after an output error. A closed pipe is not a failure.
fn stop(e: &io::Error) -> ! {
    if e.kind() == io::ErrorKind::BrokenPipe {
        std::process::exit(0);
    }
    eprintln!("rdmux: cannot print: {e}");
    std::process::exit(1);
}

/// Prints one JSON document.
pub fn json<T: Serialize>(value: &T) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(value)?;
    line(format_args!("{text}"));
    Ok(())
}

/// Formats a time in a unit that leaves about three digits.
pub fn time(d: Duration) -> String {
    let ns = d.as_nanos();
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.2} us", d.as_secs_f64() * 1e6),
        1_000_000..1_000_000_000 => format!("{:.2} ms", d.as_secs_f64() * 1e3),
        _ => format!("{:.2} s", d.as_secs_f64()),
    }
}

/// Formats a number of bytes, in binary units.
pub fn bytes(n: u64) -> String {
    const UNITS: [(&str, u32); 3] = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    for (name, shift) in UNITS {
        if n >= 1 << shift {
            let whole = n >> shift;
            return if n == whole << shift {
                format!("{whole} {name}")
            } else {
                format!("{:.1} {name}", n as f64 / f64::from(1_u32 << shift))
            };
        }
    }
    format!("{n} B")
}

/// Formats bytes per second, in decimal units as usual for networks.
pub fn rate(bytes_per_second: f64) -> String {
    if bytes_per_second >= 1e9 {
        format!("{:.2} GB/s", bytes_per_second / 1e9)
    } else {
        format!("{:.1} MB/s", bytes_per_second / 1e6)
    }
}

/// Formats an error and its causes on one line, without repetitions: some errors include their cause.
pub fn text(e: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in e.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context as _;

    #[test]
    fn only_a_closed_output_is_recognised_and_not_another_broken_pipe() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let e = Output(&writer).write_all(b"x").context("cannot print").unwrap_err();
        assert!(is_closed(&e), "{e:#}");
        let e = (&writer).write_all(b"x").context("cannot ask").unwrap_err();
        assert!(!is_closed(&e), "{e:#}");
    }

    #[test]
    fn error_text_omits_repeated_causes() {
        let e = anyhow::anyhow!("no such host").context("cannot connect: no such host");
        assert_eq!(text(&e.context("no server")), "no server: cannot connect: no such host");
    }

    #[test]
    fn times_sizes_and_rates_are_formatted_with_suitable_units() {
        assert_eq!(time(Duration::from_nanos(870)), "870 ns");
        assert_eq!(time(Duration::from_nanos(12_340)), "12.34 us");
        assert_eq!(time(Duration::from_millis(1500)), "1.50 s");
        assert_eq!(bytes(64), "64 B");
        assert_eq!(bytes(65536), "64 KiB");
        assert_eq!(bytes(1 << 20), "1 MiB");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(rate(2.5e9), "2.50 GB/s");
    }
}
