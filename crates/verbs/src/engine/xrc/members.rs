//! The processes of the hub, by slot, as its engine uses them.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;
use rdmux_transport::env::AccessFault;
use rdmux_wire::Psn;

use super::member::Member;
use super::side::Outbox;
use crate::engine::device::{Device, QpTable};
use crate::engine::drive::Bound;
use crate::engine::qp::{Ends, QpCore};
use crate::objects::xrc::record::{Invalidated, Meta, Outcome, kind};

/// The processes; see the module.
#[derive(Debug, Default)]
pub(crate) struct Members(RwLock<HashMap<u16, Arc<Member>>>);

impl Members {
    pub(crate) fn add(&self, member: &Arc<Member>) {
        self.0.write().insert(member.slot, member.clone());
    }

    /// Removes a process. The atomics that it has not answered fail.
    pub(crate) fn remove(&self, device: &Arc<Device>, member: &Member) {
        self.0.write().remove(&member.slot);
        for core in device.qps().read().iter() {
            let Ends::Target(ends) = &core.ends else { continue };
            for psn in ends.abandoned(member.slot) {
                answer(device, core, psn, Err(AccessFault::Gone));
            }
        }
    }

    /// Handles a record of the process with this slot. Returns whether the record is valid from there.
    pub(crate) fn take(
        &self,
        device: &Arc<Device>,
        table: &QpTable,
        from: u16,
        kind: u8,
        meta: Meta,
    ) -> bool {
        match kind {
            kind::RESULT => {
                let (qpn, psn, result) = Outcome::parse(meta);
                let Some(core) = table.get(qpn) else { return true };
                let Ends::Target(ends) = &core.ends else { return false };
                let awaited = ends.answered(psn, from);
                if awaited {
                    answer(device, core, psn, result);
                }
                // After a RESET there may be answers that no request waits for.
                true
            }
            kind::INVALIDATE => {
                let member = self.0.read().get(&from).cloned();
                let (rkey, serial) = Invalidated::parse(meta);
                member.inspect(|m| m.close_region(rkey, serial)).is_some()
            }
            _ => false,
        }
    }

    /// Returns whether any record waits for room.
    pub(crate) fn is_waiting(&self) -> bool {
        let members = self.0.read();
        members.values().any(|member| member.outbox().is_some_and(Outbox::is_waiting))
    }

    /// Sends the records that wait for room.
    pub(crate) fn flush(&self, device: &Device) {
        for member in self.0.read().values() {
            if let Some(outbox) = member.outbox().filter(|outbox| outbox.is_waiting()) {
                outbox.flush(device);
            }
        }
    }
}

/// Passes an atomic's answer to its target.
fn answer(device: &Arc<Device>, core: &Arc<QpCore>, psn: u32, result: Result<u64, AccessFault>) {
    let mut bound = Bound::lock(device, core);
    let now = device.now();
    bound.run(|machine, env| machine.atomic_done(now, Psn::new(psn), result, env));
    bound.transmit_at(now);
}
