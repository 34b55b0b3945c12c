//! `rdmux decode`: prints the frames of a capture and checks their checksums: RoCE and InfiniBand packet by packet,
//! iWARP along the TCP streams.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use rdmux_host::Config;
use rdmux_link::capture::FrameKind;
use rdmux_wire::udp::ROCE_PORT;
use rustix::fs::{FileType, fstat};
use serde::Serialize;

use file::{CaptureFile, FileError, Frame};
use line::{JsonLine, Line};
use summary::Summary;
use tcp::Streams;

use crate::interrupt::on_interrupt;

mod file;
mod frame;
mod iwarp;
mod line;
mod mad;
#[cfg(test)]
mod management_tests;
mod other;
mod roce;
mod summary;
mod tcp;
#[cfg(test)]
mod tests;

/// Arguments of `rdmux decode`.
#[derive(Args, Debug)]
#[command(
    after_help = "Exit status: 0 if every RDMA frame is correct, 1 if one could not be decoded or has a wrong \
    ICRC or CRC, 2 if a file cannot be read. Truncated frames, and iWARP streams of which the capture \
    lacks a part, are reported but are not errors."
)]
pub(crate) struct DecodeArgs {
    /// Captures in pcap or pcapng format; - is standard input, whose frames are shown as they arrive. If it is a pipe, the first
    /// Ctrl-C stops only the program that writes to it, and a second one stops this command, too
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// A UDP port of RoCE besides 4791; may be repeated. Without it, the port that the configuration file sets
    #[arg(long = "port", value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    ports: Vec<u16>,
    /// Print one JSON object per line: one for each frame, and a summary at the end of each file
    #[arg(long)]
    json: bool,
    /// Print only the summaries
    #[arg(short, long)]
    quiet: bool,
}

impl DecodeArgs {
    /// Returns the UDP ports of RoCE. Frames that no network carried have 4791, whichever port the host uses.
    fn ports(&self) -> Vec<u16> {
        let mut ports = self.ports.clone();
        if ports.is_empty() {
            match Config::of_environment() {
                Ok(config) => ports.push(config.service.port),
                // Captures can be read without it.
                Err(error) => eprintln!("rdmux: {error}; RoCE's UDP port is taken to be 4791"),
            }
        }
        ports.push(ROCE_PORT);
        ports
    }
}

/// Prints a line per frame and a summary per file.
///
/// # Errors
/// When the output cannot be written, or Ctrl-C cannot be handled. Problems of a capture and of the configuration file are printed on
/// standard error.
pub(crate) fn run(args: &DecodeArgs) -> anyhow::Result<ExitCode> {
    if args.files.iter().any(|path| path == STDIN) && is_pipe() {
        // The pipe is about to close, after the rest of the frames. The summary follows.
        on_interrupt(|| {})?;
    }
    let out = RefCell::new(BufWriter::new(io::stdout().lock()));
    let mut printer = Printer {
        out: Shared(&out),
        json: args.json,
        quiet: args.quiet,
        headings: args.files.len() > 1 && !args.json && !args.quiet,
    };
    match decode_all(&args.files, &args.ports(), &mut printer) {
        // The reader has closed the pipe.
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        Err(e) => Err(e.into()),
        Ok(status) => Ok(status),
    }
}

/// Returns the line of one live frame: the `number`-th, captured at `time` since 1970, in a recording that began at
/// `start`, of a host whose service uses this UDP port.
pub(crate) fn live_line(
    number: u64,
    time: Duration,
    start: Duration,
    kind: FrameKind,
    port: u16,
    bytes: &[u8],
) -> String {
    let link = frame::link_of(kind);
    let frame = Frame { time, link, data: bytes, original_len: bytes.len() };
    // Frames that no network carried have the usual port.
    let dissection = frame::dissect(&frame, &[ROCE_PORT, port]);
    let relative = time.saturating_sub(start);
    Line { number, time, relative, dissection: &dissection }.to_string()
}

/// The name for standard input.
const STDIN: &str = "-";

/// Returns whether standard input is a pipe.
fn is_pipe() -> bool {
    fstat(io::stdin().as_fd())
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo)
}

/// An output that the input flushes, too.
struct Shared<'a, W>(&'a RefCell<W>);

impl<W: Write> Write for Shared<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.borrow_mut().flush()
    }
}

/// An input that may block: it flushes the output before each read.
struct Live<'a, R, W> {
    input: R,
    out: Shared<'a, W>,
}

impl<R: Read, W: Write> Read for Live<'_, R, W> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.out.flush()?;
        self.input.read(buffer)
    }
}

fn decode_all(
    files: &[PathBuf],
    ports: &[u16],
    printer: &mut Printer<Shared<'_, impl Write>>,
) -> io::Result<ExitCode> {
    let mut total = Summary::default();
    let mut unreadable = false;
    for path in files {
        let name = path.display().to_string();
        printer.heading(&name)?;
        let (summary, error) = if name == STDIN {
            let input = Live { input: io::stdin().lock(), out: Shared(printer.out.0) };
            decode(input, &name, ports, printer)?
        } else {
            match File::open(path) {
                Ok(file) => decode(file, &name, ports, printer)?,
                Err(error) => (Summary::default(), Some(error.into())),
            }
        };
        if error.is_none() || summary.frames > 0 {
            printer.summary(&name, &summary)?;
        }
        if let Some(error) = error {
            unreadable = true;
            printer.out.flush()?;
            eprintln!("rdmux decode: {name}: {error}");
        }
        total.add(&summary);
    }
    if files.len() > 1 {
        printer.summary("total", &total)?;
    }
    printer.out.flush()?;
    Ok(match (unreadable, total.all_right()) {
        (true, _) => ExitCode::from(2),
        (false, false) => ExitCode::FAILURE,
        (false, true) => ExitCode::SUCCESS,
    })
}

/// Decodes a file as far as it can be read. Returns why it could not be read further.
fn decode(
    input: impl Read,
    name: &str,
    ports: &[u16],
    printer: &mut Printer<impl Write>,
) -> io::Result<(Summary, Option<FileError>)> {
    let mut summary = Summary::default();
    let mut file = match CaptureFile::open(input) {
        Ok(file) => file,
        Err(error) => return Ok((summary, Some(error))),
    };
    let mut first = None;
    let mut streams = Streams::default();
    loop {
        let frame = match file.next() {
            Ok(Some(frame)) => frame,
            end => {
                summary.left_over = streams.left_over();
                return Ok((summary, end.err()));
            }
        };
        let dissection = streams.follow(frame::dissect(&frame, ports));
        summary.count(&dissection.what);
        let start: Duration = *first.get_or_insert(frame.time);
        let line = Line {
            number: summary.frames,
            time: frame.time,
            relative: frame.time.saturating_sub(start),
            dissection: &dissection,
        };
        printer.line(name, &line)?;
    }
}

/// The output for lines, and their format.
struct Printer<W: Write> {
    out: W,
    json: bool,
    quiet: bool,
    headings: bool,
}

impl<W: Write> Printer<W> {
    fn heading(&mut self, name: &str) -> io::Result<()> {
        if self.headings { writeln!(self.out, "{name}:") } else { Ok(()) }
    }

    fn line(&mut self, file: &str, line: &Line<'_>) -> io::Result<()> {
        if self.quiet {
            Ok(())
        } else if self.json {
            self.json(&JsonLine::new(file, line))
        } else {
            writeln!(self.out, "{line}")
        }
    }

    fn summary(&mut self, file: &str, summary: &Summary) -> io::Result<()> {
        #[derive(Serialize)]
        struct JsonSummary<'a> {
            file: &'a str,
            summary: &'a Summary,
        }
        if self.json {
            return self.json(&JsonSummary { file, summary });
        }
        writeln!(self.out, "{file}: {summary}")
    }

    fn json(&mut self, value: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut self.out, value)?;
        writeln!(self.out)
    }
}
