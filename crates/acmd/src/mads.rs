//! A port's queries to subnet administration.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rdmux::umad::{
    Address, Agent, AgentAttr, Event, Incoming, Method, MgmtClass, Port, RequestAttr, Tid,
};
use rdmux::{Context, Gid, Lid, Result};
use rdmux_acm::{EndpointId, QuestionId, SaFailure};
use rdmux_wire::sa::{
    CLASS_VERSION, McMemberRecord, McMemberRecordMask, PathRecord, PathRecordMask, SaMad,
};

/// The maximum number of answers taken at once.
const BUDGET: usize = 64;

/// An outstanding query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Membership of a group.
    Join(EndpointId, Gid),
    /// Paths.
    Paths(QuestionId),
}

/// The answer to a query.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// The answer to a join.
    Join(EndpointId, Gid, std::result::Result<McMemberRecord, SaFailure>),
    /// The answer to a query for paths.
    Paths(QuestionId, std::result::Result<Vec<PathRecord>, SaFailure>),
}

impl Asked {
    /// Returns the answer of a query that was not answered or not sent.
    pub(crate) fn unanswered(self) -> Answer {
        match self {
            Self::Join(endpoint, mgid) => Answer::Join(endpoint, mgid, Err(SaFailure::Silent)),
            Self::Paths(question) => Answer::Paths(question, Err(SaFailure::Silent)),
        }
    }

    fn answered(self, answer: &Incoming) -> Answer {
        let mad = SaMad::parse(&answer.mad).map_err(|_| SaFailure::Silent);
        let status = answer.header.status;
        let mad = if status == 0 { mad } else { Err(SaFailure::Status(status)) };
        match self {
            Self::Join(endpoint, mgid) => {
                let record = mad.and_then(|mad| mad.record().map_err(|_| SaFailure::Silent));
                Answer::Join(endpoint, mgid, record)
            }
            Self::Paths(question) => {
                let one = |mad: SaMad<'_>| mad.record().map(|record| vec![record]);
                Answer::Paths(question, mad.and_then(|mad| one(mad).map_err(|_| SaFailure::Silent)))
            }
        }
    }
}

/// The management interface of a port, and its outstanding queries.
pub(crate) struct Mads {
    port: Port,
    agent: Agent,
    asked: HashMap<Tid, Asked>,
}

/// The address of subnet administration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Administration {
    /// The subnet manager's LID.
    pub(crate) lid: Lid,
    /// The service level to it.
    pub(crate) sl: u8,
}

impl Administration {
    fn address(self) -> Address {
        Address { sl: self.sl, ..Address::gsi(self.lid) }
    }
}

impl Mads {
    /// Opens the management interface.
    ///
    /// # Errors
    /// When the port is not attached to a fabric.
    pub(crate) fn open(context: &Context, number: u8) -> Result<Self> {
        let port = Port::open(context, number)?;
        let agent = port.agent(&AgentAttr::new(MgmtClass::SUBN_ADM, CLASS_VERSION))?;
        Ok(Self { port, agent, asked: HashMap::new() })
    }

    /// Requests membership of a group. An earlier request for it is not answered any more.
    ///
    /// # Errors
    /// When the fabric is gone.
    pub(crate) fn join(
        &mut self,
        to: Administration,
        endpoint: EndpointId,
        record: &McMemberRecord,
        mask: McMemberRecordMask,
        wait: &RequestAttr,
    ) -> Result<()> {
        let data = record.to_bytes();
        let mut mad = SaMad::new(Method::SET, McMemberRecord::ATTR_ID, &data);
        mad.sa.component_mask = mask.bits();
        let what = Asked::Join(endpoint, record.mgid);
        self.asked.retain(|_, earlier| *earlier != what);
        self.ask(to, &mad, what, wait)
    }

    /// Returns whether a join of a group is unanswered.
    pub(crate) fn is_joining(&self, endpoint: EndpointId, mgid: Gid) -> bool {
        self.asked.values().any(|asked| *asked == Asked::Join(endpoint, mgid))
    }

    /// Releases a membership. The answer is ignored.
    pub(crate) fn leave(&self, to: Administration, record: &McMemberRecord) {
        let data = record.to_bytes();
        let mut mad = SaMad::new(Method::DELETE, McMemberRecord::ATTR_ID, &data);
        let mask = McMemberRecordMask::MGID
            | McMemberRecordMask::PORT_GID
            | McMemberRecordMask::JOIN_STATE;
        mad.sa.component_mask = mask.bits();
        let sent = self.agent.send(&to.address(), &mad.to_bytes());
        if let Err(e) = sent {
            tracing::debug!("cannot send the leave of group {}: {e}", record.mgid);
        }
    }

    /// Queries paths.
    ///
    /// # Errors
    /// When the fabric is gone.
    pub(crate) fn paths(
        &mut self,
        to: Administration,
        question: QuestionId,
        record: &PathRecord,
        mask: PathRecordMask,
        wait: &RequestAttr,
    ) -> Result<()> {
        let data = record.to_bytes();
        let mut mad = SaMad::new(Method::GET, PathRecord::ATTR_ID, &data);
        mad.sa.component_mask = mask.bits();
        self.ask(to, &mad, Asked::Paths(question), wait)
    }

    fn ask(
        &mut self,
        to: Administration,
        mad: &SaMad<'_>,
        what: Asked,
        wait: &RequestAttr,
    ) -> Result<()> {
        let tid = self.agent.request(&to.address(), &mad.to_bytes(), wait)?;
        self.asked.insert(tid, what);
        Ok(())
    }

    /// Returns the answers that have arrived, without waiting.
    ///
    /// # Errors
    /// An error when the fabric is gone and no answer is left. The outstanding queries are [unanswered](Self::give_up) then.
    pub(crate) fn take(&mut self) -> Result<Vec<Answer>> {
        let port = &self.port;
        take(&mut self.asked, || port.try_recv())
    }

    /// Returns the outstanding queries as unanswered.
    pub(crate) fn give_up(self) -> impl Iterator<Item = Answer> {
        self.asked.into_values().map(Asked::unanswered)
    }
}

/// Returns the answers to queries among the next events. An error after answers is left for the next call, which gets it again.
fn take(
    asked: &mut HashMap<Tid, Asked>,
    mut next: impl FnMut() -> Result<Option<Event>>,
) -> Result<Vec<Answer>> {
    let mut answers = Vec::new();
    while answers.len() < BUDGET {
        let event = match next() {
            Ok(Some(event)) => event,
            Err(e) if answers.is_empty() => return Err(e),
            Ok(None) | Err(_) => break,
        };
        let Some(asked) = event.tid().and_then(|tid| asked.remove(&tid)) else { continue };
        answers.push(match &event {
            Event::Mad(incoming) => asked.answered(incoming),
            Event::Unanswered(none) => {
                tracing::debug!("a query to subnet administration: {}", none.why);
                asked.unanswered()
            }
        });
    }
    Ok(answers)
}

impl AsFd for Mads {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.port.as_fd()
    }
}

/// Returns the timeout of subnet administration (`timeout`), and the number of retries (`retries`).
pub(crate) fn wait(timeout: Duration, retries: u32) -> RequestAttr {
    RequestAttr { timeout, retries }
}

#[cfg(test)]
mod tests {
    use rdmux::Cause;
    use rdmux::umad::{AgentId, Unanswered, Why};

    use super::*;

    #[test]
    fn answers_before_the_end_of_the_connection_are_taken() {
        let mut asked: HashMap<_, _> =
            [1, 2].map(|n| (Tid(n), Asked::Paths(QuestionId(n.into())))).into();
        let mut header = SaMad::new(Method::GET, PathRecord::ATTR_ID, &[]).header;
        header.tid = 1;
        let answer = Unanswered { agent: AgentId(0), header, why: Why::TimedOut };
        let mut events = vec![Event::Unanswered(answer)];
        let mut next = || match events.pop() {
            Some(event) => Ok(Some(event)),
            None => Err(rdmux::Error::new("port 1", "receive", Cause::TimedOut)),
        };
        let answers = take(&mut asked, &mut next).unwrap();
        assert!(matches!(answers[..], [Answer::Paths(QuestionId(1), Err(SaFailure::Silent))]));
        assert!(take(&mut asked, &mut next).is_err());
        assert_eq!(asked.len(), 1, "it is unanswered");
    }
}
