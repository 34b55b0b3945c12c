//! Clients of an ACM service, rdmux's or Debian's, that use the protocol of ibacm over a Unix socket.

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rdmux_wire::acm::client::{Answer, ENTRY_LEN, Frame, Header, MAX_LEN, Query, Reply, Request};
use rustix::event::{PollFd, PollFlags, poll};

use super::name;

/// The size of an answer with one path, in bytes.
pub(in super::super) const REPLY: usize = Header::LEN + ENTRY_LEN;
/// The timeout of an answer. ibacm makes three attempts of two seconds each.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Returns the request for the path from one name to another.
pub(super) fn request(source: &str, dest: &str) -> Result<Vec<u8>> {
    let query =
        Query::Resolve { source: Some(name(source)?), dest: name(dest)?, cached_only: false };
    Ok(Request { tid: 1, query }.to_bytes().to_vec())
}

/// A connection with one request at a time.
pub(super) struct Socket {
    stream: UnixStream,
}

impl Socket {
    /// Connects to the service that listens at a path.
    pub(super) fn connect(path: &Path) -> Result<Self> {
        let stream = UnixStream::connect(path);
        let this =
            Self::of(stream.with_context(|| {
                format!("cannot connect to the ACM service at {}", path.display())
            })?);
        this.stream.set_read_timeout(Some(TIMEOUT))?;
        Ok(this)
    }

    pub(super) fn of(stream: UnixStream) -> Self {
        Self { stream }
    }

    /// Sends a request, waits, and checks the whole answer.
    ///
    /// # Errors
    /// When it is not a path.
    pub(super) fn ask(&mut self, request: &[u8]) -> Result<()> {
        self.stream.write_all(request)?;
        let (mut buf, mut got) = ([0; MAX_LEN], 0);
        let length = loop {
            if let Frame::Whole(length) = Frame::of_reply(&buf[..got])? {
                break length;
            }
            let more = self.stream.read(&mut buf[got..])?;
            ensure!(more > 0, "the ACM service closed the connection");
            got += more;
        };
        match Reply::parse(&buf[..length])?.answer {
            Answer::Paths(_) => Ok(()),
            other => bail!("the ACM service answered {other:?}, not a path"),
        }
    }

    /// Repeats a request. Returns the seconds per round trip. Checks only the length of answers: failures are shorter.
    pub(super) fn ping(&mut self, request: &[u8], count: u32) -> Result<f64> {
        let mut buf = [0; REPLY];
        let start = Instant::now();
        for _ in 0..count {
            self.stream.write_all(request)?;
            self.stream.read_exact(&mut buf)?;
        }
        Ok(start.elapsed().as_secs_f64() / f64::from(count))
    }
}

/// Runs this many clients in one thread, each of which sends a request as soon as it has its answer. Returns answers
/// per second.
pub(super) fn together(path: &Path, request: &[u8], clients: usize, count: u32) -> Result<f64> {
    let connect = |_| Ok(Socket::connect(path)?.stream);
    let mut streams: Vec<UnixStream> = (0..clients).map(connect).collect::<Result<_>>()?;
    let start = Instant::now();
    let (mut asked, mut answered) = (0, 0);
    for stream in &mut streams {
        stream.set_nonblocking(true)?;
        stream.write_all(request)?;
        asked += 1;
    }
    while answered < count {
        for n in ready(&streams)? {
            let stream = &mut streams[n];
            let mut buf = [0; REPLY];
            match stream.read(&mut buf) {
                Ok(REPLY) => answered += 1,
                Ok(length) => bail!("an answer has {length} bytes, not {REPLY}, and is no path"),
                Err(e) if e.kind() == ErrorKind::WouldBlock => continue,
                Err(e) => return Err(e.into()),
            }
            if asked < count {
                stream.write_all(request)?;
                asked += 1;
            }
        }
    }
    Ok(f64::from(count) / start.elapsed().as_secs_f64())
}

/// Returns the streams that are readable. Waits until one is.
fn ready(streams: &[UnixStream]) -> Result<Vec<usize>> {
    let mut fds: Vec<_> = streams.iter().map(|s| PollFd::new(s, PollFlags::IN)).collect();
    let timeout = rustix::event::Timespec { tv_sec: TIMEOUT.as_secs() as _, tv_nsec: 0 };
    let count = rustix::io::retry_on_intr(|| poll(&mut fds, Some(&timeout)))?;
    ensure!(count > 0, "the ACM service did not answer in time");
    let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
    Ok(fds.iter().enumerate().filter(|(_, fd)| is_ready(fd)).map(|(n, _)| n).collect())
}

/// Answers this many messages and does nothing else, in a process that is the reference for a service.
pub(in super::super) fn echo(path: &Path, request: usize, reply: usize, count: u32) -> Result<()> {
    ensure!(request <= MAX_LEN && reply <= MAX_LEN, "the messages are longer than ACM's longest");
    let mut stream = UnixStream::connect(path)?;
    let (mut heard, answer) = ([0; MAX_LEN], [0x5a; MAX_LEN]);
    for _ in 0..count {
        stream.read_exact(&mut heard[..request])?;
        stream.write_all(&answer[..reply])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;

    #[test]
    fn ping_takes_as_many_turns_as_the_echo() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("echo");
        let listener = UnixListener::bind(&path).unwrap();
        let request = request("a", "b").unwrap();
        assert_eq!(request.len(), Header::LEN + 2 * ENTRY_LEN);
        let length = request.len();
        let echo = thread::spawn(move || echo(&path, length, REPLY, 7));
        let time = Socket::of(listener.accept().unwrap().0).ping(&request, 7).unwrap();
        echo.join().unwrap().unwrap();
        assert!(time > 0.0);
    }

    /// Answers the messages of connecting clients with messages of this length.
    fn serve(listener: &UnixListener, clients: usize, reply: usize) {
        let request = request("a", "b").unwrap().len();
        for _ in 0..clients {
            let mut stream = listener.accept().unwrap().0;
            thread::spawn(move || {
                let mut buf = [0; MAX_LEN];
                while stream.read_exact(&mut buf[..request]).is_ok() {
                    // A client that has finished is gone.
                    let _ = stream.write_all(&[0; MAX_LEN][..reply]);
                }
            });
        }
    }

    fn load(reply: usize) -> Result<f64> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("service");
        let listener = UnixListener::bind(&path).unwrap();
        let service = thread::spawn(move || serve(&listener, 3, reply));
        let rate = together(&path, &request("a", "b").unwrap(), 3, 100);
        service.join().unwrap();
        rate
    }

    #[test]
    fn clients_count_answers_that_are_paths_and_no_others() {
        assert!(load(REPLY).unwrap() > 0.0);
        let e = load(Header::LEN).unwrap_err();
        assert_eq!(e.to_string(), "an answer has 16 bytes, not 88, and is no path");
    }
}
