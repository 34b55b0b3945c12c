//! Both ends of a measured connection, for any transport.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rdmux::{Completion, Cq, EMPTY, Mr, Qp, SendWr, Srq, ok};

/// The size of a ping-pong message in bytes.
pub(super) const PING: u16 = 64;
/// The number of sends per signaled send.
const SIGNAL_EVERY: u32 = 64;
/// How long a side waits for the other.
const TIMEOUT: Duration = Duration::from_secs(20);

/// One end of a connection: its queue pair, completion queues and memory.
pub(super) struct End {
    pub(super) qp: Qp,
    pub(super) send_cq: Cq,
    pub(super) recv_cq: Cq,
    /// The queue for receives, if it is not the queue pair's own.
    pub(super) srq: Option<Srq>,
    /// The peer's shared receive queue, which XRC names in each request.
    pub(super) to: u32,
    /// The memory that messages are sent from and received into, overlapping.
    pub(super) memory: Mr,
    /// The length of the longest message.
    pub(super) longest: usize,
}

impl End {
    pub(super) fn post_receive(&self) -> Result<()> {
        let piece = [self.memory.slice(..self.longest)];
        Ok(match &self.srq {
            Some(srq) => srq.post_recv(0, &piece),
            None => self.qp.post_recv(0, &piece),
        }?)
    }

    /// Sends `count` messages of `size` bytes and waits for the last acknowledgement. Returns the seconds. Posts half
    /// of `depth` at a time. The other side runs [`sink`](Self::sink).
    pub(super) fn send_all(&self, size: usize, count: u32, depth: u32) -> Result<f64> {
        let piece = [self.memory.slice(..size)];
        self.post_all(SendWr::send(0).sges(&piece), count, depth)
    }

    /// Posts `wr` `count` times, half of `depth` at a time, the last of them signaled, and waits for the last
    /// completion. Returns the seconds.
    pub(super) fn post_all(&self, wr: SendWr<'_>, count: u32, depth: u32) -> Result<f64> {
        let mut half = vec![wr.srq(self.to); depth as usize / 2];
        if let Some(last) = half.last_mut() {
            *last = last.signaled();
        }
        let halves = count / u32::try_from(half.len())?;
        let start = Instant::now();
        for n in 0..halves {
            if n >= 2 {
                self.one(&self.send_cq)?;
            }
            self.qp.post_sends(&half).map_err(|(_, e)| e)?;
        }
        for _ in 0..halves.min(2) {
            self.one(&self.send_cq)?;
        }
        Ok(start.elapsed().as_secs_f64())
    }

    /// Receives `count` messages, and posts a receive for each.
    pub(super) fn sink(&self, count: u32) -> Result<()> {
        let mut batch = [EMPTY; 32];
        let mut left = count as usize;
        while left > 0 {
            let start = Instant::now();
            for done in Self::poll(&self.recv_cq, &mut batch, start)? {
                ok(*done)?;
                self.post_receive()?;
                left = left.saturating_sub(1);
            }
        }
        Ok(())
    }

    /// Sends a message, for which the peer waits in [`wait_message`](Self::wait_message).
    pub(super) fn send(&self) -> Result<()> {
        let wr = SendWr::send(0).srq(self.to);
        self.qp.post_send(&wr.inline(&[b"end"]).signaled())?;
        self.one(&self.send_cq).map(drop)
    }

    /// Sleeps until a message arrives.
    pub(super) fn wait_message(&self) -> Result<()> {
        self.recv_cq.wait_one(Some(TIMEOUT))?;
        self.post_receive()
    }

    /// Busy-polls until a message arrives.
    fn poll_message(&self) -> Result<()> {
        self.one(&self.recv_cq)?;
        self.post_receive()
    }

    /// Exchanges `count` messages of 64 bytes, busy-polling. Returns the seconds one way.
    pub(super) fn ping(&self, count: u32) -> Result<f64> {
        let start = Instant::now();
        for n in 1..=count {
            self.send_ping(n)?;
            self.poll_message()?;
        }
        let time = start.elapsed().as_secs_f64();
        self.end_pings(count)?;
        Ok(time / f64::from(count) / 2.0)
    }

    /// Runs the other side of [`ping`](Self::ping).
    pub(super) fn echo(&self, count: u32) -> Result<()> {
        for n in 1..=count {
            self.poll_message()?;
            self.send_ping(n)?;
        }
        self.end_pings(count)
    }

    /// Sends the n-th message. Some are signaled, and their completion is taken before the next such one: it has
    /// arrived by then.
    fn send_ping(&self, n: u32) -> Result<()> {
        let wr = SendWr::send(0).srq(self.to).inline(&[&[0x5a; PING as usize]]);
        if !n.is_multiple_of(SIGNAL_EVERY) {
            return Ok(self.qp.post_send(&wr)?);
        }
        if n > SIGNAL_EVERY {
            self.one(&self.send_cq)?;
        }
        Ok(self.qp.post_send(&wr.signaled())?)
    }

    /// Takes the last completion.
    fn end_pings(&self, count: u32) -> Result<()> {
        if count >= SIGNAL_EVERY {
            self.one(&self.send_cq)?;
        }
        Ok(())
    }

    fn one(&self, cq: &Cq) -> Result<Completion> {
        Ok(ok(Self::poll(cq, &mut [EMPTY], Instant::now())?[0])?)
    }

    /// Busy-polls until there are completions.
    fn poll<'b>(cq: &Cq, batch: &'b mut [Completion], start: Instant) -> Result<&'b [Completion]> {
        let mut turns = 0_u32;
        loop {
            match cq.poll(batch) {
                0 => turns = turns.wrapping_add(1),
                n => return Ok(&batch[..n]),
            }
            if turns.is_multiple_of(1 << 14) && start.elapsed() > TIMEOUT {
                bail!("the peer did not answer in time");
            }
        }
    }
}
