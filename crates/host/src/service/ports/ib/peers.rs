//! Resolves the path to a peer with a path record from subnet administration (IBTA 15.2.5.16), as Linux's connection
//! manager does.

use rdmux_cm::{IdHandle, Path, PathQuery};
use rdmux_transport::attr::AddressVector;
use rdmux_wire::mad::Method;
use rdmux_wire::sa::{PathRecord, PathRecordMask};
use rdmux_wire::{Gid, Mtu};

use super::adapters::PortAt;
use super::sa::{Subject, question};
use crate::service::core::Core;

impl Core {
    /// Queries the path between two ports' GIDs.
    pub(super) fn find_ib_path(&mut self, id: IdHandle, query: &PathQuery) {
        let by_address = &query.by_address;
        let Some(at) = self.adapter.at(by_address.av.port_num) else {
            return self.path_found(id, query, Err(libc::ENODEV));
        };
        let record = PathRecord {
            dgid: by_address.av.dgid,
            sgid: by_address.local,
            pkey: by_address.pkey,
            reversible: true,
            numb_path: 1,
            service_id: query.service_id,
            tclass: by_address.av.traffic_class,
            ..PathRecord::default()
        };
        let quality = match query.dst.is_ipv4() {
            true => PathRecordMask::QOS_CLASS,
            false => PathRecordMask::TCLASS,
        };
        let mask = PathRecordMask::DGID
            | PathRecordMask::SGID
            | PathRecordMask::PKEY
            | PathRecordMask::REVERSIBLE
            | PathRecordMask::NUMB_PATH
            | PathRecordMask::SERVICE_ID_MSB
            | PathRecordMask::SERVICE_ID_LSB
            | quality;
        let record = record.to_bytes();
        let mad = question(Method::GET, PathRecord::ATTR_ID, &record, mask.bits());
        let user = Some(self.user_of_id(id));
        self.ask_sa(at, Subject::Path(id, Box::new(*query)), &mad, (query.timeout, user));
    }

    /// Handles an answer of subnet administration, or an errno.
    pub(super) fn path_answered(
        &mut self,
        at: PortAt,
        id: IdHandle,
        query: &PathQuery,
        answer: Result<PathRecord, i32>,
    ) {
        let path = answer.and_then(|record| self.path_of(at, &record));
        self.path_found(id, query, path);
    }

    /// Returns the path that a record describes. It must begin at the local port.
    fn path_of(&self, at: PortAt, record: &PathRecord) -> Result<Path, i32> {
        let port = self.adapter[at].device_port(self.node_guid);
        let senseless = || {
            tracing::debug!("ignored a path that does not start at the local port: {record}");
            libc::EINVAL
        };
        let src_path_bits = port.path_bits(record.slid).ok_or_else(senseless)?;
        let sgid_index = port.gid_index(record.sgid).ok_or_else(senseless)?;
        let pkey_index = port.pkey_index(record.pkey).ok_or_else(senseless)?;
        let mtu = Mtu::from_code(record.mtu).ok_or_else(senseless)?;
        if !record.dlid.is_unicast() && !is_group(record.dgid) {
            return Err(senseless());
        }
        Ok(Path {
            local: record.sgid,
            slid: record.slid,
            back_lid: record.slid,
            av: AddressVector {
                // Packets within the subnet need no GRH (IBTA 8.3).
                is_global: record.hop_limit > 1 || is_group(record.dgid),
                dgid: record.dgid,
                sgid_index,
                flow_label: record.flow_label,
                hop_limit: record.hop_limit,
                traffic_class: record.tclass,
                dlid: record.dlid.0,
                sl: record.sl,
                src_path_bits,
                static_rate: record.rate.0,
                port_num: port.port_num,
            },
            pkey: record.pkey,
            pkey_index,
            mtu,
            packet_lifetime: record.packet_life_time,
        })
    }
}

fn is_group(gid: Gid) -> bool {
    gid.is_multicast()
}
