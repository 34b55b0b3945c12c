//! Helpers that tests of several crates share: unit tests, `sim`, `fuzz` and `benches/instructions`.
#![forbid(unsafe_code)]

pub mod acm;
pub mod env;
pub mod ledger;
pub mod memory;
pub mod qp;

pub use tempfile::TempDir;

/// Makes an empty directory, in the system's folder for temporary files, which is removed with all that is in it when the
/// value is dropped.
///
/// # Panics
/// If it cannot be made.
pub fn temp_dir() -> TempDir {
    tempfile::Builder::new()
        .prefix("rdmux-test-")
        .tempdir()
        .expect("a directory in the folder for temporary files")
}
