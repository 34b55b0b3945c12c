//! Service levels: the manager sets SL-to-VL tables if that option is on, and reads VL arbitration tables.

use rdmux_wire::sm::{CapabilityMask, SlToVlTable, Vl, VlArbitration};
use rdmux_wire::smp::Smp;

use super::Manager;
use super::config::Config;
use super::model::Model;
use super::requests::{Request, What};
use crate::topology::PortRef;

/// Blocks of an arbitration table: two of low priority, then two of high priority.
const ARBITRATION_BLOCKS: u8 = 4;

/// Entries per block of an arbitration table.
const ARBITRATION_BLOCK: u8 = 32;

impl Config {
    /// The default of OpenSM's `qos_sl2vl`: each service level takes the lane of its number, and 15, which is no data lane,
    /// takes lane 7.
    pub const SL_TO_VL: SlToVlTable = SlToVlTable {
        vls: [
            Vl(0),
            Vl(1),
            Vl(2),
            Vl(3),
            Vl(4),
            Vl(5),
            Vl(6),
            Vl(7),
            Vl(8),
            Vl(9),
            Vl(10),
            Vl(11),
            Vl(12),
            Vl(13),
            Vl(14),
            Vl(7),
        ],
    };
}

impl Manager {
    /// Returns the SL-to-VL table of an egress port: that of the options, with lanes that the port lacks taken modulo the
    /// number that it has. None if nothing is to be set: without the option, without a link, with one lane, and at adapters
    /// without SL mapping.
    pub(super) fn wanted_sl_to_vl(&self, model: &Model, place: PortRef) -> Option<SlToVlTable> {
        let SlToVlTable { vls } = self.config.sl_to_vl?;
        let (node, port) = (model.node(place.node)?, model.port(place)?);
        let (info, peer) = (port.info.as_ref()?, model.port(port.peer?)?.info.as_ref()?);
        let knows = node.is_switch() || info.capability_mask.contains(CapabilityMask::SL_MAPPING);
        let lanes = info.vl_cap.min(peer.vl_cap).count();
        let lane = |vl: Vl| if vl == Vl::MANAGEMENT { vl } else { Vl(vl.0 % lanes) };
        (knows && lanes > 1).then(|| SlToVlTable { vls: vls.map(lane) })
    }

    /// Queues the tables of a node that differ from the target: for a switch's port, one for each input port.
    pub(super) fn queue_sl_to_vl(&mut self, index: usize) {
        if self.config.sl_to_vl.is_none() {
            return;
        }
        let Some(node) = self.model.node(index) else { return };
        let is_switch = node.is_switch();
        let inputs = if is_switch { 0..=node.info.num_ports } else { 0..=0 };
        for (number, port) in (0..=u8::MAX).zip(&node.ports) {
            let place = PortRef { node: index, port: number };
            let Some(wanted) = self.wanted_sl_to_vl(&self.model, place) else { continue };
            for input in inputs.clone() {
                let has_cable =
                    |at: u8| node.ports.get(usize::from(at)).is_some_and(|p| p.peer.is_some());
                let comes_in = !is_switch || input == 0 || input != number && has_cable(input);
                let known = port.sl_to_vl.get(usize::from(input)).copied().flatten();
                if comes_in && known != Some(wanted) {
                    self.queue.push_back(Request { port: place, what: What::SlToVl(input) });
                }
            }
        }
    }

    /// Notes that a port has the table that was set.
    pub(super) fn know_sl_to_vl(&mut self, place: PortRef, input: u8) {
        let wanted = self.wanted_sl_to_vl(&self.model, place);
        let Some(port) = self.model.port_mut(place) else { return };
        let at = usize::from(input);
        if port.sl_to_vl.len() <= at {
            port.sl_to_vl.resize(at + 1, None);
        }
        port.sl_to_vl[at] = wanted;
    }

    /// Notes that a port does not have the table that was set.
    pub(super) fn forget_sl_to_vl(&mut self, place: PortRef, input: u8) {
        let port = self.model.port_mut(place);
        if let Some(entry) = port.and_then(|port| port.sl_to_vl.get_mut(usize::from(input))) {
            *entry = None;
        }
    }

    /// During discovery: queries a port with a link for as many arbitration blocks as it reports.
    pub(super) fn ask_arbitration(&mut self, place: PortRef) {
        if self.config.sl_to_vl.is_none() {
            return;
        }
        let Some(info) = self.found.port(place).filter(|port| port.is_up()).and_then(|p| p.info)
        else {
            return;
        };
        let (low, high) = (info.vl_arbitration_low_cap, info.vl_arbitration_high_cap);
        for block in 1..=ARBITRATION_BLOCKS {
            let entries = if block <= 2 { low } else { high };
            if entries > (block - 1) % 2 * ARBITRATION_BLOCK {
                self.queue.push_back(Request { port: place, what: What::Arbitration(block) });
            }
        }
    }

    /// Records a block of a port's arbitration table.
    pub(super) fn know_arbitration(&mut self, place: PortRef, block: u8, smp: &Smp) {
        let Some(port) = self.working_mut().port_mut(place) else { return };
        port.vl_arbitration.resize(ARBITRATION_BLOCKS.into(), VlArbitration::default());
        if let Some(known) = port.vl_arbitration.get_mut(usize::from(block).wrapping_sub(1)) {
            *known = VlArbitration::from_bytes(&smp.data);
        }
    }
}
