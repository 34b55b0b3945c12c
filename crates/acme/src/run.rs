//! A run: queries each service, then writes files.

use std::io::{self, Write};

use crate::args::{Options, Perf};
use crate::parallel;
use crate::range::expand;
use crate::resolve::{How, Task, resolve};
use crate::screen::Screen;
use crate::services::{Service, Unreachable};
use crate::session::Session;
use crate::{endpoints, generate, perf};

/// The return value after a failure without a number.
const FAILED: i32 = -1;

/// Executes the options, and prints the results.
///
/// # Errors
/// When they cannot be printed.
pub(crate) fn run(options: &Options, out: &mut dyn Write) -> io::Result<i32> {
    let columns = options.perf == Some(Perf::Column);
    let mut screen = Screen::new(out, options.json, columns);
    let is_generating = options.addresses.is_some() || options.options.is_some();
    let status = all(options, &mut screen)?;
    // Files that were written without output end without a status line.
    screen.finish(status, status != 0 || options.verbose || !is_generating)
}

fn all(options: &Options, screen: &mut Screen<'_>) -> io::Result<i32> {
    let is_asking = options.destinations.is_some() || options.perf.is_some() || options.endpoints;
    let status = if is_asking { ask_services(options, screen)? } else { 0 };
    if status != 0 { Ok(status) } else { generate::files(options, screen) }
}

/// Queries the services. The status is that of the last service, as it always was.
fn ask_services(options: &Options, screen: &mut Screen<'_>) -> io::Result<i32> {
    let services = match &options.services {
        None => match Service::of_host(options.host.as_deref()) {
            Ok(service) => vec![service],
            Err(e) => {
                screen.failed(&format!("{e:#}"))?;
                return Ok(FAILED);
            }
        },
        Some(list) => match expand(list) {
            Ok(words) => words.iter().map(|word| Service::of_word(word)).collect(),
            Err(e) => return refused(screen, "service list", &e),
        },
    };
    let tasks = match tasks(options) {
        Ok(tasks) => tasks,
        Err((which, e)) => return refused(screen, which, &e),
    };
    let mut status = 0;
    for service in &services {
        status = match Session::open(service) {
            Ok(session) => ask(session, service, options, &tasks, screen)?,
            Err(Unreachable { why, status }) => {
                screen.unreachable(service.name(), &why)?;
                status
            }
        };
    }
    Ok(status)
}

fn refused(screen: &mut Screen<'_>, which: &str, why: &dyn std::error::Error) -> io::Result<i32> {
    screen.failed(&format!("Unable to parse {which} argument: {why}"))?;
    Ok(FAILED)
}

/// Returns a task for each destination with each source.
fn tasks(options: &Options) -> Result<Vec<Task>, (&'static str, crate::range::RangeError)> {
    let Some(list) = &options.destinations else { return Ok(Vec::new()) };
    let destinations = expand(list).map_err(|e| ("destination", e))?;
    let sources = match &options.sources {
        None => vec![None],
        Some(list) => {
            let words = expand(list).map_err(|e| ("source", e))?;
            words.into_iter().map(Some).collect()
        }
    };
    let pairs = destinations.len().saturating_mul(sources.len());
    if u64::try_from(pairs).is_ok_and(|pairs| pairs > crate::range::MAX_WORDS) {
        return Err(("source", crate::range::RangeError::TooMany));
    }
    let task = |(destination, source): (&String, &Option<String>)| Task {
        destination: destination.clone(),
        source: source.clone(),
    };
    Ok(destinations.iter().flat_map(|d| sources.iter().map(move |s| (d, s))).map(task).collect())
}

fn ask(
    session: Session,
    service: &Service,
    options: &Options,
    tasks: &[Task],
    screen: &mut Screen<'_>,
) -> io::Result<i32> {
    let mut status = 0;
    if !tasks.is_empty() {
        screen.paths_of(service.name())?;
        let how = How::new(options);
        let mut shown = |outcome: &crate::screen::Outcome| {
            status = if outcome.is_success() { 0 } else { FAILED };
            screen.outcome(service.name(), outcome)
        };
        match tasks {
            [task] => shown(&resolve(&session, task, &how))?,
            // Repetitions measure time, and must not disturb each other.
            _ if options.repetitions > 1 => {
                tasks.iter().try_for_each(|task| shown(&resolve(&session, task, &how)))?;
            }
            _ => parallel::resolve_all(&session, service, tasks, &how, shown)?,
        }
    }
    if let Some(what) = options.perf {
        perf::show(&session, options, what, screen)?;
    }
    if options.endpoints {
        endpoints::list(&session, options.index, screen)?;
    }
    Ok(status)
}
