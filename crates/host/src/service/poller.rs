//! The event sources of the service's event loop.

use std::io;
use std::time::Duration;

use rdmux_cm::ChannelId;
use rdmux_cm::iw::StreamId;
use rdmux_link::spin_wait;
pub(super) use rdmux_runtime::poller::Interest;

use super::clients::ClientId;
use crate::names::DeviceChoice;

/// The poller of all sources.
pub(super) type Poller = rdmux_runtime::poller::Poller<Token>;
/// A source that is ready.
pub(super) type Ready = rdmux_runtime::poller::Ready<Token>;

/// A source of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// The listening socket.
    Listener,
    /// A request to end the service.
    Stop,
    /// The kernel's addresses changed.
    Monitor,
    /// A client's requests.
    Rpc(ClientId),
    /// The end of a client's process.
    Pid(ClientId),
    /// A client's notify socket.
    Notify(ClientId),
    /// An event channel.
    Channel(ChannelId),
    /// The service's socket on an address, by GID index.
    Qp1(u8),
    /// Events of XRC targets.
    Events,
    /// An iWARP connection that no queue pair has yet.
    Stream(StreamId),
    /// An iWARP listening socket, by its number.
    StreamListener(u64),
    /// The fabric that has, or may assign, this port of the host's adapter.
    Fabric(u8),
    /// The connection to the fabric about the IsSM bit of this port.
    IsSm(u8),
    /// The opening of a file that subnet managers hold.
    Issm,
    /// The file of this view that a subnet manager of this port holds open.
    IssmFile(DeviceChoice, u8),
    /// The watch for this port's fabric to come up.
    Lookout(u8),
    /// The service's socket for data of this port.
    IbData(u8),
    /// The management interface of this port, for queries to subnet administration.
    Sa(u8),
    /// A service that was offered rings, by the number of the pair.
    HostRing(u64),
}

impl rdmux_runtime::poller::Token for Token {
    fn to_parts(self) -> (u8, u64) {
        match self {
            Self::Listener => (0, 0),
            Self::Stop => (1, 0),
            Self::Monitor => (2, 0),
            Self::Rpc(ClientId(id)) => (3, id),
            Self::Pid(ClientId(id)) => (4, id),
            Self::Notify(ClientId(id)) => (5, id),
            Self::Channel(ChannelId(id)) => (6, id),
            Self::Qp1(index) => (7, index.into()),
            Self::Events => (8, 0),
            Self::Stream(StreamId(id)) => (9, id),
            Self::StreamListener(number) => (10, number),
            Self::Fabric(port) => (11, port.into()),
            Self::IsSm(port) => (12, port.into()),
            Self::Issm => (13, 0),
            Self::IssmFile(view, port) => {
                let view = (0_u64..).zip(DeviceChoice::every()).find(|(_, c)| *c == view);
                (14, view.map_or(0, |(i, _)| i) << 8 | u64::from(port))
            }
            Self::Lookout(port) => (15, port.into()),
            Self::IbData(port) => (16, port.into()),
            Self::Sa(port) => (17, port.into()),
            Self::HostRing(pair) => (18, pair),
        }
    }

    fn from_parts(kind: u8, id: u64) -> Option<Self> {
        Some(match kind {
            0 => Self::Listener,
            1 => Self::Stop,
            2 => Self::Monitor,
            3 => Self::Rpc(ClientId(id)),
            4 => Self::Pid(ClientId(id)),
            5 => Self::Notify(ClientId(id)),
            6 => Self::Channel(ChannelId(id)),
            7 => Self::Qp1(u8::try_from(id).ok()?),
            8 => Self::Events,
            9 => Self::Stream(StreamId(id)),
            10 => Self::StreamListener(id),
            11 => Self::Fabric(u8::try_from(id).ok()?),
            12 => Self::IsSm(u8::try_from(id).ok()?),
            13 => Self::Issm,
            14 => {
                let view = DeviceChoice::every().nth(usize::try_from(id >> 8).ok()?)?;
                Self::IssmFile(view, id.to_le_bytes()[0])
            }
            15 => Self::Lookout(u8::try_from(id).ok()?),
            16 => Self::IbData(u8::try_from(id).ok()?),
            17 => Self::Sa(u8::try_from(id).ok()?),
            18 => Self::HostRing(id),
            _ => return None,
        })
    }
}

/// Waits for a source to be ready, or for the timeout. Busy-polls briefly before it sleeps, because requests
/// arrive in bursts.
pub(super) fn wait(
    poller: &Poller,
    timeout: Option<Duration>,
    ready: &mut Vec<Ready>,
) -> io::Result<()> {
    let found =
        spin_wait::look(|| poller.wait(Some(Duration::ZERO), ready).is_ok() && !ready.is_empty());
    if found { Ok(()) } else { poller.wait(timeout, ready) }
}

#[cfg(test)]
mod tests {
    use rdmux_runtime::poller::Token as _;

    use super::*;

    #[test]
    fn tokens_survive_the_kernel() {
        for token in [
            Token::Listener,
            Token::Stop,
            Token::Monitor,
            Token::Rpc(ClientId(1)),
            Token::Pid(ClientId(1 << 40)),
            Token::Notify(ClientId(0)),
            Token::Channel(ChannelId(7)),
            Token::Qp1(255),
            Token::Events,
            Token::Stream(StreamId(9)),
            Token::StreamListener(1),
            Token::Fabric(1),
            Token::IsSm(2),
            Token::Issm,
            Token::IssmFile(DeviceChoice::All, 1),
            Token::IssmFile(DeviceChoice::default(), 2),
            Token::Lookout(1),
            Token::IbData(2),
            Token::HostRing(1 << 50),
        ] {
            let (kind, id) = token.to_parts();
            assert_eq!(Token::from_parts(kind, id), Some(token));
        }
        assert_eq!(Token::from_parts(u8::MAX, 0), None);
    }
}
