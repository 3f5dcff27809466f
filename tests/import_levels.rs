//! The layers of this crate: a file imports only from lower levels.
//!
//! The table below is the picture of the layout as a test. To add a noun, add a row; to allow an import between equals,
//! name it with `may_see`.

#[path = "support/source.rs"]
mod source;

use std::collections::BTreeSet;

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use quote::ToTokens;
use source::{Sources, Target, absolute, children, module_of, only_for};
use syn::Item;

/// One row a noun: `key` is `src/key.rs` and everything under `src/key`; `store/*` is each file under `src/store` with
/// what is under it. Within a noun, imports are free. The longest row that fits a file counts.
/// `.planned()` marks a row whose file is still to come.
const TABLE: &[Row] = &[
    level(6, "layer"),
    level(5, "service"),
    level(4, "flow"),
    level(4, "future"),
    level(4, "purge"),
    level(3, "acquire").may_see(&["renew", "settle", "wait"]),
    level(3, "capture"),
    level(3, "owned").may_see(&["capture", "settle"]),
    level(3, "renew"),
    level(3, "settle"),
    level(3, "wait"),
    level(2, "attempt"),
    level(2, "config"),
    level(2, "decide").may_see(&["config"]),
    level(2, "executions"),
    level(2, "kick"),
    level(2, "extract").may_see(&["attempt"]),
    level(2, "shared").may_see(&["config", "executions", "kick"]),
    level(1, "answers").may_see(&["profile", "reject"]),
    level(1, "profile"),
    level(1, "reject"),
    level(1, "store").may_see(&["store/error", "store/transaction"]),
    level(0, "body").may_see(&["replay"]),
    level(0, "catch"),
    level(0, "fingerprint"),
    level(0, "key").may_see(&["fingerprint"]),
    level(0, "obligation"),
    level(0, "readme"),
    level(0, "replay"),
    level(0, "response"),
    level(0, "scope").may_see(&["fingerprint"]),
    backend("store/*"),
    // After the row above, which fits it as well.
    level(1, "store/error"),
    level(1, "store/group").may_see(&["store", "store/error"]),
    level(1, "store/transaction").may_see(&["store", "store/error"]),
    backend("testing"),
];

#[test]
fn every_file_imports_only_from_lower_levels() {
    let faults = check(&Sources::of_this_crate(), TABLE);
    assert!(faults.is_empty(), "the layers are broken:\n  {}\n", faults.join("\n  "));
}

/// Where a noun stands, and what it may import beside what stands lower.
struct Row {
    noun: &'static str,
    place: Place,
    may_see: &'static [&'static str],
    planned: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Level(u8),
    /// Sees the `Store` contract and the leaves; nothing but `lib` sees it.
    Backend,
}

const fn level(level: u8, noun: &'static str) -> Row {
    Row { noun, place: Place::Level(level), may_see: &[], planned: false }
}

const fn backend(noun: &'static str) -> Row {
    Row { noun, place: Place::Backend, may_see: &[], planned: false }
}

impl Row {
    const fn may_see(mut self, nouns: &'static [&'static str]) -> Self {
        self.may_see = nouns;
        self
    }

    // Unused once every file is there.
    #[allow(dead_code)]
    const fn planned(mut self) -> Self {
        self.planned = true;
        self
    }

    /// Returns the part of a file's name that is the noun of this row, if the row fits the file.
    fn noun_of<'a>(&self, file: &'a str) -> Option<&'a str> {
        let mut end = 0;
        let mut segments = file.split('/');
        for wanted in self.noun.split('/') {
            let segment = segments.next().filter(|segment| wanted == "*" || wanted == *segment)?;
            end += segment.len() + 1;
        }
        Some(&file[..end - 1])
    }

    fn allows(&self, other: &Row) -> bool {
        let lower = match (self.place, other.place) {
            (Place::Level(own), Place::Level(level)) => level < own,
            (Place::Backend, Place::Level(level)) => level == 0 || other.noun.starts_with("store"),
            (_, Place::Backend) => false,
        };
        lower || self.may_see.contains(&other.noun)
    }

    fn describe(&self) -> String {
        match self.place {
            Place::Level(level) => format!("level {level}"),
            Place::Backend => "a backend".to_owned(),
        }
    }
}

/// Returns one sentence for each fault.
fn check(sources: &Sources, table: &[Row]) -> Vec<String> {
    let row_of = |file: &str| {
        let fitting = table.iter().filter_map(|row| row.noun_of(file).map(|noun| (row, noun.to_owned())));
        fitting.max_by_key(|(row, _)| row.noun.split('/').count())
    };
    let mut faults = Vec::new();
    for row in table {
        let there = sources.names().any(|file| row_of(file).is_some_and(|(found, _)| std::ptr::eq(found, row)));
        match (there, row.planned) {
            (false, false) => faults.push(format!("the row `{}` names no file under src", row.noun)),
            (true, true) => faults.push(format!("the row `{}` is not planned any more: its file is there", row.noun)),
            _ => {}
        }
    }
    for file in sources.names() {
        if file == "lib" {
            faults.extend(logic(&sources.file("lib").items));
            continue;
        }
        let Some((row, noun)) = row_of(file) else {
            faults.push(format!("src/{file}.rs has no row in the table of tests/import_levels.rs"));
            continue;
        };
        for import in imports(sources, file) {
            let Target { file: seen, name } = sources.resolve(&import);
            let written = import.join("::");
            match row_of(&seen) {
                Some((_, other)) if other == noun => {}
                Some((other, _)) if row.allows(other) => {}
                Some((other, _)) => faults.push(format!(
                    "src/{file}.rs ({}) imports `crate::{written}` from src/{seen}.rs ({})",
                    row.describe(),
                    other.describe()
                )),
                // A file without a row: said once, when its own turn comes.
                None if seen != "lib" => {}
                None if name.is_some() => {
                    faults.push(format!("src/{file}.rs imports `crate::{written}`, which no file is known to define"));
                }
                None => faults.push(format!("src/{file}.rs imports from the whole crate: name what it needs")),
            }
        }
    }
    faults
}

/// Finds what `lib.rs` must not hold.
fn logic(items: &[Item]) -> Vec<String> {
    let plain = |item: &&Item| match item {
        Item::Mod(module) => module.content.is_none(),
        Item::Use(_) => true,
        item => only_for(item, "doctest"),
    };
    let more = items.iter().filter(|item| !plain(item)).count();
    if more == 0 { Vec::new() } else { vec![format!("src/lib.rs holds {more} items beside `mod …;` and `use`")] }
}

/// Finds every path of a file that leads into this crate, as absolute paths.
fn imports(sources: &Sources, file: &str) -> BTreeSet<Vec<String>> {
    let source = sources.file(file);
    let mut found = BTreeSet::new();
    let mut scan = Scan { module: module_of(file), children: source.children.clone(), found: &mut found };
    scan.items(&source.items);
    found
}

/// Walks over tokens, so that paths within macros count too.
struct Scan<'a> {
    module: Vec<String>,
    children: BTreeSet<String>,
    found: &'a mut BTreeSet<Vec<String>>,
}

impl Scan<'_> {
    fn items(&mut self, items: &[Item]) {
        for item in items {
            match item {
                Item::Mod(module) => {
                    let Some((_, items)) = &module.content else { continue };
                    let path = [&self.module[..], &[module.ident.to_string()]].concat();
                    Scan { module: path, children: children(items), found: self.found }.items(items);
                }
                item => self.tokens(item.to_token_stream()),
            }
        }
    }

    fn tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<_> = tokens.into_iter().collect();
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            match token {
                TokenTree::Ident(head) if separator(&tokens[at + 1..]) && !inside_a_path(&tokens[..at]) => {
                    at += self.path(&tokens[at..], &[], head.to_string().as_str());
                }
                TokenTree::Group(group) => {
                    self.tokens(group.stream());
                    at += 1;
                }
                _ => at += 1,
            }
        }
    }

    /// Reads one path and what it groups, and returns how many tokens it took.
    fn path(&mut self, tokens: &[TokenTree], before: &[String], head: &str) -> usize {
        let mut path = [before, &[head.to_owned()]].concat();
        let mut taken = 1;
        while separator(&tokens[taken..]) {
            match tokens.get(taken + 2) {
                Some(TokenTree::Ident(segment)) => path.push(segment.to_string()),
                Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                    self.group(group.stream(), &path);
                    return taken + 3;
                }
                // A glob, or the generic arguments of a call.
                _ => break,
            }
            taken += 3;
        }
        self.note(path);
        taken
    }

    fn group(&mut self, tokens: TokenStream, before: &[String]) {
        let tokens: Vec<_> = tokens.into_iter().collect();
        for branch in tokens.split(|token| matches!(token, TokenTree::Punct(mark) if mark.as_char() == ',')) {
            match branch.first() {
                Some(TokenTree::Ident(head)) => {
                    self.path(branch, before, head.to_string().as_str());
                }
                Some(_) => self.note(before.to_vec()),
                None => {}
            }
        }
    }

    fn note(&mut self, mut path: Vec<String>) {
        if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
            path.pop();
        }
        self.found.extend(absolute(&self.module, &self.children, &path));
    }
}

/// Tells whether the tokens start with `::`.
fn separator(tokens: &[TokenTree]) -> bool {
    let colon = |token: &TokenTree| matches!(token, TokenTree::Punct(mark) if mark.as_char() == ':');
    tokens.len() > 1 && colon(&tokens[0]) && colon(&tokens[1])
}

fn inside_a_path(before: &[TokenTree]) -> bool {
    before.len() > 1 && separator(&before[before.len() - 2..])
}

// The checker itself.

const SMALL: &[Row] =
    &[level(1, "high"), level(0, "low"), level(0, "side").may_see(&["low"]), level(1, "store"), backend("store/*")];

const LIB: &str = "mod high; mod low; mod side; pub mod store;
    pub use high::High; pub use low::Low; pub use store::{Store, memory::MemoryStore as Memory};";

/// Checks a crate of five files, of which one has a text.
fn faults_of(file: &str, text: &str) -> Vec<String> {
    let mut texts = vec![("lib", LIB), ("high", ""), ("low", ""), ("side", ""), ("store", ""), ("store/memory", "")];
    texts.iter_mut().find(|(name, _)| *name == file).expect("the file is one of the five").1 = text;
    check(&Sources::from_texts(&texts), SMALL)
}

#[test]
fn the_checker_accepts_imports_from_below_and_those_listed() {
    for (file, text) in [
        ("high", "use crate::{Low, low::{self, Other}}; use std::high::Thing;"),
        ("side", "use crate::low::Low;"),
        ("store", "use crate::Low; pub(crate) mod memory;"),
        ("store/memory", "use super::Store; use crate::{Low, store::Claim}; fn f() { self::g(); }"),
        ("low", "#[cfg(test)] mod tests { use crate::High; }"),
        ("low", "#[cfg(all(test, feature = \"x\"))] mod tests { use crate::High; }"),
        ("low", "/// See [`High`](crate::High).\nstruct Low;"),
    ] {
        assert_eq!(faults_of(file, text), Vec::<String>::new(), "{file}: {text}");
    }
}

#[test]
fn the_checker_notices_an_import_from_above_however_it_is_written() {
    let expected =
        |written: &str| vec![format!("src/low.rs (level 0) imports `crate::{written}` from src/high.rs (level 1)")];
    for (text, written) in [
        ("use crate::high::High;", "high::High"),
        ("use crate::High;", "High"),
        ("use super::High as Other;", "High"),
        ("use crate::{low::X, high::{High}};", "high::High"),
        ("use crate::high::*;", "high"),
        ("use crate::high::{self};", "high"),
        ("fn f() { crate::high::f::<u8>(); }", "high::f"),
        ("fn f(x: &crate::High) {}", "High"),
        ("fn f() { use crate::high::High; }", "high::High"),
        ("some! { struct A { b: crate::high::High } }", "high::High"),
        ("mod inner { use super::super::high::High; }", "high::High"),
        ("#[cfg(feature = \"x\")] mod inner { use crate::high::High; }", "high::High"),
    ] {
        assert_eq!(faults_of("low", text), expected(written), "{text}");
    }
}

#[test]
fn the_checker_takes_a_folder_for_one_noun_and_leaves_out_files_for_tests() {
    let sources = Sources::from_texts(&[
        ("lib", LIB),
        ("high", ""),
        ("low", "mod part; use part::Part; pub(crate) use part::Shown;"),
        ("low/part", "use super::Low; use crate::high::High; #[cfg(test)] mod tests;"),
        ("low/part/tests", "use super::*; use crate::high::High;"),
        ("side", "use crate::low::Shown;"),
        ("store", ""),
        ("store/memory", "mod clock; use clock::Moment;"),
        ("store/memory/clock", "use super::MemoryStore;"),
        ("store/other", "use crate::store::memory::MemoryStore;"),
    ]);
    assert_eq!(
        check(&sources, SMALL),
        [
            "src/low/part.rs (level 0) imports `crate::high::High` from src/high.rs (level 1)",
            "src/store/other.rs (a backend) imports `crate::store::memory::MemoryStore` from src/store/memory.rs (a backend)",
        ]
    );
}

#[test]
fn the_checker_notices_an_import_between_equals_that_is_not_listed() {
    assert_eq!(
        faults_of("low", "use crate::side::Side;"),
        ["src/low.rs (level 0) imports `crate::side::Side` from src/side.rs (level 0)"]
    );
}

#[test]
fn the_checker_keeps_backends_apart_from_policy() {
    assert_eq!(
        faults_of("store/memory", "use crate::High;"),
        ["src/store/memory.rs (a backend) imports `crate::High` from src/high.rs (level 1)"]
    );
    assert_eq!(
        faults_of("store", "mod memory; use memory::MemoryStore;"),
        ["src/store.rs (level 1) imports `crate::store::memory::MemoryStore` from src/store/memory.rs (a backend)"]
    );
    assert_eq!(
        faults_of("high", "use crate::Memory;"),
        ["src/high.rs (level 1) imports `crate::Memory` from src/store/memory.rs (a backend)"]
    );
}

#[test]
fn the_checker_notices_a_name_that_cannot_be_placed() {
    assert_eq!(
        faults_of("high", "use crate::Nowhere;"),
        ["src/high.rs imports `crate::Nowhere`, which no file is known to define"]
    );
    assert_eq!(faults_of("high", "use crate::*;"), ["src/high.rs imports from the whole crate: name what it needs"]);
}

#[test]
fn the_checker_notices_logic_in_lib() {
    let lib = format!("{LIB} fn f() {{}} #[cfg(doctest)] struct Readme;");
    assert_eq!(faults_of("lib", &lib), ["src/lib.rs holds 1 items beside `mod …;` and `use`"]);
}

#[test]
fn the_checker_notices_a_file_without_a_row_and_a_row_without_a_file() {
    let sources = Sources::from_texts(&[("lib", ""), ("new", ""), ("early", "")]);
    assert_eq!(
        check(&sources, &[level(0, "gone"), level(0, "early").planned(), level(0, "late").planned()]),
        [
            "the row `gone` names no file under src",
            "the row `early` is not planned any more: its file is there",
            "src/new.rs has no row in the table of tests/import_levels.rs",
        ]
    );
}
