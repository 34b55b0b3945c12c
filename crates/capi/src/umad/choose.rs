//! The choice of a port for a program that names no adapter, or port 0.

use super::sysfs::{Ca, PortFacts, Sysfs};
use crate::boundary::{Errno, Result};

/// A switch: its management port is port 0.
const SWITCH: u32 = 2;
const ACTIVE: u32 = 4;
const DISABLED: u32 = 3;
const LINK_UP: u32 = 5;

/// The fitness of a port to be the default. The first value is best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fitness {
    Active,
    LinkUp,
    Enabled,
}

/// Chooses adapter and port. A given name or number is returned unchanged, even if no adapter or port has it.
///
/// Among the candidate ports it chooses the first that is active, otherwise the first that is linked up, otherwise the first that is
/// not disabled, with adapters in the order of their names.
///
/// # Errors
/// ENODEV when there is none, EINVAL for a number that is no valid port number.
pub(super) fn port(sysfs: &Sysfs, ca: Option<&str>, number: i32) -> Result<(String, u8)> {
    let number = u8::try_from(number).map_err(|_| Errno::EINVAL)?;
    let wanted = (number != 0).then_some(number);
    let names = match (ca, wanted) {
        (Some(ca), Some(number)) => return Ok((ca.to_owned(), number)),
        (Some(ca), None) => vec![ca.to_owned()],
        (None, _) => sysfs.cas(),
    };
    let cas = names.iter().filter_map(|name| sysfs.ca(name).ok());
    let best = cas.filter_map(|ca| fittest(&ca, wanted).map(|(fit, port)| (fit, ca.name, port)));
    let (_, ca, port) = best.min_by_key(|(fit, ..)| *fit).ok_or(Errno(libc::ENODEV))?;
    Ok((ca, port))
}

/// Chooses the adapter.
///
/// # Errors
/// ENODEV when none is named and there is none.
pub(super) fn ca(sysfs: &Sysfs, name: Option<&str>) -> Result<String> {
    name.map_or_else(|| Ok(port(sysfs, None, 0)?.0), |name| Ok(name.to_owned()))
}

/// Returns the fittest port of an adapter with its fitness, or that of the wanted one.
fn fittest(ca: &Ca, wanted: Option<u8>) -> Option<(Fitness, u8)> {
    if ca.node_type == SWITCH {
        return Some((Fitness::Active, 0));
    }
    let ports = ca.ports.iter().filter(|port| wanted.is_none_or(|wanted| wanted == port.number));
    let fit = ports.filter_map(|port| Some((fitness(port, wanted.is_some())?, port.number)));
    fit.min_by_key(|(fit, _)| *fit)
}

/// Returns the fitness of a port. One of another link layer is used only if no InfiniBand port is up and none was given by number.
fn fitness(port: &PortFacts, by_number: bool) -> Option<Fitness> {
    match port.is_infiniband() {
        true if port.state == ACTIVE => Some(Fitness::Active),
        true if port.phys_state == LINK_UP => Some(Fitness::LinkUp),
        false if by_number => None,
        _ => (port.phys_state != DISABLED).then_some(Fitness::Enabled),
    }
}

#[cfg(test)]
mod tests {
    use super::super::sysfs::tree::Tree;

    /// Files of a port that differ from those of an active one, with their contents.
    type Files = &'static [(&'static str, &'static str)];
    /// An adapter, and its ports.
    type Adapter = (&'static str, &'static [Files]);

    const DOWN: Files = &[("state", "1: DOWN"), ("phys_state", "2: Polling")];
    const OFF: Files = &[("state", "1: DOWN"), ("phys_state", "3: Disabled")];
    const INIT: Files = &[("state", "2: INIT")];
    const ETHERNET: Files = &[("link_layer", "Ethernet")];

    /// Returns the choice among adapters with these ports.
    fn chosen(cas: &[Adapter], ca: Option<&str>, port: i32) -> Option<(String, u8)> {
        let tree = Tree::new();
        for (name, ports) in cas {
            tree.ca(name);
            (1..).zip(*ports).for_each(|(number, files)| tree.port(name, number, files));
        }
        super::port(&tree.sysfs(), ca, port).ok()
    }

    fn some(name: &str, port: u8) -> Option<(String, u8)> {
        Some((name.to_owned(), port))
    }

    #[test]
    fn an_active_port_is_better_than_an_earlier_one_that_is_up() {
        assert_eq!(chosen(&[("a", &[DOWN]), ("b", &[&[]])], None, 0), some("b", 1));
        assert_eq!(chosen(&[("a", &[INIT, DOWN]), ("b", &[DOWN, &[]])], None, 0), some("b", 2));
        assert_eq!(chosen(&[("b", &[INIT]), ("a", &[INIT])], None, 0), some("a", 1));
        assert_eq!(chosen(&[("a", &[OFF]), ("b", &[DOWN])], None, 0), some("b", 1));
        assert_eq!(chosen(&[("a", &[OFF, OFF])], None, 0), None);
        assert_eq!(chosen(&[], None, 0), None);
    }

    #[test]
    fn a_name_or_a_number_filters() {
        let two: &[Adapter] = &[("a", &[DOWN, INIT]), ("b", &[OFF, &[]])];
        assert_eq!(chosen(two, Some("a"), 0), some("a", 2));
        assert_eq!(chosen(two, None, 1), some("a", 1));
        assert_eq!(chosen(two, None, 2), some("b", 2));
        assert_eq!(chosen(two, None, 3), None);
        // With both given, nothing is checked.
        assert_eq!(chosen(two, Some("x"), 7), some("x", 7));
        assert_eq!(chosen(two, Some("x"), 0), None);
        assert_eq!(chosen(two, None, -1), None);
    }

    #[test]
    fn another_link_layer_is_the_last_resort() {
        assert_eq!(chosen(&[("a", &[ETHERNET]), ("b", &[INIT])], None, 0), some("b", 1));
        assert_eq!(chosen(&[("a", &[ETHERNET])], None, 0), some("a", 1));
        assert_eq!(chosen(&[("a", &[ETHERNET])], None, 1), None);
    }

    #[test]
    fn a_switch_is_managed_at_port_0() {
        let tree = Tree::new();
        tree.ca("sw");
        tree.write("infiniband/sw/node_type", "2: switch");
        tree.port("sw", 0, &[]);
        assert_eq!(super::port(&tree.sysfs(), None, 0).ok(), some("sw", 0));
    }
}
