//! Groups: the multicast GIDs to which services send requests.

use core::fmt;

use super::SCOPE;
use crate::bytes::{get16, put16};
use crate::sa::Rate;
use crate::{Gid, Mtu, Pkey};

/// Offsets in a group's GID.
mod field {
    pub(super) const FLAGS_SCOPE: usize = 1;
    pub(super) const SIGNATURE: usize = 2;
    pub(super) const PKEY: usize = 4;
    pub(super) const TOS: usize = 6;
    pub(super) const RATE: usize = 7;
    pub(super) const MTU: usize = 8;
    pub(super) const ZERO: usize = 9;
}

/// Bytes 2 and 3 of the GID.
const SIGNATURE: u16 = 0x4001;

/// A group of services: all that can receive at a rate and with an MTU.
///
/// Its GID is `ff15:4001:PPPP:TTRR:MM00::`: P_Key, type of service, codes of rate and MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group {
    /// The partition. The GID contains the key of a full member, whatever the port's own is.
    pub pkey: Pkey,
    /// The type of service, which ibacm leaves 0. Here it distinguishes groups of different service levels.
    pub tos: u8,
    /// The rate. ibacm uses 0 for rates that it does not know.
    pub rate: Rate,
    /// The MTU.
    pub mtu: Mtu,
}

impl Group {
    /// Returns the group's multicast GID.
    pub fn gid(&self) -> Gid {
        let mut gid = [0; 16];
        gid[0] = 0xff;
        // The first flag: transient.
        gid[field::FLAGS_SCOPE] = 0x10 | SCOPE;
        put16(&mut gid, field::SIGNATURE, SIGNATURE);
        put16(&mut gid, field::PKEY, self.pkey.0 | 0x8000);
        gid[field::TOS] = self.tos;
        gid[field::RATE] = self.rate.0;
        gid[field::MTU] = self.mtu.code();
        Gid(gid)
    }

    /// Returns the group of a GID, or none if it is not such a GID. The P_Key is that of a full member.
    pub fn from_gid(gid: Gid) -> Option<Self> {
        let b = &gid.0;
        let ours = b[0] == 0xff
            && b[field::FLAGS_SCOPE] == 0x10 | SCOPE
            && get16(b, field::SIGNATURE) == SIGNATURE
            && b[field::ZERO..].iter().all(|&byte| byte == 0);
        let pkey = Pkey(get16(b, field::PKEY));
        if !ours || pkey.0 & 0x8000 == 0 || b[field::RATE] > 0x3f {
            return None;
        }
        let mtu = Mtu::from_code(b[field::MTU])?;
        Some(Self { pkey, tos: b[field::TOS], rate: Rate(b[field::RATE]), mtu })
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pkey, tos, rate, mtu } = self;
        write!(f, "pkey {pkey} tos {tos} rate {rate} mtu {mtu}")
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv6Addr;

    use super::*;

    fn gid(text: &str) -> Gid {
        text.parse::<Ipv6Addr>().unwrap().into()
    }

    #[test]
    fn group_of_the_default_options_is_that_of_ibacm() {
        let group = Group { pkey: Pkey(0x7fff), tos: 0, rate: Rate::GBPS_10, mtu: Mtu::M2048 };
        assert_eq!(group.gid(), gid("ff15:4001:ffff:0003:0400::"));
        let full = Group { pkey: Pkey::DEFAULT, ..group };
        assert_eq!(Group::from_gid(group.gid()), Some(full));
        let of_sl = Group { pkey: Pkey(0x12), tos: 3, rate: Rate::GBPS_100, mtu: Mtu::M4096 };
        assert_eq!(of_sl.gid(), gid("ff15:4001:8012:0310:0500::"));
    }

    #[test]
    fn mgids_of_another_layout_are_no_acm_groups() {
        for other in [
            "ff12:4001:ffff:0003:0400::",  // scope
            "ff15:401b:ffff:0003:0400::",  // signature of IP over InfiniBand
            "ff15:4001:7fff:0003:0400::",  // limited member
            "ff15:4001:ffff:0003:0000::",  // MTU
            "ff15:4001:ffff:0003:0600::",  // MTU
            "ff15:4001:ffff:0043:0400::",  // rate of more than 6 bits
            "ff15:4001:ffff:0003:0400::1", // reserved
            "fe80::1",
        ] {
            assert_eq!(Group::from_gid(gid(other)), None, "{other}");
        }
    }
}
