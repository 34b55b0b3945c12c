//! Option values: conversion from and to words.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rdmux_wire::Mtu;
use rdmux_wire::sa::Rate;

use crate::addresses::{is_word, quoted};

/// Parses a number in a range.
pub(super) fn number<T: TryFrom<u64>>(word: &str, range: RangeInclusive<u64>) -> Result<T, String> {
    let wrong = || {
        let (first, last) = (range.start(), range.end());
        format!("a number from {first} to {last} is needed, not {}", quoted(word))
    };
    let value: u64 = word.parse().map_err(|_| wrong())?;
    if !range.contains(&value) {
        return Err(wrong());
    }
    T::try_from(value).map_err(|_| wrong())
}

/// Parses yes or no.
pub(super) fn boolean(word: &str) -> Result<bool, String> {
    match word.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" => Ok(true),
        "false" | "no" | "off" => Ok(false),
        word => match word.parse::<i64>() {
            Ok(number) => Ok(number != 0),
            Err(_) => Err(format!("yes or no is needed, not {}", quoted(word))),
        },
    }
}

/// Parses a boolean, and returns a warning if the word means yes here, but no for ibacm, which accepts only the words `theirs` and
/// numbers.
pub(super) fn boolean_of_ibacm(
    word: &str,
    theirs: &[&str],
) -> Result<(bool, Option<String>), String> {
    let value = boolean(word)?;
    let is_known = theirs.iter().any(|known| known.eq_ignore_ascii_case(word));
    let is_other = value && !is_known && word.parse::<i64>().is_err();
    let warning = || format!("ibacm takes {} for no; write 1, which is yes for both", quoted(word));
    Ok((value, is_other.then(warning)))
}

/// Returns a boolean as a word.
pub(super) fn yes_no(value: bool) -> String {
    if value { "yes" } else { "no" }.to_owned()
}

/// Parses one of several words.
pub(super) fn one_of<T: Copy>(word: &str, words: &[(&str, T)]) -> Result<T, String> {
    let found = words.iter().find(|(name, _)| name.eq_ignore_ascii_case(word));
    found.map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<&str> = words.iter().map(|(name, _)| *name).collect();
        format!("one of {} is needed, not {}", names.join(", "), quoted(word))
    })
}

/// Returns the word for a value.
pub(super) fn word_of<T: PartialEq>(value: &T, words: &[(&str, T)]) -> String {
    let found = words.iter().find(|(_, other)| other == value);
    found.map_or_else(String::new, |(name, _)| (*name).to_owned())
}

/// Parses a time in units of `unit` seconds; a negative one means forever.
pub(super) fn expiry(word: &str, unit: u64) -> Result<Duration, String> {
    let value: i64 = word
        .parse()
        .map_err(|_| format!("a number is needed, or -1 for no expiry, not {}", quoted(word)))?;
    Ok(match u64::try_from(value) {
        Ok(value) => value.checked_mul(unit).map_or(Duration::MAX, Duration::from_secs),
        Err(_) => Duration::MAX,
    })
}

/// Formats a time in units of `unit` seconds; none if it needs smaller ones.
pub(super) fn expiry_word(expiry: Duration, unit: u64) -> Option<String> {
    if expiry == Duration::MAX {
        return Some("-1".to_owned());
    }
    let is_whole = expiry.as_secs().is_multiple_of(unit);
    is_whole.then(|| (expiry.as_secs() / unit).to_string())
}

/// Parses a time in milliseconds.
pub(super) fn millis(word: &str, range: RangeInclusive<u64>) -> Result<Duration, String> {
    number(word, range).map(Duration::from_millis)
}

/// Returns a time as a word for [`millis`].
pub(super) fn millis_word(value: Duration) -> String {
    value.as_millis().to_string()
}

/// Parses a rate in Gb/s, where 2.5 is written as 2. Also returns whether ibacm accepts it.
pub(super) fn rate(word: &str) -> Result<(Rate, bool), String> {
    let all = || (2..=22).map(Rate);
    let gbps = word.strip_suffix(".5").unwrap_or(word).parse().ok();
    let found = all().find(|rate| Some(rate.mbps() / 1000) == gbps);
    let known = |rate: Rate| ![28, 50, 400, 600].contains(&(rate.mbps() / 1000));
    found.map(|rate| (rate, known(rate))).ok_or_else(|| {
        let mut all: Vec<u32> = all().map(|rate| rate.mbps() / 1000).collect();
        all.sort_unstable();
        let all: Vec<String> = all.iter().map(u32::to_string).collect();
        format!("a rate in Gb/s is one of {}, not {}", all.join(", "), quoted(word))
    })
}

/// Returns a rate as a word for [`rate`].
pub(super) fn rate_word(rate: Rate) -> String {
    (rate.mbps() / 1000).to_string()
}

/// Parses an MTU in bytes.
pub(super) fn mtu(word: &str) -> Result<Mtu, String> {
    let bytes: Option<u32> = word.parse().ok();
    let found = bytes.and_then(Mtu::at_most).filter(|mtu| Some(mtu.bytes()) == bytes);
    found
        .ok_or_else(|| format!("an MTU is one of 256, 512, 1024, 2048, 4096, not {}", quoted(word)))
}

/// Parses an absolute path, because the service has its own working directory.
pub(super) fn path(word: &str) -> Result<PathBuf, String> {
    if Path::new(word).is_absolute() && !word.contains(char::is_control) {
        Ok(word.into())
    } else {
        Err(format!("an absolute path is needed, not {}", quoted(word)))
    }
}

/// Formats a path, if it is a single word.
pub(super) fn path_word(path: Option<&PathBuf>) -> Vec<String> {
    let word = path.and_then(|path| path.to_str());
    let word = word.filter(|word| is_word(word));
    word.map(str::to_owned).into_iter().collect()
}
