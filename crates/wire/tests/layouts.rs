//! Every attribute keeps all of its bits: any bytes are a value that is written as the same bytes.

use proptest::prelude::*;
use rdmux_wire::WireError;
use rdmux_wire::mad::MAD_LEN;
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
}

proptest! {
    /// All but the header's two reserved bytes.
    #[test]
    fn smp(mut bytes: [u8; MAD_LEN], directed: bool) {
        bytes[0] = 1;
        bytes[1] = if directed { 0x81 } else { 1 };
        bytes[18..20].fill(0);
        let smp = Smp::parse(&bytes)?;
        prop_assert_eq!(smp.to_bytes(), bytes);
        prop_assert!(smp.to_string().starts_with("SMP "));
    }
}
