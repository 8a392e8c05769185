//! Checks that the files of each crate below `src`, as named by its `mod` declarations, do not
//! depend on each other in circles.
//!
//! - A file is a node; a module written inside a file belongs to that file.
//! - An arrow points from the file that names an item to the file that defines it, for names in a
//!   `use` and in the code, with `crate::`, `super::`, `self::`, or through a module that was
//!   imported or declared. Re-exports are resolved to the file that defines the item.
//! - A `mod` declaration is not an arrow, and there are no arrows between a file and its ancestors
//!   (the modules that contain it): for Rust a module and its contents are one unit, whose parts
//!   see each other's private items.
//! - Such units are also free of circles among siblings: the modules of one directory, each with
//!   its contents.
//! - Tests are excluded: code after a `#[cfg(test)]` at the start of a line, and its files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The names of the modules from the root of the crate to one.
type Place = Vec<String>;

/// Known circles, each with its files below the root and its reason. A repaired circle is removed
/// from the list; no new one may be added.
const KNOWN: [&[&str]; 0] = [];

/// Folders of the crates.
const FOLDERS: [&str; 5] = ["core", "system", "products", "program", "laboratory"];

/// Modules of a crate.
#[derive(Default)]
struct Modules {
    /// Each module with a file of its own, and the code of that file.
    files: BTreeMap<Place, (PathBuf, String)>,
    /// Items that a module imports from another one under its own name, and may re-export.
    taken: BTreeMap<(Place, String), (Place, String)>,
}

impl Modules {
    /// Reads all modules below the root of a crate.
    fn read(root: &Path) -> Self {
        let mut modules = Self::default();
        modules.add(Vec::new(), root.to_owned());
        let places: Vec<Place> = modules.files.keys().cloned().collect();
        for place in places {
            let code = modules.files[&place].1.clone();
            for (path, name) in uses(&code) {
                if let Some((from, Some(item))) = modules.resolve(&place, &path) {
                    modules.taken.insert((place.clone(), name), (from, item));
                }
            }
        }
        modules
    }

    fn add(&mut self, place: Place, file: PathBuf) {
        let text = std::fs::read_to_string(&file).expect("a source file");
        let code = code(&text);
        let directory = file.parent().expect("a file is in a directory");
        let stem = file.file_stem().expect("a file has a name").to_string_lossy();
        let below = match stem.as_ref() {
            "lib" | "main" | "mod" => directory.to_owned(),
            name => directory.join(name),
        };
        for name in declared(&code) {
            let candidates = [below.join(format!("{name}.rs")), below.join(&name).join("mod.rs")];
            if let Some(file) = candidates.into_iter().find(|file| file.is_file()) {
                let mut inner = place.clone();
                inner.push(name);
                self.add(inner, file);
            }
        }
        self.files.insert(place, (file, code));
    }

    /// Returns the module and the item in it that a path in the module `place` names; `None` if the
    /// path is outside the crate.
    fn resolve(&self, place: &[String], path: &[String]) -> Option<(Place, Option<String>)> {
        let mut base = place.to_owned();
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => {
                base.clear();
                rest = &path[1..];
            }
            "self" => rest = &path[1..],
            "super" => {
                while rest.first().is_some_and(|part| part == "super") {
                    base.pop()?;
                    rest = &rest[1..];
                }
            }
            first => {
                base.push(first.to_owned());
                if self.files.contains_key(&base) {
                    rest = &path[1..];
                } else {
                    let name = (place.to_owned(), first.to_owned());
                    let (from, item) = self.taken.get(&name)?;
                    base = from.clone();
                    base.push(item.clone());
                    if !self.files.contains_key(&base) {
                        return None;
                    }
                    rest = &path[1..];
                }
            }
        }
        while let Some((first, others)) = rest.split_first() {
            base.push(first.clone());
            if !self.files.contains_key(&base) {
                base.pop();
                return Some((base, Some(first.clone())));
            }
            rest = others;
        }
        // The path names a module, which is an item of its parent.
        let name = base.pop()?;
        Some((base, Some(name)))
    }

    /// Returns the module that defines an item, following re-exports.
    fn origin(&self, place: &[String], item: &str) -> Place {
        let mut at = (place.to_owned(), item.to_owned());
        let mut seen = BTreeSet::new();
        while let Some(next) = self.taken.get(&at)
            && seen.insert(at.clone())
        {
            at = next.clone();
        }
        let (mut place, item) = at;
        place.push(item);
        if !self.files.contains_key(&place) {
            place.pop();
        }
        place
    }

    /// Returns the modules whose items each module names, with the names.
    fn arrows(&self) -> BTreeMap<Place, BTreeMap<Place, BTreeSet<String>>> {
        let mut arrows: BTreeMap<Place, BTreeMap<Place, BTreeSet<String>>> = BTreeMap::new();
        for (place, (_, code)) in &self.files {
            let of_uses = uses(code).into_iter().map(|(path, _)| path);
            for path in of_uses.chain(paths(code)) {
                let Some((base, item)) = self.resolve(place, &path) else {
                    continue;
                };
                let item = item.unwrap_or_default();
                let to = self.origin(&base, &item);
                if to.starts_with(place) || place.starts_with(&to) {
                    continue;
                }
                let names = arrows.entry(place.clone()).or_default().entry(to).or_default();
                names.insert(item);
            }
        }
        arrows
    }
}

/// Returns a source without comments and without the text after the first `#[cfg(test)]` of an
/// inline module.
fn code(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let mut code = String::new();
    let mut at = 0;
    while at < lines.len() {
        if lines[at] == "#[cfg(test)]" {
            let tested = lines.get(at + 1).copied().unwrap_or_default();
            if tested.ends_with('{') && tested.contains("mod ") {
                break;
            }
            // An item of one line, such as the declaration of a module of tests.
            at += 2;
            continue;
        }
        code += lines[at].split("//").next().unwrap_or_default();
        code.push('\n');
        at += 1;
    }
    code
}

/// Returns the modules that a source declares without their contents.
fn declared(code: &str) -> Vec<String> {
    let mut names = Vec::new();
    for line in code.lines() {
        let Some(line) = line.trim().strip_suffix(';') else {
            continue;
        };
        let mut words = line.split_whitespace();
        let mut word = words.next();
        if word.is_some_and(|word| word.starts_with("pub")) {
            word = words.next();
        }
        if let (Some("mod"), Some(name), None) = (word, words.next(), words.next()) {
            names.push(name.to_owned());
        }
    }
    names
}

/// Returns the paths in the `use` declarations of a source, each with its local name.
fn uses(code: &str) -> Vec<(Vec<String>, String)> {
    let mut found = Vec::new();
    let mut lines = code.lines();
    while let Some(line) = lines.next() {
        let words = line.trim_start();
        let words = match words.strip_prefix("pub") {
            Some(rest) => rest.split_once("use ").map_or("", |(before, _)| {
                let is_use = before.trim().is_empty() || before.trim().starts_with('(');
                if is_use {
                    &words[words.len() - rest.len() + before.len()..]
                } else {
                    ""
                }
            }),
            None => words,
        };
        let Some(tree) = words.strip_prefix("use ") else {
            continue;
        };
        let mut tree = tree.to_owned();
        while !tree.contains(';') {
            let Some(line) = lines.next() else { break };
            tree += line;
        }
        let tree = tree.split(';').next().unwrap_or_default();
        expand(&[], tree, &mut found);
    }
    found
}

/// Expands a tree of a `use` declaration to its single paths.
fn expand(prefix: &[String], tree: &str, found: &mut Vec<(Vec<String>, String)>) {
    let mut depth = 0;
    let mut parts = vec![String::new()];
    for letter in tree.chars() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(String::new());
                continue;
            }
            _ => {}
        }
        parts.last_mut().expect("there is one").push(letter);
    }
    for part in parts
        .iter()
        .map(|part| part.trim())
        .filter(|part| !part.is_empty())
    {
        let split = |path: &str| -> Vec<String> {
            let names = path.split("::").map(str::trim).filter(|name| !name.is_empty());
            prefix.iter().cloned().chain(names.map(str::to_owned)).collect()
        };
        if let Some((before, inside)) = part.split_once('{') {
            let inside = inside.rsplit_once('}').map_or(inside, |(inside, _)| inside);
            expand(&split(before), inside, found);
            continue;
        }
        let (path, name) = match part.split_once(" as ") {
            Some((path, name)) => (path, Some(name.trim().to_owned())),
            None => (part, None),
        };
        let mut path = split(path);
        if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
            path.pop();
        }
        let name = name.unwrap_or_else(|| path.last().cloned().unwrap_or_default());
        found.push((path, name));
    }
}

/// Returns all paths of two or more names in the code, including `use` declarations.
fn paths(code: &str) -> Vec<Vec<String>> {
    let is_name = |letter: char| letter.is_alphanumeric() || letter == '_';
    let mut found = Vec::new();
    for word in code.split(|letter: char| !is_name(letter) && letter != ':') {
        let names: Vec<String> = word.split("::").map(str::to_owned).collect();
        let is_path = names.len() > 1 && names.iter().all(|name| !name.is_empty() && !name.contains(':'));
        if is_path {
            found.push(names);
        }
    }
    found
}

/// Returns the strongly connected components of more than one node.
fn circles<N: Ord + Clone, E>(arrows: &BTreeMap<N, BTreeMap<N, E>>) -> BTreeSet<BTreeSet<N>> {
    let reached = |from: &N| -> BTreeSet<N> {
        let mut seen = BTreeSet::new();
        let mut open = vec![from.clone()];
        while let Some(node) = open.pop() {
            for next in arrows.get(&node).into_iter().flat_map(BTreeMap::keys) {
                if seen.insert(next.clone()) {
                    open.push(next.clone());
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&N, BTreeSet<N>> = arrows.keys().map(|node| (node, reached(node))).collect();
    let is_mutual = |node: &N, other: &N| reached.get(other).is_some_and(|back| back.contains(node));
    let groups = reached
        .iter()
        .filter(|(node, seen)| seen.contains(**node))
        .map(|(node, seen)| {
            let others = seen.iter().filter(|other| is_mutual(node, other));
            others.cloned().collect::<BTreeSet<N>>()
        });
    groups.filter(|group| group.len() > 1).collect()
}

/// Returns the circles of sibling modules, each with its contents, and the arrows that cause them.
fn circles_of_units(
    arrows: &BTreeMap<Place, BTreeMap<Place, BTreeSet<String>>>,
) -> Vec<(BTreeSet<Place>, Vec<String>)> {
    let mut levels: BTreeMap<Place, BTreeMap<Place, BTreeMap<Place, Vec<String>>>> = BTreeMap::new();
    for (from, all) in arrows {
        for (to, names) in all {
            let shared = from
                .iter()
                .zip(to)
                .take_while(|(own, other)| own == other)
                .count();
            let (parent, one, other) = (&from[..shared], &from[..=shared], &to[..=shared]);
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let line = format!("{} -> {}: {}", from.join("::"), to.join("::"), names.join(", "));
            let level = levels.entry(parent.to_owned()).or_default();
            let arrow = level.entry(one.to_owned()).or_default().entry(other.to_owned());
            arrow.or_default().push(line);
        }
    }
    let mut found = Vec::new();
    for level in levels.values() {
        for circle in circles(level) {
            let within = circle.iter().flat_map(|from| {
                let to = level[from].iter().filter(|(to, _)| circle.contains(*to));
                to.flat_map(|(_, lines)| lines.clone())
            });
            let lines = within.collect();
            found.push((circle, lines));
        }
    }
    found
}

#[test]
fn no_files_name_each_other_in_a_circle() {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut unknown = Vec::new();
    let mut known: BTreeSet<BTreeSet<String>> = BTreeSet::new();
    let crates = FOLDERS
        .iter()
        .flat_map(|folder| std::fs::read_dir(all.join(folder)).expect("a folder of crates"));
    for entry in crates {
        let source = entry.expect("an entry").path().join("src");
        let roots = ["lib.rs", "main.rs"].map(|root| source.join(root));
        for root in roots.iter().filter(|root| root.is_file()) {
            let modules = Modules::read(root);
            assert!(!modules.files.is_empty());
            let arrows = modules.arrows();
            for (circle, names) in circles_of_units(&arrows) {
                let units: Vec<String> = circle.iter().map(|place| place.join("::")).collect();
                let lines = names
                    .into_iter()
                    .map(|line| format!("\n  {line}"))
                    .collect::<String>();
                unknown.push(format!(
                    "{}: a circle of modules {}:{lines}",
                    root.display(),
                    units.join(", ")
                ));
            }
            let name = |place: &Place| {
                let file = &modules.files[place].0;
                let below = file.strip_prefix(&all).expect("it is below the root");
                below.display().to_string()
            };
            for circle in circles(&arrows) {
                let files: BTreeSet<String> = circle.iter().map(name).collect();
                if KNOWN.iter().any(|known| files.iter().eq(known.iter())) {
                    known.insert(files);
                    continue;
                }
                let mut lines = format!("a circle of {} files:", files.len());
                for (from, to, names) in circle.iter().flat_map(|from| {
                    let within = arrows[from].iter().filter(|(to, _)| circle.contains(*to));
                    within.map(move |(to, names)| (from, to, names))
                }) {
                    let names: Vec<&str> = names.iter().map(String::as_str).collect();
                    lines += &format!("\n  {} -> {}: {}", name(from), name(to), names.join(", "));
                }
                unknown.push(lines);
            }
        }
    }
    assert!(
        unknown.is_empty(),
        "{}\nmove what both need into a file below both",
        unknown.join("\n")
    );
    assert_eq!(
        known.len(),
        KNOWN.len(),
        "a circle is mended: take it out of KNOWN"
    );
}

#[test]
fn a_circle_is_seen_through_what_is_passed_on() {
    let directory = tempfile::tempdir().expect("a directory");
    let write = |name: &str, text: &str| {
        std::fs::write(directory.path().join(name), text).expect("a file");
    };
    write("lib.rs", "mod a;\nmod b;\nmod c;\npub(crate) use b::Thing;\n");
    write(
        "a.rs",
        "use crate::{Thing, c};\npub(crate) struct Own(Thing);\nfn f() { c::g() }\n",
    );
    write("b.rs", "pub(crate) struct Thing;\nfn f(_: super::a::Own) {}\n");
    write(
        "c.rs",
        "pub(crate) fn g() {}\n#[cfg(test)]\nmod tests {\n    use crate::a::Own;\n}\n",
    );
    let arrows = Modules::read(&directory.path().join("lib.rs")).arrows();
    let place = |name: &str| vec![name.to_owned()];
    assert!(arrows[&place("a")].contains_key(&place("c")));
    let circle = BTreeSet::from([place("a"), place("b")]);
    assert_eq!(circles(&arrows), BTreeSet::from([circle]));
}

#[test]
fn a_circle_is_seen_through_a_module_and_what_lies_below_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let write = |name: &str, text: &str| {
        std::fs::write(directory.path().join(name), text).expect("a file");
    };
    std::fs::create_dir(directory.path().join("control")).expect("a directory");
    write("lib.rs", "mod control;\nmod model;\n");
    write("control/mod.rs", "mod queue;\npub(crate) struct Sample;\n");
    write(
        "control/queue.rs",
        "use crate::model::GROWTH;\nfn f(_: u8) { f(GROWTH) }\n",
    );
    write(
        "model.rs",
        "use crate::control::Sample;\npub(crate) const GROWTH: u8 = 2;\nfn f(_: Sample) {}\n",
    );
    let arrows = Modules::read(&directory.path().join("lib.rs")).arrows();
    assert_eq!(circles(&arrows), BTreeSet::new(), "no circle of files");
    let found = circles_of_units(&arrows);
    let units = BTreeSet::from(["control", "model"].map(|name| vec![name.to_owned()]));
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].0, units);
}
