//! The protocol between a process and its service.

use anyhow::Result;
use rdmux_host::proto::socket::decode;
use rdmux_host::proto::{HubReply, HubRequest, Notify, Request, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Checks that a parsed message of either side is encoded identically.
pub fn host_protocol(data: &[u8]) {
    round_trip::<Request>(data);
    round_trip::<Response>(data);
    round_trip::<Notify>(data);
    round_trip::<HubRequest>(data);
    round_trip::<HubReply>(data);
    round_trip::<rdmux_cm::Event>(data);
}

fn round_trip<T: Serialize + DeserializeOwned>(data: &[u8]) {
    let Ok(value) = decode::<T>(data) else { return };
    let bytes = postcard::to_stdvec(&value).expect("what was read can be written");
    let again: T = decode(&bytes).expect("what was written can be read");
    assert_eq!(postcard::to_stdvec(&again).expect("as before"), bytes);
}

/// Returns each variant of a message, which begins with its number. Short bodies reach many of them.
///
/// # Errors
/// Never.
pub fn messages() -> Result<Vec<Vec<u8>>> {
    let mut all = Vec::new();
    for variant in 0..40 {
        for len in [0, 1, 2, 4, 8, 16, 40] {
            for fill in [0, 1, 4] {
                let mut message = vec![variant];
                message.resize(1 + len, fill);
                all.push(message);
            }
        }
    }
    Ok(all)
}
