//! How a request ended.

use crate::layout::codes;

codes! {
    /// How a request ended. A service passes on the class's status of subnet administration as it is, so that other values
    /// occur.
    Status(u8, 8 bits) {
        /// All is well.
        SUCCESS = 0, "success";
        /// The service has no memory, or no room for the request.
        NO_MEMORY = 1, "out of memory";
        /// The message makes no sense.
        INVALID = 2, "invalid argument";
        /// Nothing is known, and the request was for what is cached only; or the answer was no answer.
        NO_DATA = 3, "no data available";
        /// No endpoint of the host is active for it.
        NOT_CONNECTED = 5, "endpoint is not connected";
        /// Nobody answered in time.
        TIMED_OUT = 6, "timed out";
        /// The source is no address of the host, or there are two.
        SOURCE_ADDRESS = 7, "source address not available";
        /// The source is of a type that is not known.
        SOURCE_TYPE = 8, "source address type not supported";
        /// The destination is missing, or there are two, or it is none that can be resolved.
        DEST_ADDRESS = 9, "destination address not available";
        /// The destination is of a type that is not known, or needs a source.
        DEST_TYPE = 10, "destination address type not supported";
    }
}

/// The numbers of Linux, which are the same on every processor that has verbs.
mod errno {
    pub(super) const ENOMEM: i32 = 12;
    pub(super) const EINVAL: i32 = 22;
    pub(super) const ENODATA: i32 = 61;
    pub(super) const EADDRNOTAVAIL: i32 = 99;
    pub(super) const ENOTCONN: i32 = 107;
    pub(super) const ETIMEDOUT: i32 = 110;
}

impl Status {
    /// The errno that a client's call fails with, or 0.
    pub const fn errno(self) -> i32 {
        match self {
            Self::SUCCESS => 0,
            Self::NO_MEMORY => errno::ENOMEM,
            Self::NO_DATA => errno::ENODATA,
            Self::NOT_CONNECTED => errno::ENOTCONN,
            Self::TIMED_OUT => errno::ETIMEDOUT,
            Self::SOURCE_ADDRESS | Self::DEST_ADDRESS => errno::EADDRNOTAVAIL,
            _ => errno::EINVAL,
        }
    }

    /// Whether all is well.
    pub const fn is_success(self) -> bool {
        self.0 == Self::SUCCESS.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_an_errno() {
        let right = [0, 12, 22, 61, 22, 107, 110, 99, 22, 99, 22, 22];
        for (status, errno) in (0..).zip(right) {
            assert_eq!(Status(status).errno(), errno, "{}", Status(status));
        }
        assert_eq!(Status(0x83).errno(), 22);
        assert_eq!(Status(0x83).to_string(), "0x83");
    }
}
