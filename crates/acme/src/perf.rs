//! `-P`: counters.

use std::io;

use rdmux_wire::acm::client::{Query, Subject};

use crate::address;
use crate::args::{Options, Perf};
use crate::screen::Screen;
use crate::session::{Reply, Session};

/// Shows the requested counters.
///
/// # Errors
/// When the output cannot be written.
pub(crate) fn show(
    session: &Session,
    options: &Options,
    perf: Perf,
    screen: &mut Screen<'_>,
) -> io::Result<()> {
    let service = session.name().to_owned();
    let subject = match perf {
        Perf::All => return show_all(session, screen),
        Perf::Row | Perf::Column if options.index == 0 => Subject::Service,
        Perf::Row | Perf::Column => Subject::Index(options.index),
        Perf::Source => {
            let word = options.sources.as_deref().unwrap_or_default();
            match address::source(word, options.format) {
                Ok(address) => Subject::Address(address),
                Err(why) => {
                    screen.line(why)?;
                    return screen.no_counters(&service, "Invalid argument");
                }
            }
        }
    };
    let endpoint = if let Subject::Index(index) = subject { Some(index) } else { None };
    match counters(session, subject) {
        Ok(counters) => screen.counters(&service, endpoint, &counters),
        Err(why) => screen.no_counters(&service, &why),
    }
}

/// Shows the counters endpoint by endpoint, until there is none.
fn show_all(session: &Session, screen: &mut Screen<'_>) -> io::Result<()> {
    let service = session.name().to_owned();
    for index in 1..=u8::MAX {
        match session.ask(Query::Counters(Subject::Index(index))) {
            Ok(Reply::Counters(counters)) => screen.counters(&service, Some(index), &counters)?,
            Err(failure) if failure.status().is_some() => break,
            Ok(_) => return screen.no_counters(&service, NO_COUNTERS),
            Err(failure) => return screen.no_counters(&service, &failure.to_string()),
        }
    }
    Ok(())
}

const NO_COUNTERS: &str = "the answer has no counters";

/// Returns the counters of a service or an endpoint.
///
/// # Errors
/// The reason why there are none.
pub(crate) fn counters(session: &Session, subject: Subject) -> Result<Vec<u64>, String> {
    match session.ask(Query::Counters(subject)) {
        Ok(Reply::Counters(counters)) => Ok(counters.to_vec()),
        Ok(_) => Err(NO_COUNTERS.to_owned()),
        Err(failure) => Err(failure.to_string()),
    }
}
