//! ACK, STOP and ABORT: packets without data whose header is that of the packet that they answer.

use alloc::boxed::Box;

use rdmux_wire::mad::{MAD_LEN, Method, MgmtClass};
use rdmux_wire::{Rmpp, RmppFlags, RmppStatus, RmppType};

use super::{Mad, data_offset};

const CLASS: usize = 1;
const METHOD: usize = 3;

/// Returns an ACK of the segments up to `segment`, for the sender of the segment `to`. It allows segments up to `window`.
pub fn acknowledge(to: &Mad, segment: u32, window: u32) -> Box<Mad> {
    back(to, RmppType::ACK, RmppStatus::NORMAL, segment, window)
}

/// Returns an ABORT of the transfer of `to`, because the peer's packet was in error.
pub fn abort(to: &[u8], status: RmppStatus) -> Box<Mad> {
    back(to, RmppType::ABORT, status, 0, 0)
}

/// Returns a STOP of the transfer of `to`, because there is no room for it.
pub fn stop(to: &Mad) -> Box<Mad> {
    back(to, RmppType::STOP, RmppStatus::RESOURCES, 0, 0)
}

/// Returns an ABORT of the transfer of the message `of`, by its sender.
pub fn abort_by_sender(of: &[u8], status: RmppStatus) -> Box<Mad> {
    packet(of, RmppType::ABORT, status, 0, 0)
}

/// Returns a packet for the sender of `to`: the response bit of the method is inverted.
fn back(to: &[u8], kind: RmppType, status: RmppStatus, segment: u32, length: u32) -> Box<Mad> {
    let mut mad = packet(to, kind, status, segment, length);
    mad[METHOD] ^= Method::RESPONSE_BIT;
    mad
}

/// Returns a packet with the class's header of `of` and this RMPP header.
fn packet(of: &[u8], kind: RmppType, status: RmppStatus, segment: u32, length: u32) -> Box<Mad> {
    let mut mad = Box::new([0; MAD_LEN]);
    let class = of.get(CLASS).copied().unwrap_or_default();
    let len = data_offset(MgmtClass(class)).min(of.len());
    mad[..len].copy_from_slice(&of[..len]);
    let rmpp = Rmpp {
        version: Rmpp::VERSION,
        kind,
        resp_time: 0,
        flags: RmppFlags::ACTIVE,
        status,
        segment,
        length,
    };
    rmpp.put(&mut mad);
    mad
}
