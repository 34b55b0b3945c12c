//! Which users a service serves.

use std::collections::BTreeSet;

/// Which users of this machine may use a service, beside its owner and root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Users {
    /// Those with these numbers.
    Of(BTreeSet<u32>),
    /// All.
    All,
}

impl Users {
    /// Only the owner and root.
    pub const NONE: Self = Self::Of(BTreeSet::new());

    /// Whether a user may use the service of this process, whose owner is the process's effective user.
    pub fn may(&self, uid: u32) -> bool {
        uid == 0
            || uid == rustix::process::geteuid().as_raw()
            || match self {
                Self::Of(users) => users.contains(&uid),
                Self::All => true,
            }
    }

    /// The mode of a Unix socket to which they, the owner and root can connect. If there are others, anybody can: who may is to
    /// be checked by the credentials of the peer (`SO_PEERCRED`, unix(7)).
    pub fn socket_mode(&self) -> u32 {
        if *self == Self::NONE { 0o600 } else { 0o666 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_and_root_may_always_and_others_if_they_are_named() {
        let own = rustix::process::geteuid().as_raw();
        let other = own + 1;
        for users in [Users::NONE, Users::Of([other + 1].into()), Users::All] {
            assert!(users.may(own) && users.may(0));
        }
        assert!(!Users::NONE.may(other) && !Users::Of([other + 1].into()).may(other));
        assert!(Users::Of([other].into()).may(other) && Users::All.may(other));
    }

    #[test]
    fn socket_is_the_owner_s_only_while_there_are_no_others() {
        assert_eq!(Users::NONE.socket_mode(), 0o600);
        assert_eq!(Users::Of([7].into()).socket_mode(), 0o666);
        assert_eq!(Users::All.socket_mode(), 0o666);
    }
}
