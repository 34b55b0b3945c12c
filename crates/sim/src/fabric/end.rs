//! A queue pair with the state of its application.

use std::collections::VecDeque;

use rdmux_transport::attr::{AddressVector, QpCaps, QpType};
use rdmux_transport::{Qp, QpInit, Time};
use rdmux_wire::{Gid, Grh, Lid, Pkey, Qpn};

use super::Plan;
use crate::endpoint::{Expected, RecvRecord, SendRecord};
use crate::memory::Mr;

/// The most bytes posted inline.
pub(super) const MAX_INLINE: u32 = 64;

/// The first queue pair's number.
const FIRST_QPN: u32 = 0x1000;

/// A queue pair with the state of its application.
#[derive(Debug)]
pub(super) struct End {
    pub(super) host: usize,
    pub(super) qp: Qp,
    /// The number of the plan, and which end this is.
    pub(super) plan: (usize, usize),
    /// The other end; for UD this one.
    pub(super) peer: usize,
    /// The address of the peer; unused for UD.
    pub(super) path: AddressVector,
    /// Groups that it has joined.
    pub(super) groups: Vec<usize>,
    pub(super) to_post: u32,
    /// Sends outstanding, oldest first.
    pub(super) sends: VecDeque<SendRecord>,
    /// Receives outstanding, oldest first.
    pub(super) recvs: VecDeque<RecvRecord>,
    /// Messages that the peer has posted for this end, oldest first.
    pub(super) expected: VecDeque<Expected>,
    /// The memory for the peer's atomics.
    pub(super) counter: Mr,
    /// The expected value of the peer's counter when everything posted so far is done.
    pub(super) peer_counter: u64,
    /// WRITEs and READs of unknown outcome, with the host that has the memory.
    pub(super) debris: Vec<(u64, usize, Mr)>,
    /// Local memory of failed sends.
    pub(super) litter: Vec<Mr>,
    /// The times at which the fabric dropped packets of this end or for it.
    pub(super) losses: VecDeque<Time>,
    /// Whether a send has failed.
    pub(super) failed: bool,
    /// Whether the queue pair is being closed.
    pub(super) closing: bool,
    /// Whether the queue pair is closed.
    pub(super) closed: bool,
    pub(super) awake: bool,
    pub(super) posting: bool,
    /// The time of the timer's event on the agenda.
    pub(super) timer: Time,
}

impl End {
    pub(super) fn new(id: usize, plan: &Plan, place: (usize, usize), counter: Mr) -> Self {
        let caps = QpCaps {
            max_send_wr: plan.depth,
            max_recv_wr: plan.depth + 1,
            max_send_sge: 4,
            max_recv_sge: 3,
            max_inline_data: MAX_INLINE,
        };
        let qpn = Qpn::new(FIRST_QPN + u32::try_from(id).expect("few queue pairs"));
        let (qp_type, sq_sig_all) = (plan.qp_type, plan.signal_all);
        let init = QpInit { qpn, qp_type, caps, sq_sig_all, has_srq: false };
        let peer = match place.1 {
            _ if qp_type == QpType::Ud => id,
            0 => id + 1,
            _ => id - 1,
        };
        Self {
            host: plan.hosts[place.1],
            qp: Qp::new(&init),
            plan: place,
            peer,
            path: AddressVector::default(),
            groups: Vec::new(),
            to_post: 0,
            sends: VecDeque::new(),
            recvs: VecDeque::new(),
            expected: VecDeque::new(),
            counter,
            peer_counter: 0,
            debris: Vec::new(),
            litter: Vec::new(),
            losses: VecDeque::new(),
            failed: false,
            closing: false,
            closed: false,
            awake: false,
            posting: false,
            timer: Time::NEVER,
        }
    }

    /// Records that the fabric dropped a packet of this end, or for it.
    pub(super) fn lost(&mut self, now: Time) {
        const MOST: usize = 64;
        self.losses.push_back(now);
        if self.losses.len() > MOST {
            self.losses.pop_front();
        }
    }
}

/// The destination of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// A queue pair.
    End(usize),
    /// A group.
    Group(usize),
}

/// A posted datagram.
#[derive(Clone, Debug)]
pub(super) struct Datagram {
    pub(super) from: usize,
    pub(super) to: Target,
    pub(super) len: u32,
    pub(super) imm: Option<[u8; 4]>,
    /// Whether the datagram has the receivers' Q_Key.
    pub(super) has_key: bool,
    /// The headers with which it was sent, once it was.
    pub(super) sent: Option<SentAs>,
    /// How often each queue pair received the datagram.
    pub(super) came: Vec<(usize, usize)>,
}

/// The headers with which a datagram was sent, and the hosts to which copies were sent.
#[derive(Clone, Debug)]
pub(super) struct SentAs {
    pub(super) slid: Lid,
    pub(super) dlid: Lid,
    pub(super) sl: u8,
    pub(super) pkey: Pkey,
    pub(super) grh: Option<[u8; Grh::LEN]>,
    pub(super) hosts: Vec<usize>,
}

/// A multicast group.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) mlid: Lid,
    pub(super) mgid: Gid,
    /// Hosts whose ports are members.
    pub(super) members: Vec<usize>,
}

impl Group {
    pub(super) fn new(index: usize) -> Self {
        let number = u8::try_from(index).expect("few groups");
        let mut mgid = [0; 16];
        (mgid[0], mgid[1], mgid[15]) = (0xff, 0x15, number + 1);
        // The last one is in another block of the tables.
        let offset = [0, 1, 0x40][index % 3];
        let mlid = Lid(Lid::FIRST_MULTICAST.0 + offset);
        Self { mlid, mgid: Gid(mgid), members: Vec::new() }
    }
}
