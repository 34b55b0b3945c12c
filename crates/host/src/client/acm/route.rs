//! Commands of the connection manager that ask ACM.

use std::sync::Arc;
use std::time::Duration;

use rdmux_cm::{Event, IdHandle, PathData, Route};
use rdmux_wire::acm::Address;

use super::{Acm, Question};
use crate::client::HostClient;
use crate::error::HostError;

impl HostClient {
    /// From now on ACM is asked like this, unless it is already.
    pub(crate) fn ask_acm(&self, acm: Option<Arc<Acm>>) {
        if let Some(acm) = acm {
            // A second one has nothing to say.
            let _ = self.acm.set(acm);
        }
    }

    /// How ACM is asked, if it is.
    pub(crate) fn acm(&self) -> Option<&Arc<Acm>> {
        self.acm.get()
    }

    /// As [`resolve_route`](Self::resolve_route), of an id that has told ADDR_RESOLVED, with this route; ACM is asked first. The path that it
    /// knows is the id's, as by [`set_paths`](Self::set_paths), and nobody else is asked; in every other case the path is looked for as
    /// without ACM, for up to `timeout`, which begins after [`Settings::timeout`](super::Settings::timeout) at the latest.
    ///
    /// It does not wait, but for the host's service.
    ///
    /// # Errors
    /// [`HostError::ServiceGone`].
    pub fn find_route_soon(
        self: &Arc<Self>,
        id: IdHandle,
        route: &Route,
        timeout: Duration,
    ) -> Result<(), HostError> {
        let Some(acm) = self.acm().filter(|_| self.session.is_ours()) else {
            return self.resolve_route_soon(id, timeout);
        };
        let question = Question::of_route(route);
        if let Some(path) = acm.cached(&question) {
            return self.take_or_resolve(id, question.to, Some(path), timeout);
        }
        if !acm.may_answer() {
            return self.resolve_route_soon(id, timeout);
        }
        let (acm, deadline) = (Arc::clone(acm), acm.deadline());
        let (client, helpers) = (Arc::downgrade(self), acm.helpers.clone());
        let has_helper = helpers.run(move || {
            let path = acm.find(&question, deadline);
            // The program may have closed the device meanwhile, and the id is gone with it.
            let Some(client) = client.upgrade() else { return };
            if let Err(error) = client.take_or_resolve(id, question.to, path, timeout) {
                tracing::debug!(%error, "nobody waits to hear it");
            }
        });
        if has_helper { Ok(()) } else { self.resolve_route_soon(id, timeout) }
    }

    /// Somebody in this process listens: ACM is to know the host.
    pub(in crate::client) fn be_found(&self) {
        if let Some(acm) = self.acm() {
            acm.serve();
        }
    }

    /// What is told of an id shows whether its path is good, if ACM has told it.
    pub(in crate::client) fn judge_path(&self, event: &Event) {
        if let Some(acm) = self.acm()
            && let Some(to) = acm.given.failed(event)
        {
            acm.report(to);
        }
    }

    /// The id is no more.
    pub(in crate::client) fn forget_path(&self, id: IdHandle) {
        if let Some(acm) = self.acm() {
            acm.given.remove(id);
        }
    }

    /// The id's path is this one, if it is good for the id.
    fn take_or_resolve(
        &self,
        id: IdHandle,
        to: Address,
        path: Option<PathData>,
        timeout: Duration,
    ) -> Result<(), HostError> {
        let taken = path.map(|path| self.set_paths(id, &[path]));
        match taken {
            Some(Ok(())) => {
                if let Some(acm) = self.acm() {
                    acm.given.insert(id, to);
                }
                Ok(())
            }
            Some(Err(error)) => {
                tracing::debug!(%error, "the path that ACM told cannot be used");
                self.resolve_route_soon(id, timeout)
            }
            None => self.resolve_route_soon(id, timeout),
        }
    }
}
