//! Bringing queue pairs from RESET to RTS.

use rdmux_transport::attr::{Access, AddressVector, AttrMask, QpAttr, QpState, QpType};
use rdmux_transport::state_table;
use rdmux_wire::{AckTimeout, Gid, Mtu, Psn, Qpn, RnrTimer};

/// All access rights.
pub const ALL_ACCESS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

/// Returns the states of a queue pair from INIT to `last`, at most RTS, each with the attributes
/// that the transition to it must set.
pub fn steps(qp_type: QpType, last: QpState) -> impl Iterator<Item = (QpState, AttrMask)> {
    use QpState::{Init, Reset, Rtr, Rts};
    [(Reset, Init), (Init, Rtr), (Rtr, Rts)]
        .into_iter()
        .take_while(move |&(_, to)| to <= last)
        .filter_map(move |(from, to)| {
            let line = state_table::find(from, to)?;
            Some((to, line.required.of(qp_type) | AttrMask::STATE))
        })
}

/// Returns attributes of a queue pair over RoCE that is connected to queue pair `dest_qpn` at
/// `dgid`: the peer may do everything, PSNs wrap after sixteen packets, and a peer on a busy
/// machine does not time out. Attributes that do not concern the connection are as in `base`.
pub fn connected_to(dgid: Gid, dest_qpn: Qpn, base: &QpAttr) -> QpAttr {
    QpAttr {
        path_mtu: Mtu::M1024,
        dest_qpn,
        rq_psn: Psn::new(0xff_fff0),
        sq_psn: Psn::new(0xff_fff0),
        access: ALL_ACCESS,
        av: AddressVector {
            is_global: true,
            dgid,
            hop_limit: 64,
            port_num: 1,
            ..AddressVector::default()
        },
        port_num: 1,
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        min_rnr_timer: RnrTimer::new(1),
        // One second, eight times.
        timeout: AckTimeout::new(18),
        retry_cnt: 7,
        rnr_retry: 7,
        ..*base
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_end_at_the_last_state_and_name_what_it_needs() {
        let rtr: Vec<_> = steps(QpType::Rc, QpState::Rtr).collect();
        assert_eq!(
            rtr.iter().map(|step| step.0).collect::<Vec<_>>(),
            [QpState::Init, QpState::Rtr]
        );
        assert!(rtr[1].1.contains(AttrMask::STATE | AttrMask::DEST_QPN | AttrMask::MIN_RNR_TIMER));
        assert_eq!(steps(QpType::Ud, QpState::Rts).count(), 3);
    }
}
