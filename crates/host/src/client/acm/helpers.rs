//! Threads that wait for ACM on behalf of non-blocking calls.
//!
//! None run until a job is queued, at most [`MOST`] run at a time, and each exits when no jobs are
//! left.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;
use rdmux_verbs::signals;

/// Maximum number of threads at a time, and so of requests outstanding at the service.
pub(super) const MOST: usize = 16;
/// Maximum number of jobs that may be queued. Further resolutions continue without ACM.
const MAX_WAITING: usize = 64 * 1024;

type Job = Box<dyn FnOnce() + Send>;

/// The pool of threads.
#[derive(Clone, Default)]
pub(super) struct Helpers(Arc<Mutex<State>>);

/// The queued jobs, and the number of threads.
#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    threads: usize,
}

impl Helpers {
    /// Queues a job for a thread. Jobs start in order. Returns whether a thread is available for it.
    pub(super) fn run(&self, job: impl FnOnce() + Send + 'static) -> bool {
        let mut state = self.0.lock();
        if state.waiting.len() >= MAX_WAITING {
            return false;
        }
        // A new thread finds the job when this lock is released.
        if state.threads < MOST && self.start().is_ok() {
            state.threads += 1;
        }
        if state.threads > 0 {
            state.waiting.push_back(Box::new(job));
        }
        state.threads > 0
    }

    fn start(&self) -> std::io::Result<()> {
        let helpers = self.clone();
        let thread = thread::Builder::new().name("rdmux-acm".to_owned());
        signals::with_blocked(|| thread.spawn(move || helpers.work())).map(drop)
    }

    fn work(&self) {
        while let Some(job) = self.next() {
            // A job that panics must not end its thread, which other jobs need.
            let _ = panic::catch_unwind(AssertUnwindSafe(job));
        }
    }

    fn next(&self) -> Option<Job> {
        let mut state = self.0.lock();
        let job = state.waiting.pop_front();
        if job.is_none() {
            state.threads -= 1;
        }
        job
    }
}

impl fmt::Debug for Helpers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.0.lock();
        write!(f, "Helpers({} threads, {} wait)", state.threads, state.waiting.len())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn as_many_jobs_run_at_once_as_there_may_be_threads_and_the_rest_follow() {
        let helpers = Helpers::default();
        let (started, starts) = mpsc::channel();
        let mut releases = Vec::new();
        for job in 0..MOST + 2 {
            let (release, released) = mpsc::channel::<()>();
            releases.push(release);
            let started = started.clone();
            assert!(helpers.run(move || {
                started.send(job).unwrap();
                let _ = released.recv();
            }));
        }
        let mut first: Vec<_> = starts.iter().take(MOST).collect();
        first.sort_unstable();
        assert_eq!(first, Vec::from_iter(0..MOST));
        assert!(starts.try_recv().is_err());
        drop(releases);
        let mut last: Vec<_> = starts.iter().take(2).collect();
        last.sort_unstable();
        assert_eq!(last, [MOST, MOST + 1]);
    }

    #[test]
    fn job_that_panics_stops_no_other() {
        let helpers = Helpers::default();
        let (done, is_done) = mpsc::channel();
        for _ in 0..2 * MOST {
            assert!(helpers.run(|| panic::resume_unwind(Box::new("a job"))));
        }
        assert!(helpers.run(move || done.send(()).unwrap()));
        is_done.recv().unwrap();
    }
}
