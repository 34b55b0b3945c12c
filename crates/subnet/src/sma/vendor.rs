//! ExtendedPortInfo, which Mellanox devices and also ibsim's nodes have: it distinguishes FDR10 from QDR. libibnetdisc
//! queries nodes whose vendor and device it knows to have it.
//!
//! VendorDiag and LedInfo get no answer here. There is nothing to diagnose, and LedInfo is for ports whose capability mask
//! has LEDInfoSupported. Neither ibsim nor the agents in the kernel (`qib_mad.c`) have them.

use rdmux_wire::sm::MlnxExtPortInfo;

use super::{Data, Refused, Request, put};
use crate::subnet::Subnet;

/// A value of StateChangeEnable: set LinkSpeedEnabled, as `ibportstate fdr10` does.
const SET_SPEED: u8 = 0x01;

/// Gets or sets the speeds of a port that PortInfo lacks. The modifier is that of PortInfo. Enabled speeds take effect when
/// the link trains next.
pub(super) fn ext_port_info(
    subnet: &mut Subnet,
    r: &Request,
    data: &mut Data,
) -> Result<(), Refused> {
    let at = super::port_info::target(subnet, r).ok_or(Refused::Invalid)?;
    let speeds = &mut subnet.ports[at].mlnx;
    let mut result = Ok(());
    if r.is_set {
        let new = MlnxExtPortInfo::from_bytes(data);
        if !(speeds.supported.contains(new.link_speed_enabled)) {
            result = Err(Refused::Invalid);
        } else if new.state_change_enable & SET_SPEED != 0 {
            speeds.enabled = new.link_speed_enabled;
        }
    }
    let info = MlnxExtPortInfo {
        link_speed_supported: speeds.supported,
        link_speed_enabled: speeds.enabled,
        link_speed_active: speeds.active,
        ..MlnxExtPortInfo::default()
    };
    put(data, &info.to_bytes());
    result
}
