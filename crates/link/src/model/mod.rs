//! Models of what processes do to each other's shared memory, for `loom` to go through: `cargo xtask models`.
//!
//! [`memory`] and [`fence`] stand in for a mapped memfd and for `membarrier(2)`; all else is the code that runs in
//! earnest. A word of the model is a `loom` atomic, and copies of bytes are accesses without any order of their
//! own: two that could happen at once, one of them a store, end the model, as does a sleep from which nobody wakes.
//!
//! A test here is worth what it finds, so each says which orderings it needs: weaken one, and it fails.
//! What `loom` does not know is an order of all `SeqCst` accesses: it takes them as acquire and release, and only fences as
//! sequentially consistent; and it does not know that nothing can come between the two halves of a change of a word, which
//! only makes it see more than there is. The code under test relies on fences only.

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

/// Goes through all that `body`'s threads can do with so many switches away from a thread that could have gone on.
#[cfg(test)]
fn check(switches: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(switches);
    model.check(body);
}
