//! Layers inside the memory core and inside folders of the engine: each module imports only from those before it, so
//! there is no circle between them. Folders of the engine that are apart.

use super::{files, none};

/// Modules of `bywash-mem` in layers, lowest first. Modules of one layer import nothing from each other, but for `error` from `key`.
const LAYERS: [&[&str]; 8] = [
    &["planted", "sync", "limits", "cpu_prefetch"],
    &["error", "key"],
    &["frames"],
    &["buffer"],
    &["block"],
    &["load"],
    &["pool", "gate", "names"],
    // The root, which re-exports: product code imports from the module that owns a name.
    &[],
];

pub(super) const CRATE: &str = "crates/bywash-mem/src/";

fn layer(module: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&module))
}

/// Module of a file by its path below `src`: its folder, or its name without one.
fn module(path: &str) -> &str {
    let first = path.split('/').next().unwrap();
    first.strip_suffix(".rs").unwrap_or(first)
}

/// Product code of a file, without comments and without its unit tests.
pub(super) fn code(text: &str) -> String {
    let lines = text
        .lines()
        .take_while(|line| !line.starts_with("#[cfg(all(test") && !line.starts_with("#[cfg(test"));
    let code: Vec<&str> = lines.map(|line| line.split("//").next().unwrap()).collect();
    code.join("\n")
}

/// First names after each `prefix`, those in braces too.
fn imports(code: &str, prefix: &str) -> Vec<String> {
    let name = |text: &str| -> String {
        text.trim_start()
            .chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect()
    };
    let mut found = Vec::new();
    for (at, prefix) in code.match_indices(prefix) {
        if code[..at].ends_with(['$', ':']) || code[..at].ends_with(|c: char| c.is_alphanumeric()) {
            continue;
        }
        let rest = &code[at + prefix.len()..];
        let Some(group) = rest.strip_prefix('{') else {
            found.push(name(rest));
            continue;
        };
        let mut depth = 0;
        let mut start = 0;
        for (end, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth > 0 => depth -= 1,
                ',' | '}' if depth == 0 => {
                    found.push(name(&group[start..end]));
                    start = end + 1;
                    if c == '}' {
                        break;
                    }
                }
                _ => {}
            }
        }
    }
    found.retain(|name| !name.is_empty());
    found
}

/// Imports of a file that do not lead to a lower layer or to its own module.
fn wrong_imports(path: &str, text: &str) -> Vec<String> {
    let from = module(path);
    let Some(own) = layer(from) else {
        return vec![format!("{path}: {from} is in no layer")];
    };
    let code = code(text);
    let mut wrong: Vec<String> = imports(&code, "crate::")
        .into_iter()
        .filter(|to| to != from)
        .filter_map(|to| match layer(&to) {
            None => Some(format!(
                "{path}: {to} is in no layer; name the module that owns it"
            )),
            Some(layer) if layer >= own => Some(format!("{path}: {from} -> {to}")),
            Some(_) => None,
        })
        .collect();
    // From a file in a folder `super::super` is the crate's root; deeper folders may use it within their layer.
    if path.matches('/').count() == 1 && code.contains("super::super::") {
        wrong.push(format!("{path}: super::super leaves the layer"));
    }
    // An inline module, whose lines are indented, may name the module it is in.
    let outer = |line: &str| !line.starts_with(' ') && line.contains("super::");
    if path.matches('/').count() == 0 && code.lines().any(outer) {
        wrong.push(format!("{path}: super leaves the layer"));
    }
    wrong
}

pub(super) fn is_product(path: &str) -> bool {
    let tests = ["tests.rs", "tests/", "models/", "stress/"];
    path != "lib.rs" && !tests.iter().any(|part| path.contains(part))
}

#[test]
fn layers_of_the_memory_core_import_only_lower_ones() {
    let files = files();
    let sources: Vec<(&str, &str)> = files
        .iter()
        .filter_map(|(path, text)| Some((path.strip_prefix(CRATE)?, text.as_str())))
        .filter(|(path, _)| is_product(path))
        .collect();
    assert!(sources.len() > 30, "only {} sources", sources.len());
    let wrong: Vec<String> = sources
        .iter()
        .flat_map(|(path, text)| wrong_imports(path, text))
        .collect();
    none("imports that lead up or out of the layers", &wrong);
    for module in LAYERS.concat() {
        assert!(
            sources.iter().any(|(path, _)| self::module(path) == module),
            "{module} has a layer and no file"
        );
    }
}

pub(super) const ENGINE: &str = "crates/bywash/src/";
pub(super) const STORE: &str = "crates/bywash-store/src/";
const READ: &str = "crates/bywash/src/read/";

/// What parts of the engine, by the beginning of their paths, must not import.
const APART: [(&str, &[&str]); 3] = [
    ("read/", &["upload", "write", "list", "cache_admin"]),
    ("upload/", &["read", "list", "cache_admin"]),
    (
        "versions",
        &[
            "read",
            "upload",
            "write",
            "bucket",
            "engine",
            "list",
            "cache_admin",
        ],
    ),
];

fn engine_sources(files: &[(String, String)]) -> Vec<(&str, String)> {
    let sources = files
        .iter()
        .filter_map(|(path, text)| Some((path.strip_prefix(ENGINE)?, code(text))));
    let sources: Vec<_> = sources.filter(|(path, _)| is_product(path)).collect();
    assert!(sources.len() > 80, "only {} sources", sources.len());
    sources
}

fn imports_across(path: &str, code: &str) -> Vec<String> {
    let apart = APART.iter().filter(|(part, _)| path.starts_with(part));
    let apart: Vec<&str> = apart.flat_map(|(_, apart)| *apart).copied().collect();
    let found = imports(code, "crate::").into_iter();
    let found = found.filter(|to| apart.contains(&to.as_str()));
    found.map(|to| format!("{path} -> {to}")).collect()
}

#[test]
fn folders_of_the_engine_are_apart() {
    let files = files();
    let sources = engine_sources(&files);
    for (part, _) in APART {
        assert!(
            sources.iter().any(|(path, _)| path.starts_with(part)),
            "{part} has no file"
        );
    }
    let wrong: Vec<String> = sources
        .iter()
        .flat_map(|(path, code)| imports_across(path, code))
        .collect();
    none("imports between parts that are apart", &wrong);
}

/// Folders of the engine in layers. Each module imports only from those before it.
const ORDERED: [(&str, &[&str]); 2] = [
    (
        READ,
        &[
            // What buckets keep.
            "abandoned",
            "single_flight",
            "readahead",
            "sequential",
            "latencies",
            "loans",
            "foreign",
            "demand",
            "resolution",
            // What reads them.
            "ownership",
            "shared_error",
            "ranged",
            "digest_check",
            "hedge",
            "peer_fetch",
            "hedged_fetch",
            "fetch",
            "range_fetch",
            "plan",
            "resolve",
            "stale",
            "serve",
            "written",
            "body",
            "copy_buffer",
            "pieces",
            "copied",
            "body_check",
            "resident",
            "get",
            "ranges",
            "lease",
            "download",
            "to_file",
            // Only declares and exports the others.
            "mod",
        ],
    ),
    (
        STORE,
        &[
            "planted",
            "limits",
            "response",
            "digest",
            "error",
            "error_class",
            "time",
            "staged_file",
            "object_tags",
            // The interface of an origin, then what origins share, then the origins.
            "client_etag",
            "stated_headers",
            "odd_keys",
            "omissions",
            "numbered",
            "session",
            "page",
            "delete_condition",
            "capabilities",
            "interface",
            "write_mark",
            "health",
            "layer",
            "metered",
            "read_only",
            "part_stream",
            "parts",
            "tag_document",
            "odd_pages",
            "object_head",
            "odd_objects",
            "options",
            "network",
            "http_client",
            "multipart_xml",
            "xml_uploads",
            "whole_put",
            "access",
            "cloud",
            "web_url",
            "wrapped",
            "memory",
            "folder",
            "s3",
            "gcs",
            "azure",
            "signed",
            "http",
            "url",
            // Only declares and exports the others.
            "lib",
        ],
    ),
];

fn imports_later(folder: &str, path: &str, code: &str) -> Vec<String> {
    let order = ORDERED.iter().find(|(name, _)| *name == folder).unwrap().1;
    let own = module(path);
    let place = |name: &str| order.iter().position(|module| *module == name);
    let (_, within) = folder.split_once("/src/").unwrap();
    let mut names = imports(code, &format!("crate::{}", within.replace('/', "::")));
    let is_child = match path.split_once('/') {
        None => !["mod", "lib"].contains(&own),
        Some((_, file)) => file == "mod.rs",
    };
    if is_child {
        names.extend(imports(code, "super::"));
    }
    let names = names.into_iter().filter(|name| name != own);
    let later = names.filter(|name| place(name).is_none() || place(name) >= place(own));
    later
        .map(|name| format!("{folder}{path} -> {name}"))
        .collect()
}

#[test]
fn modules_of_ordered_folders_import_only_earlier_ones() {
    let files = files();
    for (folder, order) in ORDERED {
        let in_folder: Vec<_> = files
            .iter()
            .filter_map(|(path, text)| Some((path.strip_prefix(folder)?, code(text))))
            .filter(|(path, _)| *path == "lib.rs" || is_product(path))
            .filter(|(path, _)| !path.contains("fuzz"))
            .collect();
        for (path, _) in &in_folder {
            assert!(order.contains(&module(path)), "{path} has no place");
        }
        for name in order {
            let found = in_folder.iter().any(|(path, _)| module(path) == *name);
            assert!(found, "{folder}{name} has no file");
        }
        let wrong: Vec<String> = in_folder
            .iter()
            .flat_map(|(path, code)| imports_later(folder, path, code))
            .collect();
        none("imports of later modules", &wrong);
    }
}

const GATEWAY: &str = "crates/bywash-gateway/src/";

/// Modules of the S3 endpoint. What is neither of them nor of `gcs` is for both.
const S3_ENDPOINT: [&str; 15] = [
    "admission",
    "bucket_rules",
    "chunked",
    "cors",
    "fast",
    "gateway",
    "host",
    "middleware",
    "ops",
    "request_xml",
    "response",
    "routes",
    "serve",
    "signature",
    "verify",
];

/// Imports of one endpoint by the other.
fn imports_of_the_other_endpoint(path: &str, code: &str) -> Vec<String> {
    let of_gcs = module(path) == "gcs";
    let other = |to: &String| match of_gcs {
        true => S3_ENDPOINT.contains(&to.as_str()),
        // Entry points of fuzzers are of both.
        false => to == "gcs" && module(path) != "fuzzing",
    };
    let found = imports(code, "crate::").into_iter().filter(other);
    found.map(|to| format!("{path} -> {to}")).collect()
}

#[test]
fn endpoints_of_the_gateway_are_apart() {
    let files = files();
    let sources = files
        .iter()
        .filter_map(|(path, text)| Some((path.strip_prefix(GATEWAY)?, code(text))));
    // The fuzzers call into both.
    let is_of_an_endpoint = |path: &str| is_product(path) && path != "fuzzing.rs";
    let sources: Vec<_> = sources
        .filter(|(path, _)| is_of_an_endpoint(path))
        .collect();
    for name in S3_ENDPOINT.iter().chain(&["gcs"]) {
        let found = sources.iter().any(|(path, _)| module(path) == *name);
        assert!(found, "{name} has no file");
    }
    let wrong = sources
        .iter()
        .flat_map(|(path, code)| imports_of_the_other_endpoint(path, code));
    none("imports of the other endpoint", &wrong.collect::<Vec<_>>());
    let planted = |path: &str, text: &str| imports_of_the_other_endpoint(path, text).len();
    assert_eq!(planted("gcs/read.rs", "use crate::ops::read::head;"), 1);
    assert_eq!(planted("gcs/read.rs", "use crate::{keys, ops};"), 1);
    assert_eq!(planted("ops/read.rs", "use crate::gcs::GcsConfig;"), 1);
    assert_eq!(planted("gcs/read.rs", "use crate::keys::path_of;"), 0);
}

#[test]
fn planted_imports_of_the_engine_are_found() {
    let across = |path: &str, text: &str| imports_across(path, text).len();
    assert_eq!(across("read/body.rs", "use crate::upload::Upload;"), 1);
    assert_eq!(
        across("read/body.rs", "use crate::shared::BucketShared;"),
        0
    );
    assert_eq!(across("upload/mod.rs", "use crate::{limits, read};"), 1);
    assert_eq!(across("versions/table.rs", "use crate::read::get;"), 1);
    let later = |path: &str, text: &str| imports_later(READ, path, text).len();
    assert_eq!(later("fetch.rs", "use super::ranged::get;"), 0);
    assert_eq!(later("fetch.rs", "use super::{ranged, body};"), 1);
    assert_eq!(later("fetch.rs", "use super::nowhere;"), 1);
    assert_eq!(later("download/job.rs", "use super::close;"), 0);
    assert_eq!(later("resolve/query.rs", "use crate::read::body::Body;"), 1);
    let later = |path: &str, text: &str| imports_later(STORE, path, text).len();
    assert_eq!(later("s3/mod.rs", "use super::http_client::HttpClient;"), 0);
    assert_eq!(
        later("s3/client.rs", "use super::url::OriginUrl;"),
        0,
        "its own"
    );
    assert_eq!(later("s3/mod.rs", "use super::url::OriginUrl;"), 1);
    assert_eq!(later("interface.rs", "use super::s3::S3Store;"), 1);
    assert_eq!(later("s3/client.rs", "use crate::Origin;"), 1, "the owner");
}

#[test]
fn planted_imports_are_found() {
    let wrong = |path: &str, text: &str| wrong_imports(path, text).len();
    assert_eq!(
        wrong(
            "block/cache.rs",
            "use crate::frames::Frame;\nuse crate::sync::Mutex;"
        ),
        0
    );
    assert_eq!(
        wrong(
            "block/cache.rs",
            "use crate::block::word::Word; // crate::load"
        ),
        0
    );
    assert_eq!(
        wrong("frames/frame.rs", "use crate::block::Pin;"),
        1,
        "upward"
    );
    assert_eq!(
        wrong("frames/frame.rs", "fn f(pool: &crate::pool::BlockPool) {}"),
        1,
        "in code"
    );
    assert_eq!(
        wrong(
            "gate.rs",
            "use crate::{names::Names, sync::{Mutex, Event}};"
        ),
        1,
        "in braces"
    );
    assert_eq!(
        wrong("block/cache.rs", "use crate::MIN_FRAME;"),
        1,
        "through the root"
    );
    assert_eq!(wrong("elsewhere.rs", ""), 1, "a module without a layer");
    assert_eq!(wrong("gate.rs", "use super::names::Names;"), 1, "by super");
    assert_eq!(
        wrong("block/cache.rs", "use super::super::load;"),
        1,
        "by super"
    );
    let tested = "use crate::sync::Mutex;\n#[cfg(all(test, loom))]\nmod tests {\n    use crate::pool::BlockPool;\n}";
    assert_eq!(
        wrong("frames/frame.rs", tested),
        0,
        "unit tests are no product"
    );
}
