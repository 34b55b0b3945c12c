//! The reason of a REJ (IBTA 12.6.7.2, table 108).

use core::fmt;

/// A reason code. Unknown codes are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RejReason(pub u16);

macro_rules! reasons {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        impl RejReason {
            $(#[doc = concat!("Reason ", stringify!($code), ": ", $text, ".")]
            pub const $name: Self = Self($code);)*

            /// Returns the meaning of the code, or none for an unknown one.
            pub const fn text(self) -> Option<&'static str> {
                match self.0 { $($code => Some($text),)* _ => None }
            }
        }
    };
}

reasons! {
    NO_QP = 1, "no QP available";
    NO_EEC = 2, "no end-to-end context available";
    NO_RESOURCES = 3, "no resources available";
    TIMEOUT = 4, "timeout";
    UNSUPPORTED = 5, "unsupported request";
    INVALID_COMM_ID = 6, "invalid communication ID";
    INVALID_COMM_INSTANCE = 7, "invalid communication instance";
    INVALID_SERVICE_ID = 8, "invalid service ID";
    INVALID_TRANSPORT_TYPE = 9, "invalid transport service type";
    STALE_CONN = 10, "stale connection";
    RDC_NOT_EXIST = 11, "reliable datagram channel does not exist";
    INVALID_GID = 12, "primary remote port GID rejected";
    INVALID_LID = 13, "primary remote port LID rejected";
    INVALID_SL = 14, "invalid primary SL";
    INVALID_TRAFFIC_CLASS = 15, "invalid primary traffic class";
    INVALID_HOP_LIMIT = 16, "invalid primary hop limit";
    INVALID_PACKET_RATE = 17, "invalid primary packet rate";
    INVALID_ALT_GID = 18, "alternate remote port GID rejected";
    INVALID_ALT_LID = 19, "alternate remote port LID rejected";
    INVALID_ALT_SL = 20, "invalid alternate SL";
    INVALID_ALT_TRAFFIC_CLASS = 21, "invalid alternate traffic class";
    INVALID_ALT_HOP_LIMIT = 22, "invalid alternate hop limit";
    INVALID_ALT_PACKET_RATE = 23, "invalid alternate packet rate";
    PORT_CM_REDIRECT = 24, "port and CM redirection";
    PORT_REDIRECT = 25, "port redirection";
    INVALID_MTU = 26, "invalid path MTU";
    INSUFFICIENT_RESP_RESOURCES = 27, "insufficient responder resources";
    CONSUMER_DEFINED = 28, "consumer reject";
    INVALID_RNR_RETRY = 29, "RNR retry count reject";
    DUPLICATE_LOCAL_COMM_ID = 30, "duplicate local communication ID";
    INVALID_CLASS_VERSION = 31, "unsupported class version";
    INVALID_FLOW_LABEL = 32, "invalid primary flow label";
    INVALID_ALT_FLOW_LABEL = 33, "invalid alternate flow label";
    VENDOR_OPTION_NOT_SUPPORTED = 35, "vendor option is not supported";
}

impl fmt::Display for RejReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text().unwrap_or("unknown"))
    }
}
