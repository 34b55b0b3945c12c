//! Circles of modules that import each other.

use std::collections::{BTreeMap, BTreeSet};

/// Which module imports which, and where it first does.
#[derive(Debug, Default)]
pub(super) struct Graph<'a> {
    imports: BTreeMap<&'a str, BTreeMap<&'a str, String>>,
}

impl<'a> Graph<'a> {
    /// Notes an import. One of a module from itself is none.
    pub(super) fn add(&mut self, from: &'a str, to: &'a str, place: impl FnOnce() -> String) {
        if from != to {
            self.imports.entry(from).or_default().entry(to).or_insert_with(place);
        }
    }

    /// A circle, if there is any: the place of its first import, and the modules along it.
    pub(super) fn circle(&self) -> Option<String> {
        let leading = self.leading_to_circles();
        let next = |from: &str| self.imports[from].iter().find(|(to, _)| leading.contains(**to));
        // From any of them one comes to a circle, and goes round in it for ever.
        let mut start = *leading.first()?;
        for _ in &leading {
            start = next(start)?.0;
        }
        let (mut at, place) = next(start)?;
        let mut told = format!("{place}: {start} imports {at}");
        while *at != start {
            let (to, place) = next(at)?;
            told += &format!(", which imports {to} ({place})");
            at = to;
        }
        Some(told)
    }

    /// The modules that import one of themselves: what is left when those that import none of the rest are taken out, again
    /// and again.
    fn leading_to_circles(&self) -> BTreeSet<&'a str> {
        let mut left: BTreeSet<&str> = self.imports.keys().copied().collect();
        loop {
            let before = left.clone();
            left.retain(|from| self.imports[from].keys().any(|to| before.contains(to)));
            if left.len() == before.len() {
                return left;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(imports: &[(&'static str, &'static str)]) -> Graph<'static> {
        let mut graph = Graph::default();
        imports.iter().for_each(|(from, to)| graph.add(from, to, || format!("{from}.rs:1")));
        graph
    }

    #[test]
    fn a_circle_is_told_without_what_leads_to_it() {
        let graph =
            graph(&[("a", "b"), ("b", "c"), ("c", "d"), ("d", "b"), ("d", "e"), ("a", "a")]);
        let circle = graph.circle().unwrap();
        for import in ["b.rs:1", "c.rs:1", "d.rs:1"] {
            assert!(circle.contains(import), "{circle}");
        }
        assert!(!circle.contains("a.rs"), "{circle}");
    }

    #[test]
    fn what_meets_again_lower_is_no_circle() {
        assert_eq!(
            graph(&[("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"), ("d", "d")]).circle(),
            None
        );
    }
}
