//! Many connections: their rate, and their cost.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rdmux::cm::{ConnParam, Event, EventChannel, EventKind, Id, PortSpace};
use rdmux::resolver::Answer;
use rdmux::{Context, Cq, Pd, Qp, QpType};

use rdmux_command::cmutil::RESOLVE;

/// How long a side waits for the other.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The objects that connections of one process share.
pub(super) struct Connector {
    channel: EventChannel,
    pd: Pd,
    cq: Cq,
}

/// A connection, established or in progress.
pub(super) struct Node {
    id: Id,
    qp: Option<Qp>,
}

impl Connector {
    /// Returns a connector on this device.
    pub(super) fn new(context: &Context) -> Result<Self> {
        let (channel, pd, cq) = (EventChannel::new(context)?, context.pd(), context.cq(4096)?);
        Ok(Self { channel, pd, cq })
    }

    fn qp(&self, id: &Id) -> Result<Qp> {
        let qp = self.pd.qp(QpType::Rc).cq(&self.cq).max_send_wr(16).max_recv_wr(16).build()?;
        id.attach_qp(&qp)?;
        Ok(qp)
    }

    fn param() -> ConnParam {
        ConnParam { retry_count: 7, rnr_retry_count: 7, ..ConnParam::default() }
    }

    /// Connects `count` times, at most `at_once` at a time. Returns connections per second, from the first call to
    /// the last connection.
    pub(super) fn connect(
        &self,
        to: SocketAddr,
        count: usize,
        at_once: usize,
    ) -> Result<(Vec<Node>, f64)> {
        let to = Answer { dst: Some(to.into()), ..Answer::default() };
        self.connect_along(&to, count, at_once)
    }

    /// Connects as [`connect`](Self::connect) does, along the paths of a resolver's answer, if it has some.
    pub(super) fn connect_along(
        &self,
        to: &Answer,
        count: usize,
        at_once: usize,
    ) -> Result<(Vec<Node>, f64)> {
        let Some(dst) = to.dst else { bail!("the resolver's answer has no destination") };
        let start = Instant::now();
        let mut nodes = Vec::with_capacity(count);
        let mut established = 0;
        while established < count {
            while nodes.len() < count && nodes.len() - established < at_once {
                let id = Id::new(&self.channel, PortSpace::Tcp)?;
                if to.paths.is_empty() {
                    id.resolve_addr(None, dst, RESOLVE)?;
                } else {
                    id.resolve_along(to.src, dst, &to.paths)?;
                }
                nodes.push(Node { id, qp: None });
            }
            let Some(event) = self.channel.next(Some(TIMEOUT))? else {
                bail!("timed out: {established} of {count} connections were established");
            };
            established += usize::from(self.follow(&mut nodes, event, &to.connect)?);
        }
        Ok((nodes, count as f64 / start.elapsed().as_secs_f64()))
    }

    /// Advances a connection by one event. Returns whether it is established now.
    fn follow(&self, nodes: &mut [Node], event: Event, private_data: &[u8]) -> Result<bool> {
        // The event is most likely of one of the newest.
        let Some(node) = nodes.iter_mut().rev().find(|n| event.is_for(&n.id)) else {
            return Ok(false);
        };
        match event.kind() {
            EventKind::AddrResolved => node.id.resolve_route(RESOLVE)?,
            EventKind::RouteResolved => {
                node.qp = Some(self.qp(&node.id)?);
                let private_data = private_data.to_vec();
                node.id.connect(&ConnParam { private_data, ..Self::param() })?;
            }
            _ => {
                event.expect(EventKind::Established, "connect")?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Ends connections and waits until the peer has answered all disconnects.
    pub(super) fn disconnect(&self, nodes: Vec<Node>) -> Result<()> {
        for node in &nodes {
            node.id.disconnect()?;
        }
        let mut left = nodes.len();
        while left > 0 {
            match self.channel.next(Some(TIMEOUT))? {
                Some(event) => left -= usize::from(event.kind() == EventKind::Disconnected),
                None => bail!("timed out: {left} connections were not disconnected"),
            }
        }
        Ok(())
    }

    /// Runs the passive side: accepts `count` connections, and returns when all of them have ended.
    pub(super) fn accept(
        &self,
        at: IpAddr,
        count: u32,
        listening: impl FnOnce(SocketAddr) -> Result<()>,
    ) -> Result<()> {
        let listener = Id::new(&self.channel, PortSpace::Tcp)?;
        let any = SocketAddr::new(at, 0);
        let at = listener.bind(any)?.socket().unwrap_or(any);
        listener.listen(0)?;
        listening(at)?;
        let mut nodes: Vec<Node> = Vec::new();
        let mut ended = 0;
        while ended < count {
            let Some(mut event) = self.channel.next(Some(TIMEOUT))? else {
                bail!(
                    "timed out: {} of {count} connections were accepted, {ended} disconnected",
                    nodes.len()
                );
            };
            match event.kind() {
                EventKind::ConnectRequest => {
                    let Some(id) = event.take_id() else { continue };
                    let qp = Some(self.qp(&id)?);
                    id.accept(&Self::param())?;
                    nodes.push(Node { id, qp });
                }
                EventKind::Disconnected => {
                    if let Some(at) = nodes.iter().position(|n| event.is_for(&n.id)) {
                        nodes.swap_remove(at).id.disconnect()?;
                    }
                    ended += 1;
                }
                _ => {}
            }
        }
        Ok(())
    }
}
