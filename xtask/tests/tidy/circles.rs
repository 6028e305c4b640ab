//! Circles between modules of the engine, of the stores, and of the memory core: there is none but those listed. A module is a file; an
//! import through a re-export counts as one of the module that owns the name.

use std::collections::{BTreeMap, BTreeSet};

use super::layers::{CRATE, ENGINE, STORE, code, is_product};
use super::{files, none};

/// Circles that stay in the engine: a module and a part of its own in a file below it.
const IN_ENGINE: [&[&str]; 1] = [&["upload::writer", "upload::writer::end"]];

/// Circles that stay in the stores, of the same kind.
const IN_STORES: [&[&str]; 2] = [
    &["folder::list", "folder::list::overflow"],
    &["s3", "s3::client", "s3::put", "s3::tags"],
];

/// Circles that stay in the memory core: the owner of some memory and its guards, which give it back when dropped.
const IN_MEMORY_CORE: [&[&str]; 4] = [
    &["block::aging", "block::cache", "block::evict", "block::pin"],
    &["buffer::core", "buffer::write_claim"],
    &[
        "frames::allocator",
        "frames::budget",
        "frames::frame",
        "frames::wait_queue",
    ],
    &[
        "load::flight",
        "load::flights",
        "load::leader",
        "load::reader",
    ],
];

/// Modules by path from the crate's root, which is empty, with their code.
type Modules = BTreeMap<String, String>;

fn module_of(path: &str) -> String {
    let path = path.trim_end_matches(".rs").trim_end_matches("/mod");
    match path {
        "lib" => String::new(),
        path => path.replace('/', "::"),
    }
}

fn join(module: &str, name: &str) -> String {
    match module {
        "" => name.to_owned(),
        module => format!("{module}::{name}"),
    }
}

fn parent(module: &str) -> &str {
    module.rsplit_once("::").map_or("", |(parent, _)| parent)
}

/// Paths in a tree of imports, as `a::{b, c::d}`, without the names they are given.
fn expand(tree: &str) -> Vec<String> {
    let Some((prefix, rest)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap();
        return vec![path.replace(char::is_whitespace, "")];
    };
    let inner = rest.trim_end().strip_suffix('}').unwrap_or(rest);
    let mut paths = Vec::new();
    let (mut depth, mut start) = (0, 0);
    let ends = inner.char_indices().chain([(inner.len(), ',')]);
    for (end, c) in ends {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                let part = inner[start..end].trim();
                let below = (!part.is_empty()).then(|| expand(part));
                paths.extend(below.into_iter().flatten().map(|path| {
                    let prefix = prefix.replace(char::is_whitespace, "");
                    format!("{prefix}{path}")
                }));
                start = end + 1;
            }
            _ => {}
        }
    }
    paths
}

/// Trees that follow `start`, up to a semicolon.
fn trees<'a>(code: &'a str, start: &'a str) -> impl Iterator<Item = &'a str> {
    code.match_indices(start).filter_map(move |(at, _)| {
        let before = &code[..at];
        let other = before.ends_with(|c: char| c.is_alphanumeric() || c == '_')
            // A visibility.
            || before.ends_with("(in ");
        let rest = &code[at + start.len()..];
        (!other).then(|| rest.split(';').next().unwrap())
    })
}

/// Absolute path of `path` as `module` writes it; `None` if it leads to another crate.
fn absolute(module: &str, path: &str, modules: &Modules) -> Option<String> {
    let mut base = module;
    let mut rest = path;
    if let Some(below) = path.strip_prefix("crate::") {
        return Some(below.to_owned());
    }
    if let Some(below) = path.strip_prefix("self::") {
        return Some(join(module, below));
    }
    while let Some(below) = rest.strip_prefix("super::") {
        (base, rest) = (parent(base), below);
    }
    let child = join(module, rest.split("::").next().unwrap());
    (rest.len() < path.len() || modules.contains_key(&child)).then(|| join(base, rest))
}

/// Splits an absolute path into the module and the rest.
fn split<'a>(path: &'a str, modules: &Modules) -> (&'a str, &'a str) {
    let mut end = path.len();
    loop {
        if modules.contains_key(&path[..end]) {
            return (&path[..end], path[end..].trim_start_matches("::"));
        }
        match path[..end].rfind("::") {
            Some(shorter) => end = shorter,
            None => return ("", path),
        }
    }
}

/// Imports by module: whole `use` trees, and paths in the code.
fn imports(modules: &Modules) -> BTreeMap<&str, BTreeSet<String>> {
    let mut owners: BTreeMap<(String, String), String> = BTreeMap::new();
    let mut paths: Vec<(&str, String)> = Vec::new();
    for (module, code) in modules {
        for tree in trees(code, "use ") {
            for path in expand(tree) {
                paths.extend(absolute(module, &path, modules).map(|path| (module.as_str(), path)));
            }
        }
        for prefix in ["crate::", "super::"] {
            let inline = trees(code, prefix).filter(|tree| !tree.starts_with('{'));
            for tree in inline {
                let end = tree.find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
                let path = format!("{prefix}{}", &tree[..end.unwrap_or(tree.len())]);
                paths.extend(absolute(module, &path, modules).map(|path| (module.as_str(), path)));
            }
        }
        let visible = ["pub use ", "pub(crate) use ", "pub(super) use "];
        for tree in visible.into_iter().flat_map(|start| trees(code, start)) {
            for path in expand(tree) {
                let Some(path) = absolute(module, &path, modules) else {
                    continue;
                };
                let (owner, name) = split(&path, modules);
                owners.insert((module.clone(), name.to_owned()), owner.to_owned());
            }
        }
    }
    let mut found: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for (module, path) in paths {
        let (mut to, name) = split(&path, modules);
        let name = name.split("::").next().unwrap().to_owned();
        // A re-export is no import of its own.
        let exported = owners.contains_key(&(module.to_owned(), name.clone()));
        while let Some(owner) = owners.get(&(to.to_owned(), name.clone())) {
            if owner == to {
                break;
            }
            to = owner;
        }
        if to != module && !exported {
            found.entry(module).or_default().insert(to.to_owned());
        }
    }
    found
}

/// Modules reached from `module`.
fn reached<'a>(
    module: &'a str,
    imports: &'a BTreeMap<&str, BTreeSet<String>>,
) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut next = vec![module];
    while let Some(module) = next.pop() {
        for to in imports.get(module).into_iter().flatten() {
            if reached.insert(to.as_str()) {
                next.push(to);
            }
        }
    }
    reached
}

/// Circles, each with its modules in order.
fn circles(modules: &Modules) -> BTreeSet<Vec<String>> {
    let imports = imports(modules);
    let reach: BTreeMap<&str, BTreeSet<&str>> = modules
        .keys()
        .map(|module| (module.as_str(), reached(module, &imports)))
        .collect();
    let mut circles = BTreeSet::new();
    for (module, to) in &reach {
        let both = to.iter().filter(|to| reach[**to].contains(module));
        let circle: Vec<String> = both.map(|name| (*name).to_owned()).collect();
        if circle.len() > 1 {
            circles.insert(circle);
        }
    }
    circles
}

fn only_known_circles(source: &str, known: &[&[&str]]) {
    let files = files();
    let sources = files
        .iter()
        .filter_map(|(path, text)| Some((path.strip_prefix(source)?, text)))
        .filter(|(path, _)| *path == "lib.rs" || (is_product(path) && !path.contains("fuzz")));
    let modules: Modules = sources
        .map(|(path, text)| (module_of(path), code(text)))
        .collect();
    assert!(modules.len() > 50, "only {} modules", modules.len());
    let found = circles(&modules);
    let known: BTreeSet<Vec<String>> = known
        .iter()
        .map(|circle| circle.iter().map(|name| (*name).to_owned()).collect())
        .collect();
    let only = |of: &BTreeSet<Vec<String>>, others: &BTreeSet<Vec<String>>| -> Vec<String> {
        of.difference(others)
            .map(|circle| circle.join(", "))
            .collect()
    };
    none("circles of modules", &only(&found, &known));
    none("circles that are listed and gone", &only(&known, &found));
}

#[test]
fn modules_of_the_engine_import_each_other_in_no_circle() {
    only_known_circles(ENGINE, &IN_ENGINE);
}

#[test]
fn modules_of_the_stores_import_each_other_in_no_circle() {
    only_known_circles(STORE, &IN_STORES);
}

#[test]
fn modules_of_the_memory_core_import_each_other_in_few_circles() {
    only_known_circles(CRATE, &IN_MEMORY_CORE);
}

#[test]
fn planted_circle_is_found() {
    let modules = |sources: &[(&str, &str)]| -> Modules {
        let module = |(path, code): &(&str, &str)| (module_of(path), (*code).to_owned());
        sources.iter().map(module).collect()
    };
    let through_a_re_export = modules(&[
        ("lib.rs", "pub use read::Body;"),
        ("read/mod.rs", "mod body;\npub(crate) use body::Body;"),
        ("read/body.rs", "use crate::{bucket::Bucket, stats};"),
        ("bucket.rs", "fn f(body: &crate::read::Body) {}"),
        ("stats.rs", "use std::fmt;"),
    ]);
    let circle = vec!["bucket".to_owned(), "read::body".to_owned()];
    assert_eq!(circles(&through_a_re_export), BTreeSet::from([circle]));
    let one_way = modules(&[
        ("lib.rs", ""),
        ("read/mod.rs", "use self::body::Body;"),
        ("read/body.rs", "use super::plan;"),
        ("read/plan.rs", "use crate::stats::{Counters, Stats};"),
        ("stats.rs", ""),
    ]);
    assert!(circles(&one_way).is_empty());
}
