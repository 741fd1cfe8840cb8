//! Changes of a kubeconfig that leave the rest of its text alone, comments included.

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

/// A kubeconfig that is being changed: its text, and what the text means.
pub(super) struct Document {
    text: String,
    meaning: Value,
}

impl Document {
    /// Reads a file's text; an empty one is an empty configuration.
    pub(super) fn read(text: &str) -> Result<Self> {
        if text.trim().is_empty() {
            let text = "apiVersion: v1\nkind: Config\n".to_owned();
            return Ok(Self { text, meaning: json!({"apiVersion": "v1", "kind": "Config"}) });
        }
        let meaning: Value = serde_saphyr::from_str(text).context("it is not YAML")?;
        if !meaning.is_object() || meaning.get("clusters").is_some_and(is_no_list) {
            bail!("it is not a kubeconfig");
        }
        let end = if text.ends_with('\n') { "" } else { "\n" };
        Ok(Self { text: format!("{text}{end}"), meaning })
    }

    /// The entry of a list (`clusters`, `users`, `contexts`) with this name.
    pub(super) fn entry(&self, list: &str, name: &str) -> Option<&Value> {
        self.meaning[list].as_array()?.iter().find(|entry| entry["name"] == name)
    }

    /// The current context, if there is one.
    pub(super) fn current(&self) -> &str {
        self.meaning["current-context"].as_str().unwrap_or_default()
    }

    /// Puts an entry into a list, in the place of one with its name.
    pub(super) fn set_entry(&mut self, list: &str, entry: &Value) -> Result<()> {
        let name = entry["name"].clone();
        if self.meaning[list].is_null() {
            self.meaning[list] = json!([]);
        }
        let entries =
            self.meaning[list].as_array_mut().with_context(|| format!("{list} is no list"))?;
        match entries.iter_mut().find(|old| old["name"] == name) {
            Some(old) => *old = entry.clone(),
            None => entries.push(entry.clone()),
        }
        let edited = set_item(&self.text, list, entry);
        self.keep(edited)
    }

    /// Sets the current context.
    pub(super) fn set_current(&mut self, name: &str) -> Result<()> {
        self.meaning["current-context"] = json!(name);
        let line = format!("current-context: {name}");
        let mut lines: Vec<String> = self.text.lines().map(str::to_owned).collect();
        match lines.iter_mut().find(|line| line.starts_with("current-context:")) {
            Some(old) => *old = line,
            None => lines.push(line),
        }
        let edited = Some(lines.join("\n") + "\n");
        self.keep(edited)
    }

    /// Takes an edited text if it means what it should; else all is written anew, which loses comments.
    fn keep(&mut self, edited: Option<String>) -> Result<()> {
        let right = |text: &String| {
            serde_saphyr::from_str::<Value>(text).is_ok_and(|meaning| meaning == self.meaning)
        };
        self.text = match edited.filter(right) {
            Some(text) => text,
            None => serde_saphyr::to_string(&self.meaning).context("cannot write it as YAML")?,
        };
        Ok(())
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }
}

fn is_no_list(value: &Value) -> bool {
    !value.is_array() && !value.is_null()
}

/// The text with one item of a top-level list in block style added or replaced; `None` when it is written in
/// another way.
fn set_item(text: &str, list: &str, entry: &Value) -> Option<String> {
    let lines: Vec<&str> = text.lines().collect();
    let header = format!("{list}:");
    let Some(at) = lines.iter().position(|line| line.starts_with(&header)) else {
        let item = item_lines(entry, "")?;
        return Some(format!("{}\n{header}\n{}\n", text.trim_end(), item.join("\n")));
    };
    let rest = lines[at][header.len()..].trim();
    if matches!(rest, "[]" | "null" | "~") {
        let mut new: Vec<String> = lines[..at].iter().map(|line| (*line).to_owned()).collect();
        new.push(header);
        new.extend(item_lines(entry, "")?);
        new.extend(lines[at + 1..].iter().map(|line| (*line).to_owned()));
        return Some(new.join("\n") + "\n");
    }
    let inside = |line: &&str| line.starts_with([' ', '-', '#']) || line.trim().is_empty();
    let end = at + 1 + lines[at + 1..].iter().take_while(|line| inside(line)).count();
    let first = lines[at + 1..end].iter().find(|line| line.trim_start().starts_with("- "))?;
    let indent = &first[..first.len() - first.trim_start().len()];
    let dash = format!("{indent}- ");
    let starts: Vec<usize> = (at + 1..end).filter(|n| lines[*n].starts_with(&dash)).collect();
    // Comments and empty lines at the end belong to what follows.
    let last = (at + 1..end).rev().find(|n| {
        let line = lines[*n].trim();
        !line.is_empty() && !line.starts_with('#')
    })? + 1;
    let (mut from, mut to) = (last, last);
    for (n, start) in starts.iter().enumerate() {
        let stop = starts.get(n + 1).copied().unwrap_or(last);
        let item: Value = serde_saphyr::from_str(&lines[*start..stop].join("\n")).ok()?;
        if item[0]["name"] == entry["name"] {
            (from, to) = (*start, stop);
        }
    }
    let item = item_lines(entry, indent)?;
    let kept = |part: &[&str]| part.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
    let all = [kept(&lines[..from]), item, kept(&lines[to..])].concat();
    Some(all.join("\n") + "\n")
}

/// An entry as an item of a list.
fn item_lines(entry: &Value, indent: &str) -> Option<Vec<String>> {
    let text = serde_saphyr::to_string(&json!([entry])).ok()?;
    Some(text.trim_end().lines().map(|line| format!("{indent}{line}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "\
# my clusters
apiVersion: v1
clusters:
  # the one at work
  - name: work
    cluster: {server: https://work}
  - cluster:
      server: https://old
    name: mine

# people
users: []
contexts:
- name: work
  context: {cluster: work, user: me}
current-context: work
kind: Config
preferences: {}
";

    #[test]
    fn entries_are_added_and_replaced_and_comments_stay() {
        let mut document = Document::read(OLD).unwrap();
        let entry = |list: &str| json!({"name": "mine", list: {"server": "https://new"}});
        document.set_entry("clusters", &entry("cluster")).unwrap();
        document.set_entry("users", &entry("user")).unwrap();
        document.set_entry("contexts", &entry("context")).unwrap();
        let text = document.text().to_owned();
        for kept in [
            "# my clusters",
            "# the one at work",
            "# people",
            "{server: https://work}",
            "preferences: {}",
        ] {
            assert!(text.contains(kept), "{kept}:\n{text}");
        }
        assert!(!text.contains("https://old"), "{text}");
        let meaning: Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(meaning["clusters"].as_array().unwrap().len(), 2);
        assert_eq!(meaning["contexts"][1], entry("context"));
        assert_eq!(meaning["current-context"], "work");
        document.set_current("mine").unwrap();
        assert!(
            document.text().contains("current-context: mine\nkind: Config"),
            "{}",
            document.text()
        );
    }

    #[test]
    fn a_file_in_another_style_keeps_its_meaning() {
        let old =
            "{apiVersion: v1, kind: Config, clusters: [{name: a, cluster: {server: x}}], extra: 1}";
        let mut document = Document::read(old).unwrap();
        document.set_entry("clusters", &json!({"name": "b", "cluster": {}})).unwrap();
        let meaning: Value = serde_saphyr::from_str(document.text()).unwrap();
        assert_eq!(
            (meaning["clusters"].as_array().unwrap().len(), &meaning["extra"]),
            (2, &json!(1))
        );
    }

    #[test]
    fn an_empty_file_becomes_a_configuration_and_others_are_refused() {
        let mut document = Document::read("").unwrap();
        document.set_entry("users", &json!({"name": "a", "user": {}})).unwrap();
        let meaning: Value = serde_saphyr::from_str(document.text()).unwrap();
        assert_eq!(
            (&meaning["kind"], &meaning["users"][0]["name"]),
            (&json!("Config"), &json!("a"))
        );
        for bad in ["- a\n", "clusters: text\n", "a: [\n"] {
            assert!(Document::read(bad).is_err(), "{bad}");
        }
    }
}
