//! A limit on the work per requester, so that no requester starves the others.

use alloc::collections::BTreeMap;

use crate::Time;
use crate::topology::PortRef;

/// Bytes of records that ports have received, as debts that decrease over time.
#[derive(Debug, Default)]
pub(super) struct Throttle {
    debts: BTreeMap<PortRef, Debt>,
}

/// The debt of a port in bytes, and the time at which it was computed.
#[derive(Clone, Copy, Debug)]
struct Debt {
    bytes: u64,
    at: Time,
}

/// Answers up to this size are free: a query for one record.
const FREE: usize = 1024;

impl Throttle {
    /// Returns whether a port has to wait because of its debt. Debts fall by `limit` bytes per second.
    pub(super) fn is_over(&mut self, now: Time, port: PortRef, limit: u64) -> bool {
        if self.debts.is_empty() {
            return false;
        }
        let Some(debt) = self.debts.get_mut(&port) else { return false };
        let paid = now.since(debt.at).as_nanos().saturating_mul(limit.into()) / 1_000_000_000;
        debt.bytes = debt.bytes.saturating_sub(u64::try_from(paid).unwrap_or(u64::MAX));
        debt.at = now;
        if debt.bytes == 0 {
            self.debts.remove(&port);
            return false;
        }
        debt.bytes >= limit
    }

    /// Adds bytes to a port's debt.
    pub(super) fn add(&mut self, now: Time, port: PortRef, bytes: usize) {
        if bytes > FREE {
            let debt = self.debts.entry(port).or_insert(Debt { bytes: 0, at: now });
            debt.bytes = debt.bytes.saturating_add(bytes as u64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    #[test]
    fn throttle_debt_of_a_port_decreases_with_time() {
        let (mut throttle, port) = (Throttle::default(), PortRef { node: 1, port: 1 });
        throttle.add(Time::ZERO, port, 100);
        assert!(throttle.debts.is_empty(), "one record costs nothing");
        throttle.add(Time::ZERO, port, 25_000);
        assert!(throttle.is_over(Time::ZERO, port, 10_000));
        assert!(!throttle.is_over(Time::ZERO, PortRef { node: 2, port: 1 }, 10_000));
        let after = |ms| Time::ZERO.after(Duration::from_millis(ms));
        assert!(throttle.is_over(after(1_500), port, 10_000));
        assert!(!throttle.is_over(after(1_501), port, 10_000));
        assert!(!throttle.is_over(after(2_500), port, 10_000));
        assert!(throttle.debts.is_empty());
    }
}
