//! The header before an InfiniBand packet, or a part of one, in a UDP datagram.
//!
//! ```text
//!  0  version, 1        1  flags, 0       2  part      3  parts, 1 to 16
//!  4  zero              5  steer (24 bits)
//!  8  number of the packet, of the sender's choice
//! 12  total length of the packet, LRH to ICRC, in bytes
//! ```
//!
//! All numbers are big-endian. A packet extends from its LRH to its ICRC; it has no VCRC, since UDP has a checksum.
//!
//! The word at offset 4 has the position of the BTH's destination QPN in a RoCEv2 packet, so that one BPF program steers datagrams
//! of both to the socket of a process. It contains that QPN here, too. For a multicast group it is 0xFFFFFF; a copy that the host
//! makes for one of its processes has a QPN of that process there.
//!
//! # Parts
//!
//! All parts of a packet have one size, which follows from its total length and their number: `total / parts + 1`. So the last
//! one is larger than the rest of the packet. It is padded with zeros, or is shorter. The sender pads all but the last datagram
//! of a system call, so that the kernel can cut them. It leaves the last one short, so that the receiver's kernel does not merge
//! it with the following datagram, which may be for another process.

use std::ops::Range;

use super::IbDrop;

/// The header; see the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encap {
    /// The index of this part, from 0.
    pub part: u8,
    /// The number of parts, 1 to [`MAX_PARTS`](Self::MAX_PARTS).
    pub parts: u8,
    /// Selects the socket of the destination's group: 24 bits.
    pub steer: u32,
    /// The number that the parts of a packet share. No other packets of this sender have it at that time.
    pub number: u32,
    /// The length of the packet in bytes, LRH to ICRC.
    pub total: u16,
}

impl Encap {
    /// The length of the header in bytes.
    pub const LEN: usize = 16;
    /// The version described here.
    pub const VERSION: u8 = 1;
    /// The maximum number of parts of a packet.
    pub const MAX_PARTS: u8 = 16;
    /// The length of the shortest packet: LRH, BTH, ICRC.
    pub const MIN_TOTAL: u16 = 24;
    /// The maximum length that an LRH can encode.
    pub const MAX_TOTAL: u16 = 4 * 2047;

    /// Parses the header of a datagram. Returns it with the body, without padding.
    ///
    /// # Errors
    ///
    /// [`IbDrop::RxVersion`], or [`IbDrop::RxMalformed`] if the numbers are inconsistent with each other or with the datagram's
    /// length.
    #[inline]
    pub fn parse(datagram: &[u8]) -> Result<(Self, &[u8]), IbDrop> {
        let (header, body) =
            datagram.split_first_chunk::<{ Self::LEN }>().ok_or(IbDrop::RxMalformed)?;
        let [version, flags, part, parts, zero, s1, s2, s3, n1, n2, n3, n4, t1, t2, t3, t4] =
            *header;
        if version != Self::VERSION {
            return Err(IbDrop::RxVersion);
        }
        let total = u16::try_from(u32::from_be_bytes([t1, t2, t3, t4]));
        let total = total.map_err(|_| IbDrop::RxMalformed)?;
        let (steer, number) =
            (u32::from_be_bytes([0, s1, s2, s3]), u32::from_be_bytes([n1, n2, n3, n4]));
        let encap = Self { part, parts, steer, number, total };
        let fits = (Self::MIN_TOTAL..=Self::MAX_TOTAL).contains(&total)
            && (1..=Self::MAX_PARTS).contains(&parts)
            && part < parts;
        if flags != 0 || zero != 0 || total % 4 != 0 || !fits {
            return Err(IbDrop::RxMalformed);
        }
        let len = encap.place().len();
        if len == 0 || (body.len() != len && body.len() != encap.size()) {
            return Err(IbDrop::RxMalformed);
        }
        Ok((encap, &body[..len]))
    }

    /// Encodes the header.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let [_, s1, s2, s3] = self.steer.to_be_bytes();
        let [n1, n2, n3, n4] = self.number.to_be_bytes();
        let [t1, t2, t3, t4] = u32::from(self.total).to_be_bytes();
        let Self { part, parts, .. } = *self;
        [Self::VERSION, 0, part, parts, 0, s1, s2, s3, n1, n2, n3, n4, t1, t2, t3, t4]
    }

    /// Returns the number of parts of a packet if none may be larger than `room` bytes. Returns none if they would be too many.
    #[inline]
    pub fn parts_for(total: u16, room: usize) -> Option<u8> {
        // Avoids a division in nearly all cases.
        if usize::from(total) < room {
            return Some(1);
        }
        let parts = usize::from(total).checked_div(room)? + 1;
        u8::try_from(parts).ok().filter(|parts| *parts <= Self::MAX_PARTS)
    }

    /// Returns the size of the parts.
    #[inline]
    pub fn size(&self) -> usize {
        let total = usize::from(self.total);
        // Avoids a division in nearly all cases.
        if self.parts <= 1 { total + 1 } else { total / usize::from(self.parts) + 1 }
    }

    /// Returns the range of the packet that this part covers.
    pub fn place(&self) -> Range<usize> {
        let (size, total) = (self.size(), usize::from(self.total));
        let start = (usize::from(self.part) * size).min(total);
        start..(start + size).min(total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_equal_size_and_cover_the_packet() {
        for total in (Encap::MIN_TOTAL..=Encap::MAX_TOTAL).step_by(4) {
            for room in [512, 513, 1000, 1216, 1436, 4096, 8187, 8188, 8189, 65_491] {
                let parts = Encap::parts_for(total, room).unwrap();
                let mut next = 0;
                for part in 0..parts {
                    let encap = Encap { part, parts, steer: 0, number: 0, total };
                    let place = encap.place();
                    assert!(place.start == next && !place.is_empty(), "{encap:?}");
                    assert!(encap.size() <= room, "{encap:?}");
                    assert_eq!(place.len() == encap.size(), part + 1 < parts, "{encap:?}");
                    next = place.end;
                }
                assert_eq!(next, total.into());
            }
        }
        assert_eq!(Encap::parts_for(8188, 511), None);
        assert_eq!(Encap::parts_for(24, 0), None);
    }

    #[test]
    fn what_is_written_is_read() {
        let encap = Encap { part: 2, parts: 3, steer: 0x12_3456, number: 0x789a_bcde, total: 1000 };
        let mut datagram = encap.to_bytes().to_vec();
        assert_eq!(datagram[..8], [1, 0, 2, 3, 0, 0x12, 0x34, 0x56]);
        assert_eq!(datagram[8..], [0x78, 0x9a, 0xbc, 0xde, 0, 0, 3, 0xe8]);
        datagram.resize(16 + 332, 7);
        assert_eq!(Encap::parse(&datagram), Ok((encap, &[7; 332][..])));
        datagram.resize(16 + 334, 0);
        assert_eq!(Encap::parse(&datagram), Ok((encap, &[7; 332][..])), "filled");
        for len in [16 + 335, 16 + 333, 16 + 331, 16, 15, 0] {
            datagram.resize(len, 0);
            assert_eq!(Encap::parse(&datagram), Err(IbDrop::RxMalformed), "{len}");
        }
    }

    #[test]
    fn invalid_encapsulation_headers_are_malformed() {
        let good = Encap { part: 1, parts: 2, steer: 7, number: 7, total: 400 };
        let mut datagram = good.to_bytes().to_vec();
        datagram.resize(16 + 199, 0);
        assert!(Encap::parse(&datagram).is_ok());
        let changed = |at: usize, to: u8| {
            let mut datagram = datagram.clone();
            datagram[at] = to;
            Encap::parse(&datagram).map(|_| ())
        };
        assert_eq!(changed(0, 2), Err(IbDrop::RxVersion));
        for (at, to) in
            [(1, 1), (2, 2), (2, 0), (3, 0), (3, 1), (3, 17), (4, 1), (12, 1), (13, 1), (15, 1)]
        {
            assert_eq!(changed(at, to), Err(IbDrop::RxMalformed), "{at}: {to}");
        }
        let short = Encap { part: 15, parts: 16, steer: 7, number: 7, total: 24 };
        let mut datagram = short.to_bytes().to_vec();
        for len in 16..24 {
            datagram.resize(len, 0);
            assert_eq!(Encap::parse(&datagram), Err(IbDrop::RxMalformed), "a part of nothing");
        }
    }
}
