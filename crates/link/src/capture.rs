//! Captured frames in messages to the capturing program: the header before each frame.

/// The header that a frame begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FrameKind {
    /// An IPv4 or IPv6 header.
    Ip = 0,
    /// An InfiniBand local route header (LRH); the frame ends with its VCRC.
    InfiniBand = 1,
}

/// The header that precedes each captured frame: 16 bytes, numbers in native byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Whether the packet was sent. Otherwise it was received.
    pub sent: bool,
    /// Whether the packet went through shared memory. Its headers below the BTH are then synthetic.
    pub memory: bool,
    /// The header that the frame begins with.
    pub kind: FrameKind,
    /// The time, in nanoseconds since 1970.
    pub time: u64,
}

impl FrameHeader {
    /// The length of the header in bytes.
    pub const LEN: usize = 16;

    /// Parses the header at the front of a message. Returns none if the message is too short, or of an unknown kind.
    pub fn parse(message: &[u8]) -> Option<(Self, &[u8])> {
        let (header, frame) = message.split_first_chunk::<{ Self::LEN }>()?;
        let [sent, memory, kind, _, _, _, _, _, time @ ..] = *header;
        let kind = match kind {
            0 => FrameKind::Ip,
            1 => FrameKind::InfiniBand,
            _ => return None,
        };
        let time = u64::from_ne_bytes(time);
        Some((Self { sent: sent != 0, memory: memory != 0, kind, time }, frame))
    }

    /// Encodes the header for a message.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0] = self.sent.into();
        bytes[1] = self.memory.into();
        bytes[2] = self.kind as u8;
        bytes[8..].copy_from_slice(&self.time.to_ne_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for kind in [FrameKind::Ip, FrameKind::InfiniBand] {
            for (sent, memory) in [(false, true), (true, false)] {
                let header = FrameHeader { sent, memory, kind, time: 0x1234_5678_9abc_def0 };
                let mut message = header.to_bytes().to_vec();
                message.extend_from_slice(b"frame");
                assert_eq!(FrameHeader::parse(&message), Some((header, &b"frame"[..])));
            }
        }
        assert_eq!(FrameHeader::parse(&[0; 15]), None);
        let mut unknown = [0; 16];
        unknown[2] = 2;
        assert_eq!(FrameHeader::parse(&unknown), None);
    }
}
