//! The state that each version of walrelay has left behind, for the tests of the code that reads and writes it.
//!
//! In: the name of a file below `tests/golden/state/VERSION`. Out: its text in each version that has it, oldest first.
//!
//! Invariant: a file of a released version is never changed, since programs of that version have written what it shows. A version has a file of its
//! own only if it writes another form than the version before.

use std::fs;
use std::path::{Path, PathBuf};

/// The state as one version wrote it.
pub(crate) struct Golden {
    /// The version, as `0.2`.
    pub(crate) version: String,
    pub(crate) path: PathBuf,
    pub(crate) text: String,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/state")
}

/// The versions that have state, oldest first.
fn versions() -> Vec<String> {
    let entries = fs::read_dir(folder()).unwrap().flatten().filter(|entry| entry.path().is_dir());
    let mut versions: Vec<String> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    versions.sort_by_key(|version| version.split('.').map(|part| part.parse().unwrap()).collect::<Vec<u32>>());
    versions
}

/// The file `name` of each version that has it.
#[track_caller]
pub(crate) fn golden(name: &str) -> Vec<Golden> {
    let of = |version: String| {
        let path = folder().join(&version).join(name);
        Some(Golden { text: fs::read_to_string(&path).ok()?, path, version })
    };
    let found: Vec<Golden> = versions().into_iter().filter_map(of).collect();
    assert!(!found.is_empty(), "no version has left {name}");
    found
}

/// The names of the files in `folder` of each version.
pub(crate) fn golden_names(below: &str) -> Vec<String> {
    let entries = |version: String| fs::read_dir(folder().join(version).join(below)).into_iter().flatten().flatten();
    let name = |entry: fs::DirEntry| format!("{below}/{}", entry.file_name().to_string_lossy());
    let mut names: Vec<String> = versions().into_iter().flat_map(entries).map(name).collect();
    names.sort();
    names.dedup();
    names
}

/// Compares what the present program writes with the newest file of this name. `WALRELAY_BLESS=1` writes it for the present version, unless
/// that has one.
#[track_caller]
pub(crate) fn assert_written(name: &str, text: &str) {
    let version = concat!(env!("CARGO_PKG_VERSION_MAJOR"), ".", env!("CARGO_PKG_VERSION_MINOR"));
    let own = folder().join(version).join(name);
    if std::env::var_os("WALRELAY_BLESS").is_some() && !own.exists() {
        fs::create_dir_all(own.parent().unwrap()).unwrap();
        fs::write(&own, text).unwrap();
    }
    let newest = golden(name).pop().unwrap();
    assert!(
        newest.text == text,
        "{name} is not written as version {0} writes it. Once a version is released, its file stays as it is, and the program goes on to read \
         it; the new form is another file, of version {version}\nversion {0}:\n{1}\nnow:\n{text}",
        newest.version,
        newest.text
    );
}
