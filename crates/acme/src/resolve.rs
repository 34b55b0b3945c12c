//! `-d`: the path to one destination, from one source, over one connection.

use std::fmt;
use std::time::Instant;

use rdmux_wire::acm::client::{Paths, Query, Status};
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

/// Verifies a path: queries subnet administration for exactly this path through the service. If it has no such path, queries it for
/// the path between the same ends. Then the path is right if that one permits it, as it does for a path with the MTU and rate of a
/// slower group.
///
/// Returns the fields in which the path between the same ends differs.
///
/// # Errors
/// A text: subnet administration does not know the path, or which path it knows instead.
fn verify(session: &Session, path: PathRecord) -> Result<Vec<String>, String> {
    let refused = match ask_administration(session, path) {
        Ok(known) => return agrees(&path, &known).map(|()| Vec::new()),
        Err((Some(Status::NO_DATA), why)) => why,
        Err((_, why)) => return Err(why),
    };
    let PathRecord { dgid, sgid, dlid, slid, pkey, reversible, .. } = path;
    let any = PathRecord { numb_path: 1, ..PathRecord::default() };
    let ends = PathRecord { dgid, sgid, dlid, slid, pkey, reversible, ..any };
    let known = ask_administration(session, ends).map_err(|_| refused)?;
    agrees(&path, &known)?;
    permits(&path, &known)
}

/// Queries subnet administration through the service.
///
/// # Errors
/// The status that the service reported, if it reported one, and a text.
fn ask_administration(
    session: &Session,
    path: PathRecord,
) -> Result<PathRecord, (Option<Status>, String)> {
    let path = match session.ask(Query::QuerySa { path }) {
        Ok(Reply::Paths(paths)) => paths.paths.first().map(|data| data.path),
        Ok(_) => None,
        Err(failure) => return Err((failure.status(), failure.to_string())),
    };
    path.ok_or_else(|| (None, "the answer has no path".to_owned()))
}

/// Checks that packets would take the same path.
fn agrees(found: &PathRecord, known: &PathRecord) -> Result<(), String> {
    let fields = [
        differs("dgid", &found.dgid, &known.dgid),
        differs("sgid", &found.sgid, &known.sgid),
        differs("dlid", &found.dlid.0, &known.dlid.0),
        differs("slid", &found.slid.0, &known.slid.0),
        differs("sl", &found.sl, &known.sl),
    ];
    fields.into_iter().flatten().next().map_or(Ok(()), Err)
}

/// Checks that MTU and rate are not above those of the known path. Returns the fields that differ from it.
fn permits(found: &PathRecord, known: &PathRecord) -> Result<Vec<String>, String> {
    let mtu = differs("mtu", &found.mtu, &known.mtu);
    let rate = differs("rate", &found.rate.0, &known.rate.0);
    if let Some(mtu) = mtu.clone().filter(|_| found.mtu > known.mtu) {
        return Err(mtu);
    }
    if let Some(rate) = rate.clone().filter(|_| found.rate.mbps() > known.rate.mbps()) {
        return Err(rate);
    }
    let fields = [
        differs("flow label", &found.flow_label, &known.flow_label),
        differs("hop limit", &found.hop_limit, &known.hop_limit),
        differs("tclass", &found.tclass, &known.tclass),
        mtu,
        rate,
        differs("packet lifetime", &found.packet_life_time, &known.packet_life_time),
    ];
    Ok(fields.into_iter().flatten().collect())
}

/// Returns in which way a field differs, if it does.
fn differs<T: PartialEq + fmt::Display>(field: &str, ours: &T, theirs: &T) -> Option<String> {
    (ours != theirs).then(|| format!("{field} is {theirs}, not {ours}"))
}
