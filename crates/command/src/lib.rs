//! Code that the command `rdmux` and its parts share: output, child processes of the same program, hosts for the
//! duration of a command, connections with two paths, the location of the C library, signals, and errors of the
//! command line.
#![forbid(unsafe_code)]

pub mod child;
pub mod cmutil;
pub mod hosts;
pub mod library;
pub mod output;
pub mod signals;
pub mod two_paths;
pub mod usage;

/// Prints a line. A reader that has closed the pipe, as `head` does, ends the program without an error.
#[macro_export]
macro_rules! say {
    ($($arg:tt)*) => { $crate::output::line(format_args!($($arg)*)) };
}

/// Prints a line, or returns an error, which ends the program in the same way after the command has ended what it started.
#[macro_export]
macro_rules! try_say {
    ($($arg:tt)*) => { $crate::output::try_line(format_args!($($arg)*)) };
}
