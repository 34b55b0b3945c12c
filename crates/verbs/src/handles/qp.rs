//! Queue pairs (`ibv_create_qp(3)`, `ibv_modify_qp(3)`, `ibv_post_send(3)`).

use std::sync::{Arc, Once};

use parking_lot::Mutex;
use rdmux_transport::attr::{AttrMask, QpAttr, QpCaps, QpState, QpType};
use rdmux_transport::wr::{RecvWr, SendWr};
use rdmux_transport::{QpInit as MachineInit, SendMark, Time};
use rdmux_wire::{Gid, Qpn};

use crate::engine::device::Device;
use crate::engine::drive::Bound;
use crate::engine::machine::Machine;
use crate::engine::qp::{Ends, Objects, QpCore};
use crate::handles::cq::Cq;
use crate::handles::pd::Pd;
use crate::handles::srq::Srq;
use crate::objects::error::VerbsError;
use crate::objects::quota::{Counted, Permit};
use crate::objects::room;

/// Parameters of a new queue pair.
#[derive(Clone, Debug)]
pub struct QpInit {
    /// The transport of the queue pair.
    pub qp_type: QpType,
    /// The queue for completions of sends.
    pub send_cq: Cq,
    /// The queue for completions of receives.
    pub recv_cq: Cq,
    /// The shared receive queue to take receives from, instead of an own receive queue.
    pub srq: Option<Srq>,
    /// The sizes of the queues.
    pub caps: QpCaps,
    /// Whether every send produces a completion, signaled or not.
    pub sq_sig_all: bool,
    /// The caller's own value.
    pub context: u64,
}

/// A queue pair. Dropping it destroys it: outstanding work requests then never complete.
#[derive(Debug)]
pub struct Qp {
    pub(crate) core: Arc<QpCore>,
    pd: Pd,
    init: QpInit,
    groups: Mutex<Vec<Gid>>,
    /// Whether the queue pair has been removed from the device.
    closed: Once,
    _permit: Permit,
}

impl Qp {
    /// Creates a queue pair in RESET.
    ///
    /// # Errors
    ///
    /// EINVAL when a size is above the device's limit or an object belongs to another device, ENOMEM when the device has no queue
    /// pair left, or memory cannot be allocated.
    pub fn new(pd: &Pd, init: QpInit) -> Result<Self, VerbsError> {
        check(pd, &init)?;
        let device = pd.device();
        let mut machine = MachineInit {
            qpn: Qpn::default(),
            qp_type: init.qp_type,
            caps: machine_caps(&init),
            sq_sig_all: init.sq_sig_all,
            has_srq: init.srq.is_some(),
        };
        let transport = device.kind().transport_type();
        room::check("create a queue pair", Machine::queues_size(transport, &machine))?;
        let permit = device.permit("create a queue pair", Counted::Qp)?;
        machine.qpn = device.alloc_qpn()?;
        let objects = Objects {
            pd: pd.id(),
            recv_pd: init.srq.as_ref().map_or(pd.id(), |srq| srq.pd().id()),
            send_cq: init.send_cq.core.clone(),
            recv_cq: init.recv_cq.core.clone(),
            srq: init.srq.as_ref().map(|s| s.core.clone()),
        };
        let core = QpCore::new(transport, &machine, Ends::Own(objects), init.context);
        init.send_cq.core.add_user();
        init.recv_cq.core.add_user();
        device.insert_qp(&core);
        let (groups, closed) = (Mutex::default(), Once::new());
        Ok(Self { core, pd: pd.clone(), init, groups, closed, _permit: permit })
    }

    /// Posts a send. It has been transmitted when this returns, as far as the window and the link allow.
    ///
    /// # Errors
    ///
    /// ENOMEM when the send queue is full; EINVAL when the state, the transport or the sizes do not permit the request. The request
    /// is discarded.
    pub fn post_send(&self, wr: &SendWr<'_>) -> Result<(), VerbsError> {
        self.post_sends(std::slice::from_ref(wr)).map_err(|(_, error)| error)
    }

    /// Posts several sends in one call, which saves system calls.
    ///
    /// # Errors
    ///
    /// As for [`post_send`](Self::post_send), with the index of the first request that was rejected. The requests before it are
    /// posted.
    pub fn post_sends(&self, wrs: &[SendWr<'_>]) -> Result<(), (usize, VerbsError)> {
        let mut posting = self.posting();
        wrs.iter().enumerate().try_for_each(|(i, wr)| posting.send(wr).map_err(|e| (i, e)))
    }

    /// Posts a receive.
    ///
    /// # Errors
    ///
    /// As for [`post_send`](Self::post_send); EINVAL with a shared receive queue.
    pub fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), VerbsError> {
        self.posting().recv(wr)
    }

    /// Starts posting several work requests under one lock. They are transmitted when the returned posting is dropped.
    pub fn posting(&self) -> Posting<'_> {
        let mut bound = Bound::lock(self.device(), &self.core);
        let start = bound.machine().sends_posted();
        Posting { bound, start, since: None }
    }

    /// Changes attributes and state. A transition to RESET discards its work requests and their completions that have not been
    /// polled.
    ///
    /// # Errors
    ///
    /// EINVAL when the table of transitions does not permit it; ENETUNREACH and the like without a route to the peer. Nothing is
    /// changed then.
    pub fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Result<(), VerbsError> {
        self.core.modify(self.device(), attr, mask)
    }

    /// Returns all attributes.
    pub fn query(&self) -> QpAttr {
        self.core.state.lock().machine.attr()
    }
    /// Returns the state.
    pub fn state(&self) -> QpState {
        self.core.state.lock().machine.state()
    }
    /// Returns the number.
    pub fn qpn(&self) -> Qpn {
        self.core.qpn
    }
    /// Returns the parameters that it was created with.
    pub fn init(&self) -> &QpInit {
        &self.init
    }
    /// Returns the queue pair's protection domain.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }
    /// Returns the queue pair's device.
    pub fn device(&self) -> &Arc<Device> {
        self.pd.device()
    }

    /// Returns how many bytes of memory it uses, queues included.
    pub fn footprint(&self) -> usize {
        self.core.state.lock().machine.footprint()
    }

    /// Returns whether messages to the peer go through shared memory: to processes of this host, and on InfiniBand also to those of
    /// the user's other hosts on this machine.
    pub fn is_same_host(&self) -> bool {
        self.core.state.lock().path.neighbour().is_some()
    }

    /// Attaches to a multicast group (`ibv_attach_mcast(3)`); the host joins the group on the network.
    ///
    /// # Errors
    ///
    /// EINVAL unless this is a UD queue pair and `mgid` a group; [`VerbsError::Attached`] if it is attached already, which
    /// `ibv_attach_mcast(3)` reports as success; ENOMEM when the group has as many queue pairs, or the device is in as many groups,
    /// as the device allows.
    pub fn attach_multicast(&self, mgid: Gid) -> Result<(), VerbsError> {
        const WHAT: &str = "attach to a multicast group";
        if self.core.qp_type != QpType::Ud {
            return Err(VerbsError::invalid(WHAT, "only UD queue pairs can attach"));
        }
        if !mgid.is_multicast() {
            return Err(VerbsError::invalid(WHAT, format!("{mgid} is not a multicast GID")));
        }
        let mut groups = self.groups.lock();
        if groups.contains(&mgid) {
            return Err(VerbsError::Attached(mgid));
        }
        self.device().engine().attach(self.device(), &self.core, mgid)?;
        groups.push(mgid);
        Ok(())
    }

    /// Returns whether the queue pair is attached to a multicast group.
    pub fn is_attached(&self) -> bool {
        !self.groups.lock().is_empty()
    }

    /// Detaches from a multicast group.
    ///
    /// # Errors
    ///
    /// EINVAL if it is not attached.
    pub fn detach_multicast(&self, mgid: Gid) -> Result<(), VerbsError> {
        let mut groups = self.groups.lock();
        let Some(at) = groups.iter().position(|g| *g == mgid) else {
            let why = format!("not attached to {mgid}");
            return Err(VerbsError::invalid("detach from a multicast group", why));
        };
        groups.swap_remove(at);
        self.device().engine().detach(self.device(), &self.core, mgid)
    }

    /// Acknowledges an asynchronous event about this queue pair.
    pub fn ack_async_event(&self) {
        self.core.identity.unacked.ack(1);
    }

    /// Removes the queue pair from its device permanently, and its completions that were not polled, then waits until the events that the program took are acknowledged. No
    /// event can follow. The program must keep the data that the queue pair's context refers to until this returns, as events name
    /// it.
    pub fn quiesce(&self) {
        self.close();
        self.core.identity.unacked.wait();
    }

    fn close(&self) {
        self.closed.call_once(|| {
            let device = self.device();
            for mgid in self.groups.lock().drain(..) {
                if let Err(error) = device.engine().detach(device, &self.core, mgid) {
                    tracing::debug!(qpn = %self.core.qpn, %mgid, %error, "cannot leave a multicast group");
                }
            }
            device.drain();
            device.remove_qp(&self.core);
            device.engine().close_left_wires(device);
            device.events().withdraw(|e| e.is_about_qp(&self.core.identity));
        });
    }
}

/// Work requests that are being posted to a queue pair, which is locked meanwhile. Created by [`Qp::posting`].
pub struct Posting<'a> {
    bound: Bound<'a>,
    /// The end of the send queue before this posting.
    start: SendMark,
    /// The time at which the first send was posted.
    since: Option<Time>,
}

impl Posting<'_> {
    /// Posts a send.
    ///
    /// # Errors
    ///
    /// As for [`Qp::post_send`].
    pub fn send(&mut self, wr: &SendWr<'_>) -> Result<(), VerbsError> {
        let now = *self.since.get_or_insert_with(|| self.bound.now());
        let qpn = self.bound.qpn();
        self.bound.machine().post_send(now, wr).map_err(|error| VerbsError::Post { qpn, error })
    }

    /// Discards the sends posted so far, as if they had never been posted.
    pub fn cancel_sends(&mut self) {
        self.bound.machine().withdraw_sends(self.start);
    }

    /// Posts a receive.
    ///
    /// # Errors
    ///
    /// As for [`Qp::post_recv`].
    pub fn recv(&mut self, wr: &RecvWr<'_>) -> Result<(), VerbsError> {
        let qpn = self.bound.qpn();
        self.bound.machine().post_recv(wr).map_err(|error| VerbsError::Post { qpn, error })
    }
}

impl Drop for Posting<'_> {
    fn drop(&mut self) {
        if let Some(since) = self.since {
            self.bound.transmit_at(since);
        } else if self.bound.machine().state() == QpState::Err || self.bound.is_paused() {
            // Receives that were posted in the error state are flushed at once. A stream that waited for a receive continues.
            self.bound.transmit();
        }
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        self.close();
        self.init.send_cq.core.remove_user();
        self.init.recv_cq.core.remove_user();
    }
}

fn check(pd: &Pd, init: &QpInit) -> Result<(), VerbsError> {
    const WHAT: &str = "create a queue pair";
    let (limits, caps) = (pd.device().limits(), &init.caps);
    let sizes = [
        ("send work requests", caps.max_send_wr, limits.max_qp_wr),
        ("receive work requests", caps.max_recv_wr, limits.max_qp_wr),
        ("gather entries", caps.max_send_sge, limits.max_sge),
        ("scatter entries", caps.max_recv_sge, limits.max_sge),
        ("inline bytes", caps.max_inline_data, limits.max_inline_data),
    ];
    if let Some((name, n, max)) = sizes.iter().find(|(_, n, max)| n > max) {
        return Err(VerbsError::invalid(
            WHAT,
            format!("{n} {name} exceed the device's limit of {max}"),
        ));
    }
    let kind = pd.device().kind().row();
    if !kind.services.include(init.qp_type) {
        let why =
            format!("{} supports {}, not {:?}", kind.title, kind.services.title(), init.qp_type);
        return Err(VerbsError::unsupported(WHAT, why));
    }
    if init.qp_type == QpType::XrcRecv {
        return Err(VerbsError::invalid(
            WHAT,
            "an XRC receive queue pair must be created in an XRC domain",
        ));
    }
    if init.srq.as_ref().is_some_and(|srq| srq.number().is_some()) {
        return Err(VerbsError::invalid(
            WHAT,
            "the shared receive queue is for XRC receive queue pairs only",
        ));
    }
    let same = |device: &Arc<Device>| Arc::ptr_eq(device, pd.device());
    let foreign = !same(init.send_cq.device())
        || !same(init.recv_cq.device())
        || init.srq.as_ref().is_some_and(|srq| !same(srq.pd().device()));
    if foreign {
        return Err(VerbsError::invalid(
            WHAT,
            "its completion or receive queue belongs to another device",
        ));
    }
    if init.srq.as_ref().is_some_and(|srq| srq.domain().is_some()) {
        return Err(VerbsError::invalid(WHAT, "the receive queue belongs to an XRC domain"));
    }
    Ok(())
}

/// Returns the sizes for the state machine. With a shared receive queue, receives have as many entries as that queue allows.
fn machine_caps(init: &QpInit) -> QpCaps {
    match &init.srq {
        Some(srq) => QpCaps { max_recv_sge: srq.attr().max_sge, ..init.caps },
        None => init.caps,
    }
}
