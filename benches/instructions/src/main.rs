//! The hot paths, each a loop: `instructions PATH COUNT` runs one of them COUNT times, `instructions` lists them. `cargo
//! xtask instructions` runs each with two counts under callgrind; the difference is the cost of one iteration. Everything
//! happens in one thread, so that the cost is reproducible.
#![forbid(unsafe_code)]

mod machine;
mod packet;
mod ring;

use anyhow::{Context as _, Result, bail};
use rdmux::DeviceKind::{Ib, Roce};

/// The name of a path, and the loop.
type Path = (&'static str, fn(u32) -> Result<()>);

const PATHS: &[Path] = &[
    ("ring: SEND 8 B, posted, received, both polled", |n| ring::send(Roce, n)),
    ("ring: SEND 8 B that answers another, one way", |n| ring::answer(Roce, n)),
    ("ring: WRITE 8 B, posted, placed, polled", |n| ring::write(Roce, n)),
    ("poll of an empty completion queue", |n| ring::poll(Roce, n)),
    ("InfiniBand, ring: SEND 8 B, posted, received, both polled", |n| ring::send(Ib, n)),
    ("InfiniBand, ring: SEND 8 B that answers another, one way", |n| ring::answer(Ib, n)),
    ("InfiniBand, ring: WRITE 8 B, posted, placed, polled", |n| ring::write(Ib, n)),
    ("InfiniBand, poll of an empty completion queue", |n| ring::poll(Ib, n)),
    ("RC machines: SEND 64 B and its ACK, both sides", machine::send),
    ("RC machines: WRITE 4 KiB and its ACK, both sides", machine::write),
    ("packet of 64 B: headers and ICRC made, checked, parsed", packet::small),
    ("ICRC of 1 KiB", packet::icrc),
    ("CM machines: connect, accept, disconnect, destroy", machine::connect),
];

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args[..] {
        [] => PATHS.iter().for_each(|(name, _)| println!("{name}")),
        [path, count] => {
            let (_, run) =
                PATHS.iter().find(|(name, _)| name == path).context("there is no such path")?;
            run(count.parse().context("COUNT is no number")?)?;
        }
        _ => bail!("usage: instructions [PATH COUNT]"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::PATHS;

    #[test]
    fn every_path_can_be_gone() {
        for (name, run) in PATHS {
            run(3).unwrap_or_else(|e| panic!("{name}: {e:#}"));
        }
    }
}
