//! Requests that wait for their answers.

use std::fmt;

use rdmux_wire::smp::Smp;

use super::{Address, Agent, Event, Incoming, RequestAttr, Why};
use crate::error::{Attempt, Cause, Error, Result};

/// An agent on a port of its own that sends one request at a time.
pub struct Client {
    agent: Agent,
    attr: RequestAttr,
}

impl Client {
    pub(super) fn new(agent: Agent, attr: RequestAttr) -> Self {
        Self { agent, attr }
    }

    /// Sets the timeout and retries; one second and three retries by default.
    #[must_use]
    pub fn wait_for(mut self, attr: RequestAttr) -> Self {
        self.attr = attr;
        self
    }

    /// Returns the agent that sends the requests.
    pub fn agent(&self) -> &Agent {
        &self.agent
    }

    /// Sends a request and waits for its answer, whose status may be an error.
    ///
    /// # Errors
    /// [`Cause::TimedOut`] when no answer arrives; [`Cause::Os`] when the request was not sent or its transfer
    /// was aborted; [`Cause::Invalid`] and [`Cause::Fabric`] as for [`Agent::request`].
    pub fn ask(&mut self, to: &Address, mad: &[u8]) -> Result<Incoming> {
        let tid = self.agent.request(to, mad, &self.attr)?;
        loop {
            let event = self.agent.port().recv()?;
            // Other events belong to requests that were given up.
            if (event.agent(), event.tid()) != (self.agent.id(), Some(tid)) {
                continue;
            }
            match event {
                Event::Mad(answer) => return Ok(answer),
                Event::Unanswered(none) => return Err(self.error(none.why)),
            }
        }
    }

    /// Sends a subnet management request and waits for its answer, like [`ask`](Self::ask).
    ///
    /// # Errors
    /// As `ask`, and [`Cause::Invalid`] for an answer that is not an SMP.
    pub fn ask_smp(&mut self, to: &Address, smp: &Smp) -> Result<Smp> {
        let answer = self.ask(to, &smp.to_bytes())?;
        let answer = Smp::parse(&answer.mad).map_err(|e| Cause::Invalid(e.to_string()));
        answer.on(&self.agent, "read an answer")
    }

    fn error(&self, why: Why) -> Error {
        let cause = match why {
            Why::TimedOut => Cause::TimedOut,
            Why::Aborted => Cause::Os(std::io::ErrorKind::ConnectionAborted.into()),
            Why::Refused(errno) => Cause::Os(std::io::Error::from_raw_os_error(errno)),
        };
        Error::new(self.agent.to_string(), "get an answer", cause)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({:?})", self.agent)
    }
}
