//! Queue pair attributes: what `ibv_modify_qp` sets and `ibv_query_qp` returns.

use bitflags::bitflags;
use rdmux_wire::{AckTimeout, Gid, Mtu, Psn, Qkey, Qpn, RnrTimer};

use crate::error::ModifyError;

bitflags! {
    /// Access rights to memory; the values of `ibv_access_flags`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash)]
    #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
    pub struct Access: u32 {
        /// The owner's receives, READ responses and atomic results may write the memory.
        const LOCAL_WRITE = 1;
        /// Peers may write the memory by RDMA WRITE.
        const REMOTE_WRITE = 2;
        /// Peers may read the memory by RDMA READ.
        const REMOTE_READ = 4;
        /// Peers may use atomics on the memory.
        const REMOTE_ATOMIC = 8;
        /// Memory windows may be bound to the region.
        const MW_BIND = 16;
        /// Addresses count from zero.
        const ZERO_BASED = 32;
        /// Pages need not be pinned (they never are here).
        const ON_DEMAND = 64;
        /// Huge pages may be used; a hint.
        const HUGETLB = 128;
        /// The order of accesses may be relaxed.
        const RELAXED_ORDERING = 1 << 20;
    }
}

/// The transport service of a queue pair; the values of `ibv_qp_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[repr(u8)]
pub enum QpType {
    /// Reliable connection.
    Rc = 2,
    /// Unreliable connection.
    Uc = 3,
    /// Unreliable datagram.
    Ud = 4,
    /// The initiator of an extended reliable connection, which sends and has no receive queue.
    XrcSend = 9,
    /// The target of an extended reliable connection: each request names its shared receive queue,
    /// and the queue pair itself has no work queues.
    XrcRecv = 10,
}

impl QpType {
    /// All transport services.
    pub const ALL: [Self; 5] = [Self::Rc, Self::Uc, Self::Ud, Self::XrcSend, Self::XrcRecv];

    /// Returns whether the service acknowledges packets: RC and XRC.
    pub const fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::XrcSend | Self::XrcRecv)
    }

    /// Returns whether the queue pair is one end of an extended reliable connection (IBTA annex A14).
    pub const fn is_xrc(self) -> bool {
        matches!(self, Self::XrcSend | Self::XrcRecv)
    }
}

/// The transport of a device; the values of `ibv_transport_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[repr(u8)]
pub enum TransportType {
    /// InfiniBand's transport: InfiniBand itself and RoCE.
    #[default]
    Ib = 0,
    /// iWARP: RDMAP over DDP over MPA over TCP (RFC 5040, 5041, 5044).
    Iwarp = 1,
}

/// The state of a queue pair; the values of `ibv_qp_state` (IBTA 10.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[repr(u8)]
pub enum QpState {
    /// The state after creation.
    Reset = 0,
    /// Receives may be posted.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// The send queue is draining or drained.
    Sqd = 4,
    /// The send queue failed (UC, UD).
    Sqe = 5,
    /// The queue pair is in error, and all work is flushed.
    Err = 6,
}

/// The path migration state of a connection; the values of `ibv_mig_state` (IBTA 17.2.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum MigState {
    /// The connection uses its path, and accepts packets along no other. The state at first and after a migration.
    #[default]
    Migrated = 0,
    /// The program has loaded an alternate path and rearmed the migration. The peer has not yet
    /// shown that it has done so, too.
    Rearm = 1,
    /// The queue pair and its peer are ready to migrate.
    Armed = 2,
}

impl MigState {
    /// Returns the state with this value.
    pub const fn of_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::Migrated,
            1 => Self::Rearm,
            2 => Self::Armed,
            _ => return None,
        })
    }
}

/// A path to a peer, independent of the link layer: the contents of an address handle (`ibv_ah_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct AddressVector {
    /// Whether packets have a GRH (always on RoCE).
    pub is_global: bool,
    /// The peer's GID.
    pub dgid: Gid,
    /// The index of the local GID in the port's table.
    pub sgid_index: u8,
    /// The flow label, 20 bits.
    pub flow_label: u32,
    /// The hop limit (IPv4: time to live).
    pub hop_limit: u8,
    /// The traffic class (RoCE: the IP header's TOS).
    pub traffic_class: u8,
    /// The peer's LID; InfiniBand only.
    pub dlid: u16,
    /// Service level.
    pub sl: u8,
    /// The low bits of the local LID.
    pub src_path_bits: u8,
    /// The code of the static rate.
    pub static_rate: u8,
    /// Our port, counted from 1.
    pub port_num: u8,
}

/// The sizes of a queue pair (`ibv_qp_cap`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct QpCaps {
    /// The maximum number of outstanding send work requests.
    pub max_send_wr: u32,
    /// The maximum number of outstanding receive work requests.
    pub max_recv_wr: u32,
    /// The maximum number of gather entries per send.
    pub max_send_sge: u32,
    /// The maximum number of scatter entries per receive.
    pub max_recv_sge: u32,
    /// The maximum number of inline bytes.
    pub max_inline_data: u32,
}

bitflags! {
    /// The attributes that a modify sets; the values of `ibv_qp_attr_mask`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
    pub struct AttrMask: u32 {
        /// `state`
        const STATE = 1;
        /// `cur_state`
        const CUR_STATE = 1 << 1;
        /// `en_sqd_async_notify`
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// `access`
        const ACCESS_FLAGS = 1 << 3;
        /// `pkey_index`
        const PKEY_INDEX = 1 << 4;
        /// `port_num`
        const PORT = 1 << 5;
        /// `qkey`
        const QKEY = 1 << 6;
        /// `av`
        const AV = 1 << 7;
        /// `path_mtu`
        const PATH_MTU = 1 << 8;
        /// `timeout`
        const TIMEOUT = 1 << 9;
        /// `retry_cnt`
        const RETRY_CNT = 1 << 10;
        /// `rnr_retry`
        const RNR_RETRY = 1 << 11;
        /// `rq_psn`
        const RQ_PSN = 1 << 12;
        /// `max_rd_atomic`
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// `alt_av`, `alt_pkey_index`, `alt_port_num`, `alt_timeout`
        const ALT_PATH = 1 << 14;
        /// `min_rnr_timer`
        const MIN_RNR_TIMER = 1 << 15;
        /// `sq_psn`
        const SQ_PSN = 1 << 16;
        /// `max_dest_rd_atomic`
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// `path_mig_state`
        const PATH_MIG_STATE = 1 << 18;
        /// `caps`
        const CAP = 1 << 19;
        /// `dest_qpn`
        const DEST_QPN = 1 << 20;
        /// `rate_limit`
        const RATE_LIMIT = 1 << 25;
    }
}

/// The attributes of a queue pair (`ibv_qp_attr`). A mask determines which are valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct QpAttr {
    /// The state to enter, or the present state.
    pub state: QpState,
    /// The state that the caller believes the queue pair to be in.
    pub cur_state: QpState,
    /// The payload of a full packet.
    pub path_mtu: Mtu,
    /// A value of [`MigState`].
    pub path_mig_state: u8,
    /// Our Q_Key; UD.
    pub qkey: Qkey,
    /// The first PSN that is expected from the peer.
    pub rq_psn: Psn,
    /// The first PSN that is sent.
    pub sq_psn: Psn,
    /// The number of the peer's queue pair.
    pub dest_qpn: Qpn,
    /// The peer's access rights through this queue pair.
    pub access: Access,
    /// The queue sizes.
    pub caps: QpCaps,
    /// The path.
    pub av: AddressVector,
    /// The alternate path.
    pub alt_av: AddressVector,
    /// The index of the queue pair's P_Key.
    pub pkey_index: u16,
    /// The index of the alternate path's P_Key.
    pub alt_pkey_index: u16,
    /// Whether an event is raised when the send queue is drained.
    pub en_sqd_async_notify: bool,
    /// Whether the send queue is still draining. Query only.
    pub sq_draining: bool,
    /// The maximum number of outstanding READs and atomics as requester.
    pub max_rd_atomic: u8,
    /// The maximum number of concurrent READs and atomics as responder.
    pub max_dest_rd_atomic: u8,
    /// The delay that this end requests of a sender when no receive is posted.
    pub min_rnr_timer: RnrTimer,
    /// Our port.
    pub port_num: u8,
    /// The timeout for an acknowledgement.
    pub timeout: AckTimeout,
    /// The number of retries after timeouts and sequence errors, 0 to 7; here 7 means seven.
    pub retry_cnt: u8,
    /// The number of retries after an RNR NAK, 0 to 7; here 7 means infinite.
    pub rnr_retry: u8,
    /// The port of the alternate path.
    pub alt_port_num: u8,
    /// The timeout of the alternate path.
    pub alt_timeout: AckTimeout,
    /// The rate limit in kilobits per second; 0 means none.
    pub rate_limit: u32,
}

impl QpAttr {
    /// Returns the state to which `modify` with this mask brings a queue pair that is in `from`.
    ///
    /// # Errors
    /// [`ModifyError::CurState`] when `cur_state` is not the present state.
    pub(crate) fn goal(&self, from: QpState, mask: AttrMask) -> Result<QpState, ModifyError> {
        if mask.contains(AttrMask::CUR_STATE) && self.cur_state != from {
            return Err(ModifyError::CurState { actual: from, claimed: self.cur_state });
        }
        Ok(if mask.contains(AttrMask::STATE) { self.state } else { from })
    }

    /// Copies the attributes that a mask names, except the states, which follow from the transition, and the sizes.
    pub(crate) fn take(&mut self, from: &Self, mask: AttrMask) {
        macro_rules! copy {
            ($($flag:ident: $($field:ident),+;)*) => {
                $(if mask.contains(AttrMask::$flag) {
                    $(self.$field = from.$field;)+
                })*
            };
        }
        copy! {
            EN_SQD_ASYNC_NOTIFY: en_sqd_async_notify;
            ACCESS_FLAGS: access;
            PKEY_INDEX: pkey_index;
            PORT: port_num;
            QKEY: qkey;
            AV: av;
            PATH_MTU: path_mtu;
            TIMEOUT: timeout;
            RETRY_CNT: retry_cnt;
            RNR_RETRY: rnr_retry;
            RQ_PSN: rq_psn;
            MAX_QP_RD_ATOMIC: max_rd_atomic;
            ALT_PATH: alt_av, alt_pkey_index, alt_port_num, alt_timeout;
            MIN_RNR_TIMER: min_rnr_timer;
            SQ_PSN: sq_psn;
            MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
            DEST_QPN: dest_qpn;
        }
    }
}

/// The attributes of a queue pair in RESET.
impl Default for QpAttr {
    fn default() -> Self {
        Self {
            state: QpState::Reset,
            cur_state: QpState::Reset,
            path_mtu: Mtu::M256,
            path_mig_state: 0,
            qkey: Qkey(0),
            rq_psn: Psn::new(0),
            sq_psn: Psn::new(0),
            dest_qpn: Qpn::new(0),
            access: Access::empty(),
            caps: QpCaps::default(),
            av: AddressVector::default(),
            alt_av: AddressVector::default(),
            pkey_index: 0,
            alt_pkey_index: 0,
            en_sqd_async_notify: false,
            sq_draining: false,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: RnrTimer::new(0),
            port_num: 0,
            timeout: AckTimeout::new(0),
            retry_cnt: 0,
            rnr_retry: 0,
            alt_port_num: 0,
            alt_timeout: AckTimeout::new(0),
            rate_limit: 0,
        }
    }
}
