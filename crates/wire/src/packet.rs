//! A whole transport packet, from the BTH to the last byte of payload.

use core::fmt;

use crate::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Ieth, ImmDt, Opcode, Reth, Service, WireError, XrcEth,
};

/// A parsed packet, with the payload in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Base transport header.
    pub bth: Bth,
    /// The RETH of RDMA WRITE and READ requests.
    pub reth: Option<Reth>,
    /// The AETH of acknowledgements and READ responses.
    pub aeth: Option<Aeth>,
    /// The AtomicETH of atomic requests.
    pub atomic: Option<AtomicEth>,
    /// The AtomicAckETH of atomic responses.
    pub atomic_ack: Option<AtomicAckEth>,
    /// The DETH of datagrams.
    pub deth: Option<Deth>,
    /// The ImmDt of operations with immediate data.
    pub imm: Option<ImmDt>,
    /// The IETH of SEND with invalidate.
    pub ieth: Option<Ieth>,
    /// The XRCETH of XRC requests.
    pub xrceth: Option<XrcEth>,
    /// The payload, without pad.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Creates a packet from a BTH and a payload. The caller fills in the extension headers.
    pub const fn new(bth: Bth, payload: &'a [u8]) -> Self {
        Self {
            bth,
            reth: None,
            aeth: None,
            atomic: None,
            atomic_ack: None,
            deth: None,
            imm: None,
            ieth: None,
            xrceth: None,
            payload,
        }
    }

    /// Parses a packet from its BTH through payload and pad, without ICRC.
    ///
    /// # Errors
    /// [`WireError`] when the version is not 0, the opcode cannot be decoded, or the bytes end
    /// within the headers or the pad.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let mut packet = Self::new(Bth::parse(bytes)?, &[]);
        let tail = packet.parse_headers(bytes)?;
        packet.take_payload(tail)?;
        Ok(packet)
    }

    /// Like [`parse`](Self::parse), for headers and payload in separate places. The contents of
    /// `tail` have no influence on the result.
    ///
    /// # Errors
    /// As [`parse`](Self::parse), and when `headers` has bytes after them.
    pub fn parse_parts(headers: &[u8], tail: &'a [u8]) -> Result<Self, WireError> {
        let mut packet = Self::new(Bth::parse(headers)?, &[]);
        let rest = packet.parse_headers(headers)?;
        if !rest.is_empty() {
            return Err(WireError::Pad { pad: packet.bth.pad, have: rest.len() });
        }
        packet.take_payload(tail)?;
        Ok(packet)
    }

    /// Fills in the headers after the BTH, and returns the bytes after them.
    #[inline]
    fn parse_headers<'b>(&mut self, bytes: &'b [u8]) -> Result<&'b [u8], WireError> {
        let op = self.bth.opcode;
        if self.bth.tver != 0 {
            return Err(WireError::Version(self.bth.tver));
        }
        if op != Opcode::CNP && (op.operation().is_none() || op.service() == Service::Rd) {
            return Err(WireError::Opcode(op));
        }
        let mut rest = Reader(&bytes[Bth::LEN..]);
        if op.ext_len() == 0 {
            return Ok(rest.0);
        }
        self.deth = rest.take(op.has_deth(), Deth::LEN, Deth::parse)?;
        self.xrceth = rest.take(op.has_xrceth(), XrcEth::LEN, XrcEth::parse)?;
        self.reth = rest.take(op.has_reth(), Reth::LEN, Reth::parse)?;
        self.atomic = rest.take(op.has_atomic(), AtomicEth::LEN, AtomicEth::parse)?;
        self.aeth = rest.take(op.has_aeth(), Aeth::LEN, Aeth::parse)?;
        self.atomic_ack = rest.take(op.has_atomic_ack(), AtomicAckEth::LEN, AtomicAckEth::parse)?;
        self.imm = rest.take(op.has_imm(), ImmDt::LEN, ImmDt::parse)?;
        self.ieth = rest.take(op.has_ieth(), Ieth::LEN, Ieth::parse)?;
        Ok(rest.0)
    }

    /// Sets the payload to the bytes of `tail` before its pad.
    #[inline]
    fn take_payload(&mut self, tail: &'a [u8]) -> Result<(), WireError> {
        let pad = self.bth.pad;
        let error = WireError::Pad { pad, have: tail.len() };
        let len = tail.len().checked_sub(usize::from(pad)).ok_or(error)?;
        self.payload = &tail[..len];
        Ok(())
    }

    /// Returns the headers in wire format: those that are present, in the specification's order.
    ///
    /// # Panics
    /// If they have more than [`MAX_HEADER`] bytes, which no parsed packet has.
    pub fn header(&self) -> HeaderBuf {
        let mut buf = HeaderBuf::new(&self.bth);
        buf.push_some(self.deth.map(|h| h.to_bytes()));
        buf.push_some(self.xrceth.map(|h| h.to_bytes()));
        buf.push_some(self.reth.map(|h| h.to_bytes()));
        buf.push_some(self.atomic.map(|h| h.to_bytes()));
        buf.push_some(self.aeth.map(|h| h.to_bytes()));
        buf.push_some(self.atomic_ack.map(|h| h.to_bytes()));
        buf.push_some(self.imm.map(|h| h.to_bytes()));
        buf.push_some(self.ieth.map(|h| h.to_bytes()));
        buf
    }
}

/// Reads headers from the front of the bytes.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    #[inline]
    fn take<T>(
        &mut self,
        present: bool,
        len: usize,
        parse: impl Fn(&[u8]) -> Result<T, WireError>,
    ) -> Result<Option<T>, WireError> {
        if !present {
            return Ok(None);
        }
        let value = parse(self.0)?;
        self.0 = self.0.get(len..).unwrap_or_default();
        Ok(Some(value))
    }
}

/// Prints only the length of the payload.
impl fmt::Display for Packet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn part(f: &mut fmt::Formatter<'_>, header: Option<&dyn fmt::Display>) -> fmt::Result {
            header.map_or(Ok(()), |h| write!(f, " {h}"))
        }
        write!(f, "{}", self.bth)?;
        part(f, self.deth.as_ref().map(|h| h as _))?;
        part(f, self.xrceth.as_ref().map(|h| h as _))?;
        part(f, self.reth.as_ref().map(|h| h as _))?;
        part(f, self.atomic.as_ref().map(|h| h as _))?;
        part(f, self.aeth.as_ref().map(|h| h as _))?;
        part(f, self.atomic_ack.as_ref().map(|h| h as _))?;
        part(f, self.imm.as_ref().map(|h| h as _))?;
        part(f, self.ieth.as_ref().map(|h| h as _))?;
        if self.bth.opcode.has_payload() {
            write!(f, " payload {}", self.payload.len())?;
        }
        Ok(())
    }
}

/// The maximum length of a packet's headers: BTH, XRCETH and AtomicETH.
pub const MAX_HEADER: usize = Bth::LEN + XrcEth::LEN + AtomicEth::LEN;

/// The headers of a packet to send, built in place without allocation, in the order of the calls:
/// `HeaderBuf::new(&bth).reth(&reth).imm(&imm)`.
#[derive(Clone, Copy)]
pub struct HeaderBuf {
    bytes: [u8; MAX_HEADER],
    len: usize,
}

macro_rules! append {
    ($($name:ident($header:ty);)*) => {
        impl HeaderBuf {
            $(
                /// Appends this header.
                ///
                /// # Panics
                /// If the headers together exceed [`MAX_HEADER`], which those of no valid packet do.
                #[inline]
                #[must_use]
                pub fn $name(mut self, header: &$header) -> Self {
                    self.push(header.to_bytes());
                    self
                }
            )*
        }
    };
}

append! {
    deth(Deth);
    xrceth(XrcEth);
    reth(Reth);
    atomic(AtomicEth);
    aeth(Aeth);
    atomic_ack(AtomicAckEth);
    imm(ImmDt);
    ieth(Ieth);
}

impl HeaderBuf {
    /// Creates headers that consist of a BTH so far.
    #[inline]
    #[must_use]
    pub fn new(bth: &Bth) -> Self {
        let mut buf = Self { bytes: [0; MAX_HEADER], len: 0 };
        buf.push(bth.to_bytes());
        buf
    }

    /// Returns the bytes for the wire.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    #[inline]
    fn push<const N: usize>(&mut self, header: [u8; N]) {
        self.bytes[self.len..self.len + N].copy_from_slice(&header);
        self.len += N;
    }

    #[inline]
    fn push_some<const N: usize>(&mut self, header: Option<[u8; N]>) {
        if let Some(header) = header {
            self.push(header);
        }
    }
}

impl core::ops::Deref for HeaderBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl fmt::Debug for HeaderBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Packet::parse(self) {
            Ok(packet) => write!(f, "HeaderBuf({packet})"),
            Err(_) => write!(f, "HeaderBuf({:02x?})", self.as_slice()),
        }
    }
}
