//! Datagrams: unreliable messages to any number of peers and groups.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::thread::JoinHandle;
use std::time::Duration;

use rdmux_cm::{ConnParam, EventKind, GroupAddr, GroupWish, JoinFlags, PortSpace, Route, UdParam};
use rdmux_verbs::device::PORT;
use rdmux_wire::sa::McMemberRecord;
use rdmux_wire::{Gid, Qkey, Qpn};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::Options;
use crate::cm::{Event, EventChannel, Id};
use crate::error::{Attempt, Cause, Error, Result};
use crate::style::{Blocking, Style, block_on};
use crate::wait::{Deadline, wait_any};
use crate::{
    Access, Ah, AttrMask, Completion, Context, Cq, EMPTY, Mr, PortState, Qp, QpAttr, QpState,
    QpType, SendWr, ok,
};

/// The network header in front of each received datagram.
const GRH: usize = 40;

/// An endpoint that sends and receives datagrams (UD). A datagram holds at most one packet
/// ([`max_len`](Self::max_len)), and may be lost.
///
/// Peers are named by [`Peer`], which [`resolve`](Self::resolve) and [`join`](Self::join) return and every received
/// datagram carries. A separate thread answers peers that resolve this endpoint.
///
/// On a device with several ports, the endpoint uses the port that has its address when it is created. It reaches and answers
/// only peers that are reached through that port.
///
/// ```
/// # fn main() -> rdmux::Result<()> {
/// # let context = rdmux::Context::builder().embedded().open()?;
/// # let bind = || rdmux::Options::new().context(&context).datagram((context.address()?, 0).into());
/// let (mut a, mut b) = (bind()?, bind()?);
/// let peer = a.resolve(b.local_addr())?;
/// a.send_to(&peer, b"hello")?;
/// let (message, from) = b.recv_from()?;
/// b.send_to(&from, &message)?;
/// assert_eq!(a.recv_from()?.0, b"hello");
/// # Ok(())
/// # }
/// ```
pub struct Datagram {
    qp: Qp,
    send_cq: Cq,
    recv_cq: Cq,
    buffer: Mr,
    slot: usize,
    /// The number of receive slots, which are followed by one send slot.
    slots: usize,
    /// The index of the endpoint's own address at the queue pair's port.
    sgid_index: u8,
    options: Options,
    context: Context,
    groups: Vec<Member>,
    local: SocketAddr,
    _answerer: Answerer,
}

/// A group that the endpoint has joined: its name, its address, and the id that joined it.
struct Member {
    name: GroupAddr,
    hears: bool,
    peer: Peer,
    id: Id,
}

impl Member {
    fn is_called(&self, name: GroupAddr) -> bool {
        self.name == name || name == self.peer.mgid().into()
    }
}

/// A destination of datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The address handle.
    pub ah: Ah,
    /// The queue pair; [`Qpn::MULTICAST`] for a group.
    pub qpn: Qpn,
    /// The Q_Key that the queue pair expects.
    pub qkey: Qkey,
}

impl Peer {
    /// Returns the GID of a group.
    fn mgid(&self) -> Gid {
        self.ah.vector().dgid
    }
}

impl From<&UdParam> for Peer {
    fn from(ud: &UdParam) -> Self {
        Self { ah: Ah::from_vector(ud.av), qpn: ud.qp_num, qkey: ud.qkey }
    }
}

impl Datagram {
    pub(super) fn new(options: Options, at: SocketAddr) -> Result<Self> {
        let context = options.open_context()?;
        options.check_depth(&context, 0)?;
        let channel = EventChannel::new(&context)?;
        let id = Id::new(&channel, PortSpace::Udp)?;
        let local = id.bind(at)?.socket().unwrap_or(at);
        let (port, sgid_index) = place_of(&context, local);
        let mtu = context.query_port_number(port)?.active_mtu.bytes() as usize;
        let (slot, slots) = (GRH + mtu, options.depth as usize);
        let pd = context.pd();
        let buffer = pd.alloc(slot * (slots + 1), Access::LOCAL_WRITE)?;
        let (send_cq, recv_cq) = (context.cq(1)?, context.cq(options.depth)?);
        let qp = pd
            .qp(QpType::Ud)
            .send_cq(&send_cq)
            .recv_cq(&recv_cq)
            .max_recv_wr(options.depth)
            .max_send_wr(1)
            .max_inline(0)
            .port(port)
            .build()?;
        qp.activate(Qkey::RDMA_UDP)?;
        id.listen(0)?;
        let answerer = Answerer::start(channel, id, qp.clone())?;
        let groups = Vec::new();
        let this = Self {
            qp,
            send_cq,
            recv_cq,
            buffer,
            slot,
            slots,
            sgid_index,
            options,
            context,
            groups,
            local,
            _answerer: answerer,
        };
        (0..slots).try_for_each(|slot| this.post(slot))?;
        Ok(this)
    }

    /// Creates an endpoint at an address of this host, with the [default options](Options::new). Port 0 takes a free
    /// one.
    ///
    /// # Errors
    /// When the address is in use or is none of this host's.
    pub fn bind(at: SocketAddr) -> Result<Self> {
        Options::new().datagram(at)
    }

    fn post(&self, slot: usize) -> Result<()> {
        let at = slot * self.slot;
        self.qp.post_recv(slot as u64, &[self.buffer.slice(at..at + self.slot)])
    }

    /// Returns the endpoint's address.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }
    /// Returns the device.
    pub fn context(&self) -> &Context {
        &self.context
    }
    /// Returns the length of the longest datagram, in bytes.
    pub fn max_len(&self) -> usize {
        self.slot - GRH
    }

    /// Finds the peer that receives at an address, by querying its host.
    ///
    /// # Errors
    /// When no program receives at the address, its host does not answer, or the peer is reached through another port of the device than
    /// this endpoint's.
    pub fn resolve(&self, to: SocketAddr) -> Result<Peer> {
        block_on(self.resolve_in::<Blocking>(to))
    }

    async fn resolve_in<S: Style>(&self, to: SocketAddr) -> Result<Peer> {
        let timeout = self.options.timeout;
        let deadline = Deadline::after(Some(timeout));
        let channel = EventChannel::new(&self.context)?;
        let id = Id::new(&channel, PortSpace::Udp)?;
        let own = self.local.ip();
        let is_like_it = !own.is_unspecified() && own.is_ipv4() == to.is_ipv4();
        id.resolve_addr(is_like_it.then(|| SocketAddr::new(own, 0).into()), to, timeout)?;
        next::<S>(&channel, deadline, EventKind::AddrResolved, to).await?;
        id.resolve_route(deadline.left().unwrap_or(Duration::MAX))?;
        next::<S>(&channel, deadline, EventKind::RouteResolved, to).await?;
        id.connect(&ConnParam { qp_num: self.qp.qpn(), ..ConnParam::default() })?;
        let event = next::<S>(&channel, deadline, EventKind::Established, to).await?;
        self.peer_of(&event, to)
    }

    /// Returns the peer of an event, if it is reached through the queue pair's port.
    fn peer_of(&self, event: &Event, to: SocketAddr) -> Result<Peer> {
        let wrong =
            |why| Error::new(format!("datagrams to {to}"), "resolve the peer", Cause::Invalid(why));
        let unknown = || wrong("the answer does not contain the peer's address".to_owned());
        let peer = event.ud().map(Peer::from).ok_or_else(unknown)?;
        let (port, own) = (peer.ah.vector().port_num, self.qp.port());
        if port != own {
            return Err(wrong(format!(
                "the peer is reached through port {port}, but {self} use port {own}"
            )));
        }
        Ok(peer)
    }

    /// Joins a multicast group. Its datagrams are received here from now on, and the returned peer addresses all its
    /// members. A group that was joined twice must be left twice; one that was lost can be joined again.
    ///
    /// # Errors
    /// When the address is not a group, or the network refuses.
    pub fn join(&mut self, group: impl Into<GroupAddr>) -> Result<Peer> {
        self.join_as(GroupWish::address(group, JoinFlags::FullMember))
    }

    /// Joins a multicast group according to a wish: to receive or only to send, by address or by an MCMemberRecord.
    ///
    /// # Errors
    /// When the wish is invalid, in which case the error names the field; or when the network refuses.
    pub fn join_as(&mut self, wish: GroupWish) -> Result<Peer> {
        block_on(self.join_in::<Blocking>(wish))
    }

    async fn join_in<S: Style>(&mut self, wish: GroupWish) -> Result<Peer> {
        let to = SocketAddr::new(wish.group().ip(), 0);
        let deadline = Deadline::after(Some(self.options.timeout));
        let channel = EventChannel::new(&self.context)?;
        let id = Id::new(&channel, PortSpace::Udp)?;
        let own = self.local.ip();
        let source = if own.is_unspecified() { self.context.address()? } else { own };
        id.bind(SocketAddr::new(source, 0))?;
        id.join(wish)?;
        let event = next::<S>(&channel, deadline, EventKind::MulticastJoin, to).await?;
        let peer = self.peer_of(&event, to)?;
        drop(event);
        let (mgid, hears) = (peer.mgid(), wish.hears());
        let name = if wish.group().is_new() { mgid.into() } else { wish.group() };
        self.forget_lost(name, mgid)?;
        if hears && !self.hears(mgid) {
            self.qp.attach_multicast(mgid)?;
        }
        self.groups.push(Member { name, hears, peer, id });
        Ok(peer)
    }

    /// Returns whether a member of this endpoint receives a group. The queue pair is attached to the group once for
    /// all of them.
    fn hears(&self, mgid: Gid) -> bool {
        self.groups.iter().any(|member| member.hears && member.peer.mgid() == mgid)
    }

    /// Removes the members that have lost their group.
    fn forget_lost(&mut self, name: GroupAddr, mgid: Gid) -> Result<()> {
        let is_lost = |member: &Member| {
            let is_it = member.is_called(name) || member.is_called(mgid.into());
            is_it && member.id.group(member.name).is_err()
        };
        while let Some(at) = self.groups.iter().position(is_lost) {
            self.forget(at)?;
        }
        Ok(())
    }

    /// Removes a member, and detaches the queue pair from its group unless other members receive it.
    fn forget(&mut self, at: usize) -> Result<Member> {
        let member = self.groups.remove(at);
        let mgid = member.peer.mgid();
        if member.hears && !self.hears(mgid) {
            self.qp.detach_multicast(mgid)?;
        }
        Ok(member)
    }

    fn member(&self, group: GroupAddr, asked: &'static str) -> Result<usize> {
        self.groups.iter().position(|member| member.is_called(group)).ok_or_else(|| {
            let cause = Cause::Invalid(format!("{group} was not joined"));
            Error::new(self.to_string(), asked, cause)
        })
    }

    /// Returns the network's record of a group.
    ///
    /// # Errors
    /// When the group was not joined, or was lost because its address or link was. It can be joined again then.
    pub fn group(&self, group: impl Into<GroupAddr>) -> Result<McMemberRecord> {
        let group = group.into().canonical();
        let at = self.member(group, "query a group")?;
        self.groups[at].id.group(self.groups[at].name)
    }

    /// Sends a datagram to a joined group, given by its address. Returns when the datagram has been sent.
    ///
    /// # Errors
    /// When the group was not joined, and as for [`send_to`](Self::send_to).
    pub fn send_to_group(&mut self, group: impl Into<GroupAddr>, message: &[u8]) -> Result<()> {
        let at = self.member(group.into().canonical(), "send to a group")?;
        let peer = self.groups[at].peer;
        self.send_to(&peer, message)
    }

    /// Leaves a group.
    ///
    /// # Errors
    /// When the group was not joined.
    pub fn leave(&mut self, group: impl Into<GroupAddr>) -> Result<()> {
        let at = self.member(group.into().canonical(), "leave a group")?;
        let Member { name, id, .. } = self.forget(at)?;
        id.leave_multicast(name)
    }

    /// Sends a datagram. Returns when it has been sent.
    ///
    /// # Errors
    /// [`Cause::TooLong`], or [`Cause::Completion`] when there is no route to the peer. Sending to other peers still works.
    pub fn send_to(&mut self, peer: &Peer, message: &[u8]) -> Result<()> {
        if message.len() > self.max_len() {
            let cause = Cause::TooLong { len: message.len(), max: self.max_len() };
            return Err(Error::new(self.to_string(), "send", cause));
        }
        let at = self.slots * self.slot;
        self.buffer.write(at, message);
        let piece = [self.buffer.slice(at..at + message.len())];
        let wr = SendWr::send(0).sges(&piece).signaled().to(&peer.ah, peer.qpn, peer.qkey);
        self.qp.post_send(&wr)?;
        // A datagram completes when it has been sent, because it is not acknowledged.
        let sent = self.send_cq.wait_one(None);
        if sent.is_err() && self.qp.state() == QpState::Sqe {
            let attr = QpAttr { state: QpState::Rts, ..self.qp.attr() };
            self.qp.modify(&attr, AttrMask::STATE)?;
        }
        sent.map(drop)
    }

    /// Waits for a datagram, and returns it and its sender.
    ///
    /// # Errors
    /// When the device is gone.
    pub fn recv_from(&mut self) -> Result<(Vec<u8>, Peer)> {
        block_on(self.recv_in::<Blocking>(Deadline::after(None)))
    }

    /// Waits for a datagram, at most for `timeout`.
    ///
    /// # Errors
    /// [`Cause::TimedOut`], or when the device is gone.
    pub fn recv_timeout(&mut self, timeout: Duration) -> Result<(Vec<u8>, Peer)> {
        block_on(self.recv_in::<Blocking>(Deadline::after(Some(timeout))))
    }

    async fn recv_in<S: Style>(&mut self, deadline: Deadline) -> Result<(Vec<u8>, Peer)> {
        let mut one = [EMPTY];
        loop {
            let completions = self.recv_cq.waiter().look();
            if self.recv_cq.poll_or_arm(&mut one)? == 1 {
                if let Some(received) = self.take(one[0])? {
                    return Ok(received);
                }
                continue;
            }
            if deadline.has_passed() {
                return Err(Error::new(self.to_string(), "receive", Cause::TimedOut));
            }
            S::one(completions, deadline).await.on(&self.recv_cq, "wait")?;
        }
    }

    /// Returns the index in the local GID table of the destination of a received datagram, from which it is answered; for a
    /// group, the index of the endpoint's own address.
    fn sgid_index_for(&self, grh: &[u8; GRH]) -> u8 {
        let to =
            Ah::destination(grh).and_then(|to| self.context.device().gid_index(self.qp.port(), to));
        to.unwrap_or(self.sgid_index)
    }

    /// Copies a datagram out and posts its slot again. None when its header is invalid.
    fn take(&self, done: Completion) -> Result<Option<(Vec<u8>, Peer)>> {
        let done = ok(done)?;
        let slot = usize::try_from(done.wr_id).unwrap_or(0);
        let (at, len) = (slot * self.slot, (done.byte_len as usize).max(GRH));
        let mut grh = [0; GRH];
        self.buffer.read(at, &mut grh);
        let message = self.buffer.to_vec(at + GRH..at + len);
        self.post(slot)?;
        let peer = |ah| Peer { ah, qpn: done.src_qp, qkey: Qkey::RDMA_UDP };
        let ah = Ah::reply_to_completion(&done, &grh, self.sgid_index_for(&grh));
        Ok(ah.map(|ah| (message, peer(ah.port(self.qp.port())))))
    }
}

/// Async forms of the above.
#[cfg(feature = "tokio")]
impl Datagram {
    /// Async form of [`resolve`](Self::resolve).
    ///
    /// # Errors
    /// As there.
    pub async fn resolve_async(&self, to: SocketAddr) -> Result<Peer> {
        self.resolve_in::<crate::style::Tokio>(to).await
    }
    /// Async form of [`join`](Self::join).
    ///
    /// # Errors
    /// As there.
    pub async fn join_async(&mut self, group: impl Into<GroupAddr>) -> Result<Peer> {
        self.join_as_async(GroupWish::address(group, JoinFlags::FullMember)).await
    }
    /// Async form of [`join_as`](Self::join_as).
    ///
    /// # Errors
    /// As there.
    pub async fn join_as_async(&mut self, wish: GroupWish) -> Result<Peer> {
        self.join_in::<crate::style::Tokio>(wish).await
    }
    /// Async form of [`recv_from`](Self::recv_from).
    ///
    /// # Errors
    /// As there.
    pub async fn recv_from_async(&mut self) -> Result<(Vec<u8>, Peer)> {
        self.recv_in::<crate::style::Tokio>(Deadline::after(None)).await
    }
}

/// Returns the next event, which must be of this kind.
async fn next<S: Style>(
    channel: &EventChannel,
    deadline: Deadline,
    kind: EventKind,
    to: SocketAddr,
) -> Result<Event> {
    let event = channel.next_in::<S>(deadline).await?;
    let late = || Error::new(format!("datagrams to {to}"), "resolve the peer", Cause::TimedOut);
    event.ok_or_else(late)?.expect(kind, "resolve the peer")
}

/// Returns the port that has a local address, and the address's index there. Where GIDs are not addresses, this is the first active port,
/// and the first index, which is the port's own GID.
fn place_of(context: &Context, local: SocketAddr) -> (u8, u8) {
    let ports = || 1..=context.num_ports();
    let index = |port| {
        let gids = context.gids_of_port(port);
        gids.iter().position(|entry| entry.gid == local.ip().into())
    };
    let by_gid = ports().find_map(|port| Some((port, u8::try_from(index(port)?).ok()?)));
    by_gid.unwrap_or_else(|| {
        let is_active = |port: &u8| {
            context.query_port_number(*port).is_ok_and(|attr| attr.state == PortState::Active)
        };
        (ports().find(is_active).unwrap_or(PORT), 0)
    })
}

impl fmt::Display for Datagram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "datagrams at {}", self.local)
    }
}

impl fmt::Debug for Datagram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Datagram({}, {:?})", self.local, self.qp)
    }
}

/// A thread that sends resolving peers the number of the queue pair. It ends when this value is dropped.
struct Answerer {
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Answerer {
    fn start(channel: EventChannel, id: Id, qp: Qp) -> Result<Self> {
        const ASKED: &str = "start a thread";
        let stop =
            eventfd(0, EventfdFlags::CLOEXEC).map_err(std::io::Error::from).on(&qp, ASKED)?;
        let until = stop.try_clone().on(&qp, ASKED)?;
        let name = qp.to_string();
        let thread = std::thread::Builder::new()
            .name("rdmux-datagram".to_owned())
            .spawn(move || {
                let _listening = id;
                if let Err(error) = answer(&channel, &qp, &until) {
                    tracing::warn!(%qp, %error, "stopped answering lookups: new peers cannot find this endpoint");
                }
            })
            .on(name, ASKED)?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

/// Answers until `until` is readable.
fn answer(channel: &EventChannel, qp: &Qp, until: &OwnedFd) -> Result<()> {
    let mut byte = [PollFd::new(until, PollFlags::IN)];
    loop {
        while let Some(mut event) = channel.try_next()? {
            if let Some(id) = event.take_id() {
                let param = ConnParam { qp_num: qp.qpn(), ..ConnParam::default() };
                // A peer that is reached through another port would get datagrams from there.
                let is_elsewhere = |route: Route| route.av.port_num != qp.port();
                let answered = match id.route() {
                    Some(route) if is_elsewhere(route) => id.reject(&[]),
                    _ => id.accept(&param),
                };
                if let Err(error) = answered {
                    tracing::debug!(%qp, %error, "cannot answer the lookup of a peer");
                }
            }
        }
        wait_any(&[channel.as_fd(), until.as_fd()], Deadline::after(None)).on(channel, "wait")?;
        if poll(&mut byte, Some(&Timespec::default())).is_ok_and(|n| n > 0) {
            return Ok(());
        }
    }
}

impl Drop for Answerer {
    fn drop(&mut self) {
        // An eventfd takes eight bytes. One write cannot fill it.
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has already ended.
            let _ = thread.join();
        }
    }
}
