//! Long work, such as reading a dump of a large subnet, in a thread that wakes the service when it has finished.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::{io, thread};

use crate::wake::{self, Wake, Waker};

type Job<T> = Box<dyn FnOnce() -> T + Send>;

/// Runs one job at a time. Of the waiting jobs, only the last one runs.
pub(crate) struct Worker<T> {
    /// Receives the result of the running job.
    done: Option<Receiver<T>>,
    /// The job that runs next; its result replaces that of the running one.
    next: Option<Job<T>>,
    /// Whether the result of the running job is no longer needed.
    is_stale: bool,
    wake: Wake,
    waker: Waker,
}

impl<T: Send + 'static> Worker<T> {
    /// Makes a worker without a job.
    pub(crate) fn new() -> io::Result<Self> {
        let (wake, waker) = wake::pair()?;
        Ok(Self { done: None, next: None, is_stale: false, wake, waker })
    }

    /// Runs a job, whose result replaces those of all earlier ones.
    pub(crate) fn ask(&mut self, job: impl FnOnce() -> T + Send + 'static) {
        self.cancel();
        self.next = Some(Box::new(job));
        self.start();
    }

    /// Discards all earlier jobs and their results.
    pub(crate) fn cancel(&mut self) {
        self.next = None;
        self.is_stale = self.done.is_some();
    }

    /// Returns the result of the last job, once it has finished.
    pub(crate) fn take(&mut self) -> Option<T> {
        self.wake.take();
        match self.done.as_ref()?.try_recv() {
            Err(TryRecvError::Empty) => None,
            done => self.finish(done.ok()),
        }
    }

    /// Waits for the result of the last job; none if there is no job.
    pub(crate) fn wait(&mut self) -> Option<T> {
        while let Some(done) = &self.done {
            let done = done.recv().ok();
            if let Some(done) = self.finish(done) {
                return Some(done);
            }
        }
        None
    }

    fn finish(&mut self, done: Option<T>) -> Option<T> {
        self.done = None;
        if done.is_none() && !self.is_stale {
            tracing::error!(
                "files are not loaded: the thread that reads them has panicked; correct them and send SIGHUP"
            );
        }
        let done = done.filter(|_| !self.is_stale);
        self.is_stale = false;
        self.start();
        done
    }

    fn start(&mut self) {
        let Some(job) = self.next.take_if(|_| self.done.is_none()) else { return };
        let (tell, done) = sync_channel(1);
        let wake = WakeOnDrop(self.waker.clone());
        let work = move || {
            // Dropped after the sender, even if the job panics.
            let _wake = wake;
            let tell = tell;
            let _ = tell.send(job());
        };
        match thread::Builder::new().name("files".to_owned()).spawn(work) {
            Ok(_) => self.done = Some(done),
            Err(e) => tracing::error!("files cannot be loaded: no thread: {e}; send SIGHUP"),
        }
    }
}

/// Wakes the service when it is dropped.
struct WakeOnDrop(Waker);

impl Drop for WakeOnDrop {
    fn drop(&mut self) {
        self.0.wake();
    }
}

impl<T> AsFd for Worker<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    /// Waits until the descriptor is readable.
    fn poll(worker: &Worker<u32>) {
        let mut fds = [rustix::event::PollFd::new(worker, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, None).unwrap();
    }

    /// Returns the result of the last job, as the service's loop gets it.
    fn woken(worker: &mut Worker<u32>) -> u32 {
        loop {
            poll(worker);
            if let Some(done) = worker.take() {
                return done;
            }
        }
    }

    #[test]
    fn job_that_panics_wakes_the_service_and_the_next_one_runs() {
        let mut worker = Worker::new().unwrap();
        worker.ask(|| panic!("a job that fails"));
        poll(&worker);
        assert_eq!(worker.take(), None);
        worker.ask(|| 5);
        assert_eq!(woken(&mut worker), 5);
    }

    #[test]
    fn long_job_does_not_block_and_only_the_last_queued_job_runs() {
        let mut worker = Worker::new().unwrap();
        let (go, wait) = channel();
        worker.ask(move || {
            wait.recv().unwrap();
            1
        });
        assert_eq!(worker.take(), None, "it is at work");
        worker.ask(|| panic!("another job has come"));
        worker.ask(|| 3);
        assert_eq!(worker.take(), None, "one thread is at work at a time");
        go.send(()).unwrap();
        assert_eq!(woken(&mut worker), 3);
        assert_eq!((worker.take(), worker.wait()), (None, None));
        worker.ask(|| 4);
        assert_eq!(woken(&mut worker), 4);
    }

    #[test]
    fn cancelled_job_returns_no_result() {
        let mut worker = Worker::new().unwrap();
        worker.ask(|| 1);
        worker.cancel();
        assert_eq!(worker.wait(), None);
        worker.ask(|| 2);
        worker.cancel();
        worker.ask(|| 3);
        assert_eq!(worker.wait(), Some(3));
    }
}
