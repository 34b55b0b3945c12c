//! Conservation of work requests: each posted request completes once.

use rdmux_transport::env::Side;

use crate::env::TestEnv;

/// Counts the work requests of a queue pair.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Sends posted and completed.
    sends: (u64, u64),
    /// Receives posted or taken from a shared receive queue, and completed.
    recvs: (u64, u64),
}

impl Ledger {
    /// Records that a work request was posted, or taken from a shared receive queue.
    pub fn posted(&mut self, side: Side) {
        self.side(side).0 += 1;
    }

    /// Records that a work request was completed.
    ///
    /// # Panics
    /// If more are complete than were posted.
    pub fn completed(&mut self, side: Side) {
        let (posted, completed) = self.side(side);
        *completed += 1;
        assert!(completed <= posted, "{side:?}: a work request completed twice");
    }

    /// Records the receives taken and the completions since the last call.
    ///
    /// # Panics
    /// If more are complete than were posted.
    pub fn enter(&mut self, env: &mut TestEnv) {
        (0..std::mem::take(&mut env.memory.taken)).for_each(|_| self.posted(Side::Recv));
        env.completions.drain(..).for_each(|(side, _)| self.completed(side));
    }

    /// Checks that all requests are complete. Unsignaled sends complete silently, so sends are
    /// checked only if `all_sends` says that all are signaled.
    ///
    /// # Panics
    /// If any request is incomplete.
    pub fn assert_balanced(&self, all_sends: bool) {
        assert_eq!(self.recvs.0, self.recvs.1, "receives are left");
        assert!(!all_sends || self.sends.0 == self.sends.1, "sends are left: {:?}", self.sends);
    }

    fn side(&mut self, side: Side) -> &mut (u64, u64) {
        match side {
            Side::Send => &mut self.sends,
            Side::Recv => &mut self.recvs,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "completed twice")]
    fn a_second_completion_of_one_request_is_found() {
        let mut ledger = Ledger::default();
        ledger.posted(Side::Send);
        ledger.completed(Side::Send);
        ledger.assert_balanced(true);
        ledger.completed(Side::Send);
    }

    #[test]
    #[should_panic(expected = "receives are left")]
    fn a_receive_without_completion_is_found() {
        let mut ledger = Ledger::default();
        ledger.posted(Side::Recv);
        ledger.assert_balanced(false);
    }
}
