//! Writes pcapng: one interface with nanosecond time stamps, and frames with the direction that they went.
//!
//! Every frame is in the file as soon as it is written, and a file that ends early is still whole.

use std::borrow::Cow;
use std::io::{self, BufWriter, Write};
use std::time::Duration;

use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::section_header::{SectionHeaderBlock, SectionHeaderOption};
use pcap_file::{DataLink, Endianness, PcapError, PcapResult};

/// Frames begin with an IPv4 or IPv6 header.
pub(crate) const LINKTYPE_RAW: u16 = 101;

/// The length of a buffer that takes most blocks as a whole, so that one call writes them.
const BUFFER: usize = 64 << 10;
/// Time stamps count in units of ten to the power of minus this: pcap-file writes nanoseconds.
const NANOSECONDS: u8 = 9;

/// Which way a frame went, as the host saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// It came in.
    In,
    /// It went out.
    Out,
}

/// A pcapng file with one interface.
pub(crate) struct Writer<W: Write> {
    file: PcapNgWriter<BufWriter<W>>,
}

impl<W: Write> Writer<W> {
    /// Writes the file's head: the section and the interface called `name`, whose frames are [`LINKTYPE_RAW`].
    pub(crate) fn new(out: W, name: &str) -> PcapResult<Self> {
        let by = concat!("rdmux ", env!("CARGO_PKG_VERSION"));
        let section = SectionHeaderBlock {
            endianness: Endianness::Little,
            options: vec![SectionHeaderOption::UserApplication(by.into())],
            ..Default::default()
        };
        let out = BufWriter::with_capacity(BUFFER, out);
        let mut this = Self { file: PcapNgWriter::with_section_header(out, section)? };
        this.file.write_pcapng_block(InterfaceDescriptionBlock {
            linktype: DataLink::from(u32::from(LINKTYPE_RAW)),
            snaplen: 0,
            options: vec![
                InterfaceDescriptionOption::IfName(name.into()),
                InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
            ],
        })?;
        this.flush()?;
        Ok(this)
    }

    /// Writes one frame that was seen `at` (since the epoch).
    pub(crate) fn frame(&mut self, at: Duration, way: Direction, frame: &[u8]) -> PcapResult<()> {
        let original_len = u32::try_from(frame.len())
            .map_err(|_| PcapError::IoError(io::ErrorKind::InvalidInput.into()))?;
        let flags = match way {
            Direction::In => 1,
            Direction::Out => 2,
        };
        self.file.write_pcapng_block(EnhancedPacketBlock {
            interface_id: 0,
            timestamp: at,
            original_len,
            data: Cow::Borrowed(frame),
            options: vec![EnhancedPacketOption::Flags(flags)],
        })?;
        self.flush()
    }

    /// Makes sure that everything is out.
    pub(crate) fn flush(&mut self) -> PcapResult<()> {
        self.file.get_mut().flush().map_err(PcapError::IoError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcap_file::pcapng::{Block, PcapNgReader};

    #[test]
    fn another_reader_gets_back_what_was_written() {
        let mut file = Vec::new();
        let mut w = Writer::new(&mut file, "rdmux_roce0").unwrap();
        let at = Duration::new(1_700_000_000, 123_456_789);
        w.frame(at, Direction::In, &[0x45, 1, 2]).unwrap();
        w.frame(at, Direction::Out, &[0x60; 300]).unwrap();
        drop(w);

        let mut reader = PcapNgReader::new(&file[..]).unwrap();
        let mut frames = Vec::new();
        while let Some(block) = reader.next_block() {
            match block.unwrap() {
                Block::InterfaceDescription(i) => {
                    assert_eq!(u32::from(i.linktype), u32::from(LINKTYPE_RAW));
                    let name = InterfaceDescriptionOption::IfName("rdmux_roce0".into());
                    assert_eq!(i.options, [name, InterfaceDescriptionOption::IfTsResol(9)]);
                }
                Block::EnhancedPacket(p) => {
                    assert_eq!(p.timestamp, at);
                    frames.push((p.options[0].clone().into_owned(), p.data.to_vec()));
                }
                _ => {}
            }
        }
        assert_eq!(frames.len(), 2);
        assert_eq!(frames[0], (EnhancedPacketOption::Flags(1), vec![0x45, 1, 2]));
        assert_eq!(frames[1], (EnhancedPacketOption::Flags(2), vec![0x60; 300]));
    }
}
