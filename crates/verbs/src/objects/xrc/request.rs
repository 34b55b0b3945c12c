//! What a process asks of the hub.

use rdmux_transport::attr::{Access, AttrMask, QpAttr};
use rdmux_wire::Qpn;
use serde::{Deserialize, Serialize};

/// How a process holds a target: it lives as long as anybody holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Hold {
    /// By a handle: created or opened (`ibv_open_qp(3)`). Each counts.
    Handle,
    /// By registration, as the interface of 2007 has it: once for a process, without a count.
    Registration,
}

/// A region of the process as the hub mirrors it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionRow {
    /// Where the bytes lie in the process.
    pub addr: u64,
    /// How many.
    pub length: u64,
    /// What the first byte is called in work requests.
    pub iova: u64,
    /// Who may do what.
    pub access: Access,
    /// Whether it stands for no memory (`ibv_alloc_null_mr(3)`).
    pub null: bool,
    /// The number of its protection domain in the process.
    pub pd: u32,
    /// Which registration of the process it is.
    pub serial: u64,
}

/// A request. Each has one [`XrcReply`], or is refused with an errno.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum XrcRequest {
    /// Opens a domain: that of the file whose descriptor comes along, else a new one of the caller's own.
    OpenDomain {
        /// Make it if it does not exist.
        create: bool,
        /// With `create`: it must not exist.
        exclusive: bool,
    },
    /// Closes an opening of a domain.
    CloseDomain {
        /// The opening.
        domain: u32,
    },
    /// A shared receive queue; the descriptor of the ring that receives are posted into comes along.
    CreateSrq {
        /// The opening of its domain.
        domain: u32,
        /// The number of its protection domain.
        pd: u32,
        /// Scatter entries of a receive.
        max_sge: u32,
    },
    /// Destroys one.
    DestroySrq {
        /// Its number.
        srqn: u32,
    },
    /// Adds a region to the mirror, or replaces it.
    AddRegion {
        /// Its key.
        key: u32,
        /// The region.
        region: RegionRow,
    },
    /// Takes one out.
    RemoveRegion {
        /// Its key.
        key: u32,
    },
    /// A target in RESET, which the caller holds.
    CreateTarget {
        /// The opening of its domain.
        domain: u32,
        /// How it is held.
        hold: Hold,
    },
    /// Holds a target that exists.
    HoldTarget {
        /// An opening of its domain.
        domain: u32,
        /// Its number.
        qpn: Qpn,
        /// How.
        hold: Hold,
    },
    /// Lets go of it.
    LetGo {
        /// An opening of its domain.
        domain: u32,
        /// Its number.
        qpn: Qpn,
        /// How it was held.
        hold: Hold,
    },
    /// Changes attributes and state.
    ModifyTarget {
        /// An opening of its domain.
        domain: u32,
        /// Its number.
        qpn: Qpn,
        /// The attributes.
        attr: Box<QpAttr>,
        /// Which of them are meant.
        mask: AttrMask,
    },
    /// Asks for all attributes.
    QueryTarget {
        /// An opening of its domain.
        domain: u32,
        /// Its number.
        qpn: Qpn,
    },
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum XrcReply {
    /// It was done.
    Done,
    /// The opening of a domain.
    Domain(u32),
    /// The number of a shared receive queue.
    Srq(u32),
    /// The number of a target.
    Target(Qpn),
    /// A target's attributes.
    Attr(Box<QpAttr>),
}
