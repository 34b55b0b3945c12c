//! Which of a host's devices a process sees.

use std::fmt;
use std::str::FromStr;

use rdmux_verbs::control::DeviceKind;
use serde::{Deserialize, Serialize};

/// The devices that a process sees, by `$RDMUX_DEVICE`: `roce`, which is the default, `iw` or `all`.
/// With `all` an address resolves to the first of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum DeviceChoice {
    /// RoCEv2.
    #[default]
    Roce,
    /// iWARP.
    Iwarp,
    /// Both.
    All,
}

/// Why a string is not a [`DeviceChoice`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("RDMUX_DEVICE={0:?} is no choice of devices: use roce, iw or all")]
pub struct InvalidDeviceChoice(String);

/// Every choice and its word.
const WORDS: [(DeviceChoice, &str); 3] =
    [(DeviceChoice::Roce, "roce"), (DeviceChoice::Iwarp, "iw"), (DeviceChoice::All, "all")];

impl DeviceChoice {
    /// The variable of the environment that chooses.
    pub const VARIABLE: &'static str = "RDMUX_DEVICE";

    /// What this process's environment says.
    ///
    /// # Errors
    /// [`InvalidDeviceChoice`] for what the variable holds.
    pub fn of_environment() -> Result<Self, InvalidDeviceChoice> {
        match std::env::var_os(Self::VARIABLE) {
            Some(word) if !word.is_empty() => word.to_string_lossy().parse(),
            _ => Ok(Self::default()),
        }
    }

    /// The kinds that are seen, in the order in which they are listed.
    pub const fn kinds(self) -> &'static [DeviceKind] {
        match self {
            Self::Roce => &[DeviceKind::Roce],
            Self::Iwarp => &[DeviceKind::Iwarp],
            Self::All => &DeviceKind::ALL,
        }
    }

    /// The word for it, as in the variable.
    pub fn word(self) -> &'static str {
        WORDS.iter().find(|(choice, _)| *choice == self).map_or("", |(_, word)| word)
    }
}

impl FromStr for DeviceChoice {
    type Err = InvalidDeviceChoice;

    fn from_str(text: &str) -> Result<Self, InvalidDeviceChoice> {
        let found = WORDS.iter().find(|(_, word)| *word == text);
        found.map(|(choice, _)| *choice).ok_or_else(|| InvalidDeviceChoice(text.to_owned()))
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
    fn words_are_choices_and_others_are_told_what_is() {
        for (choice, word) in WORDS {
            assert_eq!(word.parse(), Ok(choice));
            assert_eq!(choice.to_string(), word);
        }
        assert_eq!(DeviceChoice::All.kinds()[0], DeviceKind::Roce);
        let error = "ib".parse::<DeviceChoice>().unwrap_err().to_string();
        assert!(error.contains("\"ib\"") && error.contains("roce, iw or all"), "{error}");
    }
}
