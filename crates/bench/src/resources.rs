//! The resources that a process uses, as counted by the kernel.

use anyhow::{Context as _, Result};

/// Returns the resident bytes of this process (`statm`, second field).
pub(super) fn resident() -> Result<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = field(&statm, 1)?.parse()?;
    Ok(pages * rustix::param::page_size() as u64)
}

/// Returns the proportional set size of a process in bytes (`smaps_rollup`, `Pss`).
pub(super) fn share(pid: u32) -> Result<u64> {
    let file = format!("/proc/{pid}/smaps_rollup");
    share_of(&std::fs::read_to_string(&file).with_context(|| file.clone())?).context(file)
}

fn share_of(rollup: &str) -> Result<u64> {
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
    let kib: u64 = field(line.context("there is no line Pss")?, 0)?.parse()?;
    Ok(kib << 10)
}

/// Returns the processor time of all threads of this process, in seconds (`stat`, fields 14 and 15).
pub(super) fn cpu_time() -> Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    cpu_time_of(&stat, rustix::param::clock_ticks_per_second())
}

fn cpu_time_of(stat: &str, ticks_per_second: u64) -> Result<f64> {
    // The second field is a name in parentheses, which may contain any characters.
    let (_, rest) = stat.rsplit_once(')').context("/proc/self/stat has an unknown format")?;
    let ticks = |n| -> Result<u64> { Ok(field(rest, n)?.parse()?) };
    Ok((ticks(11)? + ticks(12)?) as f64 / ticks_per_second as f64)
}

fn field(line: &str, n: usize) -> Result<&str> {
    line.split_whitespace().nth(n).context("a line of the file in /proc has too few fields")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_stat_with_parentheses_in_the_name_is_parsed() {
        let stat = "7 (a) b 1) S 1 7 7 0 -1 4194560 100 0 0 0 150 50 0 0 20 0 4";
        assert!((cpu_time_of(stat, 100).unwrap() - 2.0).abs() < 1e-9);
    }

    #[test]
    fn the_share_of_a_process_is_in_kibibytes() {
        let rollup = "55d0-7ffe ---p 00000000 00:00 0 [rollup]\nRss:  999 kB\nPss:    20 kB\n";
        assert_eq!(share_of(rollup).unwrap(), 20480);
        assert!(share_of("Rss: 1 kB").is_err());
        assert!(share(std::process::id()).unwrap() > 4096);
    }

    #[test]
    fn resident_memory_and_cpu_time_of_this_process_are_read() {
        assert!(resident().unwrap() > 4096);
        assert!(cpu_time().unwrap() >= 0.0);
    }
}
