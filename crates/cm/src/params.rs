//! Plain values: the parameters of programs, and those that connections agree on.

use alloc::vec::Vec;
use rdmux_transport::attr::{
    Access, AddressVector, AttrMask, MigState, QpAttr, QpCaps, QpState, QpType, TransportType,
};
use rdmux_wire::sa::PathRecord;
use rdmux_wire::{AckTimeout, Gid, Lid, Mtu, Pkey, Psn, Qkey, Qpn, RnrTimer};

use crate::address::Addr;
use crate::fields::{CmOption, Failover};

/// The parameters of a program that connects or accepts, and in events those of its
/// peer (`rdma_conn_param`; rdma_connect(3)).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ConnParam {
    /// Private data for the peer. Limits: connect 56 (TCP) or 180 (UDP, IPoIB), accept 196 or 136; over
    /// iWARP 508 both ways. In events they have the full size of the field, because messages carry no
    /// length. iWARP's do, so there they are exactly the peer's bytes.
    pub private_data: Vec<u8>,
    /// READs and atomics that this end serves at a time.
    pub responder_resources: u8,
    /// READs and atomics that this end may have outstanding.
    pub initiator_depth: u8,
    /// End-to-end flow control (the responder's credits).
    pub flow_control: bool,
    /// Retries of the transport, 0 to 7; larger is 7. Connect only.
    pub retry_count: u8,
    /// Retries after receiver-not-ready that the peer should make, 0 to 7; larger is 7.
    pub rnr_retry_count: u8,
    /// Whether this end's queue pair receives from a shared receive queue. With XRC the receiving end always
    /// does, and the sending end never.
    pub srq: bool,
    /// This end's queue pair. In events the peer's.
    pub qp_num: Qpn,
    /// UD accept only: this end's Q_Key. `None` uses the id's option ([`CmOption::LocalQkey`]), and without that the port space's.
    pub qkey: Option<Qkey>,
    /// Enhanced connection establishment; not for UD. In events the peer's.
    pub ece: Ece,
    /// iWARP, connect: whether either side may send first (RFC 6581). If not, the side that connects must, and the
    /// other waits for it. `None` uses the id's option ([`IdOption::PeerToPeer`]), and without that the
    /// configuration. In events this is the negotiated value, or `None` for a transport without such a rule.
    pub peer_to_peer: Option<bool>,
}

/// Enhanced connection establishment: options that a vendor's adapters exchange when they connect
/// (`ibv_ece`; rdma_set_local_ece(3)). All zero means no options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Ece {
    /// The vendor that defines the options, 24 bits; 0 for none.
    pub vendor_id: u32,
    /// The vendor's options.
    pub options: u32,
}

impl ConnParam {
    /// Requests as many READs and atomics as possible: the device's limit, or the peer's request
    /// (`RDMA_MAX_RESP_RES`, `RDMA_MAX_INIT_DEPTH`).
    pub const MAX_DEPTH: u8 = 0xff;
}

/// The parameters for reaching a datagram peer or a group (`rdma_ud_param`).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct UdParam {
    /// The peer's private data.
    pub private_data: Vec<u8>,
    /// The address vector for an address handle.
    pub av: AddressVector,
    /// The peer's queue pair; 0xFFFFFF for a group.
    pub qp_num: Qpn,
    /// Its Q_Key.
    pub qkey: Qkey,
}

/// The route between two addresses (`rdma_route`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Route {
    /// The local address.
    pub src: Addr,
    /// The peer's address.
    pub dst: Addr,
    /// The device of [`LocalAddress::device`](crate::LocalAddress::device).
    pub device: u32,
    /// The local GID.
    pub sgid: Gid,
    /// The local LID with its path bits; 0 where there are no LIDs.
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

/// A path record from a program, and its purpose (`struct ibv_path_data`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathData {
    /// The flags below.
    pub flags: u32,
    /// The record. Selectors are ignored: a value is exact.
    pub record: PathRecord,
}

impl PathData {
    /// The path is for the connection manager's own datagrams (`IBV_PATH_FLAG_GMP`).
    pub const GMP: u32 = 1;
    /// The record describes the primary path.
    pub const PRIMARY: u32 = 1 << 1;
    /// The record describes the alternate path.
    pub const ALTERNATE: u32 = 1 << 2;
    /// The path leads from this end to the peer.
    pub const OUTBOUND: u32 = 1 << 3;
    /// The path leads from the peer to this end.
    pub const INBOUND: u32 = 1 << 4;
    /// The path back is the reverse of this one.
    pub const INBOUND_REVERSE: u32 = 1 << 5;
    /// The path is the same in both directions.
    pub const BIDIRECTIONAL: u32 = Self::OUTBOUND | Self::INBOUND_REVERSE;
    /// The path is for the connection and its manager, in both directions, as ACM services return it.
    pub const WHOLE: u32 = Self::GMP | Self::PRIMARY | Self::BIDIRECTIONAL;
}

/// The RNR timer codes by number of retries: the shortest pause with which a peer that finds no receive posted retries for 50 ms
/// altogether. A thread that must post the receive may not get the processor for tens of milliseconds.
const ENOUGH: [u8; 7] = [0, 25, 23, 22, 21, 20, 20];

/// The parameters that both sides of a connection agreed on, as far as they are known: all that a queue
/// pair needs.
///
/// CONNECT_REQUEST carries them (then [`accept`](Self::accept) fills in the program's own parameters),
/// as do CONNECT_RESPONSE and, for UD, ADDR_RESOLVED.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Negotiated {
    /// The transport service.
    pub qp_type: QpType,
    /// The transport. With iWARP only the depths matter, and only INIT sets attributes of the
    /// queue pair: it enters RTS when the stream arrives.
    pub transport: TransportType,
    /// The path.
    pub av: AddressVector,
    /// Payload of a full packet.
    pub path_mtu: Mtu,
    /// Index of the P_Key.
    pub pkey_index: u16,
    /// This end's Q_Key; UD.
    pub qkey: Qkey,
    /// The peer's queue pair.
    pub dest_qpn: Qpn,
    /// The first PSN of the peer.
    pub rq_psn: Psn,
    /// This end's first PSN.
    pub sq_psn: Psn,
    /// READs and atomics that this end may have outstanding.
    pub max_rd_atomic: u8,
    /// READs and atomics that this end serves at a time.
    pub max_dest_rd_atomic: u8,
    /// How long a sender waits when this end has no receive posted.
    pub min_rnr_timer: RnrTimer,
    /// How long this end waits for an acknowledgement.
    pub timeout: AckTimeout,
    /// This end's retries after timeouts.
    pub retry_cnt: u8,
    /// This end's retries after receiver-not-ready.
    pub rnr_retry: u8,
    /// Whether the peer has a shared receive queue.
    pub srq: bool,
    /// The alternate path of the connection.
    pub alternate: Option<Alternate>,
    /// Whether the queue pair is in RTS already and gets another alternate path.
    pub reloads: bool,
}

/// The alternate path of a connection (IBTA 17.2.8), as attributes of a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Alternate {
    /// The path. Its `port_num` is that of the alternate path.
    pub av: AddressVector,
    /// Index of the P_Key.
    pub pkey_index: u16,
    /// How long this end waits for an acknowledgement on it.
    pub timeout: AckTimeout,
}

impl Negotiated {
    /// Applies the accepting program's `param`, as [`Manager::accept`](crate::Manager::accept)
    /// will.
    pub fn accept(&mut self, param: &ConnParam) {
        if param.initiator_depth != ConnParam::MAX_DEPTH {
            self.max_rd_atomic = param.initiator_depth;
        }
        if param.responder_resources != ConnParam::MAX_DEPTH {
            self.max_dest_rd_atomic = param.responder_resources;
        }
        self.bear(param.rnr_retry_count);
    }

    /// Applies an option that the service has accepted ([`Manager::set_option`](crate::Manager::set_option)).
    pub fn take_option(&mut self, option: CmOption) {
        match option {
            CmOption::StartingPsn(psn) => self.rq_psn = Psn::new(psn),
            // A path that is not accepted is not loaded.
            CmOption::Failover(failover) if failover != Failover::Accepted => self.alternate = None,
            _ => {}
        }
    }

    /// Raises the RNR timer so that a peer with this many retries waits long [`ENOUGH`].
    pub(crate) fn bear(&mut self, retries: u8) {
        let least = self.min_rnr_timer;
        // 7 retries for ever, and 0 does not wait.
        if !(1..7).contains(&retries) {
            return;
        }
        let enough = RnrTimer::new(ENOUGH[usize::from(retries)]);
        if enough.duration() > least.duration() {
            self.min_rnr_timer = enough;
        }
    }

    /// Returns the attributes that take a queue pair to `state`, and the mask of those that are set, as
    /// `rdma_init_qp_attr` does. INIT, RTR and RTS need some. For any other state only the state itself is
    /// set. An alternate path is loaded on the way to RTR, and armed for migration on the way to RTS. A
    /// queue pair that [`reloads`](Self::reloads) one gets only these two on the way to RTS.
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

    /// Returns the peer's access to a connected queue pair: WRITE, and READ and atomics if this end has resources for them.
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
    /// Whether ids that all set this option may share a bound address. Before `bind`; later only to allow it, and not for a listener.
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

    /// Returns the RNR timer code of a queue pair whose peer has this many retries.
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
    fn rnr_timer_is_raised_until_all_rnr_retries_take_50_ms() {
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
