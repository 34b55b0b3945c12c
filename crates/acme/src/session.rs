//! A session with a service: one query at a time, each with a deadline.

use std::fmt;
use std::time::Duration;

use rdmux_acm_client::{Client, Error, Target};
use rdmux_wire::acm::Name;
use rdmux_wire::acm::client::{Query, Status};

use crate::errno;
use crate::services::{CONNECT, Service, Unreachable};

pub(crate) use rdmux_acm_client::Reply;

/// The timeout of an answer. ibacm of rdma-core makes three attempts, and waits each time for two seconds plus the subnet
/// timeout.
const DEADLINE: Duration = Duration::from_secs(60);

/// The reason why there is no answer.
#[derive(Debug)]
pub(crate) struct Failure(Error);

impl Failure {
    /// Returns the service's status, if it has sent one.
    pub(crate) fn status(&self) -> Option<Status> {
        match self.0 {
            Error::Status(_, status) => Some(status),
            _ => None,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&errno::of(&self.0))
    }
}

/// A session with a service, over one connection.
#[derive(Debug)]
pub(crate) struct Session {
    name: String,
    client: Client,
}

impl Session {
    /// Opens a session with a service that has a listener.
    ///
    /// # Errors
    /// When it has none.
    pub(crate) fn open(service: &Service) -> Result<Self, Unreachable> {
        let address = service.reach(CONNECT)?;
        let client = Client::new([Target::At(address)]);
        Ok(Self { name: service.name().to_owned(), client })
    }

    /// Returns the service's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Sends a query and waits for the answer.
    ///
    /// # Errors
    /// When the service reports a failure, or sends no valid answer in time.
    pub(crate) fn ask(&self, query: Query) -> Result<Reply, Failure> {
        self.client.ask(query, DEADLINE).map_err(Failure)
    }
}

/// Returns a service's text on one line, without characters that control a terminal.
pub(crate) fn shown(text: &[u8]) -> String {
    let text = &text[..text.len().min(Name::MAX)];
    Name::new(text).map(|name| name.to_string()).unwrap_or_default()
}
