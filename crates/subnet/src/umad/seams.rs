//! The interfaces to the driver: queries about its ports, and output.

use rdmux_wire::{Gid, Lid, Pkey};

use super::{FileId, UserMad};
use crate::{MadPacket, PortId};

/// Answers queries about the driver's ports.
pub trait Ports {
    /// Returns the base LID, which is 0 while none is assigned, and the LMC; none if the link layer has no LIDs (RoCE).
    fn lid(&self, port: PortId) -> Option<(Lid, u8)>;

    /// Returns an entry of the P_Key table; none beyond its end.
    fn pkey(&self, port: PortId, index: u16) -> Option<Pkey>;

    /// Returns an entry of the GID table; none beyond its end.
    fn gid(&self, port: PortId, index: u8) -> Option<Gid>;

    /// Returns the first index of the P_Key table that admits a packet with this key.
    fn pkey_index(&self, port: PortId, pkey: Pkey) -> Option<u16> {
        (0..)
            .map_while(|index| self.pkey(port, index).map(|key| (index, key)))
            .find(|&(_, key)| pkey.admits(key))
            .map(|(index, _)| index)
    }

    /// Returns the index of this GID in the GID table.
    fn gid_index(&self, port: PortId, gid: Gid) -> Option<u8> {
        (0..=u8::MAX)
            .map_while(|index| self.gid(port, index).map(|entry| (index, entry)))
            .find(|&(_, entry)| entry == gid)
            .map(|(index, _)| index)
    }
}

/// Receives the output of [`Umad`](super::Umad). The driver must not call it from here. It must queue the effects of a
/// packet, even to the same port, until the call returns.
pub trait UmadSink {
    /// Sends a packet from a port.
    fn transmit(&mut self, port: PortId, packet: MadPacket);

    /// Delivers a record to the program. The driver limits the records that it keeps for a file, for example to
    /// [`MAX_QUEUED`](super::MAX_QUEUED), and drops further ones.
    fn readable(&mut self, file: FileId, record: UserMad);

    /// Sets or clears IsSM in the port's capability mask.
    fn set_is_sm(&mut self, port: PortId, is_sm: bool);
}
