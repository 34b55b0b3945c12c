//! ServiceRecord: a service, its location and its lease (IBTA 15.2.5.14).

use crate::layout::{Text, components, layout};
use crate::{Gid, Pkey, ServiceId};

layout! {
    /// A service.
    ServiceRecord("ServiceRecord", 176) {
        /// The ID of the service.
        service_id: ServiceId = 0;
        /// The GID of the service's port.
        service_gid: Gid = 8;
        /// The partition.
        service_pkey: Pkey = 24;
        /// Reserved.
        reserved26: u16 = 26;
        /// The lease in seconds; all ones mean infinite.
        service_lease: u32 = 28;
        /// The key required to change the record.
        service_key: [u8; 16] = 32;
        /// The name of the service.
        service_name: Text<64> = 48;
        /// Data of the service.
        service_data8: [u8; 16] = 112;
        /// Data of the service.
        service_data16: [u16; 8] = 128;
        /// Data of the service.
        service_data32: [u32; 4] = 144;
        /// Data of the service.
        service_data64: [u64; 2] = 160;
    }
}

components! {
    /// Components of a query for [`ServiceRecord`]s.
    ServiceRecordMask(ServiceRecord) {
        SERVICE_ID = 0, "service_id";
        SERVICE_GID = 1, "service_gid";
        SERVICE_PKEY = 2, "service_pkey";
        SERVICE_LEASE = 4, "service_lease";
        SERVICE_KEY = 5, "service_key";
        SERVICE_NAME = 6, "service_name";
        SERVICE_DATA8_0 = 7, "service_data8[0]";
        SERVICE_DATA8_1 = 8, "service_data8[1]";
        SERVICE_DATA8_2 = 9, "service_data8[2]";
        SERVICE_DATA8_3 = 10, "service_data8[3]";
        SERVICE_DATA8_4 = 11, "service_data8[4]";
        SERVICE_DATA8_5 = 12, "service_data8[5]";
        SERVICE_DATA8_6 = 13, "service_data8[6]";
        SERVICE_DATA8_7 = 14, "service_data8[7]";
        SERVICE_DATA8_8 = 15, "service_data8[8]";
        SERVICE_DATA8_9 = 16, "service_data8[9]";
        SERVICE_DATA8_10 = 17, "service_data8[10]";
        SERVICE_DATA8_11 = 18, "service_data8[11]";
        SERVICE_DATA8_12 = 19, "service_data8[12]";
        SERVICE_DATA8_13 = 20, "service_data8[13]";
        SERVICE_DATA8_14 = 21, "service_data8[14]";
        SERVICE_DATA8_15 = 22, "service_data8[15]";
        SERVICE_DATA16_0 = 23, "service_data16[0]";
        SERVICE_DATA16_1 = 24, "service_data16[1]";
        SERVICE_DATA16_2 = 25, "service_data16[2]";
        SERVICE_DATA16_3 = 26, "service_data16[3]";
        SERVICE_DATA16_4 = 27, "service_data16[4]";
        SERVICE_DATA16_5 = 28, "service_data16[5]";
        SERVICE_DATA16_6 = 29, "service_data16[6]";
        SERVICE_DATA16_7 = 30, "service_data16[7]";
        SERVICE_DATA32_0 = 31, "service_data32[0]";
        SERVICE_DATA32_1 = 32, "service_data32[1]";
        SERVICE_DATA32_2 = 33, "service_data32[2]";
        SERVICE_DATA32_3 = 34, "service_data32[3]";
        SERVICE_DATA64_0 = 35, "service_data64[0]";
        SERVICE_DATA64_1 = 36, "service_data64[1]";
    }
}
