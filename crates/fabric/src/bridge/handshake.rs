//! A handshake in which both sides prove that they know the same secret, without revealing it.
//!
//! ```text
//! listening side                                      connecting side
//!   magic, version, nonce A (32 bytes) ------------------>
//!   <--------- nonce B, HMAC-SHA256(secret, "client" A B)
//!   HMAC-SHA256(secret, "server" A B) ------------------->
//! ```

use std::io::{self, ErrorKind, Read, Write};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The first bytes that the listening side sends.
const MAGIC: [u8; 8] = *b"rdmux-f\x02";
const NONCE: usize = 32;
const TAG: usize = 32;

/// Does the handshake on the listening side. The stream must end at a deadline.
///
/// # Errors
/// `PermissionDenied` when the other side does not know the secret; those of the stream.
pub(super) fn accept(stream: &mut (impl Read + Write), secret: &[u8]) -> io::Result<()> {
    let ours = nonce()?;
    stream.write_all(&[&MAGIC[..], &ours].concat())?;
    let (mut theirs, mut tag) = ([0; NONCE], [0; TAG]);
    stream.read_exact(&mut theirs)?;
    stream.read_exact(&mut tag)?;
    verify(secret, b"client", &ours, &theirs, &tag)?;
    stream.write_all(&mac(secret, b"server", &ours, &theirs)?.finalize().into_bytes())
}

/// Does the handshake on the connecting side. The stream must end at a deadline.
///
/// # Errors
/// `PermissionDenied` when the other side does not know the secret, `InvalidData` when it is not a fabric, or of
/// another version; those of the stream.
pub(super) fn connect(stream: &mut (impl Read + Write), secret: &[u8]) -> io::Result<()> {
    let (mut magic, mut theirs, mut tag) = ([0; MAGIC.len()], [0; NONCE], [0; TAG]);
    stream.read_exact(&mut magic)?;
    if magic != MAGIC {
        return Err(io::Error::new(
            ErrorKind::InvalidData,
            "the peer is not a fabric of this version",
        ));
    }
    stream.read_exact(&mut theirs)?;
    let ours = nonce()?;
    stream.write_all(&ours)?;
    stream.write_all(&mac(secret, b"client", &theirs, &ours)?.finalize().into_bytes())?;
    stream.read_exact(&mut tag).map_err(|e| match e.kind() {
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset => denied(),
        _ => e,
    })?;
    verify(secret, b"server", &theirs, &ours, &tag)
}

fn mac(secret: &[u8], who: &[u8], a: &[u8], b: &[u8]) -> io::Result<Hmac<Sha256>> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).map_err(io::Error::other)?;
    for part in [who, a, b] {
        mac.update(part);
    }
    Ok(mac)
}

/// Verifies a tag in constant time.
fn verify(secret: &[u8], who: &[u8], a: &[u8], b: &[u8], tag: &[u8]) -> io::Result<()> {
    mac(secret, who, a, b)?.verify_slice(tag).map_err(|_| denied())
}

fn denied() -> io::Error {
    io::Error::new(ErrorKind::PermissionDenied, "the secrets of the two sides differ")
}

fn nonce() -> io::Result<[u8; NONCE]> {
    let mut nonce = [0; NONCE];
    getrandom::fill(&mut nonce).map_err(io::Error::other)?;
    Ok(nonce)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::*;

    fn shake(one: &'static [u8], other: &'static [u8]) -> [Result<(), ErrorKind>; 2] {
        let (mut a, mut b) = UnixStream::pair().unwrap();
        // The stream is closed with the thread, as after a failure.
        let listening = thread::spawn(move || accept(&mut a, one).map_err(|e| e.kind()));
        let connecting = connect(&mut b, other).map_err(|e| e.kind());
        [listening.join().unwrap(), connecting]
    }

    #[test]
    fn bridge_handshake_with_a_wrong_secret_is_permission_denied_at_both_ends() {
        assert_eq!(shake(b"0123456789abcdef", b"0123456789abcdef"), [Ok(()), Ok(())]);
        let denied = Err(ErrorKind::PermissionDenied);
        assert_eq!(shake(b"0123456789abcdef", b"0123456789abcdeF"), [denied, denied]);
    }

    #[test]
    fn bridge_listener_that_reflects_the_clients_tag_is_permission_denied() {
        const SECRET: &[u8] = b"0123456789abcdef";
        let (mut a, mut b) = UnixStream::pair().unwrap();
        let listening = thread::spawn(move || {
            a.write_all(&[&MAGIC[..], &[7; NONCE]].concat())?;
            let mut said = [0; NONCE + TAG];
            a.read_exact(&mut said)?;
            // Accepts any client. The only tag of this exchange that it has seen is the client's own.
            a.write_all(&said[NONCE..])
        });
        let connecting = connect(&mut b, SECRET).map_err(|e| e.kind());
        assert_eq!(connecting, Err(ErrorKind::PermissionDenied));
        listening.join().unwrap().unwrap();
    }

    #[test]
    fn bridge_handshake_with_a_foreign_service_is_invalid_data() {
        let (mut a, mut b) = UnixStream::pair().unwrap();
        a.write_all(&[b'S'; 64]).unwrap();
        assert_eq!(connect(&mut b, b"secret").unwrap_err().kind(), ErrorKind::InvalidData);
    }
}
