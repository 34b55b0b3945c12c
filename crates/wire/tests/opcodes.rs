//! The opcode table is complete and consistent. `headers.rs` compares it with the specification's layout.

use rdmux_wire::{OpKind, Opcode, Operation, Service};

const SERVICES: [Service; 5] = [Service::Rc, Service::Uc, Service::Rd, Service::Ud, Service::Xrc];

/// Returns all opcodes that some service has.
fn opcodes() -> impl Iterator<Item = (Opcode, Operation)> {
    (0..=u8::MAX).filter_map(|code| Some((Opcode(code), Opcode(code).operation()?)))
}

/// Returns the opcodes of a kind in a service.
fn of_kind(service: Service, kind: OpKind) -> Vec<Opcode> {
    opcodes().map(|(op, _)| op).filter(|op| op.service() == service && op.kind() == kind).collect()
}

#[test]
fn each_operation_has_one_code_and_at_least_one_service() {
    let codes: Vec<u8> = Operation::ALL.iter().map(|&op| op as u8).collect();
    assert_eq!(codes, (0..=0x17).collect::<Vec<_>>());
    for &operation in Operation::ALL {
        let having = SERVICES.iter().filter(|&&s| {
            let opcode = Opcode::of(s, operation);
            assert_eq!((opcode.service(), opcode.0 & 0x1f), (s, operation as u8));
            opcode.operation() == Some(operation)
        });
        assert_ne!(having.count(), 0, "{}", operation.name());
        assert!(!Operation::ALL.iter().any(|o| *o != operation && o.name() == operation.name()));
    }
    for (opcode, operation) in opcodes() {
        assert_eq!(Opcode::of(opcode.service(), operation), opcode);
        assert!(SERVICES.contains(&opcode.service()), "{opcode}");
    }
}

#[test]
fn services_have_as_many_operations_as_the_specification_gives_them() {
    let count = |s| opcodes().filter(|(op, _)| op.service() == s).count();
    assert_eq!(SERVICES.map(count), [23, 12, 22, 2, 23]);
}

#[test]
fn reserved_opcodes_have_no_headers_payload_or_position() {
    for opcode in (0..=u8::MAX).map(Opcode) {
        let exists = opcode.operation().is_some();
        assert_eq!(opcode.kind() != OpKind::Reserved, exists, "{opcode}");
        let has = opcode.ext_len() != 0
            || opcode.has_payload()
            || opcode.starts_message()
            || opcode.is_middle()
            || opcode.ends_message()
            || opcode.is_response()
            || opcode.needs_receive()
            || opcode.is_acknowledged();
        assert!(exists || !has, "{opcode}");
    }
}

/// Names end as in the specification, so they repeat the position and the immediate.
#[test]
fn opcode_names_agree_with_their_position_and_kind() {
    for (opcode, operation) in opcodes() {
        let name = operation.name();
        let is = |part| name.split('_').any(|word| word == part);
        let place = [opcode.is_first(), opcode.is_middle(), opcode.is_last(), opcode.is_only()];
        assert_eq!(place.iter().filter(|p| **p).count(), 1, "{opcode}");
        let named = ["FIRST", "MIDDLE", "LAST"].map(is);
        assert_eq!(place[..3], named, "{opcode}");
        assert_eq!(opcode.has_imm(), is("IMMEDIATE"), "{opcode}");
        assert_eq!(opcode.has_ieth(), is("INVALIDATE"), "{opcode}");
        let kind = match opcode.kind() {
            OpKind::Send => is("SEND"),
            OpKind::Write => is("WRITE"),
            OpKind::Read => is("READ") && is("REQUEST"),
            OpKind::ReadResponse => is("READ") && is("RESPONSE"),
            OpKind::Atomic => is("SWAP") || is("ADD"),
            OpKind::Ack => name == "ACKNOWLEDGE",
            OpKind::AtomicAck => name == "ATOMIC_ACKNOWLEDGE",
            OpKind::Resync => is("RESYNC"),
            OpKind::Reserved => false,
        };
        assert!(kind, "{opcode}");
    }
}

#[test]
fn opcode_direction_and_ack_follow_from_kind_and_service() {
    for (opcode, _) in opcodes() {
        let (kind, service) = (opcode.kind(), opcode.service());
        let response = matches!(kind, OpKind::ReadResponse | OpKind::Ack | OpKind::AtomicAck);
        assert_eq!(opcode.is_response(), response, "{opcode}");
        let reliable = matches!(service, Service::Rc | Service::Rd | Service::Xrc);
        assert!(reliable || !response, "{opcode}: nobody answers in this service");
        assert_eq!(opcode.is_acknowledged(), reliable && !response, "{opcode}");
        let receives = kind == OpKind::Send || kind == OpKind::Write && opcode.has_imm();
        assert_eq!(opcode.needs_receive(), receives, "{opcode}");
    }
}

#[test]
fn opcode_headers_and_payload_follow_from_kind_and_position() {
    for (opcode, _) in opcodes() {
        let (kind, service, request) = (opcode.kind(), opcode.service(), !opcode.is_response());
        let datagram = matches!(service, Service::Ud | Service::Rd);
        assert_eq!(opcode.has_deth(), request && datagram, "{opcode}");
        assert_eq!(opcode.has_xrceth(), request && service == Service::Xrc, "{opcode}");
        let names_memory = matches!(kind, OpKind::Write | OpKind::Read) && opcode.starts_message();
        assert_eq!(opcode.has_reth(), names_memory, "{opcode}");
        assert_eq!(opcode.has_atomic(), kind == OpKind::Atomic, "{opcode}");
        assert_eq!(opcode.has_aeth(), !request && !opcode.is_middle(), "{opcode}");
        assert_eq!(opcode.has_atomic_ack(), kind == OpKind::AtomicAck, "{opcode}");
        assert!(opcode.ends_message() || !opcode.has_imm() && !opcode.has_ieth(), "{opcode}");
        let carries = matches!(kind, OpKind::Send | OpKind::Write | OpKind::ReadResponse);
        assert_eq!(opcode.has_payload(), carries, "{opcode}");
    }
}

/// A message that can be split into packets can be split into any number of them.
#[test]
fn opcode_kind_with_first_also_has_middle_and_last() {
    use OpKind::{Read, ReadResponse, Send, Write};
    for service in SERVICES {
        for kind in [Send, Write, Read, ReadResponse] {
            let all = of_kind(service, kind);
            let any = |is: fn(Opcode) -> bool| all.iter().any(|op| is(*op));
            assert_eq!(any(Opcode::is_first), any(Opcode::is_middle), "{service:?} {kind:?}");
            assert_eq!(any(Opcode::is_first), any(Opcode::is_last), "{service:?} {kind:?}");
            assert_eq!(all.is_empty(), !any(Opcode::is_only), "{service:?} {kind:?}");
        }
    }
}

#[test]
fn constants_have_the_codes_of_the_specification() {
    let codes = |ops: &[Opcode]| ops.iter().map(|op| op.0).collect::<Vec<_>>();
    use Opcode as O;
    let rc = [O::RC_SEND_FIRST, O::RC_WRITE_ONLY, O::RC_ACKNOWLEDGE, O::RC_SEND_ONLY_INV];
    assert_eq!(codes(&rc), [0x00, 0x0a, 0x11, 0x17]);
    let uc = [O::UC_SEND_LAST_IMM, O::UC_WRITE_ONLY_IMM];
    assert_eq!(codes(&uc), [0x23, 0x2b]);
    assert_eq!(codes(&[O::UD_SEND_ONLY, O::UD_SEND_ONLY_IMM, O::CNP]), [0x64, 0x65, 0x81]);
    assert_eq!(codes(&[O::XRC_READ_REQUEST, O::XRC_FETCH_ADD]), [0xac, 0xb4]);
}
