//! Relays messages between a Unix socket and a TCP connection, in both directions.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rdmux_runtime::socket::{self, MAX_MESSAGE};
use rustix::net::sockopt;

/// Time without an acknowledgement after which the other machine counts as gone.
const GONE: Duration = Duration::from_secs(30);
/// The idle time before a keep-alive probe.
const QUIET: Duration = Duration::from_secs(10);
/// The maximum time of a handshake, with the messages that belong to it.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(5);

/// A connection during its handshake. All its reads and writes together end at the deadline, however little the other side sends at a time.
#[derive(Debug)]
pub(super) struct Timed<'t> {
    tcp: &'t TcpStream,
    until: Instant,
}

impl<'t> Timed<'t> {
    /// Begins a handshake.
    pub(super) fn new(tcp: &'t TcpStream) -> Self {
        Self { tcp, until: Instant::now() + HANDSHAKE }
    }

    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.tcp.set_read_timeout(self.left()?)?;
        self.tcp.read(buf)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.tcp.set_write_timeout(self.left()?)?;
        self.tcp.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.tcp.flush()
    }
}

/// Sets up a connection whose other machine may vanish. TCP detects that soon while nothing is in flight.
pub(super) fn prepare(tcp: &TcpStream) -> io::Result<()> {
    tcp.set_nodelay(true)?;
    tcp.set_read_timeout(Some(HANDSHAKE))?;
    tcp.set_write_timeout(Some(HANDSHAKE))?;
    sockopt::set_socket_keepalive(tcp, true)?;
    sockopt::set_tcp_keepidle(tcp, QUIET)?;
    sockopt::set_tcp_keepintvl(tcp, Duration::from_secs(5))?;
    sockopt::set_tcp_keepcnt(tcp, 4)?;
    Ok(())
}

/// Makes TCP detect also with data in flight that the other machine has vanished. Only for a connection that is always read: Linux ends it
/// as well if the other side does not read, although that side acknowledges (tcp(7), `TCP_USER_TIMEOUT`).
pub(super) fn detect_loss_in_flight(tcp: &TcpStream) -> io::Result<()> {
    let gone = u32::try_from(GONE.as_millis()).unwrap_or(u32::MAX);
    Ok(sockopt::set_tcp_user_timeout(tcp, gone)?)
}

/// Relays messages until either side ends, and then ends the other: `outward` gets those of the Unix socket, with their descriptors, and
/// `inward` those of the network. When the client is gone, `outward` is called last with an empty message.
///
/// # Errors
/// When no thread can be started.
pub(super) fn run(
    unix: OwnedFd,
    tcp: impl Into<Arc<TcpStream>>,
    outward: impl FnMut(&TcpStream, &[u8], Vec<OwnedFd>) -> io::Result<()> + Send + 'static,
    inward: impl FnMut(&OwnedFd, &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let tcp = tcp.into();
    tcp.set_read_timeout(None)?;
    tcp.set_write_timeout(None)?;
    for direction in [sockopt::Timeout::Recv, sockopt::Timeout::Send] {
        sockopt::set_socket_timeout(&unix, direction, None)?;
    }
    let ends = Arc::new((unix, tcp));
    let other = Arc::clone(&ends);
    let thread = thread::Builder::new().name("rdmux-bridge".to_owned());
    let out = thread.spawn(move || {
        let (unix, tcp) = &*other;
        log(to_tcp(unix, tcp, outward));
        end(unix, tcp);
    })?;
    let (unix, tcp) = &*ends;
    log(from_tcp(unix, tcp, inward));
    end(unix, tcp);
    drop(out.join());
    Ok(())
}

/// Passes a message to a client unchanged.
pub(super) fn hand_over(unix: &OwnedFd, message: &[u8]) -> io::Result<()> {
    socket::send_bytes(unix.as_fd(), message, &[]).map_err(io::Error::other)
}

fn log(result: io::Result<()>) {
    if let Err(error) = result {
        tracing::debug!(%error, "a connection of the bridge failed");
    }
}

fn end(unix: &OwnedFd, tcp: &TcpStream) {
    // Either may have ended by itself.
    let _ = tcp.shutdown(Shutdown::Both);
    let _ = rustix::net::shutdown(unix, rustix::net::Shutdown::Both);
}

fn to_tcp(
    unix: &OwnedFd,
    tcp: &TcpStream,
    mut outward: impl FnMut(&TcpStream, &[u8], Vec<OwnedFd>) -> io::Result<()>,
) -> io::Result<()> {
    let (mut buf, mut fds) = (vec![0; MAX_MESSAGE], Vec::new());
    loop {
        match socket::recv_bytes(unix.as_fd(), &mut buf, &mut fds) {
            Ok(message) => outward(tcp, message, std::mem::take(&mut fds))?,
            Err(socket::MessageError::Closed) => return outward(tcp, &[], Vec::new()),
            Err(e) => return Err(io::Error::other(e)),
        }
    }
}

fn from_tcp(
    unix: &OwnedFd,
    tcp: &TcpStream,
    mut inward: impl FnMut(&OwnedFd, &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut buf = buffer();
    while let Some(message) = read_frame(&mut &*tcp, &mut buf)? {
        inward(unix, message)?;
    }
    Ok(())
}

/// Makes a buffer for a message with its number.
pub(super) fn buffer() -> Vec<u8> {
    vec![0; MAX_MESSAGE + NUMBER]
}

/// Length of a message's number in bytes.
const NUMBER: usize = 8;

/// Writes a message of the fabric after its length and the number of the last route table update that was sent before it.
pub(super) fn write_numbered(
    to: &mut impl Write,
    sequence: u64,
    message: &[u8],
    frame: &mut Vec<u8>,
) -> io::Result<()> {
    if message.is_empty() {
        return Ok(());
    }
    let length = u32::try_from(NUMBER + message.len()).map_err(io::Error::other)?;
    frame.clear();
    frame.extend_from_slice(&length.to_be_bytes());
    frame.extend_from_slice(&sequence.to_be_bytes());
    frame.extend_from_slice(message);
    to.write_all(frame)
}

/// Splits such a message from its number.
pub(super) fn numbered(frame: &[u8]) -> io::Result<(u64, &[u8])> {
    match frame.split_first_chunk::<NUMBER>() {
        Some((number, message)) if !message.is_empty() => {
            Ok((u64::from_be_bytes(*number), message))
        }
        _ => Err(io::Error::new(ErrorKind::InvalidData, "a message without a sequence number")),
    }
}

/// Writes a message after its length, unless it is empty. `frame` is a scratch buffer.
pub(super) fn write_frame(
    to: &mut impl Write,
    message: &[u8],
    frame: &mut Vec<u8>,
) -> io::Result<()> {
    if message.is_empty() {
        return Ok(());
    }
    let length = u32::try_from(message.len()).map_err(io::Error::other)?;
    frame.clear();
    frame.extend_from_slice(&length.to_be_bytes());
    frame.extend_from_slice(message);
    to.write_all(frame)
}

/// Reads a message. None at the end of the stream.
pub(super) fn read_frame<'b>(
    from: &mut impl Read,
    buf: &'b mut [u8],
) -> io::Result<Option<&'b [u8]>> {
    let mut length = [0; 4];
    match from.read_exact(&mut length) {
        Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let length = u32::from_be_bytes(length) as usize;
    let message = buf.get_mut(..length).filter(|message| !message.is_empty());
    let message = message.ok_or_else(|| {
        io::Error::new(
            ErrorKind::InvalidData,
            format!("a message of {length} bytes, which is empty or too long"),
        )
    })?;
    from.read_exact(message)?;
    Ok(Some(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bridge_tcp_keepalive_and_user_timeout_detect_a_dead_peer() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        prepare(&tcp).unwrap();
        assert!(tcp.nodelay().unwrap() && sockopt::socket_keepalive(&tcp).unwrap());
        // While idle, and with data in flight only where it is requested.
        let probes = sockopt::tcp_keepcnt(&tcp).unwrap();
        let silent = sockopt::tcp_keepintvl(&tcp).unwrap() * probes;
        assert!(sockopt::tcp_keepidle(&tcp).unwrap() + silent <= GONE);
        assert_eq!(sockopt::tcp_user_timeout(&tcp).unwrap(), 0);
        detect_loss_in_flight(&tcp).unwrap();
        assert_eq!(u128::from(sockopt::tcp_user_timeout(&tcp).unwrap()), GONE.as_millis());
        for timeout in [tcp.read_timeout().unwrap(), tcp.write_timeout().unwrap()] {
            assert_eq!(timeout, Some(HANDSHAKE), "until both have shown the secret");
        }
    }

    #[test]
    fn bridge_handshake_has_one_deadline_for_all_its_bytes() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut theirs, _) = listener.accept().unwrap();
        theirs.write_all(&[7; 8]).unwrap();
        let mut timed = Timed::new(&ours);
        timed.until += Duration::from_secs(3600);
        timed.read_exact(&mut [0]).unwrap();
        let left = ours.read_timeout().unwrap();
        timed.until -= Duration::from_secs(1800);
        timed.read_exact(&mut [0]).unwrap();
        assert!(ours.read_timeout().unwrap() < left, "a byte does not extend it");
        timed.until = Instant::now();
        let ends =
            [timed.read(&mut [0]), timed.write(&[0])].map(|result| result.unwrap_err().kind());
        assert_eq!(ends, [ErrorKind::TimedOut; 2]);
    }

    #[test]
    fn numbered_bridge_messages_round_trip_and_short_ones_are_invalid() {
        let (mut stream, mut buf) = (Vec::new(), buffer());
        write_numbered(&mut stream, u64::MAX - 1, &[9; MAX_MESSAGE], &mut Vec::new()).unwrap();
        let frame = read_frame(&mut &stream[..], &mut buf).unwrap().unwrap();
        let (number, message) = numbered(frame).unwrap();
        assert_eq!((number, message.len(), message[0]), (u64::MAX - 1, MAX_MESSAGE, 9));
        for bad in [&[0; 7][..], &[0; 8]] {
            assert_eq!(numbered(bad).unwrap_err().kind(), ErrorKind::InvalidData);
        }
    }

    #[test]
    fn bridge_frames_round_trip_and_bad_lengths_are_invalid_data() {
        let mut stream = Vec::new();
        for message in [&b"one"[..], &[7; 300]] {
            write_frame(&mut stream, message, &mut Vec::new()).unwrap();
        }
        let (mut from, mut buf) = (&stream[..], [0; 300]);
        assert_eq!(read_frame(&mut from, &mut buf).unwrap(), Some(&b"one"[..]));
        assert_eq!(read_frame(&mut from, &mut buf).unwrap(), Some(&[7; 300][..]));
        assert_eq!(read_frame(&mut from, &mut buf).unwrap(), None);
        for bad in [[0, 0, 0, 0], [0xff; 4], [0, 0, 1, 45]] {
            let e = read_frame(&mut &bad[..], &mut buf).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::InvalidData, "{bad:?}");
        }
        assert!(read_frame(&mut &[0, 0, 0, 9, 1][..], &mut buf).is_err(), "cut");
    }
}
