//! Notice, as subnet administration reports it to subscribers (IBTA 13.4.8.2).

use crate::Gid;
use crate::layout::layout;
use crate::sm::Notice;

layout! {
    /// An event.
    ReportedNotice("Notice", 80) {
        /// The event.
        notice: Notice = 0;
        /// The GID of the sender.
        issuer_gid: Gid = 64;
    }
}
