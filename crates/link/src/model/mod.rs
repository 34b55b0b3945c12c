//! Shared-memory protocols under `loom`: `cargo xtask models`.
//!
//! [`memory`] and [`fence`] replace a mapped memfd and `membarrier(2)`. The rest is the production code. A word of the model is a
//! `loom` atomic, and copies of bytes are unordered accesses: a data race ends the model with an error, as does a lost wakeup.
//!
//! Each test names the orderings that it needs: if one is weakened, the test fails. `loom` does not model a total order of all
//! `SeqCst` accesses: it treats them as acquire and release, and only fences as sequentially consistent. It also does not model
//! that a read-modify-write is indivisible, which only makes it explore more executions than exist. The code under test relies on
//! fences only.

#[cfg(test)]
mod acm;
#[cfg(test)]
mod board;
pub(crate) mod fence;
pub(crate) mod memory;
#[cfg(test)]
mod ring;
#[cfg(test)]
mod routes;
#[cfg(test)]
mod rows;

/// Explores all interleavings of `body`'s threads with at most this many preemptions.
#[cfg(test)]
fn check(switches: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(switches);
    model.check(body);
}
