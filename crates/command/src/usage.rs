//! Errors of the command line that its parser does not find.

/// An error of the command line that shows only when its arguments are seen together. The command exits with 2, as after an error of the
/// parser.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);
