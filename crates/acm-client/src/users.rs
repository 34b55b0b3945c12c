//! The users that a service serves.

use std::collections::BTreeSet;

/// The users of this machine that may use a service, besides its owner and root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Users {
    /// The users with these ids.
    Of(BTreeSet<u32>),
    /// All users.
    All,
}

impl Users {
    /// Only the owner and root may connect.
    pub const NONE: Self = Self::Of(BTreeSet::new());

    /// Returns whether a user may use the service of this process, whose owner is the process's effective user.
    pub fn may(&self, uid: u32) -> bool {
        uid == 0
            || uid == rustix::process::geteuid().as_raw()
            || match self {
                Self::Of(users) => users.contains(&uid),
                Self::All => true,
            }
    }

    /// Returns the mode of a Unix socket to which they, the owner and root can connect. If there are others, any user can:
    /// check the peer's credentials (`SO_PEERCRED`, unix(7)).
    pub fn socket_mode(&self) -> u32 {
        if *self == Self::NONE { 0o600 } else { 0o666 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_and_root_always_have_access_and_others_only_if_listed() {
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
