//! What a process uses, as the kernel counts it.

use anyhow::{Context as _, Result};

/// Bytes of this process that are in memory (`statm`, second field).
pub(super) fn resident() -> Result<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = field(&statm, 1)?.parse()?;
    Ok(pages * rustix::param::page_size() as u64)
}

/// Processor time of this process, all threads, in seconds (`stat`, fields 14 and 15).
pub(super) fn cpu_time() -> Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    cpu_time_of(&stat, rustix::param::clock_ticks_per_second())
}

fn cpu_time_of(stat: &str, ticks_per_second: u64) -> Result<f64> {
    // The second field is a name in parentheses and may hold anything.
    let (_, rest) = stat.rsplit_once(')').context("/proc/self/stat makes no sense")?;
    let ticks = |n| -> Result<u64> { Ok(field(rest, n)?.parse()?) };
    Ok((ticks(11)? + ticks(12)?) as f64 / ticks_per_second as f64)
}

fn field(line: &str, n: usize) -> Result<&str> {
    line.split_whitespace().nth(n).context("a file of /proc is too short")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_process_does_not_confuse() {
        let stat = "7 (a) b 1) S 1 7 7 0 -1 4194560 100 0 0 0 150 50 0 0 20 0 4";
        assert!((cpu_time_of(stat, 100).unwrap() - 2.0).abs() < 1e-9);
    }

    #[test]
    fn this_process_is_in_memory() {
        assert!(resident().unwrap() > 4096);
        assert!(cpu_time().unwrap() >= 0.0);
    }
}
