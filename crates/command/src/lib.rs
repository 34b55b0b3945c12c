//! What the command `rdmux` and its parts share: printing, processes of the same program, hosts for the time of a
//! command, connections with two paths, and where the C library is.
#![forbid(unsafe_code)]

pub mod child;
pub mod cmutil;
pub mod hosts;
pub mod library;
pub mod output;
pub mod two_paths;

/// Prints a line. A reader that went away, as `head` does, ends the program without complaint.
#[macro_export]
macro_rules! say {
    ($($arg:tt)*) => { $crate::output::line(format_args!($($arg)*)) };
}
