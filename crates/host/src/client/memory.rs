//! The extent to which this process and other processes of the same user may share memory. Two environment variables control
//! it, each `on`, which is the default, or `off`:
//!
//! - `$RDMUX_CROSS_MEMORY`: they may access each other's memory. If off, everything between the processes of a host is copied
//!   through rings
//! - `$RDMUX_HOST_RINGS`: on InfiniBand, processes on different hosts use rings, too. If off, they use UDP, as with other
//!   users' hosts

/// The variable for access to memory.
pub const VARIABLE: &str = "RDMUX_CROSS_MEMORY";
/// The variable for rings between hosts.
const HOST_RINGS: &str = "RDMUX_HOST_RINGS";
/// Yama's setting of which processes may trace which (`ptrace(2)`).
const SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";

/// Returns whether other processes may access this one's memory. Allows it if needed: where Yama restricts access to
/// parents (`ptrace_scope` 1), other processes of the same user are let in, as without Yama. A child does not inherit
/// that, so nothing is cached.
pub(crate) fn is_shared() -> bool {
    let shared = is_on(VARIABLE);
    if shared
        && std::fs::read_to_string(SCOPE).is_ok_and(|scope| must_be_let_in(&scope))
        && let Err(error) = rdmux_link::procmem::let_others_in()
    {
        tracing::debug!(%error, "cannot allow other processes to access this process's memory");
    }
    shared
}

/// Returns whether rings to processes of other hosts are allowed.
pub(crate) fn has_host_rings() -> bool {
    is_on(HOST_RINGS)
}

fn is_on(variable: &str) -> bool {
    of_environment(variable).unwrap_or_else(|why| {
        tracing::warn!("{why}; using off");
        false
    })
}

/// Checks that both variables have valid values.
///
/// # Errors
/// The invalid variable, and its valid values.
pub(super) fn check_environment() -> Result<(), String> {
    [VARIABLE, HOST_RINGS].into_iter().try_for_each(|variable| of_environment(variable).map(drop))
}

fn of_environment(variable: &str) -> Result<bool, String> {
    parse(variable, std::env::var(variable).ok().as_deref())
}

/// Returns whether other processes can access this one only if it lets them. A refusal by the other scopes (2: all but
/// the administrator; 3: all) cannot be lifted by a process, and shows only in an attempt.
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
    fn ptracer_permission_is_given_only_at_ptrace_scope_1() {
        assert!(must_be_let_in("1\n"));
        assert!(!["0\n", "2\n", "3\n", ""].into_iter().any(must_be_let_in));
    }

    #[test]
    fn invalid_cross_memory_setting_is_an_error() {
        let parse = |value| parse(VARIABLE, value);
        assert!([None, Some("on"), Some("")].into_iter().all(|value| parse(value) == Ok(true)));
        assert!(parse(Some("off")) == Ok(false) && parse(Some("0")) == Ok(false));
        // Invalid values count as off.
        assert!(parse(Some("Off")).unwrap_err().contains("neither on nor off"));
    }
}
