//! A service that is asked: one question at a time, each with a deadline.

use std::fmt;
use std::time::Duration;

use rdmux_acm_client::{Client, Error, Target};
use rdmux_wire::acm::Name;
use rdmux_wire::acm::client::{Query, Status};

use crate::errno;
use crate::services::{CONNECT, Service, Unreachable};

pub(crate) use rdmux_acm_client::Reply;

/// How long a service may take to answer. ibacm of rdma-core asks three times, and waits each time for two seconds and as long
/// as the subnet may take.
const DEADLINE: Duration = Duration::from_secs(60);

/// Why there is no answer.
#[derive(Debug)]
pub(crate) struct Failure(Error);

impl Failure {
    /// What the service says, if it says something.
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

/// A service that is asked, over one connection.
#[derive(Debug)]
pub(crate) struct Session {
    name: String,
    client: Client,
}

impl Session {
    /// Of a service where somebody listens.
    ///
    /// # Errors
    /// When nobody does.
    pub(crate) fn open(service: &Service) -> Result<Self, Unreachable> {
        let address = service.reach(CONNECT)?;
        let client = Client::new([Target::At(address)]);
        Ok(Self { name: service.name().to_owned(), client })
    }

    /// How the service is called.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// When the service says that something went wrong, or says nothing that is an answer in time.
    pub(crate) fn ask(&self, query: Query) -> Result<Reply, Failure> {
        self.client.ask(query, DEADLINE).map_err(Failure)
    }
}

/// Text of a service on one line, without what a terminal would obey.
pub(crate) fn shown(text: &[u8]) -> String {
    let text = &text[..text.len().min(Name::MAX)];
    Name::new(text).map(|name| name.to_string()).unwrap_or_default()
}
