//! `verbs_peer` (C, on the kernel's driver) against `verbs-peer` (on the crate `rdmux`).

use std::collections::BTreeMap;

use anyhow::{Result, anyhow};

use super::{Asks, Check, Guest, Outcome};
use crate::exchange::LOST_ANSWER;

/// How often a test is run whose answer the wire swallowed, before that counts as a failure.
const TRIES: u32 = 4;

/// One run of the client fills a row for each test. Tests whose only answer was lost are run again.
pub(super) fn run(guest: &Guest, check: &Check, tests: &[&str]) -> Vec<Outcome> {
    let mut outcomes: BTreeMap<&str, Outcome> = BTreeMap::new();
    let mut wanted = tests.to_vec();
    for n in 1..=TRIES {
        let result = converse(guest, check, &wanted);
        outcomes.extend(wanted.iter().map(|&test| (test, outcome(&result, test))));
        wanted.retain(|test| check.link.loss > 0 && n < TRIES && was_lost(&outcomes[test]));
        if wanted.is_empty() {
            break;
        }
        for test in &wanted {
            println!(
                "     # {test}, try {n} of {TRIES}: refused, then the wire lost the NAK, which is sent once"
            );
        }
    }
    let none = || Err(anyhow!("not run"));
    tests.iter().map(|test| outcomes.remove(test).unwrap_or_else(none)).collect()
}

fn was_lost(outcome: &Outcome) -> bool {
    outcome.as_ref().is_err_and(|e| e.to_string().starts_with(LOST_ANSWER))
}

/// What the client says of a test.
fn outcome(result: &Result<(String, String)>, test: &str) -> Outcome {
    let (said, ended) = result.as_ref().map_err(|e| anyhow!("{e:#}"))?;
    if said.lines().any(|l| l.strip_prefix("ok ") == Some(test)) {
        return Ok(());
    }
    let failed = format!("FAILED {test}: ");
    let why = said.lines().find_map(|l| l.strip_prefix(&failed));
    Err(why.map_or_else(|| anyhow!("no result; the client {ended}"), |w| anyhow!("{w}")))
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
    server.says("serving", guest.timeout())?;
    let args = [&["run", to, &port], tests].concat();
    let mut client = guest.start(check.asks.client(), client, &args)?;
    let ended = match client.finish(guest.timeout() * 3) {
        Ok(status) => format!("ended with {status}"),
        Err(e) => format!("{e:#}"),
    };
    Ok((client.output(), ended))
}
