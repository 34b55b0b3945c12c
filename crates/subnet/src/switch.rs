//! The state of a switch besides its ports: SwitchInfo and the forwarding tables.

use alloc::vec::Vec;

use rdmux_wire::Lid;
use rdmux_wire::sm::{NO_ROUTE, SwitchInfo};

use crate::config::Config;

/// LIDs per block of the linear forwarding table.
pub(crate) const LFT_BLOCK: usize = 64;

/// LIDs per block of the multicast forwarding table.
pub(crate) const MFT_BLOCK: usize = 32;

/// Ports per position of the multicast forwarding table.
const POSITION: u8 = 16;

/// Positions of the multicast forwarding table.
const POSITIONS: usize = 16;

/// A switch. Tables grow as they are written; entries beyond their end have no route.
#[derive(Clone, Debug)]
pub(crate) struct Switch {
    pub(crate) info: SwitchInfo,
    lft: Vec<u8>,
    /// Multicast forwarding tables by position, each with a port bitmap per multicast LID.
    mft: [Vec<u16>; POSITIONS],
    /// SL-to-VL tables by input and output port, flattened; empty means the default mapping.
    sl_to_vl: Vec<[u8; 8]>,
}

impl Switch {
    pub(crate) fn new(config: &Config, enhanced_port0: bool) -> Self {
        Self { info: power_on(config, enhanced_port0), ..Self::without_tables() }
    }

    /// Resets everything to the state after power-on.
    pub(crate) fn reset(&mut self, config: &Config) {
        *self = Self::new(config, self.info.enhanced_port0);
    }

    fn without_tables() -> Self {
        let info = SwitchInfo::default();
        Self { info, lft: Vec::new(), mft: [const { Vec::new() }; POSITIONS], sl_to_vl: Vec::new() }
    }

    /// Returns the port by which a unicast LID is forwarded.
    #[inline]
    pub(crate) fn route(&self, lid: Lid) -> Option<u8> {
        if lid > self.info.linear_fdb_top {
            return None;
        }
        self.lft.get(usize::from(lid.0)).copied().filter(|port| *port != NO_ROUTE)
    }

    /// Returns the port of each LID up to the top; [`NO_ROUTE`] where there is none.
    pub(crate) fn linear_table(&self) -> Vec<u8> {
        let top = usize::from(self.info.linear_fdb_top.0);
        let mut table: Vec<u8> = self.lft.iter().copied().take(top + 1).collect();
        table.resize(top + 1, NO_ROUTE);
        table
    }

    /// Returns the multicast LIDs that have ports, with these ports.
    pub(crate) fn multicast_table(&self) -> Vec<(Lid, Vec<u8>)> {
        let lids = self.mft.iter().map(Vec::len).max().unwrap_or(0);
        let lids = (Lid::FIRST_MULTICAST.0..).take(lids).map(Lid);
        let of = |lid| (lid, self.group(lid).collect::<Vec<u8>>());
        lids.map(of).filter(|(_, ports)| !ports.is_empty()).collect()
    }

    /// Returns the ports by which a multicast LID is forwarded, ascending.
    pub(crate) fn group(&self, mlid: Lid) -> impl Iterator<Item = u8> + '_ {
        let at = usize::from(mlid.0.wrapping_sub(Lid::FIRST_MULTICAST.0));
        (0..=u8::MAX).step_by(POSITION.into()).zip(&self.mft).flat_map(move |(first, masks)| {
            let mask = masks.get(at).copied().unwrap_or(0);
            (0..POSITION).filter(move |bit| mask & 1 << bit != 0).map(move |bit| first + bit)
        })
    }

    /// Returns a block of the linear table; none beyond the switch's capacity.
    pub(crate) fn lft_block(&self, block: usize) -> Option<[u8; LFT_BLOCK]> {
        let at = self.lft_at(block)?;
        let stored = self.lft.get(at..).and_then(|rest| rest.first_chunk());
        Some(stored.copied().unwrap_or([NO_ROUTE; LFT_BLOCK]))
    }

    /// Writes a block of the linear table. Returns false beyond the switch's capacity.
    pub(crate) fn set_lft_block(&mut self, block: usize, ports: &[u8; LFT_BLOCK]) -> bool {
        let Some(at) = self.lft_at(block) else { return false };
        if self.lft.len() < at + LFT_BLOCK {
            self.lft.resize(at + LFT_BLOCK, NO_ROUTE);
        }
        self.lft[at..at + LFT_BLOCK].copy_from_slice(ports);
        true
    }

    fn lft_at(&self, block: usize) -> Option<usize> {
        let at = block.checked_mul(LFT_BLOCK)?;
        (at < self.info.linear_fdb_cap.into()).then_some(at)
    }

    /// Returns a block of the multicast table in wire format; none beyond the switch's capacity.
    pub(crate) fn mft_block(&self, position: usize, block: usize) -> Option<[u16; MFT_BLOCK]> {
        let at = self.mft_at(block)?;
        let masks = self.mft.get(position)?;
        let stored = masks.get(at..).and_then(|rest| rest.first_chunk());
        Some(stored.copied().unwrap_or([0; MFT_BLOCK]))
    }

    /// Writes a block of the multicast table. Returns false beyond the switch's capacity.
    pub(crate) fn set_mft_block(
        &mut self,
        position: usize,
        block: usize,
        new: &[u16; MFT_BLOCK],
    ) -> bool {
        let (Some(at), Some(masks)) = (self.mft_at(block), self.mft.get_mut(position)) else {
            return false;
        };
        if masks.len() < at + MFT_BLOCK {
            masks.resize(at + MFT_BLOCK, 0);
        }
        masks[at..at + MFT_BLOCK].copy_from_slice(new);
        true
    }

    fn mft_at(&self, block: usize) -> Option<usize> {
        let at = block.checked_mul(MFT_BLOCK)?;
        (at < self.info.multicast_fdb_cap.into()).then_some(at)
    }

    /// Returns the SL-to-VL mapping from `input` to `output`, if it was set. Ports range from 0 to `ports`.
    pub(crate) fn sl_to_vl(&self, ports: u8, input: u8, output: u8) -> Option<&[u8; 8]> {
        self.sl_to_vl.get(mapping_at(ports, input, output))
    }

    /// Returns the same mapping for writing. Mappings that were not set become `default`.
    pub(crate) fn sl_to_vl_mut(
        &mut self,
        ports: u8,
        input: u8,
        output: u8,
        default: [u8; 8],
    ) -> Option<&mut [u8; 8]> {
        if self.sl_to_vl.is_empty() {
            let side = usize::from(ports) + 1;
            self.sl_to_vl.resize(side * side, default);
        }
        self.sl_to_vl.get_mut(mapping_at(ports, input, output))
    }
}

fn mapping_at(ports: u8, input: u8, output: u8) -> usize {
    usize::from(input) * (usize::from(ports) + 1) + usize::from(output)
}

/// Returns SwitchInfo after power-on. It reports a port state change from the start, since the ports came up.
fn power_on(config: &Config, enhanced_port0: bool) -> SwitchInfo {
    SwitchInfo {
        linear_fdb_cap: config.linear_fdb_cap.min(Lid::FIRST_MULTICAST.0),
        multicast_fdb_cap: config.multicast_fdb_cap.min(0x3fff),
        life_time_value: 0x12,
        port_state_change: true,
        partition_enforcement_cap: config.partition_enforcement_cap,
        inbound_enforcement_cap: true,
        outbound_enforcement_cap: true,
        enhanced_port0,
        ..SwitchInfo::default()
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    fn switch() -> Switch {
        Switch::new(&Config::default(), false)
    }

    #[test]
    fn lids_without_entry_and_above_the_top_have_no_route() {
        let mut switch = switch();
        assert_eq!(switch.route(Lid(5)), None);
        let mut block = [NO_ROUTE; LFT_BLOCK];
        block[5] = 3;
        block[6] = 4;
        assert!(switch.set_lft_block(1, &block));
        assert_eq!(switch.route(Lid(69)), None, "the top is 0");
        switch.info.linear_fdb_top = Lid(69);
        assert_eq!(switch.route(Lid(69)), Some(3));
        assert_eq!(switch.route(Lid(70)), None, "above the top");
        assert_eq!(switch.route(Lid(68)), None);
        assert_eq!(switch.lft_block(1), Some(block));
        assert_eq!(switch.lft_block(0), Some([NO_ROUTE; LFT_BLOCK]));
        let table = switch.linear_table();
        assert_eq!((table.len(), table[69], table[68]), (70, 3, NO_ROUTE));
        switch.reset(&Config::default());
        assert_eq!(switch.lft_block(1), Some([NO_ROUTE; LFT_BLOCK]));
    }

    #[test]
    fn blocks_beyond_the_capacity_are_refused() {
        let mut switch = switch();
        assert!(switch.set_lft_block(767, &[1; LFT_BLOCK]));
        assert!(!switch.set_lft_block(768, &[1; LFT_BLOCK]));
        assert_eq!(switch.lft_block(usize::MAX), None);
        assert!(switch.set_mft_block(0, 31, &[1; MFT_BLOCK]));
        assert!(!switch.set_mft_block(0, 32, &[1; MFT_BLOCK]));
        assert!(!switch.set_mft_block(16, 0, &[1; MFT_BLOCK]));
    }

    #[test]
    fn mft_block_at_position_k_covers_ports_from_16k() {
        let mut switch = switch();
        let mut block = [0; MFT_BLOCK];
        block[2] = 0x000c;
        assert!(switch.set_mft_block(0, 0, &block));
        assert!(switch.set_mft_block(2, 0, &block));
        assert!(switch.group(Lid(0xc002)).eq([2, 3, 34, 35]));
        assert_eq!(switch.multicast_table(), [(Lid(0xc002), vec![2, 3, 34, 35])]);
        assert_eq!(switch.group(Lid(0xc001)).count(), 0);
        assert_eq!(switch.group(Lid(1)).count(), 0);
    }
}
