//! Bringing up a subnet of 10,368 adapters: by OpenSM on rdmux's fabric and on ibsim, which carries management datagrams only,
//! and by the manager that is part of rdmux's fabric.
//!
//! All have the same nodes and cables. OpenSM's time is measured from its start until its log reports the subnet as up;
//! starting the fabric, or ibsim, is not included. The time of rdmux's manager includes the start of the fabric.

use std::time::Instant;

use anyhow::Result;
use rdmux_subnet::topology::Shape;

use super::fabrics::Ground;

/// The nodes and cables.
const SHAPE: Shape = Shape::FatTree(10_368);
/// OpenSM's options for the comparison with rdmux's manager: this many datagrams may be outstanding instead of the
/// default of 4.
const BESIDE_MANAGER: [&str; 2] = ["-n", "64"];

/// Returns the seconds that OpenSM takes on rdmux's fabric.
///
/// # Errors
/// When the subnet does not come up.
pub(super) fn on_ours(ground: &Ground) -> Result<f64> {
    let mut fabric = ground.fabric(SHAPE, false)?;
    Ok(fabric.opensm(&[])?.took)
}

/// Returns the seconds that OpenSM takes on ibsim.
///
/// # Errors
/// As [`on_ours`].
pub(super) fn on_ibsim(ground: &Ground) -> Result<f64> {
    Ok(ground.ibsim(SHAPE)?.opensm(&[])?.took)
}

/// The cost of bringing up a subnet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Up {
    /// The seconds that it took.
    pub(super) time: f64,
    /// The memory of all processes when it was up, in bytes.
    pub(super) memory: f64,
}

/// Measures the manager that is part of rdmux's fabric.
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

/// Measures the reference, OpenSM on ibsim.
///
/// # Errors
/// As [`on_ours`].
pub(super) fn beside_manager(ground: &Ground) -> Result<Up> {
    let ibsim = ground.ibsim(SHAPE)?;
    let opensm = ibsim.opensm(&BESIDE_MANAGER)?;
    Ok(Up { time: opensm.took, memory: opensm.memory()? + ibsim.memory()? })
}
