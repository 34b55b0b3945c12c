//! Stale events: those of destroyed ids and of groups that were left.

use rdmux_cm::{EventKind, IdHandle};

use super::channel::Channel;
use super::event::Delivered;
use super::id::Id;
use super::process::Process;

/// Discards the stale events in an id's channel, after the id or a group of it is gone.
pub(super) fn forget_events(id: &Id) {
    // SAFETY: a channel outlives its ids (rdma_destroy_event_channel(3)).
    if let Ok(channel) = unsafe { Channel::get(id.channel()) } {
        note_stale(channel);
    }
}

/// Discards the stale events that a channel may have.
pub(super) fn note_stale(channel: &Channel) {
    // The loss is recorded first, so that a thread that takes the event in front of stale ones looks for them.
    channel.note_loss();
    drop_stale(channel);
}

/// Discards a channel's stale events at the head of its queue, so that its descriptor is readable
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
    // Otherwise there may be more behind the head.
    if is_empty {
        channel.note_cleaned(losses);
    }
}

/// Returns whether an event is of an id or a group that is gone.
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

/// Refuses a request that no program will take.
pub(super) fn forget(process: &Process, id: IdHandle) {
    if let Ok(client) = process.client() {
        let _ = client.destroy_id_soon(id);
    }
}
