//! The checks and their conditions.

use super::programs::{MORE, PROGRAMS};
use super::{Asks, Check, Family, Link, What};
use crate::exchange::{OBJECTS, RELIABLE, UNRELIABLE};

const PLAIN: Link = Link { mtu: 1024, loss: 0, offload: false };
const LARGE: Link = Link { mtu: 4096, loss: 0, offload: false };
const GSO: Link = Link { mtu: 1024, loss: 0, offload: true };
const LARGE_GSO: Link = Link { mtu: 4096, loss: 0, offload: true };
const LOSSY: Link = Link { mtu: 1024, loss: 2, offload: false };
const LARGE_LOSSY: Link = Link { mtu: 4096, loss: 2, offload: true };

/// Returns all checks, in the order in which they are run: the wire is reconfigured as seldom as possible.
///
/// CI runs the brief ones: everything once, over IPv4 and without loss, and the tests that differ over IPv6, with larger packets,
/// with segmentation offload and with loss. The rest repeats them under combined conditions.
pub fn table() -> Vec<Check> {
    use Family::{V4, V6};
    use What::{Datagrams, Icrc, Messages, Multicast, Refused, Rping, Verbs};
    let mut t = Table(Vec::new());
    t.brief(11, PLAIN, V4, &[Rping { size: 64 }, Rping { size: 16384 }]);
    t.brief(7, PLAIN, V4, &[Refused, Messages, Datagrams]);
    t.brief(3, PLAIN, V4, &[Verbs(RELIABLE), Verbs(UNRELIABLE)]);
    t.brief(5, PLAIN, V4, &[Verbs(OBJECTS)]);
    t.rest(11, PLAIN, V6, &[Rping { size: 64 }]);
    t.brief(11, PLAIN, V6, &[Rping { size: 16384 }]);
    t.rest(7, PLAIN, V6, &[Refused]);
    t.brief(7, PLAIN, V6, &[Messages, Datagrams]);
    t.rest(3, PLAIN, V6, &[Verbs(RELIABLE)]);
    t.brief(3, PLAIN, V6, &[Verbs(UNRELIABLE)]);
    t.rest(5, PLAIN, V6, &[Verbs(OBJECTS)]);
    t.brief(5, PLAIN, V4, &[Multicast]);
    for program in PROGRAMS {
        t.brief(8, PLAIN, V4, &[What::Program(program)]);
    }
    for program in PROGRAMS {
        t.rest(8, PLAIN, V6, &[What::Program(program)]);
    }
    for program in MORE {
        t.brief(8, PLAIN, V4, &[What::Program(program)]);
    }
    t.rest(11, LARGE, V4, &[Rping { size: 16384 }]);
    t.brief(11, LARGE, V6, &[Rping { size: 16384 }]);
    t.rest(11, LARGE, V4, &[Messages]);
    t.brief(11, LARGE, V4, &[Datagrams]);
    t.brief(11, GSO, V4, &[Rping { size: 65535 }]);
    t.rest(11, LARGE_GSO, V4, &[Rping { size: 65535 }]);
    t.rest(11, GSO, V6, &[Rping { size: 65535 }]);
    t.brief(11, LARGE_GSO, V6, &[Rping { size: 65535 }]);
    t.brief(3, LARGE_GSO, V4, &[Verbs(RELIABLE)]);
    t.rest(3, LARGE_GSO, V4, &[Verbs(UNRELIABLE)]);
    t.brief(11, LOSSY, V4, &[Rping { size: 16384 }]);
    t.rest(11, LOSSY, V4, &[Messages]);
    t.rest(11, LOSSY, V6, &[Rping { size: 16384 }]);
    t.brief(11, LOSSY, V6, &[Messages]);
    t.brief(3, LOSSY, V4, &[Verbs(RELIABLE)]);
    t.rest(11, LARGE_LOSSY, V4, &[Rping { size: 65535 }]);
    t.brief(11, LARGE_LOSSY, V6, &[Rping { size: 65535 }]);
    t.add(11, PLAIN, V4, &[Icrc], &[Asks::Kernel], true);
    t.0
}

/// The checks added so far.
struct Table(Vec<Check>);

impl Table {
    /// Adds checks that CI runs, with each side as client.
    fn brief(&mut self, part: u8, link: Link, family: Family, what: &[What]) {
        self.add(part, link, family, what, &[Asks::Rdmux, Asks::Kernel], true);
    }

    /// Adds checks that only `--all` runs, with each side as client.
    fn rest(&mut self, part: u8, link: Link, family: Family, what: &[What]) {
        self.add(part, link, family, what, &[Asks::Rdmux, Asks::Kernel], false);
    }

    fn add(
        &mut self,
        part: u8,
        link: Link,
        family: Family,
        what: &[What],
        clients: &[Asks],
        brief: bool,
    ) {
        for &what in what {
            for &asks in clients {
                self.0.push(Check { part, link, family, asks, what, brief });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    #[test]
    fn every_row_has_a_name_of_its_own() {
        let rows: Vec<String> = super::table().iter().flat_map(super::Check::rows).collect();
        let distinct: BTreeSet<&String> = rows.iter().collect();
        assert_eq!(distinct.len(), rows.len());
    }
}
