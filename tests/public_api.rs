//! The public API as one committed text, so that no change of it goes unnoticed.
//!
//! The text is read off the source, not off the compiler: it shows every item that `lib.rs` makes reachable, under every
//! feature, with what its file says about it. After a change that is meant:
//! `UPDATE_SNAPSHOT=1 cargo test --test public_api`.

#[path = "support/source.rs"]
mod source;

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::Path,
};

use source::{Sources, Target, absolute, attributes, has, leaves, module_of};
use syn::{
    Attribute, Fields, Generics, ImplItem, Item, ItemImpl, ItemMacro, ItemTrait, TraitItem, Type, Visibility,
    spanned::Spanned,
};

const SNAPSHOT: &str = "tests/public-api.txt";

#[test]
fn the_public_api_is_the_committed_one() {
    let now = api(&Sources::of_this_crate());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(SNAPSHOT);
    if env::var_os("UPDATE_SNAPSHOT").is_some() {
        fs::write(&path, now).expect("the snapshot can be written");
        return;
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == now,
        "the public API is not the one in {SNAPSHOT} (- committed, + now):\n\n{}\n\
         If the change is meant: UPDATE_SNAPSHOT=1 cargo test --test public_api\n",
        difference(&committed, &now)
    );
}

/// Writes down everything that is public, one block an item, sorted by path.
fn api(sources: &Sources) -> String {
    let mut reach = Reach { sources, places: BTreeMap::new(), others: Vec::new() };
    reach.module("lib", "", &[]);
    let impls = Impls::of(sources, &reach.places.keys().cloned().collect());

    let mut blocks = Vec::new();
    for (target, places) in &reach.places {
        // The shortest path is the one that users write; the others point to it.
        let mut places = places.clone();
        places.sort_by_key(|place| (place.path.matches("::").count(), place.path.clone()));
        let [first, others @ ..] = &places[..] else { continue };
        let mut lines = match &target.name {
            Some(name) => describe(sources, target, name, first, &impls),
            None => vec![format!("{}mod {}", prefix(&first.conditions), first.path)],
        };
        lines.extend(others.iter().map(|place| format!("    also {}{}", prefix(&place.conditions), place.path)));
        blocks.push((first.path.clone(), lines));
    }
    for line in reach.others {
        blocks.push((line.clone(), vec![line]));
    }
    blocks.sort();
    if !impls.foreign.is_empty() {
        blocks.push((String::new(), [vec!["for other types".to_owned()], impls.foreign.clone()].concat()));
    }
    let blocks: Vec<_> = blocks.into_iter().map(|(_, lines)| lines.join("\n") + "\n").collect();
    blocks.join("\n")
}

/// A path under which users reach an item, and what must be on for it.
#[derive(Clone)]
struct Place {
    path: String,
    conditions: Vec<String>,
}

/// Finds what is reachable from the root.
struct Reach<'a> {
    sources: &'a Sources,
    places: BTreeMap<Target, Vec<Place>>,
    /// Re-exports of items of other crates.
    others: Vec<String>,
}

impl Reach<'_> {
    fn module(&mut self, file: &str, path: &str, conditions: &[String]) {
        let source = self.sources.file(file);
        let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}::{name}") };
        for item in flat(&source.items) {
            let conditions = [conditions, &conditions_of(attributes(&item))].concat();
            let exported = matches!(&item, Item::Macro(item) if has(&item.attrs, "macro_export"));
            if !exported && !visibility(&item).is_some_and(is_public) {
                continue;
            }
            match &item {
                Item::Mod(module) => {
                    assert!(module.content.is_none(), "src/{file}.rs: a public module needs a file of its own");
                    let name = module.ident.to_string();
                    let child = [module_of(file), vec![name.clone()]].concat().join("/");
                    let target = Target { file: child.clone(), name: None };
                    self.note(target, Place { path: below(&name), conditions: conditions.clone() });
                    self.module(&child, &below(&name), &conditions);
                }
                Item::Use(import) => {
                    for (alias, behind) in leaves(&import.tree) {
                        match absolute(&module_of(file), &source.children, &behind) {
                            Some(behind) => {
                                let target = self.sources.resolve(&behind);
                                self.note(target, Place { path: below(&alias), conditions: conditions.clone() });
                            }
                            None => self.others.push(format!(
                                "{}{} = {}",
                                prefix(&conditions),
                                below(&alias),
                                behind.join("::")
                            )),
                        }
                    }
                }
                item => {
                    let Some(name) = name_of(item) else { continue };
                    // A macro is exported at the root, wherever it is written.
                    let path = if exported { name.clone() } else { below(&name) };
                    self.note(Target { file: file.to_owned(), name: Some(name) }, Place { path, conditions });
                }
            }
        }
        if file == "lib" {
            self.macros();
        }
    }

    /// Notes the exported macros of files that are private modules.
    fn macros(&mut self) {
        for file in self.sources.names() {
            for item in &self.sources.file(file).items {
                if let Item::Macro(ItemMacro { attrs, ident: Some(name), .. }) = item
                    && has(attrs, "macro_export")
                {
                    let target = Target { file: file.to_owned(), name: Some(name.to_string()) };
                    let place = Place { path: name.to_string(), conditions: conditions_of(attrs) };
                    self.note(target, place);
                }
            }
        }
    }

    fn note(&mut self, target: Target, place: Place) {
        let places = self.places.entry(target).or_default();
        if places.iter().all(|known| known.path != place.path) {
            places.push(place);
        }
    }
}

/// What the whole crate implements.
///
/// An implementation belongs to the type of that name in its own file, or else to any public type of that name.
struct Impls {
    by_type: BTreeMap<(Option<String>, String), BTreeMap<String, Vec<String>>>,
    by_trait: BTreeMap<String, Vec<String>>,
    /// Implementations of foreign traits for foreign types.
    foreign: Vec<String>,
}

impl Impls {
    fn of(sources: &Sources, public: &BTreeSet<Target>) -> Self {
        let mut found = Self { by_type: BTreeMap::new(), by_trait: BTreeMap::new(), foreign: Vec::new() };
        let files: Vec<_> = sources.names().map(|file| (file, flat(&sources.file(file).items))).collect();
        let own: BTreeSet<_> = files.iter().flat_map(|(_, items)| items.iter().filter_map(name_of)).collect();
        for (file, items) in &files {
            let here: BTreeSet<_> = items.iter().filter_map(name_of).collect();
            let conditions = conditions_of_file(sources, file);
            let owner = |name: &str| here.contains(name).then(|| (*file).to_owned());
            for item in items {
                match item {
                    Item::Impl(item) => found.add(item, &conditions, owner, public, &own),
                    // A macro of the crate that makes implementations shows only how it is called.
                    Item::Macro(item) if item.ident.is_none() => {
                        found.foreign.push(format!("    {}!({})", text(&item.mac.path), text(&item.mac.tokens)));
                    }
                    _ => {}
                }
            }
        }
        found.foreign.sort();
        found
    }

    fn add(
        &mut self,
        item: &ItemImpl,
        conditions: &[String],
        owner: impl Fn(&str) -> Option<String>,
        public: &BTreeSet<Target>,
        own: &BTreeSet<String>,
    ) {
        let is_public = |name: &str| {
            let owner = owner(name);
            public.iter().any(|target| {
                target.name.as_deref() == Some(name) && owner.as_ref().is_none_or(|file| *file == target.file)
            })
        };
        let of_type = last_name(&item.self_ty);
        let (header, of_trait) = header(item, conditions);
        if is_public(&of_type) {
            let key = (owner(&of_type), of_type);
            let lines = self.by_type.entry(key).or_default().entry(header).or_default();
            lines.extend(item.items.iter().filter_map(|member| member_of_impl(member, of_trait.is_some())));
            // By name, with types and constants first: the order within the source does not matter to users.
            lines.sort_by_key(|line| line.find("fn ").map(|start| line[start..].to_owned()));
        } else if own.contains(&of_type) {
            // A private type of this crate.
        } else if let Some(name) = of_trait {
            if is_public(&name) {
                self.by_trait.entry(name).or_default().push(header);
            } else if !own.contains(&name) {
                self.foreign.push(header);
            }
        }
    }

    fn of_type(&self, target: &Target) -> impl Iterator<Item = (&String, &Vec<String>)> {
        let name = target.name.clone().unwrap_or_default();
        let keys = [(Some(target.file.clone()), name.clone()), (None, name)];
        keys.into_iter().filter_map(|key| self.by_type.get(&key)).flatten()
    }
}

/// Returns the first line of an implementation, and the name of the trait.
fn header(item: &ItemImpl, conditions: &[String]) -> (String, Option<String>) {
    let conditions = [conditions, &conditions_of(&item.attrs)].concat();
    let mut line = format!("    {}impl{}", prefix(&conditions), parameters(&item.generics));
    let mut name = None;
    if let Some(of) = &item.trait_ {
        // Only the path: polarity and `for` are written anew.
        let path = &of.0;
        name = path.segments.last().map(|segment| segment.ident.to_string());
        line += &format!(" {} for", text(path));
    }
    line += &format!(" {}{}", text(&item.self_ty), bounds(&item.generics));
    (line, name)
}

fn member_of_impl(member: &ImplItem, of_trait: bool) -> Option<String> {
    let visible = |vis: &Visibility| of_trait || is_public(vis);
    let (attributes, line) = match member {
        // The functions of a trait are known from the trait.
        ImplItem::Fn(item) if !of_trait && visible(&item.vis) => (&item.attrs, text(&item.sig)),
        ImplItem::Const(item) if visible(&item.vis) => {
            (&item.attrs, format!("const {}: {}", item.ident, text(&item.ty)))
        }
        ImplItem::Type(item) if visible(&item.vis) => {
            (&item.attrs, format!("type {} = {}", item.ident, text(&item.ty)))
        }
        _ => return None,
    };
    Some(format!("        {}{line}", marks(attributes)))
}

/// Writes one item down, its implementations included.
fn describe(sources: &Sources, target: &Target, name: &str, place: &Place, impls: &Impls) -> Vec<String> {
    let items = flat(&sources.file(&target.file).items);
    let is_it = |item: &&Item| name_of(item).is_some_and(|found| found == name);
    let item = items.iter().find(is_it).unwrap_or_else(|| panic!("src/{}.rs defines no `{name}`", target.file));
    let path = &place.path;
    let start = format!("{}{}", prefix(&place.conditions), marks(attributes(item)));
    let mut lines = Vec::new();
    match item {
        Item::Struct(item) => {
            lines.push(format!("{start}struct {path}{}{}", parameters(&item.generics), bounds(&item.generics)));
            lines.extend(fields(&item.fields));
        }
        Item::Enum(item) => {
            lines.push(format!("{start}enum {path}{}{}", parameters(&item.generics), bounds(&item.generics)));
            for variant in &item.variants {
                let fields: Vec<_> =
                    variant.fields.iter().map(|field| named(field.ident.as_ref(), &field.ty)).collect();
                let fields = match &variant.fields {
                    Fields::Unit => String::new(),
                    Fields::Unnamed(_) => format!("({})", fields.join(", ")),
                    Fields::Named(_) => format!(" {{ {} }}", fields.join(", ")),
                };
                lines.push(format!("    {}{}{fields}", marks(&variant.attrs), variant.ident));
            }
        }
        Item::Trait(item) => lines.extend(a_trait(item, &start, path)),
        Item::Fn(item) => lines.push(format!("{start}{} [{path}]", text(&item.sig))),
        Item::Const(item) => lines.push(format!("{start}const {path}: {}", text(&item.ty))),
        Item::Static(item) => lines.push(format!("{start}static {path}: {}", text(&item.ty))),
        Item::Type(item) => {
            lines.push(format!("{start}type {path}{} = {}", parameters(&item.generics), text(&item.ty)));
        }
        Item::Macro(item) => {
            lines.push(format!("{start}macro {path}!"));
            lines.extend(patterns(item));
        }
        item => lines.push(format!("{start}{}", text(item))),
    }
    lines.extend(impls.of_type(target).flat_map(|(header, members)| {
        // An implementation without a trait and without a public member shows nothing to users.
        let shown = !members.is_empty() || header.contains(" for ");
        // What must be on for the item need not be said again.
        let header = header.replacen(&prefix(&place.conditions), "", 1);
        if shown { [&[header], &members[..]].concat() } else { Vec::new() }
    }));
    if matches!(item, Item::Trait(_)) {
        let mut headers = impls.by_trait.get(name).cloned().unwrap_or_default();
        headers.sort();
        lines.extend(headers);
    }
    lines
}

fn a_trait(item: &ItemTrait, start: &str, path: &str) -> Vec<String> {
    let above = if item.supertraits.is_empty() { String::new() } else { format!(": {}", text(&item.supertraits)) };
    let mut lines = vec![format!("{start}trait {path}{}{above}{}", parameters(&item.generics), bounds(&item.generics))];
    let provided = |given: bool| if given { " { provided }" } else { "" };
    for member in &item.items {
        let (attributes, line) = match member {
            TraitItem::Fn(item) => (&item.attrs, format!("{}{}", text(&item.sig), provided(item.default.is_some()))),
            TraitItem::Const(item) => {
                let given = provided(item.default.is_some());
                (&item.attrs, format!("const {}: {}{given}", item.ident, text(&item.ty)))
            }
            TraitItem::Type(item) => {
                let above = if item.bounds.is_empty() { String::new() } else { format!(": {}", text(&item.bounds)) };
                (&item.attrs, format!("type {}{above}", item.ident))
            }
            _ => continue,
        };
        lines.push(format!("    {}{line}", marks(attributes)));
    }
    lines
}

fn fields(fields: &Fields) -> Vec<String> {
    let is_shown = |field: &&syn::Field| is_public(&field.vis);
    let mut lines: Vec<_> = fields
        .iter()
        .filter(is_shown)
        .map(|field| format!("    {}{}", marks(&field.attrs), named(field.ident.as_ref(), &field.ty)))
        .collect();
    if lines.len() < fields.len() {
        lines.push("    (private fields)".to_owned());
    }
    lines
}

fn named(name: Option<&syn::Ident>, of: &Type) -> String {
    name.map_or_else(|| text(of), |name| format!("{name}: {}", text(of)))
}

/// Returns what a macro can be called with: the left side of each rule.
fn patterns(item: &ItemMacro) -> Vec<String> {
    let tokens: Vec<_> = item.mac.tokens.clone().into_iter().collect();
    tokens
        .windows(3)
        .filter(|window| window[1].to_string() == "=" && window[2].to_string() == ">")
        .map(|window| format!("    {}", text(&window[0])))
        .collect()
}

/// Lays open what a macro wraps that only decorates items, such as `pin_project!`.
fn flat(items: &[Item]) -> Vec<Item> {
    let mut found = Vec::new();
    for item in items {
        match item {
            Item::Macro(call) if call.ident.is_none() => match syn::parse2::<syn::File>(call.mac.tokens.clone()) {
                Ok(inner) => found.extend(flat(&inner.items)),
                Err(_) => found.push(item.clone()),
            },
            item => found.push(item.clone()),
        }
    }
    found
}

fn name_of(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}

fn visibility(item: &Item) -> Option<&Visibility> {
    match item {
        Item::Const(item) => Some(&item.vis),
        Item::Enum(item) => Some(&item.vis),
        Item::Fn(item) => Some(&item.vis),
        Item::Mod(item) => Some(&item.vis),
        Item::Static(item) => Some(&item.vis),
        Item::Struct(item) => Some(&item.vis),
        Item::Trait(item) => Some(&item.vis),
        Item::Type(item) => Some(&item.vis),
        Item::Union(item) => Some(&item.vis),
        Item::Use(item) => Some(&item.vis),
        _ => None,
    }
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

fn last_name(of: &Type) -> String {
    match of {
        Type::Path(path) => path.path.segments.last().map(|segment| segment.ident.to_string()).unwrap_or_default(),
        Type::Reference(reference) => last_name(&reference.elem),
        _ => String::new(),
    }
}

fn conditions_of(attributes: &[Attribute]) -> Vec<String> {
    attributes.iter().filter(|attribute| attribute.path().is_ident("cfg")).map(text).collect()
}

/// Returns what must be on for a file to be compiled: what its `mod` says, and those above it.
fn conditions_of_file(sources: &Sources, file: &str) -> Vec<String> {
    let module = module_of(file);
    let declaration = |depth: usize| {
        let parent = if depth == 0 { "lib".to_owned() } else { module[..depth].join("/") };
        let items = &sources.file(&parent).items;
        items.iter().find(|item| matches!(item, Item::Mod(item) if item.ident == module[depth])).map(attributes)
    };
    (0..module.len()).filter_map(declaration).flat_map(conditions_of).collect()
}

fn prefix(conditions: &[String]) -> String {
    let mut seen = Vec::new();
    for condition in conditions {
        if !seen.contains(condition) {
            seen.push(condition.clone());
        }
    }
    seen.iter().map(|condition| format!("{condition} ")).collect()
}

/// Keeps the attributes that users notice.
fn marks(attributes: &[Attribute]) -> String {
    let mut marks = String::new();
    for attribute in attributes {
        let name = attribute.path().segments.last().map(|segment| segment.ident.to_string()).unwrap_or_default();
        match name.as_str() {
            "must_use" | "deprecated" => marks += &format!("#[{name}] "),
            "non_exhaustive" | "derive" | "async_trait" | "repr" => marks += &format!("{} ", text(attribute)),
            "doc" if text(attribute) == "#[doc(hidden)]" => marks += "#[doc(hidden)] ",
            _ => {}
        }
    }
    marks
}

fn parameters(generics: &Generics) -> String {
    let parameters: Vec<_> = generics.params.iter().map(text).collect();
    if parameters.is_empty() { String::new() } else { format!("<{}>", parameters.join(", ")) }
}

fn bounds(generics: &Generics) -> String {
    generics.where_clause.as_ref().map(|clause| format!(" {}", text(clause))).unwrap_or_default()
}

/// Returns the source of a piece of syntax on one line.
fn text(piece: &impl Spanned) -> String {
    let source = piece.span().source_text().unwrap_or_default();
    let line = source.split_whitespace().collect::<Vec<_>>().join(" ");
    let line = line.trim_end_matches(',');
    line.replace("( ", "(")
        .replace(", )", ")")
        .replace(" )", ")")
        .replace("< ", "<")
        .replace(", >", ">")
        .replace("(mut self", "(self")
}

/// Shows the lines that differ, each under the first line of its block.
fn difference(old: &str, new: &str) -> String {
    let (old, new): (Vec<_>, Vec<_>) = (old.lines().collect(), new.lines().collect());
    // The length of the longest common run of lines from (i, j) on.
    let mut common = vec![vec![0usize; new.len() + 1]; old.len() + 1];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            common[i][j] =
                if old[i] == new[j] { common[i + 1][j + 1] + 1 } else { common[i + 1][j].max(common[i][j + 1]) };
        }
    }
    let within = |line: &str| line.starts_with(' ');
    let (mut i, mut j, mut block, mut shown) = (0, 0, None, String::new());
    while i < old.len() || j < new.len() {
        let same = i < old.len() && j < new.len() && old[i] == new[j];
        let removed = !same
            && i < old.len()
            && (j == new.len()
                || common[i + 1][j] > common[i][j + 1]
                // Either order would do: what belongs to the block at hand comes first.
                || (common[i + 1][j] == common[i][j + 1] && (within(old[i]) || !within(new[j]))));
        let line = if same || removed { old[i] } else { new[j] };
        let is_head = !line.is_empty() && !within(line);
        if same && is_head {
            block = Some(line);
        } else if !same && !line.is_empty() {
            if is_head {
                block = None;
            } else if let Some(head) = block.take() {
                shown += &format!("  {head}\n");
            }
            shown += &format!("{} {line}\n", if removed { '-' } else { '+' });
        }
        i += usize::from(same || removed);
        j += usize::from(!removed);
    }
    shown
}

// The reader itself.

#[test]
fn the_reader_shows_what_users_can_reach_and_nothing_else() {
    let sources = Sources::from_texts(&[
        (
            "lib",
            "mod key; #[cfg(feature = \"kit\")] pub mod kit;
             pub use key::{Key, Kind as Sort}; pub use kit::Store; pub use bytes::Bytes;",
        ),
        (
            "key",
            "/// A key.\n#[derive(Clone)] #[allow(x)] pub struct Key<'a, T>(pub T, &'a str);
             impl<T: Copy> Key<'_, T> { /// Reads.\n #[must_use = \"x\"] pub fn read(\n&self,\n) -> T { self.0 }
                 pub(crate) fn hidden(&self) {} fn private() {} }
             impl<T> Iterator for Key<'_, T> where T: Copy { type Item = T; fn next(&mut self) -> Option<T> { None } }
             #[non_exhaustive] pub enum Kind { /// One.\n A, B { /// Two.\n b: u8 }, C(u16, String) }
             struct Private; impl Private { pub fn f() {} } pub fn unreachable() {}
             #[cfg(test)] impl Key<'_, ()> { pub fn only_in_tests() {} }",
        ),
        (
            "kit",
            "pub trait Store: Send { fn get(&self) -> u8; fn put(&self) {} }
             pin_project! { pub struct Pinned { #[pin] pub at: u8, rest: u8 } }
             impl Store for Arc<u8> { fn get(&self) -> u8 { 0 } } forward!(u8, u16);
             #[macro_export] macro_rules! tests { ($store:expr) => { () }; ($a:ident, $b:ident) => {}; }
             pub const LIMIT: usize = 1; pub fn free<T>(of: T) -> T { of }",
        ),
    ]);
    let expected = r#"Bytes = bytes::Bytes

#[derive(Clone)] struct Key<'a, T>
    T
    (private fields)
    impl<T: Copy> Key<'_, T>
        #[must_use] fn read(&self) -> T
    impl<T> Iterator for Key<'_, T> where T: Copy
        type Item = T

#[non_exhaustive] enum Sort
    A
    B { b: u8 }
    C(u16, String)

trait Store: Send
    fn get(&self) -> u8
    fn put(&self) { provided }
    #[cfg(feature = "kit")] impl Store for Arc<u8>
    also #[cfg(feature = "kit")] kit::Store

#[cfg(feature = "kit")] mod kit

#[cfg(feature = "kit")] const kit::LIMIT: usize

#[cfg(feature = "kit")] struct kit::Pinned
    at: u8
    (private fields)

#[cfg(feature = "kit")] fn free<T>(of: T) -> T [kit::free]

#[cfg(feature = "kit")] macro tests!
    ($store:expr)
    ($a:ident, $b:ident)

for other types
    forward!(u8, u16)
"#;
    let found = api(&sources);
    assert!(found == expected, "{}", difference(expected, &found));
}

#[test]
fn the_difference_shows_changed_lines_under_their_item() {
    let old = "struct A\n    fn a()\n    fn b()\n\nstruct B\n\nstruct C\n    fn c()\n";
    let new = "struct A\n    fn a()\n    fn b(x: u8)\n\nstruct C\n    fn c()\n    fn d()\n";
    assert_eq!(
        difference(old, new),
        "  struct A\n-     fn b()\n+     fn b(x: u8)\n- struct B\n  struct C\n+     fn d()\n"
    );
}
