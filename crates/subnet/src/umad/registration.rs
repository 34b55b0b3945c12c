//! Agent registrations and their rules.

use rdmux_wire::Rmpp;
use rdmux_wire::mad::MgmtClass;

use super::Errno;

/// A registration request: IB_USER_MAD_REGISTER_AGENT2, or the first form with `flags` 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Registration {
    /// 0 for the classes 0x01 and 0x81, otherwise 1.
    pub qpn: u32,
    /// The management class; 0 for an agent that only sends.
    pub class: u8,
    /// The class version, below 8.
    pub class_version: u8,
    /// The vendor of the class; for classes 0x30 to 0x4f only.
    pub oui: [u8; 3],
    /// Bit n is set if requests of method n go to this agent. An agent without methods gets only responses to its own requests.
    pub methods: u128,
    /// 1 if the device segments and reassembles messages of several MADs, else 0.
    pub rmpp_version: u8,
    /// [`Registration::USER_RMPP`] or 0.
    pub flags: u32,
}

impl Registration {
    /// The program does RMPP itself, regardless of `rmpp_version`.
    pub const USER_RMPP: u32 = 1;

    /// The flags that exist, as reported to a program that sets others.
    pub const FLAGS: u32 = Self::USER_RMPP;

    /// Returns whether the device reassembles messages of several MADs.
    pub(super) const fn reassembles(&self) -> bool {
        self.rmpp_version != 0 && self.flags & Self::USER_RMPP == 0
    }

    /// Checks the rules that do not depend on other agents.
    pub(super) fn check(&self) -> Result<(), Errno> {
        let ok = self.rmpp_version <= Rmpp::VERSION
            && if self.class == 0 { self.flags == 0 } else { self.class_is_valid() };
        if ok { Ok(()) } else { Err(Errno::Inval) }
    }

    fn class_is_valid(&self) -> bool {
        let class = MgmtClass(self.class);
        self.class_version < VERSIONS
            && (self.class < 0x50 || class == MgmtClass::SUBN_DIRECTED)
            && (!class.is_vendor_with_oui() || self.oui != [0; 3])
            && (self.rmpp_version == 0 || Rmpp::data_offset(class).is_some())
            && class.is_subnet_management() == (self.qpn == 0)
            && !self.is_connection_management()
    }

    /// Returns whether the registration claims requests of the class that the host's connection manager owns.
    fn is_connection_management(&self) -> bool {
        const VERSION: u8 = 2;
        const SEND: u128 = 1 << 3;
        MgmtClass(self.class) == MgmtClass::COMM
            && self.class_version == VERSION
            && self.methods & SEND != 0
    }
}

/// The limit of class versions.
const VERSIONS: u8 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn gsi(class: u8) -> Registration {
        Registration { qpn: 1, class, class_version: 1, ..Registration::default() }
    }

    #[test]
    fn umad_registration_with_mismatched_class_qp_or_rmpp_is_einval() {
        let smi = |class| Registration { qpn: 0, ..gsi(class) };
        let rmpp = |class| Registration { rmpp_version: 1, oui: [0, 0x14, 5], ..gsi(class) };
        for good in [smi(1), smi(0x81), gsi(3), gsi(4), gsi(7), gsi(0), gsi(0x4f - 0x20)] {
            assert_eq!(good.check(), Ok(()), "{good:?}");
        }
        for good in [3, 6, 0x10, 0x12, 0x30, 0x4f].map(rmpp) {
            assert_eq!(good.check(), Ok(()), "{good:?}");
        }
        let bad = [
            gsi(1),
            gsi(0x81),
            smi(3),
            gsi(0x50),
            gsi(0x80),
            gsi(0x32),
            rmpp(4),
            rmpp(0x0a),
            Registration { rmpp_version: 2, ..gsi(3) },
            Registration { class_version: 8, ..gsi(3) },
            Registration { flags: 1, ..gsi(0) },
            Registration { class_version: 2, methods: 1 << 3, ..gsi(7) },
        ];
        for bad in bad {
            assert_eq!(bad.check(), Err(Errno::Inval), "{bad:?}");
        }
    }
}
