//! Reads a recording: manifests, then commands with what they printed.

/// A command and what it printed.
#[derive(Debug, Clone, Default)]
pub struct Step {
    pub command: String,
    pub stdout: String,
    pub stderr: String,
    pub exit: i32,
}

/// A whole recording.
#[derive(Debug, Default)]
pub struct Script {
    pub files: Vec<(String, String)>,
    pub steps: Vec<Step>,
}

impl Script {
    pub fn parse(text: &str) -> Self {
        let mut script = Self::default();
        let mut lines = text.lines();
        let (mut file, mut errors) = (None, false);
        while let Some(line) = lines.next() {
            if let Some(command) = line.strip_prefix("### `").and_then(|l| l.strip_suffix('`')) {
                script.steps.push(Step { command: command.to_owned(), ..Step::default() });
                errors = false;
            } else if let Some(name) = line.strip_prefix('`').and_then(|l| l.strip_suffix('`')) {
                file = Some(name.to_owned());
            } else if line == "stderr:" {
                errors = true;
            } else if line.starts_with("```") {
                let block = block(&mut lines);
                match (file.take(), script.steps.last_mut()) {
                    (Some(name), None) => script.files.push((name, block)),
                    (_, Some(step)) if errors => step.stderr = block,
                    (_, Some(step)) => step.stdout = block,
                    (None, None) => panic!("a block that belongs to nothing:\n{block}"),
                }
            } else if let Some(code) = line.strip_prefix("exit ") {
                script.steps.last_mut().unwrap().exit = code.parse().unwrap();
            }
        }
        script
    }
}

fn block<'a>(lines: &mut impl Iterator<Item = &'a str>) -> String {
    lines.take_while(|line| *line != "```").fold(String::new(), |all, line| all + line + "\n")
}

#[test]
fn a_recording_is_read() {
    let text = "`a.yaml`\n```yaml\nx: 1\n```\n\n### `kubectl get x`\n\nWhy.\n\n```text\nout\n```\n\nstderr:\n```text\nerr\n```\n\nexit 1\n";
    let script = Script::parse(text);
    assert_eq!(script.files, [("a.yaml".to_owned(), "x: 1\n".to_owned())]);
    let [step] = &script.steps[..] else { panic!("{script:?}") };
    assert_eq!((step.command.as_str(), step.exit), ("kubectl get x", 1));
    assert_eq!((step.stdout.as_str(), step.stderr.as_str()), ("out\n", "err\n"));
}
