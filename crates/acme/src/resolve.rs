//! `-d`: the path to one destination, from one source, over one connection.

use std::time::Instant;

use rdmux_wire::acm::client::{Paths, Query};
use rdmux_wire::sa::PathRecord;

use crate::address::{Destination, Format, Question};
use crate::args::Options;
use crate::screen::Outcome;
use crate::session::{Reply, Session};

/// A task to resolve.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    /// The destination's word.
    pub(crate) destination: String,
    /// The source's word, if there is one.
    pub(crate) source: Option<String>,
}

/// How tasks are resolved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    format: Format,
    cached: bool,
    verify: bool,
    repetitions: u32,
}

impl How {
    /// Returns the settings that the command line requests.
    pub(crate) fn new(options: &Options) -> Self {
        let Options { format, cached, verify, repetitions, .. } = *options;
        Self { format, cached, verify, repetitions: repetitions.max(1) }
    }
}

/// Resolves a destination.
pub(crate) fn resolve(session: &Session, task: &Task, how: &How) -> Outcome {
    let destination = Destination::new(&task.destination, how.format);
    let mut outcome = Outcome {
        destination: destination.shown.clone(),
        source: task.source.clone(),
        source_given: task.source.is_some(),
        ..Outcome::default()
    };
    let start = Instant::now();
    let guessed = how.format == Format::Unspecified;
    let question = destination.question(task.source.as_deref(), guessed);
    for _ in 0..how.repetitions {
        outcome.path = None;
        match question.as_ref().map_err(String::clone).and_then(|q| ask(session, q, how.cached)) {
            Ok(found) => take(&mut outcome, &found, how.repetitions),
            Err(why) => outcome.errors.push(why),
        }
    }
    outcome.time = start.elapsed();
    if let Some(path) = outcome.path.filter(|_| how.verify) {
        outcome.verified = Some(verify(session, path));
    }
    outcome
}

/// Takes the first path. The source that the service chose is reported unless there were repetitions.
fn take(outcome: &mut Outcome, found: &Paths, repetitions: u32) {
    outcome.path = found.paths.first().map(|data| data.path);
    if !outcome.source_given && repetitions == 1 {
        outcome.source = found.source.map(|source| source.to_string());
    }
}

fn ask(session: &Session, question: &Question, cached_only: bool) -> Result<Paths, String> {
    let query = match question {
        Question::Name(source, dest) | Question::Ip(source, dest) => {
            Query::Resolve { source: *source, dest: *dest, cached_only }
        }
        Question::Path(path) => Query::ResolvePath { path: **path, cached_only },
    };
    match session.ask(query) {
        // A query by a record gets no source in its answer.
        Ok(Reply::Paths(paths)) if matches!(question, Question::Path(_)) => {
            Ok(Paths { source: None, ..paths })
        }
        Ok(Reply::Paths(paths)) => Ok(paths),
        Ok(_) => Err(format!("{} failed: the answer has no path", question.call())),
        Err(failure) => Err(format!("{} failed: {failure}", question.call())),
    }
}

/// Verifies a path: queries subnet administration for exactly this path through the service.
///
/// # Errors
/// A text: subnet administration does not know the path, or which path it knows instead.
fn verify(session: &Session, path: PathRecord) -> Result<(), String> {
    match session.ask(Query::QuerySa { path }) {
        Ok(Reply::Paths(paths)) => paths.paths.first().map_or_else(
            || Err("the answer has no path".to_owned()),
            |data| agrees(&path, &data.path),
        ),
        Ok(_) => Err("the answer has no path".to_owned()),
        Err(failure) => Err(failure.to_string()),
    }
}

/// Checks that packets would take the same path.
fn agrees(found: &PathRecord, known: &PathRecord) -> Result<(), String> {
    let differs = |what: &str, ours: String, theirs: String| {
        if ours == theirs { Ok(()) } else { Err(format!("{what} is {theirs}, not {ours}")) }
    };
    differs("dgid", found.dgid.to_string(), known.dgid.to_string())?;
    differs("sgid", found.sgid.to_string(), known.sgid.to_string())?;
    differs("dlid", found.dlid.0.to_string(), known.dlid.0.to_string())?;
    differs("slid", found.slid.0.to_string(), known.slid.0.to_string())?;
    differs("sl", found.sl.to_string(), known.sl.to_string())
}
