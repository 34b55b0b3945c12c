//! The connection manager's commands that query ACM.

use std::sync::Arc;
use std::time::Duration;

use rdmux_cm::{Event, IdHandle, PathData, Route};
use rdmux_wire::acm::Address;

use super::known::Supplied;
use super::{Acm, Question};
use crate::client::HostClient;
use crate::error::HostError;

impl HostClient {
    /// Sets how ACM is queried, unless it is set already.
    pub(crate) fn ask_acm(&self, acm: Option<Arc<Acm>>) {
        if let Some(acm) = acm {
            // Later values are ignored.
            let _ = self.acm.set(acm);
        }
    }

    /// Returns how ACM is queried, if it is.
    pub(crate) fn acm(&self) -> Option<&Arc<Acm>> {
        self.acm.get()
    }

    /// Like [`resolve_route`](Self::resolve_route), for an id with this route that has reported ADDR_RESOLVED; ACM is queried first. If ACM
    /// has a path, the id gets it, as from [`set_paths`](Self::set_paths), and nothing else is queried. Otherwise the path is resolved
    /// without ACM, for up to `timeout`, which begins after [`Settings::timeout`](super::Settings::timeout) at the latest.
    ///
    /// Waits for the host's service, but not for ACM.
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
            return self.take_or_resolve(acm, id, question.to, Some(path), timeout);
        }
        if !acm.may_answer() && !acm.is_cache_coming() {
            return self.resolve_route_soon(id, timeout);
        }
        let (acm, deadline) = (Arc::clone(acm), acm.deadline());
        let (client, helpers) = (Arc::downgrade(self), acm.helpers.clone());
        let has_helper = helpers.run(move || {
            let path = acm.find(&question, deadline);
            // The program may have closed the device meanwhile, and the id is gone with it.
            let Some(client) = client.upgrade() else { return };
            if let Err(error) = client.take_or_resolve(&acm, id, question.to, path, timeout) {
                tracing::debug!(%error, "the program no longer waits for the route");
            }
        });
        if has_helper { Ok(()) } else { self.resolve_route_soon(id, timeout) }
    }

    /// Keeps an ACM service that is started on demand running while this process listens, so that other hosts find this one.
    pub(in crate::client) fn be_found(&self) {
        if let Some(acm) = self.acm() {
            acm.serve();
        }
    }

    /// Checks whether an event shows that a path from ACM is wrong, and reports that path.
    pub(in crate::client) fn judge_path(&self, event: &Event) {
        if let Some(acm) = self.acm()
            && let Some((path, since)) = acm.given.failed(event)
        {
            acm.report(path, since);
        }
    }

    /// Forgets the path of an id that is destroyed.
    pub(in crate::client) fn forget_path(&self, id: IdHandle) {
        if let Some(acm) = self.acm() {
            acm.given.remove(id);
        }
    }

    /// Makes a request that gives an id these paths. If one is from ACM, a failure along it is reported.
    pub(in crate::client) fn along(
        &self,
        id: IdHandle,
        paths: &[PathData],
        request: impl FnOnce() -> Result<(), HostError>,
    ) -> Result<(), HostError> {
        let records = paths.iter().map(|path| &path.record);
        let given = self.acm().and_then(|acm| Some((acm, acm.known.supplied(records)?)));
        match given {
            Some((acm, path)) => acm.with_given(id, path, request),
            None => request(),
        }
    }

    /// Sets this path on the id, if it fits and has not failed. Otherwise resolves one.
    fn take_or_resolve(
        &self,
        acm: &Acm,
        id: IdHandle,
        to: Address,
        path: Option<PathData>,
        timeout: Duration,
    ) -> Result<(), HostError> {
        if let Some(path) = path.filter(|path| acm.is_usable(path)) {
            let supplied = Supplied { to, way: (&path.record).into() };
            match acm.with_given(id, supplied, || self.give_paths(id, &[path])) {
                Ok(()) => return Ok(()),
                Err(error) => tracing::debug!(%error, "the path from ACM cannot be used"),
            }
        }
        self.resolve_route_soon(id, timeout)
    }
}
