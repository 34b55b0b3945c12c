//! Faults that the hardware of a port would notice: what the port counts of them, and which traps it sends
//! (IBTA 7.12.2, 14.2.5.1, 14.2.5.6).

use rdmux_transport::Time;
use rdmux_wire::sm::{LinkError, Trap};

use crate::counters::{Counter, Tally};
use crate::packet::PortId;
use crate::sink::Sink;
use crate::subnet::{Cx, Subnet};

/// A fault of a port's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Fault {
    /// A physical error: a bad symbol. More in a row than PortInfo's LocalPhyErrors are a LocalLinkIntegrityError.
    Symbol,
    /// An update period of flow control in which a packet found no buffer. More in a row than PortInfo's OverrunErrors
    /// are an ExcessiveBufferOverrunError.
    Overrun,
    /// The peer has told no credits for so long that the watchdog timer of flow control has expired.
    Watchdog,
}

impl Subnet {
    /// A port notices a fault so many times in a row. Each time that a threshold is passed, a counter grows and a trap is
    /// raised: 129 for physical errors, 130 for overruns; each expiry of the watchdog raises trap 131. A port of a switch
    /// has its port 0 send the trap. Nothing happens to a port that does not exist. Returns how many times a threshold was
    /// passed.
    pub fn fault(
        &mut self,
        now: Time,
        port: PortId,
        fault: Fault,
        times: u32,
        sink: &mut impl Sink,
    ) -> u32 {
        let Some(at) = self.index(port) else { return 0 };
        let mut cx = Cx { now, sink };
        let port_data = &mut self.ports[at];
        let (info, counters) = (&port_data.info, &mut port_data.counters);
        let (passed, trap): (_, fn(LinkError) -> Trap) = match fault {
            Fault::Symbol => {
                counters.add(Counter::SymbolError, times.into());
                let passed = counters.tally(Tally::Physical, times, info.local_phy_errors);
                counters.add(Counter::LocalLinkIntegrityErrors, passed.into());
                (passed, Trap::LinkIntegrity)
            }
            Fault::Overrun => {
                let passed = counters.tally(Tally::Overrun, times, info.overrun_errors);
                counters.add(Counter::ExcessiveBufferOverrunErrors, passed.into());
                (passed, Trap::BufferOverrun)
            }
            Fault::Watchdog => (times, Trap::FlowControlWatchdog),
        };
        if passed > 0 {
            let lid = self.ports[self.manager_of(at)].info.lid;
            let details = LinkError { lid, port: port.number, ..LinkError::default() };
            self.raise(at, &trap(details), &mut cx);
        }
        self.expire(&mut cx);
        passed
    }
}
