//! The functions of `<rdmux/rdmux.h>`, which no other implementation has.

use std::ffi::{CStr, c_char, c_uint};

/// The version as text, with the NUL that C needs.
const TEXT: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");

/// The version as a number, `RDMUX_VERSION`.
const NUMBER: c_uint = part(env!("CARGO_PKG_VERSION_MAJOR")) << 16
    | part(env!("CARGO_PKG_VERSION_MINOR")) << 8
    | part(env!("CARGO_PKG_VERSION_PATCH"));

/// Converts a part of the version to a number.
const fn part(digits: &str) -> c_uint {
    match c_uint::from_str_radix(digits, 10) {
        Ok(number) => number,
        Err(_) => panic!("cargo checks that these are numbers"),
    }
}

/// Returns the version of the library, comparable with `RDMUX_MAKE_VERSION`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn rdmux_version() -> c_uint {
    NUMBER
}

/// Returns the version of the library as text.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn rdmux_version_string() -> *const c_char {
    match CStr::from_bytes_with_nul(TEXT.as_bytes()) {
        Ok(text) => text.as_ptr(),
        Err(_) => c"".as_ptr(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_of_this_version() {
        let header = include_str!("../include/rdmux/rdmux.h");
        let defined = |name: &str| {
            let line = format!("#define RDMUX_VERSION_{name} ");
            header.lines().find_map(|l| l.strip_prefix(&line)).map(str::to_owned)
        };
        let parts = ["MAJOR", "MINOR", "PATCH"].map(|name| defined(name).unwrap());
        assert_eq!(parts.join("."), env!("CARGO_PKG_VERSION"));
        // SAFETY: the function returns a static string.
        let text = unsafe { CStr::from_ptr(rdmux_version_string()) };
        assert_eq!(text.to_str(), Ok(env!("CARGO_PKG_VERSION")));
        let number = parts.iter().fold(0, |n, p| n << 8 | p.parse::<c_uint>().unwrap());
        assert_eq!(rdmux_version(), number);
    }
}
