//! All timers of the machine.

use rdmux_transport::Time;
use rdmux_transport::timers::Deadline;

use super::{Machine, Timer};
use crate::{Failure, Io};

impl Machine {
    /// Returns when [`handle_timeout`](Self::handle_timeout) has something to do.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.timers.next()
    }

    /// Sends due requests, retransmits, gives up, and removes expired entries.
    pub fn handle_timeout(&mut self, now: Time, io: &mut impl Io) {
        self.ticks(now);
        while let Some(timer) = self.timers.pop_due(now) {
            match timer {
                Timer::Request(at) => self.handle_deadline(now, at, io),
                Timer::Search(at) => self.handle_search_timer(now, at, io),
                Timer::Pace(id) => {
                    if let Some(state) = self.endpoints.get_mut(&id) {
                        state.pace.timer = Deadline::default();
                    }
                    self.pump(now, id, io);
                }
                Timer::Join(id, at) => self.join_again(now, id, at, io),
                Timer::Sweep => self.handle_sweep(now, io),
            }
        }
    }

    /// Handles the deadline of a client's request. An unsent search that no request waits for any more is dropped.
    fn handle_deadline(&mut self, now: Time, at: u32, io: &mut impl Io) {
        if let Some(open) = self.requests.get_mut(at as usize) {
            open.deadline = Deadline::default();
        }
        let Some(open) = self.take_request(at) else { return };
        let Some(search) = self.searches.get(open.search as usize) else { return };
        let (endpoint, stage) = (search.endpoint, search.stage);
        let ends = stage.is_unsent() && !search.is_wanted(now);
        self.count(endpoint, |c| {
            c.deadlines += 1;
            c.errors += 1;
        });
        if ends {
            self.finish(now, open.search, Err(Failure::TimedOut), io);
        }
        io.answer(open.client, open.id, Err(Failure::TimedOut));
    }
}
