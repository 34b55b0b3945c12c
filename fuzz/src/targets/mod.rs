//! The targets, and the table of them.

pub mod acm;
pub mod acm_cache;
pub mod acm_machine;
pub mod administration;
pub mod cm;
pub mod cm_streams;
pub mod fabric;
pub mod host;
pub mod ib_parts;
pub mod ib_subnet;
pub mod ipoib;
pub mod iwarp;
pub mod iwarp_wire;
pub mod manager;
pub mod qp;
pub mod ring;
pub mod umad;
pub mod wire;
pub mod wire_ib;

use anyhow::Result;

use crate::corpus;

/// A fuzz target.
#[derive(Clone, Copy)]
pub struct Target {
    /// The name of the target's function.
    pub name: &'static str,
    /// The invariant that it checks.
    pub about: &'static str,
    /// The function, which panics when the invariant is violated.
    pub run: fn(&[u8]),
    /// The initial inputs.
    pub seeds: fn() -> Result<Vec<Vec<u8>>>,
}

macro_rules! targets {
    ($($name:literal $run:path, $seeds:path, $about:literal;)*) => {
        /// The table of targets.
        pub const TARGETS: &[Target] = &[$(Target { name: $name, about: $about, run: $run, seeds: $seeds },)*];
    };
}

targets! {
    "wire_packet" wire::wire_packet, corpus::packets, "transport packets: parsed and written back unchanged";
    "wire_headers" wire::wire_headers, corpus::packets, "each transport header alone, at any offset";
    "wire_network" wire::wire_network, corpus::frames, "Ethernet, IP, UDP and TCP headers";
    "wire_mad" wire::wire_mad, corpus::mads, "management datagrams and the connection manager's messages";
    "wire_icrc" wire::wire_icrc, corpus::packets, "ICRCs over pieces of a packet, and recovery of the IP Identification";
    "wire_ib_packet" wire_ib::wire_ib_packet, wire_ib::packets, "packets of an InfiniBand subnet, from LRH through VCRC";
    "wire_smp" wire_ib::wire_smp, wire_ib::management, "subnet management: packets, every attribute, every trap";
    "wire_sa_pm" wire_ib::wire_sa_pm, wire_ib::management, "subnet administration and performance management, every record";
    "iwarp_wire_mpa" iwarp_wire::iwarp_wire_mpa, corpus::startups, "iWARP: MPA start-up frames, as they arrive";
    "iwarp_wire_fpdu" iwarp_wire::iwarp_wire_fpdu, corpus::fpdus, "iWARP: streams of frames, with CRC and markers or without";
    "iwarp_wire_segment" iwarp_wire::iwarp_wire_segment, corpus::segments, "iWARP: DDP headers, RDMAP's payloads, Terminates";
    "ib_parts" ib_parts::ib_parts, ib_parts::datagrams, "InfiniBand over UDP: reassembly of packets from any datagrams in any order";
    "ib_group" ib_parts::ib_group, ib_parts::group_datagrams, "the same: datagrams for all members of a group on one machine";
    "wire_ipoib" ipoib::wire_ipoib, ipoib::datagrams, "IP over InfiniBand: datagrams of ARP and neighbour discovery";
    "ipoib_neighbours" ipoib::ipoib_neighbours, ipoib::conversations, "the same: any datagrams, lookups and timeouts in any order";
    "ipoib_memberships" ipoib::ipoib_memberships, ipoib::members, "IP over InfiniBand: a port's groups, with any joins, leaves, answers and losses in any order";
    "acm_datagram" acm::acm_datagram, acm::datagrams, "ACM: datagrams between services";
    "acm_request" acm::acm_request, acm::requests, "the same: requests that a service reads from its clients' streams";
    "acm_reply" acm::acm_reply, acm::replies, "the same: answers that a client reads from a service's stream";
    "acm_options" acm::acm_options, acm::options_files, "the same: options files, read, written and read again";
    "acm_addresses" acm::acm_addresses, acm::address_files, "the same: address files, read, written and read again";
    "acm_hosts" acm::acm_hosts, acm::hosts_files, "the same: hosts files from which caches are preloaded";
    "acm_routes" acm::acm_routes, acm::dumps, "the same: OpenSM's dumps of routes";
    "acm_cache" acm_cache::acm_cache, acm_cache::tables, "the same: the cache that a service shares, with any contents";
    "acm_machine" acm_machine::acm_machine, acm_machine::scripts, "the same: any datagrams, requests, answers, changes and timeouts in any order";
    "ring" ring::ring, ring::rings, "a shared-memory ring whose other side writes anything";
    "subnet_topology" ib_subnet::subnet_topology, ib_subnet::topologies, "topology files: parsed and written back unchanged";
    "subnet_agents" ib_subnet::subnet_agents, ib_subnet::scripts, "switches and agents: any datagrams, commands and timeouts in any order";
    "subnet_administration" administration::subnet_administration, administration::scripts, "subnet administration: any datagrams, events and timeouts in any order";
    "subnet_manager" manager::subnet_manager, manager::scripts, "a subnet manager: any answers, traps and other managers, in a changing subnet";
    "subnet_partitions" administration::subnet_partitions, administration::files, "partition files: parsed, or refused with the line of the error";
    "qp_rc" qp::qp_rc, corpus::noise, "an RC queue pair: any packets, posts and timeouts in any order";
    "qp_uc" qp::qp_uc, corpus::noise, "the same for UC";
    "qp_ud" qp::qp_ud, corpus::noise, "the same for UD";
    "qp_xrc_send" qp::qp_xrc_send, corpus::noise, "the same for the initiator of XRC";
    "qp_xrc_recv" qp::qp_xrc_recv, corpus::noise, "the same for its target, with processes that answer later or are busy";
    "iwarp_bytes" iwarp::iwarp_bytes, iwarp::streams, "an iWARP queue pair: any bytes from its peer";
    "iwarp_script" iwarp::iwarp_script, corpus::noise, "the same: frames, posts, ends and timeouts in any order";
    "cm_manager" cm::cm_manager, corpus::noise, "the connection manager: any commands and datagrams in any order";
    "cm_mad" cm::cm_mad, corpus::mads, "the same: datagrams from unknown peers to a host with listeners";
    "cm_streams" cm_streams::cm_streams, corpus::startups, "iWARP's start-up: any commands, and peers that send anything";
    "rmpp_receiver" umad::rmpp_receiver, corpus::noise, "RMPP messages of several MADs: any segments in any order";
    "umad" umad::umad, corpus::noise, "the user MAD device: any packets, writes, registrations and timeouts in any order";
    "fabric_protocol" fabric::fabric_protocol, fabric::messages, "messages between a fabric and its clients";
    "host_protocol" host::host_protocol, host::messages, "messages between processes and their host's service";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::TARGETS;

    #[test]
    fn every_target_takes_its_seeds() {
        for t in TARGETS {
            let seeds = (t.seeds)().expect("readable");
            assert!(!seeds.is_empty(), "{} has no seeds", t.name);
            seeds.iter().for_each(|s| (t.run)(s));
        }
    }

    #[test]
    fn libfuzzer_has_every_target() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("libfuzzer");
        let manifest = fs::read_to_string(dir.join("Cargo.toml")).expect("readable");
        let path = |line: &str| {
            line.strip_prefix("path = \"fuzz_targets/")?.strip_suffix(".rs\"").map(str::to_owned)
        };
        let listed: BTreeSet<String> = manifest.lines().filter_map(path).collect();
        let files = fs::read_dir(dir.join("fuzz_targets")).expect("readable");
        let files: BTreeSet<String> = files
            .filter_map(|file| Some(file.ok()?.path().file_stem()?.to_str()?.to_owned()))
            .collect();
        let targets: BTreeSet<String> = TARGETS.iter().map(|t| t.name.to_owned()).collect();
        assert_eq!(listed, targets, "Cargo.toml and TARGETS");
        assert_eq!(files, targets, "fuzz_targets and TARGETS");
        for name in &targets {
            let file = dir.join(format!("fuzz_targets/{name}.rs"));
            let text = fs::read_to_string(file).expect("readable");
            assert!(text.contains(&format!("::{name}(data)")), "{name} runs another target");
            assert!(manifest.contains(&format!("name = \"{name}\"\n")), "{name} has another name");
        }
    }
}
