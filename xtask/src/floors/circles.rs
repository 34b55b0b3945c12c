//! Cycles of modules that import each other.

use std::collections::{BTreeMap, BTreeSet};

/// The imports between modules, each with its first place.
#[derive(Debug, Default)]
pub(super) struct Graph<'a> {
    imports: BTreeMap<&'a str, BTreeMap<&'a str, String>>,
}

impl<'a> Graph<'a> {
    /// Records an import. A module's import from itself is ignored.
    pub(super) fn add(&mut self, from: &'a str, to: &'a str, place: impl FnOnce() -> String) {
        if from != to {
            self.imports.entry(from).or_default().entry(to).or_insert_with(place);
        }
    }

    /// Returns a cycle, if there is any: the place of its first import, and its modules.
    pub(super) fn circle(&self) -> Option<String> {
        let leading = self.leading_to_circles();
        let next = |from: &str| self.imports[from].iter().find(|(to, _)| leading.contains(**to));
        // A walk from any of them enters a cycle.
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

    /// Returns the modules that import one of the returned modules: those left after repeatedly removing modules that import
    /// none of the rest.
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
    fn import_circle_excludes_modules_that_lead_to_it() {
        let graph =
            graph(&[("a", "b"), ("b", "c"), ("c", "d"), ("d", "b"), ("d", "e"), ("a", "a")]);
        let circle = graph.circle().unwrap();
        for import in ["b.rs:1", "c.rs:1", "d.rs:1"] {
            assert!(circle.contains(import), "{circle}");
        }
        assert!(!circle.contains("a.rs"), "{circle}");
    }

    #[test]
    fn import_diamond_is_no_circle() {
        assert_eq!(
            graph(&[("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"), ("d", "d")]).circle(),
            None
        );
    }
}
