//! What the environment says of ACM.

use std::ffi::OsStr;
use std::time::Duration;

/// Whether the connection manager asks ACM: `$RDMA_CM_USE_IB_ACM`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Use {
    /// Never (`0`).
    Never,
    /// If a service is there: the default.
    #[default]
    IfThere,
    /// Always (`1`): where there is no service, one is started.
    Always,
}

/// What a process has set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Whether ACM is asked.
    pub usage: Use,
    /// The longest that a resolution waits for ACM before it goes on without (`$RDMUX_ACM_TIMEOUT`, milliseconds). With zero only
    /// what ACM has in shared memory is used.
    pub timeout: Duration,
}

impl Settings {
    /// The default of [`timeout`](Self::timeout).
    pub const TIMEOUT: Duration = Duration::from_millis(500);
    /// The longest [`timeout`](Self::timeout) that can be set, in milliseconds.
    pub const MAX_TIMEOUT: u32 = 60_000;

    /// What the environment says. A value that makes no sense is told of in the log, and the default is used.
    pub fn of_environment() -> Self {
        let var = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let usage = var("RDMA_CM_USE_IB_ACM");
        let timeout = var("RDMUX_ACM_TIMEOUT");
        let known = Self::parse(usage.as_deref(), timeout.as_deref());
        known.inspect_err(|why| tracing::warn!("{why}")).unwrap_or_default()
    }

    fn parse(usage: Option<&OsStr>, timeout: Option<&OsStr>) -> Result<Self, String> {
        let usage = match usage.map(OsStr::as_encoded_bytes) {
            None => Use::IfThere,
            Some(b"0") => Use::Never,
            Some(b"1") => Use::Always,
            Some(_) => {
                let usage = usage.unwrap_or_default();
                return Err(format!("RDMA_CM_USE_IB_ACM={usage:?} is neither 0 nor 1"));
            }
        };
        let Some(timeout) = timeout else { return Ok(Self { usage, ..Self::default() }) };
        let millis = timeout.to_str().and_then(|text| text.parse::<u32>().ok());
        match millis.filter(|millis| *millis <= Self::MAX_TIMEOUT) {
            Some(millis) => Ok(Self { usage, timeout: Duration::from_millis(millis.into()) }),
            None => {
                let most = Self::MAX_TIMEOUT;
                Err(format!(
                    "RDMUX_ACM_TIMEOUT={timeout:?} is no number of milliseconds up to {most}"
                ))
            }
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self { usage: Use::default(), timeout: Self::TIMEOUT }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(usage: Option<&str>, timeout: Option<&str>) -> Result<Settings, String> {
        Settings::parse(usage.map(OsStr::new), timeout.map(OsStr::new))
    }

    #[test]
    fn service_that_is_there_is_asked_unless_told_otherwise() {
        assert_eq!(of(None, None), Ok(Settings::default()));
        assert_eq!(of(Some("0"), None).unwrap().usage, Use::Never);
        let always = of(Some("1"), Some("20")).unwrap();
        assert_eq!((always.usage, always.timeout), (Use::Always, Duration::from_millis(20)));
        assert_eq!(of(None, Some("0")).unwrap().timeout, Duration::ZERO);
    }

    #[test]
    fn values_that_make_no_sense_are_named() {
        assert!(of(Some("yes"), None).unwrap_err().contains("\"yes\" is neither"));
        for timeout in ["-1", "1s", "60001", "4294967296"] {
            assert!(of(None, Some(timeout)).unwrap_err().contains(timeout), "{timeout}");
        }
    }
}
