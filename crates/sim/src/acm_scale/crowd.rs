//! The endpoints that are not simulated: which of them send when their sampled endpoint does.

use rand::Rng;

use super::Setup;

/// The crowds of all sampled endpoints.
///
/// A crowd sends when its sampled endpoint does, except at the beginning. When all endpoints start at once, each sends at
/// once only with a probability such that receivers have buffers for the requests, and the others learn from these how many
/// endpoints there are. In a sample only a few endpoints send at once, possibly none. So this choice is made for each member
/// of a crowd separately. A member that does not send at once sends with its sampled endpoint, or with another one if that
/// has sent at once.
#[derive(Debug)]
pub(super) struct Crowd {
    /// The number of endpoints that a sampled one represents, including itself.
    weight: u32,
    /// Members that have sent at once and do not repeat their first request.
    began: Vec<bool>,
    /// Members whose sampled endpoint sent at once while they did not.
    left_behind: Vec<u32>,
    /// Whether chance decides which members send.
    is_beginning: bool,
}

impl Crowd {
    pub(super) fn new(setup: &Setup) -> Self {
        Self {
            weight: setup.weight(),
            began: vec![false; setup.endpoints as usize],
            left_behind: Vec::new(),
            is_beginning: false,
        }
    }

    /// Starts all endpoints, when receivers have buffers for `at_once` requests. Returns the crowd members that send at once.
    ///
    /// If there are buffers for all of them, nothing is left to chance.
    pub(super) fn begin(&mut self, at_once: u64, rng: &mut impl Rng) -> Vec<u32> {
        let all = self.began.len() as u64;
        if self.weight == 1 || at_once >= all {
            return Vec::new();
        }
        self.is_beginning = true;
        let is_member = |endpoint: &u32| !endpoint.is_multiple_of(self.weight);
        let endpoints = u32::try_from(all).unwrap_or(u32::MAX);
        let begins = |_: &u32| rng.random_range(0..all) < at_once;
        let began: Vec<u32> = (0..endpoints).filter(is_member).filter(begins).collect();
        began.iter().for_each(|endpoint| self.began[*endpoint as usize] = true);
        began
    }

    /// Ends the beginning: all members send with their sampled endpoints from now on.
    pub(super) fn has_begun(&mut self) {
        self.is_beginning = false;
    }

    /// Returns the members that send with a sampled endpoint.
    pub(super) fn send_with(&mut self, endpoint: u32) -> Vec<u32> {
        let began = &mut self.began;
        let waited = |member: &u32| !std::mem::take(&mut began[*member as usize]);
        let members = (endpoint + 1..endpoint + self.weight).filter(waited);
        if self.is_beginning {
            self.left_behind.extend(members);
            return Vec::new();
        }
        members.chain(self.left_behind.pop()).collect()
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;

    fn crowd(endpoints: u32, sample: u32) -> Crowd {
        Crowd::new(&Setup { endpoints, sample, ..Setup::default() })
    }

    #[test]
    fn crowd_members_send_their_first_request_exactly_once() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut crowd = crowd(1024, 128);
        let mut sent = crowd.begin(256, &mut rng);
        assert!((150..300).contains(&sent.len()), "{}", sent.len());
        for endpoint in [8, 800] {
            assert_eq!(crowd.send_with(endpoint), []);
        }
        crowd.has_begun();
        let sampled = (0..1024).step_by(8);
        for endpoint in sampled.clone().filter(|endpoint| ![8, 800].contains(endpoint)) {
            sent.extend(crowd.send_with(endpoint));
        }
        sent.sort_unstable();
        assert!(sent.iter().copied().eq((0..1024).filter(|endpoint| endpoint % 8 != 0)));
        // From then on all members follow their sampled endpoint.
        for endpoint in sampled {
            assert!(crowd.send_with(endpoint).into_iter().eq(endpoint + 1..endpoint + 8));
        }
    }

    #[test]
    fn crowd_members_send_together_with_their_sample_endpoint() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut crowd = crowd(256, 64);
        assert_eq!(crowd.begin(256, &mut rng), []);
        assert_eq!(crowd.send_with(4), [5, 6, 7]);
    }
}
