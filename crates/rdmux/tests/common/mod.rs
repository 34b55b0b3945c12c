//! What the tests share: hosts of their own.
#![allow(dead_code, reason = "no test uses all of it")]

use rdmux::{Context, Options};

/// A host of its own.
pub(crate) fn host() -> Context {
    Context::builder().embedded().open().unwrap()
}

/// Options on a host.
pub(crate) fn on(context: &Context) -> Options {
    Options::new().context(context)
}

/// Runs a test over the network, from host to host, and through shared memory, within one.
pub(crate) fn over_both_links(test: impl Fn(&Context, &Context)) {
    let (a, b) = (host(), host());
    test(&a, &b);
    test(&a, &a);
}
