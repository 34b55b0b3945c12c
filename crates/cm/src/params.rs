//! Plain values: what programs pass in, and what connections agree on.

use alloc::vec::Vec;
use rdmux_transport::attr::{
    Access, AddressVector, AttrMask, MigState, QpAttr, QpCaps, QpState, QpType, TransportType,
};
use rdmux_wire::sa::PathRecord;
use rdmux_wire::{AckTimeout, Gid, Lid, Mtu, Pkey, Psn, Qkey, Qpn, RnrTimer};

use crate::address::Addr;
use crate::fields::{CmOption, Failover};

/// What a program says when it connects or accepts, and what it learns of the peer's wishes in
/// events (`rdma_conn_param`; rdma_connect(3)).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ConnParam {
    /// Bytes for the peer. Limits: connect 56 (TCP) or 180 (UDP, IPoIB), accept 196 or 136; over
    /// iWARP 508 both ways. In events it has the full size of the field, for the wire carries no
    /// length; over iWARP it does, and these are the peer's bytes.
    pub private_data: Vec<u8>,
    /// READs and atomics that we serve at a time.
    pub responder_resources: u8,
    /// READs and atomics that we may have outstanding.
    pub initiator_depth: u8,
    /// End-to-end flow control (the responder's credits).
    pub flow_control: bool,
    /// Retries of the transport, 0 to 7; larger is 7. Connect only.
    pub retry_count: u8,
    /// Retries after receiver-not-ready that the peer shall make, 0 to 7; larger is 7.
    pub rnr_retry_count: u8,
    /// Whether our queue pair receives from a shared receive queue. With XRC the receiving end always
    /// does, and the sending end never.
    pub srq: bool,
    /// Our queue pair. In events the peer's.
    pub qp_num: Qpn,
    /// UD accept only: our Q_Key. `None` leaves it to the id's option ([`CmOption::LocalQkey`]), and that to the port space.
    pub qkey: Option<Qkey>,
    /// Enhanced connection establishment; not of UD. In events the peer's.
    pub ece: Ece,
    /// iWARP, connect: whether either side may send first (RFC 6581). If not, the side that
    /// connects must, and the other waits for it. `None` leaves it to the id's option
    /// ([`IdOption::PeerToPeer`]), and that to the configuration. In events what holds, `None` where
    /// there is no such rule.
    pub peer_to_peer: Option<bool>,
}

/// Enhanced connection establishment: what a vendor's adapters tell each other when they connect
/// (`ibv_ece`; rdma_set_local_ece(3)). All zero says nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Ece {
    /// Whose options they are, 24 bits; 0 for nobody's.
    pub vendor_id: u32,
    /// The vendor's own.
    pub options: u32,
}

impl ConnParam {
    /// As many READs and atomics as possible: what the device can do, or what the peer asked for
    /// (`RDMA_MAX_RESP_RES`, `RDMA_MAX_INIT_DEPTH`).
    pub const MAX_DEPTH: u8 = 0xff;
}

/// How to reach a datagram peer or a group (`rdma_ud_param`).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct UdParam {
    /// Bytes of the peer.
    pub private_data: Vec<u8>,
    /// What to make an address handle of.
    pub av: AddressVector,
    /// The peer's queue pair; 0xFFFFFF for a group.
    pub qp_num: Qpn,
    /// Its Q_Key.
    pub qkey: Qkey,
}

/// The way between two addresses (`rdma_route`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Route {
    /// Our address.
    pub src: Addr,
    /// The peer's address.
    pub dst: Addr,
    /// The device of [`LocalAddress::device`](crate::LocalAddress::device).
    pub device: u32,
    /// Our GID.
    pub sgid: Gid,
    /// Our LID with its path bits; 0 where there are no LIDs.
    pub slid: Lid,
    /// The address vector towards the peer. `dgid` is the peer's GID even where there is no GRH.
    pub av: AddressVector,
    /// Largest payload of a packet.
    pub mtu: Mtu,
    /// Partition.
    pub pkey: Pkey,
    /// Its index in the port's P_Key table.
    pub pkey_index: u16,
    /// Lifetime of a packet; code.
    pub packet_lifetime: u8,
}

/// A path record of a program's, and what it is for (`struct ibv_path_data`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathData {
    /// The flags below.
    pub flags: u32,
    /// The record. Selectors are not looked at: a value is meant exactly.
    pub record: PathRecord,
}

impl PathData {
    /// For the connection manager's own datagrams (`IBV_PATH_FLAG_GMP`).
    pub const GMP: u32 = 1;
    /// For the primary path.
    pub const PRIMARY: u32 = 1 << 1;
    /// For the alternate path.
    pub const ALTERNATE: u32 = 1 << 2;
    /// From us to the peer.
    pub const OUTBOUND: u32 = 1 << 3;
    /// From the peer to us.
    pub const INBOUND: u32 = 1 << 4;
    /// The way back is the same.
    pub const INBOUND_REVERSE: u32 = 1 << 5;
    /// There and back the same way.
    pub const BIDIRECTIONAL: u32 = Self::OUTBOUND | Self::INBOUND_REVERSE;
    /// For the connection and its manager, there and back the same way, as ACM services give it.
    pub const WHOLE: u32 = Self::GMP | Self::PRIMARY | Self::BIDIRECTIONAL;
}

/// By the number of retries, the shortest pauses with which a peer that finds us without a receive waits for 50 ms altogether: a
/// thread that is to post the receive may not have the processor for tens of milliseconds.
const ENOUGH: [u8; 7] = [0, 25, 23, 22, 21, 20, 20];

/// What both sides of a connection agreed on, as far as it is known: everything that a queue
/// pair needs.
///
/// It comes with CONNECT_REQUEST (then [`accept`](Self::accept) puts the program's own parameters
/// in), with CONNECT_RESPONSE and, for UD, with ADDR_RESOLVED.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Negotiated {
    /// The transport service.
    pub qp_type: QpType,
    /// What carries it. With iWARP only the depths count, and a queue pair has no attributes to be
    /// set but those of INIT: it goes to RTS when the stream arrives.
    pub transport: TransportType,
    /// The path.
    pub av: AddressVector,
    /// Payload of a full packet.
    pub path_mtu: Mtu,
    /// Index of the P_Key.
    pub pkey_index: u16,
    /// Our Q_Key; UD.
    pub qkey: Qkey,
    /// The peer's queue pair.
    pub dest_qpn: Qpn,
    /// The first PSN of the peer.
    pub rq_psn: Psn,
    /// Our first PSN.
    pub sq_psn: Psn,
    /// READs and atomics that we may have outstanding.
    pub max_rd_atomic: u8,
    /// READs and atomics that we serve at a time.
    pub max_dest_rd_atomic: u8,
    /// What a sender waits when we have no receive posted.
    pub min_rnr_timer: RnrTimer,
    /// How long we wait for an acknowledgement.
    pub timeout: AckTimeout,
    /// Our retries after timeouts.
    pub retry_cnt: u8,
    /// Our retries after receiver-not-ready.
    pub rnr_retry: u8,
    /// Whether the peer has a shared receive queue.
    pub srq: bool,
    /// The path that the connection may migrate to.
    pub alternate: Option<Alternate>,
    /// The queue pair is in RTS already, and gets another alternate path.
    pub reloads: bool,
}

/// The path that a connection may migrate to (IBTA 17.2.8), as a queue pair is told of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Alternate {
    /// The path. Its `port_num` is that of the alternate path.
    pub av: AddressVector,
    /// Index of the P_Key.
    pub pkey_index: u16,
    /// How long we wait for an acknowledgement there.
    pub timeout: AckTimeout,
}

impl Negotiated {
    /// On the accepting side: what holds once `param` is passed to
    /// [`Manager::accept`](crate::Manager::accept).
    pub fn accept(&mut self, param: &ConnParam) {
        if param.initiator_depth != ConnParam::MAX_DEPTH {
            self.max_rd_atomic = param.initiator_depth;
        }
        if param.responder_resources != ConnParam::MAX_DEPTH {
            self.max_dest_rd_atomic = param.responder_resources;
        }
        self.bear(param.rnr_retry_count);
    }

    /// What holds once an option is set that the service has taken ([`Manager::set_option`](crate::Manager::set_option)).
    pub fn take_option(&mut self, option: CmOption) {
        match option {
            CmOption::StartingPsn(psn) => self.rq_psn = Psn::new(psn),
            // A path that is not accepted is not loaded.
            CmOption::Failover(failover) if failover != Failover::Accepted => self.alternate = None,
            _ => {}
        }
    }

    /// Asks the peer, which sends again this often, for pauses by which it waits long [`ENOUGH`].
    pub(crate) fn bear(&mut self, retries: u8) {
        let least = self.min_rnr_timer;
        // 7 is for ever, and 0 does not wait.
        if !(1..7).contains(&retries) {
            return;
        }
        let enough = RnrTimer::new(ENOUGH[usize::from(retries)]);
        if enough.duration() > least.duration() {
            self.min_rnr_timer = enough;
        }
    }

    /// The attributes that take a queue pair to `state`, and which of them are meant, as
    /// `rdma_init_qp_attr` gives them. INIT, RTR and RTS have some; any other state has only
    /// itself. An alternate path is loaded on the way to RTR, and asked to be used if need be on the way to RTS; of a
    /// queue pair that [`reloads`](Self::reloads) one both are all there is to RTS.
    pub fn qp_attr(&self, state: QpState) -> (QpAttr, AttrMask) {
        let mut mask = AttrMask::STATE;
        if self.reloads && state == QpState::Rts {
            return (self.attr(state), mask | AttrMask::ALT_PATH | AttrMask::PATH_MIG_STATE);
        }
        match (state, self.alternate) {
            (QpState::Rtr, Some(_)) => mask |= AttrMask::ALT_PATH,
            (QpState::Rts, Some(_)) => mask |= AttrMask::PATH_MIG_STATE,
            _ => {}
        }
        match (state, self.qp_type) {
            (QpState::Rtr | QpState::Rts, _) if self.transport == TransportType::Iwarp => {}
            (QpState::Init, QpType::Ud) => {
                mask |= AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY;
            }
            (QpState::Init, _) => {
                mask |= AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
            }
            (QpState::Rtr, QpType::Rc | QpType::XrcRecv) => {
                mask |= Self::RTR | AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
            }
            (QpState::Rtr, QpType::Uc | QpType::XrcSend) => mask |= Self::RTR,
            (QpState::Rts, QpType::Rc | QpType::XrcSend) => {
                mask |= AttrMask::SQ_PSN
                    | AttrMask::RETRY_CNT
                    | AttrMask::RNR_RETRY
                    | AttrMask::MAX_QP_RD_ATOMIC
                    | AttrMask::TIMEOUT;
            }
            (QpState::Rts, QpType::XrcRecv) => mask |= AttrMask::SQ_PSN | AttrMask::TIMEOUT,
            (QpState::Rts, _) => mask |= AttrMask::SQ_PSN,
            _ => {}
        }
        (self.attr(state), mask)
    }

    const RTR: AttrMask =
        AttrMask::AV.union(AttrMask::PATH_MTU).union(AttrMask::DEST_QPN).union(AttrMask::RQ_PSN);

    fn attr(&self, state: QpState) -> QpAttr {
        let alternate = self.alternate.unwrap_or_default();
        let rearms = self.alternate.is_some() && state == QpState::Rts;
        let path_mig_state = if rearms { MigState::Rearm } else { MigState::Migrated };
        QpAttr {
            state,
            cur_state: state,
            path_mtu: self.path_mtu,
            path_mig_state: path_mig_state as u8,
            qkey: self.qkey,
            rq_psn: self.rq_psn,
            sq_psn: if self.qp_type == QpType::Ud { Psn::default() } else { self.sq_psn },
            dest_qpn: self.dest_qpn,
            access: self.access(),
            caps: QpCaps::default(),
            av: self.av,
            alt_av: alternate.av,
            pkey_index: self.pkey_index,
            alt_pkey_index: alternate.pkey_index,
            en_sqd_async_notify: false,
            sq_draining: false,
            max_rd_atomic: self.max_rd_atomic,
            max_dest_rd_atomic: self.max_dest_rd_atomic,
            min_rnr_timer: self.min_rnr_timer,
            port_num: self.av.port_num,
            timeout: self.timeout,
            retry_cnt: self.retry_cnt,
            rnr_retry: self.rnr_retry,
            alt_port_num: alternate.av.port_num,
            alt_timeout: alternate.timeout,
            rate_limit: 0,
        }
    }

    /// Peers of a connected queue pair may WRITE; READ and atomics if we have resources for them.
    fn access(&self) -> Access {
        match (self.qp_type, self.max_dest_rd_atomic) {
            (QpType::Ud, _) => Access::empty(),
            (QpType::Uc, _) | (_, 0) => Access::REMOTE_WRITE,
            _ => Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
        }
    }
}

/// An option of an id (rdma_set_option(3), level `RDMA_OPTION_ID`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum IdOption {
    /// Type of service of everything that the connection sends. Before `connect`.
    Tos(u8),
    /// Whether the address may be bound while other ids that also say so have it. Before `bind`; later, but not of a listener, only to allow it.
    ReuseAddr(bool),
    /// Whether an IPv6 wildcard listener refuses IPv4. Before `listen`, and before the id resolves an address.
    AfOnly(bool),
    /// ACK timeout code of the queue pair, 0 (none) to 31. Before `connect`; RC, and XRC's sending
    /// end.
    AckTimeout(u8),
    /// iWARP: whether either side of the connection may send first. Before `connect`; see
    /// [`ConnParam::peer_to_peer`].
    PeerToPeer(bool),
    /// A field of the connection manager's messages; not of iWARP.
    Cm(CmOption),
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    /// The code that a queue pair asks for whose peer sends again this often.
    fn code(least: u8, retries: u8) -> u8 {
        let mut negotiated = Negotiated {
            qp_type: QpType::Rc,
            transport: TransportType::Ib,
            av: AddressVector::default(),
            path_mtu: Mtu::M1024,
            pkey_index: 0,
            qkey: Qkey::default(),
            dest_qpn: Qpn::default(),
            rq_psn: Psn::default(),
            sq_psn: Psn::default(),
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: RnrTimer::new(least),
            timeout: AckTimeout::default(),
            retry_cnt: 0,
            rnr_retry: 0,
            srq: false,
            alternate: None,
            reloads: false,
        };
        negotiated.bear(retries);
        negotiated.min_rnr_timer.code()
    }

    #[test]
    fn retries_of_a_peer_last_for_50_ms() {
        const MS_0_64: u8 = 12;
        assert_eq!(
            [0, 7].map(|retries| code(MS_0_64, retries)),
            [MS_0_64; 2],
            "none, and for ever"
        );
        for retries in 1..7 {
            let asked = code(MS_0_64, retries);
            let waits = |code| RnrTimer::new(code).duration() * u32::from(retries);
            assert!(
                waits(asked) >= Duration::from_millis(50)
                    && waits(asked - 1) < Duration::from_millis(50)
            );
        }
        assert_eq!(code(28, 3), 28, "the program's is longer");
        assert_eq!(code(0, 1), 0, "the longest");
    }
}
