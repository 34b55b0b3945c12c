//! Error texts like those of strerror(3).

use std::io;

use rdmux_acm_client::Error;

/// Returns the text of an error, without the number that the standard library appends.
pub(crate) fn text(error: &io::Error) -> String {
    let text = error.to_string();
    match text.rfind(" (os error ") {
        Some(end) if error.raw_os_error().is_some() => text[..end].to_owned(),
        _ => text,
    }
}

/// Returns the reason why a service cannot be queried: the text of the errno, unless it is too vague.
pub(crate) fn of(error: &Error) -> String {
    match error {
        Error::Protocol(_) | Error::Untrusted { .. } => error.to_string(),
        _ => text(&io::Error::from_raw_os_error(error.errno())),
    }
}

#[cfg(test)]
mod tests {
    use rdmux_wire::acm::client::Status;

    use super::*;

    #[test]
    fn texts_are_those_of_the_c_library() {
        for (status, expected) in [
            (Status::NO_MEMORY, "Cannot allocate memory"),
            (Status::INVALID, "Invalid argument"),
            (Status::NO_DATA, "No data available"),
            (Status::NOT_CONNECTED, "Transport endpoint is not connected"),
            (Status::TIMED_OUT, "Connection timed out"),
            (Status::SOURCE_ADDRESS, "Cannot assign requested address"),
            (Status::DEST_ADDRESS, "Cannot assign requested address"),
            (Status::SOURCE_TYPE, "Invalid argument"),
            (Status::DEST_TYPE, "Invalid argument"),
            (Status(200), "Invalid argument"),
        ] {
            assert_eq!(text(&io::Error::from_raw_os_error(status.errno())), expected);
        }
        assert_eq!(text(&io::Error::other("no number (os error")), "no number (os error");
    }
}
