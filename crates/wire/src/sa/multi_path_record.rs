//! MultiPathRecord: a query for paths between several ports, for example for automatic migration
//! (IBTA 15.2.5.20). The response contains [`PathRecord`](super::PathRecord)s.

use super::{Rate, Selector};
use crate::layout::{components, layout};
use crate::{Gid, Pkey};

layout! {
    /// A query for paths.
    MultiPathRecord("MultiPathRecord", 200) {
        /// Whether the path is for raw packets.
        raw_traffic: bool = 0 [0, 1];
        /// Reserved.
        reserved0: u8 = 0 [1, 3];
        /// Flow label, 20 bits.
        flow_label: u32 = 0 [4, 20];
        /// Hop limit.
        hop_limit: u8 = 3;
        /// Traffic class.
        tclass: u8 = 4;
        /// Whether the path is reversible.
        reversible: bool = 5 [0, 1];
        /// The number of paths for each pair of ports, 7 bits.
        numb_path: u8 = 5 [1, 7];
        /// The partition.
        pkey: Pkey = 6;
        /// Class of quality of service, 12 bits.
        qos_class: u16 = 8 [0, 12];
        /// Service level.
        sl: u8 = 9 [4, 4];
        /// How to compare with `mtu`.
        mtu_selector: Selector = 10 [0, 2];
        /// A code of [`Mtu`](crate::Mtu).
        mtu: u8 = 10 [2, 6];
        /// How to compare with `rate`.
        rate_selector: Selector = 11 [0, 2];
        /// The rate.
        rate: Rate = 11 [2, 6];
        /// How to compare with `packet_life_time`.
        packet_life_time_selector: Selector = 12 [0, 2];
        /// The packet lifetime: 4.096 us * 2^code.
        packet_life_time: u8 = 12 [2, 6];
        /// The first 8 bits of the service ID.
        service_id_msb: u8 = 13;
        /// Whether the paths should be as independent as possible.
        independence_selector: u8 = 14 [0, 2];
        /// Reserved.
        reserved14: u8 = 14 [2, 6];
        /// The number of source GIDs, the first ones in `gids`.
        sgid_count: u8 = 15;
        /// The number of destination GIDs, those after the source GIDs.
        dgid_count: u8 = 16;
        /// The other 56 bits of the service ID.
        service_id_lsb: u64 = 17 [0, 56];
        /// The source and destination GIDs.
        gids: [Gid; 11] = 24;
    }
}

components! {
    /// Components of a query for [`MultiPathRecord`]s.
    MultiPathRecordMask(MultiPathRecord) {
        RAW_TRAFFIC = 0, "raw_traffic";
        FLOW_LABEL = 2, "flow_label";
        HOP_LIMIT = 3, "hop_limit";
        TCLASS = 4, "tclass";
        REVERSIBLE = 5, "reversible";
        NUMB_PATH = 6, "numb_path";
        PKEY = 7, "pkey";
        QOS_CLASS = 8, "qos_class";
        SL = 9, "sl";
        MTU_SELECTOR = 10, "mtu_selector";
        MTU = 11, "mtu";
        RATE_SELECTOR = 12, "rate_selector";
        RATE = 13, "rate";
        PACKET_LIFE_TIME_SELECTOR = 14, "packet_life_time_selector";
        PACKET_LIFE_TIME = 15, "packet_life_time";
        SERVICE_ID_MSB = 16, "service_id_msb";
        INDEPENDENCE_SELECTOR = 17, "independence_selector";
        SGID_COUNT = 19, "sgid_count";
        DGID_COUNT = 20, "dgid_count";
        SERVICE_ID_LSB = 21, "service_id_lsb";
    }
}
