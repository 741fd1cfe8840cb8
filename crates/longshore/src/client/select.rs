//! Which objects a command is about: kinds, names, labels, fields, files.

use std::path::PathBuf;

use serde_json::Value;

use super::discovery::{Resource, text};
use super::session::{Ask, JSON, Session, encode};
use super::show::items_of;
use super::{ClientError, Scope, manifest};

/// Which objects a command is about.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Selection {
    pub words: Vec<Word>,
    /// Files with the objects, besides the words.
    pub files: Vec<PathBuf>,
    /// Whether directories are read with all that is below them.
    pub recursive: bool,
    /// Where to look.
    pub scope: Scope,
    /// Labels that objects must have.
    pub labels: Option<String>,
    /// Fields that objects must have.
    pub fields: Option<String>,
}

/// `KIND`, or `KIND/NAME`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Word {
    /// As it was typed.
    pub kind: String,
    /// None means all objects of the kind that match.
    pub name: Option<String>,
}

/// One object of a selection.
#[derive(Debug, Clone)]
pub(super) struct Item<'a> {
    pub(super) resource: &'a Resource,
    pub(super) namespace: String,
    pub(super) name: String,
    /// The object, if a list brought it along.
    pub(super) listed: Option<Value>,
}

impl Item<'_> {
    /// `pod/web`, as results name it.
    pub(super) fn shown(&self) -> String {
        format!("{}/{}", self.resource.display(), self.name)
    }

    /// `pod web`, as errors name it.
    pub(super) fn object(&self) -> String {
        format!("{} {}", self.resource.display(), self.name)
    }

    pub(super) fn path(&self) -> String {
        self.resource.object(&self.namespace, &self.name)
    }

    /// The object as it is now.
    pub(super) async fn live(&self, session: &Session) -> Result<Value, ClientError> {
        session.json(Ask::get(&self.object(), self.path())).await
    }
}

impl Selection {
    /// Labels and fields as parameters of a request.
    pub(super) fn query(&self) -> String {
        query(self.labels.as_deref(), self.fields.as_deref())
    }

    /// The namespace to look in; none means all.
    pub(super) fn namespace<'a>(&'a self, session: &'a Session) -> Option<&'a str> {
        self.scope.namespace(session)
    }

    /// All objects of the selection: files first, then words in their order.
    pub(super) async fn items<'a>(
        &self,
        session: &'a Session,
    ) -> Result<Vec<Item<'a>>, ClientError> {
        let mut items = self.file_items(session).await?;
        for word in &self.words {
            for resource in session.discovery().await?.named_or_category(&word.kind)? {
                match &word.name {
                    Some(name) => items.push(Item {
                        resource,
                        namespace: self.namespace(session).unwrap_or_default().to_owned(),
                        name: name.clone(),
                        listed: None,
                    }),
                    None => items.extend(self.listed(session, resource).await?),
                }
            }
        }
        Ok(items)
    }

    async fn file_items<'a>(&self, session: &'a Session) -> Result<Vec<Item<'a>>, ClientError> {
        let flag = match &self.scope {
            Scope::Namespace(name) => Some(name.as_str()),
            Scope::Current | Scope::All => None,
        };
        let mut items = Vec::new();
        for manifest in manifest::read_all(&self.files, self.recursive)? {
            let resource = manifest.resource(session).await?;
            let namespace = manifest.place(session, resource, flag)?;
            let name = manifest.required_name()?.to_owned();
            items.push(Item { resource, namespace, name, listed: None });
        }
        Ok(items)
    }

    async fn listed<'a>(
        &self,
        session: &'a Session,
        resource: &'a Resource,
    ) -> Result<Vec<Item<'a>>, ClientError> {
        let list = list(session, resource, self.namespace(session), &self.query(), JSON).await?;
        let item = |object: Value| Item {
            resource,
            namespace: text(&object["metadata"]["namespace"]),
            name: text(&object["metadata"]["name"]),
            listed: Some(object),
        };
        Ok(items_of(resource, &list).into_iter().map(item).collect())
    }
}

/// Labels and fields as parameters of a request.
pub(super) fn query(labels: Option<&str>, fields: Option<&str>) -> String {
    let mut query = String::new();
    for (parameter, value) in [("labelSelector", labels), ("fieldSelector", fields)] {
        if let Some(value) = value {
            query += &format!("&{parameter}={}", encode(value));
        }
    }
    query
}

/// All objects of a kind, page by page, as one list or Table.
pub(super) async fn list(
    session: &Session,
    resource: &Resource,
    namespace: Option<&str>,
    query: &str,
    accept: &'static str,
) -> Result<Value, ClientError> {
    let mut whole = Value::Null;
    let mut token = String::new();
    loop {
        let mut path = format!("{}?limit=500{query}", resource.collection(namespace));
        if !token.is_empty() {
            path += &format!("&continue={}", encode(&token));
        }
        let ask = Ask { verb: "list", accept, ..Ask::get(&resource.plural, path) };
        let mut page = session.json(ask).await?;
        token = text(&page["metadata"]["continue"]);
        if whole.is_null() {
            whole = page;
        } else {
            for key in ["items", "rows"] {
                if let (Some(all), Some(more)) =
                    (whole[key].as_array_mut(), page[key].as_array_mut())
                {
                    all.append(more);
                }
            }
        }
        if token.is_empty() {
            return Ok(whole);
        }
    }
}
