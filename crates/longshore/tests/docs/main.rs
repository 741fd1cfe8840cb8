//! The documentation does as it says.
//!
//! Every fenced block of a page says behind its language how it is checked, or why it is not (`docs/testing.md` has the
//! words). Commands of blocks that say `console run` are run, and what they print is compared.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

#[path = "../common/mod.rs"]
mod common;
mod compare;
mod page;
mod session;

use std::{collections::BTreeMap, path::Path, process::Command, time::Instant};

use longshore_testing::{Need, need, report};
use page::{Block, Mark, blocks, pages, root};
use session::Session;

/// Pages that commands of the documentation are expected on; an edit shall not take them all away unseen.
const COVERED: [&str; 6] = [
    "README.md",
    "docs/attaching.md",
    "docs/coming-from-tutorials.md",
    "docs/command-line.md",
    "docs/operating.md",
    "docs/write-your-own-provisioner.md",
];

fn all_blocks() -> Vec<Block> {
    let root = root();
    pages(&root).iter().flat_map(|page| blocks(&root, page)).collect()
}

/// The page that this one translates.
fn original(page: &str) -> Option<String> {
    page.strip_suffix(".zh-CN.md").map(|stem| format!("{stem}.md"))
}

#[test]
fn every_block_says_how_it_is_checked() {
    let mut count: BTreeMap<Mark, usize> = BTreeMap::new();
    let mut wrong = Vec::new();
    for block in all_blocks() {
        match block.mark() {
            Ok(mark) => *count.entry(mark).or_default() += 1,
            Err(error) => wrong.push(error),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for (mark, count) in count {
        report(&format!("docs: {:<14} {count:>3} blocks", mark.name()));
    }
}

#[test]
fn every_covered_page_has_commands_that_are_run() {
    for page in COVERED {
        let run = blocks(&root(), page).iter().filter(|block| block.has("run")).count();
        assert!(run > 0, "{page} has no block `console run`");
    }
}

#[test]
fn translations_have_the_blocks_of_their_original() {
    let root = root();
    let shown = |page: &str| -> Vec<(String, Vec<String>, String)> {
        let blocks = blocks(&root, page).into_iter();
        blocks.map(|block| (block.language, block.marks, block.body)).collect()
    };
    for page in pages(&root) {
        let Some(original) = original(&page) else { continue };
        let (want, have) = (shown(&original), shown(&page));
        for (index, (want, have)) in want.iter().zip(&have).enumerate() {
            assert_eq!(want, have, "block {} of {page} is another in {original}", index + 1);
        }
        assert_eq!(want.len(), have.len(), "{page} has not all blocks of {original}");
    }
}

#[test]
fn data_can_be_read_and_excerpts_are_in_their_files() {
    for block in all_blocks() {
        if let Some(file) = block.value("from") {
            let text = std::fs::read_to_string(root().join(file))
                .unwrap_or_else(|error| panic!("{block}: {file}: {error}"));
            assert!(plain(&text).contains(&plain(&block.body)), "{block} is not in {file}");
        }
        let parsed = match block.language.as_str() {
            "json" => serde_json::from_str::<serde_json::Value>(&block.body)
                .map(drop)
                .err()
                .map(|e| e.to_string()),
            "yaml" => block.body.split("\n---\n").find_map(|part| {
                serde_saphyr::from_str::<serde_json::Value>(part)
                    .err()
                    .map(|error| error.to_string())
            }),
            _ => None,
        };
        assert_eq!(parsed, None, "{block} cannot be read");
    }
}

/// Text without indentation and the marks of comments, so that an example in a doc comment compares with a page.
fn plain(text: &str) -> String {
    let lines = text.lines().map(|line| {
        let line = line.trim();
        let line = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")).unwrap_or(line);
        // Doctests hide such lines.
        if line.trim_start().starts_with("# ") { "" } else { line.trim() }
    });
    lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
}

#[test]
fn links_lead_to_files() {
    let root = root();
    let link = regex::Regex::new(r"\]\(([^)#:]+)(#[^)]*)?\)").unwrap();
    for page in pages(&root) {
        let text = std::fs::read_to_string(root.join(&page)).unwrap();
        let dir = Path::new(&page).parent().unwrap();
        for found in link.captures_iter(&text) {
            let target = root.join(dir).join(&found[1]);
            assert!(target.exists(), "{page}: there is no {}", &found[1]);
        }
    }
}

#[test]
fn the_systemd_unit_is_sound_and_its_command_line_is_right() {
    let unit = std::fs::read_to_string(root().join("deploy/systemd/longshore.service")).unwrap();
    let command = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    let arguments = command.strip_prefix("/usr/local/bin/longshore ").unwrap().split(' ');
    let checked = Command::new(common::binary()).args(arguments).arg("--version").output().unwrap();
    assert!(checked.status.success(), "{command}: {}", common::text(&checked));

    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("longshore.service");
    let here = common::binary().display().to_string();
    std::fs::write(&file, unit.replace("/usr/local/bin/longshore", &here)).unwrap();
    match Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&file).output() {
        Ok(verified) => {
            let said = common::text(&verified);
            let about_ours = said.lines().any(|line| line.contains("longshore.service"));
            assert!(verified.status.success() && !about_ours, "{said}");
        }
        Err(error) => println!("SKIPPED: systemd-analyze: {error}"),
    }
}

#[test]
fn pages_do_as_they_say() {
    let tools = ["mkfs.ext4", "kubectl", "unshare", "ip", "bash", "curl"].map(Need::Tool);
    if !need("docs", &[&[Need::Root, Need::LoopDevices], &tools[..]].concat()) {
        return;
    }
    let only = std::env::var("LONGSHORE_DOCS_PAGE").ok();
    let mut failed = Vec::new();
    for page in pages(&root()) {
        // A translation has the same blocks.
        if original(&page).is_some() || only.as_ref().is_some_and(|only| *only != page) {
            continue;
        }
        let began = Instant::now();
        match play(&page) {
            Ok(0) => {}
            Ok(commands) => {
                let took = began.elapsed().as_secs_f32();
                report(&format!("docs: {page}: {commands} commands as written, {took:.1} s"));
            }
            Err(error) => failed.push(error),
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}

/// Runs the commands of a page on a machine of their own; returns how many there are.
fn play(page: &str) -> Result<usize, String> {
    let long = std::env::var("LONGSHORE_LONG").is_ok_and(|value| value == "1");
    let runs = |block: &Block| match block.mark() {
        Ok(Mark::Run) => true,
        Ok(Mark::Long) => long,
        _ => false,
    };
    let blocks = blocks(&root(), page);
    if !blocks.iter().any(runs) {
        return Ok(0);
    }
    let name = page.replace(['/', '.'], "-");
    let mut session = Session::start(&root(), &name);
    let starts_one = |block: &Block| block.has("background") && block.body.contains("longshore up");
    if !blocks.iter().any(starts_one) {
        session.up();
    }
    let mut commands = 0;
    for block in &blocks {
        if let Some(file) = block.file() {
            session.write(file, &block.body);
        } else if runs(block) {
            commands += session.play(block)?;
        }
    }
    session.stop().map_err(|error| format!("{page}: {error}"))?;
    Ok(commands)
}
