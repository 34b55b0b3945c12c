//! Events of ids and groups that are gone.

use rdmux_cm::{EventKind, IdHandle};

use super::channel::Channel;
use super::event::Delivered;
use super::id::Id;
use super::process::Process;

/// An id or a group of it has gone: takes away what its channel has of it.
pub(super) fn forget_events(id: &Id) {
    // SAFETY: a channel outlives its ids (rdma_destroy_event_channel(3)).
    if let Ok(channel) = unsafe { Channel::get(id.channel()) } {
        note_stale(channel);
    }
}

/// A channel may have events of ids or groups that are gone: takes them away.
pub(super) fn note_stale(channel: &Channel) {
    // Before it looks: who takes the event that hides them looks then.
    channel.note_loss();
    drop_stale(channel);
}

/// Takes away what the channel has of ids and groups that are gone, as far as nothing else comes first, so that its descriptor is readable
/// only if there is an event for the program.
pub(super) fn drop_stale(channel: &Channel) {
    let Ok(source) = channel.source() else { return };
    let process = channel.process();
    let losses = channel.losses();
    let mut is_empty = true;
    let mut take = || {
        source.try_get_event_if(|event| {
            is_empty = is_stale(process, event);
            is_empty
        })
    };
    while let Ok(Some(event)) = take() {
        if event.kind == EventKind::ConnectRequest {
            forget(process, event.id);
        }
    }
    // Otherwise there may be more behind it.
    if is_empty {
        channel.note_cleaned(losses);
    }
}

/// Whether an event is of an id or a group that is gone.
fn is_stale(process: &Process, event: &rdmux_cm::Event) -> bool {
    if event.kind == EventKind::ConnectRequest {
        return event.listen_id.is_none_or(|listener| !process.knows(listener));
    }
    let of_group = matches!(event.kind, EventKind::MulticastJoin | EventKind::MulticastError);
    match Delivered::by(process, event.id) {
        None => true,
        Some(mut delivered) => of_group && !delivered.concerns_group(event.context),
    }
}

/// Nobody will take the request: the peer is refused.
pub(super) fn forget(process: &Process, id: IdHandle) {
    if let Ok(client) = process.client() {
        let _ = client.destroy_id_soon(id);
    }
}
