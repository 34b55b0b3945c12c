//! libibumad.
//!
//! The library reads of adapters and ports what files under `/sys` tell, as programs that look there themselves do. A port
//! that is open is a MAD file of the process that owns the subnet, where agents, answers, timeouts and RMPP are kept; this library
//! adds what a system call checks at once.
//!
//! | file | what |
//! |---|---|
//! | `sysfs`, `choose` | what files tell of adapters and ports, and which one is meant |
//! | `ca`, `list` | that as structures of C |
//! | `buffer`, `dump` | a program's buffers |
//! | `file`, `source` | the MAD file of a port, and where it comes from |
//! | `open`, `outstanding` | an open port, and its requests that may be unanswered |
//! | `ports` | opened and closed |
//! | `agent` | registered and ended |
//! | `transfer` | sent, received, waited for |
//! | `text` | words for people |

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
