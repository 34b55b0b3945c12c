//! The performance management agent, which reads and sets the counters of ports (IBTA 16.1).

use alloc::vec::Vec;
use core::ops::{Range, RangeInclusive};

use rdmux_wire::class_port_info::{ClassCapabilities, ClassPortInfo};
use rdmux_wire::mad::{BASE_VERSION, MAD_LEN, MadHeader, Method, status};
use rdmux_wire::pm::{
    ALL_PORTS, CLASS_VERSION, DATA_AT, DATA_LEN, PortCounters, PortCountersExtended, PortRcvDataSl,
    PortRcvErrorDetails, PortXmitDataSl, PortXmitDiscardDetails, capability,
};

use crate::counters::{Counter, Shown, Way};
use crate::port::PortData;
use crate::subnet::Subnet;

/// A counter's field in an attribute.
struct Field {
    counter: Counter,
    /// The bit that selects it in a Set: from 0 in CounterSelect, from 16 in CounterSelect2.
    select: u8,
    /// The byte offset in the attribute's data.
    at: usize,
    /// The width in bits. Of two 4-bit fields in a byte, the one with `high` has the upper half.
    bits: u8,
    high: bool,
}

const fn field(counter: Counter, select: u8, at: usize, bits: u8) -> Field {
    Field { counter, select, at, bits, high: false }
}

/// PortCounters (IBTA 16.1.3.5).
const CLASSIC: &[Field] = &[
    field(Counter::SymbolError, 0, 4, 16),
    field(Counter::LinkErrorRecovery, 1, 6, 8),
    field(Counter::LinkDowned, 2, 7, 8),
    field(Counter::PortRcvErrors, 3, 8, 16),
    field(Counter::PortRcvRemotePhysicalErrors, 4, 10, 16),
    field(Counter::PortRcvSwitchRelayErrors, 5, 12, 16),
    field(Counter::PortXmitDiscards, 6, 14, 16),
    field(Counter::PortXmitConstraintErrors, 7, 16, 8),
    field(Counter::PortRcvConstraintErrors, 8, 17, 8),
    Field { high: true, ..field(Counter::LocalLinkIntegrityErrors, 9, 19, 4) },
    field(Counter::ExcessiveBufferOverrunErrors, 10, 19, 4),
    field(Counter::Vl15Dropped, 11, 22, 16),
    field(Counter::PortXmitData, 12, 24, 32),
    field(Counter::PortRcvData, 13, 28, 32),
    field(Counter::PortXmitPkts, 14, 32, 32),
    field(Counter::PortRcvPkts, 15, 36, 32),
    field(Counter::PortXmitWait, 16, 40, 32),
    field(Counter::Qp1Dropped, 17, 20, 16),
];

/// PortCountersExtended (IBTA 16.1.4.11).
const EXTENDED: &[Field] = &[
    field(Counter::PortXmitData, 0, 8, 64),
    field(Counter::PortRcvData, 1, 16, 64),
    field(Counter::PortXmitPkts, 2, 24, 64),
    field(Counter::PortRcvPkts, 3, 32, 64),
    field(Counter::PortUnicastXmitPkts, 4, 40, 64),
    field(Counter::PortUnicastRcvPkts, 5, 48, 64),
    field(Counter::PortMulticastXmitPkts, 6, 56, 64),
    field(Counter::PortMulticastRcvPkts, 7, 64, 64),
    field(Counter::SymbolError, 16, 72, 64),
    field(Counter::LinkErrorRecovery, 17, 80, 64),
    field(Counter::LinkDowned, 18, 88, 64),
    field(Counter::PortRcvErrors, 19, 96, 64),
    field(Counter::PortRcvRemotePhysicalErrors, 20, 104, 64),
    field(Counter::PortRcvSwitchRelayErrors, 21, 112, 64),
    field(Counter::PortXmitDiscards, 22, 120, 64),
    field(Counter::PortXmitConstraintErrors, 23, 128, 64),
    field(Counter::PortRcvConstraintErrors, 24, 136, 64),
    field(Counter::LocalLinkIntegrityErrors, 25, 144, 64),
    field(Counter::ExcessiveBufferOverrunErrors, 26, 152, 64),
    field(Counter::Vl15Dropped, 27, 160, 64),
    field(Counter::PortXmitWait, 28, 168, 64),
    field(Counter::Qp1Dropped, 29, 176, 64),
];

/// PortRcvErrorDetails (IBTA 16.1.4.1).
const RCV_ERRORS: &[Field] = &[
    field(Counter::PortLocalPhysicalErrors, 0, 4, 16),
    field(Counter::PortMalformedPacketErrors, 1, 6, 16),
    field(Counter::PortBufferOverrunErrors, 2, 8, 16),
    field(Counter::PortDlidMappingErrors, 3, 10, 16),
    field(Counter::PortVlMappingErrors, 4, 12, 16),
    field(Counter::PortLoopingErrors, 5, 14, 16),
];

/// PortXmitDiscardDetails (IBTA 16.1.4.2).
const XMIT_DISCARDS: &[Field] = &[
    field(Counter::PortInactiveDiscards, 0, 4, 16),
    field(Counter::PortNeighborMtuDiscards, 1, 6, 16),
    field(Counter::PortSwLifetimeLimitDiscards, 2, 8, 16),
    field(Counter::PortSwHoqLifetimeLimitDiscards, 3, 10, 16),
];

/// An attribute with counters.
#[derive(Clone)]
struct Table {
    fields: &'static [Field],
    shown: Shown,
    /// The offset of the counters, after the selection fields.
    counters: usize,
    /// The bytes of CounterSelect2.
    select2: Range<usize>,
}

impl Table {
    /// Creates a table that begins with the port and CounterSelect.
    const fn new(fields: &'static [Field]) -> Self {
        Self { fields, shown: Shown::Classic, counters: 4, select2: 0..0 }
    }

    fn of(attr_id: u16) -> Option<Self> {
        Some(match attr_id {
            PortCounters::ATTR_ID => Self { select2: 18..19, ..Self::new(CLASSIC) },
            PortCountersExtended::ATTR_ID => {
                Self { fields: EXTENDED, shown: Shown::Extended, counters: 8, select2: 4..8 }
            }
            PortRcvErrorDetails::ATTR_ID => Self::new(RCV_ERRORS),
            PortXmitDiscardDetails::ATTR_ID => Self::new(XMIT_DISCARDS),
            _ => return None,
        })
    }

    /// Returns the counters that a Set selects: CounterSelect, and CounterSelect2 from bit 16 on.
    fn selected(&self, data: &[u8; DATA_LEN]) -> u64 {
        let second = data[self.select2.clone()].iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
        second << 16 | u64::from(select(data))
    }
}

/// Answers a Get or a Set at the node of port `at`: replaces the data with that of the answer. Returns the status.
pub(crate) fn answer(
    subnet: &mut Subnet,
    at: usize,
    header: &MadHeader,
    mad: &mut [u8; MAD_LEN],
) -> u16 {
    let Some(data) = mad[DATA_AT..].first_chunk_mut::<DATA_LEN>() else {
        return status::UNSUPPORTED_METHOD_ATTRIBUTE;
    };
    let is_set = header.method == Method::SET;
    if header.attr_id == ClassPortInfo::ATTR_ID && !is_set {
        class_port_info(data);
        return status::OK;
    }
    let way = match header.attr_id {
        PortXmitDataSl::ATTR_ID => Some(Way::Xmit),
        PortRcvDataSl::ATTR_ID => Some(Way::Rcv),
        _ => None,
    };
    let table = Table::of(header.attr_id);
    if way.is_none() && table.is_none() {
        return status::UNSUPPORTED_METHOD_ATTRIBUTE;
    }
    let ports = ports(subnet, at, data[1]).filter(|_| header.attr_mod == 0);
    let Some(ports) = ports.and_then(|ports| subnet.ports.get_mut(ports)) else {
        return status::INVALID_VALUE;
    };
    if let Some(way) = way {
        by_sl(ports, way, is_set, data);
    } else if let Some(table) = table {
        counters(ports, &table, is_set, data);
    }
    status::OK
}

fn counters(ports: &mut [PortData], table: &Table, is_set: bool, data: &mut [u8; DATA_LEN]) {
    let &Table { fields, shown, counters, .. } = table;
    if is_set {
        let selected = table.selected(data);
        for f in fields.iter().filter(|f| selected & 1 << f.select != 0) {
            for port in &mut *ports {
                port.counters.set(f.counter, shown, f.read(data));
            }
        }
    }
    // The answer echoes the selection fields.
    let echoed = table.select2.clone();
    for (_, byte) in
        data.iter_mut().enumerate().skip(counters).filter(|(at, _)| !echoed.contains(at))
    {
        *byte = 0;
    }
    for f in fields {
        let counted = ports.iter().map(|port| port.counters.get(f.counter, shown));
        let total = match shown {
            Shown::Classic => counted.fold(0, u64::saturating_add).min(f.largest()),
            Shown::Extended => counted.fold(0, u64::wrapping_add),
        };
        f.write(data, total);
    }
}

/// Handles PortXmitDataSL and PortRcvDataSL: 16 words, which saturate (IBTA A13).
fn by_sl(ports: &mut [PortData], way: Way, is_set: bool, data: &mut [u8; DATA_LEN]) {
    let selected = if is_set { select(data) } else { 0 };
    let (head, rest) = data.split_at_mut(4);
    let (words, unused) = rest.as_chunks_mut::<4>();
    let (words, more) = words.split_at_mut(16);
    for port in &mut *ports {
        for (sl, word) in words.iter().enumerate().filter(|(sl, _)| selected & 1 << sl != 0) {
            port.counters.set_by_sl(way, sl, u32::from_be_bytes(*word).into());
        }
    }
    head[0] = 0;
    more.fill([0; 4]);
    unused.fill(0);
    let all: Vec<_> = ports.iter().map(|port| port.counters.by_sl(way)).collect();
    for (sl, word) in words.iter_mut().enumerate() {
        let total = all.iter().fold(0, |sum: u64, counts| sum.saturating_add(counts[sl]));
        *word = u32::try_from(total).unwrap_or(u32::MAX).to_be_bytes();
    }
}

/// Returns CounterSelect.
fn select(data: &[u8; DATA_LEN]) -> u16 {
    u16::from_be_bytes([data[2], data[3]])
}

/// Returns the ports that PortSelect names.
fn ports(subnet: &Subnet, at: usize, select: u8) -> Option<RangeInclusive<usize>> {
    let node = subnet.node_of(at);
    if select == ALL_PORTS {
        return Some(node.port(1)?..=node.port(node.num_ports)?);
    }
    let port = node.port(select)?;
    Some(port..=port)
}

impl Field {
    const fn largest(&self) -> u64 {
        u64::MAX >> (64 - self.bits)
    }

    fn read(&self, data: &[u8; DATA_LEN]) -> u64 {
        if self.bits == 4 {
            let byte = data[self.at];
            return (if self.high { byte >> 4 } else { byte & 0xf }).into();
        }
        let bytes = &data[self.at..self.at + usize::from(self.bits / 8)];
        bytes.iter().fold(0, |n, byte| n << 8 | u64::from(*byte))
    }

    fn write(&self, data: &mut [u8; DATA_LEN], value: u64) {
        let bytes = value.to_be_bytes();
        if self.bits == 4 {
            data[self.at] |= if self.high { bytes[7] << 4 } else { bytes[7] };
            return;
        }
        let len = usize::from(self.bits / 8);
        data[self.at..self.at + len].copy_from_slice(&bytes[8 - len..]);
    }
}

/// Writes the agent's capabilities: all ports at once, extended counters, XmitWait, and the error counters in 64 bits.
fn class_port_info(data: &mut [u8; DATA_LEN]) {
    let mask = capability::ALL_PORT_SELECT | capability::EXTENDED_WIDTH | capability::XMIT_WAIT;
    let info = ClassPortInfo {
        base_version: BASE_VERSION,
        class_version: CLASS_VERSION,
        capability_mask: ClassCapabilities::from_bits_retain(mask),
        capability_mask2: capability::ADDITIONAL_EXTENDED_COUNTERS,
        resp_time_value: 0x10,
        ..ClassPortInfo::default()
    };
    data.fill(0);
    info.emit(data);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perf_counter_fields_do_not_overlap_and_have_distinct_select_bits() {
        for (fields, first, len) in [
            (CLASSIC, 4, PortCounters::LEN),
            (EXTENDED, 8, PortCountersExtended::LEN),
            (RCV_ERRORS, 4, PortRcvErrorDetails::LEN),
            (XMIT_DISCARDS, 4, PortXmitDiscardDetails::LEN),
        ] {
            let mut taken = [0u8; DATA_LEN];
            for f in fields {
                let mut ones = [0; DATA_LEN];
                f.write(&mut ones, f.largest());
                assert_eq!(f.read(&ones), f.largest());
                assert!(taken.iter().zip(ones).all(|(a, b)| a & b == 0), "{:?}", f.counter);
                taken.iter_mut().zip(ones).for_each(|(a, b)| *a |= b);
            }
            assert!(taken[..first].iter().chain(&taken[len..]).all(|b| *b == 0));
            let mut bits: Vec<_> = fields.iter().map(|f| f.select).collect();
            bits.sort_unstable();
            bits.dedup();
            assert_eq!(bits.len(), fields.len());
        }
    }
}
