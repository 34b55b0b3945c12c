//! PathRecord: how packets go from port to port (IBTA 15.2.5.16).

use super::{Rate, Selector};
use crate::layout::{components, layout};
use crate::{Gid, Lid, Pkey, ServiceId};

layout! {
    /// A path. In a question a selector says how its value is meant; in an answer it is [`Selector::EXACTLY`].
    PathRecord("PathRecord", 64) {
        /// What the path is for, when quality of service depends on it.
        service_id: ServiceId = 0;
        /// Where it ends; or a group.
        dgid: Gid = 8;
        /// Where it starts.
        sgid: Gid = 24;
        /// Where it ends.
        dlid: Lid = 40;
        /// Where it starts.
        slid: Lid = 42;
        /// For raw packets.
        raw_traffic: bool = 44 [0, 1];
        /// Reserved.
        reserved44: u8 = 44 [1, 3];
        /// Flow label, 20 bits.
        flow_label: u32 = 44 [4, 20];
        /// Hop limit; 0 inside a subnet.
        hop_limit: u8 = 47;
        /// Traffic class.
        tclass: u8 = 48;
        /// The same path serves the way back.
        reversible: bool = 49 [0, 1];
        /// How many paths are asked for at most, 7 bits.
        numb_path: u8 = 49 [1, 7];
        /// The partition.
        pkey: Pkey = 50;
        /// Class of quality of service, 12 bits.
        qos_class: u16 = 52 [0, 12];
        /// Service level.
        sl: u8 = 53 [4, 4];
        /// How `mtu` is meant.
        mtu_selector: Selector = 54 [0, 2];
        /// A code of [`Mtu`](crate::Mtu).
        mtu: u8 = 54 [2, 6];
        /// How `rate` is meant.
        rate_selector: Selector = 55 [0, 2];
        /// The rate of the slowest link.
        rate: Rate = 55 [2, 6];
        /// How `packet_life_time` is meant.
        packet_life_time_selector: Selector = 56 [0, 2];
        /// How long a packet may take: 4.096 us * 2^code.
        packet_life_time: u8 = 56 [2, 6];
        /// 0 is the best of several paths.
        preference: u8 = 57;
        /// Reserved.
        reserved58: [u8; 6] = 58;
    }
}

components! {
    /// Components of a question for [`PathRecord`]s.
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
