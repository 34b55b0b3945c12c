//! Sleeping and waking of the background thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering, fence};
use std::time::Duration;

use parking_lot::Mutex;
use rdmux_link::{Doorbell, PeerBell};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};

use crate::objects::control::Control;

/// Interval at which the thread checks whether the program still polls.
pub(crate) const TICK: Duration = Duration::from_millis(1);

/// The way in which the thread sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sleep {
    /// Sleeps for a tick, without being woken by sockets and peers.
    Tick,
    /// Sleeps until an event, or for at most this long.
    Until(Option<Duration>),
}

const AWAKE: u8 = 0;
const TICKING: u8 = 1;
const ASLEEP: u8 = 2;

/// Everything that can wake the thread. Holds duplicates of descriptors that it does not own.
#[derive(Debug)]
pub(crate) struct Waiter {
    epoll: OwnedFd,
    /// The doorbell that this process rings itself. It is shared with no other process.
    bell: Doorbell,
    bells: Mutex<Bells>,
    notify: OwnedFd,
    /// Whether the service has sent an event since the last check.
    notified: AtomicBool,
    /// Whether `notify` has reached its end, after which it is always readable.
    gone: AtomicBool,
    /// Whether the thread has slept without being woken by its peers.
    ticked: AtomicBool,
    state: AtomicU8,
}

/// The doorbells that other processes ring, each with its token.
#[derive(Debug)]
struct Bells {
    all: Vec<(u64, Arc<PeerBell>)>,
    next: u64,
}

/// Tokens in the epoll set: descriptors that need not be cleared, the own bell, the service, and the first of [`Bells`].
const OTHER: u64 = 0;
const OWN: u64 = 1;
const NOTIFY: u64 = 2;
const FIRST_PEER: u64 = 3;

impl Waiter {
    pub(crate) fn new(control: &dyn Control) -> io::Result<Self> {
        let waiter = Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            bell: Doorbell::new()?,
            bells: Mutex::new(Bells { all: Vec::new(), next: FIRST_PEER }),
            notify: control.notify_fd().try_clone_to_owned()?,
            notified: AtomicBool::new(true),
            gone: AtomicBool::new(false),
            ticked: AtomicBool::new(false),
            state: AtomicU8::new(AWAKE),
        };
        waiter.add_as(waiter.bell.as_fd(), OWN)?;
        waiter.add_as(waiter.notify.as_fd(), NOTIFY)?;
        Ok(waiter)
    }

    /// Returns the descriptor that is readable when the thread's sleep would end.
    pub(crate) fn readable(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Makes the thread wake when `fd` is readable.
    pub(crate) fn add(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.add_as(fd, OTHER)
    }
    fn add_as(&self, fd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token);
        Ok(epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN)?)
    }

    /// Lets another process wake the thread.
    pub(crate) fn listen_to(&self, bell: &Arc<PeerBell>) -> io::Result<()> {
        let mut bells = self.bells.lock();
        self.add_as(bell.as_fd(), bells.next)?;
        let token = bells.next;
        bells.next += 1;
        bells.all.push((token, bell.clone()));
        Ok(())
    }
    /// Prevents another process from waking the thread.
    pub(crate) fn ignore(&self, bell: &Arc<PeerBell>) {
        let mut bells = self.bells.lock();
        bells.all.retain(|(_, b)| !Arc::ptr_eq(b, bell));
        self.remove(bell.as_fd());
    }

    /// Clears a bell that woke the thread. One that cannot be cleared is removed.
    fn silence(&self, token: u64) {
        match token {
            OTHER => {}
            NOTIFY => self.notified.store(true, Ordering::Relaxed),
            OWN => {
                self.bell.clear();
            }
            peer => {
                let find = |bells: &Bells| bells.all.iter().find(|(t, _)| *t == peer).cloned();
                let Some((_, bell)) = find(&self.bells.lock()) else { return };
                if let Err(error) = bell.clear() {
                    tracing::debug!(%error, "the doorbell of a peer process failed; it can no \
                        longer wake this process");
                    self.ignore(&bell);
                }
            }
        }
    }

    /// Clears the bells that were rung while the thread did not listen.
    fn silence_all(&self) {
        /// A bound above the rings of any correct peer, which rings once when it makes room.
        const MOST: usize = 512;
        for (_, bell) in &self.bells.lock().all {
            let _ = (0..MOST).find(|_| !matches!(bell.clear(), Ok(true)));
        }
    }
    /// Stops watching `fd`.
    pub(crate) fn remove(&self, fd: BorrowedFd<'_>) {
        // Fails only if it is not in the set.
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Returns whether the service may have sent an event since the last check.
    pub(crate) fn was_notified(&self) -> bool {
        self.notified.swap(false, Ordering::Relaxed)
    }

    /// Stops waiting for the service, which is gone.
    pub(crate) fn service_gone(&self) {
        self.gone.store(true, Ordering::Release);
        self.remove(self.notify.as_fd());
    }

    /// Announces the coming sleep. Work that is queued after this wakes the thread; for work that was queued before, the thread
    /// must check once more.
    pub(crate) fn prepare(&self, ticking: bool) {
        if !ticking && self.ticked.swap(false, Ordering::Relaxed) {
            self.silence_all();
        }
        self.state.store(if ticking { TICKING } else { ASLEEP }, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Sleeps. Returns whether anything but the timeout ended the sleep.
    pub(crate) fn sleep(&self, how: Sleep) -> bool {
        let timeout = match how {
            Sleep::Tick => Some(TICK),
            Sleep::Until(at) => at,
        }
        .and_then(|d| Timespec::try_from(d).ok());
        // An interruption counts as a wakeup.
        match how {
            // A program that polls is not woken by its peers.
            Sleep::Tick => {
                let fds = &mut [
                    PollFd::new(&self.bell, PollFlags::IN),
                    PollFd::new(&self.notify, PollFlags::IN),
                ];
                let listened = if self.gone.load(Ordering::Acquire) { 1 } else { 2 };
                let ready = poll(&mut fds[..listened], timeout.as_ref());
                self.ticked.store(true, Ordering::Relaxed);
                self.state.store(AWAKE, Ordering::SeqCst);
                if !fds[0].revents().is_empty() {
                    self.bell.clear();
                }
                ready != Ok(0)
            }
            Sleep::Until(_) => {
                let mut events = [const { std::mem::MaybeUninit::uninit() }; 4];
                let ready = epoll::wait(&self.epoll, &mut events[..], timeout.as_ref());
                self.state.store(AWAKE, Ordering::SeqCst);
                match ready {
                    Ok((ready, _)) => {
                        ready.iter().for_each(|event| self.silence(event.data.u64()));
                        !ready.is_empty()
                    }
                    Err(_) => true,
                }
            }
        }
    }

    /// Wakes the thread.
    pub(crate) fn wake(&self) {
        // Writing to an own eventfd does not fail.
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
