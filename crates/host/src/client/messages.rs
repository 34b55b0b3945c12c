//! Commands for messages of InfiniBand's connection manager beyond connect and disconnect: MRA, REJ with every field,
//! LAP, APR.
//!
//! Errors are those of the other commands. Each command is described at the method of [`rdmux_cm::Manager`] of the same
//! name.

use rdmux_cm::{Courtesy, IdHandle, PathData, Refusal};

use super::cm::on_the_way;
use super::control::HostClient;
use crate::error::HostError;
use crate::proto::CmRequest;

impl HostClient {
    /// Rejects a request for any reason, with additional information.
    ///
    /// # Errors
    /// See above.
    pub fn reject_with(&self, id: IdHandle, refusal: Refusal) -> Result<(), HostError> {
        self.cm_done(CmRequest::RejectWith { id, refusal }, || format!("reject {id}"))
    }

    /// Requests more time from the peer to answer a request, a response or an alternate path (MRA).
    ///
    /// # Errors
    /// See above.
    pub fn ask_for_time(
        &self,
        id: IdHandle,
        service_timeout: u8,
        private_data: &[u8],
    ) -> Result<(), HostError> {
        let private_data = private_data.to_vec();
        let request = CmRequest::AskForTime { id, service_timeout, private_data };
        self.cm_done(request, || format!("ask the peer of {id} to wait"))
    }

    /// Proposes an alternate path to the peer (LAP).
    ///
    /// # Errors
    /// See above.
    pub fn load_alternate(
        &self,
        id: IdHandle,
        records: &[PathData],
        private_data: &[u8],
    ) -> Result<(), HostError> {
        let (records, private_data) = (on_the_way(records), private_data.to_vec());
        let request = CmRequest::LoadAlternate { id, records, private_data };
        self.cm_done(request, || format!("load an alternate path of {id}"))
    }

    /// Answers the peer's proposal of an alternate path (APR).
    ///
    /// # Errors
    /// See above.
    pub fn answer_alternate(&self, id: IdHandle, answer: Refusal) -> Result<(), HostError> {
        let request = CmRequest::AnswerAlternate { id, answer };
        self.cm_done(request, || format!("answer the alternate path of {id}"))
    }

    /// Sets the private data of RTU, DREQ or DREP.
    ///
    /// # Errors
    /// See above.
    pub fn set_private_data(
        &self,
        id: IdHandle,
        of: Courtesy,
        private_data: &[u8],
    ) -> Result<(), HostError> {
        let private_data = private_data.to_vec();
        let request = CmRequest::SetPrivateData { id, of, private_data };
        self.cm_done(request, || format!("set private data of {id}"))
    }

    /// Reports that the queue pair has migrated.
    ///
    /// # Errors
    /// See above.
    pub fn migrated(&self, id: IdHandle) -> Result<(), HostError> {
        self.cm_done(CmRequest::Migrated { id }, || format!("follow the migration of {id}"))
    }
}
