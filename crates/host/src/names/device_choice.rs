//! The choice of a host's devices that a process sees.

use std::fmt;
use std::slice;
use std::str::FromStr;

use rdmux_verbs::control::DeviceKind;
use rdmux_verbs::kind;
use serde::{Deserialize, Serialize};

use crate::proto::DeviceRow;

/// The devices that a process sees, from `$RDMUX_DEVICE`: the word of a kind, such as `roce`, the default, or `all`.
/// With `all` an address resolves to the first of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum DeviceChoice {
    /// The device of one kind.
    Only(DeviceKind),
    /// All devices.
    All,
}

/// The reason why a string is not a [`DeviceChoice`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("RDMUX_DEVICE={0:?} is not a choice of devices: use {words}", words = words())]
pub struct InvalidDeviceChoice(String);

/// The word for all devices.
const ALL: &str = "all";

/// Lists all words, for a message.
fn words() -> String {
    let words: Vec<&str> = kind::rows().iter().map(|row| row.word).collect();
    format!("{} or {ALL}", words.join(", "))
}

impl DeviceChoice {
    /// The environment variable of the choice.
    pub const VARIABLE: &'static str = "RDMUX_DEVICE";

    /// Returns every choice, [`All`](Self::All) last.
    pub fn every() -> impl Iterator<Item = Self> {
        kind::rows().iter().map(|row| Self::Only(row.kind)).chain([Self::All])
    }

    /// Reads this process's choice from the environment.
    ///
    /// # Errors
    /// [`InvalidDeviceChoice`] for an invalid value of the variable.
    pub fn of_environment() -> Result<Self, InvalidDeviceChoice> {
        match std::env::var_os(Self::VARIABLE) {
            Some(word) if !word.is_empty() => word.to_string_lossy().parse(),
            _ => Ok(Self::default()),
        }
    }

    /// Returns the kinds that are seen, in the order in which they are listed.
    pub fn kinds(self) -> &'static [DeviceKind] {
        match self {
            Self::Only(kind) => slice::from_ref(&kind.row().kind),
            Self::All => kind::all(),
        }
    }

    /// Returns whether a device of a host is visible. With `All`, the device on a fabric is hidden while the host is on
    /// no fabric. A program that needs it must name it.
    pub fn sees(self, device: &DeviceRow) -> bool {
        match self {
            Self::Only(kind) => device.kind == kind,
            Self::All => !device.kind.is_on_fabric() || device.adapter.is_some(),
        }
    }

    /// Returns the choice's word, as in the variable.
    pub fn word(self) -> &'static str {
        match self {
            Self::Only(kind) => kind.row().word,
            Self::All => ALL,
        }
    }
}

impl Default for DeviceChoice {
    fn default() -> Self {
        Self::Only(DeviceKind::default())
    }
}

impl FromStr for DeviceChoice {
    type Err = InvalidDeviceChoice;

    fn from_str(text: &str) -> Result<Self, InvalidDeviceChoice> {
        let found = Self::every().find(|choice| choice.word() == text);
        found.ok_or_else(|| InvalidDeviceChoice(text.to_owned()))
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_choice_parses_its_words_and_other_words_list_the_valid_ones() {
        for choice in DeviceChoice::every() {
            assert_eq!(choice.word().parse(), Ok(choice));
            assert_eq!(choice.to_string(), choice.word());
        }
        assert_eq!(DeviceChoice::All.kinds()[0], DeviceKind::default());
        let error = "opa".parse::<DeviceChoice>().unwrap_err().to_string();
        assert!(error.contains("\"opa\"") && error.contains("roce, iw, ib or all"), "{error}");
    }
}
