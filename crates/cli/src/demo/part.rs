//! The other side of the demo, a separate process.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rdmux::{Access, Context, Datagram, Mr, Options, WcFlags};

use super::protocol::{Answer, Ask, Data, Kind};
use super::side::{Side, TIMEOUT, compare, pattern};
use rdmux_command::child::{self, Reply};

/// The current objects of this process.
struct Part {
    context: Context,
    side: Option<Side>,
    disposable: Option<Mr>,
    datagrams: Option<Datagram>,
}

/// Serves requests until its input closes.
pub(super) fn run(context: Context) -> Result<()> {
    let mut part = Part { context, side: None, disposable: None, datagrams: None };
    child::serve(|ask, reply| part.answer(ask, reply))
}

impl Part {
    fn side(&self) -> Result<&Side> {
        self.side.as_ref().context("there is no connection")
    }

    fn datagrams(&mut self) -> Result<&mut Datagram> {
        self.datagrams.as_mut().context("this process receives no datagrams yet")
    }

    fn answer(&mut self, ask: Ask, reply: &mut Reply<Answer>) -> Result<Answer> {
        match ask {
            Ask::Accept { at, kind } => {
                self.side = None;
                let listening = |at| reply.send(Answer::Listening(at));
                let side = Side::accept(&self.context, at, kind, listening)?;
                return Ok(Answer::Memory(self.side.insert(side).memory.remote().into()));
            }
            Ask::Reject { at, words } => {
                let listening = |at| reply.send(Answer::Listening(at));
                let (_channel, id, _) = Side::request(&self.context, at, Kind::Rc, listening)?;
                id.reject(words.as_bytes())?;
            }
            Ask::PostReceive => self.side()?.post_receive()?,
            Ask::Receive(data) => return self.receive(data),
            Ask::Fill(data) => self.side()?.fill(data),
            Ask::Compare(data) => self.side()?.await_data(data)?,
            Ask::Load => return Ok(Answer::Word(self.side()?.memory.load(0))),
            Ask::Store(word) => self.side()?.memory.store(0, word),
            Ask::Disposable => {
                let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
                let mr = self.side()?.qp.pd().alloc(4096, access)?;
                return Ok(Answer::Memory(self.disposable.insert(mr).remote().into()));
            }
            Ask::WaitDisconnected => {
                self.side()?.wait_disconnected()?;
                self.side = None;
            }
            Ask::Datagrams { at } => {
                let options = Options::new().context(&self.context).depth(64);
                let datagrams = options.datagram((at, 0).into())?;
                reply.send(Answer::Listening(datagrams.local_addr()))?;
                self.datagrams = Some(datagrams);
            }
            Ask::Join(group) => drop(self.datagrams()?.join(group)?),
            Ask::ReturnDatagram(data) => return_datagram(self.datagrams()?, data)?,
            Ask::Send(data) => self.side()?.send(data)?,
            Ask::SayFirst { at, connections } => {
                let options = Options::new().context(&self.context).depth(4).timeout(TIMEOUT);
                let mut listener = options.message_size(64).bind((at, 0).into())?;
                reply.send(Answer::Listening(listener.local_addr()))?;
                for n in 0..connections {
                    let mut connection = listener.accept()?;
                    connection.send(&n.to_be_bytes())?;
                    // Waits for the other side, which ends the connection when it has read the message.
                    ensure!(
                        connection.recv()?.is_none(),
                        "connection {n} received an unexpected message"
                    );
                }
            }
        }
        Ok(Answer::Done)
    }

    fn receive(&self, data: Data) -> Result<Answer> {
        let done = self.side()?.receive(data)?;
        let imm = done.flags.contains(WcFlags::WITH_IMM).then_some(done.imm);
        let invalidated = done.flags.contains(WcFlags::WITH_INV).then_some(done.invalidated.0);
        Ok(Answer::Message { imm, invalidated })
    }
}

fn return_datagram(datagrams: &mut Datagram, data: Data) -> Result<()> {
    const LONG: Duration = TIMEOUT;
    let (message, from) = datagrams.recv_timeout(LONG).context("no datagram arrived in time")?;
    compare("the datagram", &message, &pattern(data))?;
    Ok(datagrams.send_to(&from, &message)?)
}
