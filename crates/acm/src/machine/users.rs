//! Clients and their users: their waiting requests, their shares, and their turns.
//!
//! The service's owner may have everything open that the options allow. Any other user may have half of it, and all of these together three
//! quarters. Searches count for the user whose request has started them, and for none if the machine has.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::ops::Bound;

use crate::{ClientId, RequestId, User};

/// The clients and their users.
#[derive(Debug, Default)]
pub(super) struct Users {
    /// The clients that have waiting requests, or are not the owner's.
    clients: BTreeMap<ClientId, OfClient>,
    /// The users with waiting requests or searches.
    all: BTreeMap<User, OfUser>,
}

#[derive(Debug, Default)]
struct OfClient {
    user: User,
    /// The waiting requests, in the order of their numbers, with their indices.
    requests: Vec<(RequestId, u32)>,
}

#[derive(Debug, Default)]
struct OfUser {
    /// The clients with waiting requests.
    clients: BTreeSet<ClientId>,
    open: Amounts,
}

/// The numbers of waiting requests, and of searches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Amounts {
    pub(super) requests: usize,
    pub(super) searches: usize,
}

/// Selects the search that leaves a queue if several clients wait, or if there are searches that none waits for: alternately one of the
/// next user's next client, and the one that has waited longest.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// Whether it is the next client's turn.
    pub(super) is_client_s: bool,
    /// The user whose turn was last.
    last: User,
    /// The client of each user whose turn was last.
    clients: BTreeMap<User, ClientId>,
}

impl Users {
    /// Sets the user of a client without waiting requests.
    pub(super) fn set(&mut self, client: ClientId, user: User) {
        let of_client = self.clients.entry(client).or_default();
        if of_client.requests.is_empty() {
            of_client.user = user;
            self.forget_idle(client);
        }
    }

    /// Returns a client's user.
    pub(super) fn user_of(&self, client: ClientId) -> User {
        self.clients.get(&client).map(|of_client| of_client.user).unwrap_or_default()
    }

    /// Returns the waiting requests of a client, in the order of their numbers, with their indices.
    pub(super) fn requests(&self, client: ClientId) -> &[(RequestId, u32)] {
        self.clients.get(&client).map(|of_client| &*of_client.requests).unwrap_or_default()
    }

    /// Returns the index of a waiting request.
    pub(super) fn request(&self, client: ClientId, id: RequestId) -> Option<u32> {
        let requests = self.requests(client);
        place_of(requests, id).ok().map(|at| requests[at].1)
    }

    /// Records a waiting request at an index.
    pub(super) fn add_request(&mut self, client: ClientId, id: RequestId, index: u32) {
        let of_client = self.clients.entry(client).or_default();
        if let Err(at) = place_of(&of_client.requests, id) {
            of_client.requests.insert(at, (id, index));
            let of_user = self.all.entry(of_client.user).or_default();
            of_user.clients.insert(client);
            of_user.open.requests += 1;
        }
    }

    /// Removes a request.
    pub(super) fn remove_request(&mut self, client: ClientId, id: RequestId) {
        let Some(of_client) = self.clients.get_mut(&client) else { return };
        let Ok(at) = place_of(&of_client.requests, id) else { return };
        of_client.requests.remove(at);
        let (user, is_last) = (of_client.user, of_client.requests.is_empty());
        self.removed(user, 1, is_last.then_some(client));
        self.forget_idle(client);
    }

    /// Removes a client, and returns its requests.
    pub(super) fn remove_client(&mut self, client: ClientId) -> Vec<(RequestId, u32)> {
        let Some(OfClient { user, requests }) = self.clients.remove(&client) else {
            return Vec::new();
        };
        self.removed(user, requests.len(), Some(client));
        requests
    }

    /// Counts removed requests, and removes the client that had the last of them.
    fn removed(&mut self, user: User, count: usize, client: Option<ClientId>) {
        let Some(of_user) = self.all.get_mut(&user) else { return };
        of_user.open.requests = of_user.open.requests.saturating_sub(count);
        if let Some(client) = client {
            of_user.clients.remove(&client);
        }
        if of_user.open == Amounts::default() {
            self.all.remove(&user);
        }
    }

    fn forget_idle(&mut self, client: ClientId) {
        let is_idle = |of: &OfClient| of.requests.is_empty() && of.user == User::Owner;
        if self.clients.get(&client).is_some_and(is_idle) {
            self.clients.remove(&client);
        }
    }

    /// Counts a search that a user's request has started.
    pub(super) fn add_search(&mut self, user: User) {
        self.all.entry(user).or_default().open.searches += 1;
    }

    /// Counts the end of such a search.
    pub(super) fn remove_search(&mut self, user: User) {
        if let Some(of_user) = self.all.get_mut(&user) {
            of_user.open.searches = of_user.open.searches.saturating_sub(1);
        }
        self.removed(user, 0, None);
    }

    /// Returns what a user has open.
    pub(super) fn open(&self, user: User) -> Amounts {
        self.all.get(&user).map(|of_user| of_user.open).unwrap_or_default()
    }

    /// Returns how many more requests, and more searches, a user may have if all users may have `all` together.
    pub(super) fn room(&self, user: User, all: usize) -> Amounts {
        if user == User::Owner {
            return Amounts { requests: all, searches: all }.less(self.open(user));
        }
        let of_others = self.all.iter().filter(|(user, _)| **user != User::Owner);
        let others = of_others.fold(Amounts::default(), |sum, (_, of_user)| Amounts {
            requests: sum.requests + of_user.open.requests,
            searches: sum.searches + of_user.open.searches,
        });
        let [one, together] = [share(user, all), all - all / 4]
            .map(|most| Amounts { requests: most, searches: most });
        let (one, together) = (one.less(self.open(user)), together.less(others));
        Amounts {
            requests: one.requests.min(together.requests),
            searches: one.searches.min(together.searches),
        }
    }

    /// Returns whether several clients have waiting requests.
    pub(super) fn are_several(&self) -> bool {
        self.all.values().flat_map(|of_user| &of_user.clients).nth(1).is_some()
    }

    /// Returns the first result for the waiting requests of a client, beginning with the next client of the next user, whose turn it was
    /// then.
    pub(super) fn next<T>(
        &self,
        turn: &mut Turn,
        find: impl Fn(&[(RequestId, u32)]) -> Option<T>,
    ) -> Option<T> {
        let of_user = |(user, of_user): (&User, &OfUser)| {
            let last = turn.clients.get(user).copied();
            let after = last.map_or(Bound::Unbounded, Bound::Excluded);
            let after = of_user.clients.range((after, Bound::Unbounded));
            let before = last.map(|last| of_user.clients.range(..=last));
            let mut clients = after.chain(before.into_iter().flatten());
            clients.find_map(|client| Some((*user, *client, find(self.requests(*client))?)))
        };
        let after = self.all.range((Bound::Excluded(turn.last), Bound::Unbounded));
        let (user, client, found) = after.chain(self.all.range(..=turn.last)).find_map(of_user)?;
        turn.last = user;
        turn.clients.insert(user, client);
        if turn.clients.len() > self.all.len() * 2 + 16 {
            turn.clients.retain(|user, _| self.all.contains_key(user));
        }
        Some(found)
    }
}

impl Amounts {
    fn less(self, other: Self) -> Self {
        Self {
            requests: self.requests.saturating_sub(other.requests),
            searches: self.searches.saturating_sub(other.searches),
        }
    }
}

/// Returns how much of `all` a user may have.
pub(super) fn share(user: User, all: usize) -> usize {
    if user == User::Owner { all } else { all.div_ceil(2) }
}

/// Returns the position of a request among those of its client, or where to insert it.
fn place_of(of_client: &[(RequestId, u32)], id: RequestId) -> Result<usize, usize> {
    of_client.binary_search_by_key(&id, |(id, _)| *id)
}
