//! A subnet of 10,368 adapters is brought up: by OpenSM on our fabric and on ibsim, which carries management datagrams only, and
//! by the manager that is part of our fabric.
//!
//! All have the same nodes and cables. OpenSM's time is from its start until its log says that the subnet is up; starting the
//! fabric, or ibsim, is not timed. The time of our manager includes the start of the fabric.

use std::time::Instant;

use anyhow::Result;
use rdmux_subnet::topology::Shape;

use super::fabrics::Ground;

/// Nodes and cables.
const SHAPE: Shape = Shape::FatTree(10_368);
/// OpenSM beside our manager: it may have so many datagrams on their way, where usually it has 4.
const BESIDE_MANAGER: [&str; 2] = ["-n", "64"];

/// Seconds that OpenSM takes on our fabric.
///
/// # Errors
/// When the subnet does not come up.
pub(super) fn on_ours(ground: &Ground) -> Result<f64> {
    let mut fabric = ground.fabric(SHAPE, false)?;
    Ok(fabric.opensm(&[])?.took)
}

/// Seconds that OpenSM takes on ibsim.
///
/// # Errors
/// As [`on_ours`].
pub(super) fn on_ibsim(ground: &Ground) -> Result<f64> {
    Ok(ground.ibsim(SHAPE)?.opensm(&[])?.took)
}

/// How a subnet came up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Up {
    /// Seconds that it took.
    pub(super) time: f64,
    /// The memory of all processes then, in bytes.
    pub(super) memory: f64,
}

/// The manager that is part of our fabric.
///
/// # Errors
/// As [`on_ours`].
pub(super) fn own_manager(ground: &Ground) -> Result<Up> {
    let start = Instant::now();
    let fabric = ground.fabric(SHAPE, true)?;
    fabric.until_up()?;
    let time = start.elapsed().as_secs_f64();
    Ok(Up { time, memory: fabric.memory()? })
}

/// What it is compared with: OpenSM on ibsim.
///
/// # Errors
/// As [`on_ours`].
pub(super) fn beside_manager(ground: &Ground) -> Result<Up> {
    let ibsim = ground.ibsim(SHAPE)?;
    let opensm = ibsim.opensm(&BESIDE_MANAGER)?;
    Ok(Up { time: opensm.took, memory: opensm.memory()? + ibsim.memory()? })
}
