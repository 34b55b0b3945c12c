//! The environment in which a program finds the library, its host and the service.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use anyhow::Result;
use rdmux_host::{ConnectOptions, DeviceChoice, HostName};

use rdmux_command::library::Library;
use rdmux_runtime::start;

/// A list of names and values.
#[derive(Debug, Default)]
pub(crate) struct Variables(Vec<(&'static str, OsString)>);

impl Variables {
    /// Returns the variables that every program needs.
    pub(crate) fn new(
        options: &ConnectOptions,
        host: &HostName,
        devices: DeviceChoice,
        library: &Library,
    ) -> Result<Self> {
        let folder = library.folder(&options.dir.host(host)?)?;
        let mut this = Self::default();
        this.prepend("LD_LIBRARY_PATH", &folder);
        this.set("RDMUX_HOST", host.as_str());
        this.set(DeviceChoice::VARIABLE, devices.word());
        // The user's value may be relative to this working directory.
        if std::env::var_os("RDMUX_RUNTIME_DIR").is_some_and(|v| !v.is_empty()) {
            this.set("RDMUX_RUNTIME_DIR", options.dir.path());
        }
        for name in ["RDMUX_CONFIG", "RDMUX_ACM_DIR"] {
            if let Some(path) = start::file_of_environment(name) {
                this.set(name, path);
            }
        }
        // The library starts the service again after the present one has ended.
        if let Some(program) = start::program(options.program.as_deref()) {
            this.set("RDMUX_DAEMON", program);
        }
        Ok(this)
    }

    /// Sets a variable.
    pub(crate) fn set(&mut self, name: &'static str, value: impl AsRef<OsStr>) {
        self.0.push((name, value.as_ref().to_owned()));
    }

    /// Prepends an entry to a list variable, and removes other occurrences of it.
    pub(crate) fn prepend(&mut self, name: &'static str, entry: &Path) {
        self.0.push((name, prepended(entry.as_os_str(), std::env::var_os(name))));
    }

    /// Returns all variables.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&'static str, &OsStr)> {
        self.0.iter().map(|(name, value)| (*name, value.as_os_str()))
    }
}

/// Prepends an entry to a list separated by colons, which then has it only once. Empty entries are dropped, because to
/// the loader they are the working directory.
fn prepended(entry: &OsStr, old: Option<OsString>) -> OsString {
    let mut list = entry.to_owned();
    let old = old.unwrap_or_default();
    for other in old.as_encoded_bytes().split(|&b| b == b':') {
        if !other.is_empty() && other != entry.as_encoded_bytes() {
            list.push(":");
            list.push(<OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(other));
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_entry_is_prepended_without_duplicates() {
        let prepended = |old: Option<&str>| prepended(OsStr::new("/new"), old.map(OsString::from));
        assert_eq!(prepended(None), "/new");
        assert_eq!(prepended(Some("")), "/new");
        assert_eq!(prepended(Some("/a:/b")), "/new:/a:/b");
        assert_eq!(prepended(Some("/a:/new")), "/new:/a");
    }
}
