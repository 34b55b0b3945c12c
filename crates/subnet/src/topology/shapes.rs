//! Generated topologies: two adapters, one switch, fat trees, tori, dragonflies.

use alloc::format;
use alloc::string::String;
use core::fmt;
use core::str::FromStr;

use rdmux_wire::Guid;

use super::model::{Node, NodeKind, PortRef, Topology};
use super::rate::LinkRate;
use super::{MAX_ALL_PORTS, MAX_NODES, MAX_PORTS};

/// A kind of topology and its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shape {
    /// Two adapters, back to back: `two`.
    Two,
    /// One switch with this many ports, each with an adapter: `switch:N`.
    Switch(u8),
    /// This many adapters on a tree of switches with 36 ports: `fattree:N`. Up to 648 adapters take two levels, up to 11,664
    /// take three. A leaf has up to 18 adapters, evenly distributed, and 18 ports upwards. 10,368 adapters take 576 leaves,
    /// as many switches above them in 32 pods, and 324 at the top.
    FatTree(u16),
    /// A switch with an adapter at each place of a three-dimensional torus: `torus:AxBxC`. Ports 1 to 6 connect to +x, -x,
    /// +y, -y, +z and -z, port 7 to the adapter. A dimension of size two has a single cable.
    Torus([u16; 3]),
    /// Groups of switches, with all switches of a group connected to each other: `dragonfly:A,P,H[,G]`.
    Dragonfly {
        /// Switches per group.
        a: u16,
        /// Adapters per switch.
        p: u16,
        /// Cables per switch to other groups.
        h: u16,
        /// Number of groups; A times H plus one by default.
        g: u16,
    },
}

/// The reason why a text is not a valid shape.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// No shape has this name.
    #[error(
        "`{0}` is not a shape: use two, switch:N, fattree:N, torus:AxBxC or dragonfly:A,P,H[,G]"
    )]
    Unknown(String),
    /// The numbers after the name are invalid.
    #[error("`{0}`: {1}")]
    Size(String, &'static str),
}

const SWITCH: &str = "switch:N takes 1 to 254 ports";
const FAT_TREE: &str = "fattree:N takes 1 to 11664 adapters";
const TORUS: &str = "torus:AxBxC takes three sizes, at most 24575 switches in total";
const DRAGONFLY: &str = "dragonfly:A,P,H[,G] takes numbers of switches, adapters and global \
    cables that fit 254 ports, at most A*H+1 groups and 49151 nodes";

impl FromStr for Shape {
    type Err = ShapeError;

    fn from_str(text: &str) -> Result<Self, ShapeError> {
        let (name, sizes) = text.split_once(':').unwrap_or((text, ""));
        let size = |why| ShapeError::Size(text.chars().take(64).collect(), why);
        match name {
            "two" if text == "two" => Ok(Self::Two),
            "two" => Err(size("two takes no size")),
            "switch" => {
                let n = number(sizes).and_then(|n| u8::try_from(n).ok());
                let n = n.filter(|n| (1..=MAX_PORTS).contains(n));
                n.map(Self::Switch).ok_or_else(|| size(SWITCH))
            }
            "fattree" => {
                let n = number(sizes).filter(|n| (1..=MAX_TREE).contains(n));
                n.map(Self::FatTree).ok_or_else(|| size(FAT_TREE))
            }
            "torus" => {
                let [a, b, c] = numbers(sizes, 'x').ok_or_else(|| size(TORUS))?;
                let all = [a, b, c].iter().map(|n| usize::from(*n)).product::<usize>();
                let fits = (1..=MAX_NODES / 2).contains(&all);
                if fits { Ok(Self::Torus([a, b, c])) } else { Err(size(TORUS)) }
            }
            "dragonfly" => dragonfly_size(sizes).ok_or_else(|| size(DRAGONFLY)),
            _ => Err(ShapeError::Unknown(text.chars().take(64).collect())),
        }
    }
}

fn number(text: &str) -> Option<u16> {
    // `parse` would accept a sign.
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
}

fn numbers<const N: usize>(text: &str, separator: char) -> Option<[u16; N]> {
    let mut all = [0; N];
    let mut parts = text.split(separator);
    for n in &mut all {
        *n = number(parts.next()?)?;
    }
    parts.next().is_none().then_some(all)
}

fn dragonfly_size(text: &str) -> Option<Shape> {
    let [a, p, h, g] = match numbers(text, ',') {
        Some(four) => four,
        None => {
            let [a, p, h] = numbers(text, ',')?;
            [a, p, h, a.checked_mul(h)?.checked_add(1)?]
        }
    };
    let [wa, wp, wh, wg] = [a, p, h, g].map(usize::from);
    let ports = (wp + wa).checked_sub(1)? + wh;
    let (switches, all) = (wa * wg, wa * wg * (1 + wp));
    let fits = a > 0
        && (1..=wa * wh + 1).contains(&wg)
        && (1..=usize::from(MAX_PORTS)).contains(&ports)
        && all <= MAX_NODES
        && switches * (ports + 1) + all <= MAX_ALL_PORTS;
    fits.then_some(Shape::Dragonfly { a, p, h, g })
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Two => f.write_str("two"),
            Self::Switch(n) => write!(f, "switch:{n}"),
            Self::FatTree(n) => write!(f, "fattree:{n}"),
            Self::Torus([a, b, c]) => write!(f, "torus:{a}x{b}x{c}"),
            Self::Dragonfly { a, p, h, g } => write!(f, "dragonfly:{a},{p},{h},{g}"),
        }
    }
}

impl Shape {
    /// Generates the topology. GUIDs count up from `first` in steps of 256, which leaves room for those of the ports, the
    /// node's GUID plus the port number. The same `first` gives the same GUIDs. Adapters are called `node1` and so on.
    pub fn topology(self, first: Guid) -> Topology {
        let mut build = Builder { topology: Topology::default(), next: first.0, adapters: 0 };
        match self {
            Self::Two => build.two(),
            Self::Switch(n) => build.star(n),
            Self::FatTree(n) if n <= MAX_TWO_LEVELS => build.two_levels(n),
            Self::FatTree(n) => build.three_levels(n),
            Self::Torus(size) => build.torus(size),
            Self::Dragonfly { a, p, h, g } => build.dragonfly([a, p, h, g]),
        }
        build.topology
    }
}

/// Half of the ports of a fat tree's switch: there are as many ports down as up.
const HALF: u8 = 18;
const MAX_TWO_LEVELS: u16 = 2 * 18 * 18;
const POD: u16 = 18 * 18;
const MAX_TREE: u16 = 36 * POD;

/// A topology under construction, with the next GUID and the number of adapters so far.
struct Builder {
    topology: Topology,
    next: u64,
    adapters: u32,
}

impl Builder {
    fn two(&mut self) {
        let [a, b] = [(); 2].map(|()| self.adapter());
        self.cable(a, 1, b, 1);
    }

    fn star(&mut self, n: u8) {
        let switch = self.switch(n, "switch");
        for port in 1..=n {
            self.hang(switch, port);
        }
    }

    /// Builds leaves below spines. A few leaves need few spines, with several cables to each.
    fn two_levels(&mut self, n: u16) {
        // A single leaf would not be a tree.
        let leaves = n.div_ceil(HALF.into()).max(2.min(n));
        let spines = [1, 2, 3, 6, 9, 18u8].into_iter().find(|s| u16::from(*s) * 2 >= leaves);
        let spines = spines.unwrap_or(HALF);
        let first_leaf = self.row(leaves, "leaf");
        let first_spine = self.row(spines.into(), "spine");
        for leaf in 0..leaves {
            for up in 0..HALF {
                let (spine, parallel) = (up % spines, up / spines);
                let each = HALF / spines;
                let port = port(usize::from(leaf) * usize::from(each) + usize::from(parallel));
                self.cable(
                    first_leaf + usize::from(leaf),
                    HALF + 1 + up,
                    first_spine + usize::from(spine),
                    port,
                );
            }
        }
        self.hang_on_leaves(first_leaf, leaves, n);
    }

    /// Builds pods of up to 18 leaves, all of equal size, below 18 switches each, and 324 switches at the top, each with one
    /// cable to every pod.
    fn three_levels(&mut self, n: u16) {
        let half = usize::from(HALF);
        let pods = n.div_ceil(POD);
        let of_pod = n.div_ceil(HALF.into()).div_ceil(pods);
        let (leaves, middles) = (pods * of_pod, pods * u16::from(HALF));
        let [pods, of_pod] = [pods, of_pod].map(usize::from);
        let first_leaf = self.row(leaves, "leaf");
        let first_middle = self.row(middles, "middle");
        let first_top = self.row(POD, "top");
        for leaf in 0..usize::from(leaves) {
            let (pod, place) = (leaf / of_pod, leaf % of_pod);
            for up in 0..HALF {
                let middle = first_middle + pod * half + usize::from(up);
                self.cable(first_leaf + leaf, HALF + 1 + up, middle, port(place));
            }
        }
        for middle in 0..pods * half {
            let (pod, place) = (middle / half, middle % half);
            for up in 0..HALF {
                let top = first_top + place * half + usize::from(up);
                self.cable(first_middle + middle, HALF + 1 + up, top, port(pod));
            }
        }
        self.hang_on_leaves(first_leaf, leaves, n);
    }

    fn torus(&mut self, size: [u16; 3]) {
        let [a, b, c] = size.map(usize::from);
        let first = self.topology.nodes.len();
        for i in 0..a * b * c {
            let (x, y, z) = (i / (b * c), i / c % b, i % c);
            self.switch(7, &format!("torus {x},{y},{z}"));
        }
        let steps = [(a, b * c), (b, c), (c, 1)];
        for i in 0..a * b * c {
            for (dimension, (length, stride)) in steps.into_iter().enumerate() {
                let place = i / stride % length;
                let next = i - place * stride + (place + 1) % length * stride;
                // In a ring of two the second switch would repeat the cable of the first.
                if length > 2 || place + 1 < length {
                    self.cable(
                        first + i,
                        port(2 * dimension),
                        first + next,
                        port(2 * dimension + 1),
                    );
                }
            }
        }
        for i in 0..a * b * c {
            self.hang(first + i, 7);
        }
    }

    /// Builds a dragonfly. Ports of a switch: its adapters, the others of its group, other groups. The cables between groups
    /// go round: the first of each group to the next group, the second to the one after that.
    fn dragonfly(&mut self, size: [u16; 4]) {
        let [a, p, h, g] = size.map(usize::from);
        let first = self.topology.nodes.len();
        for i in 0..a * g {
            let name = format!("group {} switch {}", i / a, i % a);
            self.switch(port(p + (a - 1) + h - 1), &name);
        }
        for group in 0..g {
            for i in 0..a {
                for j in i + 1..a {
                    let (from, to) = (first + group * a + i, first + group * a + j);
                    self.cable(from, port(p + j - 1), to, port(p + i));
                }
            }
        }
        let global = |channel: usize| port(p + (a - 1) + channel % h);
        let others = g - 1;
        for from in 0..g {
            for channel in (0..a * h).filter(|_| others > 0) {
                let (round, step) = (channel / others, channel % others + 1);
                let to = (from + step) % g;
                let back = round * others + (g - step - 1);
                if back < a * h && from < to {
                    let from = first + from * a + channel / h;
                    self.cable(from, global(channel), first + to * a + back / h, global(back));
                }
            }
        }
        for switch in 0..a * g {
            for adapter in 0..p {
                self.hang(first + switch, port(adapter));
            }
        }
    }

    /// Distributes the adapters over the leaves. The first leaves have one more if they cannot be equal.
    fn hang_on_leaves(&mut self, first_leaf: usize, leaves: u16, n: u16) {
        for leaf in 0..leaves {
            let adapters = n / leaves + u16::from(leaf < n % leaves);
            for place in 0..adapters {
                self.hang(first_leaf + usize::from(leaf), port(place.into()));
            }
        }
    }

    /// Adds a row of switches of a fat tree. Returns the index of the first.
    fn row(&mut self, count: u16, name: &str) -> usize {
        let first = self.topology.nodes.len();
        for i in 1..=count {
            self.switch(2 * HALF, &format!("{name}{i}"));
        }
        first
    }

    fn switch(&mut self, ports: u8, description: &str) -> usize {
        self.node(NodeKind::Switch, "S", ports, description)
    }

    fn adapter(&mut self) -> usize {
        self.adapters += 1;
        let name = format!("node{}", self.adapters);
        self.node(NodeKind::Ca, "H", 1, &name)
    }

    fn node(&mut self, kind: NodeKind, letter: &str, ports: u8, description: &str) -> usize {
        let guid = Guid(self.next);
        self.next = self.next.wrapping_add(0x100);
        let mut node = Node::new(kind, format!("{letter}-{:016x}", guid.0), guid, ports);
        node.describe(description);
        self.topology.add(node)
    }

    /// Adds an adapter on a port.
    fn hang(&mut self, switch: usize, port: u8) {
        let adapter = self.adapter();
        self.cable(adapter, 1, switch, port);
    }

    fn cable(&mut self, node: usize, port: u8, far: usize, far_port: u8) {
        let far = PortRef { node: far, port: far_port };
        let laid = self.topology.connect(PortRef { node, port }, far, LinkRate::DEFAULT);
        debug_assert_eq!(laid, Ok(()), "a shape has each port once");
    }
}

/// Returns the port number with this index, from 0.
fn port(index: usize) -> u8 {
    u8::try_from(index + 1).unwrap_or(u8::MAX)
}
