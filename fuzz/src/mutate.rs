//! Mutations with knowledge of network headers: big-endian fields, lengths, opcodes.

use rand::Rng;

/// The maximum length of an input.
pub const MAX_LEN: usize = 8192;

/// Boundary values of decoders.
const EDGES: &[u64] = &[
    0,
    1,
    2,
    3,
    4,
    7,
    8,
    0x0f,
    0x1f,
    0x20,
    0x3f,
    0x40,
    0x60,
    0x7f,
    0x80,
    0xa0,
    0xc0,
    0xff,
    0x100,
    0x3ff,
    0x400,
    0xfff,
    0x1000,
    0x7fff,
    0x8000,
    0xffff,
    0x1_0000,
    0x7f_ffff,
    0x80_0000,
    0xff_ffff,
    0x7fff_ffff,
    0x8000_0000,
    0x8000_0001,
    0xffff_ffff,
    u64::MAX,
];

/// Changes `input` a few times, possibly with pieces of the other inputs in `pool`.
pub fn mutate(input: &mut Vec<u8>, pool: &[Vec<u8>], rng: &mut impl Rng) {
    // Usually few changes, so that the input stays plausible; sometimes many.
    let times = 1 << rng.random_range(0..4);
    for _ in 0..rng.random_range(1..=times) {
        step(input, pool, rng);
    }
    input.truncate(MAX_LEN);
}

fn step(input: &mut Vec<u8>, pool: &[Vec<u8>], rng: &mut impl Rng) {
    if input.is_empty() {
        input.extend((0..rng.random_range(1..64)).map(|_| rng.random::<u8>()));
        return;
    }
    let at = position(input.len(), rng);
    match rng.random_range(0..9) {
        0 => input[at] ^= 1 << rng.random_range(0..8),
        1 => input[at] = rng.random(),
        2 => field(input, at, rng, |_, rng| EDGES[rng.random_range(0..EDGES.len())]),
        3 => field(input, at, rng, |v, rng| v.wrapping_add(rng.random_range(0..5)).wrapping_sub(2)),
        4 => input.truncate(at),
        5 => input.extend((0..rng.random_range(1..32)).map(|_| rng.random::<u8>())),
        6 => {
            let end = (at + rng.random_range(1..16)).min(input.len());
            input.drain(at..end);
        }
        7 => {
            let end = (at + rng.random_range(1..64)).min(input.len());
            let piece = input[at..end].to_vec();
            input.splice(at..at, piece);
        }
        _ => splice(input, pool, at, rng),
    }
}

/// Returns a position for a change, which is usually near the front, where headers are.
fn position(len: usize, rng: &mut impl Rng) -> usize {
    let reach = if rng.random_bool(0.7) { len.min(64) } else { len };
    rng.random_range(0..reach)
}

/// Replaces a big-endian field of 1, 2, 3, 4 or 8 bytes.
fn field<R: Rng>(input: &mut [u8], at: usize, rng: &mut R, new: impl Fn(u64, &mut R) -> u64) {
    let width = [1, 2, 3, 4, 8][rng.random_range(0..5)];
    let Some(bytes) = input.get_mut(at..at + width) else { return };
    let old = bytes.iter().fold(0, |v, b| v << 8 | u64::from(*b));
    let value = new(old, rng).to_be_bytes();
    bytes.copy_from_slice(&value[8 - width..]);
}

/// Overwrites the tail with that of another input.
fn splice(input: &mut Vec<u8>, pool: &[Vec<u8>], at: usize, rng: &mut impl Rng) {
    if pool.is_empty() {
        return;
    }
    let other = &pool[rng.random_range(0..pool.len())];
    if let Some(tail) = other.get(at..) {
        input.truncate(at);
        input.extend_from_slice(tail);
    }
}
