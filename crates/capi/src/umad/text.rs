//! Names for display (`umad_class_str(3)`). Programs print them and scripts parse the output, so each is spelled as in the
//! reference implementation.

use std::ffi::{CStr, c_char};

/// The name of an unknown value.
const UNKNOWN: &CStr = c"<unknown>";

/// Management classes, from the first to the last (IBTA 13.4.4).
const CLASSES: &[(u8, u8, &CStr)] = &[
    (0x01, 0x01, c"Subn"),
    (0x81, 0x81, c"Subn"),
    (0x03, 0x03, c"SubnAdm"),
    (0x04, 0x04, c"Perf"),
    (0x05, 0x05, c"BM"),
    (0x06, 0x06, c"DevMgt"),
    (0x07, 0x07, c"ComMgt"),
    (0x08, 0x08, c"SNMP"),
    (0x09, 0x0f, c"Vendor"),
    (0x10, 0x10, c"DevAdm"),
    (0x11, 0x11, c"BootMgt"),
    (0x12, 0x12, c"BIS"),
    (0x21, 0x21, c"CongestionManagment"),
    (0x13, 0x2f, c"Application"),
    (0x30, 0x4f, c"Vendor"),
];

/// Methods that all classes have (IBTA 13.4.5).
const METHODS: &[(u8, &CStr)] = &[
    (0x01, c"Get"),
    (0x02, c"Set"),
    (0x81, c"GetResp"),
    (0x03, c"Send"),
    (0x05, c"Trap"),
    (0x06, c"Report"),
    (0x86, c"ReportResp"),
    (0x07, c"TrapRepress"),
];

/// Methods of subnet administration (IBTA 15.2.2).
const SA_METHODS: &[(u8, &CStr)] = &[
    (0x12, c"GetTable"),
    (0x92, c"GetTableResp"),
    (0x13, c"GetTraceTable"),
    (0x14, c"GetMulti"),
    (0x94, c"GetMultiResp"),
    (0x15, c"Delete"),
    (0x95, c"DeleteResp"),
];

/// Attributes that all classes have (IBTA 13.4.8).
const ATTRIBUTES: &[(u16, &CStr)] =
    &[(0x01, c"Class Port Info"), (0x02, c"Notice"), (0x03, c"Inform Info")];

/// Attributes of subnet management (IBTA 14.2.5).
const SM_ATTRIBUTES: &[(u16, &CStr)] = &[
    (0x10, c"NodeDescription"),
    (0x11, c"NodeInfo"),
    (0x12, c"SwitchInfo"),
    (0x14, c"GUIDInfo"),
    (0x15, c"PortInfo"),
    (0x16, c"P_KeyTable"),
    (0x17, c"SLtoVLMappingTable"),
    (0x18, c"VLArbitrationTable"),
    (0x19, c"LinearForwardingTable"),
    (0x1a, c"RandomForwardingTable"),
    (0x1b, c"MulticastForwardingTable"),
    (0x1c, c"LinkSpeedWidthPairsTable"),
    (0x1d, c"VendorSpecificMadsTable"),
    (0x1e, c"HierarchyInfo"),
    (0x20, c"SMInfo"),
    (0x30, c"VendorDiag"),
    (0x31, c"LedInfo"),
    (0x32, c"CableInfo"),
    (0x33, c"PortInfoExtended"),
];

/// Attributes of subnet administration (IBTA 15.2.5).
const SA_ATTRIBUTES: &[(u16, &CStr)] = &[
    (0x11, c"NodeRecord"),
    (0x12, c"PortInfoRecord"),
    (0x13, c"SLtoVLMappingTableRecord"),
    (0x14, c"SwitchInfoRecord"),
    (0x15, c"LinearForwardingTableRecord"),
    (0x16, c"RandomForwardingTableRecord"),
    (0x17, c"MulticastForwardingTableRecord"),
    (0x18, c"SMInfoRecord"),
    (0x19, c"LinkSpeedWidthPairsTableRecord"),
    (0x20, c"LinkRecord"),
    (0x30, c"GuidInfoRecord"),
    (0x31, c"ServiceRecord"),
    (0x33, c"P_KeyTableRecord"),
    (0x35, c"PathRecord"),
    (0x36, c"VLArbitrationTableRecord"),
    (0x38, c"MCMemberRecord"),
    (0x39, c"TraceRecord"),
    (0x3a, c"MultiPathRecord"),
    (0x3b, c"ServiceAssociationRecord"),
    (0x3c, c"HierarchyInfoRecord"),
    (0x3d, c"CableInfoRecord"),
    (0x3e, c"PortInfoExtendedRecord"),
    (0xf3, c"InformInfoRecord"),
];

/// Messages of the connection manager (IBTA 12.6).
const CM_ATTRIBUTES: &[(u16, &CStr)] = &[
    (0x10, c"ConnectRequest"),
    (0x11, c"MsgRcptAck"),
    (0x12, c"ConnectReject"),
    (0x13, c"ConnectReply"),
    (0x14, c"ReadyToUse"),
    (0x15, c"DisconnectRequest"),
    (0x16, c"DisconnectReply"),
    (0x17, c"ServiceIDResReq"),
    (0x18, c"ServiceIDResReqResp"),
    (0x19, c"LoadAlternatePath"),
    (0x1a, c"AlternatePathResponse"),
    (0x1b, c"SuggestAlternatePath"),
    (0x1c, c"SuggestPathResponse"),
];

/// Names of invalid field codes, by bits 2 to 4 of a status (IBTA 13.4.7). Reserved values count as success.
const INVALID_FIELDS: &[(u16, &CStr)] = &[
    (1, c"Bad Version"),
    (2, c"Method not supported"),
    (3, c"Method/Attribute combo not supported"),
    (7, c"Invalid attribute/modifier field"),
];

/// Statuses of subnet administration, by the upper byte (IBTA 15.4.2).
const SA_STATUSES: &[(u16, &CStr)] = &[
    (0, c"Success"),
    (1, c"No Resources"),
    (2, c"Request Invalid"),
    (3, c"No Records"),
    (4, c"Too Many Records"),
    (5, c"Invalid GID"),
    (6, c"Insufficient Components"),
    (7, c"Request Denied"),
    (8, c"Priority Suggested"),
];

/// The class of subnet administration, which has methods of its own.
const SUBN_ADM: u8 = 3;

fn find<T: PartialEq>(tables: &[&[(T, &'static CStr)]], value: T) -> Option<&'static CStr> {
    let mut entries = tables.iter().flat_map(|table| table.iter());
    entries.find(|(v, _)| *v == value).map(|(_, text)| *text)
}

/// `umad_class_str(3)`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn umad_class_str(mgmt_class: u8) -> *const c_char {
    let known = CLASSES.iter().find(|(first, last, _)| (*first..=*last).contains(&mgmt_class));
    known.map_or(UNKNOWN, |(.., text)| text).as_ptr()
}

/// `umad_method_str(3)`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn umad_method_str(mgmt_class: u8, method: u8) -> *const c_char {
    let own = if mgmt_class == SUBN_ADM { SA_METHODS } else { &[] };
    // Without the last character, as the reference implementation prints it.
    find(&[METHODS, own], method).unwrap_or(c"<unknown").as_ptr()
}

/// `umad_attribute_str(3)`. The attribute is in network order.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn umad_attribute_str(mgmt_class: u8, attr_id: u16) -> *const c_char {
    let own = match mgmt_class {
        0x01 | 0x81 => SM_ATTRIBUTES,
        SUBN_ADM => SA_ATTRIBUTES,
        0x07 => CM_ATTRIBUTES,
        _ => &[],
    };
    find(&[ATTRIBUTES, own], u16::from_be(attr_id)).unwrap_or(UNKNOWN).as_ptr()
}

/// `umad_common_mad_status_str(3)`. The status is in network order.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn umad_common_mad_status_str(status: u16) -> *const c_char {
    let status = u16::from_be(status);
    let text = match status {
        _ if status & 1 != 0 => c"Busy",
        _ if status & 2 != 0 => c"Redirection required",
        _ => find(&[INVALID_FIELDS], status >> 2 & 7).unwrap_or(c"Success"),
    };
    text.as_ptr()
}

/// `umad_sa_mad_status_str(3)`. The status is in network order.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn umad_sa_mad_status_str(status: u16) -> *const c_char {
    find(&[SA_STATUSES], u16::from_be(status) >> 8).unwrap_or(c"Undefined Error").as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(p: *const c_char) -> &'static str {
        // SAFETY: a static string.
        unsafe { CStr::from_ptr(p) }.to_str().unwrap()
    }

    #[test]
    fn umad_method_and_attribute_names_depend_on_the_class() {
        assert_eq!(text(umad_class_str(0x81)), "Subn");
        assert_eq!(text(umad_class_str(0x21)), "CongestionManagment");
        assert_eq!(text(umad_class_str(0x22)), "Application");
        assert_eq!(text(umad_class_str(0x50)), "<unknown>");
        assert_eq!(text(umad_method_str(3, 0x92)), "GetTableResp");
        assert_eq!(text(umad_method_str(4, 0x92)), "<unknown");
        assert_eq!(text(umad_attribute_str(3, 0x11_u16.to_be())), "NodeRecord");
        assert_eq!(text(umad_attribute_str(0x81, 0x11_u16.to_be())), "NodeInfo");
        assert_eq!(text(umad_attribute_str(4, 0x11_u16.to_be())), "<unknown>");
        assert_eq!(text(umad_attribute_str(4, 0x02_u16.to_be())), "Notice");
    }

    #[test]
    fn mad_status_busy_takes_precedence_over_other_bits() {
        let status = |s: u16| text(umad_common_mad_status_str(s.to_be()));
        assert_eq!(
            (status(0), status(0x0d), status(0x0e)),
            ("Success", "Busy", "Redirection required")
        );
        assert_eq!(
            (status(0x0c), status(0x1c)),
            ("Method/Attribute combo not supported", "Invalid attribute/modifier field")
        );
        // Reserved values, and those of the class.
        assert_eq!((status(0x10), status(0x0300)), ("Success", "Success"));
        assert_eq!(text(umad_sa_mad_status_str(0x0300_u16.to_be())), "No Records");
        assert_eq!(text(umad_sa_mad_status_str(0x0900_u16.to_be())), "Undefined Error");
    }
}
