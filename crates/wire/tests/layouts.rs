//! Every attribute preserves all of its bits: any bytes are a value that is written as the same bytes.

use proptest::prelude::*;
use rdmux_wire::WireError;
use rdmux_wire::class_port_info::ClassPortInfo;
use rdmux_wire::mad::MAD_LEN;
use rdmux_wire::pm::{
    PmMad, PortCounters, PortCountersExtended, PortFlowCtlCounters, PortOpRcvCounters,
    PortRcvDataSl, PortRcvErrorDetails, PortSamplesControl, PortSamplesResult, PortVlOpData,
    PortVlOpPackets, PortVlXmitFlowCtlUpdateErrors, PortVlXmitWaitCounters, PortXmitDataSl,
    PortXmitDiscardDetails,
};
use rdmux_wire::sa::{
    GuidInfoRecord, InformInfo, InformInfoRecord, LinearForwardingTableRecord, LinkRecord,
    McMemberRecord, MultiPathRecord, MulticastForwardingTableRecord, NodeRecord, PathRecord,
    PkeyTableRecord, PortInfoRecord, ReportedNotice, SaHeader, SaMad, ServiceRecord,
    SlToVlTableRecord, SmInfoRecord, SwitchInfoRecord, VlArbitrationRecord,
};
use rdmux_wire::sm::{
    BadKey, BadMkey, BadSwitchPkey, GidEvent, GuidInfo, LedInfo, LinearForwardingTable, LinkError,
    LinkStateChange, LocalChange, MlnxExtPortInfo, MulticastForwardingTable, NodeDescription,
    NodeInfo, Notice, PkeyTable, PortInfo, SlToVlTable, SmInfo, SwitchInfo, SystemImageGuidChange,
    VendorDiag, VlArbitration,
};
use rdmux_wire::smp::Smp;

macro_rules! keeps_all_bits {
    ($($test:ident: $type:ident;)*) => {
        proptest! {
            $(#[test]
            fn $test(bytes: [u8; $type::LEN]) {
                let value = $type::parse(&bytes)?;
                prop_assert_eq!(value.to_bytes(), bytes);
                let mut out = [0xee; $type::LEN + 1];
                value.emit(&mut out);
                prop_assert_eq!(&out[..$type::LEN], &bytes);
                prop_assert_eq!(out[$type::LEN], 0xee);
                let shown = value.to_string();
                value.fields(&mut |name, field| assert!(shown.contains(&format!(" {name} {field}"))));
                let short = $type::parse(&bytes[1..]);
                let is_short = matches!(short, Err(WireError::Short { need: $type::LEN, .. }));
                prop_assert!(is_short);
            })*
        }
    };
}

keeps_all_bits! {
    bad_key: BadKey;
    bad_mkey: BadMkey;
    bad_switch_pkey: BadSwitchPkey;
    gid_event: GidEvent;
    guid_info: GuidInfo;
    led_info: LedInfo;
    linear_forwarding_table: LinearForwardingTable;
    link_error: LinkError;
    link_state_change: LinkStateChange;
    local_change: LocalChange;
    mlnx_ext_port_info: MlnxExtPortInfo;
    multicast_forwarding_table: MulticastForwardingTable;
    node_description: NodeDescription;
    node_info: NodeInfo;
    notice: Notice;
    pkey_table: PkeyTable;
    port_info: PortInfo;
    sl_to_vl_table: SlToVlTable;
    sm_info: SmInfo;
    switch_info: SwitchInfo;
    system_image_guid_change: SystemImageGuidChange;
    vendor_diag: VendorDiag;
    vl_arbitration: VlArbitration;
    class_port_info: ClassPortInfo;
    port_counters: PortCounters;
    port_counters_extended: PortCountersExtended;
    port_flow_ctl_counters: PortFlowCtlCounters;
    port_op_rcv_counters: PortOpRcvCounters;
    port_rcv_data_sl: PortRcvDataSl;
    port_rcv_error_details: PortRcvErrorDetails;
    port_samples_control: PortSamplesControl;
    port_samples_result: PortSamplesResult;
    port_vl_op_data: PortVlOpData;
    port_vl_op_packets: PortVlOpPackets;
    port_vl_xmit_flow_ctl_update_errors: PortVlXmitFlowCtlUpdateErrors;
    port_vl_xmit_wait_counters: PortVlXmitWaitCounters;
    port_xmit_data_sl: PortXmitDataSl;
    port_xmit_discard_details: PortXmitDiscardDetails;
    guid_info_record: GuidInfoRecord;
    inform_info: InformInfo;
    inform_info_record: InformInfoRecord;
    linear_forwarding_table_record: LinearForwardingTableRecord;
    link_record: LinkRecord;
    mc_member_record: McMemberRecord;
    multicast_forwarding_table_record: MulticastForwardingTableRecord;
    multi_path_record: MultiPathRecord;
    node_record: NodeRecord;
    path_record: PathRecord;
    pkey_table_record: PkeyTableRecord;
    port_info_record: PortInfoRecord;
    reported_notice: ReportedNotice;
    sa_header: SaHeader;
    service_record: ServiceRecord;
    sl_to_vl_table_record: SlToVlTableRecord;
    sm_info_record: SmInfoRecord;
    switch_info_record: SwitchInfoRecord;
    vl_arbitration_record: VlArbitrationRecord;
}

proptest! {
    /// Checks that all bytes except the header's two reserved ones survive a round trip.
    #[test]
    fn smp(mut bytes: [u8; MAD_LEN], directed: bool) {
        bytes[0] = 1;
        bytes[1] = if directed { 0x81 } else { 1 };
        bytes[18..20].fill(0);
        let smp = Smp::parse(&bytes)?;
        prop_assert_eq!(smp.to_bytes(), bytes);
        prop_assert!(smp.to_string().starts_with("SMP "));
    }

    #[test]
    fn pm_mad_round_trips(mut bytes: [u8; MAD_LEN]) {
        bytes[..2].copy_from_slice(&[1, 4]);
        bytes[18..20].fill(0);
        let mad = PmMad::parse(&bytes)?;
        prop_assert_eq!(mad.to_bytes(), bytes);
        prop_assert!(mad.to_string().starts_with("Perf "));
    }

    #[test]
    fn sa_mad_round_trips(mut bytes: [u8; MAD_LEN], id: u8, method in prop::sample::select(vec![1, 2, 0x12, 0x81, 0x92, 0x94])) {
        bytes[..4].copy_from_slice(&[1, 3, 2, method]);
        bytes[16..20].copy_from_slice(&[0, id, 0, 0]);
        let mad = SaMad::parse(&bytes)?;
        prop_assert_eq!(mad.to_bytes(), bytes);
        prop_assert!(mad.to_string().starts_with("SubnAdm "));
        prop_assert!(mad.records::<LinkRecord>().count() <= 200 / 8);
    }
}
