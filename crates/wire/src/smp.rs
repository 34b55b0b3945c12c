//! Subnet management packets: management datagrams of QP0, LID routed or with a directed route (IBTA 14.2.1).
//!
//! A directed route is a list of egress ports, one per switch. Index 0 of both paths is not used:
//! the first hop leaves its node by port `initial_path[1]`.

use core::fmt;

use crate::bytes::{get, get16, get64, head, put, put16, put64};
use crate::mad::{MAD_LEN, MadHeader, Method, MgmtClass, status};
use crate::sm::Attribute;
use crate::{Lid, Mkey, WireError};

/// The class version of subnet management.
pub const CLASS_VERSION: u8 = 1;

/// The length of an attribute's data, in bytes.
pub const DATA_LEN: usize = 64;

/// The length of a path, in bytes: an unused entry, and [`MAX_HOPS`] ports.
pub const PATH_LEN: usize = 64;

/// The maximum number of hops of a directed route.
pub const MAX_HOPS: u8 = 63;

/// A subnet management packet: all 256 bytes, except two reserved ones of the header.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Smp {
    /// The header. For directed routes its class-specific field is hop pointer and hop count, and its status
    /// includes the direction bit: see [`Smp::hop_pointer`], [`Smp::hop_count`] and [`Smp::is_returning`].
    pub header: MadHeader,
    /// The manager's key.
    pub mkey: Mkey,
    /// Directed route: the source LID of the LID-routed part before the route; permissive without such a part.
    pub dr_slid: Lid,
    /// Directed route: the destination LID of the LID-routed part after the route; permissive without such a part.
    pub dr_dlid: Lid,
    /// Reserved.
    pub reserved: [u8; 28],
    /// The attribute.
    pub data: [u8; DATA_LEN],
    /// Directed route: the egress port of each hop, from index 1.
    pub initial_path: [u8; PATH_LEN],
    /// Directed route: the ingress port of each hop, from index 1.
    pub return_path: [u8; PATH_LEN],
}

mod field {
    pub(super) const MKEY: usize = 24;
    pub(super) const DR_SLID: usize = 32;
    pub(super) const DR_DLID: usize = 34;
    pub(super) const RESERVED: usize = 36;
    pub(super) const DATA: usize = 64;
    pub(super) const INITIAL_PATH: usize = 128;
    pub(super) const RETURN_PATH: usize = 192;
}

impl Smp {
    /// Creates a LID-routed packet without data.
    pub const fn lid_routed(method: Method, attr_id: u16, attr_mod: u32) -> Self {
        let header = MadHeader::new(MgmtClass::SUBN_LID, CLASS_VERSION, method);
        Self {
            header: MadHeader { attr_id, attr_mod, ..header },
            mkey: Mkey(0),
            dr_slid: Lid::NONE,
            dr_dlid: Lid::NONE,
            reserved: [0; 28],
            data: [0; DATA_LEN],
            initial_path: [0; PATH_LEN],
            return_path: [0; PATH_LEN],
        }
    }

    /// Creates a packet without data with a directed route that begins here and has no LID-routed part. `hops`
    /// are the egress ports of this node and of each that follows. Hops beyond [`MAX_HOPS`] are cut off.
    pub fn directed(method: Method, attr_id: u16, attr_mod: u32, hops: &[u8]) -> Self {
        let mut smp = Self::lid_routed(method, attr_id, attr_mod);
        smp.header.mgmt_class = MgmtClass::SUBN_DIRECTED;
        smp.dr_slid = Lid::PERMISSIVE;
        smp.dr_dlid = Lid::PERMISSIVE;
        let mut count = 0;
        for (slot, &port) in smp.initial_path[1..].iter_mut().zip(hops) {
            *slot = port;
            count += 1;
        }
        smp.set_hop_count(count);
        smp
    }

    /// Parses a packet.
    ///
    /// # Errors
    /// If it is shorter than 256 bytes, of another base version, or of a class other than subnet management.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let b = head::<MAD_LEN>(bytes, "SMP")?;
        let header = MadHeader::parse(b)?;
        if !header.mgmt_class.is_subnet_management() {
            let value = header.mgmt_class.0.into();
            return Err(WireError::Value { what: "management class of an SMP", value });
        }
        Ok(Self {
            header,
            mkey: Mkey(get64(b, field::MKEY)),
            dr_slid: Lid(get16(b, field::DR_SLID)),
            dr_dlid: Lid(get16(b, field::DR_DLID)),
            reserved: get(b, field::RESERVED),
            data: get(b, field::DATA),
            initial_path: get(b, field::INITIAL_PATH),
            return_path: get(b, field::RETURN_PATH),
        })
    }

    /// Returns the packet in wire format.
    pub fn to_bytes(&self) -> [u8; MAD_LEN] {
        let mut b = [0; MAD_LEN];
        self.header.emit(&mut b);
        put64(&mut b, field::MKEY, self.mkey.0);
        put16(&mut b, field::DR_SLID, self.dr_slid.0);
        put16(&mut b, field::DR_DLID, self.dr_dlid.0);
        put(&mut b, field::RESERVED, self.reserved);
        put(&mut b, field::DATA, self.data);
        put(&mut b, field::INITIAL_PATH, self.initial_path);
        put(&mut b, field::RETURN_PATH, self.return_path);
        b
    }

    /// Returns whether the packet has a directed route.
    pub const fn is_directed(&self) -> bool {
        self.header.mgmt_class.0 == MgmtClass::SUBN_DIRECTED.0
    }

    /// Returns whether the packet is returning: the D bit, for directed routes only.
    pub const fn is_returning(&self) -> bool {
        self.is_directed() && self.header.status & status::DIRECTION != 0
    }

    /// Sets or clears the D bit.
    pub const fn set_returning(&mut self, returning: bool) {
        self.header.status &= !status::DIRECTION;
        if returning {
            self.header.status |= status::DIRECTION;
        }
    }

    /// Returns the status without the D bit, which a LID-routed packet does not have.
    pub const fn status(&self) -> u16 {
        if self.is_directed() {
            self.header.status & !status::DIRECTION
        } else {
            self.header.status
        }
    }

    /// Sets the status and keeps the D bit of a directed route.
    pub const fn set_status(&mut self, new: u16) {
        let kept = if self.is_directed() { status::DIRECTION } else { 0 };
        self.header.status = self.header.status & kept | new & !kept;
    }

    /// Returns the packet's position on its route.
    pub const fn hop_pointer(&self) -> u8 {
        self.header.class_specific.to_be_bytes()[0]
    }

    /// Sets the packet's position on its route.
    pub const fn set_hop_pointer(&mut self, pointer: u8) {
        self.header.class_specific = u16::from_be_bytes([pointer, self.hop_count()]);
    }

    /// Returns the number of hops of the directed route.
    pub const fn hop_count(&self) -> u8 {
        self.header.class_specific.to_be_bytes()[1]
    }

    /// Sets the number of hops of the directed route.
    pub const fn set_hop_count(&mut self, count: u8) {
        self.header.class_specific = u16::from_be_bytes([self.hop_pointer(), count]);
    }

    /// Returns the attribute, if it is one of those in [`sm`](crate::sm).
    pub fn attribute(&self) -> Option<Attribute> {
        Attribute::parse(self.header.attr_id, &self.data).ok().flatten()
    }

    /// Writes an attribute into the data and its ID into the header. The rest of the data becomes 0.
    pub fn set_attribute(&mut self, attribute: &Attribute) {
        self.header.attr_id = attribute.attr_id();
        self.data = [0; DATA_LEN];
        attribute.emit(&mut self.data);
    }
}

impl fmt::Debug for Smp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Smp({self})")
    }
}

/// Prints `SMP Get hops 1/2 path 0,1,3 tid ... NodeInfo ...`, without fields that have their usual value.
impl fmt::Display for Smp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { header, mkey, dr_slid, dr_dlid, .. } = self;
        write!(f, "SMP {} tid {:#018x}", header.method, header.tid)?;
        if self.is_directed() {
            write!(f, " hop {}/{} path ", self.hop_pointer(), self.hop_count())?;
            self.fmt_path(f, &self.initial_path)?;
            if self.is_returning() {
                f.write_str(" returning ")?;
                self.fmt_path(f, &self.return_path)?;
            }
            if (*dr_slid, *dr_dlid) != (Lid::PERMISSIVE, Lid::PERMISSIVE) {
                write!(f, " dr_slid {dr_slid} dr_dlid {dr_dlid}")?;
            }
        }
        if mkey.0 != 0 {
            write!(f, " mkey {mkey}")?;
        }
        if self.status() != 0 {
            write!(f, " status {:#06x}", self.status())?;
        }
        if header.attr_mod != 0 {
            write!(f, " modifier {:#x}", header.attr_mod)?;
        }
        match self.attribute() {
            None => write!(f, " attr {:#06x}", header.attr_id),
            // A Get carries no attribute.
            Some(_) if header.method == Method::GET => {
                write!(f, " {}", Attribute::name_of(header.attr_id).unwrap_or_default())
            }
            Some(attribute) => write!(f, " {attribute}"),
        }
    }
}

impl Smp {
    /// Prints a path like the diagnostics: port 0 of the first node, and then the egress ports.
    fn fmt_path(&self, f: &mut fmt::Formatter<'_>, path: &[u8; PATH_LEN]) -> fmt::Result {
        f.write_str("0")?;
        let hops = usize::from(self.hop_count().min(MAX_HOPS));
        path[1..].iter().take(hops).try_for_each(|port| write!(f, ",{port}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sm::NodeInfo;

    #[test]
    fn smp_fields_are_at_the_offsets_of_the_specification() {
        let mut smp = Smp::directed(Method::GET, NodeInfo::ATTR_ID, 0x0102_0304, &[5, 6]);
        smp.set_hop_pointer(1);
        smp.set_returning(true);
        smp.set_status(status::INVALID_VALUE);
        smp.mkey = Mkey(0x1122_3344_5566_7788);
        smp.dr_slid = Lid(0x0a0b);
        smp.dr_dlid = Lid(0x0c0d);
        smp.data[0] = 0xd1;
        smp.return_path[63] = 0xee;
        let b = smp.to_bytes();
        assert_eq!(b[..8], [1, 0x81, 1, 1, 0x80, 0x1c, 1, 2]);
        assert_eq!(b[16..24], [0, 0x11, 0, 0, 1, 2, 3, 4]);
        assert_eq!(b[24..36], [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0xa, 0xb, 0xc, 0xd]);
        assert_eq!((b[64], b[255]), (0xd1, 0xee));
        assert_eq!(b[128..131], [0, 5, 6]);
        assert_eq!(Smp::parse(&b), Ok(smp));
        assert_eq!((smp.hop_pointer(), smp.hop_count()), (1, 2));
        assert_eq!(smp.status(), status::INVALID_VALUE);
    }

    #[test]
    fn lid_routed_smp_status_has_no_direction_bit() {
        let mut smp = Smp::lid_routed(Method::GET_RESP, 0x11, 0);
        smp.set_status(0x800c);
        assert_eq!(smp.status(), 0x800c);
        assert!(!smp.is_returning());
        smp.header.mgmt_class = MgmtClass::SUBN_DIRECTED;
        assert_eq!(smp.status(), 0x000c);
        assert!(smp.is_returning());
        smp.set_status(0);
        assert!(smp.is_returning(), "the status is not the direction");
    }

    #[test]
    fn directed_route_is_limited_to_63_hops() {
        let smp = Smp::directed(Method::GET, 0x11, 0, &[9; 100]);
        assert_eq!(smp.hop_count(), MAX_HOPS);
        assert_eq!(smp.initial_path[0], 0);
        assert_eq!(smp.initial_path[1..], [9; 63]);
    }

    #[test]
    fn smp_of_other_class_version_or_length_is_refused() {
        let mut b = Smp::lid_routed(Method::GET, 0x11, 0).to_bytes();
        assert!(matches!(Smp::parse(&b[..255]), Err(WireError::Short { need: 256, .. })));
        b[0] = 2;
        assert!(matches!(Smp::parse(&b), Err(WireError::Value { value: 2, .. })));
        b[..2].copy_from_slice(&[1, 4]);
        assert!(matches!(Smp::parse(&b), Err(WireError::Value { value: 4, .. })));
    }

    #[test]
    fn smp_is_displayed_with_route_and_attribute() {
        let mut smp = Smp::directed(Method::GET, NodeInfo::ATTR_ID, 0, &[1, 3]);
        assert_eq!(smp.to_string(), "SMP Get tid 0x0000000000000000 hop 0/2 path 0,1,3 NodeInfo");
        smp.header.method = Method::GET_RESP;
        smp.set_attribute(&NodeInfo { num_ports: 8, ..NodeInfo::default() }.into());
        assert!(smp.to_string().contains("NodeInfo base_version 0"), "{smp}");
        assert!(smp.to_string().contains("num_ports 8"), "{smp}");
        smp.header.attr_id = 0xff01;
        assert!(smp.to_string().ends_with("attr 0xff01"), "{smp}");
    }
}
