//! PathRecord: how packets go from port to port (IBTA 15.2.5.16).

use super::{Rate, Selector};
use crate::layout::{flags, layout};
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

flags! {
    /// Components of a question for [`PathRecord`]s.
    PathRecordMask(u64, 64 bits) {
        /// The first 8 bits of `service_id`. It is always asked for with the other bit.
        SERVICE_ID_MSB = 0;
        /// The other 56 bits of `service_id`.
        SERVICE_ID_LSB = 1;
        /// `dgid`.
        DGID = 2;
        /// `sgid`.
        SGID = 3;
        /// `dlid`.
        DLID = 4;
        /// `slid`.
        SLID = 5;
        /// `raw_traffic`.
        RAW_TRAFFIC = 6;
        /// `flow_label`.
        FLOW_LABEL = 8;
        /// `hop_limit`.
        HOP_LIMIT = 9;
        /// `tclass`.
        TCLASS = 10;
        /// `reversible`.
        REVERSIBLE = 11;
        /// `numb_path`.
        NUMB_PATH = 12;
        /// `pkey`.
        PKEY = 13;
        /// `qos_class`.
        QOS_CLASS = 14;
        /// `sl`.
        SL = 15;
        /// `mtu_selector`.
        MTU_SELECTOR = 16;
        /// `mtu`.
        MTU = 17;
        /// `rate_selector`.
        RATE_SELECTOR = 18;
        /// `rate`.
        RATE = 19;
        /// `packet_life_time_selector`.
        PACKET_LIFE_TIME_SELECTOR = 20;
        /// `packet_life_time`.
        PACKET_LIFE_TIME = 21;
        /// `preference`.
        PREFERENCE = 22;
    }
}
