//! Out of a batch and into a socket, with the books kept.

use std::sync::Arc;

use rdmux_link::TxBatch;
use rdmux_link::udp::{Flushed, TxFail};

use super::path::Endpoint;
use crate::counters::{Counter, Counters};
use crate::device::Device;

/// Sends a batch. What the socket does not take is forgotten: to the transport it is lost.
pub(crate) fn flush(device: &Device, endpoint: &Arc<Endpoint>, batch: &mut TxBatch) {
    if batch.is_empty() {
        return;
    }
    let counters = Counters(device.counters());
    counters.add(Counter::TxCalls, 1);
    let sent = match batch.flush(&endpoint.udp) {
        Ok(sent) => sent,
        Err(fail) => {
            let sent = lost(&counters, fail);
            batch.clear();
            sent
        }
    };
    let Flushed { packets, bytes } = sent;
    counters.add(Counter::TxPackets, packets as u64);
    counters.add(Counter::TxBytes, bytes as u64);
}

/// Counts what did not leave and returns what did.
fn lost(counters: &Counters<'_>, fail: TxFail) -> Flushed {
    tracing::debug!(%fail, "packets lost");
    match fail {
        TxFail::Busy { sent, kept } => {
            counters.add(Counter::TxBusy, kept as u64);
            sent
        }
        TxFail::TooLarge { sent, lost, .. } | TxFail::Io { sent, lost, .. } => {
            counters.add(Counter::TxErrors, lost as u64);
            sent
        }
    }
}
