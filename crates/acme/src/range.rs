//! Lists of destinations, sources and services: `node[1-3,5,07-08]`.
//!
//! One pair of brackets holds numbers and ranges of numbers, separated by commas. A number that starts with zeros keeps its
//! width, which also applies to the rest of its range. Text after the brackets is appended to each number, while ib_acme of
//! rdma-core drops it. As in rdma-core, the closing bracket may be missing at the end.

use thiserror::Error;

/// The maximum number of words in an expanded list. A subnet has fewer than 49,152 unicast LIDs.
pub(crate) const MAX_WORDS: u64 = 1 << 17;

/// The reason why a list cannot be expanded.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum RangeError {
    /// Something in the brackets is neither a number nor a range.
    #[error("\"{0}\" in brackets is neither a number nor a range like 1-3")]
    NotANumber(String),
    /// The second number is lower than the first.
    #[error("range {0} ends before it starts")]
    Backwards(String),
    /// The brackets hold no number.
    #[error("the brackets are empty")]
    Empty,
    /// The expanded list would be too long.
    #[error("more than {MAX_WORDS} words; split the list")]
    TooMany,
}

/// Numbers from the first to the last, written with at least this many digits.
struct Range {
    first: u64,
    last: u64,
    width: usize,
}

/// Returns all words of a list, in its order; the text itself if it has no brackets.
///
/// # Errors
/// See [`RangeError`].
pub(crate) fn expand(text: &str) -> Result<Vec<String>, RangeError> {
    let Some((base, rest)) = text.split_once('[') else { return Ok(vec![text.to_owned()]) };
    let (list, end) = rest.split_once(']').unwrap_or((rest, ""));
    let ranges = list.split(',').filter(|part| !part.is_empty()).map(range);
    let ranges = ranges.collect::<Result<Vec<_>, _>>()?;
    if ranges.is_empty() {
        return Err(RangeError::Empty);
    }
    let count =
        ranges.iter().try_fold(0u64, |sum, r| sum.checked_add((r.last - r.first).checked_add(1)?));
    if count.is_none_or(|count| count > MAX_WORDS) {
        return Err(RangeError::TooMany);
    }
    let word = |number: u64, width: usize| format!("{base}{number:0width$}{end}");
    Ok(ranges.iter().flat_map(|r| (r.first..=r.last).map(move |n| word(n, r.width))).collect())
}

fn range(part: &str) -> Result<Range, RangeError> {
    let (first, last) = part.split_once('-').unwrap_or((part, part));
    let number = |digits: &str| {
        let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        let value = digits.parse().ok().filter(|_| is_number);
        value.ok_or_else(|| RangeError::NotANumber(part.to_owned()))
    };
    let range = Range { first: number(first)?, last: number(last)?, width: first.len() };
    if range.last < range.first {
        return Err(RangeError::Backwards(part.to_owned()));
    }
    Ok(range)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(text: &str) -> Vec<String> {
        expand(text).unwrap()
    }

    #[test]
    fn list_of_the_manual_keeps_its_zeros() {
        let nodes = ["node1", "node2", "node3", "node5", "node07", "node08"];
        assert_eq!(words("node[1-3,5,07-08]"), nodes);
        assert_eq!(words("n[08-11]"), ["n08", "n09", "n10", "n11"]);
        assert_eq!(words("n[9-10]"), ["n9", "n10"]);
        assert_eq!(words("10.0.0.[1-2]"), ["10.0.0.1", "10.0.0.2"]);
    }

    #[test]
    fn text_without_brackets_is_one_word() {
        assert_eq!(words("a,b"), ["a,b"]);
        assert_eq!(words(""), [""]);
    }

    #[test]
    fn lists_that_ib_acme_of_rdma_core_takes_are_taken() {
        assert_eq!(words("n[1-2"), ["n1", "n2"]);
        assert_eq!(words("n[1,,2,]"), ["n1", "n2"]);
        assert_eq!(words("[1-2]"), ["1", "2"]);
        assert_eq!(words("n[1]x"), ["n1x"]);
    }

    #[test]
    fn nonsense_in_brackets_is_an_error() {
        let error = |text| expand(text).unwrap_err();
        assert_eq!(error("n[a]"), RangeError::NotANumber("a".into()));
        assert_eq!(error("n[+1]"), RangeError::NotANumber("+1".into()));
        assert_eq!(error("n[1-]"), RangeError::NotANumber("1-".into()));
        assert_eq!(error("n[1-2-3]"), RangeError::NotANumber("1-2-3".into()));
        assert_eq!(error("n[3-1]"), RangeError::Backwards("3-1".into()));
        assert_eq!(error("n[]"), RangeError::Empty);
        assert_eq!(error("n[0-131072]"), RangeError::TooMany);
        assert_eq!(error("n[0-18446744073709551615]"), RangeError::TooMany);
        assert_eq!(error("n[1-18446744073709551615,1-2]"), RangeError::TooMany);
    }

    /// Generates ranges, with the width of their first number.
    fn ranges() -> impl Strategy<Value = Vec<(u64, u64, usize)>> {
        prop::collection::vec((0..5000u64, 0..20u64, 0..6usize), 1..6)
    }

    proptest! {
        #[test]
        fn every_number_of_every_range_is_there_once_and_in_order(base in "[a-z.]{0,8}", end in "[a-z.]{0,4}", ranges in ranges()) {
            let text = ranges.iter().map(|&(first, more, width)| {
                if more == 0 { format!("{first:0width$}") } else { format!("{first:0width$}-{}", first + more) }
            });
            let list = text.collect::<Vec<_>>().join(",");
            let expected = ranges.iter().flat_map(|&(first, more, width)| {
                (first..=first + more).map(move |n| format!("{n:0width$}"))
            });
            let expected: Vec<_> = expected.map(|n| format!("{base}{n}{end}")).collect();
            prop_assert_eq!(words(&format!("{base}[{list}]{end}")), expected);
        }

        #[test]
        fn any_text_is_expanded_or_refused(text in "[a-z0-9,\\-\\[\\]]{0,24}") {
            if let Ok(words) = expand(&text) {
                prop_assert!(!words.is_empty());
                prop_assert!(words.len() as u64 <= MAX_WORDS);
            }
        }
    }
}
