//! The options of a fabric that are reset when it is brought up with others.

use rdmux_fabric::server::Setup;

/// Returns the options that a fabric had and no longer has, as given to `rdmux fabric up`. Options are stored as a
/// whole, so one that is not given again returns to its default.
pub(super) fn dropped(before: &Setup, now: &Setup) -> Vec<&'static str> {
    let usual = Setup::default();
    let (before, now, usual) = (rows(before), rows(now), rows(&usual));
    let rows = before.into_iter().zip(now).zip(usual);
    rows.filter(|((before, now), usual)| before.1 != usual.1 && now.1 == usual.1)
        .map(|((before, _), _)| before.0)
        .collect()
}

/// Returns each option with its value.
fn rows(setup: &Setup) -> [(&'static str, String); 13] {
    let Setup { source: _, join, simulate, listen, manager } = setup;
    let said = |value: &dyn std::fmt::Debug| format!("{value:?}");
    [
        ("--join", said(join)),
        ("--simulate", said(simulate)),
        ("--listen", said(listen)),
        ("--no-sm", said(&manager.off)),
        ("--sm-priority", said(&manager.priority)),
        ("--sm-routing", said(&manager.routing)),
        ("--sm-lmc", said(&manager.lmc)),
        ("--sm-sweep", said(&manager.sweep_ms)),
        ("--sm-poll", said(&manager.poll_ms)),
        ("--sm-sl-to-vl", said(&manager.sl_to_vl)),
        ("--sm-babbling-port-policy", said(&manager.babbling_port_policy)),
        ("--m-key", said(&(manager.m_key, manager.m_key_protect, manager.m_key_lease))),
        ("--partitions", said(&manager.partitions)),
    ]
}

#[cfg(test)]
mod tests {
    use rdmux_wire::Mkey;

    use super::*;

    #[test]
    fn options_that_are_not_given_again_are_named_and_changed_ones_are_not() {
        let mut before = Setup { simulate: true, ..Setup::default() };
        before.manager.m_key = Mkey(7);
        before.manager.lmc = 1;
        let mut now = Setup::default();
        now.manager.lmc = 2;
        assert_eq!(dropped(&before, &now), ["--simulate", "--m-key"]);
        assert!(dropped(&before, &before).is_empty() && dropped(&now, &before).is_empty());
    }
}
