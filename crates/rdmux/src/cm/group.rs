//! Multicast groups of an id.
//!
//! ```
//! use std::net::{Ipv4Addr, SocketAddr};
//! use std::time::Duration;
//! use rdmux::cm::{EventChannel, EventKind, GroupWish, Id, JoinFlags, PortSpace};
//! use rdmux::{QpType, SendWr};
//!
//! # fn main() -> rdmux::Result<()> {
//! # let context = rdmux::Context::builder().embedded().open()?;
//! # let own = context.address()?;
//! let group = Ipv4Addr::new(239, 77, 1, 2);
//! let channel = EventChannel::new(&context)?;
//! let id = Id::new(&channel, PortSpace::Udp)?;
//! id.bind(SocketAddr::from((own, 0)))?;
//! let cq = context.cq(16)?;
//! id.attach_qp(&context.pd().qp(QpType::Ud).cq(&cq).max_inline(64).build()?)?;
//!
//! id.join(GroupWish::address(group, JoinFlags::FullMember))?;
//! let event = channel.next(Some(Duration::from_secs(5)))?.expect("an answer");
//! drop(event.expect(EventKind::MulticastJoin, "join")?);
//!
//! assert_eq!(id.group(group)?.mgid.ip(), group);
//! id.send_to(SendWr::send(1).inline(&[b"hello"]).signaled(), group)?;
//! cq.wait_one(None)?;
//! id.leave_multicast(group)?;
//! # Ok(())
//! # }
//! ```

use std::io;

use rdmux_cm::{GroupAddr, GroupWish, JoinFlags};
use rdmux_wire::sa::McMemberRecord;

use super::core::{Group, NOT_YET, replace};
use super::id::Id;
use crate::error::{Attempt, Cause, Error, Result};
use crate::{Ah, SendWr};

/// The errno of a group that the id has not joined, EADDRNOTAVAIL.
const NOT_JOINED: i32 = 99;

impl Id {
    /// Joins a multicast group on the id's address. The outcome is an event MulticastJoin (with what an address
    /// handle needs) or MulticastError. The attached queue pair receives the group's datagrams from that event on,
    /// unless the id only sends.
    ///
    /// # Errors
    /// When the id has no address yet or is no datagram id.
    pub fn join_multicast(&self, group: impl Into<GroupAddr>, flags: JoinFlags) -> Result<()> {
        self.join(GroupWish::address(group, flags))
    }

    /// Joins a group like [`join_multicast`](Self::join_multicast), given a wish: an address, or an MCMemberRecord and
    /// its component mask. On InfiniBand these reach subnet administration unchanged.
    ///
    /// # Errors
    /// When the id has no address yet or is no datagram id, or a field is invalid, which the error names.
    pub fn join(&self, wish: GroupWish) -> Result<()> {
        let name = wish.group();
        let core = self.core();
        let key = {
            let mut state = core.lock();
            state.last_group += 1;
            let key = state.last_group;
            let (hears, attached, way) = (wish.hears(), false, Err(NOT_YET));
            state.groups.push(Group { key, name, hears, attached, way, replaced: false });
            key
        };
        let asked = core.context.client().join_multicast(core.handle, wish, key);
        let mut state = core.lock();
        match asked {
            Ok(()) => replace(&mut state.groups, key),
            Err(_) => state.groups.retain(|group| group.key != key),
        }
        drop(state);
        asked.on(format_args!("{core}, group {name}"), "join")
    }

    /// Leaves a group, given the name with which it was joined, or its GID.
    ///
    /// # Errors
    /// When the id is not a member.
    pub fn leave_multicast(&self, group: impl Into<GroupAddr>) -> Result<()> {
        let name = group.into().canonical();
        let core = self.core();
        let left = self.find(name, "leave")?;
        core.leave(left.key);
        let left = core.context.client().leave_multicast(core.handle, left.key);
        left.map(drop).on(format_args!("{core}, group {name}"), "leave")
    }

    /// Returns the network's record of a group.
    ///
    /// # Errors
    /// When the id is not a member: it has not joined, its join is still pending, or it has lost the group.
    pub fn group(&self, group: impl Into<GroupAddr>) -> Result<McMemberRecord> {
        let name = group.into().canonical();
        let core = self.core();
        let key = self.find(name, "query a group")?.key;
        let known = core.context.client().group(core.handle, key);
        known.on(format_args!("{core}, group {name}"), "query a group")
    }

    /// Posts a send on the attached queue pair to a joined group and fills in its destination and Q_Key. For the shortest
    /// path in the program, keep an address handle made from the event ([`Ah::from_vector`]).
    ///
    /// # Errors
    /// When the id is not a member or has no queue pair, or the queue is full. Nothing is sent then.
    pub fn send_to(&self, wr: SendWr<'_>, group: impl Into<GroupAddr>) -> Result<()> {
        let name = group.into().canonical();
        let asked = "send to a group";
        let (qp, way) = {
            let state = self.core().lock();
            let group = state.groups.iter().find(|group| group.is_called(name));
            let way = group.map_or(Err(NOT_JOINED), |group| {
                let way = group.way.as_ref().map_err(|why| *why)?;
                Ok((Ah::from_vector(way.av), way.qp_num, way.qkey))
            });
            (state.qp.clone(), way)
        };
        let (ah, qpn, qkey) = way.map_err(|why| no_member(self, name, asked, why))?;
        let Some(qp) = qp else {
            let cause = Cause::Invalid("no queue pair is attached".to_owned());
            return Err(Error::new(self.core().to_string(), asked, cause));
        };
        qp.post_send(&wr.to(&ah, qpn, qkey))
    }

    fn find(&self, name: GroupAddr, asked: &'static str) -> Result<Group> {
        let is_meant = |g: &&Group| !g.replaced && g.is_called(name);
        let found = self.core().lock().groups.iter().find(is_meant).cloned();
        found.ok_or_else(|| no_member(self, name, asked, NOT_JOINED))
    }
}

fn no_member(id: &Id, name: GroupAddr, asked: &'static str, errno: i32) -> Error {
    let cause = Cause::from(io::Error::from_raw_os_error(errno));
    Error::new(format!("{}, group {name}", id.core()), asked, cause)
}
