//! The pattern of a query for records: the components of its mask, and their values (IBTA 15.4.4).

use crate::layout::{Components, Layout};

/// The longest record, in bytes.
const LONGEST: usize = 200;

/// The values that some components of a record must have.
///
/// ```
/// # use rdmux_wire::Lid;
/// # use rdmux_wire::sa::{LinkRecord, LinkRecordMask, Pattern};
/// let wanted = LinkRecord { from_lid: Lid(7), ..LinkRecord::default() };
/// let pattern = Pattern::new(LinkRecordMask::FROM_LID.bits(), &wanted);
/// assert!(pattern.matches(&LinkRecord { to_lid: Lid(9), ..wanted }));
/// assert!(!pattern.matches(&LinkRecord::default()));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Pattern {
    /// A mask of the bits that must match.
    care: [u8; LONGEST],
    value: [u8; LONGEST],
}

impl Pattern {
    /// Creates a pattern from the components of `wanted` in `mask`. Bits of the mask without a component are ignored.
    pub fn new<R: Components>(mask: u64, wanted: &R) -> Self {
        let mut pattern = Self { care: [0; LONGEST], value: [0; LONGEST] };
        R::copy_components(mask, &[0xff; LONGEST], &mut pattern.care);
        wanted.write(&mut pattern.value);
        pattern
    }

    /// Allows these components of a record to have more bits set than were wanted.
    #[must_use]
    pub fn containing<R: Components>(mut self, mask: u64) -> Self {
        let value = self.value;
        let mut wanted = [0; LONGEST];
        R::copy_components(mask, &self.care, &mut wanted);
        for (bits, value) in wanted.iter_mut().zip(value) {
            *bits &= value;
        }
        R::copy_components(mask, &wanted, &mut self.care);
        self
    }

    /// Returns whether a record matches.
    pub fn matches<R: Layout>(&self, record: &R) -> bool {
        let mut bytes = [0; LONGEST];
        record.write(&mut bytes);
        self.matches_bytes(&bytes[..R::LEN])
    }

    /// Returns whether a record in wire format matches.
    pub fn matches_bytes(&self, record: &[u8]) -> bool {
        let pairs = self.care.iter().zip(&self.value);
        pairs.zip(record).all(|((care, value), have)| (value ^ have) & care == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Lid;
    use crate::sa::{
        GuidInfoRecord, GuidInfoRecordMask, PortInfoRecord, PortInfoRecordMask, ServiceRecord,
        ServiceRecordMask,
    };
    use crate::sm::{CapabilityMask, PortInfo};

    fn port(lid: u16, lmc: u8, capabilities: CapabilityMask) -> PortInfoRecord {
        let port_info = PortInfo { lmc, capability_mask: capabilities, ..PortInfo::default() };
        PortInfoRecord { lid: Lid(lid), port_info, ..PortInfoRecord::default() }
    }

    #[test]
    fn only_components_in_the_component_mask_are_compared() {
        let wanted = port(4, 2, CapabilityMask::SM);
        let pattern = |mask: PortInfoRecordMask| Pattern::new(mask.bits(), &wanted);
        let other = port(4, 3, CapabilityMask::TRAP);
        assert!(pattern(PortInfoRecordMask::empty()).matches(&other));
        assert!(pattern(PortInfoRecordMask::LID).matches(&other));
        assert!(!pattern(PortInfoRecordMask::LID | PortInfoRecordMask::LMC).matches(&other));
        assert!(pattern(PortInfoRecordMask::all()).matches(&wanted));
        assert!(pattern(PortInfoRecordMask::from_bits_retain(1 << 63)).matches(&other));
    }

    #[test]
    fn capability_mask_is_matched_as_subset_if_requested() {
        let mask = (PortInfoRecordMask::LID | PortInfoRecordMask::CAPABILITY_MASK).bits();
        let wanted = port(4, 0, CapabilityMask::SM);
        let exact = Pattern::new(mask, &wanted);
        let contains =
            exact.containing::<PortInfoRecord>(PortInfoRecordMask::CAPABILITY_MASK.bits());
        let more = port(4, 0, CapabilityMask::SM | CapabilityMask::TRAP);
        assert!(!exact.matches(&more) && contains.matches(&more));
        assert!(!contains.matches(&port(4, 0, CapabilityMask::TRAP)));
        assert!(!contains.matches(&port(5, 0, CapabilityMask::SM)));
    }

    #[test]
    fn array_elements_have_their_own_component_mask_bits() {
        let mut wanted = ServiceRecord::default();
        wanted.service_data16[2] = 7;
        let pattern = Pattern::new(ServiceRecordMask::SERVICE_DATA16_2.bits(), &wanted);
        assert!(pattern.matches(&wanted) && !pattern.matches(&ServiceRecord::default()));
        let mut wanted = GuidInfoRecord::default();
        wanted.guid_info.guids[7] = crate::Guid(9);
        let pattern = |mask: GuidInfoRecordMask| Pattern::new(mask.bits(), &wanted);
        assert!(pattern(GuidInfoRecordMask::GUID6).matches(&GuidInfoRecord::default()));
        assert!(!pattern(GuidInfoRecordMask::GUID7).matches(&GuidInfoRecord::default()));
    }
}
