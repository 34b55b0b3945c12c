//! Resolution by ACM: paths to IP addresses and names, without neighbour discovery or a query to subnet administration.
//!
//! If ACM answers too late or has no answer, addresses and paths are resolved as without it. All queries of one lookup together
//! take at most [`Settings::timeout`](crate::client::acm::Settings::timeout).

use std::time::Instant;

use rdmux_cm::{Addr, IbAddr, PathData};

use super::{Answer, Hints, ResolveError, Resolver, gid};
use crate::client::acm::Question;

impl Resolver {
    /// Returns the path to an address from another one, or from any, if ACM has it. No other source is queried.
    pub fn known_path(&self, src: Option<Addr>, dst: Addr, hints: &Hints) -> Option<PathData> {
        let acm = self.client.acm()?;
        let question = self.question(src, dst, hints);
        acm.supply(&question, acm.find(&question, acm.deadline())?)
    }

    /// Adds ACM's paths to answers with IP addresses. ACM is queried for the first address, which connections use. The
    /// others get only paths from its shared-memory cache.
    pub(super) fn with_known_paths(&self, hints: &Hints, mut found: Vec<Answer>) -> Vec<Answer> {
        let Some(acm) = self.client.acm().filter(|_| !hints.no_route) else { return found };
        let mut deadline = acm.deadline();
        for answer in &mut found {
            let Some(dst) = answer.dst else { continue };
            let question = self.question(answer.src, dst, hints);
            let path = acm.find(&question, deadline);
            let path = path.and_then(|path| acm.supply(&question, path));
            answer.by_acm = path.is_some();
            answer.paths.extend(path);
            deadline = Instant::now();
        }
        found
    }

    fn question(&self, src: Option<Addr>, dst: Addr, hints: &Hints) -> Question {
        let question = Question::of_addresses(src, dst).cached(is_short(hints));
        if self.is_on_fabric { question } else { question.off_fabric() }
    }

    /// Returns the native address of an endpoint that ACM knows by name, and the path to it.
    ///
    /// # Errors
    /// An error if the service is invalid.
    pub(super) fn by_name(
        &self,
        name: &str,
        service: Option<&str>,
        hints: &Hints,
    ) -> Result<Option<Answer>, ResolveError> {
        let Some(acm) = self.client.acm() else { return Ok(None) };
        let src = hints.src.and_then(|src| src.socket()).map(|src| src.ip());
        let Some(question) = Question::of_name(src, name) else { return Ok(None) };
        let Some(found) = acm.find(&question.cached(hints.no_route), acm.deadline()) else {
            return Ok(None);
        };
        let record = &found.record;
        // Only ACM knows the name. A connection finds another path if this one has failed.
        let path = acm.supply(&question, found).filter(|_| !hints.no_route);
        let space = gid::space_of(hints);
        let dst = gid::service_at(record.dgid, space, service, hints)?;
        let src = gid::port_at(record.sgid, space, 0);
        Ok(Some(Answer {
            port_space: Some(space),
            qp_type: Some(hints.qp_type.unwrap_or(gid::default_type(space))),
            src: Some(IbAddr { pkey: record.pkey, ..src }.into()),
            dst: Some(IbAddr { pkey: record.pkey, flowinfo: record.flow_label, ..dst }.into()),
            paths: path.into_iter().collect(),
            by_acm: true,
            ..Answer::default()
        }))
    }
}

/// Returns whether the lookup must be short, by the rule of Linux's connection manager.
fn is_short(hints: &Hints) -> bool {
    hints.no_route || hints.numeric_host
}
