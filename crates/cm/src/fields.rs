//! The fields of the connection manager's messages that a program may set beyond a connection's parameters, and those of
//! its peer's messages that it may read.
//!
//! InfiniBand's and RoCE's connections only: iWARP has none of these messages.

use alloc::vec::Vec;

use rdmux_wire::cm::CmMad;
use rdmux_wire::{Gid, Lid, Mtu, Pkey, Psn, Qkey, Qpn, class_port_info::ClassPortInfo};

/// A field of REQ, REP or MRA, or how the connection manager handles the peer's messages: an option of an id
/// ([`IdOption::Cm`](crate::IdOption::Cm)). An id that a connection request creates inherits its listener's options.
///
/// Times are codes of 4.096 us * 2^code, 0 to 31.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum CmOption {
    /// REQ and LAP, remote CM response timeout: the time within which the peer should answer (IBTA 12.7.11). It sets this end's
    /// retransmission interval, also that of SIDR_REQ, which has no such field. Before `connect`.
    RemoteResponseTimeout(u8),
    /// REQ, local CM response timeout: the time within which this end answers (IBTA 12.7.12), which sets the peer's
    /// retransmission interval. Before `connect`.
    LocalResponseTimeout(u8),
    /// REQ, max CM retries, 0 to 15: how often either side retransmits a message (IBTA 12.7.27), SIDR_REQ included. Before
    /// `connect`.
    MaxRetries(u8),
    /// REQ and REP, starting PSN, 24 bits: the first PSN that this end expects; random unless set (IBTA 12.7.31). Before `connect`,
    /// `listen` or `accept`.
    StartingPsn(u32),
    /// REQ, path packet payload MTU, at most that of the path (IBTA 12.7.28). Before `connect`.
    PathMtu(Mtu),
    /// REQ and REP, local Q_Key, which only reliable datagrams use (IBTA 12.7.13). Before `connect` or `accept`.
    ///
    /// SIDR_REP, Q_Key: that of the accepting queue pair, unless
    /// [`ConnParam::qkey`](crate::ConnParam::qkey) gives it. Before `accept`; the port space's unless set.
    LocalQkey(u32),
    /// REP, target ACK delay: how long this end's queue pair takes to acknowledge (IBTA 12.7.33). Before `accept`.
    TargetAckDelay(u8),
    /// REP, failover accepted; unless set, the outcome of REQ's alternate path. A path that is not accepted is not loaded. Before
    /// `accept`.
    Failover(Failover),
    /// MRA, service timeout: for MRAs sent because the peer retransmits before the program has answered (IBTA 12.7.32).
    ServiceTimeout(u8),
    /// How often a request may be redirected before it counts as refused, 0 to 15; 4 unless set. 0 reports redirections as refusals.
    MaxRedirects(u8),
    /// Whether the program gets all messages: events carry the peer's message ([`Event::message`](crate::Event::message)), and
    /// LAP and MRA are events. Without it a LAP is refused.
    Messages(bool),
    /// REQ and REP, local EECN: this end's end-to-end context, 24 bits, which only reliable datagrams use (IBTA 12.6.5, 12.6.8).
    /// XRC's REP carries the queue pair in this field. Before `connect` or `accept`.
    LocalEecn(u32),
    /// REQ, remote EECN: the peer's end-to-end context, 24 bits, as [`Self::LocalEecn`]. Before `connect`.
    RemoteEecn(u32),
    /// REQ, RDC exists: whether there is a reliable datagram channel between the two contexts. Before `connect`.
    RdcExists(bool),
}

/// The outcome of a REQ's alternate path (REP's "failover accepted", IBTA 12.7.30).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[repr(u8)]
pub enum Failover {
    /// The path was taken, or there was none.
    #[default]
    Accepted = 0,
    /// This end does not migrate.
    NotSupported = 1,
    /// This end migrates, but not to that path.
    Rejected = 2,
}

impl Failover {
    /// Returns the value of a code; none for an undefined code.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Accepted),
            1 => Some(Self::NotSupported),
            2 => Some(Self::Rejected),
            _ => None,
        }
    }
}

/// Messages in which a program sets only the private data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Courtesy {
    /// RTU, 224 bytes.
    Rtu,
    /// DREQ, 220 bytes.
    Dreq,
    /// DREP, 224 bytes.
    Drep,
}

impl Courtesy {
    /// Returns how many bytes of private data fit.
    pub const fn room(self) -> usize {
        match self {
            Self::Rtu | Self::Drep => 224,
            Self::Dreq => 220,
        }
    }
}

/// A refusal with all fields of REJ (IBTA 12.6.7), of SIDR_REP or of APR.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Refusal {
    /// The reason: a [`RejReason`](rdmux_wire::cm::RejReason); for a lookup a [`SidrStatus`](rdmux_wire::cm::SidrStatus) other
    /// than 0; for an alternate path an [`AprStatus`](rdmux_wire::cm::AprStatus).
    pub reason: u16,
    /// Additional information, whose meaning depends on the reason; at most 72 bytes.
    pub info: Vec<u8>,
    /// Private data for the peer: at most 148 bytes, for a lookup 136.
    pub private_data: Vec<u8>,
}

impl Refusal {
    /// The most bytes of additional information.
    pub const INFO: usize = 72;
}

/// The address to which a peer should send its request instead (IBTA 12.6.7.2, reasons 24 and 25; 12.11.2.1, status 4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Redirect {
    /// The GID of that port.
    pub gid: Gid,
    /// Its LID. On InfiniBand 0 makes the requester look up the path to the GID.
    pub lid: Lid,
    /// The partition; zero leaves the partition unchanged.
    pub pkey: Pkey,
    /// Service level of the path to it.
    pub sl: u8,
    /// Traffic class of the path to it.
    pub tclass: u8,
    /// Flow label of the path to it, 20 bits.
    pub flow_label: u32,
}

impl Redirect {
    /// The number of bytes of additional information that hold the address.
    const SAID: u8 = 40;

    /// Returns the additional information that encodes the address: a ClassPortInfo.
    pub fn to_info(&self) -> [u8; 72] {
        let info = ClassPortInfo {
            base_version: 1,
            class_version: rdmux_wire::cm::CLASS_VERSION,
            redirect_gid: self.gid,
            redirect_tclass: self.tclass,
            redirect_sl: self.sl & 0xf,
            redirect_flow_label: self.flow_label & 0xf_ffff,
            redirect_lid: self.lid,
            redirect_pkey: self.pkey,
            redirect_qp: Qpn::QP1,
            redirect_qkey: Qkey::QP1,
            ..ClassPortInfo::default()
        };
        info.to_bytes()
    }

    /// Decodes additional information of this length, if it names another QP1.
    pub fn of_info(info: &[u8; 72], len: u8) -> Option<Self> {
        let said = ClassPortInfo::from_bytes(info);
        let is_qp1 = said.redirect_qp == Qpn::QP1 && len >= Self::SAID;
        is_qp1.then_some(Self {
            gid: said.redirect_gid,
            lid: said.redirect_lid,
            pkey: said.redirect_pkey,
            sl: said.redirect_sl,
            tclass: said.redirect_tclass,
            flow_label: said.redirect_flow_label,
        })
    }
}

/// The options of an id; an option that is not set has the configuration's value.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fields {
    pub(crate) remote_response_timeout: Option<u8>,
    pub(crate) local_response_timeout: Option<u8>,
    pub(crate) max_retries: Option<u8>,
    pub(crate) starting_psn: Option<Psn>,
    pub(crate) path_mtu: Option<Mtu>,
    pub(crate) local_qkey: Option<Qkey>,
    pub(crate) target_ack_delay: Option<u8>,
    pub(crate) failover: Option<Failover>,
    pub(crate) service_timeout: Option<u8>,
    pub(crate) max_redirects: Option<u8>,
    pub(crate) messages: bool,
    pub(crate) local_eecn: u32,
    pub(crate) remote_eecn: u32,
    pub(crate) rdc_exists: bool,
}

/// How often a request may be redirected by default.
const REDIRECTS: u8 = 4;

impl Fields {
    /// Sets an option. The error names the reason why its value is invalid.
    pub(crate) fn set(&mut self, option: CmOption) -> Result<(), &'static str> {
        let code =
            |code| if code > 31 { Err("the timeout code exceeds 31") } else { Ok(Some(code)) };
        let eecn = |n: u32| {
            if n >> 24 == 0 { Ok(n) } else { Err("an end-to-end context has 24 bits") }
        };
        let count = |n| if n > 15 { Err("the number exceeds 15") } else { Ok(Some(n)) };
        match option {
            CmOption::RemoteResponseTimeout(c) => self.remote_response_timeout = code(c)?,
            CmOption::LocalResponseTimeout(c) => self.local_response_timeout = code(c)?,
            CmOption::MaxRetries(n) => self.max_retries = count(n)?,
            CmOption::StartingPsn(psn) if psn >> 24 != 0 => return Err("a PSN has 24 bits"),
            CmOption::StartingPsn(psn) => self.starting_psn = Some(Psn::new(psn)),
            CmOption::PathMtu(mtu) => self.path_mtu = Some(mtu),
            CmOption::LocalQkey(qkey) => self.local_qkey = Some(Qkey(qkey)),
            CmOption::TargetAckDelay(c) => self.target_ack_delay = code(c)?,
            CmOption::Failover(failover) => self.failover = Some(failover),
            CmOption::ServiceTimeout(c) => self.service_timeout = code(c)?,
            CmOption::MaxRedirects(n) => self.max_redirects = count(n)?,
            CmOption::Messages(told) => self.messages = told,
            CmOption::LocalEecn(n) => self.local_eecn = eecn(n)?,
            CmOption::RemoteEecn(n) => self.remote_eecn = eecn(n)?,
            CmOption::RdcExists(exists) => self.rdc_exists = exists,
        }
        Ok(())
    }

    /// Returns how often a request may be redirected.
    pub(crate) fn redirects(&self) -> u8 {
        self.max_redirects.unwrap_or(REDIRECTS)
    }
}

/// The message being processed, for events that carry it.
#[derive(Debug, Default)]
pub(crate) struct Arrived(Option<[u8; 256]>);

impl Arrived {
    /// Records a datagram that has arrived.
    pub(crate) fn set(&mut self, mad: &[u8]) {
        self.0 = mad.try_into().ok();
    }

    /// Records a message that arrived earlier and is processed now.
    pub(crate) fn again(&mut self, mad: &CmMad) {
        self.0 = Some(mad.to_bytes());
    }

    /// Forgets the message: what happens next has another cause.
    pub(crate) fn clear(&mut self) {
        self.0 = None;
    }

    /// Returns the bytes of the message.
    pub(crate) fn bytes(&self) -> Option<Vec<u8>> {
        self.0.map(Vec::from)
    }
}
