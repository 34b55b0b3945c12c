//! Holds the types of `abi` against the tables of what the public headers say.

use std::ops::Range;

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

    /// Fails if these find any.
    fn none(comparisons: &[fn(&mut Self)]) {
        let mut found = Self::default();
        comparisons.iter().for_each(|compare| compare(&mut found));
        assert!(found.0.is_empty(), "{}", found.0.join("\n"));
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

/// Those of libibverbs and librdmacm.
mod verbs_and_cma {
    use super::super::cma::*;
    use super::super::verbs::*;
    use super::Differences;

    include!("../../../../conformance/abi/layout.txt");

    #[test]
    fn types_and_values_are_those_of_the_headers() {
        Differences::none(&[layouts, values]);
    }
}

/// Those of libibumad.
mod umad {
    use super::super::umad::*;
    use super::Differences;

    include!("../../../../conformance/abi/layout-umad.txt");

    #[test]
    fn types_and_values_are_those_of_the_headers() {
        Differences::none(&[layouts, values]);
    }
}
