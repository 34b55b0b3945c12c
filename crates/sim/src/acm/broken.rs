//! The checks find what is broken on purpose.
