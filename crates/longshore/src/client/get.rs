//! `longshore get`.

use serde_json::Value;

use super::discovery::{Resource, array};
use super::jsonpath::Template;
use super::select::{Selection, list};
use super::session::{Ask, JSON, Session, TABLE};
use super::show::{Output, Shown, items_of};
use super::sort::sort_by;
use super::table::{Columns, Printer, View};
use super::watch::{Watch, version_to_watch};
use super::{ClientError, Failures, Scope, Screen, select};

/// Show objects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Get {
    pub selection: Selection,
    pub output: Output,
    pub follow: Follow,
    pub sort_by: Option<Template>,
    /// Labels that have columns of their own.
    pub label_columns: Vec<String>,
    /// Whether a last column shows all labels.
    pub show_labels: bool,
    pub no_headers: bool,
    /// Whether a missing object is fine.
    pub ignore_not_found: bool,
}

/// Whether changes are shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Follow {
    #[default]
    No,
    /// After the objects.
    Watch,
    /// Without the objects.
    WatchOnly,
}

/// Shows objects, and their changes if asked to.
pub(super) async fn get(
    session: &Session,
    request: Get,
    screen: &mut Screen<'_>,
) -> Result<(), ClientError> {
    let looks = looks(session, &request).await?;
    if request.follow != Follow::No && looks.len() > 1 {
        let why = "only one kind can be watched at a time; leave the others out";
        return Err(ClientError::Unsupported(why.into()));
    }
    match request.output {
        Output::Table | Output::Wide => tables(&looks, &request, screen).await,
        _ => objects(&looks, &request, screen).await,
    }
}

/// One kind, looked at in one place.
struct Look<'a> {
    session: &'a Session,
    resource: &'a Resource,
    namespace: Option<&'a str>,
    /// Names; empty means all objects that match.
    names: Vec<&'a str>,
    query: String,
    view: View,
}

/// The kinds of a request, each once for words of the same kind in a row.
async fn looks<'a>(session: &'a Session, request: &'a Get) -> Result<Vec<Look<'a>>, ClientError> {
    let discovery = session.discovery().await?;
    let selection = &request.selection;
    let mut looks: Vec<Look<'a>> = Vec::new();
    for word in &selection.words {
        for resource in discovery.named_or_category(&word.kind)? {
            let name = word.name.as_deref();
            match (name, looks.last_mut().filter(|look| look.resource == resource)) {
                (Some(name), Some(look)) if !look.names.is_empty() => look.names.push(name),
                _ => looks.push(Look {
                    session,
                    resource,
                    namespace: selection.namespace(session),
                    names: name.into_iter().collect(),
                    query: selection.query(),
                    view: View {
                        wide: request.output == Output::Wide,
                        with_namespace: selection.scope == Scope::All && resource.namespaced,
                        labels: request.label_columns.clone(),
                        all_labels: request.show_labels,
                        no_headers: request.no_headers,
                        prefix: None,
                    },
                }),
            }
        }
    }
    if looks.iter().any(|look| look.resource != looks[0].resource) {
        for look in &mut looks {
            look.view.prefix = Some(look.resource.display());
        }
    }
    Ok(looks)
}

impl Look<'_> {
    async fn one(
        &self,
        name: &str,
        accept: &'static str,
        query: &str,
    ) -> Result<Value, ClientError> {
        let namespace = self.namespace.unwrap_or_default();
        let object = format!("{} {name}", self.resource.display());
        let path = format!("{}{query}", self.resource.object(namespace, name));
        self.session.json(Ask { accept, ..Ask::get(&object, path) }).await
    }

    /// Every named object, or a list of all.
    async fn answers(
        &self,
        request: &Get,
        accept: &'static str,
        failures: &mut Failures,
        screen: &mut Screen<'_>,
    ) -> Result<Vec<Value>, ClientError> {
        // Sorting needs the rows' whole objects.
        let sorts = request.sort_by.is_some() && accept == TABLE;
        let whole = if sorts { "includeObject=Object" } else { "" };
        if self.names.is_empty() {
            let query = format!("{}&{whole}", self.query);
            let query = query.trim_end_matches('&');
            return Ok(vec![
                list(self.session, self.resource, self.namespace, query, accept).await?,
            ]);
        }
        let query = if whole.is_empty() { String::new() } else { format!("?{whole}") };
        let mut answers = Vec::new();
        for name in &self.names {
            match self.one(name, accept, &query).await {
                Ok(answer) => answers.push(answer),
                Err(error) if error.is_not_found() && request.ignore_not_found => {}
                Err(error) => failures.note(screen, error)?,
            }
        }
        Ok(answers)
    }

    fn watch(&self, accept: &'static str) -> Watch<'_> {
        let named = self.names.first().map(|name| format!("metadata.name={name}"));
        let query = format!("{}{}", self.query, select::query(None, named.as_deref()));
        Watch {
            session: self.session,
            resource: self.resource,
            namespace: self.namespace,
            query,
            accept,
        }
    }
}

/// Shows the server's Tables.
async fn tables(
    looks: &[Look<'_>],
    request: &Get,
    screen: &mut Screen<'_>,
) -> Result<(), ClientError> {
    let mut failures = Failures::default();
    let mut shown = 0;
    let named = looks.iter().any(|look| !look.names.is_empty());
    for look in looks {
        let answers = look.answers(request, TABLE, &mut failures, screen).await?;
        let mut table = joined(answers);
        if let (Some(path), Some(rows)) = (&request.sort_by, table["rows"].as_array_mut()) {
            sort_by(rows, path, |row| &row["object"])?;
        }
        let mut printer = Printer::default();
        let columns = Columns::of(&table, &look.view);
        let rows = columns.rows(&table, &look.view);
        let silent = request.follow == Follow::WatchOnly;
        if !rows.is_empty() && !silent {
            if shown > 0 {
                writeln!(screen.out)?;
            }
            shown += 1;
            write!(screen.out, "{}", printer.text(columns.header(), &rows))?;
            screen.out.flush()?;
        }
        if request.follow != Follow::No && !table.is_null() {
            watch_table(look, (table, printer), silent || rows.is_empty(), screen).await?;
        }
    }
    if shown == 0 && !named && !request.ignore_not_found {
        nothing_found(looks, screen)?;
    }
    failures.end()
}

/// One Table with the rows of all.
fn joined(answers: Vec<Value>) -> Value {
    let mut answers = answers.into_iter();
    let mut table = answers.next().unwrap_or_default();
    for mut next in answers {
        if let (Some(rows), Some(more)) =
            (table["rows"].as_array_mut(), next["rows"].as_array_mut())
        {
            rows.append(more);
        }
    }
    table
}

/// Goes on with the rows that change. Columns come with the first Table only.
async fn watch_table(
    look: &Look<'_>,
    (first, mut printer): (Value, Printer),
    mut header_due: bool,
    screen: &mut Screen<'_>,
) -> Result<(), ClientError> {
    let version = version_to_watch(&first);
    let mut columns = Columns::of(&first, &look.view);
    let see = |event: Value| {
        let table = &event["object"];
        if !array(&table["columnDefinitions"]).is_empty() {
            columns = Columns::of(table, &look.view);
        }
        let header = if header_due { columns.header() } else { &[] };
        write!(screen.out, "{}", printer.text(header, &columns.rows(table, &look.view)))?;
        header_due = false;
        Ok(screen.out.flush()?)
    };
    look.watch(TABLE).forever(version, see).await
}

fn nothing_found(looks: &[Look<'_>], screen: &mut Screen<'_>) -> Result<(), ClientError> {
    let all_in_one = looks.iter().all(|look| look.resource.namespaced);
    match looks.iter().find_map(|look| look.namespace).filter(|_| all_in_one) {
        Some(namespace) => writeln!(screen.err, "No resources found in {namespace} namespace.")?,
        None => writeln!(screen.err, "No resources found")?,
    }
    Ok(())
}

/// Shows the objects themselves.
async fn objects(
    looks: &[Look<'_>],
    request: &Get,
    screen: &mut Screen<'_>,
) -> Result<(), ClientError> {
    let mut failures = Failures::default();
    let mut found = Vec::new();
    let mut version = String::new();
    for look in looks {
        for answer in look.answers(request, JSON, &mut failures, screen).await? {
            version = version_to_watch(&answer);
            let items = match look.names.is_empty() {
                true => items_of(look.resource, &answer),
                false => vec![answer],
            };
            found.extend(items.into_iter().map(|item| (look.resource, item)));
        }
    }
    if let Some(path) = &request.sort_by {
        sort_by(&mut found, path, |(_, object)| object)?;
    }
    let names: usize = looks.iter().map(|look| look.names.len()).sum();
    let single = looks.len() == 1 && names == 1;
    let mut printer = Printer::default();
    let output = &request.output;
    let silent = request.follow == Follow::WatchOnly;
    let headers = !request.no_headers;
    if !silent {
        Shown { objects: &found, single, output, headers }.write(&mut printer, screen)?;
    }
    if let (true, [look]) = (request.follow != Follow::No, looks) {
        let mut header_due = headers && silent;
        let see = |event: Value| {
            if *output == Output::Yaml {
                writeln!(screen.out, "---")?;
            }
            let objects = [(look.resource, event["object"].clone())];
            let shown = Shown { objects: &objects, single: true, output, headers: header_due };
            header_due = false;
            shown.write(&mut printer, screen)
        };
        look.watch(JSON).forever(version, see).await?;
    }
    failures.end()
}
