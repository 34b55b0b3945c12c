//! How far an id has come, as far as the program knows: so far that the service cannot refuse the next step, which then need
//! not wait for the service's answer.
//!
//! The service has the last word on everything else. What it refuses because something happened meanwhile it has told by an
//! event, or does so.

use rdmux_cm::EventKind;

/// The phases from which there is a next step that cannot be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Created, and not even bound.
    New,
    Bound,
    ResolvingAddr,
    AddrResolved,
    ResolvingRoute,
    RouteResolved,
    Connecting,
    /// A request that came, and was not answered.
    Requested,
    Accepting,
    /// Connected, or was.
    Connected,
    /// Any other, of which only the service knows what may be done.
    Other,
}

impl Phase {
    /// Whether events may be on their way, about what was asked for or by the peer.
    pub(super) fn expects_events(self) -> bool {
        !matches!(self, Self::New | Self::Bound | Self::AddrResolved | Self::RouteResolved)
    }

    /// What an event tells.
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
    fn events_count_for_the_step_that_was_asked_for() {
        let (new, resolved) = (Phase::New, EventKind::AddrResolved);
        assert_eq!(Phase::ResolvingAddr.after(resolved), Phase::AddrResolved);
        assert_eq!(new.after(resolved), new);
        assert_eq!(Phase::Accepting.after(EventKind::Established), Phase::Connected);
        assert_eq!(Phase::Requested.after(EventKind::Established), Phase::Requested);
    }

    #[test]
    fn after_a_failure_the_service_is_asked() {
        for failure in [EventKind::AddrError, EventKind::Rejected, EventKind::DeviceRemoval] {
            assert_eq!(Phase::Connected.after(failure), Phase::Other);
        }
        assert_eq!(Phase::Connected.after(EventKind::Disconnected), Phase::Connected);
        assert_eq!(Phase::Other.after(EventKind::Established), Phase::Other);
    }
}
