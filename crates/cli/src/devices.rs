//! `rdmux devices`: lists the devices that programs see.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use rdmux::Context;
use rdmux_host::DeviceRow;
use rdmux_verbs::kind::{GidKind, LinkLayer};
use rdmux_verbs::port::{GidEntry, PortAttr};
use rdmux_verbs::wire::Gid;
use serde::Serialize;

use crate::Global;
use crate::run::{self, DeviceArgs};
use rdmux_command::output::{self, Report};
use rdmux_command::say;

/// What to print.
#[derive(Args)]
#[command(mut_arg("device", |arg| arg.help("Show only devices of this kind; without it those of $RDMUX_DEVICE, else all")))]
pub(crate) struct DevicesArgs {
    #[command(flatten)]
    device: DeviceArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A device as printed in JSON.
#[derive(Serialize)]
struct Device {
    name: String,
    host: String,
    transport: &'static str,
    node_guid: String,
    firmware: &'static str,
    ports: Vec<Port>,
    limits: Vec<(&'static str, u64)>,
}

/// A port in the output.
#[derive(Serialize)]
struct Port {
    number: u8,
    state: String,
    link_layer: &'static str,
    active_mtu: u32,
    max_mtu: u32,
    max_message: u32,
    /// The subnet, for an InfiniBand port only.
    #[serde(skip_serializing_if = "Option::is_none")]
    subnet: Option<Subnet>,
    gids: Vec<GidRow>,
}

/// The attributes of an InfiniBand port that belong to its subnet.
#[derive(Serialize)]
struct Subnet {
    fabric: Option<String>,
    lid: u16,
    lmc: u8,
    sm_lid: u16,
    sm_sl: u8,
    prefix: String,
    rate: String,
    pkeys: Vec<String>,
}

/// An entry of the GID table in the output.
#[derive(Serialize)]
struct GidRow {
    index: usize,
    gid: String,
    address: String,
    kind: &'static str,
    interface: String,
    mtu: u32,
}

/// Runs `rdmux devices`.
pub(crate) fn run(global: &Global, args: &DevicesArgs) -> Result<ExitCode> {
    let choice = args.device.choice_or_all()?;
    let open = |row: &DeviceRow| describe(&global.builder().device(row.kind).open()?, row);
    let rows = run::devices_of(&run::connect_options()?, &global.host_name()?)?;
    let seen = rows.iter().filter(|row| choice.sees(row));
    let devices = seen.map(open).collect::<Result<Vec<_>>>()?;
    if args.json {
        output::json(&devices)?;
        return Ok(ExitCode::SUCCESS);
    }
    for (i, device) in devices.iter().enumerate() {
        if i > 0 {
            say!("");
        }
        print(device)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn describe(context: &Context, row: &DeviceRow) -> Result<Device> {
    let attr = context.query();
    let numbers = 1..=context.num_ports();
    let ports = numbers.map(|number| describe_port(context, row, number)).collect::<Result<_>>()?;
    let l = attr.limits;
    Ok(Device {
        name: context.name().to_owned(),
        host: context.host().to_owned(),
        transport: attr.kind.row().protocols,
        node_guid: attr.node_guid.to_string(),
        firmware: attr.fw_ver,
        ports,
        limits: vec![
            ("max_qp", l.max_qp.into()),
            ("max_qp_wr", l.max_qp_wr.into()),
            ("max_sge", l.max_sge.into()),
            ("max_inline_data", l.max_inline_data.into()),
            ("max_cq", l.max_cq.into()),
            ("max_cqe", l.max_cqe.into()),
            ("max_mr", l.max_mr.into()),
            ("max_mw", l.max_mw.into()),
            ("max_mr_size", attr.max_mr_size),
            ("max_pd", l.max_pd.into()),
            ("max_srq", l.max_srq.into()),
            ("max_srq_wr", l.max_srq_wr.into()),
            ("max_ah", l.max_ah.into()),
            ("max_rd_atomic", l.max_rd_atomic.into()),
            ("max_init_rd_atomic", l.max_init_rd_atomic.into()),
            ("max_mcast_grp", l.max_mcast_grp.into()),
            ("max_mcast_qp_attach", l.max_mcast_qp_attach.into()),
        ],
    })
}

fn describe_port(context: &Context, row: &DeviceRow, number: u8) -> Result<Port> {
    let port = context.query_port_number(number)?;
    let gid = |(index, entry): (usize, GidEntry)| {
        // GIDs that are not addresses have no type either.
        let (address, kind) = match entry.kind {
            GidKind::Address => (entry.gid.ip().to_string(), entry.kind.sysfs()),
            GidKind::Node => ("-".to_owned(), "-"),
        };
        GidRow {
            index,
            gid: entry.gid.to_string(),
            address,
            kind,
            interface: entry.interface,
            mtu: entry.mtu.bytes(),
        }
    };
    let is_managed = port.link_layer == LinkLayer::InfiniBand;
    Ok(Port {
        number,
        state: format!("{:?}", port.state).to_lowercase(),
        link_layer: port.link_layer.name(),
        active_mtu: port.active_mtu.bytes(),
        max_mtu: port.max_mtu.bytes(),
        max_message: port.max_msg_sz,
        subnet: is_managed.then(|| subnet(row, number, &port)),
        gids: context.gids_of_port(number).into_iter().enumerate().map(gid).collect(),
    })
}

fn subnet(row: &DeviceRow, number: u8, port: &PortAttr) -> Subnet {
    let told = row.ports.get(usize::from(number).saturating_sub(1));
    let (speed, rate) = port.rate();
    Subnet {
        fabric: told.and_then(|port| Some(port.managed.as_ref()?.fabric.clone())),
        lid: port.lid.0,
        lmc: port.lmc,
        sm_lid: port.sm_lid.0,
        sm_sl: port.sm_sl,
        prefix: format!("{:#018x}", port.subnet_prefix),
        rate: format!("{} Gb/s ({}X {speed})", f64::from(rate) / 10.0, port.lanes()),
        pkeys: told.map_or_else(Vec::new, |port| {
            port.pkeys.iter().filter(|pkey| pkey.0 != 0).map(|pkey| pkey.to_string()).collect()
        }),
    }
}

fn print(d: &Device) -> Result<()> {
    say!("device     {} of host {}", d.name, d.host);
    say!("transport  {}", d.transport);
    say!("node GUID  {}", d.node_guid);
    say!("firmware   {}", d.firmware);
    for p in &d.ports {
        say!(
            "port {}     {}, {}, MTU {} of {}, messages up to {}",
            p.number,
            p.state,
            p.link_layer,
            p.active_mtu,
            p.max_mtu,
            output::bytes(p.max_message.into())
        );
        match &p.subnet {
            Some(s @ Subnet { fabric: Some(fabric), .. }) => say!(
                "fabric     {fabric}: LID {}, LMC {}, manager at LID {} by SL {}, {}, P_Keys {}",
                s.lid,
                s.lmc,
                s.sm_lid,
                s.sm_sl,
                s.rate,
                s.pkeys.join(" ")
            ),
            Some(_) => say!("fabric     none is up: start one with `rdmux fabric up`"),
            None => {}
        }
        let mut report =
            Report::new(&["INDEX", "GID", "ADDRESS", "TYPE", "INTERFACE", "MTU"]).right(&[0, 5]);
        // Most entries of an InfiniBand port are empty.
        let empty = Gid::ZERO.to_string();
        for g in p.gids.iter().filter(|row| row.gid != empty) {
            report.row([
                g.index.to_string(),
                g.gid.clone(),
                g.address.clone(),
                g.kind.to_owned(),
                g.interface.clone(),
                g.mtu.to_string(),
            ]);
        }
        report.print();
    }
    let mut report = Report::new(&["LIMIT", "VALUE"]).right(&[1]);
    for (name, value) in &d.limits {
        report.row([(*name).to_owned(), value.to_string()]);
    }
    report.print();
    Ok(())
}
