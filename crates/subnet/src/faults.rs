//! Link faults: the counters that a port increments when its hardware notices one, and which traps it sends (IBTA 7.12.2, 14.2.5.1,
//! 14.2.5.6).

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
    /// A physical error: a bad symbol. More than PortInfo's LocalPhyErrors in a row are a LocalLinkIntegrityError.
    Symbol,
    /// A flow control update period in which a packet found no buffer. More than PortInfo's OverrunErrors in a row are an
    /// ExcessiveBufferOverrunError.
    Overrun,
    /// The peer has sent no credits for so long that the watchdog timer of flow control has expired.
    Watchdog,
}

impl Subnet {
    /// Injects `times` faults in a row at a port. Each time that a threshold is passed, a counter grows and a trap is raised:
    /// 129 for physical errors, 130 for overruns. Each expiry of the watchdog raises trap 131. Port 0 of a switch sends the
    /// traps of the switch's ports. An unknown port is ignored. Returns how many times a threshold was passed.
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
