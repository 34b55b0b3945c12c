//! What is measured on a connection, whatever its transport: both sides.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rdmux::{Completion, Cq, EMPTY, Mr, Qp, SendWr, Srq, ok};

/// Bytes of a ping-pong message.
pub(super) const PING: u16 = 64;
/// One send in so many gives a completion.
const SIGNAL_EVERY: u32 = 64;
/// How long a side waits for the other.
const TIMEOUT: Duration = Duration::from_secs(20);

/// One side: where it sends and where it receives.
pub(super) struct End {
    pub(super) qp: Qp,
    pub(super) send_cq: Cq,
    pub(super) recv_cq: Cq,
    /// Where receives are posted, if not to the queue pair.
    pub(super) srq: Option<Srq>,
    /// The peer's shared receive queue, which XRC names in each request.
    pub(super) to: u32,
    /// Where messages come from and where they arrive, over each other.
    pub(super) memory: Mr,
    /// The longest message.
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

    /// Sends messages of `size` bytes `count` times and waits for the last acknowledgement: seconds. Half of `depth`
    /// is posted at a time. The other side runs [`sink`](Self::sink).
    pub(super) fn send_all(&self, size: usize, count: u32, depth: u32) -> Result<f64> {
        let piece = [self.memory.slice(..size)];
        self.post_all(SendWr::send(0).sges(&piece), count, depth)
    }

    /// Posts `wr` `count` times, half of `depth` at a time, of which the last gives a completion, and waits for
    /// the last of all: seconds.
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

    /// Takes `count` messages, and posts a receive for each.
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

    /// Sends a message, which ends [`wait_message`](Self::wait_message).
    pub(super) fn send(&self) -> Result<()> {
        let wr = SendWr::send(0).srq(self.to);
        self.qp.post_send(&wr.inline(&[b"end"]).signaled())?;
        self.one(&self.send_cq).map(drop)
    }

    /// Sleeps until a message comes.
    pub(super) fn wait_message(&self) -> Result<()> {
        self.recv_cq.wait_one(Some(TIMEOUT))?;
        self.post_receive()
    }

    /// Polls until a message comes.
    fn poll_message(&self) -> Result<()> {
        self.one(&self.recv_cq)?;
        self.post_receive()
    }

    /// Exchanges `count` messages of 64 bytes, polling: seconds one way.
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

    /// The other side of [`ping`](Self::ping).
    pub(super) fn echo(&self, count: u32) -> Result<()> {
        for n in 1..=count {
            self.poll_message()?;
            self.send_ping(n)?;
        }
        self.end_pings(count)
    }

    /// Sends the n-th message. One in so many gives a completion, which is taken before the next such
    /// one: it is there by then.
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

    /// Takes the completion that is left.
    fn end_pings(&self, count: u32) -> Result<()> {
        if count >= SIGNAL_EVERY {
            self.one(&self.send_cq)?;
        }
        Ok(())
    }

    fn one(&self, cq: &Cq) -> Result<Completion> {
        Ok(ok(Self::poll(cq, &mut [EMPTY], Instant::now())?[0])?)
    }

    /// Polls until there is something.
    fn poll<'b>(cq: &Cq, batch: &'b mut [Completion], start: Instant) -> Result<&'b [Completion]> {
        let mut turns = 0_u32;
        loop {
            match cq.poll(batch) {
                0 => turns = turns.wrapping_add(1),
                n => return Ok(&batch[..n]),
            }
            if turns.is_multiple_of(1 << 14) && start.elapsed() > TIMEOUT {
                bail!("the peer does not answer");
            }
        }
    }
}
