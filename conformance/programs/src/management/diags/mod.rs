//! The programs of infiniband-diags: their output about a subnet that a manager has brought up.

pub(crate) mod counters;
pub(crate) mod discover;
pub(crate) mod own;
pub(crate) mod ping;
pub(crate) mod portstate;
pub(crate) mod query;
pub(crate) mod registered;
pub(crate) mod routes;
pub(crate) mod sa;

use anyhow::{Context, Result, ensure};

/// Returns the value of a field in a program's output: `Name: value` or `Name:......value`.
pub(super) fn field(output: &str, name: &str) -> Result<String> {
    let value = |line: &str| {
        let rest = line.trim_start().strip_prefix(name)?.strip_prefix(':')?;
        Some(rest.trim_start_matches('.').trim().to_owned())
    };
    output.lines().find_map(value).with_context(|| format!("the output has no {name}: {output}"))
}

/// Checks the value of a field.
fn says(output: &str, name: &str, expected: impl ToString) -> Result<()> {
    let (value, expected) = (field(output, name)?, expected.to_string());
    ensure!(value == expected, "the output has {value:?} for {name}, not {expected:?}");
    Ok(())
}

/// Checks that a text is in the output.
fn contains(output: &str, text: &str) -> Result<()> {
    ensure!(output.contains(text), "the output does not contain {text:?}: {output}");
    Ok(())
}

/// Checks that two lists are the same, whatever their order.
fn same<T: Ord + std::fmt::Debug>(
    what: &str,
    mut printed: Vec<T>,
    mut shown: Vec<T>,
) -> Result<()> {
    printed.sort_unstable();
    shown.sort_unstable();
    let odd = printed.iter().find(|p| shown.binary_search(p).is_err());
    ensure!(odd.is_none(), "{what}: the program prints {odd:?}, which the fabric does not show");
    let missing = shown.iter().find(|s| printed.binary_search(s).is_err());
    ensure!(
        missing.is_none(),
        "{what}: the program does not print {missing:?}, which the fabric shows"
    );
    ensure!(
        printed.len() == shown.len(),
        "{what}: {} printed, {} shown",
        printed.len(),
        shown.len()
    );
    Ok(())
}

/// Parses a number in base 16 or 10.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::{field, number, same};

    #[test]
    fn fields_have_dots_or_a_blank() {
        let output =
            "# Port info: Lid 4 port 1\nLid:.............................4\n\t\tBase lid: 4\n";
        assert_eq!(field(output, "Lid").unwrap(), "4");
        assert_eq!(field(output, "Base lid").unwrap(), "4");
        assert!(field(output, "Port").is_err());
    }

    #[test]
    fn lists_are_the_same_in_any_order_and_not_otherwise() {
        same("", vec![2, 1], vec![1, 2]).unwrap();
        for (printed, shown) in
            [(vec![1], vec![1, 2]), (vec![1, 2], vec![1]), (vec![1, 1], vec![1])]
        {
            assert!(same("", printed, shown).is_err());
        }
        assert_eq!((number("0x10"), number("10"), number("x")), (Some(16), Some(10), None));
    }
}
