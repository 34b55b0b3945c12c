//! Code that client and server share: a queue pair with its buffers, and waiting for the next step.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{Result, bail};
use rdmux::cm::{ConnParam, EventChannel, EventKind, Id};
use rdmux::{Access, Context, Cq, Mr, Qp, QpType, RemoteMr, SendWr, WcOpcode};

use super::exchange::MAX_SIZE;
use rdmux_command::cmutil::{self, Notification};

/// The number of receives posted at any time.
const RECEIVES: usize = 2;
const ADVERT: usize = RemoteMr::SHORT_LEN;

/// One side of an exchange.
pub(super) struct Endpoint {
    pub(super) id: Id,
    channel: EventChannel,
    qp: Qp,
    cq: Cq,
    /// Slots for the peer's adverts, followed by one for this side's.
    adverts: Mr,
    /// Received adverts that were not requested yet.
    received: VecDeque<RemoteMr>,
    timeout: Duration,
}

/// The reason why an exchange has ended.
pub(super) enum Over {
    /// The peer disconnected.
    Disconnected,
}

impl Endpoint {
    /// Creates the queue pair for `id`, with its receives posted.
    pub(super) fn new(channel: &EventChannel, id: Id, timeout: Duration) -> Result<Self> {
        let context = channel.context();
        let (pd, cq) = (context.pd(), context.cq(32)?);
        let qp = pd.qp(QpType::Rc).cq(&cq).max_send_wr(16).max_recv_wr(2).max_sge(1).build()?;
        let adverts = pd.alloc((RECEIVES + 1) * ADVERT, Access::LOCAL_WRITE)?;
        id.attach_qp(&qp)?;
        let (channel, received) = (channel.clone(), VecDeque::new());
        let this = Self { id, channel, qp, cq, adverts, received, timeout };
        (0..RECEIVES).try_for_each(|slot| this.post(slot))?;
        Ok(this)
    }

    /// Allocates a buffer that the peer reads and writes.
    pub(super) fn buffer(&self, len: usize) -> Result<Mr> {
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        Ok(self.qp.pd().alloc(len.min(MAX_SIZE), access)?)
    }

    /// Returns the parameters with which `rping` connects and accepts.
    pub(super) fn conn_param() -> ConnParam {
        ConnParam {
            responder_resources: 1,
            initiator_depth: 1,
            retry_count: 7,
            rnr_retry_count: 7,
            ..ConnParam::default()
        }
    }

    fn post(&self, slot: usize) -> Result<()> {
        let at = slot * ADVERT;
        Ok(self.qp.post_recv(slot as u64, &[self.adverts.slice(at..at + ADVERT)])?)
    }

    /// Sends the peer a buffer's address, key and length. A go-ahead has the same form, but its contents are ignored.
    pub(super) fn advertise(&self, buffer: RemoteMr) -> Result<()> {
        let at = RECEIVES * ADVERT;
        let Some(bytes) = buffer.to_short_bytes() else {
            bail!("a buffer of 4 GiB or more does not fit rping's messages")
        };
        self.adverts.write(at, &bytes);
        let piece = [self.adverts.slice(at..at + ADVERT)];
        Ok(self.qp.post_send(&SendWr::send(0).sges(&piece).signaled())?)
    }

    /// Waits for the peer's next message.
    pub(super) fn hear(&mut self) -> Result<std::result::Result<RemoteMr, Over>> {
        loop {
            if let Some(advert) = self.received.pop_front() {
                return Ok(Ok(advert));
            }
            if let Some(over) = self.step()? {
                return Ok(Err(over));
            }
        }
    }

    /// Posts a READ or a WRITE and waits until it has completed.
    pub(super) fn transfer(&mut self, wr: SendWr<'_>) -> Result<std::result::Result<(), Over>> {
        self.qp.post_send(&wr.signaled())?;
        loop {
            match cmutil::wait(&self.cq, &self.channel, self.timeout)? {
                Notification::Completion(done) => {
                    if matches!(done.opcode, WcOpcode::RdmaRead | WcOpcode::RdmaWrite) {
                        return Ok(Ok(()));
                    }
                    self.take(&done)?;
                }
                Notification::Event(event) => {
                    if let Some(over) = is_over(event.kind()) {
                        return Ok(Err(over));
                    }
                }
            }
        }
    }

    fn step(&mut self) -> Result<Option<Over>> {
        match cmutil::wait(&self.cq, &self.channel, self.timeout)? {
            Notification::Completion(done) => self.take(&done).map(|()| None),
            Notification::Event(event) => Ok(is_over(event.kind())),
        }
    }

    /// Stores a received message and posts its receive again.
    fn take(&mut self, done: &rdmux::Completion) -> Result<()> {
        if done.opcode != WcOpcode::Recv {
            return Ok(());
        }
        let slot = usize::try_from(done.wr_id)?;
        if done.byte_len as usize != ADVERT {
            bail!("the peer sent {} bytes; rping's messages have {ADVERT}", done.byte_len);
        }
        let at = slot * ADVERT;
        self.received.extend(RemoteMr::from_short_bytes(&self.adverts.to_vec(at..at + ADVERT)));
        self.post(slot)
    }

    /// Ends the connection and waits until the peer has noticed.
    pub(super) fn disconnect(self) -> Result<()> {
        self.id.disconnect()?;
        cmutil::expect(&self.channel, EventKind::Disconnected, "disconnect", self.timeout)?;
        Ok(())
    }

    pub(super) fn context(&self) -> &Context {
        self.channel.context()
    }
}

fn is_over(kind: EventKind) -> Option<Over> {
    matches!(kind, EventKind::Disconnected | EventKind::DeviceRemoval).then_some(Over::Disconnected)
}
