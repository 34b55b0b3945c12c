//! M_Key checks: the key, the level of protection, and the lease (IBTA 14.2.4).

use core::time::Duration;

use rdmux_wire::Mkey;
use rdmux_wire::mad::{MadHeader, Method};

use crate::packet::MadPacket;
use crate::sink::Sink;
use crate::subnet::{Cx, Subnet, Timer};

/// The protection level from which on a Get with a wrong key is refused.
const NO_GET: u8 = 2;

/// The offset of the M_Key in a subnet management datagram.
const MKEY: usize = 24;

/// Returns the M_Key of a subnet management datagram.
pub(crate) fn shown(mad: &[u8]) -> Mkey {
    let bytes = mad.get(MKEY..).and_then(|rest| rest.first_chunk());
    Mkey(bytes.map_or(0, |b| u64::from_be_bytes(*b)))
}

/// Removes the M_Key from a datagram for programs, which would otherwise learn the key.
pub(crate) fn hide(mad: &mut [u8]) {
    if let Some(key) = mad.get_mut(MKEY..MKEY + 8) {
        key.fill(0);
    }
}

impl Subnet {
    /// Returns whether a Get, Set or TrapRepress is allowed at the port `at`. If it is not, the violation is counted and
    /// reported to the manager, and the lease starts. A right key stops the lease.
    pub(crate) fn check_mkey(
        &mut self,
        at: usize,
        header: &MadHeader,
        packet: &MadPacket,
        cx: &mut Cx<'_, impl Sink>,
    ) -> bool {
        let port = &mut self.ports[at];
        let info = &mut port.info;
        if info.mkey == Mkey(0) || info.mkey == shown(&packet.mad[..]) {
            if let Some(end) = port.lease.take() {
                self.timers.remove(&(end, Timer::Lease(at)));
            }
            return true;
        }
        if header.method == Method::GET && info.mkey_protect_bits < NO_GET {
            return true;
        }
        info.mkey_violations = info.mkey_violations.saturating_add(1);
        if port.lease.is_none() && info.mkey_lease_period != 0 {
            let end = cx.now.after(Duration::from_secs(info.mkey_lease_period.into()));
            port.lease = Some(end);
            self.timers.insert((end, Timer::Lease(at)));
        }
        self.raise_bad_mkey(at, header, packet, cx);
        false
    }

    /// Ends the lease: no right key was presented in time, so that the port is unprotected.
    pub(crate) fn end_lease(&mut self, at: usize) {
        let port = &mut self.ports[at];
        port.lease = None;
        port.info.mkey_protect_bits = 0;
    }
}
