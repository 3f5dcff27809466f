//! Reads source files for the tests that look at the source itself: names, modules, and where a path leads.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use syn::{Attribute, Item, Meta, Token, UseTree, Visibility, punctuated::Punctuated};

/// The files of one crate by name: `lib`, `key`, `store/memory`.
pub(crate) struct Sources(BTreeMap<String, SourceFile>);

/// One file, without what is compiled for tests only.
pub(crate) struct SourceFile {
    pub(crate) items: Vec<Item>,
    /// The modules that the file declares.
    pub(crate) children: BTreeSet<String>,
    /// What the file makes visible under a name of its own: the name and the absolute path behind it.
    exports: BTreeMap<String, Vec<String>>,
}

/// What a path from the crate root leads to.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Clone)]
pub(crate) struct Target {
    pub(crate) file: String,
    /// The name within the file; `None` if the path names the module itself.
    pub(crate) name: Option<String>,
}

impl Sources {
    /// Reads everything under `src`.
    pub(crate) fn of_this_crate() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut texts = Vec::new();
        read(&root, "", &mut texts);
        let texts: Vec<_> = texts.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        Self::from_texts(&texts)
    }

    /// Takes pairs of file name and text. A file whose module is declared for tests only is left out.
    pub(crate) fn from_texts(texts: &[(&str, &str)]) -> Self {
        let mut files = BTreeMap::new();
        let mut for_tests = BTreeSet::new();
        for (name, text) in texts {
            let (file, tests) = SourceFile::parse(name, text);
            files.insert((*name).to_owned(), file);
            for_tests.extend(tests.into_iter().map(|child| [module_of(name), vec![child]].concat().join("/")));
        }
        files.retain(|name, _| !for_tests.contains(name));
        Self(files)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    pub(crate) fn file(&self, name: &str) -> &SourceFile {
        self.0.get(name).unwrap_or_else(|| panic!("src/{name}.rs is not there"))
    }

    /// Follows an absolute path to the file that defines what it names, through any re-exports.
    pub(crate) fn resolve(&self, path: &[String]) -> Target {
        let depth = (1..=path.len()).rev().find(|&depth| self.0.contains_key(&path[..depth].join("/"))).unwrap_or(0);
        let file = if depth == 0 { "lib".to_owned() } else { path[..depth].join("/") };
        let Some(name) = path.get(depth) else { return Target { file, name: None } };
        match self.file(&file).exports.get(name) {
            Some(behind) => self.resolve(behind),
            None => match self.exported_macro(name).filter(|_| depth == 0) {
                Some(file) => Target { file: file.to_owned(), name: Some(name.clone()) },
                None => Target { file, name: Some(name.clone()) },
            },
        }
    }

    fn exported_macro(&self, name: &str) -> Option<&str> {
        let defines = |file: &&String| {
            self.0[*file].items.iter().any(|item| match item {
                Item::Macro(item) => {
                    item.ident.as_ref().is_some_and(|ident| ident == name) && has(&item.attrs, "macro_export")
                }
                _ => false,
            })
        };
        self.0.keys().find(defines).map(String::as_str)
    }
}

impl SourceFile {
    /// Returns the file, and the names of the modules that it declares for tests only.
    fn parse(name: &str, text: &str) -> (Self, BTreeSet<String>) {
        let parsed = syn::parse_file(text).unwrap_or_else(|error| panic!("src/{name}.rs cannot be parsed: {error}"));
        let declared = children(&parsed.items);
        let items = without_tests(parsed.items);
        let children = children(&items);
        let for_tests = declared.difference(&children).cloned().collect();
        let module = module_of(name);
        let mut exports = BTreeMap::new();
        for item in &items {
            let Item::Use(item) = item else { continue };
            if matches!(item.vis, Visibility::Inherited) && name != "lib" {
                continue;
            }
            for (alias, path) in leaves(&item.tree) {
                if let Some(path) = absolute(&module, &children, &path) {
                    assert!(alias != "*", "src/{name}.rs re-exports everything of a module: name the items instead");
                    exports.insert(alias, path);
                }
            }
        }
        (Self { items, children, exports }, for_tests)
    }
}

/// Returns the module path of a file: none for `lib`, two names for `store/memory`.
pub(crate) fn module_of(file: &str) -> Vec<String> {
    if file == "lib" { Vec::new() } else { file.split('/').map(str::to_owned).collect() }
}

/// Returns the names of the modules that are declared among the items.
pub(crate) fn children(items: &[Item]) -> BTreeSet<String> {
    let name = |item: &Item| if let Item::Mod(item) = item { Some(item.ident.to_string()) } else { None };
    items.iter().filter_map(name).collect()
}

/// Makes a path absolute, as seen from `module` with its `children`; `None` if it leads out of the crate.
pub(crate) fn absolute(module: &[String], children: &BTreeSet<String>, path: &[String]) -> Option<Vec<String>> {
    let mut rest = path;
    let mut base = match rest.first()?.as_str() {
        "crate" => Vec::new(),
        "self" | "super" => module.to_vec(),
        child if children.contains(child) => return Some([module, path].concat()),
        _ => return None,
    };
    if matches!(rest[0].as_str(), "crate" | "self") {
        rest = &rest[1..];
    }
    while rest.first().is_some_and(|segment| segment == "super") {
        base.pop();
        rest = &rest[1..];
    }
    base.extend(rest.iter().cloned());
    Some(base)
}

/// Returns what a `use` brings in: the name it gets, and its path. The name of a glob is `*`.
pub(crate) fn leaves(tree: &UseTree) -> Vec<(String, Vec<String>)> {
    fn walk(tree: &UseTree, path: &[String], found: &mut Vec<(String, Vec<String>)>) {
        let longer = |segment: String| [path, &[segment]].concat();
        match tree {
            UseTree::Path(tree) => walk(&tree.tree, &longer(tree.ident.to_string()), found),
            UseTree::Group(tree) => tree.items.iter().for_each(|tree| walk(tree, path, found)),
            UseTree::Glob(_) => found.push(("*".to_owned(), path.to_vec())),
            UseTree::Name(tree) if tree.ident == "self" => {
                found.push((path.last().cloned().unwrap_or_default(), path.to_vec()));
            }
            UseTree::Name(tree) => found.push((tree.ident.to_string(), longer(tree.ident.to_string()))),
            UseTree::Rename(tree) if tree.ident == "self" => found.push((tree.rename.to_string(), path.to_vec())),
            UseTree::Rename(tree) => found.push((tree.rename.to_string(), longer(tree.ident.to_string()))),
        }
    }
    let mut found = Vec::new();
    walk(tree, &[], &mut found);
    found
}

/// Tells whether an attribute of this name is there.
pub(crate) fn has(attributes: &[Attribute], name: &str) -> bool {
    attributes.iter().any(|attribute| attribute.path().is_ident(name))
}

/// Returns the attributes of an item.
pub(crate) fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Tells whether an item is compiled only under a condition such as `test`, alone or as a part of `all(..)`.
pub(crate) fn only_for(item: &Item, condition: &str) -> bool {
    fn needs(meta: &Meta, condition: &str) -> bool {
        match meta {
            Meta::Path(path) => path.is_ident(condition),
            Meta::List(list) if list.path.is_ident("all") => list
                .parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated)
                .is_ok_and(|parts| parts.iter().any(|part| needs(part, condition))),
            _ => false,
        }
    }
    attributes(item).iter().any(|attribute| {
        attribute.path().is_ident("cfg") && attribute.parse_args::<Meta>().is_ok_and(|meta| needs(&meta, condition))
    })
}

fn without_tests(items: Vec<Item>) -> Vec<Item> {
    let mut kept: Vec<_> = items.into_iter().filter(|item| !only_for(item, "test")).collect();
    for item in &mut kept {
        if let Item::Mod(module) = item
            && let Some((_, items)) = &mut module.content
        {
            *items = without_tests(std::mem::take(items));
        }
    }
    kept
}

fn read(directory: &Path, prefix: &str, texts: &mut Vec<(String, String)>) {
    let entries = fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    for entry in entries {
        let path = entry.expect("a directory entry can be read").path();
        let stem = path.file_stem().and_then(|stem| stem.to_str()).expect("file names are text");
        let name = format!("{prefix}{stem}");
        if path.is_dir() {
            read(&path, &format!("{name}/"), texts);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            texts.push((name, fs::read_to_string(&path).expect("a source file can be read")));
        }
    }
}
