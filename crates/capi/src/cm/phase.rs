//! The phase of an id, as far as the program knows. In some phases the service cannot refuse the next step, so the step
//! need not wait for the service's answer.
//!
//! The service decides everything else. If it refuses a step because of something that happened meanwhile, it
//! reports that by an event.

use rdmux_cm::EventKind;

/// The phases of an id whose next step cannot be refused, and all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Created, and not bound.
    New,
    Bound,
    ResolvingAddr,
    AddrResolved,
    ResolvingRoute,
    RouteResolved,
    Connecting,
    /// Created for a request that is not answered.
    Requested,
    Accepting,
    /// Connected, or was.
    Connected,
    /// Any other phase, in which only the service knows what is allowed.
    Other,
}

impl Phase {
    /// Returns whether events may be pending, caused by a call or by the peer.
    pub(super) fn expects_events(self) -> bool {
        !matches!(self, Self::New | Self::Bound | Self::AddrResolved | Self::RouteResolved)
    }

    /// Returns the phase after an event.
    pub(super) fn after(self, event: EventKind) -> Self {
        use EventKind as E;
        match (self, event) {
            (Self::ResolvingAddr, E::AddrResolved) => Self::AddrResolved,
            (Self::ResolvingRoute, E::RouteResolved) => Self::RouteResolved,
            (Self::Connecting | Self::Accepting, E::Established) => Self::Connected,
            (
                _,
                E::AddrError
                | E::RouteError
                | E::ConnectError
                | E::Unreachable
                | E::Rejected
                | E::DeviceRemoval,
            ) => Self::Other,
            _ => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cm_event_advances_the_id_only_from_the_matching_phase() {
        let (new, resolved) = (Phase::New, EventKind::AddrResolved);
        assert_eq!(Phase::ResolvingAddr.after(resolved), Phase::AddrResolved);
        assert_eq!(new.after(resolved), new);
        assert_eq!(Phase::Accepting.after(EventKind::Established), Phase::Connected);
        assert_eq!(Phase::Requested.after(EventKind::Established), Phase::Requested);
    }

    #[test]
    fn cm_failure_event_makes_the_id_phase_unknown() {
        for failure in [EventKind::AddrError, EventKind::Rejected, EventKind::DeviceRemoval] {
            assert_eq!(Phase::Connected.after(failure), Phase::Other);
        }
        assert_eq!(Phase::Connected.after(EventKind::Disconnected), Phase::Connected);
        assert_eq!(Phase::Other.after(EventKind::Established), Phase::Other);
    }
}
