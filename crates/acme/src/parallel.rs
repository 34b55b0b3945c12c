//! Many destinations concurrently, over several connections. Results are in the order of the list.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::resolve::{How, Task, resolve};
use crate::screen::Outcome;
use crate::services::Service;
use crate::session::Session;

/// The number of connections. ibacm of rdma-core has room for 1,022 clients, and others may need some.
const CONNECTIONS: usize = 16;
/// The number of tasks from which on progress is shown.
const MANY: usize = 8;

/// Resolves all tasks and passes each outcome to `each`, in the order of the tasks. `session` is the first connection; if
/// no more can be opened, it is the only one.
///
/// # Errors
/// Those of `each`; the remaining tasks are not resolved then.
pub(crate) fn resolve_all(
    session: &Session,
    service: &Service,
    tasks: &[Task],
    how: &How,
    mut each: impl FnMut(&Outcome) -> io::Result<()>,
) -> io::Result<()> {
    let progress = progress(tasks.len());
    let next = AtomicUsize::new(0);
    let more = CONNECTIONS.min(tasks.len()).saturating_sub(1);
    let others: Vec<Session> = (0..more).map_while(|_| Session::open(service).ok()).collect();
    let (outcomes, results) = mpsc::sync_channel(CONNECTIONS);
    let result = thread::scope(|scope| {
        for session in others.iter().chain([session]) {
            let (outcomes, next) = (outcomes.clone(), &next);
            scope.spawn(move || work(session, tasks, how, next, &outcomes));
        }
        drop(outcomes);
        let shown = in_order(&results, |outcome| progress.suspend(|| each(outcome)), &progress);
        // After an error no thread starts another task, and threads that wait to deliver an outcome stop.
        next.store(tasks.len(), Ordering::Relaxed);
        drop(results);
        shown
    });
    progress.finish_and_clear();
    result
}

fn work(
    session: &Session,
    tasks: &[Task],
    how: &How,
    next: &AtomicUsize,
    outcomes: &mpsc::SyncSender<(usize, Outcome)>,
) {
    loop {
        let index = next.fetch_add(1, Ordering::Relaxed);
        let Some(task) = tasks.get(index) else { return };
        if outcomes.send((index, resolve(session, task, how))).is_err() {
            return;
        }
    }
}

/// Delivers outcomes in the order of their numbers. Early ones wait.
fn in_order(
    results: &mpsc::Receiver<(usize, Outcome)>,
    mut each: impl FnMut(&Outcome) -> io::Result<()>,
    progress: &ProgressBar,
) -> io::Result<()> {
    let mut early = BTreeMap::new();
    let mut next = 0;
    for (index, outcome) in results {
        progress.inc(1);
        early.insert(index, outcome);
        while let Some(outcome) = early.remove(&next) {
            each(&outcome)?;
            next += 1;
        }
    }
    Ok(())
}

/// Returns a progress bar on standard error, if that is a terminal.
fn progress(count: usize) -> ProgressBar {
    let is_seen = count >= MANY && io::stderr().is_terminal();
    let target = if is_seen { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} {per_sec} {eta}");
    let bar = ProgressBar::with_draw_target(Some(count as u64), target);
    style.map_or_else(|_| bar.clone(), |style| bar.clone().with_style(style))
}
