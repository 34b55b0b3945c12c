//! Holds the types of `abi` against the table of what the public headers say.

use std::ops::Range;

use super::cma::*;
use super::verbs::*;

/// What differs, one line each.
#[derive(Default)]
struct Differences(Vec<String>);

impl Differences {
    fn size<T>(&mut self, name: &str, expected: usize) {
        let size = size_of::<T>();
        if size != expected {
            self.0.push(format!("{name}: {size} bytes, and {expected} in C"));
        }
    }

    /// Looks at a field without touching it: `_field` is only there for its type.
    fn field<T, F>(
        &mut self,
        name: &str,
        offset: usize,
        _field: fn(*const T) -> *const F,
        expected: Range<usize>,
    ) {
        let range = offset..offset + size_of::<F>();
        if range != expected {
            self.0.push(format!("{name}: bytes {range:?}, and {expected:?} in C"));
        }
    }

    fn value(&mut self, name: &str, value: i128, expected: i128) {
        if value != expected {
            self.0.push(format!("{name}: {value}, and {expected} in C"));
        }
    }
}

macro_rules! layouts {
    ($($kind:ident $name:ident $size:literal {
        $($($c:ident).+ : $start:literal .. $end:literal $(($($path:tt)+))? ,)*
    })*) => {
        fn layouts(differences: &mut Differences) {
            $(
                differences.size::<$name>(stringify!($name), $size);
                $(layouts!(@field differences, $name, [$($c).+], [$($($path)+)?], $start..$end);)*
            )*
        }
    };
    (@field $d:ident, $name:ident, [$($c:tt)+], [], $range:expr) => {
        layouts!(@field $d, $name, [$($c)+], [$($c)+], $range)
    };
    (@field $d:ident, $name:ident, [$($c:tt)+], [$($path:tt)+], $range:expr) => {
        $d.field(
            concat!(stringify!($name), ".", stringify!($($c)+)),
            std::mem::offset_of!($name, $($path)+),
            // SAFETY: never called; it would only compute an address inside of what it is given.
            |value: *const $name| unsafe { &raw const (*value).$($path)+ },
            $range,
        )
    };
}

macro_rules! values {
    ($($name:ident : $value:literal $((later))? ,)*) => {
        fn values(differences: &mut Differences) {
            $(
                let expected: i128 = $value;
                differences.value(stringify!($name), i128::from($name), expected);
            )*
        }
    };
}

include!("../../../../conformance/abi/layout.txt");

#[test]
fn types_and_values_are_those_of_the_headers() {
    let mut differences = Differences::default();
    layouts(&mut differences);
    values(&mut differences);
    assert!(differences.0.is_empty(), "{}", differences.0.join("\n"));
}
