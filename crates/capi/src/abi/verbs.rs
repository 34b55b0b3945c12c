//! Types of <infiniband/verbs.h> and <infiniband/sa.h>, whose layout is compiled into programs.

// Tests include this file by its path.
#[path = "verbs/device.rs"]
mod device;
#[path = "verbs/objects.rs"]
mod objects;
#[path = "verbs/work.rs"]
mod work;

pub use device::*;
pub use objects::*;
pub use work::*;
