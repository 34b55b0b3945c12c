//! The part of queue pairs that the engine drives.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use parking_lot::Mutex;
use rdmux_transport::attr::{
    AddressVector, AttrMask, QpAttr, QpCaps, QpState, QpType, TransportType,
};
use rdmux_transport::{QpInit as MachineInit, is_privileged};
use rdmux_wire::Qpn;

use super::drive::Bound;
use super::machine::Machine;
use super::timers::Armed;
use super::wire::short::SentFrom;
use super::wire::{AnyWire, Path};
use crate::engine::device::{Device, PORT};
use crate::engine::xrc::place::TargetEnds;
use crate::objects::brief;
use crate::objects::cq::CqCore;
use crate::objects::error::VerbsError;
use crate::objects::pd::PdId;
use crate::objects::qp::QpIdentity;
use crate::objects::srq::SrqCore;
use crate::objects::xrc::record::MAX_SGES;

/// The objects that a queue pair works with.
#[derive(Debug)]
pub(crate) enum Ends {
    /// Objects of its process.
    Own(Objects),
    /// The objects of an XRC target, which belongs to no process and works with objects of many.
    Target(TargetEnds),
}

/// The objects that a queue pair was created with.
#[derive(Debug)]
pub(crate) struct Objects {
    pub(crate) pd: PdId,
    /// The protection domain of receives: that of the shared receive queue, if any (IBTA 10.2.9).
    pub(crate) recv_pd: PdId,
    pub(crate) send_cq: Arc<CqCore>,
    pub(crate) recv_cq: Arc<CqCore>,
    pub(crate) srq: Option<Arc<SrqCore>>,
}

/// The part of a queue pair that the engine drives.
#[derive(Debug)]
pub(crate) struct QpCore {
    pub(crate) qpn: Qpn,
    pub(crate) qp_type: QpType,
    /// The objects that the queue pair works with.
    pub(crate) ends: Ends,
    /// The number of the queue pair's port.
    port: AtomicU8,
    /// The path to use after a migration. Changed with the queue pair locked.
    alternate: Mutex<Option<Box<Path>>>,
    /// The queue pair's identity towards the program.
    pub(crate) identity: Arc<QpIdentity>,
    /// Whether an ACK is owed.
    pub(crate) owed: Owed,
    pub(crate) state: brief::Mutex<Driven>,
}

/// The state that the lock of a queue pair guards.
#[derive(Debug)]
pub(crate) struct Driven {
    /// The transport's state machine.
    pub(crate) machine: Machine,
    pub(crate) path: Path,
    /// Whether all its timers tolerate a clock that is some milliseconds late.
    pub(crate) coarse_clock: bool,
    /// The entries that the engine's timers have for this queue pair.
    pub(crate) armed: Armed,
    /// Whether the queue pair is on the engine's list of queue pairs with something to send.
    pub(crate) queued: bool,
    /// The region that the queue pair last sent from.
    pub(crate) sent_from: SentFrom,
}

/// Records whether a queue pair owes an ACK, readable without the queue pair's lock.
#[derive(Debug, Default)]
pub(crate) struct Owed {
    now: AtomicBool,
    /// Whether the queue pair is on the round's list. Only rounds read this.
    listed: AtomicBool,
}

impl Owed {
    /// Records whether the queue pair, which must be locked, owes an ACK. Returns whether it has just begun to owe one.
    #[inline]
    pub(crate) fn note(&self, owes: bool) -> bool {
        let before = self.now.load(Ordering::Relaxed);
        if before != owes {
            self.now.store(owes, Ordering::Release);
        }
        owes && !before
    }

    /// Marks it as listed, in a round. Returns whether it was not on the list.
    #[inline]
    pub(crate) fn list(&self) -> bool {
        let listed = self.listed.load(Ordering::Relaxed);
        self.listed.store(true, Ordering::Relaxed);
        !listed
    }

    /// Marks it as not listed. Returns whether it still owes an ACK.
    #[inline]
    pub(crate) fn is_still(&self) -> bool {
        self.listed.store(false, Ordering::Relaxed);
        self.now.load(Ordering::Acquire)
    }
}

impl QpCore {
    /// Creates a queue pair in RESET.
    pub(crate) fn new(
        transport: TransportType,
        machine: &MachineInit,
        ends: Ends,
        context: u64,
    ) -> Arc<Self> {
        Arc::new(Self {
            qpn: machine.qpn,
            qp_type: machine.qp_type,
            ends,
            port: AtomicU8::new(PORT),
            alternate: Mutex::default(),
            identity: QpIdentity::new(machine.qpn, context),
            owed: Owed::default(),
            state: brief::Mutex::new(Driven {
                machine: Machine::new(transport, machine),
                path: Path::None,
                coarse_clock: false,
                armed: Armed::default(),
                queued: false,
                sent_from: SentFrom::default(),
            }),
        })
    }

    /// Creates an XRC target in RESET.
    pub(crate) fn target(qpn: Qpn, ends: TargetEnds) -> Arc<Self> {
        let caps = QpCaps { max_recv_sge: MAX_SGES, ..QpCaps::default() };
        let qp_type = QpType::XrcRecv;
        let machine = MachineInit { qpn, qp_type, caps, sq_sig_all: false, has_srq: true };
        Self::new(TransportType::Ib, &machine, Ends::Target(ends), 0)
    }

    /// Changes attributes and state, and the path accordingly.
    pub(crate) fn modify(
        self: &Arc<Self>,
        device: &Arc<Device>,
        attr: &QpAttr,
        mask: AttrMask,
    ) -> Result<(), VerbsError> {
        let port = self.port_with(device, attr, mask)?;
        let av = AddressVector { port_num: port, ..attr.av };
        let alt_av = AddressVector { port_num: attr.alt_port_num, ..attr.alt_av };
        let attr = &QpAttr { av, alt_av, ..*attr };
        check_depths(device, attr, mask)?;
        check_pkey_index(device, port, attr, mask)?;
        check_alternate(device, attr, mask)?;
        check_qkey(device, attr, mask)?;
        let path = device.engine().path_for(device, self, port, attr, mask)?;
        let alternate = self.alternate_for(device, path.as_ref(), attr, mask)?;
        if mask.contains(AttrMask::STATE) && matches!(attr.state, QpState::Err | QpState::Reset) {
            device.engine().drain(device);
        }
        let mut bound = Bound::lock(device, self);
        if let Some(alternate) = &alternate {
            let now = bound.machine().attr();
            let mtu = if mask.contains(AttrMask::PATH_MTU) { attr.path_mtu } else { now.path_mtu };
            let primary = path.as_ref().unwrap_or(&bound.driven().path);
            check_links((primary, alternate), (self.qp_type, mtu.bytes()))?;
        }
        bound
            .modify(attr, mask, path, alternate)
            .map_err(|error| VerbsError::Modify { qpn: self.qpn, error })?;
        // It may have migrated.
        match bound.machine().attr().port_num {
            0 => self.set_port(port),
            port => self.set_port(port),
        }
        if mask.contains(AttrMask::STATE) && attr.state == QpState::Reset {
            self.forget();
        }
        if mask.contains(AttrMask::PATH_MIG_STATE) {
            // The peer must see it now, although no packet may be sent for long.
            bound.flush_ack();
        }
        bound.transmit();
        Ok(())
    }

    /// Returns the alternate path for the new attributes: none if the call does not change it.
    fn alternate_for(
        &self,
        device: &Arc<Device>,
        primary: Option<&Path>,
        attr: &QpAttr,
        mask: AttrMask,
    ) -> Result<Option<Box<Path>>, VerbsError> {
        if !mask.contains(AttrMask::ALT_PATH) {
            return Ok(None);
        }
        let (near, dest_qpn) = match primary {
            Some(path) => (path.neighbour().cloned(), attr.dest_qpn),
            None => {
                let now = self.state.lock();
                (now.path.neighbour().cloned(), now.machine.attr().dest_qpn)
            }
        };
        let attr = QpAttr { dest_qpn, ..*attr };
        let path = device.engine().alternate_for(device, self, &attr, near.as_ref())?;
        Ok(path.map(Box::new))
    }

    /// Replaces the path to use after a migration. Returns the old one.
    pub(crate) fn set_alternate(&self, path: Option<Box<Path>>) -> Option<Box<Path>> {
        std::mem::replace(&mut *self.alternate.lock(), path)
    }

    /// Returns the wire of the alternate path.
    pub(crate) fn alternate_wire(&self) -> Option<AnyWire> {
        self.alternate.lock().as_ref()?.wire()
    }

    /// Sets the queue pair's port.
    pub(crate) fn set_port(&self, port: u8) {
        self.port.store(port, Ordering::Relaxed);
    }

    /// Returns the number of its port: the first before the program has chosen one.
    #[inline]
    pub(crate) fn port(&self) -> u8 {
        self.port.load(Ordering::Relaxed)
    }

    /// Returns the queue pair's port under these attributes. A program that names none means the present one.
    fn port_with(&self, device: &Device, attr: &QpAttr, mask: AttrMask) -> Result<u8, VerbsError> {
        const WHAT: &str = "modify a queue pair";
        let chosen = if mask.contains(AttrMask::PORT) { attr.port_num } else { 0 };
        let port = if chosen == 0 { self.port() } else { chosen };
        if !device.has_port(port) {
            return Err(VerbsError::invalid(WHAT, format!("there is no port {port}")));
        }
        let of_path = attr.av.port_num;
        if mask.contains(AttrMask::AV) && of_path != 0 && of_path != port {
            let why =
                format!("the path starts at port {of_path}, but the queue pair is at port {port}");
            return Err(VerbsError::invalid(WHAT, why));
        }
        Ok(port)
    }

    /// Discards earlier completions and pending answers, for a transition to RESET.
    fn forget(&self) {
        self.forget_completions();
        if let Ends::Target(target) = &self.ends {
            target.forget();
        }
    }

    /// Discards the completions that the program has not polled, as mlx5 does when a queue pair is destroyed: the program may have freed
    /// what their `wr_id` names.
    pub(crate) fn forget_completions(&self) {
        if let Ends::Own(objects) = &self.ends {
            objects.send_cq.forget(self.qpn);
            objects.recv_cq.forget(self.qpn);
        }
    }

    /// Returns whether the queue pair has one peer.
    pub(crate) fn is_connected(&self) -> bool {
        self.qp_type != QpType::Ud
    }
}

/// Checks the P_Key indexes against the port's present table. An entry may be empty; no packet passes then.
fn check_pkey_index(
    device: &Device,
    port: u8,
    attr: &QpAttr,
    mask: AttrMask,
) -> Result<(), VerbsError> {
    let entries = device.port(port, |port| port.attr.pkey_tbl_len).unwrap_or(0);
    if mask.contains(AttrMask::PKEY_INDEX) && attr.pkey_index >= entries {
        let why = format!(
            "P_Key index {} exceeds the port's table of {entries} entries",
            attr.pkey_index
        );
        return Err(VerbsError::invalid("modify a queue pair", why));
    }
    Ok(())
}

/// Checks an alternate path: it must start at a port of this device, with a P_Key of its table.
fn check_alternate(device: &Device, attr: &QpAttr, mask: AttrMask) -> Result<(), VerbsError> {
    const WHAT: &str = "load an alternate path";
    if !mask.contains(AttrMask::ALT_PATH) {
        return Ok(());
    }
    let port = attr.alt_port_num;
    let Some(entries) = device.port(port, |port| port.attr.pkey_tbl_len) else {
        return Err(VerbsError::invalid(WHAT, format!("there is no port {port}")));
    };
    if attr.alt_pkey_index >= entries {
        let why = format!(
            "P_Key index {} exceeds the table of {entries} entries of port {port}",
            attr.alt_pkey_index
        );
        return Err(VerbsError::invalid(WHAT, why));
    }
    Ok(())
}

/// Checks that the alternate path permits packets of the same size, and that its wire has the properties that the queue pair
/// relies on.
fn check_links((primary, alternate): (&Path, &Path), of: (QpType, u32)) -> Result<(), VerbsError> {
    if matches!(primary, Path::None) || primary.may_become(alternate, of) {
        return Ok(());
    }
    let why = "its wire carries smaller packets than the wire of the primary path";
    Err(VerbsError::invalid("load an alternate path", why.to_owned()))
}

/// Checks the right to a Q_Key. On a fabric, a Q_Key whose top bit is set shows a receiver that the sender is privileged (IBTA
/// 10.2.5).
fn check_qkey(device: &Device, attr: &QpAttr, mask: AttrMask) -> Result<(), VerbsError> {
    let asked = mask.contains(AttrMask::QKEY) && is_privileged(attr.qkey);
    if !asked || !device.kind().is_on_fabric() || device.control().info().privileged {
        return Ok(());
    }
    let qkey = attr.qkey.0;
    let why = format!(
        "Q_Key {qkey:#010x} has its top bit set: only the host's owner and root may set such a key"
    );
    Err(VerbsError::NotPermitted { what: "modify a queue pair", why })
}

/// Checks the numbers of outstanding READs and atomics, in both directions, against the device's limits (`max_qp_rd_atom`,
/// `max_qp_init_rd_atom` of `ibv_query_device(3)`).
fn check_depths(device: &Device, attr: &QpAttr, mask: AttrMask) -> Result<(), VerbsError> {
    let limits = device.limits();
    let depths = [
        (AttrMask::MAX_QP_RD_ATOMIC, attr.max_rd_atomic, limits.max_init_rd_atomic),
        (AttrMask::MAX_DEST_RD_ATOMIC, attr.max_dest_rd_atomic, limits.max_rd_atomic),
    ];
    match depths.into_iter().find(|(bit, depth, limit)| mask.contains(*bit) && depth > limit) {
        Some((_, depth, limit)) => {
            let why = format!(
                "{depth} outstanding READs and atomics exceed the device's limit of {limit}"
            );
            Err(VerbsError::invalid("modify a queue pair", why))
        }
        None => Ok(()),
    }
}
