//! `rdmux capture`: what a host sends and receives, as pcapng.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use rdmux_host::RuntimeDir;
use rdmux_host::client::admin::{self, Capture};
use rdmux_host::proto::Status;
use rdmux_verbs::FrameHeader;

use crate::pcapng::{Direction, Writer};
use crate::{Global, decode};

/// The most bytes of a frame: what passes through shared memory may be longer than any packet.
const MAX_FRAME: usize = 1 << 20;

/// Shows or records the traffic of all programs of a host, in both directions, until it is interrupted.
/// What passes through shared memory has network headers made up for it.
#[derive(Args)]
pub(crate) struct CaptureArgs {
    /// The pcapng file to write, for Wireshark or `rdmux decode`; - is standard output. Without it a
    /// line is printed for each frame
    #[arg(short, long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// End after so many frames
    #[arg(short, long, value_name = "N")]
    count: Option<u64>,
    /// Leave out what passes through shared memory
    #[arg(long)]
    wire_only: bool,
}

/// Runs `rdmux capture`.
pub(crate) fn run(global: &Global, args: &CaptureArgs) -> Result<ExitCode> {
    let (dir, host) = (RuntimeDir::of_environment()?, global.host_name()?);
    let before = admin::status(&dir, &host)?;
    let capture = Capture::start(&dir, &host)?;
    let interrupted = end_on_interrupt(&capture)?;

    eprintln!("capturing host {host}; Ctrl-C ends");
    let frames = match &args.write {
        Some(path) => {
            let mut writer = Writer::new(open(path)?, &before.host)?;
            let frames = copy(&capture, args, |_, header, frame| {
                let way = if header.sent { Direction::Out } else { Direction::In };
                Ok(writer.frame(Duration::from_nanos(header.time), way, frame)?)
            })?;
            writer.flush()?;
            frames
        }
        None => show(&capture, args)?,
    };
    eprintln!("{frames} frames");
    if let Ok(after) = admin::status(&dir, &host) {
        let drops = |s: &Status| s.counter("capture_drops").unwrap_or(0);
        match drops(&after) - drops(&before) {
            0 => {}
            missing => eprintln!("{missing} more came too fast to be captured"),
        }
    }
    if !interrupted.load(Ordering::Relaxed) && args.count != Some(frames) {
        eprintln!("the host's service ended");
    }
    Ok(ExitCode::SUCCESS)
}

fn open(path: &Path) -> Result<Box<dyn Write>> {
    if path == Path::new("-") {
        return Ok(Box::new(io::stdout().lock()));
    }
    let file = File::create(path);
    Ok(Box::new(file.with_context(|| format!("cannot create {}", path.display()))?))
}

/// Prints a line for each frame.
fn show(capture: &Capture, args: &CaptureArgs) -> Result<u64> {
    let mut out = io::stdout().lock();
    let mut start = None;
    copy(capture, args, |number, header, frame| {
        let time = Duration::from_nanos(header.time);
        let line = decode::live_line(number, time, *start.get_or_insert(time), frame);
        let way = match (header.sent, header.memory) {
            (true, false) => "out",
            (false, false) => "in ",
            (true, true) => "out, same host",
            (false, true) => "in,  same host",
        };
        Ok(writeln!(out, "{way} {line}")?)
    })
}

/// Hands on frames, numbered from 1, until the stream or the count ends; how many they were.
fn copy(
    capture: &Capture,
    args: &CaptureArgs,
    mut each: impl FnMut(u64, FrameHeader, &[u8]) -> Result<()>,
) -> Result<u64> {
    let mut buffer = vec![0; MAX_FRAME];
    let mut frames = 0;
    while args.count != Some(frames) {
        let Some(message) = capture.next_frame(&mut buffer)? else { break };
        let Some((header, frame)) = FrameHeader::parse(message) else { continue };
        if header.memory && args.wire_only {
            continue;
        }
        frames += 1;
        each(frames, header, frame)?;
    }
    Ok(frames)
}

/// Ctrl-C closes the stream of frames, which ends the copying.
fn end_on_interrupt(capture: &Capture) -> Result<Arc<AtomicBool>> {
    use std::os::fd::AsFd as _;
    let interrupted = Arc::new(AtomicBool::new(false));
    let (flag, stream) = (interrupted.clone(), capture.as_fd().try_clone_to_owned()?);
    ctrlc::set_handler(move || {
        flag.store(true, Ordering::Relaxed);
        // It fails only if the other side closed it first, which ends the copying too.
        let _ = rustix::net::shutdown(&stream, rustix::net::Shutdown::Both);
    })
    .context("cannot handle Ctrl-C")?;
    Ok(interrupted)
}
