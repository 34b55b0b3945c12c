//! Capture files, frame by frame: pcap (draft-ietf-opsawg-pcap) and pcapng (draft-ietf-opsawg-pcapng).
//!
//! This reader exists because captures come from many writers: it accepts options that are not terminated or not
//! UTF-8, sections of either byte order, and time stamps of any resolution.

use std::io::{self, BufReader, Read};
use std::time::Duration;

/// The maximum size of a block or record, in bytes; larger lengths are considered invalid.
const MAX_RECORD: usize = 64 << 20;

/// A frame as captured.
#[derive(Debug, Clone, Copy)]
pub(super) struct Frame<'a> {
    /// Since 1970.
    pub(super) time: Duration,
    /// A `LINKTYPE_` of tcpdump.org's registry.
    pub(super) link: u16,
    /// The captured bytes.
    pub(super) data: &'a [u8],
    /// The original length, before truncation to the capture's snap length.
    pub(super) original_len: usize,
}

/// The reason why a file cannot be read further.
#[derive(Debug, thiserror::Error)]
pub(super) enum FileError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("not a pcap or pcapng file")]
    NotACapture,
    #[error("the file ends in the middle of a {0}")]
    CutShort(&'static str),
    #[error("broken file: {0}")]
    Broken(&'static str),
}

/// A capture file of either format.
pub(super) struct CaptureFile<R> {
    input: BufReader<R>,
    format: Format,
    record: Vec<u8>,
}

/// The format of a capture file, with the properties that its frames need.
enum Format {
    Pcap { order: Order, nanoseconds: bool, link: u16 },
    Pcapng { order: Order, interfaces: Vec<Interface> },
}

/// The contents of an interface description block.
struct Interface {
    link: u16,
    snap_len: u32,
    units_per_second: u64,
    offset_seconds: i64,
}

/// The byte order of a file or section: that of the machine that wrote it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Little,
    Big,
}

impl Order {
    fn u16(self, b: &[u8], at: usize) -> Option<u16> {
        let bytes = *b.get(at..)?.first_chunk()?;
        Some(match self {
            Self::Little => u16::from_le_bytes(bytes),
            Self::Big => u16::from_be_bytes(bytes),
        })
    }

    fn u32(self, b: &[u8], at: usize) -> Option<u32> {
        let bytes = *b.get(at..)?.first_chunk()?;
        Some(match self {
            Self::Little => u32::from_le_bytes(bytes),
            Self::Big => u32::from_be_bytes(bytes),
        })
    }

    fn u64(self, b: &[u8], at: usize) -> Option<u64> {
        let (first, second) = (self.u32(b, at)?.into(), self.u32(b, at + 4)?.into());
        let (high, low): (u64, u64) =
            if self == Self::Big { (first, second) } else { (second, first) };
        Some(high << 32 | low)
    }

    /// Returns a length if it does not exceed [`MAX_RECORD`].
    fn len(self, b: &[u8], at: usize) -> Option<usize> {
        let len = usize::try_from(self.u32(b, at)?).ok()?;
        (len <= MAX_RECORD).then_some(len)
    }
}

mod block {
    pub(super) const SECTION_HEADER: u32 = 0x0a0d_0d0a;
    pub(super) const INTERFACE_DESCRIPTION: u32 = 1;
    pub(super) const PACKET: u32 = 2;
    pub(super) const SIMPLE_PACKET: u32 = 3;
    pub(super) const ENHANCED_PACKET: u32 = 6;
}

impl<R: Read> CaptureFile<R> {
    /// Reads the header of a file.
    pub(super) fn open(input: R) -> Result<Self, FileError> {
        let mut input = BufReader::with_capacity(1 << 20, input);
        let mut magic = [0; 4];
        if read_or_end(&mut input, &mut magic)? < magic.len() {
            return Err(FileError::NotACapture);
        }
        let magic = u32::from_le_bytes(magic);
        let mut file = Self {
            input,
            format: Format::Pcapng { order: Order::Little, interfaces: Vec::new() },
            record: Vec::new(),
        };
        let (order, nanoseconds) = match magic {
            block::SECTION_HEADER => {
                file.section()?;
                return Ok(file);
            }
            0xa1b2_c3d4 => (Order::Little, false),
            0xd4c3_b2a1 => (Order::Big, false),
            0xa1b2_3c4d => (Order::Little, true),
            0x4d3c_b2a1 => (Order::Big, true),
            _ => return Err(FileError::NotACapture),
        };
        file.fill(20, "file header")?;
        // The upper half of the link type describes frame check sequences.
        let at = if order == Order::Little { 16 } else { 18 };
        let link = order.u16(&file.record, at).ok_or(FileError::NotACapture)?;
        file.format = Format::Pcap { order, nanoseconds, link };
        Ok(file)
    }

    /// Returns the next frame, or none at the end.
    pub(super) fn next(&mut self) -> Result<Option<Frame<'_>>, FileError> {
        match self.format {
            Format::Pcap { order, nanoseconds, link } => self.next_record(order, nanoseconds, link),
            Format::Pcapng { .. } => self.next_packet_block(),
        }
    }

    fn next_record(
        &mut self,
        order: Order,
        nanoseconds: bool,
        link: u16,
    ) -> Result<Option<Frame<'_>>, FileError> {
        const BROKEN: FileError = FileError::Broken("a frame of impossible length");
        let mut head = [0; 16];
        match read_or_end(&mut self.input, &mut head)? {
            0 => return Ok(None),
            16 => {}
            _ => return Err(FileError::CutShort("frame header")),
        }
        let field = |at| order.u32(&head, at).unwrap_or_default();
        let units = if nanoseconds { 1 } else { 1000 };
        let time = Duration::from_secs(field(0).into())
            + Duration::from_nanos(u64::from(field(4)) * units);
        let original_len = usize::try_from(field(12)).unwrap_or(usize::MAX);
        self.fill(order.len(&head, 8).ok_or(BROKEN)?, "frame")?;
        Ok(Some(Frame { time, link, data: &self.record, original_len }))
    }

    fn next_packet_block(&mut self) -> Result<Option<Frame<'_>>, FileError> {
        loop {
            let mut kind = [0; 4];
            match read_or_end(&mut self.input, &mut kind)? {
                0 => return Ok(None),
                4 => {}
                _ => return Err(FileError::CutShort("block header")),
            }
            // The type of a section header is the same in both byte orders.
            if u32::from_le_bytes(kind) == block::SECTION_HEADER {
                self.section()?;
                continue;
            }
            let order = self.order();
            self.block_body(order)?;
            match order.u32(&kind, 0) {
                Some(block::INTERFACE_DESCRIPTION) => self.add_interface(order)?,
                Some(block::ENHANCED_PACKET) => return self.enhanced_packet(order).map(Some),
                Some(block::PACKET) => return self.packet(order).map(Some),
                Some(block::SIMPLE_PACKET) => return self.simple_packet(order).map(Some),
                _ => {} // statistics, names, secrets, and what is yet to come
            }
        }
    }

    fn order(&self) -> Order {
        match self.format {
            Format::Pcap { order, .. } | Format::Pcapng { order, .. } => order,
        }
    }

    fn interfaces(&self) -> &[Interface] {
        match &self.format {
            Format::Pcapng { interfaces, .. } => interfaces,
            Format::Pcap { .. } => &[],
        }
    }

    /// Reads a section header after its block type, and drops the interfaces of the previous section.
    fn section(&mut self) -> Result<(), FileError> {
        const BROKEN: FileError = FileError::Broken("a section header");
        self.fill(8, "section header")?;
        let order = match self.record.last_chunk() {
            Some([0x4d, 0x3c, 0x2b, 0x1a]) => Order::Little,
            Some([0x1a, 0x2b, 0x3c, 0x4d]) => Order::Big,
            _ => return Err(BROKEN),
        };
        let len = order.len(&self.record, 0).and_then(|len| len.checked_sub(12)).ok_or(BROKEN)?;
        self.fill(len, "section header")?;
        if order.u16(&self.record, 0) != Some(1) {
            return Err(FileError::Broken("a pcapng version other than 1 in the section header"));
        }
        self.format = Format::Pcapng { order, interfaces: Vec::new() };
        Ok(())
    }

    /// Reads a block after its type, without the lengths at its start and end.
    fn block_body(&mut self, order: Order) -> Result<(), FileError> {
        self.fill(4, "block")?;
        let len = order.len(&self.record, 0).filter(|len| len % 4 == 0);
        let len = len.and_then(|len| len.checked_sub(8 + 4));
        let len = len.ok_or(FileError::Broken("a block of impossible length"))?;
        self.fill(len + 4, "block")?;
        self.record.truncate(len);
        Ok(())
    }

    fn add_interface(&mut self, order: Order) -> Result<(), FileError> {
        let interface = Interface::parse(order, &self.record);
        let interface = interface.ok_or(FileError::Broken("an interface block"))?;
        if let Format::Pcapng { interfaces, .. } = &mut self.format {
            interfaces.push(interface);
        }
        Ok(())
    }

    fn enhanced_packet(&self, order: Order) -> Result<Frame<'_>, FileError> {
        self.timed_packet(order, order.u32(&self.record, 0))
    }

    /// Parses the obsolete packet block: 16 bits are the interface, the other 16 a drop count.
    fn packet(&self, order: Order) -> Result<Frame<'_>, FileError> {
        self.timed_packet(order, order.u16(&self.record, 0).map(u32::from))
    }

    fn timed_packet(&self, order: Order, interface: Option<u32>) -> Result<Frame<'_>, FileError> {
        let parse = || {
            let interface = self.interfaces().get(usize::try_from(interface?).ok()?)?;
            let (high, low) = (order.u32(&self.record, 4)?, order.u32(&self.record, 8)?);
            let len = order.len(&self.record, 12)?;
            Some(Frame {
                time: interface.time(u64::from(high) << 32 | u64::from(low)),
                link: interface.link,
                data: self.record.get(20..)?.get(..len)?,
                original_len: usize::try_from(order.u32(&self.record, 16)?).ok()?,
            })
        };
        parse().ok_or(FileError::Broken("a packet block"))
    }

    /// Parses a packet of the first interface, which has no time.
    fn simple_packet(&self, order: Order) -> Result<Frame<'_>, FileError> {
        let parse = || {
            let interface = self.interfaces().first()?;
            let original_len = usize::try_from(order.u32(&self.record, 0)?).ok()?;
            let mut data = self.record.get(4..)?;
            let snap_len = usize::try_from(interface.snap_len).ok()?;
            let snap_len = if snap_len == 0 { usize::MAX } else { snap_len };
            data = data.get(..original_len.min(snap_len)).unwrap_or(data);
            Some(Frame { time: Duration::ZERO, link: interface.link, data, original_len })
        };
        parse().ok_or(FileError::Broken("a packet block"))
    }

    /// Reads the next `len` bytes into the record.
    fn fill(&mut self, len: usize, what: &'static str) -> Result<(), FileError> {
        self.record.resize(len, 0);
        if read_or_end(&mut self.input, &mut self.record)? < len {
            return Err(FileError::CutShort(what));
        }
        Ok(())
    }
}

impl Interface {
    fn parse(order: Order, body: &[u8]) -> Option<Self> {
        const IF_TSRESOL: u16 = 9;
        const IF_TSOFFSET: u16 = 14;
        let mut interface = Self {
            link: order.u16(body, 0)?,
            snap_len: order.u32(body, 4)?,
            units_per_second: 1_000_000,
            offset_seconds: 0,
        };
        let mut options = body.get(8..)?;
        while let (Some(code @ 1..), Some(len)) = (order.u16(options, 0), order.u16(options, 2)) {
            let value = options.get(4..)?.get(..len.into())?;
            match code {
                IF_TSRESOL => {
                    let exponent = *value.first()?;
                    let base: u64 = if exponent & 0x80 == 0 { 10 } else { 2 };
                    interface.units_per_second = base.checked_pow((exponent & 0x7f).into())?;
                }
                IF_TSOFFSET => {
                    interface.offset_seconds = order.u64(value, 0)?.cast_signed();
                }
                _ => {}
            }
            options = options.get(4 + usize::from(len).next_multiple_of(4)..).unwrap_or_default();
        }
        Some(interface)
    }

    fn time(&self, units: u64) -> Duration {
        let per_second = self.units_per_second;
        let nanos = u128::from(units % per_second) * 1_000_000_000 / u128::from(per_second);
        let seconds = (units / per_second).saturating_add_signed(self.offset_seconds);
        Duration::new(seconds, u32::try_from(nanos).unwrap_or_default())
    }
}

/// Fills `buffer`, or as much of it as is available before the end.
fn read_or_end(input: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match input.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(filled)
}
