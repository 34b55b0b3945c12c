//! Whether the subnet would let packets pass that do not go through it: those of a queue pair whose peer is a process of another
//! host on this machine, and is reached by a ring.

use std::net::SocketAddr;
use std::sync::Arc;

use rdmux_transport::attr::QpAttr;
use rdmux_wire::{Lid, Mtu, Pkey};

use super::state::Known;
use super::{IbDrop, Routes};
use crate::routes::RouteView;

/// What decides about the packets of one queue pair. What was found is kept until the routes change, which is seen by
/// comparing the epoch.
#[derive(Debug)]
pub struct RouteGuard {
    routes: Arc<Routes>,
    /// Where the host takes packets that the ring leads to.
    to: SocketAddr,
    path: Path,
    /// What it was found for.
    seen: Option<Seen>,
    found: Result<Passage, IbDrop>,
}

/// What the queue pair's packets have in common.
#[derive(Debug, Default)]
struct Path {
    dlid: Lid,
    sl: u8,
    src_path_bits: u8,
    /// The payload of a packet of the real thing; a ring's may be longer.
    mtu: Option<Mtu>,
    pkey_index: u16,
}

#[derive(Debug)]
struct Seen {
    version: u64,
    epoch: u64,
    view: Option<Arc<RouteView>>,
    pkey: Pkey,
}

/// What passes.
#[derive(Clone, Copy, Debug)]
struct Passage {
    /// The largest payload.
    most: u32,
    /// Whether everything that the queue pair sends passes, and every answer.
    open: bool,
}

impl RouteGuard {
    /// For a queue pair whose peer's host takes packets at an address.
    pub fn new(routes: Arc<Routes>, to: SocketAddr) -> Self {
        Self { routes, to, path: Path::default(), seen: None, found: Err(IbDrop::TxNoWay) }
    }

    /// The queue pair has these attributes from now on.
    pub fn follow(&mut self, attr: &QpAttr) {
        let QpAttr { av, path_mtu, pkey_index, .. } = attr;
        let (dlid, sl, src_path_bits) = (Lid(av.dlid), av.sl, av.src_path_bits);
        self.path = Path { dlid, sl, src_path_bits, mtu: Some(*path_mtu), pkey_index: *pkey_index };
        self.seen = None;
    }

    /// Where in the port's table the queue pair's P_Key is.
    #[inline]
    pub fn pkey_index(&self) -> u16 {
        self.path.pkey_index
    }

    /// Whether all that the queue pair sends with a P_Key passes, and every answer to it: only then may anything be done to the
    /// peer without a packet.
    #[inline]
    pub fn is_open(&mut self, pkey: Pkey) -> bool {
        self.refresh(pkey);
        matches!(self.found, Ok(Passage { open: true, .. }))
    }

    /// Whether a packet passes; counts it if not. Of a payload that is longer than the path's MTU the first packet of the
    /// real thing decides.
    #[inline]
    pub fn passes(&mut self, pkey: Pkey, payload: usize) -> bool {
        self.refresh(pkey);
        let why = match self.found {
            Ok(Passage { open: true, .. }) => return true,
            Ok(Passage { most, .. }) => {
                let mtu = self.path.mtu.map_or(usize::MAX, |mtu| mtu.bytes() as usize);
                if payload.min(mtu) <= most as usize {
                    return true;
                }
                IbDrop::TxLength
            }
            Err(why) => why,
        };
        self.routes.count(why, 1);
        false
    }

    #[inline]
    fn refresh(&mut self, pkey: Pkey) {
        let is_same = self.seen.as_ref().is_some_and(|seen| {
            seen.version == self.routes.version()
                && seen.pkey == pkey
                && seen.view.as_ref().is_none_or(|view| view.epoch() == seen.epoch)
        });
        if !is_same {
            self.look(pkey);
        }
    }

    #[cold]
    fn look(&mut self, pkey: Pkey) {
        let mut known = Known::default();
        known.refresh(&self.routes);
        let (version, epoch) = known.found_at();
        self.found = self.find(&mut known, pkey);
        self.seen = Some(Seen { version, epoch, view: known.view, pkey });
    }

    fn find(&self, known: &mut Known, pkey: Pkey) -> Result<Passage, IbDrop> {
        let Path { dlid, sl, src_path_bits, mtu, .. } = self.path;
        if !known.is_active() {
            return Err(IbDrop::TxInactive);
        }
        let view = known.view.clone().ok_or(IbDrop::TxInactive)?;
        let index = known.pkey_index(pkey).ok_or(IbDrop::TxPkey)?;
        let way = view.way(dlid).ok_or(IbDrop::TxNoWay)?;
        // Another host may have the LID by now.
        view.peer(way.peer).filter(|peer| peer.addr == self.to).ok_or(IbDrop::TxNoWay)?;
        known.check(Some(&way), sl, index, 0)?;
        let most = way.mtu.min(known.own.mtu);
        let bits = known.own.path_bits(known.own.lid_with(src_path_bits)).unwrap_or(0);
        let open = mtu.is_some_and(|mtu| mtu <= most) && way.comes_back(bits, index);
        Ok(Passage { most: most.bytes(), open })
    }
}
