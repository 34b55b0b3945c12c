//! The status of a request.

use crate::layout::codes;

codes! {
    /// The status of a request. A service passes on the class-specific status of subnet
    /// administration unchanged, so other values occur.
    Status(u8, 8 bits) {
        /// The request succeeded.
        SUCCESS = 0, "success";
        /// The service has no memory, or no room for the request.
        NO_MEMORY = 1, "out of memory";
        /// The message is invalid.
        INVALID = 2, "invalid argument";
        /// The cache has no entry and was the only permitted source, or the response was invalid.
        NO_DATA = 3, "no data available";
        /// No suitable endpoint of the host is active.
        NOT_CONNECTED = 5, "endpoint is not connected";
        /// No response arrived in time.
        TIMED_OUT = 6, "timed out";
        /// The source is not an address of the host, or there are two sources.
        SOURCE_ADDRESS = 7, "source address not available";
        /// The type of the source is unknown.
        SOURCE_TYPE = 8, "source address type not supported";
        /// The destination is missing, is given twice, or cannot be resolved.
        DEST_ADDRESS = 9, "destination address not available";
        /// The type of the destination is unknown, or it needs a source.
        DEST_TYPE = 10, "destination address type not supported";
    }
}

/// Linux errno values, which are the same on every architecture with verbs.
mod errno {
    pub(super) const ENOMEM: i32 = 12;
    pub(super) const EINVAL: i32 = 22;
    pub(super) const ENODATA: i32 = 61;
    pub(super) const EADDRNOTAVAIL: i32 = 99;
    pub(super) const ENOTCONN: i32 = 107;
    pub(super) const ETIMEDOUT: i32 = 110;
}

impl Status {
    /// Returns the errno for the client's call, or 0.
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

    /// Returns whether the request succeeded.
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
