//! Limits on how much of a service's resources the processes of one user may have.
//!
//! The service's owner and root may have everything. Any other user may have half, and all of these
//! together three quarters. So one user cannot exclude the next, and a quarter is left for the owner.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// The amounts of one resource that users have. Clones share the amounts.
#[derive(Clone, Debug)]
pub struct Shares(Arc<Shared>);

/// The limits and the users' amounts.
#[derive(Debug)]
struct Shared {
    owner: u32,
    all: usize,
    /// The amount of each user other than the owner and root.
    has: Mutex<BTreeMap<u32, usize>>,
}

/// The error that a user would exceed its share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "user {user} holds {has} of {all}, and all users except the service's owner hold {others}: \
     the limits are half for one user, three quarters for all"
)]
pub struct Exceeded {
    /// The user that requested more.
    pub user: u32,
    /// The amount that the user has.
    pub has: usize,
    /// The amount that all limited users have.
    pub others: usize,
    /// The total amount.
    pub all: usize,
}

impl Shares {
    /// Creates the shares of a resource of `all` units, for a service of this process's user.
    pub fn new(all: usize) -> Self {
        Self::of(rustix::process::geteuid().as_raw(), all)
    }

    /// Creates the shares of a resource of `all` units, for a service of this owner.
    pub fn of(owner: u32, all: usize) -> Self {
        Self(Arc::new(Shared { owner, all, has: Mutex::default() }))
    }

    /// Creates the shares of the descriptors that this process may have.
    pub fn of_descriptors() -> Self {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        Self::new(limit.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX))
    }

    /// Assigns `count` units to a user, until the returned value is dropped.
    ///
    /// # Errors
    /// An error if the user would exceed its share.
    pub fn take(&self, user: u32, count: usize) -> Result<Share, Exceeded> {
        let mut share = self.none(user);
        share.take(count)?;
        Ok(share)
    }

    /// Returns an empty share for this user.
    pub fn none(&self, user: u32) -> Share {
        Share { shares: self.clone(), user, count: 0 }
    }
}

/// The units assigned to a user. Dropping it returns them.
#[derive(Debug)]
pub struct Share {
    shares: Shares,
    user: u32,
    count: usize,
}

impl Share {
    /// Assigns `more` units in addition.
    ///
    /// # Errors
    /// An error if the user would exceed its share.
    pub fn take(&mut self, more: usize) -> Result<(), Exceeded> {
        self.check(more)?;
        self.set(self.count.saturating_add(more));
        Ok(())
    }

    /// Checks whether the user may have `more` units in addition.
    ///
    /// # Errors
    /// An error if the user would exceed its share.
    pub fn check(&self, more: usize) -> Result<(), Exceeded> {
        if self.is_unbounded() {
            return Ok(());
        }
        let (all, map) = (self.shares.0.all, self.shares.0.has.lock());
        let (has, others) =
            (map.get(&self.user).copied().unwrap_or(0), map.values().sum::<usize>());
        let is_within = |had: usize, most: usize| had.saturating_add(more) <= most;
        if is_within(has, all / 2) && is_within(others, all - all.div_ceil(4)) {
            return Ok(());
        }
        Err(Exceeded { user: self.user, has, others, all })
    }

    /// Returns the number of units.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Sets the number of units, which may exceed the limit.
    pub fn set(&mut self, count: usize) {
        if !self.is_unbounded() && count != self.count {
            let mut map = self.shares.0.has.lock();
            let has = map.entry(self.user).or_default();
            *has = (*has - self.count).saturating_add(count);
            if *has == 0 {
                map.remove(&self.user);
            }
        }
        self.count = count;
    }

    fn is_unbounded(&self) -> bool {
        [0, self.shares.0.owner].contains(&self.user)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: u32 = 1000;

    fn shares() -> Shares {
        Shares::of(OWNER, 16)
    }

    #[test]
    fn one_user_is_limited_to_half_and_all_non_owners_to_three_quarters() {
        let shares = shares();
        let first = shares.take(1, 8).unwrap();
        let exceeded = Exceeded { user: 1, has: 8, others: 8, all: 16 };
        assert_eq!(shares.take(1, 1).unwrap_err(), exceeded);
        let _second = shares.take(2, 4).unwrap();
        assert_eq!(shares.take(2, 1).unwrap_err().others, 12);
        assert_eq!(shares.take(3, 1).unwrap_err().others, 12);
        drop(first);
        let third = shares.take(3, 8).unwrap();
        assert_eq!(third.count(), 8);
    }

    #[test]
    fn owner_and_root_are_exempt_from_shares() {
        let shares = shares();
        let _all = [shares.take(OWNER, 16).unwrap(), shares.take(0, 16).unwrap()];
        let _half = shares.take(1, 8).unwrap();
    }

    #[test]
    fn dropped_or_reduced_share_can_be_taken_again() {
        let shares = shares();
        let mut share = shares.take(1, 6).unwrap();
        let other = shares.take(1, 2).unwrap();
        assert!(share.check(1).is_err());
        share.set(5);
        share.check(1).unwrap();
        drop(other);
        share.check(3).unwrap();
        // Units that were not requested count, too.
        share.set(9);
        assert_eq!(share.check(0).unwrap_err().has, 9);
        drop(share);
        assert!(shares.0.has.lock().is_empty());
    }

    #[test]
    fn huge_share_counts_do_not_overflow() {
        let shares = Shares::of(OWNER, usize::MAX);
        assert!(shares.take(1, usize::MAX).is_err());
        let mut half = shares.take(1, usize::MAX / 2).unwrap();
        assert!(half.take(usize::MAX).is_err());
    }
}
