//! The JSON document of `--json`: the same results as the text output, with names.

use rdmux_wire::acm::client::COUNTERS;
use rdmux_wire::sa::PathRecord;
use serde::Serialize;

use crate::address::Text;
use crate::endpoints::Endpoint;
use crate::screen::Outcome;

/// The results of a run.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Document {
    pub(crate) services: Vec<Service>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) generated: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    pub(crate) status: i32,
}

/// The results of one service.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Service {
    service: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) paths: Vec<PathRow>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) counters: Vec<CountersRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) counters_error: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) endpoints: Vec<Endpoint>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) endpoints_error: Option<String>,
}

impl Document {
    /// Returns the service of this name, newly added unless it was the last.
    pub(crate) fn service(&mut self, name: &str) -> &mut Service {
        if self.services.last().is_none_or(|last| last.service != name) {
            self.services.push(Service { service: name.to_owned(), ..Service::default() });
        }
        self.services.last_mut().expect("one was pushed if there was none")
    }

    /// Returns whether anything failed.
    pub(crate) fn has_failure(&self) -> bool {
        let of = |s: &Service| {
            let errors = [&s.error, &s.counters_error, &s.endpoints_error];
            errors.iter().any(|e| e.is_some()) || s.paths.iter().any(PathRow::has_failure)
        };
        self.error.is_some() || self.services.iter().any(of)
    }
}

/// A destination.
#[derive(Debug, Serialize)]
pub(crate) struct PathRow {
    destination: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<String>,
    seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<Path>,
    #[serde(skip_serializing_if = "Option::is_none")]
    verified: Option<bool>,
    /// The fields in which subnet administration's own path differs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    differs: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    errors: Vec<String>,
}

impl PathRow {
    pub(crate) fn new(outcome: &Outcome) -> Self {
        let mut errors = outcome.errors.clone();
        if let Some(Err(why)) = &outcome.verified {
            errors.push(format!("SA verification: failed {why}"));
        }
        Self {
            destination: outcome.destination.clone(),
            source: outcome.source.clone(),
            seconds: outcome.time.as_secs_f64(),
            path: outcome.path.as_ref().map(Path::new),
            verified: outcome.verified.as_ref().map(Result::is_ok),
            differs: outcome.verified.clone().and_then(Result::ok).unwrap_or_default(),
            errors,
        }
    }

    fn has_failure(&self) -> bool {
        self.path.is_none() || self.verified == Some(false)
    }
}

/// A path record; MTU, rate and lifetime are InfiniBand's codes, as in the text output.
#[derive(Debug, Serialize)]
struct Path {
    dgid: String,
    sgid: String,
    dlid: u16,
    slid: u16,
    flow_label: u32,
    hop_limit: u8,
    tclass: u8,
    reversible: bool,
    pkey: u16,
    sl: u8,
    mtu: u8,
    rate: u8,
    packet_lifetime: u8,
}

impl Path {
    fn new(path: &PathRecord) -> Self {
        Self {
            dgid: Text(path.dgid).to_string(),
            sgid: Text(path.sgid).to_string(),
            dlid: path.dlid.0,
            slid: path.slid.0,
            flow_label: path.flow_label,
            hop_limit: path.hop_limit,
            tclass: path.tclass,
            reversible: path.reversible,
            pkey: path.pkey.0,
            sl: path.sl,
            mtu: path.mtu,
            rate: path.rate.0,
            packet_lifetime: path.packet_life_time,
        }
    }
}

/// Counters by their names, of a service or of one endpoint of it.
#[derive(Debug, Serialize)]
pub(crate) struct CountersRow {
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint: Option<u8>,
    #[serde(flatten)]
    counters: serde_json::Map<String, serde_json::Value>,
}

impl CountersRow {
    pub(crate) fn new(endpoint: Option<u8>, counters: &[u64]) -> Self {
        let names = COUNTERS.iter().map(|name| name.to_lowercase().replace(' ', "_"));
        Self { endpoint, counters: names.zip(counters.iter().map(|&value| value.into())).collect() }
    }
}
