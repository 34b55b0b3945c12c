//! The output: the lines that ib_acme has always printed, for scripts that parse them, or one JSON document.

use std::io::{self, Write};
use std::time::Duration;

use rdmux_wire::acm::client::COUNTERS;
use rdmux_wire::sa::PathRecord;

use crate::address::Text;
use crate::endpoints::Endpoint;
use crate::json::{CountersRow, Document, PathRow};

/// The result for one destination.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// The destination, as displayed.
    pub(crate) destination: String,
    /// The source that was given, or chosen by the service.
    pub(crate) source: Option<String>,
    /// Whether the source was given.
    pub(crate) source_given: bool,
    /// A line for each repetition that failed.
    pub(crate) errors: Vec<String>,
    /// The path from the last repetition.
    pub(crate) path: Option<PathRecord>,
    /// Subnet administration's verdict, if it was queried: the fields in which its own path differs although it permits this one,
    /// or why it does not.
    pub(crate) verified: Option<Result<Vec<String>, String>>,
    /// The duration of all repetitions.
    pub(crate) time: Duration,
}

impl Outcome {
    /// Returns whether the last repetition found a path that is not refuted.
    pub(crate) fn is_success(&self) -> bool {
        self.path.is_some() && !matches!(self.verified, Some(Err(_)))
    }
}

/// The output for results.
pub(crate) struct Screen<'a> {
    out: &'a mut dyn Write,
    json: Option<Document>,
    /// Whether counters are printed in one line each.
    columns: bool,
    has_counters_heading: bool,
    has_endpoints_heading: bool,
}

impl<'a> Screen<'a> {
    /// Prints text, or JSON at the end; counters in one line each, or in a row.
    pub(crate) fn new(out: &'a mut dyn Write, json: bool, columns: bool) -> Self {
        let json = json.then(Document::default);
        Self { out, json, columns, has_counters_heading: false, has_endpoints_heading: false }
    }

    /// Prints a line of text; JSON output contains it in another form.
    pub(crate) fn line(&mut self, line: impl std::fmt::Display) -> io::Result<()> {
        if self.json.is_none() { writeln!(self.out, "{line}") } else { Ok(()) }
    }

    /// Writes out what has been printed.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Reports that a service cannot be connected to.
    pub(crate) fn unreachable(&mut self, service: &str, why: &str) -> io::Result<()> {
        if let Some(document) = &mut self.json {
            document.service(service).error = Some(why.to_owned());
        }
        self.line(format_args!("{service},unable to contact service: {why}"))
    }

    /// Starts the paths of a service.
    pub(crate) fn paths_of(&mut self, service: &str) -> io::Result<()> {
        if let Some(document) = &mut self.json {
            document.service(service);
        }
        self.line(format_args!("Service: {service}"))
    }

    /// Prints the result for a destination.
    pub(crate) fn outcome(&mut self, service: &str, outcome: &Outcome) -> io::Result<()> {
        if let Some(document) = &mut self.json {
            document.service(service).paths.push(PathRow::new(outcome));
            return Ok(());
        }
        self.line(format_args!("Destination: {}", outcome.destination))?;
        if let Some(source) = outcome.source.as_ref().filter(|_| outcome.source_given) {
            self.line(format_args!("Source: {source}"))?;
        }
        for error in &outcome.errors {
            self.line(error)?;
        }
        if let Some(path) = &outcome.path {
            if let Some(source) = outcome.source.as_ref().filter(|_| !outcome.source_given) {
                self.line(format_args!("Source: {source}"))?;
            }
            self.path(path)?;
        }
        match &outcome.verified {
            Some(Ok(differs)) if differs.is_empty() => self.line("SA verification: success")?,
            Some(Ok(differs)) => {
                self.line(format_args!("SA verification: success ({})", differs.join("; ")))?;
            }
            Some(Err(why)) => self.line(format_args!("SA verification: failed {why}"))?,
            None => {}
        }
        self.line("")?;
        self.out.flush()
    }

    fn path(&mut self, path: &PathRecord) -> io::Result<()> {
        self.line("Path information")?;
        self.line(format_args!("  dgid: {}", Text(path.dgid)))?;
        self.line(format_args!("  sgid: {}", Text(path.sgid)))?;
        self.line(format_args!("  dlid: {}", path.dlid.0))?;
        self.line(format_args!("  slid: {}", path.slid.0))?;
        self.line(format_args!("  flow label: {:#x}", path.flow_label))?;
        self.line(format_args!("  hop limit: {}", path.hop_limit))?;
        self.line(format_args!("  tclass: {}", path.tclass))?;
        self.line(format_args!("  reversible: {}", u8::from(path.reversible)))?;
        self.line(format_args!("  pkey: {:#x}", path.pkey.0))?;
        self.line(format_args!("  sl: {}", path.sl))?;
        // The low five bits of each, as always.
        self.line(format_args!("  mtu: {}", path.mtu & 0x1f))?;
        self.line(format_args!("  rate: {}", path.rate.0 & 0x1f))?;
        self.line(format_args!("  packet lifetime: {}", path.packet_life_time & 0x1f))
    }

    /// Prints the counters of a service, or of one of its endpoints.
    pub(crate) fn counters(
        &mut self,
        service: &str,
        endpoint: Option<u8>,
        counters: &[u64],
    ) -> io::Result<()> {
        if let Some(document) = &mut self.json {
            document.service(service).counters.push(CountersRow::new(endpoint, counters));
            return Ok(());
        }
        if self.columns {
            self.line(service)?;
            return counters.iter().enumerate().try_for_each(|(i, value)| {
                self.line(format_args!("{} : {value}", counter_name(i)))
            });
        }
        if !self.has_counters_heading {
            self.has_counters_heading = true;
            let names = (0..counters.len()).map(counter_name);
            self.line(format_args!("svc,{}", names.collect::<Vec<_>>().join(",")))?;
        }
        let values = counters.iter().map(u64::to_string);
        self.line(format_args!("{service},{}", values.collect::<Vec<_>>().join(",")))
    }

    /// Reports that there are no counters.
    pub(crate) fn no_counters(&mut self, service: &str, why: &str) -> io::Result<()> {
        if let Some(document) = &mut self.json {
            document.service(service).counters_error = Some(why.to_owned());
        }
        self.line(format_args!("{service}: Failed to query perf data: {why}"))
    }

    /// Prints an endpoint of a service.
    pub(crate) fn endpoint(&mut self, service: &str, endpoint: Endpoint) -> io::Result<()> {
        if let Some(document) = &mut self.json {
            document.service(service).endpoints.push(endpoint);
            return Ok(());
        }
        if !self.has_endpoints_heading {
            self.has_endpoints_heading = true;
            self.line("svc,guid,port,pkey,ep_index,prov,addr_0,addresses")?;
        }
        let Endpoint { guid, port, pkey, index, provider, addresses } = endpoint;
        let addresses: String = addresses.iter().map(|address| format!(",{address}")).collect();
        self.line(format_args!("{service},{guid},{port},{pkey},{index},{provider}{addresses}"))
    }

    /// Reports that there is no such endpoint.
    pub(crate) fn no_endpoint(&mut self, service: &str, index: u8) -> io::Result<()> {
        let why = format!("Endpoint {index} is not available");
        if let Some(document) = &mut self.json {
            document.service(service).endpoints_error = Some(why.clone());
        }
        self.line(format_args!(" {why}"))
    }

    /// Records that a file was written.
    pub(crate) fn generated(&mut self, file: &std::path::Path) {
        if let Some(document) = &mut self.json {
            document.generated.push(file.display().to_string());
        }
    }

    /// Reports another failure.
    pub(crate) fn failed(&mut self, why: &str) -> io::Result<()> {
        if let Some(document) = &mut self.json {
            document.error = Some(why.to_owned());
        }
        self.line(why)
    }

    /// Ends the output: with the document, or with a status line if requested. Returns the status; for a document it is that
    /// of its first failure, since no other output tells a script of a failure.
    pub(crate) fn finish(self, status: i32, is_said: bool) -> io::Result<i32> {
        let Some(mut document) = self.json else {
            if is_said {
                writeln!(self.out, "return status {status:#x}")?;
            }
            self.out.flush()?;
            return Ok(status);
        };
        document.status = if status == 0 && document.has_failure() { -1 } else { status };
        serde_json::to_writer_pretty(&mut *self.out, &document)?;
        writeln!(self.out)?;
        self.out.flush()?;
        Ok(document.status)
    }
}

/// Returns the name of a counter; a service may have more counters than there are names.
fn counter_name(index: usize) -> &'static str {
    COUNTERS.get(index).copied().unwrap_or("Unknown")
}
