//! Connection establishment, on both sides.

use std::net::SocketAddr;
use std::time::Duration;

use rdmux_cm::{Addr, EventKind, PortSpace};

use super::connection::{Connection, Core};
use super::{Options, Receiver, Sender};
use crate::cm::{Event, EventChannel, Id};
use crate::error::{Attempt as _, Cause, Error, Result};
use crate::resolver::Answer;
use crate::style::Style;
use crate::wait::Deadline;
use crate::{Cq, QpType};

/// The number of one-sided operations that may be outstanding besides messages.
pub(super) const ONE_SIDED: u32 = 16;

/// Returns an answer that contains only an address.
pub(super) fn by_ip(to: SocketAddr) -> Answer {
    Answer { dst: Some(to.into()), ..Answer::default() }
}

/// Checks that an answer of the resolver is for connections by RC queue pairs.
fn check_answer(to: &Answer) -> Result<()> {
    let is_rc = matches!(to.qp_type, None | Some(QpType::Rc));
    if is_rc && !matches!(to.port_space, Some(PortSpace::Udp | PortSpace::IpoIb)) {
        return Ok(());
    }
    let kind = to.qp_type.map_or_else(|| "datagram".to_owned(), |kind| format!("{kind:?}"));
    let why = format!(
        "the answer is for {kind} queue pairs, and a connection needs RC; resolve with the port space Tcp and \
         without another type in the hints"
    );
    Err(Cause::Invalid(why)).on("a connection", "connect")
}

/// Connects as the active side, from resolving the address to the connection. Known paths make resolving unnecessary.
pub(super) async fn connect<S: Style>(options: Options, to: Answer) -> Result<Connection> {
    check_answer(&to)?;
    let context = options.open_context()?;
    options.check(&context)?;
    let deadline = Deadline::after(Some(options.timeout));
    let channel = EventChannel::new(&context)?;
    let dst = to.dst.ok_or(Cause::Invalid("an answer without a destination".to_owned()));
    let dst = dst.on("a connection", "connect")?;
    let space = to.port_space.unwrap_or(PortSpace::Tcp);
    let id = Id::with_type(&channel, space, to.qp_type.unwrap_or(QpType::Rc))?;
    let src = options.source.map(Addr::from).or(to.src);
    let along = match &to.paths[..] {
        [] => false,
        paths => match id.resolve_along(src, dst, paths) {
            // The failed call changed nothing.
            Err(error) if to.by_acm => {
                tracing::debug!(%error, "cannot use the path from ACM; resolving it again");
                false
            }
            taken => taken.map(|()| true)?,
        },
    };
    if !along {
        id.resolve_addr(src, dst, options.timeout)?;
        expect::<S>(&channel, EventKind::AddrResolved, deadline, dst).await?;
        id.resolve_route(deadline.left().unwrap_or(Duration::MAX))?;
    }
    expect::<S>(&channel, EventKind::RouteResolved, deadline, dst).await?;

    let mut halves = Halves::new(&options, id, &channel)?;
    let mut param = options.conn_param(&context);
    param.private_data.splice(..0, to.connect);
    halves.id.connect(&param)?;
    let event = expect::<S>(&channel, EventKind::Established, deadline, dst).await?;
    halves.private_data = event.private_data().to_vec();
    Ok(halves.join())
}

/// Waits for one kind of event, or for the failure reported instead.
async fn expect<S: Style>(
    channel: &EventChannel,
    kind: EventKind,
    deadline: Deadline,
    to: Addr,
) -> Result<Event> {
    match channel.next_in::<S>(deadline).await? {
        Some(event) => event.expect(kind, "connect"),
        None => Err(Error::new(format!("connection to {to}"), "connect", Cause::TimedOut)),
    }
}

/// A connection that is being established: this side is ready, and the peer has not confirmed yet.
#[derive(Debug)]
pub(super) struct Halves {
    pub(super) id: Id,
    pub(super) private_data: Vec<u8>,
    channel: EventChannel,
    sender: Sender,
    receiver: Receiver,
}

impl Halves {
    /// Creates the queue pair with its buffers, posts the receives and attaches it to the id.
    pub(super) fn new(options: &Options, id: Id, channel: &EventChannel) -> Result<Self> {
        let context = channel.context();
        let pd = context.pd();
        let sends = options.depth + ONE_SIDED;
        let (send_cq, recv_cq): (Cq, Cq) = (context.cq(sends)?, context.cq(options.depth)?);
        let qp = pd
            .qp(QpType::Rc)
            .send_cq(&send_cq)
            .recv_cq(&recv_cq)
            .max_send_wr(sends)
            .max_recv_wr(options.depth)
            .max_inline(0)
            .build()?;
        id.attach_qp(&qp)?;
        let sender = Sender::new(options, &qp)?;
        let receiver = Receiver::new(options, &qp)?;
        let channel = channel.clone();
        Ok(Self { id, private_data: Vec::new(), channel, sender, receiver })
    }

    /// Returns the connection, after the peer has confirmed it.
    pub(super) fn join(self) -> Connection {
        let halves = (&self.sender, &self.receiver);
        let core = Core::new(self.id, self.channel, self.private_data, halves);
        Connection::new(core, self.sender, self.receiver)
    }

    /// Like [`join`](Self::join), with an event channel of its own.
    pub(super) fn join_with_channel(mut self) -> Result<Connection> {
        let own = EventChannel::new(self.channel.context())?;
        self.id.migrate(&own)?;
        self.channel = own;
        Ok(self.join())
    }
}
