//! How the background thread sleeps, and how it is woken.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering, fence};

use rdmux_link::Doorbell;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};

use super::background::{Sleep, TICK};
use crate::control::Control;

const AWAKE: u8 = 0;
const TICKING: u8 = 1;
const ASLEEP: u8 = 2;

/// Everything that can wake the thread. Holds duplicates of what is not its own.
#[derive(Debug)]
pub(crate) struct Waiter {
    epoll: OwnedFd,
    /// What other processes ring, and what we ring ourselves.
    bell: Doorbell,
    notify: OwnedFd,
    /// Whether `notify` has come to its end, after which it is readable for ever.
    gone: AtomicBool,
    state: AtomicU8,
}

impl Waiter {
    pub(crate) fn new(control: &dyn Control) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let bell = Doorbell::from_fd(control.doorbell().duplicate()?);
        let notify = control.notify_fd().try_clone_to_owned()?;
        let waiter =
            Self { epoll, bell, notify, gone: AtomicBool::new(false), state: AtomicU8::new(AWAKE) };
        waiter.add(waiter.bell.as_fd())?;
        waiter.add(waiter.notify.as_fd())?;
        Ok(waiter)
    }

    pub(crate) fn add(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let nothing = epoll::EventData::new_u64(0);
        Ok(epoll::add(&self.epoll, fd, nothing, epoll::EventFlags::IN)?)
    }
    pub(crate) fn remove(&self, fd: BorrowedFd<'_>) {
        // Fails only if it is not there.
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// The service has nothing to say any more.
    pub(crate) fn service_gone(&self) {
        self.gone.store(true, Ordering::Release);
        self.remove(self.notify.as_fd());
    }

    /// Announces the sleep to come. What is queued after this wakes the thread; what was queued
    /// before, it must look at once more.
    pub(crate) fn prepare(&self, ticking: bool) {
        self.state.store(if ticking { TICKING } else { ASLEEP }, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Sleeps. Returns whether anything but the time has ended it.
    pub(crate) fn sleep(&self, how: Sleep) -> bool {
        let timeout = match how {
            Sleep::Tick => Some(TICK),
            Sleep::Until(at) => at,
        }
        .and_then(|d| Timespec::try_from(d).ok());
        // An interruption is as good a reason to look around as any.
        let woken = match how {
            Sleep::Tick => {
                let fds = &mut [
                    PollFd::new(&self.bell, PollFlags::IN),
                    PollFd::new(&self.notify, PollFlags::IN),
                ];
                let listened = if self.gone.load(Ordering::Acquire) { 1 } else { 2 };
                poll(&mut fds[..listened], timeout.as_ref())
            }
            Sleep::Until(_) => {
                let mut events = [const { std::mem::MaybeUninit::uninit() }; 4];
                epoll::wait(&self.epoll, &mut events[..], timeout.as_ref())
                    .map(|(ready, _)| ready.len())
            }
        };
        let woken = woken != Ok(0);
        self.state.store(AWAKE, Ordering::SeqCst);
        if woken {
            self.bell.clear();
        }
        woken
    }

    pub(crate) fn wake(&self) {
        // Fails only on a descriptor that is no eventfd.
        let _ = self.bell.ring();
    }
    pub(crate) fn wake_if_asleep(&self) {
        if self.state.load(Ordering::SeqCst) == ASLEEP {
            self.wake();
        }
    }
    pub(crate) fn wake_if_ticking(&self) {
        if self.state.load(Ordering::SeqCst) == TICKING {
            self.wake();
        }
    }
}
