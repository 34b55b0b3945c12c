//! Directed routes: how the sender, switches and the receiver update hop pointer and paths (IBTA 14.2.2).
//!
//! With n hops the pointer p of a request goes from 0 to n + 1, and that of the response back to 0. Index 0 of both paths is
//! unused. A route may begin or end with a LID-routed part.

use rdmux_wire::Lid;
use rdmux_wire::mad::{MAD_LEN, MgmtClass};
use rdmux_wire::smp::MAX_HOPS;

/// The action of a node for a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Deliver it to the agents or programs of this port.
    Here,
    /// Send it by this port.
    Leave(u8),
    /// Route it by LID: to this LID, where its directed part ends, or to its own destination LID if the directed part has not
    /// begun.
    LidRouted(Option<Lid>),
    /// Discard it: it violates the rules.
    Discard,
}

/// The node that a datagram has reached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Here {
    /// The port by which it entered.
    pub(crate) ingress: u8,
    /// Whether the node is a switch. Adapters do not forward.
    pub(crate) is_switch: bool,
    /// Whether the datagram was sent to the node's LID, so that it was LID routed up to here.
    pub(crate) routed: bool,
}

mod field {
    pub(super) const CLASS: usize = 1;
    pub(super) const STATUS: usize = 4;
    pub(super) const HOP_POINTER: usize = 6;
    pub(super) const HOP_COUNT: usize = 7;
    pub(super) const DR_SLID: usize = 32;
    pub(super) const DR_DLID: usize = 34;
    pub(super) const INITIAL_PATH: usize = 128;
    pub(super) const RETURN_PATH: usize = 192;
}

/// The routing fields of a datagram.
struct Route<'a> {
    mad: &'a mut [u8; MAD_LEN],
    returning: bool,
    count: u8,
}

impl<'a> Route<'a> {
    fn new(mad: &'a mut [u8; MAD_LEN]) -> Option<Self> {
        let count = mad[field::HOP_COUNT];
        let returning = mad[field::STATUS] & 0x80 != 0;
        (count <= MAX_HOPS).then_some(Self { mad, returning, count })
    }
    fn pointer(&self) -> u8 {
        self.mad[field::HOP_POINTER]
    }
    fn set_pointer(&mut self, pointer: u8) {
        self.mad[field::HOP_POINTER] = pointer;
    }
    /// Returns the port of hop `hop`. The caller has checked that `hop` is at most [`MAX_HOPS`].
    fn initial(&self, hop: u8) -> u8 {
        self.mad[field::INITIAL_PATH + usize::from(hop)]
    }
    fn back(&self, hop: u8) -> u8 {
        self.mad[field::RETURN_PATH + usize::from(hop)]
    }
    fn set_back(&mut self, hop: u8, port: u8) {
        self.mad[field::RETURN_PATH + usize::from(hop)] = port;
    }
    fn lid(&self, at: usize) -> Lid {
        Lid(u16::from_be_bytes([self.mad[at], self.mad[at + 1]]))
    }
    /// Returns the LID of the requester's end of the route.
    fn dr_slid(&self) -> Lid {
        self.lid(field::DR_SLID)
    }
    fn dr_dlid(&self) -> Lid {
        self.lid(field::DR_DLID)
    }
}

/// Handles a datagram at its sender. The sender is port `own`, or port 0 of a switch, which may send by any port.
pub(crate) fn originate(mad: &mut [u8; MAD_LEN], own: u8, is_switch: bool) -> Turn {
    let Some(mut route) = Route::new(mad) else { return Turn::Discard };
    let begins_lid_routed = if route.returning { route.dr_dlid() } else { route.dr_slid() };
    if begins_lid_routed != Lid::PERMISSIVE {
        return Turn::LidRouted(None);
    }
    let (n, p) = (route.count, route.pointer());
    let (pointer, egress) = match (route.returning, n) {
        (false, _) if p != 0 => return Turn::Discard,
        (true, _) if p != n + 1 => return Turn::Discard,
        (false, 0) => (1, None),
        (true, 0) => (0, None),
        (false, _) => (1, Some(route.initial(1))),
        (true, _) => (n, Some(route.back(n))),
    };
    route.set_pointer(pointer);
    match egress {
        None => Turn::Here,
        Some(port) if is_switch || port == own => Turn::Leave(port),
        Some(_) => Turn::Discard,
    }
}

/// Returns whether the kernel lets a program on port `own`, or on port 0 of a switch, send this datagram. If
/// `smi_handle_dr_smp_send` of `drivers/infiniband/core/smi.c` rejects it, write(2) fails with EINVAL. Bytes beyond `mad`
/// count as zero. As in the kernel, a pointer that is neither at the beginning nor at the end of the route passes;
/// [`originate`] discards it.
pub(crate) fn may_write(mad: &[u8], own: u8) -> bool {
    let byte = |at: usize| mad.get(at).copied().unwrap_or_default();
    let is_permissive = |at: usize| [byte(at), byte(at + 1)] == Lid::PERMISSIVE.0.to_be_bytes();
    let is_switch = own == 0;
    let returning = byte(field::STATUS) & 0x80 != 0;
    let (near, far) = match returning {
        false => (field::DR_SLID, field::DR_DLID),
        true => (field::DR_DLID, field::DR_SLID),
    };
    if !is_permissive(near) {
        // The datagram starts LID routed.
        return true;
    }
    let (n, p) = (byte(field::HOP_COUNT), byte(field::HOP_POINTER));
    if n > MAX_HOPS {
        return false;
    }
    let leaves_by = |path: usize, hop: u8| is_switch || byte(path + usize::from(hop)) == own;
    if returning {
        return match p {
            p if n > 0 && p == n + 1 => leaves_by(field::RETURN_PATH, n),
            p if p >= 2 && p <= n => is_switch,
            1 => is_switch || is_permissive(far),
            p => p == 0,
        };
    }
    match p {
        0 if n > 0 => leaves_by(field::INITIAL_PATH, 1),
        p if p < n => is_switch,
        p if p == n => is_switch || is_permissive(far),
        p => p == n + 1,
    }
}

/// Completes the route of an answer to a requester on the same port: there are no hops.
pub(crate) fn return_at_once(mad: &mut [u8; MAD_LEN]) {
    if mad[field::CLASS] == MgmtClass::SUBN_DIRECTED.0 {
        mad[field::HOP_POINTER] = 0;
    }
}

/// Handles a datagram at a node that it has reached by a link.
pub(crate) fn relay(mad: &mut [u8; MAD_LEN], here: Here) -> Turn {
    match Route::new(mad) {
        Some(route) if route.returning => relay_response(route, here),
        Some(route) => relay_request(route, here),
        None => Turn::Discard,
    }
}

fn relay_request(mut route: Route<'_>, here: Here) -> Turn {
    let (n, p) = (route.count, route.pointer());
    if p == n + 1 {
        return Turn::Here;
    }
    if p == 0 && n > 0 {
        // The directed part begins here if a LID-routed part precedes it.
        if !(here.is_switch && here.routed && route.dr_slid() != Lid::PERMISSIVE) {
            return Turn::Discard;
        }
        route.set_pointer(1);
        return Turn::Leave(route.initial(1));
    }
    if p > n {
        return Turn::Discard;
    }
    if p > 0 {
        route.set_back(p, here.ingress);
    }
    if p < n {
        route.set_pointer(p + 1);
        let egress = route.initial(p + 1);
        return if here.is_switch { Turn::Leave(egress) } else { Turn::Discard };
    }
    route.set_pointer(n + 1);
    match route.dr_dlid() {
        Lid::PERMISSIVE => Turn::Here,
        to if here.is_switch => Turn::LidRouted(Some(to)),
        _ => Turn::Discard,
    }
}

fn relay_response(mut route: Route<'_>, here: Here) -> Turn {
    let (n, p) = (route.count, route.pointer());
    if p == 0 {
        return Turn::Here;
    }
    // A response was LID routed back to the end of the directed part.
    let begins = p == n + 1 && here.routed && route.dr_dlid() != Lid::PERMISSIVE;
    if p > n && !begins {
        return Turn::Discard;
    }
    if p == 1 {
        route.set_pointer(0);
        return match route.dr_slid() {
            Lid::PERMISSIVE => Turn::Here,
            to if here.is_switch => Turn::LidRouted(Some(to)),
            _ => Turn::Discard,
        };
    }
    route.set_pointer(p - 1);
    let egress = route.back(p - 1);
    if here.is_switch { Turn::Leave(egress) } else { Turn::Discard }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmux_wire::mad::Method;
    use rdmux_wire::smp::Smp;

    fn request(hops: &[u8], pointer: u8) -> [u8; MAD_LEN] {
        let mut smp = Smp::directed(Method::GET, 0x11, 0, hops);
        smp.set_hop_pointer(pointer);
        smp.to_bytes()
    }

    fn response(hops: &[u8], back: &[u8], pointer: u8) -> [u8; MAD_LEN] {
        let mut smp = Smp::directed(Method::GET_RESP, 0x11, 0, hops);
        smp.return_path[1..=back.len()].copy_from_slice(back);
        smp.set_returning(true);
        smp.set_hop_pointer(pointer);
        smp.to_bytes()
    }

    const SWITCH: Here = Here { ingress: 9, is_switch: true, routed: false };
    const ADAPTER: Here = Here { ingress: 1, is_switch: false, routed: false };

    #[test]
    fn a_request_of_two_hops_crosses_one_switch() {
        let mut mad = request(&[1, 5], 0);
        assert_eq!(originate(&mut mad, 1, false), Turn::Leave(1));
        assert_eq!(relay(&mut mad, SWITCH), Turn::Leave(5));
        assert_eq!(relay(&mut mad, ADAPTER), Turn::Here);
        let smp = Smp::parse(&mad).expect("an SMP");
        assert_eq!((smp.hop_pointer(), smp.return_path[1], smp.return_path[2]), (3, 9, 1));
    }

    #[test]
    fn the_response_takes_the_return_path() {
        let mut mad = response(&[1, 5], &[9, 1], 3);
        assert_eq!(originate(&mut mad, 1, false), Turn::Leave(1));
        assert_eq!(relay(&mut mad, SWITCH), Turn::Leave(9));
        assert_eq!(relay(&mut mad, ADAPTER), Turn::Here);
        assert_eq!(mad[field::HOP_POINTER], 0);
    }

    #[test]
    fn directed_route_smp_with_zero_hops_stays_at_the_own_port() {
        let mut mad = request(&[], 0);
        assert_eq!(originate(&mut mad, 1, false), Turn::Here);
        assert_eq!(mad[field::HOP_POINTER], 1);
        let mut mad = response(&[], &[], 1);
        assert_eq!(originate(&mut mad, 1, false), Turn::Here);
        assert_eq!(mad[field::HOP_POINTER], 0);
    }

    #[test]
    fn directed_route_smp_with_bad_pointer_port_or_hop_count_is_discarded() {
        // A sender must begin at the start of the route and send by its own port.
        assert_eq!(originate(&mut request(&[1], 1), 1, false), Turn::Discard);
        assert_eq!(originate(&mut request(&[2], 0), 1, false), Turn::Discard);
        assert_eq!(originate(&mut response(&[1], &[1], 1), 1, false), Turn::Discard);
        // Adapters do not forward, and pointers beyond the route are invalid.
        assert_eq!(relay(&mut request(&[1, 2], 1), ADAPTER), Turn::Discard);
        assert_eq!(relay(&mut request(&[1, 2], 0), SWITCH), Turn::Discard);
        assert_eq!(relay(&mut request(&[1, 2], 4), SWITCH), Turn::Discard);
        assert_eq!(relay(&mut response(&[1, 2], &[1, 2], 3), SWITCH), Turn::Discard);
        assert_eq!(relay(&mut response(&[1, 2], &[1, 2], 2), ADAPTER), Turn::Discard);
        let mut long = request(&[1; 63], 0);
        long[field::HOP_COUNT] = 64;
        assert_eq!(originate(&mut long, 1, false), Turn::Discard);
        assert_eq!(relay(&mut long, SWITCH), Turn::Discard);
    }

    #[test]
    fn directed_route_smp_whose_first_hop_is_not_the_own_port_is_refused() {
        // (route, its port) of an adapter, and whether the kernel accepts it.
        for (mad, own, may) in [
            (request(&[1, 5], 0), 1, true),
            (request(&[2, 5], 0), 1, false),
            (request(&[2, 5], 0), 2, true),
            (request(&[7], 0), 0, true),
            (request(&[], 0), 1, true),
            (request(&[], 1), 1, true),
            (request(&[], 2), 1, false),
            (request(&[1, 5], 1), 1, false),
            (request(&[1, 5], 1), 0, true),
            (request(&[1, 5], 2), 1, true),
            (request(&[1, 5], 3), 1, true),
            (request(&[1, 5], 4), 1, false),
            (response(&[1, 5], &[9, 1], 3), 1, true),
            (response(&[1, 5], &[9, 1], 3), 2, false),
            (response(&[1, 5], &[9, 1], 2), 1, false),
            (response(&[1, 5], &[9, 1], 2), 0, true),
            (response(&[1, 5], &[9, 1], 1), 1, true),
            (response(&[1, 5], &[9, 1], 0), 1, true),
            (response(&[1, 5], &[9, 1], 4), 1, false),
            (response(&[], &[], 1), 1, true),
        ] {
            assert_eq!(may_write(&mad, own), may, "{:?}", Smp::parse(&mad));
        }
        // A directed part that ends at a LID cannot continue behind an adapter.
        let mut on = request(&[1], 1);
        on[field::DR_DLID] = 0;
        assert!(!may_write(&on, 1) && may_write(&on, 0));
        let mut back = response(&[1], &[1], 1);
        back[field::DR_SLID] = 0;
        assert!(!may_write(&back, 1) && may_write(&back, 0));
        // A route that begins LID routed contains nothing about this port.
        let mut later = request(&[9], 0);
        later[field::DR_SLID] = 0;
        assert!(may_write(&later, 1));
        let mut long = request(&[1; 63], 0);
        assert!(may_write(&long, 1));
        long[field::HOP_COUNT] = 64;
        assert!(!may_write(&long, 1));
        // Missing bytes count as zero, which is no port of an adapter.
        assert!(!may_write(&request(&[1], 0)[..36], 1));
        assert!(may_write(&request(&[], 0)[..36], 1));
    }

    #[test]
    fn any_hop_pointer_and_hop_count_does_not_panic() {
        for pointer in 0..=255 {
            for count in 0..=255 {
                for status in [0, 0x80] {
                    let mut mad = request(&[1; 63], pointer);
                    (mad[field::HOP_COUNT], mad[field::STATUS]) = (count, status);
                    for here in [SWITCH, ADAPTER, Here { routed: true, ..SWITCH }] {
                        for lid in [0xff, 0] {
                            mad[field::DR_SLID..field::DR_SLID + 4].fill(lid);
                            relay(&mut mad.clone(), here);
                            may_write(&mad, 1);
                            originate(&mut mad.clone(), 1, true);
                        }
                    }
                }
            }
        }
    }
}
