//! A scripted peer of iWARP: plain TCP and the codecs, opposite a process on `rdmux`.
//!
//! It acts as adapters that are not available, and as peers that break the rules. [`rows`] is the table: the whole
//! matrix of MPA's start-up ([`matrix`]), the behaviour of known adapters ([`adapters`]), and invalid input
//! ([`faults`]). The expected result of a row is derived from the RFCs, not from rdmux.
//!
//! [`ours`] is the process on `rdmux`, [`wire`] the peer's end of the stream.

use anyhow::Result;

pub mod adapters;
pub mod faults;
pub mod matrix;
pub mod ours;
pub mod wire;

use ours::Hosts;

type Run = dyn Fn(&Hosts) -> Result<()>;

/// A row of the table.
pub struct Row {
    /// Its name.
    pub name: String,
    run: Box<Run>,
}

impl Row {
    fn new(name: impl Into<String>, run: impl Fn(&Hosts) -> Result<()> + 'static) -> Self {
        Self { name: format!("scripted | {}", name.into()), run: Box::new(run) }
    }

    /// Runs the row.
    ///
    /// # Errors
    /// The difference from the expected result.
    pub fn run(&self, hosts: &Hosts) -> Result<()> {
        (self.run)(hosts)
    }
}

/// Returns all rows.
pub fn rows() -> Vec<Row> {
    [matrix::rows(), adapters::rows(), faults::rows()].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    #[test]
    fn every_row_has_a_name_of_its_own() {
        let rows = super::rows();
        let names: BTreeSet<&str> = rows.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names.len(), rows.len());
    }

    #[test]
    fn every_row_passes() {
        let hosts = super::Hosts::default();
        for row in super::rows() {
            let outcome = row.run(&hosts);
            assert!(outcome.is_ok(), "{}: {:#}", row.name, outcome.unwrap_err());
        }
    }
}
