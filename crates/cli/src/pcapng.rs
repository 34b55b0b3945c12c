//! Writes pcapng: one interface for each kind of frame, with nanosecond time stamps, and the direction of each frame.
//!
//! Every frame is in the file as soon as it is written, and a truncated run leaves a valid file.

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
use rdmux_link::capture::FrameKind;

/// Frames begin with an IPv4 or IPv6 header.
const LINKTYPE_RAW: u16 = 101;
/// Frames begin with the header of an ERF record. InfiniBand has its own link type, 247, which Wireshark does not know; it
/// reads InfiniBand in ERF records, as ibdump(8) writes them.
const LINKTYPE_ERF: u16 = 197;

/// Returns the link type of a kind of frame in tcpdump.org's registry.
const fn link_type(kind: FrameKind) -> u16 {
    match kind {
        FrameKind::Ip => LINKTYPE_RAW,
        FrameKind::InfiniBand => LINKTYPE_ERF,
    }
}

/// Returns the header of an ERF record with an InfiniBand packet, from the LRH to the VCRC (ERF Types Reference Guide,
/// EDM11-01).
fn erf_header(at: Duration, len: u16) -> [u8; ERF_HEADER] {
    const INFINIBAND: u8 = 21;
    /// The flag for records of varying length.
    const VARYING: u8 = 1 << 2;
    // Seconds, and a fraction of 32 bits.
    let fraction = (u64::from(at.subsec_nanos()) << 32) / 1_000_000_000;
    let time = at.as_secs() << 32 | fraction;
    let mut header = [0; ERF_HEADER];
    header[..8].copy_from_slice(&time.to_le_bytes());
    header[8..10].copy_from_slice(&[INFINIBAND, VARYING]);
    let record = len.saturating_add(16);
    header[10..12].copy_from_slice(&record.to_be_bytes());
    header[14..].copy_from_slice(&len.to_be_bytes());
    header
}

/// The length of that header.
const ERF_HEADER: usize = 16;

/// The size of a buffer that holds most blocks completely, so that one call writes them.
const BUFFER: usize = 64 << 10;
/// Time stamps count in units of ten to the power of minus this: pcap-file writes nanoseconds.
const NANOSECONDS: u8 = 9;

/// The direction of a frame, as seen by the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Received.
    In,
    /// Sent.
    Out,
}

/// A pcapng file. Each kind of frame has its own interface, because an interface has one link type. Its description is written
/// before its first frame, so that programs which know only one link type can read a file with that kind only.
pub(crate) struct Writer<W: Write> {
    file: PcapNgWriter<BufWriter<W>>,
    name: String,
    /// The kinds of the interfaces, in their order in the file.
    interfaces: Vec<FrameKind>,
}

impl<W: Write> Writer<W> {
    /// Writes the header of the file. Interfaces are named after `name`.
    pub(crate) fn new(out: W, name: &str) -> PcapResult<Self> {
        let by = concat!("rdmux ", env!("CARGO_PKG_VERSION"));
        let section = SectionHeaderBlock {
            endianness: Endianness::Little,
            options: vec![SectionHeaderOption::UserApplication(by.into())],
            ..Default::default()
        };
        let out = BufWriter::with_capacity(BUFFER, out);
        let file = PcapNgWriter::with_section_header(out, section)?;
        let mut this = Self { file, name: name.to_owned(), interfaces: Vec::new() };
        this.flush()?;
        Ok(this)
    }

    /// Returns the number of the interface for a kind of frame, whose description is written if there is none yet.
    fn interface(&mut self, kind: FrameKind) -> PcapResult<usize> {
        if let Some(index) = self.interfaces.iter().position(|known| *known == kind) {
            return Ok(index);
        }
        let name = match kind {
            FrameKind::Ip => self.name.clone(),
            FrameKind::InfiniBand => format!("{}-ib", self.name),
        };
        self.file.write_pcapng_block(InterfaceDescriptionBlock {
            linktype: DataLink::from(u32::from(link_type(kind))),
            snaplen: 0,
            options: vec![
                InterfaceDescriptionOption::IfName(name.into()),
                InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
            ],
        })?;
        self.interfaces.push(kind);
        Ok(self.interfaces.len() - 1)
    }

    /// Ends the file. A file without frames has an interface for IP packets.
    pub(crate) fn finish(mut self) -> PcapResult<()> {
        if self.interfaces.is_empty() {
            self.interface(FrameKind::Ip)?;
        }
        self.flush()
    }

    /// Writes a frame that was captured `at` (since the epoch).
    pub(crate) fn frame(
        &mut self,
        at: Duration,
        way: Direction,
        kind: FrameKind,
        frame: &[u8],
    ) -> PcapResult<()> {
        let too_long = || PcapError::IoError(io::ErrorKind::InvalidInput.into());
        let data = match kind {
            FrameKind::Ip => Cow::Borrowed(frame),
            FrameKind::InfiniBand => {
                let len = u16::try_from(frame.len()).map_err(|_| too_long())?;
                Cow::Owned([&erf_header(at, len)[..], frame].concat())
            }
        };
        let original_len = u32::try_from(data.len()).map_err(|_| too_long())?;
        let flags = match way {
            Direction::In => 1,
            Direction::Out => 2,
        };
        let interface = self.interface(kind)?;
        let interface_id = u32::try_from(interface).unwrap_or_default();
        self.file.write_pcapng_block(EnhancedPacketBlock {
            interface_id,
            timestamp: at,
            original_len,
            data,
            options: vec![EnhancedPacketOption::Flags(flags)],
        })?;
        self.flush()
    }

    /// Flushes the output.
    fn flush(&mut self) -> PcapResult<()> {
        self.file.get_mut().flush().map_err(PcapError::IoError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcap_file::pcapng::{Block, PcapNgReader};

    /// Flags and bytes of frames.
    type Frames = Vec<(u32, Vec<u8>)>;

    /// Returns name, link type and frames of each interface, parsed by another reader.
    fn read_back(file: &[u8]) -> Vec<(String, u32, Frames)> {
        let mut reader = PcapNgReader::new(file).unwrap();
        let mut interfaces: Vec<(String, u32, Frames)> = Vec::new();
        while let Some(block) = reader.next_block() {
            match block.unwrap() {
                Block::InterfaceDescription(i) => {
                    let [InterfaceDescriptionOption::IfName(name), resolution] = &i.options[..]
                    else {
                        panic!("{:?}", i.options)
                    };
                    assert_eq!(*resolution, InterfaceDescriptionOption::IfTsResol(9));
                    interfaces.push((name.to_string(), u32::from(i.linktype), Vec::new()));
                }
                Block::EnhancedPacket(p) => {
                    assert_eq!(p.timestamp, AT);
                    let EnhancedPacketOption::Flags(flags) = p.options[0] else { panic!() };
                    let interface = usize::try_from(p.interface_id).unwrap();
                    interfaces[interface].2.push((flags, p.data.to_vec()));
                }
                _ => {}
            }
        }
        interfaces
    }

    const AT: Duration = Duration::new(1_700_000_000, 123_456_789);

    #[test]
    fn another_reader_gets_back_what_was_written() {
        let mut file = Vec::new();
        let mut w = Writer::new(&mut file, "host").unwrap();
        w.frame(AT, Direction::In, FrameKind::Ip, &[0x45, 1, 2]).unwrap();
        w.frame(AT, Direction::Out, FrameKind::Ip, &[0x60; 300]).unwrap();
        w.finish().unwrap();
        let frames = vec![(1, vec![0x45, 1, 2]), (2, vec![0x60; 300])];
        assert_eq!(read_back(&file), [("host".to_owned(), 101, frames)]);
    }

    #[test]
    fn each_kind_of_frame_has_its_interface() {
        let mut file = Vec::new();
        let mut w = Writer::new(&mut file, "host").unwrap();
        w.frame(AT, Direction::Out, FrameKind::InfiniBand, &[1; 8]).unwrap();
        w.frame(AT, Direction::In, FrameKind::Ip, &[2; 8]).unwrap();
        w.frame(AT, Direction::In, FrameKind::InfiniBand, &[3; 8]).unwrap();
        w.finish().unwrap();
        let [(ib, 197, records), (ip, 101, frames)] = &read_back(&file)[..] else { panic!() };
        assert_eq!((ib.as_str(), ip.as_str()), ("host-ib", "host"));
        assert_eq!(*frames, [(1, vec![2; 8])]);
        let [(2, sent), (1, received)] = &records[..] else { panic!("{records:?}") };
        assert_eq!((&sent[16..], &received[16..]), (&[1; 8][..], &[3; 8][..]));
        // 123,456,789 of 10^9, in 2^-32.
        assert_eq!(sent[..8], (1_700_000_000_u64 << 32 | 530_242_871).to_le_bytes());
        assert_eq!(sent[8..16], [21, 4, 0, 24, 0, 0, 0, 8]);
    }

    #[test]
    fn a_file_without_frames_has_an_interface() {
        let mut file = Vec::new();
        Writer::new(&mut file, "host").unwrap().finish().unwrap();
        assert_eq!(read_back(&file), [("host".to_owned(), 101, Vec::new())]);
    }
}
