//! The processor time of the process.

use std::time::Duration;

use crate::sys;

/// The processor usage of all threads of the process together.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// The time in the program and in the kernel.
    pub time: Duration,
    /// The number of times that one of the process's threads was preempted.
    pub preempted: u64,
}

impl Usage {
    /// Returns the present usage; zero if the kernel forbids the query.
    pub fn now() -> Self {
        let Ok(usage) = sys::own_usage() else { return Self::default() };
        Self {
            time: duration(usage.ru_utime) + duration(usage.ru_stime),
            preempted: usage.ru_nivcsw.try_into().unwrap_or(0),
        }
    }
}

fn duration(time: libc::timeval) -> Duration {
    let seconds = time.tv_sec.try_into().unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_micros(time.tv_usec.try_into().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_usage_grows_while_computing() {
        let before = Usage::now();
        while Usage::now().time == before.time {}
        assert!(Usage::now().time > before.time);
    }
}
