//! Pages of the documentation and their fenced blocks.

use std::{
    fmt,
    path::{Path, PathBuf},
};

/// A fenced block of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The page, from the root of the repository.
    pub page: String,
    /// The line of the fence.
    pub line: usize,
    /// The first word behind the fence.
    pub language: String,
    /// The other words behind the fence.
    pub marks: Vec<String>,
    /// What is between the fences.
    pub body: String,
}

/// How a block is checked, or why it is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mark {
    /// The commands are run, and what they print is compared.
    Run,
    /// The same, but only with `LONGSHORE_LONG=1`.
    Long,
    /// The block is a file; commands of the page find it under its name.
    File,
    /// The block stands in a file of the repository as well, and both are compared.
    From,
    /// YAML, TOML or JSON that is parsed.
    Data,
    /// Commands that need a cluster of several machines, or images.
    NeedsCluster,
    /// Commands that change the machine itself, or build the whole workspace.
    RootOnHost,
    /// Output without its command.
    Output,
    /// A picture, or syntax.
    Sketch,
}

impl Mark {
    pub const ALL: [Self; 9] = [
        Self::Run,
        Self::Long,
        Self::File,
        Self::From,
        Self::Data,
        Self::NeedsCluster,
        Self::RootOnHost,
        Self::Output,
        Self::Sketch,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Long => "long",
            Self::File => "file",
            Self::From => "from",
            Self::Data => "data",
            Self::NeedsCluster => "needs-cluster",
            Self::RootOnHost => "root-on-host",
            Self::Output => "output",
            Self::Sketch => "sketch",
        }
    }
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.page, self.line)
    }
}

impl Block {
    pub fn has(&self, mark: &str) -> bool {
        self.marks.iter().any(|one| one == mark)
    }

    /// The value of a mark `key=value`.
    pub fn value(&self, key: &str) -> Option<&str> {
        self.marks.iter().find_map(|mark| mark.strip_prefix(key)?.strip_prefix('='))
    }

    /// The name of the file that the block shows.
    pub fn file(&self) -> Option<&str> {
        self.value("file")
    }

    /// How the block is checked; the error says what to write.
    pub fn mark(&self) -> Result<Mark, String> {
        if let Some(file) = self.file() {
            let plain = !file.is_empty() && !file.starts_with('/') && !file.contains("..");
            return if plain {
                Ok(Mark::File)
            } else {
                Err(self.wrong("a file is named from here"))
            };
        }
        if self.value("from").is_some() {
            return Ok(Mark::From);
        }
        let named = Mark::ALL.into_iter().find(|mark| self.has(mark.name()));
        match (self.language.as_str(), named) {
            ("console", Some(mark @ (Mark::Run | Mark::Long))) => Ok(mark),
            (_, Some(Mark::Run | Mark::Long)) => Err(self.wrong("commands are `console`")),
            (_, Some(mark)) => Ok(mark),
            ("yaml" | "toml" | "json", None) => Ok(Mark::Data),
            (_, None) => Err(self.wrong("it says neither how it is checked nor why it is not")),
        }
    }

    fn wrong(&self, why: &str) -> String {
        let names = Mark::ALL.map(Mark::name).join(", ");
        format!("{self}: {why}; write one of {names} behind the language (docs/testing.md)")
    }
}

/// The pages whose blocks are checked: those of the root, of `docs` and of `deploy`.
pub fn pages(root: &Path) -> Vec<String> {
    let mut found = markdown_in(root, root);
    let mut todo = vec![root.join("docs"), root.join("deploy")];
    while let Some(dir) = todo.pop() {
        found.extend(markdown_in(root, &dir));
        let entries = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path());
        todo.extend(entries.filter(|path| path.is_dir()));
    }
    found.sort();
    found
}

fn markdown_in(root: &Path, dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let pages = entries.filter(|path| path.extension().is_some_and(|ext| ext == "md"));
    pages.map(|path| path.strip_prefix(root).unwrap().display().to_string()).collect()
}

/// The root of the repository.
pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The blocks of a page, in their order.
pub fn blocks(root: &Path, page: &str) -> Vec<Block> {
    let text = std::fs::read_to_string(root.join(page)).unwrap();
    parse(page, &text).unwrap_or_else(|error| panic!("{error}"))
}

fn parse(page: &str, text: &str) -> Result<Vec<Block>, String> {
    let mut found = Vec::new();
    let mut open: Option<Block> = None;
    for (index, line) in text.lines().enumerate() {
        let fence = line.trim_start().strip_prefix("```");
        match (&mut open, fence) {
            (Some(_), Some("")) => found.extend(open.take()),
            (Some(block), _) => block.body += &format!("{line}\n"),
            (None, Some(info)) => {
                let mut words = info.split_whitespace().map(str::to_owned);
                open = Some(Block {
                    page: page.to_owned(),
                    line: index + 1,
                    language: words.next().unwrap_or_default(),
                    marks: words.collect(),
                    body: String::new(),
                });
            }
            (None, None) => {}
        }
    }
    match open {
        Some(block) => Err(format!("{block}: the block does not end")),
        None => Ok(found),
    }
}

/// A step of a `console` block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// A command, where it stands, and what it prints.
    Command { line: usize, text: String, output: Vec<String> },
    /// Ctrl-C for the program that was started last, and what it prints then.
    Interrupt { line: usize, output: Vec<String> },
}

/// The steps of a block: lines that begin with `# `, `$ ` or `^C`, each with what follows.
pub fn steps(block: &Block) -> Result<Vec<Step>, String> {
    let mut found: Vec<Step> = Vec::new();
    let mut lines = block.body.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        let at = block.line + 1 + index;
        if let Some(begin) = line.strip_prefix("# ").or_else(|| line.strip_prefix("$ ")) {
            let mut text = begin.to_owned();
            while text.ends_with('\\') || open_heredoc(&text) {
                let (_, more) = lines
                    .next()
                    .ok_or_else(|| format!("{}:{at}: the command does not end", block.page))?;
                text += &format!("\n{more}");
            }
            found.push(Step::Command { line: at, text, output: Vec::new() });
        } else if line == "^C" {
            found.push(Step::Interrupt { line: at, output: Vec::new() });
        } else {
            match found.last_mut() {
                Some(Step::Command { output, .. } | Step::Interrupt { output, .. }) => {
                    output.push(line.to_owned());
                }
                None => return Err(format!("{}:{at}: a command begins with `# `", block.page)),
            }
        }
    }
    Ok(found)
}

/// Whether a here-document of the command has not ended yet.
fn open_heredoc(text: &str) -> bool {
    let Some((_, rest)) = text.split_once("<<") else { return false };
    let word = rest.lines().next().unwrap_or_default();
    let word = word.split_whitespace().next().unwrap_or_default().trim_matches(['\'', '"']);
    !rest.lines().skip(1).any(|line| line == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(info: &str, body: &str) -> Block {
        parse("page.md", &format!("text\n```{info}\n{body}```\n")).unwrap().remove(0)
    }

    #[test]
    fn a_block_without_a_mark_is_refused_and_the_others_have_theirs() {
        for (info, mark) in [
            ("console run", Some(Mark::Run)),
            ("console run background", Some(Mark::Run)),
            ("console long", Some(Mark::Long)),
            ("yaml", Some(Mark::Data)),
            ("yaml file=claim.yaml", Some(Mark::File)),
            ("rust from=crates/x.rs", Some(Mark::From)),
            ("text output", Some(Mark::Output)),
            ("text needs-cluster", Some(Mark::NeedsCluster)),
            ("text", None),
            ("", None),
            ("rust", None),
            ("console", None),
            ("text run", None),
            ("text nonsense", None),
            ("yaml file=/etc/passwd", None),
        ] {
            assert_eq!(one(info, "").mark().ok(), mark, "{info}");
        }
    }

    #[test]
    fn a_block_that_does_not_end_is_named() {
        assert_eq!(parse("p.md", "```text\nx\n").unwrap_err(), "p.md:1: the block does not end");
    }

    #[test]
    fn commands_have_their_lines_and_outputs() {
        let block = one(
            "console run",
            "# cat <<'END'\nx\nEND\nx\n$ echo a \\\n  b\na b\n# true\n^C\nstopping\n",
        );
        let command = |line, text: &str, output: &[&str]| Step::Command {
            line,
            text: text.to_owned(),
            output: output.iter().map(|line| (*line).to_owned()).collect(),
        };
        assert_eq!(
            steps(&block).unwrap(),
            [
                command(3, "cat <<'END'\nx\nEND", &["x"]),
                command(7, "echo a \\\n  b", &["a b"]),
                command(10, "true", &[]),
                Step::Interrupt { line: 11, output: vec!["stopping".to_owned()] },
            ]
        );
        assert!(steps(&one("console run", "no command\n")).is_err());
        assert!(steps(&one("console run", "# cat <<END\nx\n")).is_err());
    }
}
