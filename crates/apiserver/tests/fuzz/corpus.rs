//! Inputs that are kept: one of each sort, and every one that once did harm.

use std::path::Path;

use crate::input::Input;

/// All of them, by file name.
pub fn load() -> Vec<(String, Input)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fuzz-corpus/apiserver");
    let mut all: Vec<(String, Input)> = std::fs::read_dir(&dir)
        .unwrap_or_else(|error| panic!("{}: {error}", dir.display()))
        .map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().to_string_lossy().into_owned();
            let file = std::fs::read(entry.path()).unwrap();
            let input = Input::from_file(&file).unwrap_or_else(|| panic!("{name} is no input"));
            (name, input)
        })
        .collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}
