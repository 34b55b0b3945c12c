//! Floors: which modules of a crate may import which, by the table `xtask/floors.toml`.
//!
//! The modules of a crate are on floors, lowest first. A module may import from its own floor and from those below it. An
//! import from a higher floor is an error, whether by `use` or by a path in the code. So is an import cycle of modules on one
//! floor. Test modules are exempt: the test of an object may use the handles above it. The crate's root is on no floor, and
//! what it re-exports counts as an import from where it is defined. Methods are called without an import, and so are not
//! seen.
//!
//! Only sources are read. `source` tokenizes a file, `paths` finds the paths in it, and this file compares their modules.
//! `circles` finds cycles.

mod circles;
mod paths;
mod source;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use self::circles::Graph;
use self::paths::{Module, Modules};
use crate::{layout, sh};

/// The table's file.
const TABLE: &str = "xtask/floors.toml";

/// The floors of a crate.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Crate {
    /// The floors, lowest first.
    floor: Vec<Floor>,
}

/// Modules that may import each other, without cycles, and everything below.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Floor {
    name: String,
    /// Paths of modules, such as `xrc::record`. A path includes the modules in it, unless the table names those.
    modules: Vec<String>,
}

/// Checks the crates of the table.
pub(crate) fn check() -> Result<()> {
    let root = sh::root();
    let text = fs::read_to_string(root.join(TABLE)).context(TABLE)?;
    let table: BTreeMap<String, Crate> = toml::from_str(&text).context(TABLE)?;
    let mut wrong = Vec::new();
    for (name, floors) in &table {
        let folder = Path::new("crates").join(name).join("src");
        let files = read(&root.join(&folder)).with_context(|| folder.display().to_string())?;
        ensure!(!files.is_empty(), "{}: no sources", folder.display());
        let found = floors.check(&Modules::parse(&files));
        wrong.extend(found.into_iter().map(|line| format!("{}/{line}", folder.display())));
    }
    if !wrong.is_empty() {
        bail!("{}", wrong.join("\n"));
    }
    println!("{} crates import downwards only", table.len());
    Ok(())
}

/// Returns the text of the Rust files in a folder, by relative path.
fn read(folder: &Path) -> Result<BTreeMap<String, String>> {
    let mut files = Vec::new();
    layout::rust_files(folder, &mut files)?;
    let text = |file: &Path| fs::read_to_string(file).with_context(|| file.display().to_string());
    let name = |file: &Path| file.strip_prefix(folder).unwrap_or(file).display().to_string();
    files.iter().map(|file| Ok((name(file), text(file)?))).collect()
}

impl Crate {
    /// Returns all violations, one per line that begins with the file.
    fn check(&self, modules: &Modules) -> Vec<String> {
        let mut wrong = self.missing(modules);
        for module in modules.iter().filter(|m| !m.path.is_empty()) {
            let Some(own) = self.floor_of(&module.path) else {
                wrong.push(format!("{}: on no floor of {TABLE}", module.file));
                continue;
            };
            wrong.extend(self.upward(modules, module, own));
        }
        wrong.extend(self.circles(modules));
        wrong
    }

    /// Returns the table's entries that are no modules.
    fn missing(&self, modules: &Modules) -> Vec<String> {
        let named = self.floor.iter().flat_map(|floor| &floor.modules);
        let unknown = named.filter(|name| !modules.has(name));
        unknown
            .map(|name| format!("{name}: {TABLE} names it, but there is no such module"))
            .collect()
    }

    /// Returns the imports of a module on floor `own` from higher floors.
    fn upward(&self, modules: &Modules, module: &Module, own: usize) -> Vec<String> {
        let mut wrong = Vec::new();
        for import in &module.imports {
            let target = modules.resolve(&import.path);
            let Some(above) = self.floor_of(&target).filter(|floor| *floor > own) else { continue };
            wrong.push(format!(
                "{}:{}: imports {}, which is on floor {}, from floor {}",
                module.file,
                import.line,
                import.path.join("::"),
                self.name(above),
                self.name(own),
            ));
        }
        wrong.dedup();
        wrong
    }

    /// Returns one cycle of each floor that has any. Modules below one path of the table may import each other freely.
    fn circles(&self, modules: &Modules) -> Vec<String> {
        let mut graphs: Vec<Graph<'_>> = self.floor.iter().map(|_| Graph::default()).collect();
        for module in modules.iter() {
            let Some((floor, from)) = self.place_of(&module.path) else { continue };
            for import in &module.imports {
                if let Some((above, to)) = self.place_of(&modules.resolve(&import.path))
                    && above == floor
                {
                    graphs[floor].add(from, to, || format!("{}:{}", module.file, import.line));
                }
            }
        }
        let found = graphs.iter().enumerate();
        found
            .filter_map(|(floor, graph)| {
                let circle = graph.circle()?;
                Some(format!("{circle}, in a circle on floor {}", self.name(floor)))
            })
            .collect()
    }

    fn name(&self, floor: usize) -> String {
        format!("{} ({})", floor + 1, self.floor[floor].name)
    }

    /// Returns the floor of a module: that of the longest matching path of the table.
    fn floor_of(&self, module: &[String]) -> Option<usize> {
        self.place_of(module).map(|(floor, _)| floor)
    }

    /// Returns the floor of a module, and the matching path.
    fn place_of(&self, module: &[String]) -> Option<(usize, &str)> {
        (1..=module.len()).rev().find_map(|len| {
            let path = module[..len].join("::");
            self.floor.iter().enumerate().find_map(|(floor, Floor { modules, .. })| {
                let named = modules.iter().find(|name| **name == path)?;
                Some((floor, named.as_str()))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the violations of these files on two floors: `low` and `folder::low` below `high` and `folder`.
    fn wrong(files: &[(&str, &str)]) -> Vec<String> {
        let floor = |name: &str, modules: &[&str]| Floor {
            name: name.to_owned(),
            modules: modules.iter().map(|m| (*m).to_owned()).collect(),
        };
        let floors =
            vec![floor("below", &["low", "folder::low"]), floor("above", &["high", "folder"])];
        let base = [
            ("lib.rs", "mod low; mod high; mod folder; pub use high::Handle;"),
            ("high.rs", "use crate::low::Core; pub struct Handle(Core);"),
            ("low.rs", "pub struct Core;"),
            (
                "folder/mod.rs",
                "mod low; mod high; pub use self::high::Other; pub(crate) const N: u32 = 0;",
            ),
            ("folder/low.rs", ""),
            ("folder/high.rs", "use super::low; use crate::high::Handle; pub struct Other;"),
        ];
        let files = base.iter().chain(files).map(|(n, t)| ((*n).to_owned(), (*t).to_owned()));
        Crate { floor: floors }.check(&Modules::parse(&files.collect()))
    }

    /// Returns whether `text` in `low.rs` is exactly one upward import.
    fn climbs(text: &str) -> bool {
        let found = wrong(&[("low.rs", text)]);
        assert!(found.iter().all(|line| line.starts_with("low.rs:")), "{found:?}");
        !found.is_empty()
    }

    #[test]
    fn imports_downwards_pass() {
        assert_eq!(wrong(&[]), Vec::<String>::new());
    }

    #[test]
    fn upward_import_is_reported_with_file_line_and_both_floors() {
        let found = wrong(&[("low.rs", "use std::sync::Arc;\n\nuse crate::high::Handle;\n")]);
        let line = "low.rs:3: imports crate::high::Handle, which is on floor 2 (above), from floor 1 (below)";
        assert_eq!(found, [line]);
    }

    #[test]
    fn every_form_of_path_is_seen() {
        assert!(climbs("use crate::{low, high::{self as h, Handle}};"));
        assert!(climbs("use super::high::*;"));
        assert!(climbs("fn f() -> crate::high::Handle { todo!() }"));
        assert!(climbs("fn f() { super::high::g(\"a string\") }"));
        assert!(climbs("use crate::high;"));
        assert!(climbs("pub(crate) use crate::folder::N;"));
        assert!(climbs("mod inner { use super::super::high::Handle; }"));
        assert!(climbs("use crate as all; fn f(_: all::high::Handle) {}"));
        assert!(!climbs("mod high {} use self::high::Handle;"));
        assert!(!climbs("use other::high::Handle; fn f() { high::g() }"));
        assert!(!climbs("fn f<'a>() -> impl Sized + use<'a> { let a = (0, 1); }"));
        assert!(climbs("fn f<'a>() -> impl Sized + use<'a> { g::<crate::high::Handle>(); }"));
    }

    #[test]
    fn a_re_export_counts_where_it_is_defined() {
        assert!(climbs("use crate::Handle;"));
        assert!(climbs("use crate::folder::Other;"));
        assert!(!climbs("use crate::folder::low::Thing;"));
    }

    #[test]
    fn comments_strings_and_tests_are_no_imports() {
        assert!(!climbs(
            "//! See `crate::high::Handle`.\n/* crate::high /* nested */ crate::high */"
        ));
        assert!(!climbs("const A: &str = \"crate::high\"; const B: &str = r#\"\"crate::high\"#;"));
        assert!(!climbs("const QUOTE: char = '\"'; fn f<'a>(_: &'a str) {} // crate::high"));
        assert!(climbs("const QUOTE: char = '\"'; use crate::high; const OTHER: char = '\\'';"));
        assert!(!climbs("#[cfg(test)] mod tests { use crate::high::Handle; fn f() { {} } }"));
        assert!(!climbs("#[cfg(test)]\n#[allow(x)]\nuse crate::high::Handle;"));
        assert!(climbs("#[cfg(test)] mod tests { fn f() {} } use crate::high::Handle;"));
    }

    #[test]
    fn a_file_of_tests_is_exempt() {
        let files =
            [("low.rs", "#[cfg(test)] mod tests;"), ("low/tests.rs", "use crate::high::Handle;")];
        assert_eq!(wrong(&files), Vec::<String>::new());
        let files = [("low.rs", "mod more;"), ("low/more.rs", "use super::super::high::Handle;")];
        assert_eq!(wrong(&files).len(), 1);
    }

    #[test]
    fn a_module_inside_a_folder_may_be_lower() {
        let found = wrong(&[("folder/low.rs", "use super::N;\nuse super::high::Other;")]);
        assert_eq!(found.len(), 2, "{found:?}");
    }

    #[test]
    fn module_circle_on_one_floor_is_reported_once_with_its_path() {
        let files = [("high.rs", "use crate::folder::N;"), ("folder/high.rs", "use crate::high;")];
        let line = "folder/high.rs:1: folder imports high, which imports folder (high.rs:1), in a circle on floor 2 \
                    (above)";
        assert_eq!(wrong(&files), [line]);
    }

    #[test]
    fn imports_that_do_not_lead_back_are_no_circle() {
        let files = [("high.rs", "use crate::folder::N;"), ("folder/high.rs", "")];
        assert_eq!(wrong(&files), Vec::<String>::new());
        let inside = [("folder/high.rs", "use super::N;")];
        assert_eq!(wrong(&inside), Vec::<String>::new());
    }

    #[test]
    fn the_table_names_every_module_and_no_other() {
        assert_eq!(wrong(&[("new.rs", "")]).len(), 1);
        let floors =
            Crate { floor: vec![Floor { name: "one".into(), modules: vec!["gone".into()] }] };
        let files = [("lib.rs".to_owned(), String::new())].into();
        assert_eq!(floors.check(&Modules::parse(&files)).len(), 1);
    }

    #[test]
    fn the_table_holds() {
        check().unwrap();
    }
}
