//! `verbs_peer` (C, on the kernel's driver) against `verbs-peer` (on the crate `rdmux`).

use anyhow::{Result, anyhow};

use super::{Asks, Check, Guest, Outcome};

/// One run of the client fills a row for each test.
pub(super) fn run(guest: &Guest, check: &Check, tests: &[&str]) -> Vec<Outcome> {
    let (said, ended) = match converse(guest, check, tests) {
        Ok(both) => both,
        Err(e) => return tests.iter().map(|_| Err(anyhow!("{e:#}"))).collect(),
    };
    let outcome = |test: &&str| {
        let line = |l: &str| l.strip_prefix("ok ").is_some_and(|n| n == *test);
        if said.lines().any(line) {
            return Ok(());
        }
        let failed = format!("FAILED {test}: ");
        let why = said.lines().find_map(|l| l.strip_prefix(&failed));
        Err(why.map_or_else(|| anyhow!("no result; the client {ended}"), |w| anyhow!("{w}")))
    };
    tests.iter().map(outcome).collect()
}

/// What the client said and how it ended.
fn converse(guest: &Guest, check: &Check, tests: &[&str]) -> Result<(String, String)> {
    let port = guest.port().to_string();
    let to = check.asks.server().address(check.family);
    let (server, client) = match check.asks {
        Asks::Rdmux => ("verbs_peer", "verbs-peer"),
        Asks::Kernel => ("verbs-peer", "verbs_peer"),
    };
    let mut server = guest.start(check.asks.server(), server, &["serve", to, &port])?;
    server.says("serving", guest.patience())?;
    let args = [&["run", to, &port], tests].concat();
    let mut client = guest.start(check.asks.client(), client, &args)?;
    let ended = match client.finish(guest.patience() * 3) {
        Ok(status) => format!("ended with {status}"),
        Err(e) => format!("{e:#}"),
    };
    Ok((client.output(), ended))
}
