//! Work that takes long, as to read a dump of a large subnet: a thread does it, and the service is told when it is done.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::{io, thread};

type Job<T> = Box<dyn FnOnce() -> T + Send>;

/// Does one job at a time. Of jobs that wait only the last one is done.
pub(crate) struct Worker<T> {
    /// What the thread says that is at work.
    done: Option<Receiver<T>>,
    /// What is done then, in place of what it says.
    next: Option<Job<T>>,
    /// What the thread says does not matter any more.
    is_stale: bool,
    wake: UnixStream,
    waker: Arc<UnixStream>,
}

impl<T: Send + 'static> Worker<T> {
    /// No thread is at work yet.
    pub(crate) fn new() -> io::Result<Self> {
        let (wake, waker) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        waker.set_nonblocking(true)?;
        Ok(Self { done: None, next: None, is_stale: false, wake, waker: waker.into() })
    }

    /// Has a job done, in place of all before.
    pub(crate) fn ask(&mut self, job: impl FnOnce() -> T + Send + 'static) {
        self.cancel();
        self.next = Some(Box::new(job));
        self.start();
    }

    /// Nothing comes of the jobs before.
    pub(crate) fn cancel(&mut self) {
        self.next = None;
        self.is_stale = self.done.is_some();
    }

    /// What came of the last job, once it is done.
    pub(crate) fn take(&mut self) -> Option<T> {
        let mut buffer = [0; 64];
        while matches!(io::Read::read(&mut &self.wake, &mut buffer), Ok(n) if n > 0) {}
        match self.done.as_ref()?.try_recv() {
            Err(TryRecvError::Empty) => None,
            done => self.finish(done.ok()),
        }
    }

    /// Waits for what comes of the last job; none if there is no job.
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
        let done = done.filter(|_| !self.is_stale);
        self.is_stale = false;
        self.start();
        done
    }

    fn start(&mut self) {
        let Some(job) = self.next.take_if(|_| self.done.is_none()) else { return };
        let (tell, done) = sync_channel(1);
        let waker = self.waker.clone();
        let work = move || {
            let _ = tell.send(job());
            // If it is full, it wakes all the same.
            let _ = io::Write::write(&mut &*waker, &[1]);
        };
        match thread::Builder::new().name("files".to_owned()).spawn(work) {
            Ok(_) => self.done = Some(done),
            Err(e) => tracing::error!("files cannot be loaded: no thread: {e}; send SIGHUP"),
        }
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

    /// What comes of the last job, as the loop of the service gets it.
    fn woken(worker: &mut Worker<u32>) -> u32 {
        loop {
            let mut fds = [rustix::event::PollFd::new(&*worker, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut fds, None).unwrap();
            if let Some(done) = worker.take() {
                return done;
            }
        }
    }

    #[test]
    fn job_that_takes_long_holds_up_nobody_and_only_the_last_one_counts() {
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
    fn nothing_comes_of_a_job_that_is_cancelled() {
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
