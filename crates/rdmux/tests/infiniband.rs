//! An InfiniBand device, from the outside: it opens, and says what it cannot do yet.

use std::io::ErrorKind;

use rdmux::cm::EventChannel;
use rdmux::{Context, DeviceKind, QpType};

#[test]
fn queue_pairs_and_connections_are_unsupported_and_say_why() {
    let context = Context::builder().embedded().device(DeviceKind::Ib).open().unwrap();
    assert_eq!(context.query_port().unwrap().lid.0, 0, "there is no fabric");
    let (cq, pd) = (context.cq(16).unwrap(), context.pd());
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
        let error = pd.qp(qp_type).cq(&cq).build().unwrap_err();
        assert!(error.to_string().contains("management datagrams only"), "{error}");
    }
    let error = EventChannel::new(&context).unwrap_err();
    assert_eq!(error.cause().kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("no connections"), "{error}");
}
