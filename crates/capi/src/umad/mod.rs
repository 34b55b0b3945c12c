//! libibumad.
//!
//! The library reads adapters and ports from files under `/sys`, as programs that read these themselves do. An open port
//! is a MAD file of the process that owns the subnet. That process keeps agents, answers, timeouts and RMPP; this library
//! adds the checks that a system call makes at once.
//!
//! | file | contents |
//! |---|---|
//! | `sysfs`, `choose` | adapters and ports as read from files, and the choice of one |
//! | `ca`, `list` | the same as C structures |
//! | `buffer`, `dump` | a program's buffers |
//! | `file`, `source` | the MAD file of a port, and its origin |
//! | `open`, `outstanding` | an open port, and its requests that may be unanswered |
//! | `ports` | opening and closing |
//! | `agent` | registering and unregistering |
//! | `transfer` | sending, receiving, polling |
//! | `text` | names for display |

mod agent;
mod buffer;
mod ca;
mod choose;
mod dump;
#[cfg(test)]
mod fake;
mod file;
mod list;
pub(crate) mod open;
mod outstanding;
mod ports;
mod source;
mod sysfs;
mod text;
mod transfer;
