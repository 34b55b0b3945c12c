//! Peer-to-peer mode of iWARP (RFC 6581) as the environment has it.

use std::ffi::OsStr;

/// The variable of the environment.
const VARIABLE: &str = "RDMUX_PEER_TO_PEER";

/// A value of the variable that is neither.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("RDMUX_PEER_TO_PEER={0:?} is neither 0 nor 1")]
pub(crate) struct Neither(String);

/// The mode that this process's ids have if the program says nothing; none leaves it to the host's
/// configuration.
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
    fn it_is_on_or_off_or_left_open() {
        let of = |text: &str| parse(OsStr::new(text));
        assert_eq!([of("0"), of("1"), of("")], [Ok(Some(false)), Ok(Some(true)), Ok(None)]);
        assert!(of("on").unwrap_err().to_string().contains("\"on\" is neither"));
    }
}
