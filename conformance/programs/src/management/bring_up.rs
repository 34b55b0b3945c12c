//! OpenSM brings a subnet up.

use anyhow::{Context, Result, ensure};
use rdmux_fabric::proto::Snapshot;

use super::ground::{self, Ground, HOSTS, Shown};
use super::opensm::{Conf, OpenSm};

/// A shape, a routing engine and options.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BringUp {
    /// The argument of `rdmux fabric up --shape`.
    pub(crate) shape: &'static str,
    /// OpenSM's name of the engine; its default, which is minhop, without one.
    pub(crate) engine: Option<&'static str>,
    /// LID mask control: each port has 2 to the power of this LIDs.
    pub(crate) lmc: u8,
    /// Further configuration.
    pub(crate) extra: Extra,
}

/// Further tasks of a manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extra {
    /// No further task.
    Nothing,
    /// The manager sets service levels and virtual lanes.
    Qos,
    /// The manager has a partitions file.
    Partitions,
}

impl BringUp {
    /// Returns a row whose manager has no further task.
    pub(crate) const fn plain(shape: &'static str) -> Self {
        Self { shape, engine: None, lmc: 0, extra: Extra::Nothing }
    }

    /// Sets a routing engine.
    pub(crate) const fn by(self, engine: &'static str) -> Self {
        Self { engine: Some(engine), ..self }
    }

    /// Sets the number of path bits.
    pub(crate) const fn lmc(self, lmc: u8) -> Self {
        Self { lmc, ..self }
    }

    /// Adds a further task.
    pub(crate) const fn and(self, extra: Extra) -> Self {
        Self { extra, ..self }
    }

    /// Returns the title of the row.
    pub(crate) fn title(&self) -> String {
        let mut title = "opensm".to_owned();
        if let Some(engine) = self.engine {
            title += &format!(" -R {engine}");
        }
        if self.lmc > 0 {
            title += &format!(" -l {}", self.lmc);
        }
        title += match self.extra {
            Extra::Nothing => "",
            Extra::Qos => " -Q",
            Extra::Partitions => " -P",
        };
        format!("{title} on {}", self.shape)
    }

    /// Runs the row. The manager reports that the subnet is up, and no errors. The fabric shows that all links are active,
    /// that all ports have the expected LIDs, and that the tables lead from every port to every other one.
    pub(crate) fn run(&self, ground: &Ground) -> Result<()> {
        let mut conf = self.conf(&ground.show()?);
        if self.extra == Extra::Partitions {
            conf.partitions = Some(partitions(&ground.show()?)?);
        }
        let mut opensm = OpenSm::start(ground, HOSTS[0], "opensm", &conf)?;
        opensm.subnet_is_up(1)?;
        if let Some(engine) = self.engine {
            let says = format!("{engine} tables configured on all switches");
            ensure!(opensm.said(&says) > 0, "the tables were not computed by the engine {engine}");
        }
        let shown = ground.show()?;
        all_is_active(&shown)?;
        self.lids_are_right(&shown)?;
        let ways = ground.ways_are_whole()?;
        // Routes of these engines never go up again after they went down, so that no packet gets from one root of a tree to another.
        let up_down = matches!(self.engine, Some("updn" | "ftree"));
        ensure!(up_down || ways.lost == 0, "some switches have no route to each other: {ways:?}");
        match self.extra {
            Extra::Nothing => {}
            Extra::Qos => qos_is_set(ground, &shown)?,
            Extra::Partitions => partitions_are_set(ground, &shown)?,
        }
        ensure!(
            ground::own_port(shown.node(HOSTS[0])?)?.is_sm,
            "the manager's port has no IsSM bit"
        );
        opensm.stop()?;
        ground.nothing_is_left()?;
        ground.until("without IsSM bit", || {
            Ok(!ground::own_port(ground.show()?.node(HOSTS[0])?)?.is_sm)
        })
    }

    fn conf(&self, shown: &Snapshot) -> Conf {
        let mut conf = Conf::default().with("lmc", self.lmc);
        if let Some(engine) = self.engine {
            conf = conf.with("routing_engine", engine);
        }
        if self.extra == Extra::Qos || self.engine == Some("torus-2QoS") {
            conf = conf.with("qos", "TRUE");
        }
        if self.engine == Some("torus-2QoS") {
            conf.torus = torus(self.shape, shown);
        }
        if self.engine == Some("updn") && !self.shape.starts_with("fattree") {
            // The engine finds roots in trees only.
            let root = shown.switches().next();
            conf.roots = root.map(|switch| format!("{}\n", switch.guid));
        }
        conf
    }

    fn lids_are_right(&self, shown: &Snapshot) -> Result<()> {
        let mut all: Vec<u16> = Vec::new();
        for node in &shown.nodes {
            let port = ground::own_port(node)?;
            let lid = ground::lid(node)?;
            // Port 0 of a switch has one LID, unless it is an enhanced one.
            let lmc = if node.is_switch { 0 } else { self.lmc };
            ensure!(port.lmc == lmc, "{} has LMC {}, not {lmc}", node.id, port.lmc);
            ensure!(
                lid.0 % (1 << lmc) == 0,
                "{} has LID {}, which LMC {lmc} forbids",
                node.id,
                lid.0
            );
            all.extend((lid.0..).take(1 << lmc));
        }
        all.sort_unstable();
        let twice = all.windows(2).find(|pair| pair[0] == pair[1]);
        ensure!(twice.is_none(), "two ports have LID {}", all[0]);
        Ok(())
    }
}

/// Checks that all links are up, and the ports at their ends active.
pub(super) fn all_is_active(shown: &Snapshot) -> Result<()> {
    /// Active (IBTA 14.2.5.6).
    const ACTIVE: u8 = 4;
    for link in &shown.links {
        ensure!(link.up, "a link is down: {link:?}");
        for (node, number) in [link.a, link.b] {
            let node = shown.nodes.get(node as usize).context("a cable has no far end")?;
            let port = node.ports.iter().find(|port| port.number == number);
            let state = port.context("a cable ends at no port")?.state;
            ensure!(state == ACTIVE, "port {number} of {} is in state {state}", node.id);
        }
    }
    Ok(())
}

/// Returns the seed for torus-2QoS: the switch at 0,0,0 and its neighbours in each dimension. In rdmux's tori ports 1, 3 and 5 lead
/// to the next switch, 2, 4 and 6 to the previous one.
fn torus(shape: &str, shown: &Snapshot) -> Option<String> {
    let size = shape.strip_prefix("torus:")?;
    let mut text = format!("torus {}\n", size.replace('x', " "));
    let origin = shown.node("torus 0,0,0").ok()?;
    for (port, name) in (1..).zip(["xp", "xm", "yp", "ym", "zp", "zm"]) {
        if let Some((far, _)) = shown.far(origin, port) {
            text += &format!("{name}_link {} {}\n", origin.guid, far.guid);
        }
    }
    Some(text)
}

/// The P_Key of the partition in these rows, and the kind of membership.
const LAB: u16 = 0x0011;

fn partitions(shown: &Snapshot) -> Result<String> {
    let [full, limited] = HOSTS;
    let (full, limited) =
        (ground::port_guid(shown.node(full)?), ground::port_guid(shown.node(limited)?));
    Ok(format!(
        "Default=0x7fff, ipoib, defmember=full : ALL=full, SELF=full;\n\
         lab={LAB:#06x}, ipoib : {full:#x}=full, {limited:#x}=limited;\n"
    ))
}

/// Checks that the P_Key tables are those of the partitions file.
fn partitions_are_set(ground: &Ground, shown: &Snapshot) -> Result<()> {
    for node in shown.adapters() {
        let table = ground.said(&format!("smpquery pkeys {}", ground::lid(node)?.0))?;
        let table = pkeys(&table);
        let lab = match node.description.as_str() {
            name if name == HOSTS[0] => Some(LAB | 0x8000),
            name if name == HOSTS[1] => Some(LAB),
            _ => None,
        };
        let expected: Vec<u16> = std::iter::once(0xffff).chain(lab).collect();
        ensure!(table == expected, "{} has P_Keys {table:04x?}, not {expected:04x?}", node.id);
    }
    Ok(())
}

/// Returns the P_Keys that smpquery prints, without empty entries.
pub(super) fn pkeys(output: &str) -> Vec<u16> {
    // "   0: 0xffff 0x0000 ..."
    let rows = output.lines().filter_map(|line| line.split_once(':'));
    let rows = rows.filter(|(index, _)| index.trim().parse::<u16>().is_ok());
    let words = rows.flat_map(|(_, keys)| keys.split_whitespace());
    words
        .filter_map(|word| u16::from_str_radix(word.strip_prefix("0x")?, 16).ok())
        .filter(|key| *key != 0)
        .collect()
}

/// Checks that the tables of service levels and virtual lanes are OpenSM's defaults with QoS on: service level n
/// has lane n, and 15 has lane 7, modulo the number of lanes of the ports.
fn qos_is_set(ground: &Ground, shown: &Snapshot) -> Result<()> {
    for node in shown.adapters().take(2) {
        let lid = ground::lid(node)?.0;
        let table = ground.said(&format!("smpquery sl2vl {lid} 1"))?;
        let lanes: Vec<u8> = sl_to_vl(&table).context("smpquery prints no table")?;
        let port = ground.said(&format!("smpquery portinfo {lid} 1"))?;
        let have = lanes_of(&port).context("smpquery prints no OperVLs")?;
        let expected: Vec<u8> =
            (0..16).map(|sl| if sl == 15 { 7 % have } else { sl % have }).collect();
        ensure!(lanes == expected, "{} has the lanes {lanes:?}, not {expected:?}", node.id);
        let weights = ground.said(&format!("smpquery vlarb {lid} 1"))?;
        ensure!(weights.contains("WEIGHT"), "smpquery prints no weights: {weights}");
    }
    Ok(())
}

/// Returns the row of lanes that smpquery prints, of 16 service levels.
fn sl_to_vl(output: &str) -> Option<Vec<u8>> {
    // "ports: in  0, out  0: | 0| 1| 2| ... |"
    let line = output.lines().find(|line| line.contains("ports: in"))?;
    let (_, row) = line.split_once(": |")?;
    let lanes: Option<Vec<u8>> =
        row.trim_end_matches('|').split('|').map(|lane| lane.trim().parse().ok()).collect();
    lanes.filter(|lanes| lanes.len() == 16)
}

/// Returns how many lanes are operational: smpquery prints `OperVLs:....VL0-7`.
fn lanes_of(output: &str) -> Option<u8> {
    let line = output.lines().find(|line| line.starts_with("OperVLs:"))?;
    let last = line.rsplit('.').next()?;
    Some(last.rsplit(['-', 'L']).next()?.parse::<u8>().ok()? + 1)
}

#[cfg(test)]
mod tests {
    use super::{lanes_of, pkeys, sl_to_vl};

    #[test]
    fn tables_of_smpquery() {
        assert_eq!(
            pkeys("   0: 0xffff 0x0011 0x0000\n   8: 0x0000 0x8012\n2 pkeys capacity\n"),
            [0xffff, 0x11, 0x8012]
        );
        let table = "# SL2VL table: Lid 3\n#                 SL: | 0| 1|\n\
                     ports: in  0, out  0: | 0| 1| 2| 3| 4| 5| 6| 7| 8| 9|10|11|12|13|14| 7|\n";
        assert_eq!(sl_to_vl(table).unwrap()[13..], [13, 14, 7]);
        assert_eq!(sl_to_vl("nothing"), None);
        assert_eq!(lanes_of("OperVLs:.........................VL0-7\n"), Some(8));
        assert_eq!(lanes_of("OperVLs:.........................VL0\n"), Some(1));
    }
}
