//! Writes pcapng, block by block, so that every frame is in the file as soon as it is written and
//! a file that ends early is still whole.
//!
//! The format is that of draft-ietf-opsawg-pcapng: a section header, one interface with nanosecond
//! time stamps, then enhanced packet blocks, each with the direction in its flags.

use std::io::{self, Write};
use std::time::Duration;

/// Frames begin with an IPv4 or IPv6 header.
pub(crate) const LINKTYPE_RAW: u16 = 101;

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;

const OPT_END: u16 = 0;
const SHB_USERAPPL: u16 = 4;
const IF_NAME: u16 = 2;
const IF_TSRESOL: u16 = 9;
const EPB_FLAGS: u16 = 2;

/// Which way a frame went, as the host saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// It came in.
    In,
    /// It went out.
    Out,
}

/// A pcapng file with one interface.
pub(crate) struct Writer<W> {
    out: W,
    block: Vec<u8>,
}

impl<W: Write> Writer<W> {
    /// Writes the file's head: the section and the interface called `name`.
    pub(crate) fn new(out: W, name: &str, linktype: u16) -> io::Result<Self> {
        let mut this = Self { out, block: Vec::with_capacity(8192) };
        this.block(SECTION_HEADER, |b| {
            b.extend(0x1a2b_3c4d_u32.to_le_bytes());
            b.extend(1_u16.to_le_bytes());
            b.extend(0_u16.to_le_bytes());
            b.extend((-1_i64).to_le_bytes());
            option(b, SHB_USERAPPL, concat!("rdmux ", env!("CARGO_PKG_VERSION")).as_bytes());
            option(b, OPT_END, &[]);
        })?;
        this.block(INTERFACE_DESCRIPTION, |b| {
            b.extend(linktype.to_le_bytes());
            b.extend(0_u16.to_le_bytes());
            b.extend(0_u32.to_le_bytes());
            option(b, IF_NAME, name.as_bytes());
            option(b, IF_TSRESOL, &[9]);
            option(b, OPT_END, &[]);
        })?;
        Ok(this)
    }

    /// Writes one frame that was seen `at` (since the epoch).
    pub(crate) fn frame(&mut self, at: Duration, way: Direction, frame: &[u8]) -> io::Result<()> {
        let ns = u64::try_from(at.as_nanos()).unwrap_or(u64::MAX).to_le_bytes();
        let len = u32::try_from(frame.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        self.block(ENHANCED_PACKET, |b| {
            b.extend(0_u32.to_le_bytes());
            b.extend(&ns[4..]);
            b.extend(&ns[..4]);
            b.extend(len.to_le_bytes());
            b.extend(len.to_le_bytes());
            padded(b, frame);
            let flags: u32 = match way {
                Direction::In => 1,
                Direction::Out => 2,
            };
            option(b, EPB_FLAGS, &flags.to_le_bytes());
            option(b, OPT_END, &[]);
        })
    }

    /// Makes sure that everything is out.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// One block: type, length, body, length.
    fn block(&mut self, kind: u32, body: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        let b = &mut self.block;
        b.clear();
        b.extend(kind.to_le_bytes());
        b.extend([0; 4]);
        body(b);
        let total = u32::try_from(b.len() + 4).map_err(|_| io::ErrorKind::InvalidInput)?;
        b[4..8].copy_from_slice(&total.to_le_bytes());
        b.extend(total.to_le_bytes());
        self.out.write_all(b)
    }
}

/// An option: code, length, value, padding.
fn option(b: &mut Vec<u8>, code: u16, value: &[u8]) {
    b.extend(code.to_le_bytes());
    let len = u16::try_from(value.len()).expect("options are short");
    b.extend(len.to_le_bytes());
    padded(b, value);
}

/// Bytes, and zeroes up to a multiple of four.
fn padded(b: &mut Vec<u8>, bytes: &[u8]) {
    b.extend(bytes);
    b.resize(b.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcap_file::pcapng::{Block, PcapNgReader};

    #[test]
    fn another_reader_gets_back_what_was_written() {
        let mut file = Vec::new();
        let mut w = Writer::new(&mut file, "rdmux_roce0", LINKTYPE_RAW).unwrap();
        let at = Duration::new(1_700_000_000, 123_456_789);
        w.frame(at, Direction::In, &[0x45, 1, 2]).unwrap();
        w.frame(at, Direction::Out, &[0x60; 300]).unwrap();
        w.flush().unwrap();

        let mut reader = PcapNgReader::new(&file[..]).unwrap();
        let mut frames = Vec::new();
        while let Some(block) = reader.next_block() {
            match block.unwrap() {
                Block::InterfaceDescription(i) => {
                    assert_eq!(u32::from(i.linktype), u32::from(LINKTYPE_RAW));
                }
                Block::EnhancedPacket(p) => frames.push((p.timestamp, p.data.to_vec())),
                _ => {}
            }
        }
        assert_eq!(frames.len(), 2);
        assert_eq!(frames[0].1, [0x45, 1, 2]);
        assert_eq!(frames[1].1, [0x60; 300]);
    }
}
