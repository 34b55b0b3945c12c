//! The client side: hosts that attach, programs that send datagrams, commands.

pub mod admin;
mod attachment;
mod capture;
mod connect;
mod is_sm;
mod link;
mod mad_file;
mod opening;
mod opening_file;

pub use attachment::{Attaching, Attachment};
pub use capture::Capture;
pub use connect::ConnectOptions;
pub(crate) use connect::connect_socket;
pub use is_sm::{IsSm, SettingIsSm};
pub use mad_file::{MadFile, Partial, Received};
pub use opening::Progress;
pub use opening_file::OpeningFile;
