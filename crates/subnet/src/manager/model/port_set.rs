//! Sets of ports, as used in multicast forwarding tables.

/// A set of ports of a switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortSet([u64; 4]);

impl PortSet {
    /// Adds a port.
    pub fn insert(&mut self, port: u8) {
        self.0[usize::from(port) / 64] |= 1 << (port % 64);
    }

    /// Removes a port.
    pub fn remove(&mut self, port: u8) {
        self.0[usize::from(port) / 64] &= !(1 << (port % 64));
    }

    /// Returns whether the set has a port.
    pub fn contains(&self, port: u8) -> bool {
        self.0[usize::from(port) / 64] & (1 << (port % 64)) != 0
    }

    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0 == [0; 4]
    }

    /// Returns the number of ports.
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Returns the ports in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u8> + '_ {
        (0..=u8::MAX).filter(|&port| self.contains(port))
    }

    /// Returns the mask of the 16 ports from `16 * position` on, as in a multicast forwarding table.
    pub fn mask(&self, position: u8) -> u16 {
        let bit = usize::from(position % 16) * 16;
        u16::try_from((self.0[bit / 64] >> (bit % 64)) & 0xffff).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_set_yields_16_bit_masks_by_position() {
        let mut set = PortSet::default();
        assert!(set.is_empty());
        for port in [0, 3, 17, 255] {
            set.insert(port);
        }
        assert_eq!([set.mask(0), set.mask(1), set.mask(2), set.mask(15)], [0b1001, 2, 0, 0x8000]);
        assert!(set.iter().eq([0, 3, 17, 255]) && set.len() == 4 && !set.contains(4));
    }
}
