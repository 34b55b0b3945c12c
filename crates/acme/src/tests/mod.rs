//! Runs of the tool against a scripted service.

mod lines;
mod service;
mod trouble;

use std::ffi::OsString;

use service::Scripted;

/// Returns the exit status and the output, with `SVC` for the path of the service's socket; words are separated by
/// blanks.
fn run(service: &Scripted, line: &str) -> (u8, String) {
    let path = service.path().display().to_string();
    let words = line.split(' ').filter(|word| !word.is_empty());
    // The services of a list have numbers at their ends.
    let words = words.map(|word| OsString::from(word.replace("SVC", &path)));
    let mut out = Vec::new();
    let status = crate::dispatch(words, &mut out).unwrap();
    (status, String::from_utf8(out).unwrap().replace(&path, "SVC"))
}
