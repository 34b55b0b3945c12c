//! Out of a batch and into a socket, with the books kept.

use std::sync::Arc;

use rdmux_link::TxBatch;
use rdmux_link::udp::{Flushed, TxFail};

use super::lend::Loans;
use super::path::Endpoint;
use crate::engine::device::Device;
use crate::objects::counters::{Counter, Counters};

/// Sends a batch, by lending its memory if the queue pair may. What the socket does not take is forgotten: to the transport
/// it is lost.
pub(crate) fn flush(
    device: &Device,
    endpoint: &Arc<Endpoint>,
    batch: &mut TxBatch,
    loans: Option<&mut Loans>,
) {
    if batch.is_empty() {
        return;
    }
    let counters = Counters(device.counters());
    counters.add(Counter::TxCalls, 1);
    let lender = device.engine().lender();
    let lent = loans.and_then(|loans| Some((loans.borrow(lender, endpoint, batch)?, loans)));
    let flushed = match lent {
        None => batch.flush(&endpoint.udp),
        Some((mut loan, loans)) => {
            let (lent, flushed) = batch.flush_lent(&endpoint.udp, &mut loan);
            if lent {
                loans.lent(loan);
            } else {
                loan.give_back();
            }
            flushed
        }
    };
    let sent = match flushed {
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
