//! Requests of a process to the hub, and the replies.

use rdmux_transport::attr::{Access, AttrMask, QpAttr};
use rdmux_wire::Qpn;
use serde::{Deserialize, Serialize};

/// The way in which a process holds a target. A target lives as long as any process holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Hold {
    /// By a handle, created or opened (`ibv_open_qp(3)`). Handles are counted.
    Handle,
    /// By registration, as in the interface of 2007: once for each process, not counted.
    Registration,
}

/// A region of the process as the hub mirrors it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionRow {
    /// The address of the bytes in the process.
    pub addr: u64,
    /// The length in bytes.
    pub length: u64,
    /// The address of the first byte in work requests.
    pub iova: u64,
    /// The access rights.
    pub access: Access,
    /// Whether this is a region without memory (`ibv_alloc_null_mr(3)`).
    pub null: bool,
    /// The number of the region's protection domain in the process.
    pub pd: u32,
    /// The serial number of its registration in the process.
    pub serial: u64,
}

/// A request. Each is answered with an [`XrcReply`], or refused with an errno.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum XrcRequest {
    /// Opens a domain: that of the file whose descriptor is attached, or else a new private one.
    OpenDomain {
        /// Create the domain if it does not exist.
        create: bool,
        /// Whether the domain must not exist yet, with `create`.
        exclusive: bool,
    },
    /// Closes an opening of a domain.
    CloseDomain {
        /// The opening.
        domain: u32,
    },
    /// Creates a shared receive queue. The descriptor of the ring for its receives is attached.
    CreateSrq {
        /// The opening of its domain.
        domain: u32,
        /// The number of the queue's protection domain.
        pd: u32,
        /// Scatter entries of a receive.
        max_sge: u32,
    },
    /// Destroys a shared receive queue.
    DestroySrq {
        /// The number of the queue.
        srqn: u32,
    },
    /// Adds a region to the mirror, or replaces it.
    AddRegion {
        /// The key of the region.
        key: u32,
        /// The region.
        region: RegionRow,
    },
    /// Removes a region from the mirror.
    RemoveRegion {
        /// The key of the region.
        key: u32,
    },
    /// Creates a target in RESET, which the caller holds.
    CreateTarget {
        /// The opening of its domain.
        domain: u32,
        /// Whether the process holds the target by registration or by a handle.
        hold: Hold,
    },
    /// Holds an existing target.
    HoldTarget {
        /// An opening of its domain.
        domain: u32,
        /// The number of the target.
        qpn: Qpn,
        /// Whether the process holds the target by registration or by a handle.
        hold: Hold,
    },
    /// Releases a hold on a target.
    LetGo {
        /// An opening of its domain.
        domain: u32,
        /// The number of the target.
        qpn: Qpn,
        /// Whether the process held the target by registration or by a handle.
        hold: Hold,
    },
    /// Changes attributes and state of a target.
    ModifyTarget {
        /// An opening of its domain.
        domain: u32,
        /// The number of the target.
        qpn: Qpn,
        /// The attributes.
        attr: Box<QpAttr>,
        /// The attributes to change.
        mask: AttrMask,
    },
    /// Queries all attributes of a target.
    QueryTarget {
        /// An opening of its domain.
        domain: u32,
        /// The number of the target.
        qpn: Qpn,
    },
}

/// A reply to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum XrcReply {
    /// The request was executed.
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
