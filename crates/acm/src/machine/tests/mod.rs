//! Tests of the machine, by subject.

mod claims;
mod hostile;
mod net;
mod ports;
mod resolving;
mod timing;
mod users;
