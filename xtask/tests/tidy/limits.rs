//! Limits stand in one `limits` module a crate, and each has a case of the siege that goes past it, or a reason why none does.

use std::collections::BTreeSet;

use super::claims::defines;
use super::{files, none};

/// The table of limits: crate, limit, and its case or the reason.
const TABLE: &str = "testing/siege/LIMITS.md";
/// Words that mark a constant as a bound.
const BOUNDS: [&str; 4] = ["MAX", "MOST", "LIMIT", "CAPACITY"];

/// A bound in the source of a crate.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Bound {
    package: String,
    name: String,
    /// It stands in the crate's `limits` module.
    gathered: bool,
}

/// The name a line declares as a constant.
fn constant(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let (before, rest) = line.split_once("const ")?;
    let visible = before.is_empty() || (before.starts_with("pub") && before.ends_with(' '));
    let (name, _) = rest.split_once(':')?;
    let named = name
        .chars()
        .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
    (visible && named).then_some(name)
}

/// The bounds of a file, without those of its tests.
fn bounds(path: &str, text: &str) -> Vec<Bound> {
    let Some((package, file)) = path
        .strip_prefix("crates/")
        .and_then(|path| path.split_once("/src/"))
    else {
        return Vec::new();
    };
    // Bounds of tests and of models bound nothing that is shipped.
    let tests = ["test", "models/", "stress/", "fuzz"];
    if !path.ends_with(".rs") || tests.iter().any(|part| file.contains(part)) {
        return Vec::new();
    }
    let shipped = text.split("#[cfg(test)]\nmod ").next().unwrap_or(text);
    let is_bound = |name: &&str| name.split('_').any(|word| BOUNDS.contains(&word));
    shipped
        .lines()
        .filter_map(constant)
        .filter(is_bound)
        .map(|name| Bound {
            package: package.to_owned(),
            name: name.to_owned(),
            gathered: file == "limits.rs",
        })
        .collect()
}

/// The rows of the table: crate, limit, and what stands for it.
fn rows(text: &str) -> Vec<[String; 3]> {
    text.lines()
        .filter_map(|line| {
            let cells: Vec<_> = line
                .trim()
                .strip_prefix('|')?
                .strip_suffix('|')?
                .split('|')
                .collect();
            let [package, name, case] = cells.try_into().ok()?;
            Some([package, name, case].map(|cell| cell.trim().to_owned()))
        })
        .skip(2)
        .collect()
}

/// The names of the cases in the sources of the siege.
fn cases(files: &[(String, String)]) -> BTreeSet<String> {
    files
        .iter()
        .filter(|(path, _)| path.starts_with("testing/siege/src/cases/"))
        .flat_map(|(_, text)| text.split("case!(\"").skip(1))
        .filter_map(|rest| rest.split('"').next())
        .map(str::to_owned)
        .collect()
}

/// What is wrong between bounds, table and cases. `has_test` knows which tests there are, by their file and name.
fn wrong(
    bounds: &[Bound],
    rows: &[[String; 3]],
    cases: &BTreeSet<String>,
    has_test: impl Fn(&str, &str) -> bool,
) -> Vec<String> {
    let mut wrong = Vec::new();
    for bound in bounds {
        let Bound {
            package,
            name,
            gathered,
        } = bound;
        let code = format!("`{name}`");
        let Some([_, _, stands]) = rows.iter().find(|row| row[0] == *package && row[1] == code)
        else {
            wrong.push(format!("{package}: {name} has no row in {TABLE}"));
            continue;
        };
        // A case is named in code, a test as `path::name`, a reason in words.
        let named: Vec<&str> = stands.split('`').skip(1).step_by(2).collect();
        for named in &named {
            let known = match named.rsplit_once("::") {
                Some((file, test)) => has_test(file, test),
                None => cases.contains(*named),
            };
            if !known {
                wrong.push(format!(
                    "{package}: {name} names {named}, which there is not"
                ));
            }
        }
        let says_test = stands
            .split(|c: char| !c.is_alphanumeric())
            .any(|word| matches!(word, "test" | "tests"));
        if says_test && !named.iter().any(|named| named.contains("::")) {
            wrong.push(format!("{package}: {name} has a test without its name"));
        }
        if named.is_empty() && stands.split_whitespace().count() < 3 {
            wrong.push(format!("{package}: {name} has neither a case nor a reason"));
        }
        if !gathered && !stands.starts_with("no limit of clients:") {
            wrong.push(format!(
                "{package}: {name} is not in src/limits.rs; move it, or begin its reason with `no limit of clients:`"
            ));
        }
    }
    for [package, name, _] in rows {
        let name = name.trim_matches('`');
        if !bounds
            .iter()
            .any(|bound| bound.package == *package && bound.name == name)
        {
            wrong.push(format!("{TABLE}: {package} has no {name}"));
        }
    }
    wrong
}

/// Caches and queues with a bound that is written down where they are made.
fn unnamed_bounds(path: &str, text: &str) -> Vec<String> {
    if !bounds_apply(path) {
        return Vec::new();
    }
    let shipped = text.split("#[cfg(test)]\nmod ").next().unwrap_or(text);
    // What each is given is its bound: a number there has no name.
    let makers = [
        "Semaphore::new(",
        "sync_channel(",
        "mpsc::channel(",
        "ArrayQueue::new(",
        "Cache::new(",
    ];
    shipped
        .lines()
        .enumerate()
        .filter(|(_, line)| {
            makers.iter().any(|maker| {
                let given = line.split_once(maker).map(|(_, given)| given);
                // One is no table: a turn, or a hand-over.
                given.is_some_and(|given| {
                    given.starts_with(|c: char| c.is_ascii_digit())
                        && !given.starts_with("1)")
                        && !given.starts_with("0)")
                })
            })
        })
        .map(|(number, line)| format!("{path}:{}: {}", number + 1, line.trim()))
        .collect()
}

fn bounds_apply(path: &str) -> bool {
    let tests = ["/tests", "test", "models/", "stress/", "fuzz"];
    path.starts_with("crates/")
        && path.contains("/src/")
        && path.ends_with(".rs")
        && !tests.iter().any(|part| path.contains(part))
}

#[test]
fn each_limit_has_a_case_of_the_siege_or_a_reason() {
    let files = files();
    let mut all: Vec<_> = files
        .iter()
        .flat_map(|(path, text)| bounds(path, text))
        .collect();
    all.sort();
    assert!(all.len() > 40, "only {} limits were found", all.len());
    let table = files.iter().find(|(path, _)| path == TABLE);
    let rows = table.map_or_else(Vec::new, |(_, text)| rows(text));
    let has_test = |file: &str, name: &str| {
        let source = files.iter().find(|(path, _)| path == file);
        source.is_some_and(|(_, source)| defines(source, name))
    };
    none("limits", &wrong(&all, &rows, &cases(&files), has_test));
}

#[test]
fn each_bounded_table_has_a_named_bound() {
    let found: Vec<String> = files()
        .iter()
        .flat_map(|(path, text)| unnamed_bounds(path, text))
        .collect();
    none("tables whose bound has no name in `limits`", &found);
}

#[test]
fn planted_faults_are_found() {
    let source = "pub const MAX_A: usize = 1;\npub(crate) const MAX_B: u8 = 2;\nconst PLAIN: u8 = 3;\n#[cfg(test)]\nmod tests {\n    const MAX_C: u8 = 1;\n}\n";
    let mut found = bounds("crates/a/src/limits.rs", source);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(bounds("crates/a/src/tests/b.rs", source).is_empty());
    let cases = BTreeSet::from(["flood".to_owned()]);
    let table = "| crate | limit | case |\n|---|---|---|\n| a | `MAX_A` | `flood` |\n| a | `MAX_B` | set by the protocol |\n";
    let has_test = |file: &str, name: &str| (file, name) == ("crates/a/src/b.rs", "holds");
    assert_eq!(
        wrong(&found, &rows(table), &cases, has_test),
        Vec::<String>::new()
    );
    let faults =
        |table: &str, bounds: &[Bound]| wrong(bounds, &rows(table), &cases, has_test).len();
    let tested = table.replace("`flood`", "one past it: `crates/a/src/b.rs::holds`");
    assert_eq!(faults(&tested, &found), 0);
    assert_eq!(
        faults(&tested.replace("holds", "held"), &found),
        1,
        "no such test"
    );
    assert_eq!(
        faults(
            &table.replace("set by the protocol", "a size; unit test past it"),
            &found
        ),
        1,
        "a test without its name"
    );
    assert_eq!(
        faults(&table.replace("`flood`", "`rain`"), &found),
        1,
        "no such case"
    );
    assert_eq!(
        faults(&table.replace("set by the protocol", "-"), &found),
        1,
        "no reason"
    );
    assert_eq!(
        faults(&table.replace("MAX_B", "MAX_Z"), &found),
        2,
        "no row, and a stale one"
    );
    found.extend(bounds(
        "crates/a/src/cache.rs",
        "const ROOM_MAX: usize = 7;\n",
    ));
    let more = format!("{table}| a | `ROOM_MAX` | `flood` |\n");
    assert_eq!(faults(&more, &found), 1, "outside limits.rs");
    let queue =
        "fn f() {\n    let turns = Semaphore::new(64);\n    let one = Semaphore::new(1);\n}\n";
    assert_eq!(unnamed_bounds("crates/a/src/b.rs", queue).len(), 1);
}
