//! Reasons for which packets are dropped, and their counters.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::shm::SharedMem;

macro_rules! drops {
    ($($variant:ident $name:literal, $about:literal;)*) => {
        /// The reason for which a packet, or a part of one, was dropped.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum IbDrop {
            $(#[doc = $about] $variant,)*
        }

        impl IbDrop {
            /// All reasons.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Returns the reason's name in counters.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Returns the reason with this number, as in [`Counted::Dropped`](crate::rows::Counted::Dropped).
            pub fn from_number(number: u8) -> Option<Self> {
                Self::ALL.get(usize::from(number)).copied()
            }
        }
    };
}

drops! {
    TxInactive "tx_inactive", "The port is not active, or has no LID.";
    TxNoWay "tx_no_way", "The destination LID has no route.";
    TxPkey "tx_pkey", "The P_Key is not in the port's table, or does not pass partition enforcement on the way.";
    TxSl "tx_sl", "The service level has no virtual lane on the way.";
    TxLength "tx_length", "The payload exceeds the MTU of a link on the way, or the packet's length is invalid.";
    TxGid "tx_gid", "The GID table has no such index.";
    TxRefused "tx_refused", "The kernel refused the packet.";
    RxVersion "rx_version", "The encapsulation has another version.";
    RxMalformed "rx_malformed", "The encapsulation or a header is invalid.";
    RxPart "rx_part", "The part is a duplicate.";
    RxGivenUp "rx_given_up", "The packet was discarded incomplete, because others needed the buffer.";
    RxInactive "rx_inactive", "The port is not active, or has no LID.";
    RxManagement "rx_management", "The packet is for QP0 or on VL 15, which never carry data.";
    RxLid "rx_lid", "The destination LID is neither the port's nor a group's, or no port has the source LID.";
    RxGid "rx_gid", "The destination GID is neither the port's nor a group's.";
    RxPkey "rx_pkey", "No key of the P_Key table admits its P_Key.";
    RxQkey "rx_qkey", "The Q_Key is not that of the queue pair.";
    RxIcrc "rx_icrc", "The ICRC is wrong.";
    RxStray "rx_stray", "The packet was for another process of this host, and was passed on to it.";
}

/// The number of drops for each reason.
#[derive(Debug, Default)]
pub(super) struct Drops {
    own: [AtomicU64; IbDrop::ALL.len()],
    /// A page that other processes see, and its first word for drops.
    page: Option<(SharedMem, usize)>,
}

impl Drops {
    /// Counts in the words of a page from `first` on, in the order of [`IbDrop::ALL`].
    pub(super) fn in_page(page: SharedMem, first: usize) -> Self {
        Self { page: Some((page, first)), ..Self::default() }
    }

    pub(super) fn count(&self, why: IbDrop, n: u64) {
        self.word(why).fetch_add(n, Ordering::Relaxed);
    }

    pub(super) fn get(&self, why: IbDrop) -> u64 {
        self.word(why).load(Ordering::Relaxed)
    }

    fn word(&self, why: IbDrop) -> &AtomicU64 {
        let page = self.page.as_ref();
        page.and_then(|(page, first)| page.words().get(first + why as usize))
            .unwrap_or(&self.own[why as usize])
    }
}
