//! Environment variables that name programs, folders and files.

use std::ffi::OsString;
use std::path::PathBuf;

use rdmux_link::inherited;

/// Returns the value of an environment variable that names a program, a folder or a file. None if it is not set, or empty, or the
/// environment is not [trusted](is_trusted).
pub fn path(name: &str) -> Option<OsString> {
    path_if(is_trusted(), name)
}

/// Returns the value of an environment variable that names a folder of the user. None if it is not set, or empty, or the process runs as
/// another user than the one that started it. A process that only has more capabilities or groups keeps to its user's folders.
pub(crate) fn folder_of_user(name: &str) -> Option<PathBuf> {
    path_if(inherited::is_of_its_user(), name).map(PathBuf::from)
}

/// Returns whether the environment may name programs, folders and files: not in a process that got rights which its user does not have
/// when it was started, such as that of a set-user-ID program (`AT_SECURE`, getauxval(3)). Its user could make it run any program.
pub fn is_trusted() -> bool {
    !inherited::has_more_rights()
}

pub(crate) fn path_if(is_trusted: bool, name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| is_trusted && !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_name_paths_only_if_the_environment_is_trusted() {
        assert_eq!(path_if(true, "PATH"), std::env::var_os("PATH"));
        assert!(path_if(true, "PATH").is_some());
        assert_eq!(path_if(false, "PATH"), None);
        assert!(is_trusted() && path("PATH").is_some());
    }
}
