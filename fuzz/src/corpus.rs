//! Seeds: the frames of the captures in `tests/captures`, whole or in parts.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rdmux_wire::ether::{self, Ether};
use rdmux_wire::ip::{Ipv4, Ipv6, TCP};
use rdmux_wire::iwarp::fpdu::Framing;
use rdmux_wire::tcp::Tcp;

/// Frames taken from one capture file: its frames are alike, so this many are enough.
const PER_FILE: usize = 40;

/// Returns whole Ethernet frames.
///
/// # Errors
/// When the captures cannot be read.
pub fn frames() -> Result<Vec<Vec<u8>>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/captures");
    let mut files = Vec::new();
    for entry in fs::read_dir(&dir).with_context(|| dir.display().to_string())? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "pcap") {
            files.push(path);
        }
    }
    files.sort();
    let mut all = Vec::new();
    for file in &files {
        let bytes = fs::read(file).with_context(|| file.display().to_string())?;
        all.extend(records(&bytes).take(PER_FILE).map(<[u8]>::to_vec));
    }
    anyhow::ensure!(!all.is_empty(), "no frames in {}", dir.display());
    Ok(all)
}

/// Returns the bytes of whole small capture files.
///
/// # Errors
/// When the captures cannot be read.
pub fn files() -> Result<Vec<Vec<u8>>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/captures");
    let mut all = Vec::new();
    for entry in fs::read_dir(&dir).with_context(|| dir.display().to_string())? {
        let bytes = fs::read(entry?.path())?;
        if bytes.len() < 8192 {
            all.push(bytes);
        }
    }
    all.sort();
    Ok(all)
}

/// Returns RoCEv2 packets from the BTH through payload and pad, without ICRC.
///
/// # Errors
/// When the captures cannot be read.
pub fn packets() -> Result<Vec<Vec<u8>>> {
    Ok(frames()?.iter().filter_map(|f| roce(f)).map(<[u8]>::to_vec).collect())
}

/// Returns management datagrams: the payload of SEND_ONLY packets to QP1.
///
/// # Errors
/// When the captures cannot be read.
pub fn mads() -> Result<Vec<Vec<u8>>> {
    const HEADERS: usize = 12 + 8; // BTH, DETH
    let mads = packets()?
        .into_iter()
        .filter(|p| p.len() == HEADERS + 256 && p[0] == 0x64 && p[5..8] == [0, 0, 1])
        .map(|p| p[HEADERS..].to_vec());
    Ok(mads.collect())
}

/// Returns MPA's start-up frames.
///
/// # Errors
/// When the captures cannot be read.
pub fn startups() -> Result<Vec<Vec<u8>>> {
    Ok(tcp_payloads()?.into_iter().filter(|payload| is_startup(payload)).collect())
}

/// Returns frames of iWARP streams, encoded with and without CRCs and markers. Two bytes before each frame state its options.
///
/// # Errors
/// When the captures cannot be read.
pub fn fpdus() -> Result<Vec<Vec<u8>>> {
    let mut all = Vec::new();
    for segment in segments()? {
        for flags in 0..4 {
            let framing = Framing { crc: flags & 1 != 0, markers: flags & 2 != 0 };
            let mut bytes = vec![0; framing.frame_len(0, segment.len())];
            framing.emit(0, &[&segment], &mut bytes);
            all.push([&[flags, 0][..], &bytes].concat());
        }
    }
    Ok(all)
}

/// Returns DDP segments.
///
/// # Errors
/// When the captures cannot be read.
pub fn segments() -> Result<Vec<Vec<u8>>> {
    let plain = Framing::default();
    let segment = |payload: Vec<u8>| {
        let fpdu = plain.parse(0, &payload).ok()??;
        fpdu.contiguous().map(<[u8]>::to_vec)
    };
    let frames = tcp_payloads()?.into_iter().filter(|payload| !is_startup(payload));
    Ok(frames.filter_map(segment).collect())
}

fn is_startup(payload: &[u8]) -> bool {
    payload.starts_with(b"MPA ID Re")
}

/// Returns the nonempty payloads of TCP segments.
fn tcp_payloads() -> Result<Vec<Vec<u8>>> {
    let payload = |frame: &Vec<u8>| {
        let ether = Ether::parse(frame).ok()?;
        let bytes = frame.get(ether.header_len..)?;
        let ip = Ipv4::parse(bytes).ok()?;
        let bytes = bytes.get(ip.header_len.into()..ip.total_len.into())?;
        let tcp = (ip.protocol == TCP).then(|| Tcp::parse(bytes).ok())??;
        let payload = bytes.get(tcp.header_len.into()..)?;
        (!payload.is_empty()).then(|| payload.to_vec())
    };
    Ok(frames()?.iter().filter_map(payload).collect())
}

/// Returns random bytes, for targets that take their input as a script.
///
/// # Errors
/// Never.
pub fn noise() -> Result<Vec<Vec<u8>>> {
    let mut rng = ChaCha8Rng::seed_from_u64(0);
    let some = |_| (0..rng.random_range(64..2048)).map(|_| rng.random()).collect();
    Ok((0..64).map(some).collect())
}

/// Returns the records of a little-endian classic pcap file.
fn records(file: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = file.get(24..).unwrap_or_default();
    std::iter::from_fn(move || {
        let len = u32::from_le_bytes(*rest.get(8..)?.first_chunk()?);
        let end = 16 + usize::try_from(len).ok()?;
        let record = rest.get(16..end)?;
        rest = &rest[end..];
        Some(record)
    })
}

/// Returns the RoCEv2 packet in an Ethernet frame.
fn roce(frame: &[u8]) -> Option<&[u8]> {
    let ether = Ether::parse(frame).ok()?;
    let ip = frame.get(ether.header_len..)?;
    let udp = match ether.ethertype {
        ether::IPV4 => ip.get(usize::from(Ipv4::parse(ip).ok()?.header_len)..)?,
        ether::IPV6 => ip.get(Ipv6::LEN..)?,
        _ => return None,
    };
    let to_roce = udp.get(2..4)? == 4791_u16.to_be_bytes();
    let end = udp.len().checked_sub(4)?;
    to_roce.then(|| udp.get(8..end))?
}

#[cfg(test)]
mod tests {
    #[test]
    fn captures_have_packets_and_mads() {
        assert!(super::packets().expect("readable").len() > 100);
        assert!(super::mads().expect("readable").len() > 10);
    }
}
