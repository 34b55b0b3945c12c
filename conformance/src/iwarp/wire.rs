//! The peer's end of a stream: start-up frames and FPDUs, written and parsed by the test.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rdmux_wire::Stag;
use rdmux_wire::iwarp::ddp::{Header, Model, Tagged, Untagged};
use rdmux_wire::iwarp::fpdu::Framing;
use rdmux_wire::iwarp::mpa::{Enhanced, Flags, Kind, Startup};
use rdmux_wire::iwarp::rdmap::{Opcode, ReadRequest};
use rdmux_wire::iwarp::rtr;
use rdmux_wire::iwarp::terminate::{Fault, Terminate};
use socket2::SockRef;

use super::ours::{WAIT, is_message, message};

/// A start-up frame, received or to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// Request or reply.
    pub kind: Kind,
    /// Its flags except S.
    pub flags: Flags,
    /// 1 or 2.
    pub revision: u8,
    /// The header of revision 2.
    pub enhanced: Option<Enhanced>,
    /// Arbitrary bytes.
    pub private_data: Vec<u8>,
}

impl Said {
    /// Returns the bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let Self { kind, flags, revision, enhanced, ref private_data } = *self;
        let startup = Startup { kind, flags, revision, enhanced, private_data };
        let mut bytes = vec![0; startup.len()];
        startup.emit(&mut bytes);
        bytes
    }
}

/// The first frame of peer-to-peer mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rtr {
    /// A zero-length Send.
    Send,
    /// A zero-length Write.
    Write,
    /// A zero-length Read.
    Read,
}

/// Opens a port where the peer listens.
///
/// # Errors
/// When no port is free.
pub fn listen() -> Result<(TcpListener, SocketAddr)> {
    // Not 127.0.0.1 itself, which a host resolves to its own address.
    let listener = TcpListener::bind((Ipv4Addr::new(127, 79, 0, 1), 0))?;
    let at = listener.local_addr()?;
    Ok((listener, at))
}

/// The peer's end.
pub struct Wire {
    tcp: TcpStream,
    input: Vec<u8>,
    /// The framing of received frames, and the position in the stream.
    rx: (Framing, u64),
    /// The framing and position of sent frames.
    tx: (Framing, u64),
    /// The number of the next message of each queue.
    msn: [u32; 4],
    dribbles: bool,
}

impl Wire {
    /// Connects.
    ///
    /// # Errors
    /// When there is no listener.
    pub fn connect(to: SocketAddr) -> Result<Self> {
        Self::new(TcpStream::connect_timeout(&to, WAIT)?)
    }

    /// Accepts the next connection.
    ///
    /// # Errors
    /// When there is none in time.
    pub fn accept(listener: &TcpListener) -> Result<Self> {
        listener.set_nonblocking(true)?;
        let until = Instant::now() + WAIT;
        loop {
            match listener.accept() {
                Ok((tcp, _)) => {
                    tcp.set_nonblocking(false)?;
                    return Self::new(tcp);
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    ensure!(Instant::now() < until, "no connection was made in time");
                    sleep(Duration::from_millis(1));
                }
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn new(tcp: TcpStream) -> Result<Self> {
        tcp.set_read_timeout(Some(WAIT))?;
        tcp.set_nodelay(true)?;
        let none = (Framing::default(), 0);
        Ok(Self { tcp, input: Vec::new(), rx: none, tx: none, msn: [1; 4], dribbles: false })
    }

    /// Sets the negotiated framing.
    pub fn agree(&mut self, rx: Framing, tx: Framing) {
        (self.rx, self.tx) = ((rx, 0), (tx, 0));
    }

    /// Sends these bytes.
    ///
    /// # Errors
    /// When the stream is broken.
    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        let at_a_time = if self.dribbles { 1 } else { bytes.len().max(1) };
        for piece in bytes.chunks(at_a_time) {
            self.tcp.write_all(piece)?;
        }
        Ok(())
    }

    /// Sends every byte separately from now on.
    pub fn dribbles(&mut self) {
        self.dribbles = true;
    }

    /// Ends the peer's half of the stream.
    ///
    /// # Errors
    /// When the stream is broken.
    pub fn finish(&mut self) -> Result<()> {
        Ok(self.tcp.shutdown(Shutdown::Write)?)
    }

    /// Resets the stream.
    ///
    /// # Errors
    /// When the kernel does not allow it.
    pub fn reset(self) -> Result<()> {
        Ok(SockRef::from(&self.tcp).set_linger(Some(Duration::ZERO))?)
    }

    /// Reads available bytes. Restarts if this process was stopped and continued, which interrupts the call
    /// (signal(7), on sockets with a timeout).
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        loop {
            match self.tcp.read(into) {
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                got => return got,
            }
        }
    }

    fn more(&mut self) -> Result<()> {
        let mut bytes = [0; 8192];
        match self.read(&mut bytes).context("waiting for bytes")? {
            0 => bail!("the stream ended"),
            n => self.input.extend_from_slice(&bytes[..n]),
        }
        Ok(())
    }

    /// Receives a start-up frame.
    ///
    /// # Errors
    /// When something else arrives, or nothing.
    pub fn startup(&mut self) -> Result<Said> {
        while Startup::need(&self.input)? > self.input.len() {
            self.more()?;
        }
        let startup = Startup::parse(&self.input)?;
        let said = Said {
            kind: startup.kind,
            flags: Flags(startup.flags.0 & !Flags::ENHANCED.0),
            revision: startup.revision,
            enhanced: startup.enhanced,
            private_data: startup.private_data.to_vec(),
        };
        let len = startup.len();
        self.input.drain(..len);
        Ok(said)
    }

    /// Returns the ULPDU of the next frame. Checks its CRC and markers as negotiated.
    ///
    /// # Errors
    /// When it is invalid, or there is none in time.
    pub fn ulpdu(&mut self) -> Result<Vec<u8>> {
        let (framing, position) = self.rx;
        loop {
            if let Some(fpdu) = framing.parse(position, &self.input)? {
                let ulpdu = fpdu.pieces().collect::<Vec<_>>().concat();
                let len = fpdu.frame_len;
                self.input.drain(..len);
                self.rx.1 += len as u64;
                return Ok(ulpdu);
            }
            self.more()?;
        }
    }

    /// Returns the next segment.
    ///
    /// # Errors
    /// As [`Wire::ulpdu`].
    pub fn segment(&mut self) -> Result<(Header, Vec<u8>)> {
        let ulpdu = self.ulpdu()?;
        let header = Header::parse(&ulpdu)?;
        Ok((header, ulpdu[header.len()..].to_vec()))
    }

    /// Sends a frame with this ULPDU.
    ///
    /// # Errors
    /// When the stream is broken.
    pub fn send_ulpdu(&mut self, pieces: &[&[u8]]) -> Result<()> {
        let bytes = self.frame(pieces);
        self.tx.1 += bytes.len() as u64;
        self.send(&bytes)
    }

    /// Returns the frame that would be sent next.
    pub fn frame(&self, pieces: &[&[u8]]) -> Vec<u8> {
        let (framing, position) = self.tx;
        let len = pieces.iter().map(|piece| piece.len()).sum();
        let mut bytes = vec![0; framing.frame_len(position, len)];
        framing.emit(position, pieces, &mut bytes);
        bytes
    }

    /// Returns the next header of an untagged message.
    pub fn untagged(&mut self, opcode: Opcode) -> Header {
        let qn = opcode.queue().unwrap_or_default();
        let msn = &mut self.msn[usize::try_from(qn).unwrap_or_default() % 4];
        let untagged = Untagged { last: true, invalidate: Stag(0), qn, msn: *msn, mo: 0 };
        *msn += 1;
        Header::new(opcode, Model::Untagged(untagged))
    }

    /// Sends a segment.
    ///
    /// # Errors
    /// When the stream is broken.
    pub fn send_segment(&mut self, header: &Header, payload: &[u8]) -> Result<()> {
        self.send_ulpdu(&[&header.to_buf(), payload])
    }

    /// Sends [`message`], in segments that TCP may split anywhere.
    ///
    /// # Errors
    /// When the stream is broken.
    pub fn send_message(&mut self) -> Result<()> {
        let Header { opcode, model } = self.untagged(Opcode::Send);
        let Model::Untagged(untagged) = model else { bail!("a Send is untagged") };
        let message = message();
        let mut mo = 0;
        for payload in message.chunks(600) {
            let end = mo + u32::try_from(payload.len())?;
            let last = usize::try_from(end)? == message.len();
            let model = Model::Untagged(Untagged { last, mo, ..untagged });
            self.send_segment(&Header::new(opcode, model), payload)?;
            mo = end;
        }
        Ok(())
    }

    /// Receives [`message`], which is the `msn`-th Send.
    ///
    /// # Errors
    /// When something else arrives.
    pub fn receive_message(&mut self, msn: u32) -> Result<()> {
        let mut message = Vec::new();
        loop {
            let (header, payload) = self.segment()?;
            let Model::Untagged(untagged) = header.model else {
                bail!("received {header}, not a Send")
            };
            ensure!(header.opcode == Opcode::Send, "received {header}, not a Send");
            ensure!(
                (untagged.qn, untagged.msn) == (0, msn),
                "received {header}, not message {msn}"
            );
            ensure!(
                usize::try_from(untagged.mo)? == message.len(),
                "received {header} at another offset"
            );
            message.extend(payload);
            if untagged.last {
                ensure!(is_message(&message), "the received message differs");
                return Ok(());
            }
        }
    }

    /// Receives the first frame of peer-to-peer mode, and answers a Read.
    ///
    /// # Errors
    /// When something else arrives.
    pub fn take_rtr(&mut self, kind: Rtr) -> Result<()> {
        let (header, payload) = self.segment()?;
        let opcode = match kind {
            Rtr::Send => Opcode::Send,
            Rtr::Write => Opcode::Write,
            Rtr::Read => Opcode::ReadRequest,
        };
        ensure!(header.opcode == opcode && header.last(), "received {header}, not the {kind:?}");
        if kind != Rtr::Read {
            ensure!(payload.is_empty(), "the first frame carries {} bytes", payload.len());
            return Ok(());
        }
        let request = ReadRequest::parse(&payload)?;
        ensure!(request.len == 0, "the first frame reads {} bytes", request.len);
        let to = Tagged { last: true, stag: request.sink_stag, to: request.sink_to };
        self.send_segment(&Header::new(Opcode::ReadResponse, Model::Tagged(to)), &[])
    }

    /// Sends the first frame of peer-to-peer mode, and receives the response to a Read.
    ///
    /// # Errors
    /// When another response arrives.
    pub fn send_rtr(&mut self, kind: Rtr) -> Result<()> {
        let frame = match kind {
            Rtr::Send => rtr::send(self.tx.0),
            Rtr::Write => rtr::write(self.tx.0),
            Rtr::Read => rtr::read(self.tx.0),
        };
        self.tx.1 += frame.len() as u64;
        self.send(&frame)?;
        match kind {
            Rtr::Send => self.msn[0] += 1,
            Rtr::Read => {
                self.msn[1] += 1;
                let (header, payload) = self.segment()?;
                let right = header.opcode == Opcode::ReadResponse && payload.is_empty();
                ensure!(right, "received {header}, not the response to the Read");
            }
            Rtr::Write => {}
        }
        Ok(())
    }

    /// Returns the error of the other end's Terminate. Skips other frames before it.
    ///
    /// # Errors
    /// When the stream ends without a Terminate.
    pub fn fault(&mut self) -> Result<Fault> {
        loop {
            let (header, payload) = self.segment()?;
            if header.opcode == Opcode::Terminate {
                return Ok(Terminate::parse(&payload)?.fault);
            }
        }
    }

    /// Checks that the other end ends the stream, or resets it, without another byte.
    ///
    /// # Errors
    /// When it does not.
    pub fn ended(&mut self) -> Result<()> {
        ensure!(self.input.is_empty(), "received {} more bytes", self.input.len());
        let mut byte = [0];
        match self.read(&mut byte) {
            Ok(0) => Ok(()),
            Ok(_) => bail!("received one more byte: {:#04x}", byte[0]),
            Err(e) if e.kind() == ErrorKind::ConnectionReset => Ok(()),
            Err(e) => Err(e).context("the stream did not end in time"),
        }
    }
}
