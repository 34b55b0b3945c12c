//! Packets with keys that do not fit: what the port that notices tells the subnet's manager of them (IBTA 10.9.4, 14.2.5.1).

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rdmux_wire::lrh::Lrh;
use rdmux_wire::{Bth, Deth, Gid, Grh, Lid, Qpn};

use super::IbDrop;

/// Which rule a packet broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Violated {
    /// The P_Key is none of the receiving port's, or not that of the queue pair.
    Pkey,
    /// The Q_Key is not that of the queue pair.
    Qkey,
    /// A switch on the way enforces partitions, and this one does not pass. The sender notices.
    SwitchPkey,
}

impl Violated {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Pkey, Self::Qkey, Self::SwitchPkey];

    /// The reason by which the receiver counts it.
    pub(super) const fn counted_as(self) -> Option<IbDrop> {
        match self {
            Self::Pkey => Some(IbDrop::RxPkey),
            Self::Qkey => Some(IbDrop::RxQkey),
            Self::SwitchPkey => None,
        }
    }
}

/// A packet with a key that does not fit, as traps 257 to 259 tell of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyViolation {
    /// Which rule it broke.
    pub kind: Violated,
    /// Its source LID.
    pub slid: Lid,
    /// Its destination LID.
    pub dlid: Lid,
    /// Its service level.
    pub sl: u8,
    /// The P_Key or Q_Key.
    pub key: u32,
    /// The queue pair that sent it; 0 unless the packet says.
    pub src_qpn: Qpn,
    /// The queue pair that it is for.
    pub dst_qpn: Qpn,
    /// Source and destination GID, if it has a GRH.
    pub gids: Option<(Gid, Gid)>,
}

impl KeyViolation {
    /// Of a packet by its headers: LRH and GRH, and from the BTH on. None if they make no sense.
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

/// Who takes a report.
type Take = dyn Fn(&KeyViolation) + Send + Sync;

/// Where reports go.
#[derive(Default)]
pub(super) struct Reports(Mutex<State>);

#[derive(Default)]
struct State {
    take: Option<Arc<Take>>,
    /// When each kind was reported last.
    last: [Option<Instant>; Violated::ALL.len()],
}

impl Reports {
    /// How long nothing of a kind is reported after a report. A port repeats its traps no faster than that.
    const PAUSE: Duration = Duration::from_millis(20);

    pub(super) fn set(&self, take: Box<Take>) {
        self.0.lock().take = Some(take.into());
    }

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
