//! The protocol between a fabric and its clients.

use anyhow::Result;
use rdmux_fabric::proto::mad::{
    Came, FIRST, FRAGMENT, HEADER, Reassembly, decode, decode_first, encode, messages as parts,
};
use rdmux_fabric::proto::{
    AdminRequest, AttachmentRequest, Described, End, FileReply, FileRequest, Greeting, PortUpdate,
    Snapshot, Status,
};
use rdmux_host::proto::socket;
use rdmux_runtime::Shares;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Checks that a parsed message of either side, or a datagram, is encoded identically.
pub fn fabric_protocol(data: &[u8]) {
    let _ = Greeting::decode(data);
    round_trip::<Greeting>(data);
    round_trip::<FileRequest>(data);
    round_trip::<FileReply>(data);
    round_trip::<AttachmentRequest>(data);
    round_trip::<Described>(data);
    round_trip::<PortUpdate>(data);
    round_trip::<AdminRequest>(data);
    round_trip::<Status>(data);
    round_trip::<Snapshot>(data);
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = text.parse::<End>();
    }
    datagram(data);
    reassembly(data);
}

fn round_trip<T: Serialize + DeserializeOwned>(data: &[u8]) {
    let Ok(value) = socket::decode::<T>(data) else { return };
    let bytes = postcard::to_stdvec(&value).expect("what was read can be written");
    let again: T = socket::decode(&bytes).expect("what was written can be read");
    assert_eq!(postcard::to_stdvec(&again).expect("as before"), bytes);
}

fn datagram(data: &[u8]) {
    let Ok(mad) = decode(data) else { return };
    let mut record = Vec::new();
    encode(&mad, &mut record);
    assert_eq!(decode(&record), Ok(mad));
}

/// Reassembles messages, whose lengths are in the two bytes before each.
fn reassembly(mut data: &[u8]) {
    // With room for the shorter messages only.
    let mut reassembly = Reassembly::new(Shares::of(0, 4 * FRAGMENT).none(1));
    while let Some((length, rest)) = data.split_first_chunk::<2>() {
        let length = usize::from(u16::from_le_bytes(*length)).min(rest.len());
        let (message, rest) = rest.split_at(length);
        data = rest;
        let with = |came: Came<'_>| match came {
            Came::Whole(record) => assert!(record.len() >= HEADER),
            Came::Refused(first) => assert!(first.len() == FIRST && decode_first(first).is_ok()),
        };
        if reassembly.take(message, with).is_err() {
            return;
        }
    }
}

/// Returns each variant of a message, which begins with its number, and records, one of them in several messages.
///
/// # Errors
/// Never.
pub fn messages() -> Result<Vec<Vec<u8>>> {
    let mut all = super::host::messages()?;
    for length in [HEADER, HEADER + 36, HEADER + 256, FRAGMENT + 9] {
        let mut record = vec![0; length];
        record[16..20].copy_from_slice(&u32::try_from(length)?.to_le_bytes());
        all.push(record.clone());
        let framed = parts(&record).flat_map(|part| {
            let length = u16::try_from(part.len()).unwrap_or(u16::MAX).to_le_bytes();
            length.into_iter().chain(part.iter().copied()).collect::<Vec<_>>()
        });
        all.push(framed.collect());
    }
    Ok(all)
}
