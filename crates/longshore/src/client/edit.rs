//! `longshore edit`.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::change::{self, Manner};
use super::discovery::{array, text};
use super::merge::three_way;
use super::select::{Item, Selection};
use super::session::Session;
use super::show::{pretty_json, without_managers, yaml};
use super::{ClientError, Screen};

const MANAGER: &str = "longshore-edit";

const HEADER: &str = "\
# Please edit the object below. Lines beginning with a '#' will be ignored,
# and an empty file will abort the edit. If an error occurs while saving this file will be
# reopened with the relevant failures.
#
";

/// Change objects in an editor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Edit {
    pub selection: Selection,
    /// Command line of the editor; the file is its last argument.
    pub editor: String,
    /// Whether the file is JSON.
    pub json: bool,
    pub manner: Manner,
}

/// What came of one round in the editor.
enum Round {
    Done,
    /// To be opened again, with what is wrong.
    Again(String),
}

/// Opens objects in an editor until what it leaves can be saved, or nothing was changed.
pub(super) async fn edit(
    session: &Session,
    request: Edit,
    screen: &mut Screen<'_>,
) -> Result<(), ClientError> {
    let mut before = Vec::new();
    for item in request.selection.items(session).await? {
        let live = without_managers(&item.live(session).await?);
        before.push((item, live));
    }
    let Some(mut body) = document(&before, request.json)? else {
        return Err(ClientError::Unsupported("no object matches; there is nothing to edit".into()));
    };
    let mut problem = String::new();
    loop {
        let file = temporary(&format!("{HEADER}{problem}{body}"), request.json)?;
        run_editor(&request.editor, &file)?;
        let edited = without_comments(&std::fs::read_to_string(&file)?);
        if edited.trim().is_empty() {
            std::fs::remove_file(&file)?;
            return Ok(writeln!(screen.err, "Edit cancelled, saved file was empty.")?);
        }
        if edited == without_comments(&body) {
            return cancelled(&file, !problem.is_empty(), screen);
        }
        match save(session, &request, (&before, &edited), screen).await {
            Ok(Round::Done) => return Ok(std::fs::remove_file(&file)?),
            Ok(Round::Again(why)) => {
                std::fs::remove_file(&file)?;
                (body, problem) = (edited, why);
            }
            Err(error) => {
                stored(&file, screen)?;
                return Err(error);
            }
        }
    }
}

/// Nothing was changed: fine at first, but not after an error.
fn cancelled(file: &Path, after_error: bool, screen: &mut Screen<'_>) -> Result<(), ClientError> {
    if after_error {
        stored(file, screen)?;
        let why = "Edit cancelled, no valid changes were saved.";
        return Err(ClientError::Unsupported(why.into()));
    }
    std::fs::remove_file(file)?;
    Ok(writeln!(screen.err, "Edit cancelled, no changes made.")?)
}

fn stored(file: &Path, screen: &mut Screen<'_>) -> Result<(), ClientError> {
    let file = file.display();
    Ok(writeln!(screen.err, "A copy of your changes has been stored to \"{file}\"")?)
}

/// The objects as one document, several as a list.
fn document(before: &[(Item<'_>, Value)], json: bool) -> Result<Option<String>, ClientError> {
    let whole = match before {
        [] => return Ok(None),
        [(_, one)] => one.clone(),
        several => {
            let items: Vec<&Value> = several.iter().map(|(_, object)| object).collect();
            json!({"apiVersion": "v1", "items": items, "kind": "List", "metadata": {}})
        }
    };
    Ok(Some(if json { pretty_json(&whole)? + "\n" } else { yaml(&whole)? }))
}

fn temporary(text: &str, json: bool) -> Result<PathBuf, ClientError> {
    let suffix = if json { ".json" } else { ".yaml" };
    let mut file = tempfile::Builder::new().prefix("longshore-edit-").suffix(suffix).tempfile()?;
    file.write_all(text.as_bytes())?;
    let (_, path) = file.keep().map_err(|error| error.error)?;
    Ok(path)
}

/// Runs the editor. Its command line may have arguments and quotes, so a shell takes it apart.
fn run_editor(editor: &str, file: &Path) -> Result<(), ClientError> {
    let ended =
        Command::new("/bin/sh").args(["-c", &format!("{editor} \"$1\""), "sh"]).arg(file).status();
    let why = match ended {
        Ok(status) if status.success() => return Ok(()),
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    };
    let _ = std::fs::remove_file(file);
    Err(ClientError::Unsupported(format!(
        "the editor `{editor}` failed ({why}); set KUBE_EDITOR or EDITOR to one that works"
    )))
}

fn without_comments(text: &str) -> String {
    text.lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n")).collect()
}

/// Sends what was changed.
async fn save(
    session: &Session,
    request: &Edit,
    (before, edited): (&[(Item<'_>, Value)], &str),
    screen: &mut Screen<'_>,
) -> Result<Round, ClientError> {
    let document: Value = match serde_saphyr::from_str(edited) {
        Ok(document) => document,
        Err(error) => {
            let why = error.to_string();
            return Ok(Round::Again(problem("The edited file", why.lines())));
        }
    };
    let after: Vec<&Value> = match before.len() {
        1 => vec![&document],
        _ => array(&document["items"]).iter().collect(),
    };
    let changes = paired(before, &after)?;
    for (item, old, new) in changes {
        let patch = patch_for(old, new);
        if patch == json!({}) {
            writeln!(screen.out, "{} skipped", item.shown())?;
            continue;
        }
        let path = format!("{}{}", item.path(), request.manner.query(MANAGER));
        let body = ("application/merge-patch+json", patch);
        match change::patch(session, &item.object(), path, body).await {
            Ok(object) => {
                request.manner.show(screen, (item.resource, object), (&item.shown(), "edited"))?;
            }
            Err(ClientError::Refused { message, .. }) => {
                let object = format!("{} \"{}\"", item.resource.plural, item.name);
                writeln!(screen.err, "longshore: {object} is invalid")?;
                return Ok(Round::Again(problem(&object, message.lines())));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Round::Done)
}

/// The lines that tell what is wrong, above the object.
fn problem<'a>(object: &str, why: impl Iterator<Item = &'a str>) -> String {
    let mut lines = format!("# {object} was not valid:\n");
    for (at, line) in why.enumerate() {
        let mark = if at == 0 { "*" } else { " " };
        lines += &format!("# {mark} {line}\n");
    }
    lines + "#\n"
}

/// Which edited object belongs to which. An object that became another one is no edit.
fn paired<'a, 'b>(
    before: &'a [(Item<'b>, Value)],
    after: &[&'a Value],
) -> Result<Vec<(&'a Item<'b>, &'a Value, &'a Value)>, ClientError> {
    let identity = |object: &Value| {
        let metadata = &object["metadata"];
        [&object["apiVersion"], &object["kind"], &metadata["name"], &metadata["namespace"]]
            .map(text)
    };
    let mut pairs = Vec::new();
    for new in after {
        let old = before.iter().find(|(_, old)| identity(old) == identity(new));
        let Some((item, old)) = old else {
            let why = "At least one of apiVersion, kind, name and namespace was changed; \
                       copy the object to a file and use `longshore create -f FILE`";
            return Err(ClientError::Unsupported(why.into()));
        };
        pairs.push((item, old, *new));
    }
    Ok(pairs)
}

/// The merge patch from one version to the other. It replaces lists as a whole, so a patch with a list in it holds only
/// for the version that was edited.
fn patch_for(old: &Value, new: &Value) -> Value {
    let mut patch = three_way(old, new, old);
    if has_list(&patch) {
        patch["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"].clone();
    }
    patch
}

fn has_list(value: &Value) -> bool {
    match value {
        Value::Array(_) => true,
        Value::Object(fields) => fields.values().any(has_list),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_with_lists_hold_for_one_version_only() {
        let old = json!({"metadata": {"resourceVersion": "7"}, "a": "1", "l": [1], "gone": "x"});
        let new = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        assert_eq!(
            patch_for(&old, &new(r#"{"metadata":{"resourceVersion":"7"},"a":"2","l":[1]}"#)),
            json!({"a": "2", "gone": null})
        );
        assert_eq!(
            patch_for(
                &old,
                &new(r#"{"metadata":{"resourceVersion":"7"},"a":"1","l":[1,2],"gone":"x"}"#)
            ),
            json!({"l": [1, 2], "metadata": {"resourceVersion": "7"}})
        );
        assert_eq!(patch_for(&old, &old), json!({}));
    }

    #[test]
    fn problems_stand_in_comments() {
        let lines = problem("pods \"web\"", "spec: bad\nmore".lines());
        assert_eq!(lines, "# pods \"web\" was not valid:\n# * spec: bad\n#   more\n#\n");
        assert_eq!(without_comments(&format!("{HEADER}{lines}a: 1\n")), "a: 1\n");
    }
}
