//! Offers that are taken and whose commit arrives in time, late, or not at all.

use std::time::Duration;

use rdmux_testing::TempDir;

use super::*;
use crate::service::testing;

/// The offerer's end of a connection, and the pair that a service has taken.
struct Taken {
    core: Core,
    offerer: OwnedFd,
    client: ClientId,
    pair: PairId,
    _dir: TempDir,
}

fn taken() -> Taken {
    let (mut core, dir) = testing::core();
    let (offerer, ours) = socket::pair().unwrap();
    socket::set_nonblocking(&ours, true).unwrap();
    let client = core.add_client(ours).unwrap();
    core.clients.get_mut(client).unwrap().kind = Some(ClientKind::Host);
    let (RingFds { tx, rx }, _) = RingPair::create(DEFAULT_CAPACITY).unwrap();
    let bell = Bell::Ours(PeerBell::pair().unwrap().0);
    let connection = Connection::Theirs(client);
    let share = core.descriptors_for(client, DESCRIPTORS).unwrap();
    let link = Link { tx, rx, bell, reach: None, connection, _share: share };
    let ends = Ends { local: 1, host: ([127, 79, 0, 9], 9).into(), slot: 3 };
    let now = core.now();
    let (pair, _) = core.host_rings.pairs.take(now, ends, (77, 2100), link).unwrap();
    Taken { core, offerer, client, pair, _dir: dir }
}

impl Taken {
    fn expire(&mut self) {
        self.core.started -= Duration::from_secs(2);
        self.core.expire_host_rings();
    }

    fn is_up(&self) -> bool {
        self.core.host_rings.pairs.get(self.pair).is_some_and(Pair::is_up)
    }

    /// Returns whether the service's poller reports a message of the offerer.
    fn is_ready(&self) -> bool {
        let mut ready = Vec::new();
        self.core.poller.wait(Some(Duration::ZERO), &mut ready).unwrap();
        ready.iter().any(|source| source.token == Token::Rpc(self.client))
    }
}

#[test]
fn a_commit_that_waits_when_the_time_is_over_counts_until_the_offerer_ends() {
    let mut t = taken();
    tell(&t.offerer, &Request::CommitRing, &[]).unwrap();
    t.expire();
    t.core.bury();
    assert!(t.is_up());
    assert!(!t.is_ready(), "the service would look again and again");
    drop(std::mem::replace(&mut t.offerer, socket::pair().unwrap().0));
    assert!(t.is_ready());
    t.core.serve(t.client, &mut vec![0; MAX_MESSAGE]);
    t.core.bury();
    assert!(!t.is_up() && t.core.clients.get(t.client).is_none());
}

#[test]
fn a_commit_after_the_time_is_over_fails_at_the_offerer() {
    let mut t = taken();
    t.expire();
    assert!(tell(&t.offerer, &Request::CommitRing, &[]).is_err());
    assert!(t.core.host_rings.pairs.get(t.pair).is_none());
    t.core.bury();
    assert!(t.core.clients.get(t.client).is_none());
}
