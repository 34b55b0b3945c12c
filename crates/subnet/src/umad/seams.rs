//! The seams to the driver: what it knows of its ports, and what it is asked to do.

use rdmux_wire::{Gid, Lid, Pkey};

use super::{FileId, UserMad};
use crate::{MadPacket, PortId};

/// What the driver knows of its ports, as they are now.
pub trait Ports {
    /// The base LID, which is 0 while none is assigned, and the LMC; none where the link layer has no LIDs (RoCE).
    fn lid(&self, port: PortId) -> Option<(Lid, u8)>;

    /// An entry of the P_Key table; none behind its end.
    fn pkey(&self, port: PortId, index: u16) -> Option<Pkey>;

    /// An entry of the GID table; none behind its end.
    fn gid(&self, port: PortId, index: u8) -> Option<Gid>;

    /// The first entry of the P_Key table that lets a packet with this key in.
    fn pkey_index(&self, port: PortId, pkey: Pkey) -> Option<u16> {
        (0..)
            .map_while(|index| self.pkey(port, index).map(|key| (index, key)))
            .find(|&(_, key)| pkey.admits(key))
            .map(|(index, _)| index)
    }

    /// The entry of the GID table that is this GID.
    fn gid_index(&self, port: PortId, gid: Gid) -> Option<u8> {
        (0..=u8::MAX)
            .map_while(|index| self.gid(port, index).map(|entry| (index, entry)))
            .find(|&(_, entry)| entry == gid)
            .map(|(index, _)| index)
    }
}

/// What the driver is asked to do. It must not call [`Umad`](super::Umad) from here: it keeps what
/// comes of a packet, to the same port too, until the call returns.
pub trait UmadSink {
    /// Send this from this port.
    fn transmit(&mut self, port: PortId, packet: MadPacket);

    /// The program can read this. The driver bounds what it keeps for a file, for example to
    /// [`MAX_QUEUED`](super::MAX_QUEUED) records, and drops what is more.
    fn readable(&mut self, file: FileId, record: UserMad);

    /// Set or clear IsSM in the port's capability mask.
    fn set_is_sm(&mut self, port: PortId, is_sm: bool);
}
