//! Greetings of clients that wait until the service has determined whether it has an adapter, if it can do so
//! soon.

use rdmux_runtime::closing::Foreign;

use crate::proto::ClientKind;
use crate::service::clients::{ClientId, Gone};
use crate::service::core::Core;

/// A waiting greeting.
#[derive(Debug)]
pub(in crate::service) struct Greeting {
    pub(in crate::service) client: ClientId,
    pub(in crate::service) version: u32,
    pub(in crate::service) kind: ClientKind,
    pub(in crate::service) fds: Vec<Foreign>,
}

impl Core {
    /// Answers a greeting, or keeps it while a fabric that was greeted may still answer.
    pub(in crate::service) fn take_greeting(&mut self, greeting: Greeting) {
        self.look_for_fabrics();
        // Another host's service does not need the adapter.
        if !self.adapter.is_asked_for() || greeting.kind == ClientKind::Host {
            return self.answer_greeting(greeting);
        }
        if self.adapter.waiting.iter().any(|other| other.client == greeting.client) {
            let why = "a second greeting before the reply to the first";
            return self.doom(greeting.client, Gone::Broke(why.to_owned()));
        }
        self.adapter.waiting.push(greeting);
    }

    /// Answers the waiting greetings, once all ports are decided.
    pub(super) fn answer_greetings(&mut self) {
        if self.adapter.is_asked_for() {
            return;
        }
        for greeting in std::mem::take(&mut self.adapter.waiting) {
            if self.clients.get(greeting.client).is_some() {
                self.answer_greeting(greeting);
            }
        }
    }
}
