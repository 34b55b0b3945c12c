//! Packets with wrong keys: the reports of the detecting port to the subnet manager (IBTA 10.9.4, 14.2.5.1).

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rdmux_wire::lrh::Lrh;
use rdmux_wire::{Bth, Deth, Gid, Grh, Lid, Qpn};

use super::IbDrop;

/// The rule that a packet violated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Violated {
    /// The P_Key is not one of the receiving port's, or not that of the queue pair.
    Pkey,
    /// The Q_Key is not that of the queue pair.
    Qkey,
    /// A switch on the way enforces partitions, and does not pass this one. The sender detects it.
    SwitchPkey,
}

impl Violated {
    /// All rules.
    pub const ALL: [Self; 3] = [Self::Pkey, Self::Qkey, Self::SwitchPkey];

    /// Returns the reason by which the receiver counts it.
    pub(super) const fn counted_as(self) -> Option<IbDrop> {
        match self {
            Self::Pkey => Some(IbDrop::RxPkey),
            Self::Qkey => Some(IbDrop::RxQkey),
            Self::SwitchPkey => None,
        }
    }
}

/// A packet with a wrong key, as reported by traps 257 to 259.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyViolation {
    /// The violated rule.
    pub kind: Violated,
    /// The packet's source LID.
    pub slid: Lid,
    /// The packet's destination LID.
    pub dlid: Lid,
    /// The packet's service level.
    pub sl: u8,
    /// The P_Key or Q_Key.
    pub key: u32,
    /// The queue pair that sent it; 0 if the packet does not name it.
    pub src_qpn: Qpn,
    /// The destination queue pair.
    pub dst_qpn: Qpn,
    /// Source and destination GID, if it has a GRH.
    pub gids: Option<(Gid, Gid)>,
}

impl KeyViolation {
    /// Creates the report of a packet from its headers: LRH and GRH, and from the BTH on. Returns none if they are invalid.
    pub fn of(kind: Violated, route: &[u8], transport: &[u8]) -> Option<Self> {
        let lrh = Lrh::parse(route).ok()?;
        let grh = route.get(Lrh::LEN..).and_then(|grh| Grh::parse(grh).ok());
        let bth = Bth::parse(transport).ok()?;
        let deth = transport.get(Bth::LEN..).filter(|_| bth.opcode.has_deth());
        let deth = deth.and_then(|deth| Deth::parse(deth).ok());
        let key = match (kind, deth) {
            (Violated::Qkey, Some(deth)) => deth.qkey.0,
            (Violated::Qkey, None) => return None,
            (Violated::Pkey | Violated::SwitchPkey, _) => bth.pkey.0.into(),
        };
        let src_qpn = deth.map_or(Qpn::QP0, |deth| deth.src_qpn);
        let (slid, dlid, sl) = (lrh.slid, lrh.dlid, lrh.sl);
        let gids = grh.map(|grh| (grh.sgid, grh.dgid));
        Some(Self { kind, slid, dlid, sl, key, src_qpn, dst_qpn: bth.dest_qpn, gids })
    }
}

/// The receiver of reports.
type Take = dyn Fn(&KeyViolation) + Send + Sync;

/// The destination of reports, and their rate limit.
#[derive(Default)]
pub(super) struct Reports(Mutex<State>);

#[derive(Default)]
struct State {
    take: Option<Arc<Take>>,
    /// The time of the last report of each kind.
    last: [Option<Instant>; Violated::ALL.len()],
}

impl Reports {
    /// The minimum interval between reports of a kind. A port repeats its traps no faster.
    const PAUSE: Duration = Duration::from_millis(20);

    /// Sets the function that receives reports.
    pub(super) fn set(&self, take: Box<Take>) {
        self.0.lock().take = Some(take.into());
    }

    /// Reports a violation, unless one of the same kind was reported less than [`PAUSE`](Self::PAUSE) ago.
    pub(super) fn report(&self, violation: &KeyViolation) {
        let take = {
            let mut state = self.0.lock();
            let last = &mut state.last[violation.kind as usize];
            let now = Instant::now();
            if last.is_some_and(|last| now.duration_since(last) < Self::PAUSE) {
                return;
            }
            *last = Some(now);
            state.take.clone()
        };
        if let Some(take) = take {
            take(violation);
        }
    }
}

impl fmt::Debug for Reports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reports").finish_non_exhaustive()
    }
}
