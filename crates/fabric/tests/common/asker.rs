//! A program that queries subnet administration.

use rdmux_fabric::client::MadFile;
use rdmux_fabric::proto::{NodeRef, PortRef, Snapshot};
use rdmux_subnet::umad::{Registration, UserAddress, UserMad};
use rdmux_wire::layout::Layout;
use rdmux_wire::mad::Method;
use rdmux_wire::sa::{self, SaMad};
use rdmux_wire::{Gid, Guid, Lid, Rmpp, RmppFlags, RmppType};

use super::Fabric;

/// A program on an adapter's port that queries subnet administration.
pub(crate) struct Asker {
    file: MadFile,
    agent: u32,
    pub(crate) sm_lid: Lid,
    pub(crate) gid: Gid,
    pub(crate) guid: Guid,
    pub(crate) lid: Lid,
}

impl Asker {
    /// Opens it on the n-th adapter.
    pub(crate) fn new(fabric: &Fabric, shown: &Snapshot, n: usize) -> Self {
        let node = shown.nodes.iter().filter(|node| !node.is_switch).nth(n).unwrap();
        let port = node.ports.iter().find(|port| port.number == 1).unwrap();
        let at = PortRef { node: NodeRef::Guid(node.guid), port: 1 };
        let file = MadFile::open(&fabric.options, &fabric.name, &at).unwrap();
        let agent = Registration {
            qpn: 1,
            class: 3,
            class_version: sa::CLASS_VERSION,
            rmpp_version: 1,
            methods: 0,
            ..super::DIRECTED
        };
        let agent = file.register(&agent).unwrap();
        // The GUID of an adapter's port follows its node's.
        let guid = Guid(node.guid.0 + 1);
        let gid = Gid::new(Gid::DEFAULT_PREFIX, guid);
        let sm = shown.nodes.iter().flat_map(|node| &node.ports).find(|port| port.is_sm).unwrap();
        Self { file, agent, sm_lid: sm.lid, gid, guid, lid: port.lid }
    }

    /// Sends a query, and waits for the response. Returns its status and the data after its
    /// headers.
    pub(crate) fn ask(
        &self,
        method: Method,
        attr_id: u16,
        mask: u64,
        data: &[u8],
    ) -> (u16, u16, Vec<u8>) {
        let mut mad = SaMad::new(method, attr_id, data);
        mad.header.tid = 7;
        mad.sa.component_mask = mask;
        if method == Method::GET_TABLE {
            mad.rmpp = Rmpp {
                version: Rmpp::VERSION,
                kind: RmppType::DATA,
                flags: RmppFlags::ACTIVE,
                ..mad.rmpp
            };
        }
        let request = UserMad {
            agent: self.agent,
            status: 0,
            timeout_ms: 60_000,
            retries: 0,
            address: UserAddress::gsi(self.sm_lid),
            data: mad.to_bytes().to_vec(),
        };
        self.file.send_mad(&request).unwrap();
        let answer = self.file.recv_mad().unwrap();
        assert_eq!(answer.status, 0, "no answer");
        let sa = SaMad::parse(&answer.data).unwrap();
        (sa.header.status, sa.sa.attribute_offset, sa.data.to_vec())
    }

    pub(crate) fn get<T: Layout>(&self, method: Method, attr_id: u16, mask: u64, data: &[u8]) -> T {
        let (status, _, data) = self.ask(method, attr_id, mask, data);
        assert_eq!(status, 0);
        T::read(&data).unwrap()
    }
}
