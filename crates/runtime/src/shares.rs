//! How much of what a service has the processes of one user may have.
//!
//! The service's owner and root may have all of it. Of the others one user may have half, and all of them together three
//! quarters: so one does not keep the next from everything, and a quarter is left for the owner.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// Who has how much of one thing. Clones count together.
#[derive(Clone, Debug)]
pub struct Shares(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    owner: u32,
    all: usize,
    /// What each user has, save the owner and root.
    has: Mutex<BTreeMap<u32, usize>>,
}

/// More than a user may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "user {user} has {has} of {all}, and all users but the service's owner have {others}: one may have half, all of them three quarters"
)]
pub struct Exceeded {
    /// Who wanted more.
    pub user: u32,
    /// How many it has.
    pub has: usize,
    /// How many all users have that are bounded.
    pub others: usize,
    /// How many there are.
    pub all: usize,
}

impl Shares {
    /// Of a thing of which a service of this process's user has so much.
    pub fn new(all: usize) -> Self {
        Self::of(rustix::process::geteuid().as_raw(), all)
    }

    /// Of a thing of which a service of this owner has so much.
    pub fn of(owner: u32, all: usize) -> Self {
        Self(Arc::new(Shared { owner, all, has: Mutex::default() }))
    }

    /// Of the descriptors that this process may have.
    pub fn of_descriptors() -> Self {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        Self::new(limit.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX))
    }

    /// Gives a user so many, until what is returned is dropped.
    ///
    /// # Errors
    /// When it would have more than its share.
    pub fn take(&self, user: u32, count: usize) -> Result<Share, Exceeded> {
        let mut share = self.none(user);
        share.take(count)?;
        Ok(share)
    }

    /// Nothing yet, for this user.
    pub fn none(&self, user: u32) -> Share {
        Share { shares: self.clone(), user, count: 0 }
    }
}

/// What a user was given; dropping it gives it back.
#[derive(Debug)]
pub struct Share {
    shares: Shares,
    user: u32,
    count: usize,
}

impl Share {
    /// Takes so many more.
    ///
    /// # Errors
    /// When its user would have more than its share.
    pub fn take(&mut self, more: usize) -> Result<(), Exceeded> {
        self.check(more)?;
        self.set(self.count.saturating_add(more));
        Ok(())
    }

    /// Whether its user may have so many more.
    ///
    /// # Errors
    /// When it would have more than its share.
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

    /// How many it is.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Counts so many from now on, also more than there may be.
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
    fn one_user_may_have_half_and_all_but_the_owner_three_quarters() {
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
    fn the_owner_and_root_may_have_all_and_do_not_count() {
        let shares = shares();
        let _all = [shares.take(OWNER, 16).unwrap(), shares.take(0, 16).unwrap()];
        let _half = shares.take(1, 8).unwrap();
    }

    #[test]
    fn what_is_dropped_or_made_less_can_be_had_again() {
        let shares = shares();
        let mut share = shares.take(1, 6).unwrap();
        let other = shares.take(1, 2).unwrap();
        assert!(share.check(1).is_err());
        share.set(5);
        share.check(1).unwrap();
        drop(other);
        share.check(3).unwrap();
        // What came without being asked for counts, too.
        share.set(9);
        assert_eq!(share.check(0).unwrap_err().has, 9);
        drop(share);
        assert!(shares.0.has.lock().is_empty());
    }

    #[test]
    fn no_count_is_too_large() {
        let shares = Shares::of(OWNER, usize::MAX);
        assert!(shares.take(1, usize::MAX).is_err());
        let mut half = shares.take(1, usize::MAX / 2).unwrap();
        assert!(half.take(usize::MAX).is_err());
    }
}
