//! Names of services.

/// The most bytes of a [label](is_label).
pub const MAX: usize = 63;

/// Whether this is a DNS label in lower case (RFC 1123). It is also the name of a directory, so nothing else may be
/// in it.
pub fn is_label(name: &str) -> bool {
    (1..=MAX).contains(&name.len())
        && !name.starts_with('-')
        && !name.ends_with('-')
        && name.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_labels_are_names() {
        for good in ["a", "node-1", "0", &"x".repeat(63)] {
            assert!(is_label(good), "{good:?}");
        }
        for bad in ["", "-a", "a-", "A", "a.b", "a/b", "..", "a b", "ä", "a\0", &"x".repeat(64)] {
            assert!(!is_label(bad), "{bad:?}");
        }
    }
}
