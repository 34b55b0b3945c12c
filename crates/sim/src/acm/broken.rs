//! Tests of the checks themselves: each breaks one thing on purpose in a good run.

use std::time::Duration;

use rdmux_acm::{ClaimPolicy, EndpointId, Known, RequestId};
use rdmux_transport::Time;
use rdmux_wire::acm::Address;
use rdmux_wire::{Gid, Guid, Lid};

use super::AcmScenario;
use super::driver::Want;
use super::world::{Event, World};

/// Returns a world in which nothing goes wrong, some time after its start.
fn running() -> World {
    started(100, |scenario| {
        scenario.is_good() && scenario.requests > 200 && scenario.timeout * 2 < scenario.span
    })
}

/// Returns the first world with such a scenario, after as many requests.
fn started(requests: u64, is_fit: impl Fn(&AcmScenario) -> bool) -> World {
    for seed in 0.. {
        let mut world = World::new(seed, false);
        if is_fit(&world.scenario) {
            while world.stats.requests < requests {
                world.advance().expect("nothing is broken");
            }
            return world;
        }
    }
    unreachable!()
}

/// Runs a world and returns the first failure.
fn found(mut world: World) -> String {
    for _ in 0..100_000 {
        if let Err(what) = world.advance() {
            return what;
        }
    }
    panic!("nothing was found")
}

fn everywhere(world: &mut World, gid: Gid, lid: Lid) {
    let now = world.agenda.now();
    for n in 0..world.scenario.addresses {
        for host in &mut world.hosts {
            let known = Known { gid, lid, path: None };
            let address = super::world::address(n);
            host.machine.load(now, EndpointId(0), address, &known, &mut host.driver);
        }
    }
}

#[test]
fn acm_path_to_a_port_without_the_address_is_detected() {
    let mut world = running();
    everywhere(&mut world, Gid::new(Gid::DEFAULT_PREFIX, Guid(0x0001_0000)), Lid(1));
    let what = found(world);
    assert!(what.contains("which has not had it since"), "{what}");
}

#[test]
fn acm_path_published_with_a_wrong_lid_is_detected() {
    let mut world = running();
    let now = world.agenda.now();
    let (path, address) = world
        .hosts
        .iter()
        .find_map(|host| host.driver.published.iter().next().map(|(a, (path, _))| (*path, *a)))
        .expect("something is published");
    let lid = Lid(49);
    for host in &mut world.hosts {
        let wrong = rdmux_wire::sa::PathRecord { dlid: lid, ..path };
        for n in 0..world.scenario.addresses {
            host.driver.published.insert(super::world::address(n), (wrong, Time::NEVER));
        }
        host.driver.published.insert(address, (wrong, Time::NEVER));
    }
    assert!(now > Time(1));
    let what = found(world);
    assert!(what.starts_with("read:"), "{what}");
}

#[test]
fn acm_unanswered_request_is_detected() {
    let mut world = running();
    world.lose_answers = true;
    let what = found(world);
    assert!(what.contains("should have ended"), "{what}");
}

#[test]
fn acm_unsolicited_answer_is_detected() {
    let mut world = running();
    let failure = rdmux_acm::Failure::TimedOut;
    let want = Want::Answer(rdmux_acm::ClientId(9), RequestId(9), Err(failure));
    world.hosts[0].driver.wants.push(want);
    world.agenda.after(Duration::ZERO, Event::Room(0));
    let what = found(world);
    assert!(what.contains("was not asked"), "{what}");
}

#[test]
fn acm_cache_beyond_its_limit_is_detected() {
    let mut world = running();
    world.scenario.options.max_entries = 1;
    let what = found(world);
    assert!(what.contains("remembers"), "{what}");
}

#[test]
fn acm_unresolved_address_without_faults_is_detected() {
    let mut world = running();
    // No datagram arrives, although the scenario loses none.
    world.mute = true;
    for n in 0..world.scenario.addresses {
        let address: Address = super::world::address(n);
        let now = world.agenda.now();
        for host in &mut world.hosts {
            let what = rdmux_acm::Forget::Address(address);
            host.machine.forget(now, what, &mut host.driver);
        }
    }
    let what = found(world);
    assert!(what.contains("is not found"), "{what}");
}

#[test]
fn acm_believed_false_claim_is_detected() {
    for claims in [ClaimPolicy::First, ClaimPolicy::Verified] {
        let mut world = started(1, |scenario| {
            scenario.is_good_but_for_lies()
                && scenario.refuses_lies()
                && scenario.options.claims == claims
                && scenario.lies > 20
                && scenario.requests > 100
        });
        let (now, newest) = (world.agenda.now(), ClaimPolicy::Newest);
        let options = rdmux_acm::Options { claims: newest, ..world.scenario.options.clone() };
        for host in &mut world.hosts {
            host.machine.set_options(now, options.clone(), &mut host.driver);
        }
        let what = found(world);
        assert!(what.contains(", which has "), "{what}");
    }
}
