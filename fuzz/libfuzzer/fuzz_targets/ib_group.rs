//! Runs the target of this name under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rdmux_fuzz::targets::ib_parts::ib_group(data));
