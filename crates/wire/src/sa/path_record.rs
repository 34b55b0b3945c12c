//! PathRecord: the path of packets between two ports (IBTA 15.2.5.16).

use super::{Rate, Selector};
use crate::layout::{components, layout};
use crate::{Gid, Lid, Pkey, ServiceId};

layout! {
    /// A path. In a query a selector says how to compare with its value; in a response it is [`Selector::EXACTLY`].
    PathRecord("PathRecord", 64) {
        /// The service that the path is for, if quality of service depends on it.
        service_id: ServiceId = 0;
        /// The GID of the destination, or of a group.
        dgid: Gid = 8;
        /// The GID of the source.
        sgid: Gid = 24;
        /// The LID of the destination.
        dlid: Lid = 40;
        /// The LID of the source.
        slid: Lid = 42;
        /// Whether the path is for raw packets.
        raw_traffic: bool = 44 [0, 1];
        /// Reserved.
        reserved44: u8 = 44 [1, 3];
        /// Flow label, 20 bits.
        flow_label: u32 = 44 [4, 20];
        /// Hop limit; 0 inside a subnet.
        hop_limit: u8 = 47;
        /// Traffic class.
        tclass: u8 = 48;
        /// Whether the path is reversible.
        reversible: bool = 49 [0, 1];
        /// The maximum number of paths requested, 7 bits.
        numb_path: u8 = 49 [1, 7];
        /// The partition.
        pkey: Pkey = 50;
        /// Class of quality of service, 12 bits.
        qos_class: u16 = 52 [0, 12];
        /// Service level.
        sl: u8 = 53 [4, 4];
        /// How to compare with `mtu`.
        mtu_selector: Selector = 54 [0, 2];
        /// A code of [`Mtu`](crate::Mtu).
        mtu: u8 = 54 [2, 6];
        /// How to compare with `rate`.
        rate_selector: Selector = 55 [0, 2];
        /// The rate of the slowest link.
        rate: Rate = 55 [2, 6];
        /// How to compare with `packet_life_time`.
        packet_life_time_selector: Selector = 56 [0, 2];
        /// The packet lifetime: 4.096 us * 2^code.
        packet_life_time: u8 = 56 [2, 6];
        /// The rank among several paths; 0 is the best.
        preference: u8 = 57;
        /// Reserved.
        reserved58: [u8; 6] = 58;
    }
}

components! {
    /// Components of a query for [`PathRecord`]s.
    PathRecordMask(PathRecord) {
        SERVICE_ID_MSB = 0, "service_id";
        SERVICE_ID_LSB = 1, "service_id";
        DGID = 2, "dgid";
        SGID = 3, "sgid";
        DLID = 4, "dlid";
        SLID = 5, "slid";
        RAW_TRAFFIC = 6, "raw_traffic";
        FLOW_LABEL = 8, "flow_label";
        HOP_LIMIT = 9, "hop_limit";
        TCLASS = 10, "tclass";
        REVERSIBLE = 11, "reversible";
        NUMB_PATH = 12, "numb_path";
        PKEY = 13, "pkey";
        QOS_CLASS = 14, "qos_class";
        SL = 15, "sl";
        MTU_SELECTOR = 16, "mtu_selector";
        MTU = 17, "mtu";
        RATE_SELECTOR = 18, "rate_selector";
        RATE = 19, "rate";
        PACKET_LIFE_TIME_SELECTOR = 20, "packet_life_time_selector";
        PACKET_LIFE_TIME = 21, "packet_life_time";
        PREFERENCE = 22, "preference";
    }
}
