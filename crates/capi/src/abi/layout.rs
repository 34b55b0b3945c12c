//! Compares the types of `abi` with the tables made from the public headers.

use std::ops::Range;

/// The differences found, one line each.
#[derive(Default)]
struct Differences(Vec<String>);

impl Differences {
    fn size<T>(&mut self, name: &str, expected: usize) {
        let size = size_of::<T>();
        if size != expected {
            self.0.push(format!("{name}: {size} bytes, and {expected} in C"));
        }
    }

    /// Compares a field without accessing it: `_field` only provides its type.
    fn field<T, F>(
        &mut self,
        name: &str,
        offset: usize,
        _field: fn(*const T) -> *const F,
        expected: Range<usize>,
    ) {
        let range = offset..offset + size_of::<F>();
        if range != expected {
            self.0.push(format!("{name}: bytes {range:?}, and {expected:?} in C"));
        }
    }

    /// Panics if these comparisons find a difference.
    fn none(comparisons: &[fn(&mut Self)]) {
        let mut found = Self::default();
        comparisons.iter().for_each(|compare| compare(&mut found));
        assert!(found.0.is_empty(), "{}", found.0.join("\n"));
    }

    fn value(&mut self, name: &str, value: i128, expected: i128) {
        if value != expected {
            self.0.push(format!("{name}: {value}, and {expected} in C"));
        }
    }
}

macro_rules! layouts {
    ($($kind:ident $name:ident $size:literal {
        $($($c:ident).+ : $start:literal .. $end:literal $(($($path:tt)+))? ,)*
    })*) => {
        fn layouts(differences: &mut Differences) {
            $(
                differences.size::<$name>(stringify!($name), $size);
                $(layouts!(@field differences, $name, [$($c).+], [$($($path)+)?], $start..$end);)*
            )*
        }
    };
    (@field $d:ident, $name:ident, [$($c:tt)+], [], $range:expr) => {
        layouts!(@field $d, $name, [$($c)+], [$($c)+], $range)
    };
    (@field $d:ident, $name:ident, [$($c:tt)+], [$($path:tt)+], $range:expr) => {
        $d.field(
            concat!(stringify!($name), ".", stringify!($($c)+)),
            std::mem::offset_of!($name, $($path)+),
            // SAFETY: never called; it would only compute an address inside the given object.
            |value: *const $name| unsafe { &raw const (*value).$($path)+ },
            $range,
        )
    };
}

macro_rules! values {
    ($($name:ident : $value:literal $((later))? ,)*) => {
        fn values(differences: &mut Differences) {
            $(
                let expected: i128 = $value;
                differences.value(stringify!($name), i128::from($name), expected);
            )*
        }
    };
}

/// The types of libibverbs and librdmacm.
mod verbs_and_cma {
    use super::super::cma::*;
    use super::super::rdmux_cm::*;
    use super::super::verbs::*;
    use super::Differences;

    include!("../../../../conformance/abi/layout.txt");

    #[test]
    fn types_and_values_are_those_of_the_headers() {
        Differences::none(&[layouts, values]);
    }
}

/// The types of libibumad.
mod umad {
    use super::super::umad::*;
    use super::Differences;

    include!("../../../../conformance/abi/layout-umad.txt");

    #[test]
    fn types_and_values_are_those_of_the_headers() {
        Differences::none(&[layouts, values]);
    }
}

/// The datagrams that programs pass to libibumad.
mod mad {
    use std::mem::transmute;

    use rdmux_wire::rmpp::OFFSET;
    use rdmux_wire::sa::{self, McMemberRecord, SaHeader};
    use rdmux_wire::sm::Trap;
    use rdmux_wire::smp::Smp;
    use rdmux_wire::{Lid, MadHeader, Mkey, Pkey, Qkey, Rmpp, SmKey};

    use super::super::mad::*;
    use super::Differences;

    include!("../../../../conformance/abi/layout-mad.txt");

    #[test]
    fn types_and_values_are_those_of_the_headers() {
        Differences::none(&[layouts, values]);
    }

    /// Returns bytes of which the n-th is n, except the base version and the class.
    fn counted<const N: usize>(class: u8) -> [u8; N] {
        let mut bytes = std::array::from_fn(|i| u8::try_from(i).unwrap_or(0));
        bytes[..2].copy_from_slice(&[1, class]);
        bytes
    }

    #[test]
    fn smp_of_a_program_is_read_field_by_field() {
        let bytes = counted::<256>(0x81);
        // SAFETY: every bit pattern is a valid value of the structure.
        let program = unsafe { transmute::<[u8; 256], umad_smp>(bytes) };
        let smp = Smp::parse(&bytes).unwrap();
        assert_eq!((smp.hop_pointer(), smp.hop_count()), (program.hop_ptr, program.hop_cnt));
        assert_eq!(smp.header.method.0, program.method);
        assert_eq!(smp.header.tid, u64::from_be(program.tid));
        assert_eq!(smp.header.attr_id, u16::from_be(program.attr_id));
        assert_eq!(smp.header.attr_mod, u32::from_be(program.attr_mod));
        assert_eq!(smp.mkey, Mkey(u64::from_be(program.mkey)));
        assert_eq!(smp.dr_slid, Lid(u16::from_be(program.dr_slid)));
        assert_eq!(smp.dr_dlid, Lid(u16::from_be(program.dr_dlid)));
        assert_eq!((smp.reserved, smp.data), (program.reserved, program.data));
        assert_eq!(
            (smp.initial_path, smp.return_path),
            (program.initial_path, program.return_path)
        );
    }

    #[test]
    fn sa_packet_of_a_program_is_read_field_by_field() {
        let bytes = counted::<256>(3);
        // SAFETY: every bit pattern is a valid value of the structure.
        let program = unsafe { transmute::<[u8; 256], umad_sa_packet>(bytes) };
        let header = MadHeader::parse(&bytes).unwrap();
        assert_eq!(header.status, u16::from_be(program.mad_hdr.status));
        assert_eq!(header.class_specific, u16::from_be(program.mad_hdr.class_specific));
        let rmpp = Rmpp::parse(&bytes[OFFSET..]).unwrap();
        assert_eq!((rmpp.version, rmpp.kind.0), {
            let theirs = program.rmpp_hdr;
            (theirs.rmpp_version, theirs.rmpp_type)
        });
        assert_eq!(rmpp.segment, u32::from_be(program.rmpp_hdr.seg_num));
        assert_eq!(rmpp.length, u32::from_be(program.rmpp_hdr.paylen_newwin));
        let sa = SaHeader::parse(&bytes[sa::HEADER_AT..]).unwrap();
        assert_eq!(sa.sm_key, SmKey(u64::from_be_bytes(program.sm_key)));
        assert_eq!(sa.attribute_offset, u16::from_be(program.attr_offset));
        assert_eq!(sa.component_mask, u64::from_be(program.comp_mask));
        assert_eq!(bytes[sa::DATA_AT..], program.data);
    }

    #[test]
    fn mcmember_record_of_a_program_is_read_field_by_field() {
        let bytes = counted::<56>(0);
        // SAFETY: every bit pattern is a valid value of the structure.
        let program = unsafe { transmute::<[u8; 56], umad_sa_mcmember_record>(bytes) };
        let record = McMemberRecord::from_bytes(&bytes);
        assert_eq!((record.mgid.0, record.port_gid.0), (program.mgid, program.portgid));
        assert_eq!(record.qkey, Qkey(u32::from_be(program.qkey)));
        assert_eq!(record.mlid, Lid(u16::from_be(program.mlid)));
        assert_eq!((record.mtu_selector.0 << 6 | record.mtu, record.tclass), {
            (program.mtu, program.tclass)
        });
        assert_eq!(record.pkey, Pkey(u16::from_be(program.pkey)));
        assert_eq!(record.rate_selector.0 << 6 | record.rate.0, program.rate);
        let life = record.packet_life_time_selector.0 << 6 | record.packet_life_time;
        assert_eq!(life, program.pkt_life);
        let word =
            u32::from(record.sl) << 28 | record.flow_label << 8 | u32::from(record.hop_limit);
        assert_eq!(word, u32::from_be(program.sl_flow_hop));
        assert_eq!(record.scope << 4 | record.join_state.bits(), program.scope_state);
        assert_eq!(record.proxy_join, program.proxy_join & 0x80 != 0);
    }

    #[test]
    fn trap_numbers_are_those_that_notices_have() {
        let trap = |number| Trap::parse(number, &[0; 54]);
        assert!(matches!(trap(UMAD_SM_GID_IN_SERVICE_TRAP), Some(Trap::GidInService(_))));
        assert!(matches!(trap(UMAD_SM_GID_OUT_OF_SERVICE_TRAP), Some(Trap::GidOutOfService(_))));
        assert!(matches!(trap(UMAD_SM_MGID_CREATED_TRAP), Some(Trap::GroupCreated(_))));
        assert!(matches!(trap(UMAD_SM_MGID_DESTROYED_TRAP), Some(Trap::GroupDeleted(_))));
        assert!(matches!(trap(UMAD_SM_LINK_STATE_CHANGED_TRAP), Some(Trap::LinkState(_))));
        let integrity = trap(UMAD_SM_LINK_INTEGRITY_THRESHOLD_TRAP);
        assert!(matches!(integrity, Some(Trap::LinkIntegrity(_))));
        let overrun = trap(UMAD_SM_BUFFER_OVERRUN_THRESHOLD_TRAP);
        assert!(matches!(overrun, Some(Trap::BufferOverrun(_))));
        let watchdog = trap(UMAD_SM_WATCHDOG_TIMER_EXPIRED_TRAP);
        assert!(matches!(watchdog, Some(Trap::FlowControlWatchdog(_))));
        assert!(matches!(trap(UMAD_SM_LOCAL_CHANGES_TRAP), Some(Trap::Local(_))));
        let image = trap(UMAD_SM_SYS_IMG_GUID_CHANGED_TRAP);
        assert!(matches!(image, Some(Trap::SystemImageGuid(_))));
        assert!(matches!(trap(UMAD_SM_BAD_MKEY_TRAP), Some(Trap::Mkey(_))));
        assert!(matches!(trap(UMAD_SM_BAD_PKEY_TRAP), Some(Trap::Pkey(_))));
        assert!(matches!(trap(UMAD_SM_BAD_QKEY_TRAP), Some(Trap::Qkey(_))));
        assert!(matches!(trap(UMAD_SM_BAD_SWITCH_PKEY_TRAP), Some(Trap::SwitchPkey(_))));
    }
}
