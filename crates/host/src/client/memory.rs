//! How near other processes of the same user may come to this one, and this one to them. Two environment variables say so, each
//! `on`, which is the default, or `off`:
//!
//! - `$RDMUX_CROSS_MEMORY`: they may reach each other's memory. With it off everything between the processes of a host goes
//!   through rings, by value
//! - `$RDMUX_HOST_RINGS`: on InfiniBand they have rings also where they are on different hosts. With it off these are reached
//!   over UDP, as hosts of others are

/// Whether memory may be reached.
pub const VARIABLE: &str = "RDMUX_CROSS_MEMORY";
/// Whether there are rings between hosts.
const HOST_RINGS: &str = "RDMUX_HOST_RINGS";
/// Who may trace whom, where the kernel has Yama (`ptrace(2)`).
const SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";

/// Whether they may. Allows it, where it has to be: where Yama lets a process be reached by its parents only
/// (`ptrace_scope` 1), other processes of its user are let in, too. So they are where there is no Yama. A child does
/// not inherit that, so nothing is remembered.
pub(crate) fn is_shared() -> bool {
    let shared = is_on(VARIABLE);
    if shared
        && std::fs::read_to_string(SCOPE).is_ok_and(|scope| must_be_let_in(&scope))
        && let Err(error) = rdmux_link::procmem::let_others_in()
    {
        tracing::debug!(%error, "others will not be let into this process's memory");
    }
    shared
}

/// Whether there may be rings to processes of other hosts.
pub(crate) fn has_host_rings() -> bool {
    is_on(HOST_RINGS)
}

fn is_on(variable: &str) -> bool {
    of_environment(variable).unwrap_or_else(|why| {
        tracing::warn!("{why}: taken as off");
        false
    })
}

/// Whether both variables make sense.
///
/// # Errors
/// Which does not, and what it may be.
pub(super) fn check_environment() -> Result<(), String> {
    [VARIABLE, HOST_RINGS].into_iter().try_for_each(|variable| of_environment(variable).map(drop))
}

fn of_environment(variable: &str) -> Result<bool, String> {
    parse(variable, std::env::var(variable).ok().as_deref())
}

/// Whether others reach this process only if it lets them. What the kernel's other scopes refuse (2: to all but the
/// administrator; 3: to all) no process can allow, and what they are is found out by trying.
fn must_be_let_in(scope: &str) -> bool {
    scope.trim() == "1"
}

fn parse(variable: &str, value: Option<&str>) -> Result<bool, String> {
    match value {
        None | Some("" | "on" | "1") => Ok(true),
        Some("off" | "0") => Ok(false),
        Some(other) => Err(format!("{variable}={other:?} is neither on nor off")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_let_in_where_that_helps() {
        assert!(must_be_let_in("1\n"));
        assert!(!["0\n", "2\n", "3\n", ""].into_iter().any(must_be_let_in));
    }

    #[test]
    fn who_mistypes_off_is_not_let_down() {
        let parse = |value| parse(VARIABLE, value);
        assert!([None, Some("on"), Some("")].into_iter().all(|value| parse(value) == Ok(true)));
        assert!(parse(Some("off")) == Ok(false) && parse(Some("0")) == Ok(false));
        // As which it counts.
        assert!(parse(Some("Off")).unwrap_err().contains("neither on nor off"));
    }
}
