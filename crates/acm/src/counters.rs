//! The counters of an endpoint or of all.

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// The counters since the start. The first seven are those of ibacm, in its order.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// The names, in the order of [`values`](Self::values).
            pub const NAMES: &[&str] = &[$(stringify!($name)),*];

            /// Returns all values.
            pub fn values(&self) -> impl Iterator<Item = u64> {
                [$(self.$name),*].into_iter()
            }
        }

        impl core::ops::AddAssign for Counters {
            fn add_assign(&mut self, other: Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

counters! {
    /// Client requests that failed for another reason than missing data.
    errors,
    /// Client requests.
    resolves,
    /// Client requests that were answered with "no data".
    no_data,
    /// Addresses that had to be queried.
    address_queries,
    /// Requests for a cached address.
    address_hits,
    /// Path queries to subnet administration.
    route_queries,
    /// Requests for a cached path.
    route_hits,
    /// Requests multicast to the group.
    sent_requests,
    /// Requests sent to the endpoint that was known to have the address.
    sent_checks,
    /// Retransmissions.
    retries,
    /// Searches that ended because the answer was overheard.
    overheard,
    /// Announcements of the endpoint's own addresses.
    announcements,
    /// Answers sent.
    sent_answers,
    /// Answers dropped because too many were queued.
    dropped_answers,
    /// Requests received from other endpoints.
    received_requests,
    /// Answers received.
    received_answers,
    /// Answers without a matching request.
    unsolicited,
    /// Datagrams that do not conform to the protocol.
    malformed,
    /// Datagrams from impossible senders, or with groups that the endpoint is not in.
    refused,
    /// Addresses claimed by two endpoints.
    contradictions,
    /// Contradictions in which the new claim was believed.
    replaced,
    /// Addresses learned.
    learned,
    /// Addresses evicted to make room.
    evicted,
    /// Addresses not learned because there was no room.
    no_room,
    /// Expired addresses, found by a lookup or by the sweep.
    expired,
    /// Addresses invalidated before they expired.
    invalidated,
    /// Requests refused by a negative cache entry.
    negative_hits,
    /// Addresses confirmed before they expired.
    refreshed,
    /// Searches that timed out.
    timeouts,
    /// Client requests whose deadline passed.
    deadlines,
    /// Memberships granted by subnet administration.
    joins,
    /// Memberships that subnet administration refused or did not answer.
    failed_joins,
}

impl Counters {
    /// The number of counters that ibacm has.
    pub const IBACM: usize = 7;
}
