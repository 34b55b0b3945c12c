//! Names of services.

/// The longest [label](is_label) in bytes.
pub const MAX: usize = 63;

/// Returns whether this is a DNS label in lower case (RFC 1123). The name is also that of a
/// directory, so no other character is allowed.
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
