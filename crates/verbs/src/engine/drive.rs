//! A locked queue pair with its environment: every call into a state machine is made through it.

use std::cell::RefCell;
use std::sync::Arc;
use std::thread::LocalKey;
use std::time::Duration;

use rdmux_link::guarded;
use rdmux_transport::attr::{AddressVector, AttrMask, QpAttr, QpState};
use rdmux_transport::error::ModifyError;
use rdmux_transport::{Time, TxState};
use rdmux_wire::{AckTimeout, Qpn};

use super::env::{Bounce, QpEnv};
use super::machine::Machine;
use super::wire::{Gathered, Path, direct, short};
use crate::engine::device::Device;
use crate::engine::qp::{Driven, Ends, QpCore};
use crate::engine::xrc::place::Stage;
use crate::objects::brief::{MutexGuard, YieldToWaiters};
use crate::objects::srq::SrqCore;

/// The buffers in which a thread gathers packets. A queue pair's packets are sent before its lock is released.
type Scratch = RefCell<(Gathered, Bounce, Stage)>;

thread_local! {
    static SCRATCH: Scratch = RefCell::default();
    /// Used instead at the end of a thread and of the process: `SCRATCH` is destroyed before all destructors and atexit(3)
    /// functions have run.
    static LATE: Scratch = RefCell::default();
}

/// Allocates the buffers of the calling thread, so that a later allocation cannot fail.
pub(crate) fn prepare_thread() {
    scratch();
}

/// Returns the buffers that still exist.
fn scratch() -> &'static LocalKey<Scratch> {
    if SCRATCH.try_with(|_| ()).is_ok() { &SCRATCH } else { &LATE }
}

/// The maximum number of packets that a queue pair may send before others get their turn.
pub(crate) const BUDGET: u32 = 256;

/// A locked queue pair.
pub(crate) struct Bound<'a> {
    device: &'a Arc<Device>,
    core: &'a Arc<QpCore>,
    driven: MutexGuard<'a, Driven>,
    /// Dropped after the guard: rounds and posts lock the queue pair again soon.
    _after: YieldToWaiters<'a, Driven>,
}

impl<'a> Bound<'a> {
    /// Locks the queue pair.
    pub(crate) fn lock(device: &'a Arc<Device>, core: &'a Arc<QpCore>) -> Self {
        Self { device, core, driven: core.state.lock(), _after: YieldToWaiters(&core.state) }
    }

    /// Returns whether another thread has waited for the queue pair for long.
    pub(crate) fn has_waiters(&self) -> bool {
        self.core.state.has_waiters()
    }

    /// Returns the machine, for calls that need no environment.
    pub(crate) fn machine(&mut self) -> &mut Machine {
        &mut self.driven.machine
    }

    pub(crate) fn device(&self) -> &'a Arc<Device> {
        self.device
    }
    pub(crate) fn qpn(&self) -> Qpn {
        self.core.qpn
    }

    /// Returns the queue pair's shared receive queue, if any.
    pub(crate) fn srq(&self) -> Option<&'a Arc<SrqCore>> {
        match &self.core.ends {
            Ends::Own(objects) => objects.srq.as_ref(),
            Ends::Target(_) => None,
        }
    }

    pub(crate) fn driven(&mut self) -> &mut Driven {
        &mut self.driven
    }

    /// Returns the address of the peer, if a capture runs.
    pub(crate) fn capture_av(&mut self) -> Option<AddressVector> {
        self.device.engine().detour().is_captured().then(|| self.machine().attr().av)
    }

    /// Calls the machine with its environment, then sends the packets that it gathered.
    pub(crate) fn run<R>(&mut self, f: impl FnOnce(&mut Machine, &mut QpEnv<'_>) -> R) -> R {
        if let (Ends::Own(objects), Some(_)) = (&self.core.ends, self.driven.path.neighbour()) {
            // Packets to a neighbour are not gathered.
            let mut bounce = Bounce::new();
            let Driven { machine, path, .. } = &mut *self.driven;
            let env = QpEnv::near(self.device, self.core, path, objects, &mut bounce);
            return run(machine, env, f);
        }
        scratch().with_borrow_mut(|(gathered, bounce, stage)| {
            let Driven { machine, path, .. } = &mut *self.driven;
            let env = QpEnv::new(self.device, self.core, path, gathered, bounce, stage);
            run(machine, env, f)
        })
    }

    /// Returns the time with the precision that this queue pair's timers need: reading the clock takes as long as sending a small
    /// message.
    pub(crate) fn now(&self) -> Time {
        if self.driven.coarse_clock { self.device.coarse_now() } else { self.device.now() }
    }

    /// Sends what may be sent, and schedules the rest.
    pub(crate) fn transmit(&mut self) {
        self.transmit_at(self.now());
    }

    /// Transmits like [`transmit`](Self::transmit), for a caller that has already read the clock.
    pub(crate) fn transmit_at(&mut self, now: Time) {
        guarded::keep(now.0);
        short::send(self.device, self.core, &mut self.driven, now);
        let state = if self.driven.machine.is_idle() {
            TxState::Idle
        } else {
            self.run(|machine, env| machine.poll_transmit(now, BUDGET, env))
        };
        self.schedule_after(state);
    }

    /// Changes attributes, and the path accordingly.
    pub(crate) fn modify(
        &mut self,
        attr: &QpAttr,
        mask: AttrMask,
        path: Option<Path>,
        alternate: Option<Box<Path>>,
    ) -> Result<(), ModifyError> {
        let now = self.device.now();
        direct::hide(self.device, self.core, &self.driven.path);
        let before = path.map(|new| std::mem::replace(&mut self.driven.path, new));
        let alternate_before = alternate.map(|new| self.core.set_alternate(Some(new)));
        let result = self.run(|machine, env| machine.modify(now, attr, mask, env));
        if result.is_err() {
            if let Some(before) = before {
                self.driven.path = before;
            }
            if let Some(before) = alternate_before {
                self.core.set_alternate(before);
            }
        }
        if result.is_ok() && self.driven.machine.state() == QpState::Reset {
            self.core.set_alternate(None);
            self.forget_stream();
        }
        self.driven.coarse_clock = self.may_use_coarse_clock();
        let Driven { machine, path, .. } = &mut *self.driven;
        path.follow(&machine.attr());
        if machine.is_open() {
            direct::show(self.device, self.core, path, &machine.attr());
        }
        result
    }

    /// Sends the ACK that is owed, if any.
    pub(crate) fn flush_ack(&mut self) {
        let now = self.device.now();
        self.run(|machine, env| machine.flush_ack(now, env));
    }

    /// Publishes the queue pair's row on the board again, if it has one.
    pub(crate) fn show_again(&mut self) {
        let Driven { machine, path, .. } = &*self.driven;
        if path.neighbour().is_some() && machine.is_open() {
            direct::show(self.device, self.core, path, &machine.attr());
        }
    }

    /// Returns whether a coarse clock suffices. Between neighbours no packet is lost: a timer only detects that the peer is gone.
    fn may_use_coarse_clock(&self) -> bool {
        /// The shortest timeout for which the inaccuracy of a coarse clock's tick is small.
        const LEAST: Duration = Duration::from_millis(30);
        let QpAttr { timeout, alt_timeout, .. } = self.driven.machine.attr();
        let is_long = |time: AckTimeout| time.duration().is_none_or(|d| d >= LEAST);
        self.driven.path.neighbour().is_some() && is_long(timeout) && is_long(alt_timeout)
    }

    /// Schedules the queue pair's timer and transmissions, without sending.
    pub(crate) fn schedule(&mut self) {
        self.schedule_after(TxState::Idle);
    }

    /// Updates the engine's timer and send lists according to `state`.
    pub(crate) fn schedule_after(&mut self, state: TxState) {
        if self.schedule_round(state) {
            self.device.engine().owe_ack(self.core.qpn);
        }
    }

    /// Schedules like [`schedule_after`](Self::schedule_after), in a round. Returns whether the queue pair has begun to owe an
    /// ACK, which the round must then put on its list.
    pub(crate) fn schedule_round(&mut self, state: TxState) -> bool {
        self.tend_stream();
        let engine = self.device.engine();
        let driven = &mut *self.driven;
        if state != TxState::Idle && !driven.queued {
            driven.queued = true;
            engine.queue(self.core.qpn);
        }
        let timeout = driven.machine.poll_timeout();
        driven.path.update_in_flight(timeout.is_some(), || driven.machine.unacknowledged());
        if let Some(at) = timeout
            && driven.armed.needs(at)
        {
            engine.arm(at, self.core.qpn);
        }
        self.core.owed.note(driven.machine.wants_ack())
    }
}

#[inline]
fn run<R>(
    machine: &mut Machine,
    mut env: QpEnv<'_>,
    f: impl FnOnce(&mut Machine, &mut QpEnv<'_>) -> R,
) -> R {
    let result = f(machine, &mut env);
    if env.overflow {
        fail(machine, &mut env);
    }
    if env.established && machine.is_open() {
        env.open(&machine.attr());
    }
    result
}

/// Moves the queue pair to the error state after a completion was lost (IBTA 11.6.3.1).
fn fail(machine: &mut Machine, env: &mut QpEnv<'_>) {
    if machine.state() != QpState::Err {
        let attr = QpAttr { state: QpState::Err, ..machine.attr() };
        if let Err(error) = machine.modify(env.device().now(), &attr, AttrMask::STATE, env) {
            crate::throttled!(warn, %error, "cannot move a queue pair to the error state after a lost completion");
        }
    }
}
