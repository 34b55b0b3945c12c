//! Into a batch, and out of it into a socket, with the books kept.

use std::sync::Arc;

use rdmux_link::TxBatch;
use rdmux_link::wire::{Flushed, Frame, LinkError, TxFail, Wire};

use super::lend::Loans;
use super::path::{Endpoint, Route};
use crate::engine::device::Device;
use crate::objects::counters::{Counter, Counters};

/// Gathers a packet with others of the same queue pair, and sends those that were gathered before where they do not go
/// together. `gathered` is the socket that the batch is gathered for, `loans` what of it the queue pair has lent; none of
/// one whose packets nobody acknowledges.
pub(crate) fn gather(
    device: &Device,
    route: &Route,
    (batch, gathered): (&mut TxBatch, &mut Option<Arc<Endpoint>>),
    mut loans: Option<&mut Loans>,
    frame: &Frame<'_>,
) -> Result<(), LinkError> {
    let port = &route.port;
    if gathered.as_ref().is_none_or(|e| !Arc::ptr_eq(e, port)) {
        if let Some(before) = gathered.take() {
            flush(device, &before, batch, loans.as_deref_mut());
        }
        *gathered = Some(port.clone());
    }
    loop {
        match port.udp.send(batch, &route.to, frame) {
            Err(LinkError::Full) => flush(device, port, batch, loans.as_deref_mut()),
            other => break other?,
        }
    }
    if let Some(loans) = loans {
        loans.note(frame.header, batch.len() == 1);
    }
    device.engine().capture().sent(|| port.udp.ends(&route.to), frame);
    Ok(())
}

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
        None => endpoint.udp.flush(batch),
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
