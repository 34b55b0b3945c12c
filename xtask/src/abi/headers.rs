//! Sizes, offsets and values that are compiled into programs.
//!
//! `conformance/abi/layout.txt` is the table of libibverbs and librdmacm, `layout-umad.txt` that of libibumad,
//! `layout-mad.txt` that of the datagrams that its programs write. A test of rdmux-capi compares its types with them. Here a
//! C program generated from each table prints the values of the installed headers, and the headers are searched for
//! structures and fields that the table lacks.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::report::Report;
use crate::sh;

/// A table and its headers.
struct Set {
    table: &'static str,
    /// The headers that programs include, and the public headers that these include.
    headers: &'static [&'static str],
    /// rdmux's headers, whose values are in the table, too.
    own: &'static [&'static str],
    /// The packages of the headers.
    packages: &'static str,
}

const SETS: &[Set] = &[
    Set {
        table: "layout.txt",
        headers: &[
            "infiniband/verbs.h",
            "infiniband/verbs_api.h",
            "infiniband/sa.h",
            "rdma/rdma_cma.h",
        ],
        own: &["rdmux/iwarp.h", "rdmux/cm.h", "rdmux/multicast.h"],
        packages: "libibverbs-dev and librdmacm-dev",
    },
    Set {
        table: "layout-umad.txt",
        headers: &["infiniband/umad.h", "infiniband/umad_types.h"],
        own: &[],
        packages: "libibumad-dev",
    },
    Set {
        table: "layout-mad.txt",
        headers: &[
            "infiniband/umad_sm.h",
            "infiniband/umad_sa.h",
            "infiniband/umad_sa_mcm.h",
            "infiniband/umad_cm.h",
        ],
        own: &[],
        packages: "libibumad-dev",
    },
];

/// Prefixes of structures that are ignored: flow steering is not supported.
const UNUSED: &[&str] = &["ibv_flow_"];

pub(super) fn run(report: &mut Report) {
    report.check("constants of the abi module", constants_are_listed());
    SETS.iter().for_each(|set| set.run(report));
}

impl Set {
    fn run(&self, report: &mut Report) {
        let include = Path::new("/usr/include");
        let name = format!("layouts of the distribution's headers ({})", self.table);
        if !self.headers.iter().all(|h| include.join(h).is_file()) {
            return report.skip(&name, &format!("no headers ({})", self.packages));
        }
        report.check(&name, self.compiled());
        for header in self.headers {
            let check = Table::read(self.table).and_then(|table| {
                let path = include.join(header);
                let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
                nothing_forgotten(&table, &text)
            });
            report.check(&format!("fields of <{header}>"), check);
        }
    }

    /// Compiles the table as a C program and runs it.
    fn compiled(&self) -> Result<()> {
        let table = Table::read(self.table)?;
        let folder = sh::target_dir().join("abi");
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let program = folder.join(self.table.trim_end_matches(".txt"));
        let source = program.with_extension("c");
        let headers = self.headers.iter().chain(self.own).copied();
        fs::write(&source, table.program(headers)).with_context(|| source.display().to_string())?;
        let mut cc = sh::command("cc");
        cc.args(["-std=gnu11", "-w", "-I"]).arg(sh::root().join("crates/capi/include"));
        sh::run(cc.arg("-o").arg(&program).arg(&source))?;
        let printed = sh::output(&mut sh::command(&program))?;
        let differences: Vec<String> = table
            .lines()
            .zip(printed.lines())
            .filter(|(expected, found)| expected != found)
            .map(|(expected, found)| format!("{expected} in the table, {found} in the headers"))
            .collect();
        ensure!(differences.is_empty(), "{}", differences.join("\n"));
        ensure!(table.lines().count() == printed.lines().count(), "lines are missing");
        println!("{} sizes, offsets and values in order", table.lines().count());
        Ok(())
    }
}

/// Checks that every constant of the Rust module is in a table.
fn constants_are_listed() -> Result<()> {
    let tables: Vec<Table> =
        SETS.iter().map(|set| Table::read(set.table)).collect::<Result<_>>()?;
    let is_listed = |name: &String| tables.iter().any(|table| table.has_value(name));
    let mut files = Vec::new();
    crate::layout::rust_files(&sh::root().join("crates/capi/src/abi"), &mut files)?;
    let mut missing = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let names =
            text.lines().filter_map(|line| line.strip_prefix("pub const ")?.split_once(':'));
        missing.extend(names.map(|(name, _)| name.to_owned()).filter(|name| !is_listed(name)));
    }
    ensure!(missing.is_empty(), "not in a table: {}", missing.join(", "));
    Ok(())
}

/// Checks that the table has every structure and field that a header defines.
fn nothing_forgotten(table: &Table, header: &str) -> Result<()> {
    let mut missing = Vec::new();
    for (name, fields) in structures(header) {
        let Some(known) = table.structures.iter().find(|s| s.name == name) else {
            if !UNUSED.iter().any(|prefix| name.starts_with(prefix)) {
                missing.push(name);
            }
            continue;
        };
        let known: BTreeSet<_> =
            known.fields.iter().flat_map(|(path, _)| path.split('.')).collect();
        missing.extend(
            fields.iter().filter(|f| !known.contains(f.as_str())).map(|f| format!("{name}.{f}")),
        );
    }
    ensure!(missing.is_empty(), "not in the table: {}", missing.join(", "));
    Ok(())
}

/// Returns the structures and unions that a header defines, each with all names declared in it at any depth.
fn structures(header: &str) -> BTreeMap<String, Vec<String>> {
    let text = without_comments(header);
    let mut found = BTreeMap::new();
    let mut rest = text.as_str();
    while let Some(open) = rest.find('{') {
        let before: Vec<&str> = rest[..open].split_whitespace().rev().take(2).collect();
        let body = &rest[open + 1..];
        let [name, "struct" | "union"] = before[..] else {
            rest = body;
            continue;
        };
        let end = closing(body);
        found.insert(name.to_owned(), body[..end].split(';').filter_map(declared).collect());
        rest = &body[end..];
    }
    found
}

/// Returns the position at which the open brace before `text` closes.
fn closing(text: &str) -> usize {
    let mut depth = 1;
    for (i, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return i;
        }
    }
    text.len()
}

/// Returns the name in `int name[4]`, `void (*name)(int)`, or `} name`; none in `}` alone.
fn declared(declaration: &str) -> Option<String> {
    let declaration = declaration.rsplit(['{', '}']).next()?;
    let declarator = match declaration.split_once("(*") {
        Some((_, pointer)) => pointer.split(')').next()?,
        None => declaration.split('[').next()?,
    };
    let name =
        declarator.rsplit(|c: char| !c.is_alphanumeric() && c != '_').find(|w| !w.is_empty())?;
    Some(name.to_owned())
}

fn without_comments(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((code, comment)) = rest.split_once("/*") {
        out.push_str(code);
        rest = comment.split_once("*/").map_or("", |(_, after)| after);
    }
    out + rest
}

/// A table of `conformance/abi`.
#[derive(Debug, Default, PartialEq)]
struct Table {
    structures: Vec<Structure>,
    values: Vec<(String, String)>,
    /// Values that rdma-core 44 does not have.
    later: BTreeSet<String>,
}

#[derive(Debug, Default, PartialEq)]
struct Structure {
    /// `struct` or `union`.
    kind: String,
    name: String,
    size: String,
    /// Paths, and byte ranges as `start..end`.
    fields: Vec<(String, String)>,
}

impl Table {
    fn read(name: &str) -> Result<Self> {
        let file = super::tables().join(name);
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        Self::parse(&text)
    }

    fn parse(text: &str) -> Result<Self> {
        let mut table = Self::default();
        for line in text.lines().map(str::trim) {
            if line.is_empty() || line.starts_with("//") || line.contains('!') || line == "}" {
                continue;
            }
            let words: Vec<&str> = line.split_whitespace().collect();
            if let [kind, name, size, "{"] = words[..] {
                let [kind, name, size] = [kind, name, size].map(str::to_owned);
                table.structures.push(Structure { kind, name, size, fields: Vec::new() });
                continue;
            }
            let (name, rest) = line.split_once(": ").with_context(|| line.to_owned())?;
            let value = rest.split([',', ' ']).next().unwrap_or(rest).to_owned();
            if value.contains("..") {
                let structure = table.structures.last_mut().with_context(|| line.to_owned())?;
                structure.fields.push((name.to_owned(), value));
            } else {
                if rest.contains("(later)") {
                    table.later.insert(name.to_owned());
                } else {
                    table.values.push((name.to_owned(), value));
                }
            }
        }
        Ok(table)
    }

    fn has_value(&self, name: &str) -> bool {
        self.later.contains(name) || self.values.iter().any(|(n, _)| n == name)
    }

    /// Returns the output of a program that examines the headers, if the table is right.
    fn lines(&self) -> impl Iterator<Item = String> {
        let structures = self.structures.iter().flat_map(|s| {
            let size = format!("{} {}", s.name, s.size);
            let fields = s.fields.iter().map(|(path, bytes)| format!("{}.{path} {bytes}", s.name));
            std::iter::once(size).chain(fields)
        });
        structures.chain(self.values.iter().map(|(name, value)| format!("{name} {value}")))
    }

    /// Returns the program that examines the headers.
    fn program<'h>(&self, headers: impl Iterator<Item = &'h str>) -> String {
        // <infiniband/umad_sa_mcm.h> needs the first header and does not include it.
        let mut c =
            String::from("#include <arpa/inet.h>\n#include <stddef.h>\n#include <stdio.h>\n");
        for header in headers {
            let _ = writeln!(c, "#include <{header}>");
        }
        c += "#define SIZE(T, name) printf(name \" %zu\\n\", sizeof(T))\n\
              #define FIELD(T, name, f) printf(name \".\" #f \" %zu..%zu\\n\", offsetof(T, f), \\\n\
              \toffsetof(T, f) + sizeof(((T *)0)->f))\n\
              #define VALUE(v) printf((v) < 0 ? #v \" %lld\\n\" : #v \" %llu\\n\", (long long)(v))\n\
              int main(void)\n{\n";
        // Quote the names before a header's macros could replace them.
        for s in &self.structures {
            let (kind, name) = (&s.kind, &s.name);
            let _ = writeln!(c, "\tSIZE({kind} {name}, \"{name}\");");
            for (path, _) in &s.fields {
                let _ = writeln!(c, "\tFIELD({kind} {name}, \"{name}\", {path});");
            }
        }
        for (name, _) in &self.values {
            let _ = writeln!(c, "\tVALUE({name});");
        }
        c + "\treturn 0;\n}\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "layouts! {\n struct a 16 {\n x: 0..8,\n u.y: 8..12 (v.u.y),\n }\n}\n\
                         values! {\n A: -1,\n B: 2 (later),\n}\n";

    #[test]
    fn abi_table_lists_expected_program_output() {
        let table = Table::parse(TABLE).unwrap();
        let lines: Vec<String> = table.lines().collect();
        assert_eq!(lines, ["a 16", "a.x 0..8", "a.u.y 8..12", "A -1"]);
        assert!(table.has_value("A") && table.has_value("B") && !table.has_value("C"));
    }

    #[test]
    fn forgotten_fields_and_structures_are_found() {
        let table = Table::parse(TABLE).unwrap();
        let check = |header| nothing_forgotten(&table, header);
        assert!(
            check("struct a { long x; /* int n; */ union { struct { int y; } u; }; };").is_ok()
        );
        assert!(check("struct a { long x; int (*call)(struct a *a, int b); };").is_err());
        assert!(check("struct a { long x; int z[2]; };").is_err());
        assert!(check("struct a;\nenum e { E };\nstruct b { int x; };").is_err());
        assert!(check("struct ibv_flow_b { int z; };").is_ok());
    }
}
