//! ibping: vendor MADs from program to program, with both sides on this fabric.

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use super::super::TIMEOUT;
use super::super::ground::{self, Ground, HOSTS, Shown};
use super::contains;

/// Checks that ibping gets as many answers as requests, by LID and by GUID, and none without a server.
pub(crate) fn ibping(ground: &Ground) -> Result<()> {
    let shown = ground.show()?;
    let server = shown.node(HOSTS[0])?;
    let lid = ground::lid(server)?.0;
    let mut process = ground.start(HOSTS[0], "server", "ibping -S")?;
    process.until("serve", TIMEOUT, |_| {
        Ok(ground.status()?.files.iter().any(|file| file.comm == "ibping"))
    })?;
    let guid = server.guid.0 + 1;
    for (line, count) in
        [(format!("ibping -c 20 -f {lid}"), 20), (format!("ibping -c 3 -f -G {guid:#x}"), 3)]
    {
        let output = ground.said(&line)?;
        let (sent, received) = statistics(&output).with_context(|| output.clone())?;
        ensure!((sent, received) == (count, count), "{line}: {output}");
        if count <= 3 {
            contains(&output, "ibping statistics")?;
        }
    }
    process.stop(Signal::TERM, TIMEOUT)?;
    let mut alone = ground.start(HOSTS[1], "alone", &format!("ibping -c 1 -t 100 {lid}"))?;
    alone.finish(TIMEOUT)?;
    let output = alone.output();
    let (_, received) = statistics(&output).with_context(|| output.clone())?;
    ensure!(received == 0, "ibping got answers without a server: {output}");
    Ok(())
}

/// Parses `3 packets transmitted, 3 received, 0% packet loss, time 2 ms`.
fn statistics(output: &str) -> Option<(u32, u32)> {
    let line = output.lines().find(|line| line.contains(" packets transmitted, "))?;
    let (sent, rest) = line.split_once(" packets transmitted, ")?;
    let (received, _) = rest.split_once(" received")?;
    Some((sent.trim().parse().ok()?, received.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    #[test]
    fn ibping_statistics_are_parsed() {
        let line = "3 packets transmitted, 2 received, 33% packet loss, time 2 ms\n";
        assert_eq!(super::statistics(line), Some((3, 2)));
        assert_eq!(super::statistics(""), None);
    }
}
