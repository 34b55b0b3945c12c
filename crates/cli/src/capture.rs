//! `rdmux capture`: writes a host's traffic as pcapng: packets of its programs from the host service, and management datagrams of its
//! InfiniBand port from the fabric.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use rdmux_command::output::Output;
use rdmux_fabric::client::Capture as FabricCapture;
use rdmux_fabric::proto::{NodeRef, PortRef};
use rdmux_host::client::admin::{self, Capture};
use rdmux_host::proto::{FabricStatus, Status};
use rdmux_host::{HostName, RuntimeDir};
use rdmux_link::capture::FrameHeader;
use rustix::event::{PollFd, PollFlags, poll};

use crate::interrupt::on_interrupt;
use crate::pcapng::{Direction, Writer};
use crate::{Global, decode, fabric};

/// The maximum size of a frame: messages through shared memory may be longer than any packet.
const MAX_FRAME: usize = 1 << 20;

/// Shows or records the traffic of all programs of a host, in both directions, until it is interrupted.
///
/// RoCE and iWARP packets begin with an IP header (LINKTYPE_RAW). InfiniBand packets are recorded from the LRH to the VCRC in ERF records
/// (LINKTYPE_ERF), as Wireshark reads them, including the port's management datagrams and those of its own agents. A file with both
/// link types has an interface for each, which Wireshark reads and tcpdump does not. Messages through shared memory are shown with
/// synthetic headers: the addresses are those of the queue pair, and
/// a message longer than an InfiniBand packet is shown as several packets
#[derive(Args)]
pub(crate) struct CaptureArgs {
    /// The pcapng file to write, for Wireshark or `rdmux decode`; - is standard output. Without it, one
    /// line is printed per frame
    #[arg(short, long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Stop after N frames
    #[arg(short, long, value_name = "N")]
    count: Option<u64>,
    /// Omit messages through shared memory
    #[arg(long)]
    wire_only: bool,
}

/// Runs `rdmux capture`.
pub(crate) fn run(global: &Global, args: &CaptureArgs) -> Result<ExitCode> {
    let (dir, host) = (RuntimeDir::of_environment()?, global.host_name()?);
    let before = admin::status(&dir, &host)?;
    // A capture that is refused leaves the file unchanged.
    let mut capture = Sources::open(&dir, &host, &before)?;
    // Opening a FIFO may wait for its reader, which Ctrl-C ends as long as it is not handled.
    let output = args.write.as_deref().map(open).transpose()?;
    let interrupted = &*end_on_interrupt(&capture.host)?;

    eprintln!("capturing host {host}; Ctrl-C stops");
    let frames = match output {
        Some(output) => {
            let mut writer = Writer::new(Output(output), &before.host)?;
            let frames = copy(&mut capture, args, interrupted, |_, header, frame| {
                let way = if header.sent { Direction::Out } else { Direction::In };
                let time = Duration::from_nanos(header.time);
                Ok(writer.frame(time, way, header.kind, frame)?)
            })?;
            writer.finish()?;
            frames
        }
        None => show(&mut capture, args, interrupted, before.port)?,
    };
    eprintln!("{frames} frames");
    if let Ok(after) = admin::status(&dir, &host) {
        let drops = |s: &Status| s.counter("capture_drops").unwrap_or(0);
        // Fewer if the service was restarted meanwhile.
        match drops(&after).saturating_sub(drops(&before)) {
            0 => {}
            missing => eprintln!(
                "{missing} more frames were dropped because they were not read fast enough"
            ),
        }
    }
    if !interrupted.load(Ordering::Relaxed) && args.count != Some(frames) {
        eprintln!("capture stopped: the host's service ended");
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

/// Prints a line for each frame. `port` is the service's UDP port.
fn show(
    capture: &mut Sources,
    args: &CaptureArgs,
    interrupted: &AtomicBool,
    port: u16,
) -> Result<u64> {
    let mut out = Output(io::stdout().lock());
    let mut start = None;
    copy(capture, args, interrupted, |number, header, frame| {
        let time = Duration::from_nanos(header.time);
        let start = *start.get_or_insert(time);
        let line = decode::live_line(number, time, start, header.kind, port, frame);
        let way = match (header.sent, header.memory) {
            (true, false) => "out",
            (false, false) => "in ",
            (true, true) => "out, same host",
            (false, true) => "in,  same host",
        };
        Ok(writeln!(out, "{way} {line}")?)
    })
}

/// The sources of frames.
struct Sources {
    host: Capture,
    /// The fabrics of the host's ports, as long as they are up.
    fabrics: Vec<FabricCapture>,
}

impl Sources {
    fn open(dir: &RuntimeDir, host: &HostName, status: &Status) -> Result<Self> {
        let capture = Capture::start(dir, host)?;
        let start = |fabric: &FabricStatus| -> Result<Option<FabricCapture>> {
            let Some(guid) = fabric.node_guid else { return Ok(None) };
            let port = PortRef { node: NodeRef::Guid(guid), port: fabric.port };
            Ok(Some(FabricCapture::start(&fabric::options()?, &fabric.name.parse()?, &port)?))
        };
        let fabrics = status.fabrics.iter().filter_map(|fabric| {
            start(fabric).unwrap_or_else(|error| {
                eprintln!("cannot capture management datagrams of port {}: {error:#}", fabric.port);
                None
            })
        });
        Ok(Self { host: capture, fabrics: fabrics.collect() })
    }

    /// Waits for the next frame; none when the host's service has ended.
    fn next_frame<'b>(&mut self, buffer: &'b mut [u8]) -> Result<Option<&'b [u8]>> {
        while !self.fabrics.is_empty() {
            if let Some(len) = self.next_of_fabrics(buffer) {
                return Ok(Some(&buffer[..len]));
            }
            let fabrics = self.fabrics.iter().map(|fabric| PollFd::new(fabric, PollFlags::IN));
            let host = PollFd::new(&self.host, PollFlags::IN);
            let mut fds: Vec<_> = [host].into_iter().chain(fabrics).collect();
            rustix::io::retry_on_intr(|| poll(&mut fds, None)).context("wait for frames")?;
            if !fds[0].revents().is_empty() {
                break;
            }
        }
        Ok(self.host.next_frame(buffer)?)
    }

    /// Returns the length of a pending frame of a fabric, if there is one.
    fn next_of_fabrics(&mut self, buffer: &mut [u8]) -> Option<usize> {
        let mut found = None;
        self.fabrics.retain_mut(|fabric| match found {
            Some(_) => true,
            None => match fabric.poll_frame() {
                Ok(Some(frame)) => {
                    buffer[..frame.len()].copy_from_slice(frame);
                    found = Some(frame.len());
                    true
                }
                Ok(None) => true,
                Err(error) => {
                    eprintln!("a fabric's management datagrams are no longer captured: {error}");
                    false
                }
            },
        });
        found
    }
}

/// Passes on frames, numbered from 1, until the stream or the count ends. Returns how many. After an interrupt, the host's stream
/// ends after the frames already captured, and fabrics are ignored.
fn copy(
    capture: &mut Sources,
    args: &CaptureArgs,
    interrupted: &AtomicBool,
    mut each: impl FnMut(u64, FrameHeader, &[u8]) -> Result<()>,
) -> Result<u64> {
    let mut buffer = vec![0; MAX_FRAME];
    let mut frames = 0;
    while args.count != Some(frames) {
        if interrupted.load(Ordering::Relaxed) {
            capture.fabrics.clear();
        }
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

/// Makes Ctrl-C close the stream of frames, which ends the copying. A second Ctrl-C ends the process, whose output may be waiting for
/// its reader.
fn end_on_interrupt(capture: &Capture) -> Result<Arc<AtomicBool>> {
    use std::os::fd::AsFd as _;
    let interrupted = Arc::new(AtomicBool::new(false));
    let (flag, stream) = (interrupted.clone(), capture.as_fd().try_clone_to_owned()?);
    on_interrupt(move || {
        flag.store(true, Ordering::Relaxed);
        // The shutdown fails only if the other side has closed it first, which ends the copying, too.
        let _ = rustix::net::shutdown(&stream, rustix::net::Shutdown::Both);
    })?;
    Ok(interrupted)
}
