//! ACM settings from the environment.

use std::ffi::OsStr;
use std::time::Duration;

/// When the connection manager queries ACM: `$RDMA_CM_USE_IB_ACM`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Use {
    /// Never (`0`).
    Never,
    /// Queries ACM if a service is running. The default.
    #[default]
    IfThere,
    /// Always (`1`). A service is started if none is running.
    Always,
}

/// A process's ACM settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Whether ACM is queried.
    pub usage: Use,
    /// The maximum time that a resolution waits for ACM before it continues without (`$RDMUX_ACM_TIMEOUT`, milliseconds).
    /// With zero, only ACM's shared-memory cache is used; the first lookup waits until the service has passed it, for
    /// [`Shared::WAIT`](rdmux_acm_client::Shared::WAIT) at most.
    pub timeout: Duration,
}

impl Settings {
    /// The default of [`timeout`](Self::timeout).
    pub const TIMEOUT: Duration = Duration::from_millis(500);
    /// The longest [`timeout`](Self::timeout) that can be set, in milliseconds.
    pub const MAX_TIMEOUT: u32 = 60_000;

    /// Reads the settings from the environment. An invalid value is logged, and the default is used.
    pub fn of_environment() -> Self {
        let var = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let usage = parse_usage(var("RDMA_CM_USE_IB_ACM").as_deref());
        let timeout = parse_timeout(var("RDMUX_ACM_TIMEOUT").as_deref());
        for why in [usage.as_ref().err(), timeout.as_ref().err()].into_iter().flatten() {
            tracing::warn!("{why}");
        }
        Self { usage: usage.unwrap_or_default(), timeout: timeout.unwrap_or(Self::TIMEOUT) }
    }
}

fn parse_usage(text: Option<&OsStr>) -> Result<Use, String> {
    match text.map(OsStr::as_encoded_bytes) {
        None => Ok(Use::IfThere),
        Some(b"0") => Ok(Use::Never),
        Some(b"1") => Ok(Use::Always),
        Some(_) => {
            let text = text.unwrap_or_default();
            Err(format!("RDMA_CM_USE_IB_ACM={text:?} is neither 0 nor 1"))
        }
    }
}

fn parse_timeout(text: Option<&OsStr>) -> Result<Duration, String> {
    let Some(text) = text else { return Ok(Settings::TIMEOUT) };
    let millis = text.to_str().and_then(|text| text.parse::<u32>().ok());
    match millis.filter(|millis| *millis <= Settings::MAX_TIMEOUT) {
        Some(millis) => Ok(Duration::from_millis(millis.into())),
        None => {
            let most = Settings::MAX_TIMEOUT;
            Err(format!("RDMUX_ACM_TIMEOUT={text:?} is no number of milliseconds up to {most}"))
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

    fn usage(text: &str) -> Result<Use, String> {
        parse_usage(Some(OsStr::new(text)))
    }

    fn timeout(text: &str) -> Result<Duration, String> {
        parse_timeout(Some(OsStr::new(text)))
    }

    #[test]
    fn acm_usage_and_timeout_variables_are_parsed_with_defaults() {
        let usual = Settings::default();
        assert_eq!((parse_usage(None), parse_timeout(None)), (Ok(usual.usage), Ok(usual.timeout)));
        assert_eq!((usage("0"), usage("1")), (Ok(Use::Never), Ok(Use::Always)));
        assert_eq!(timeout("20"), Ok(Duration::from_millis(20)));
        assert_eq!(timeout("0"), Ok(Duration::ZERO));
    }

    #[test]
    fn invalid_acm_variables_are_named_in_the_error() {
        assert!(usage("yes").unwrap_err().contains("\"yes\" is neither"));
        for text in ["-1", "1s", "60001", "4294967296"] {
            assert!(timeout(text).unwrap_err().contains(text), "{text}");
        }
    }
}
