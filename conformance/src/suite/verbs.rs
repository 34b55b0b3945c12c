//! `verbs_peer` (C, on the kernel's driver) against `verbs-peer` (on the crate `rdmux`).

use std::collections::BTreeMap;
use std::process::ExitStatus;

use anyhow::{Result, anyhow, ensure};

use super::{Asks, Check, Guest, Outcome};
use crate::exchange::LOST_ANSWER;

/// How often a test is run if the wire lost its answer, before that counts as a failure.
const TRIES: u32 = 4;

/// Runs the client once, which fills a row for each test. Tests whose only answer was lost are run again.
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

/// The client's output, and its exit status.
type Said = (String, Result<ExitStatus>);

/// Returns the outcome of a test from the client's output. The exit status must match the output about all tests.
fn outcome(result: &Result<Said>, test: &str) -> Outcome {
    let (said, ended) = result.as_ref().map_err(|e| anyhow!("{e:#}"))?;
    let how = match ended {
        Ok(status) => format!("ended with {status}"),
        Err(e) => format!("{e:#}"),
    };
    if said.lines().any(|l| l.strip_prefix("ok ") == Some(test)) {
        let any_failed = said.lines().any(|l| l.starts_with("FAILED "));
        let code = ended.as_ref().ok().and_then(ExitStatus::code);
        ensure!(code == Some(any_failed.into()), "the test passed, but the client {how}");
        return Ok(());
    }
    let failed = format!("FAILED {test}: ");
    let why = said.lines().find_map(|l| l.strip_prefix(&failed));
    Err(why.map_or_else(|| anyhow!("the test has no result; the client {how}"), |w| anyhow!("{w}")))
}

fn converse(guest: &Guest, check: &Check, tests: &[&str]) -> Result<Said> {
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
    let ended = client.finish(guest.timeout() * 3);
    Ok((client.output(), ended))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::ExitStatus;

    use anyhow::anyhow;

    use super::{Said, outcome};

    fn said(text: &str, status: i32) -> anyhow::Result<Said> {
        Ok((text.to_owned(), Ok(ExitStatus::from_raw(status))))
    }

    #[test]
    fn client_exit_status_must_match_its_printed_results() {
        const FAILURE: i32 = 1 << 8;
        const SIGSEGV: i32 = 11;
        let good = "$ verbs-peer\nok rc/send\nok rc/read\n";
        let bad = "$ verbs-peer\nok rc/send\nFAILED rc/read: no completion\n";
        assert!(outcome(&said(good, 0), "rc/send").is_ok());
        assert!(outcome(&said(bad, FAILURE), "rc/send").is_ok());
        let e = outcome(&said(bad, FAILURE), "rc/read").unwrap_err().to_string();
        assert_eq!(e, "no completion");
        for (text, status) in [(good, FAILURE), (good, SIGSEGV), (bad, 0), (bad, SIGSEGV)] {
            let e = outcome(&said(text, status), "rc/send").unwrap_err().to_string();
            assert!(e.starts_with("the test passed, but the client ended with "), "{e}");
        }
        let endless = Ok((good.to_owned(), Err(anyhow!("verbs-peer did not end"))));
        assert!(outcome(&endless, "rc/send").is_err());
        let e = outcome(&said(good, 0), "rc/write").unwrap_err().to_string();
        assert_eq!(e, "the test has no result; the client ended with exit status: 0");
    }
}
