//! What is counted, of an endpoint or of all.

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// What was counted since the start. The first seven are those of ibacm, in its order.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// The names, in the order of [`values`](Self::values).
            pub const NAMES: &[&str] = &[$(stringify!($name)),*];

            /// All of them.
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
    /// Requests of clients that failed for another reason than missing data.
    errors,
    /// Requests of clients.
    resolves,
    /// Requests that were answered with "no data".
    no_data,
    /// Addresses that had to be asked for.
    address_queries,
    /// Requests for an address that was known.
    address_hits,
    /// Paths that subnet administration was asked for.
    route_queries,
    /// Requests for a path that was known.
    route_hits,
    /// Requests sent to the group.
    sent_requests,
    /// Requests sent to the endpoint that was known to have the address.
    sent_checks,
    /// Tries after the first.
    retries,
    /// Searches that ended because the answer was overheard.
    overheard,
    /// Announcements of own addresses.
    announcements,
    /// Answers sent.
    sent_answers,
    /// Answers that were dropped since too many waited.
    dropped_answers,
    /// Requests of others received.
    received_requests,
    /// Answers received.
    received_answers,
    /// Answers to nothing that was asked.
    unsolicited,
    /// Datagrams that are none of this protocol.
    malformed,
    /// Datagrams of senders that cannot be, or with groups that are none of ours.
    refused,
    /// Addresses that two have.
    contradictions,
    /// Contradictions in which the new one was believed.
    replaced,
    /// Addresses learned.
    learned,
    /// Addresses that were forgotten to make room.
    evicted,
    /// Addresses that were not learned since there was no room.
    no_room,
    /// Addresses that had expired when they were looked for, or were found so.
    expired,
    /// Addresses that were forgotten before they expired.
    invalidated,
    /// Requests refused by what is known not to exist.
    negative_hits,
    /// Addresses confirmed before they expired.
    refreshed,
    /// Searches that nobody answered.
    timeouts,
    /// Requests of clients whose deadline was over.
    deadlines,
    /// Memberships that administration granted.
    joins,
    /// Memberships that it refused or did not answer.
    failed_joins,
}

impl Counters {
    /// How many of them ibacm has.
    pub const IBACM: usize = 7;
}
