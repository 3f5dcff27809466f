//! The tables of the README: what they name exists, and what they state is what the code says.

use std::{collections::BTreeSet, fs, path::Path};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The rows of the table below a heading, cell by cell.
fn table(heading: &str) -> Vec<Vec<String>> {
    let readme = read("README.md");
    let section = readme.split(&format!("\n## {heading}\n")).nth(1).expect("the heading is there");
    let rows = section.lines().skip_while(|line| !line.starts_with("| ---")).skip(1);
    rows.take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect())
        .collect()
}

/// The names of all test functions below `tests`.
fn test_names() -> BTreeSet<String> {
    fn add(folder: &Path, names: &mut BTreeSet<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                add(&path, names);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                let tests = text.split("#[test]").skip(1).chain(text.split("#[tokio::test").skip(1));
                names.extend(tests.filter_map(|test| Some(test.split("fn ").nth(1)?.split('(').next()?.to_owned())));
            }
        }
    }
    let mut names = BTreeSet::new();
    add(&root().join("tests"), &mut names);
    names
}

#[test]
fn every_guarantee_names_tests_that_exist() {
    let (guarantees, endings) = (table("What it guarantees"), table("What is an answer"));
    assert!(guarantees.len() > 10 && endings.len() == 3, "{guarantees:?} {endings:?}");
    let names = test_names();
    for row in guarantees.into_iter().chain(endings) {
        let [what, get, tests] = &row[..] else { panic!("a row with three cells: {row:?}") };
        assert!(!what.is_empty() && !get.is_empty());
        let named: Vec<_> = tests.split(", ").map(|name| name.trim_matches('`')).collect();
        for name in &named {
            assert!(names.contains(*name), "there is no test {name}");
        }
        assert!(!named.is_empty(), "{what}: no test");
    }
}

#[test]
fn every_option_is_a_setter_with_the_default_that_its_documentation_states() {
    let rows = table("Options");
    let layer = read("src/layer.rs");
    let listed: BTreeSet<_> = rows.iter().map(|row| row[0].trim_matches('`').to_owned()).collect();
    let mut setters: BTreeSet<_> =
        layer.match_indices("    pub fn ").filter_map(|(at, _)| setter_at(&layer[at + 11..])).collect();
    setters.remove("new");
    assert_eq!(listed, setters, "the table lists each setter");
    for row in rows {
        let name = row[0].trim_matches('`');
        let docs = docs_of(&layer, name);
        let stated = docs.split("Default:").nth(1).unwrap_or_else(|| panic!("{name} states no default"));
        let plain = |text: &str| text.replace(['[', ']', '`'], "").split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            plain(stated).starts_with(&plain(&row[1])),
            "{name}: the README says {:?}, the documentation {:?}",
            plain(&row[1]),
            plain(stated)
        );
    }
}

/// The name of a function that takes `self` by value.
fn setter_at(text: &str) -> Option<String> {
    let (name, rest) = text.split_once('(')?;
    let takes_self = rest.trim_start().starts_with("self") || rest.trim_start().starts_with("mut self");
    takes_self.then(|| name.to_owned())
}

/// The documentation of a setter, as one line.
fn docs_of(source: &str, setter: &str) -> String {
    let at = source.find(&format!("    pub fn {setter}(")).unwrap_or_else(|| panic!("there is no setter {setter}"));
    let mut lines: Vec<_> = source[..at]
        .lines()
        .rev()
        .map(str::trim)
        .take_while(|line| line.starts_with("///") || line.starts_with("#["))
        .filter_map(|line| line.strip_prefix("///"))
        .collect();
    lines.reverse();
    lines.join(" ")
}

#[test]
fn every_file_that_is_linked_exists() {
    for file in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"] {
        for link in read(file).split("](").skip(1) {
            let target = link.split(')').next().unwrap();
            if !target.contains("://") && !target.starts_with('#') {
                assert!(root().join(target).exists(), "{file} links to {target}");
            }
        }
    }
}
