//! The environment variable for peer-to-peer mode of iWARP (RFC 6581).

use std::ffi::OsStr;

/// The variable's name.
const VARIABLE: &str = "RDMUX_PEER_TO_PEER";

/// A value of the variable that is neither 0 nor 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("RDMUX_PEER_TO_PEER={0:?} is neither 0 nor 1")]
pub(crate) struct Neither(String);

/// Returns the mode of this process's ids if the program does not set it. None leaves it to the
/// host's configuration.
pub(crate) fn of_environment() -> Result<Option<bool>, Neither> {
    std::env::var_os(VARIABLE).as_deref().map_or(Ok(None), parse)
}

fn parse(value: &OsStr) -> Result<Option<bool>, Neither> {
    match value.as_encoded_bytes() {
        b"" => Ok(None),
        b"0" => Ok(Some(false)),
        b"1" => Ok(Some(true)),
        _ => Err(Neither(value.to_string_lossy().into_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_to_peer_variable_is_0_or_1_or_empty() {
        let of = |text: &str| parse(OsStr::new(text));
        assert_eq!([of("0"), of("1"), of("")], [Ok(Some(false)), Ok(Some(true)), Ok(None)]);
        assert!(of("on").unwrap_err().to_string().contains("\"on\" is neither"));
    }
}
