//! Which kinds the server has, and what people call them.

use http::Method;
use serde_json::Value;

use crate::flags::nearest;

use super::ClientError;
use super::not_served;
use super::session::{Ask, JSON, Session, encode};

const AGGREGATED: &str =
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";

/// One kind of the server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Resource {
    pub(super) group: String,
    pub(super) version: String,
    pub(super) plural: String,
    pub(super) singular: String,
    pub(super) kind: String,
    pub(super) namespaced: bool,
    short_names: Vec<String>,
    categories: Vec<String>,
    listable: bool,
}

impl Resource {
    /// `persistentvolumeclaim` or `storageclass.storage.k8s.io`: how kubectl names a kind in its results.
    pub(super) fn display(&self) -> String {
        let singular = match self.singular.is_empty() {
            true => self.kind.to_lowercase(),
            false => self.singular.clone(),
        };
        match self.group.is_empty() {
            true => singular,
            false => format!("{singular}.{}", self.group),
        }
    }

    pub(super) fn api_version(&self) -> String {
        match self.group.is_empty() {
            true => self.version.clone(),
            false => format!("{}/{}", self.group, self.version),
        }
    }

    /// The path of all objects, or of those in one namespace.
    pub(super) fn collection(&self, namespace: Option<&str>) -> String {
        let root = match self.group.is_empty() {
            true => format!("/api/{}", self.version),
            false => format!("/apis/{}/{}", self.group, self.version),
        };
        match namespace.filter(|_| self.namespaced) {
            Some(namespace) => format!("{root}/namespaces/{}/{}", encode(namespace), self.plural),
            None => format!("{root}/{}", self.plural),
        }
    }

    /// The path of one object.
    pub(super) fn object(&self, namespace: &str, name: &str) -> String {
        format!("{}/{}", self.collection(Some(namespace)), encode(name))
    }

    fn is_called(&self, word: &str) -> bool {
        let own = [&self.plural, &self.singular].iter().any(|name| *name == word);
        own || self.kind.to_lowercase() == word || self.short_names.iter().any(|name| name == word)
    }
}

/// All kinds of the server, in its order of preference.
#[derive(Debug, Default)]
pub(super) struct Discovery {
    resources: Vec<Resource>,
}

/// Short names that people expect although upstream has none.
const EXTRA_SHORT_NAMES: &[(&str, &str)] = &[("va", "volumeattachments")];

impl Discovery {
    /// Asks for everything at once, or group by group if the server cannot do that.
    pub(super) async fn ask(session: &Session) -> Result<Self, ClientError> {
        let mut resources = Vec::new();
        for root in ["/api", "/apis"] {
            let answer = list(session, root, AGGREGATED).await?;
            match answer["kind"].as_str() {
                Some("APIGroupDiscoveryList") => resources.extend(aggregated(&answer)),
                _ => resources.extend(one_by_one(session, root, &answer).await?),
            }
        }
        Ok(Self { resources })
    }

    /// The kind that a person calls `word`: `pvc`, `persistentvolumeclaims`, `leases.coordination.k8s.io`.
    pub(super) fn named(&self, word: &str) -> Result<&Resource, ClientError> {
        let lower = word.to_lowercase();
        let lower = EXTRA_SHORT_NAMES
            .iter()
            .find(|(short, _)| *short == lower)
            .map_or(lower.as_str(), |(_, plural)| *plural);
        let (name, group) = match lower.split_once('.') {
            Some((name, group)) => (name, Some(group)),
            None => (lower, None),
        };
        let in_group = |resource: &Resource| match group {
            None => true,
            Some(group) => {
                resource.group == group
                    || format!("{}.{}", resource.version, resource.group) == group
            }
        };
        self.resources.iter().find(|known| known.is_called(name) && in_group(known)).ok_or_else(
            || {
                let names = self.resources.iter().flat_map(|known| {
                    [&known.plural, &known.singular].into_iter().chain(&known.short_names)
                });
                let meant = nearest(&lower.to_lowercase(), names.map(String::as_str));
                ClientError::UnknownKind {
                    word: word.to_owned(),
                    why: not_served::named(name, group),
                    nearest: meant.map(str::to_owned),
                }
            },
        )
    }

    /// The kinds of a category such as `all`, or the one kind called `word`.
    pub(super) fn named_or_category(&self, word: &str) -> Result<Vec<&Resource>, ClientError> {
        let members: Vec<_> = self
            .resources
            .iter()
            .filter(|known| known.listable && known.categories.iter().any(|name| name == word))
            .collect();
        match (self.named(word), members.is_empty()) {
            (Err(_), false) => Ok(members),
            (found, _) => found.map(|resource| vec![resource]),
        }
    }

    /// Every kind that can be listed: its plural and its short names.
    pub(super) fn words(&self) -> Vec<String> {
        let listable = self.resources.iter().filter(|known| known.listable);
        let mut words: Vec<String> = listable
            .flat_map(|known| [known.plural.clone()].into_iter().chain(known.short_names.clone()))
            .collect();
        words.sort();
        words.dedup();
        words
    }

    /// The kind that a manifest means.
    pub(super) fn of_manifest(
        &self,
        api_version: &str,
        kind: &str,
    ) -> Result<&Resource, ClientError> {
        let found = self
            .resources
            .iter()
            .find(|known| known.kind == kind && known.api_version() == api_version);
        found.ok_or_else(|| {
            let meant = self.resources.iter().find(|known| known.kind == kind);
            ClientError::UnknownKind {
                word: format!("{kind} in {api_version}"),
                why: not_served::of_manifest(api_version, kind),
                nearest: meant.map(|known| format!("{kind} in {}", known.api_version())),
            }
        })
    }
}

async fn list(session: &Session, path: &str, accept: &'static str) -> Result<Value, ClientError> {
    let ask = Ask {
        verb: "list",
        object: "the kinds of the server",
        method: Method::GET,
        path: path.to_owned(),
        accept,
        body: None,
    };
    session.json(ask).await
}

/// Reads an aggregated list.
fn aggregated(list: &Value) -> Vec<Resource> {
    let mut resources = Vec::new();
    for group in array(&list["items"]) {
        for version in array(&group["versions"]) {
            for resource in array(&version["resources"]) {
                resources.push(Resource {
                    group: text(&group["metadata"]["name"]),
                    version: text(&version["version"]),
                    plural: text(&resource["resource"]),
                    singular: text(&resource["singularResource"]),
                    kind: text(&resource["responseKind"]["kind"]),
                    namespaced: resource["scope"] == "Namespaced",
                    short_names: texts(&resource["shortNames"]),
                    categories: texts(&resource["categories"]),
                    listable: texts(&resource["verbs"]).iter().any(|verb| verb == "list"),
                });
            }
        }
    }
    resources
}

/// Asks for each version of each group on its own.
async fn one_by_one(
    session: &Session,
    root: &str,
    answer: &Value,
) -> Result<Vec<Resource>, ClientError> {
    let versions: Vec<(String, String)> = match root {
        "/api" => texts(&answer["versions"]).into_iter().map(|v| (String::new(), v)).collect(),
        _ => array(&answer["groups"])
            .iter()
            .flat_map(|group| {
                let versions = array(&group["versions"]).iter();
                versions.map(|version| (text(&group["name"]), text(&version["version"])))
            })
            .collect(),
    };
    let mut resources = Vec::new();
    for (group, version) in versions {
        let path = match group.is_empty() {
            true => format!("{root}/{version}"),
            false => format!("{root}/{group}/{version}"),
        };
        let answer = list(session, &path, JSON).await?;
        resources.extend(plain(&group, &version, &answer));
    }
    Ok(resources)
}

/// Reads the list of one version of one group.
fn plain(group: &str, version: &str, list: &Value) -> Vec<Resource> {
    array(&list["resources"])
        .iter()
        .filter(|resource| !text(&resource["name"]).contains('/'))
        .map(|resource| Resource {
            group: group.to_owned(),
            version: version.to_owned(),
            plural: text(&resource["name"]),
            singular: text(&resource["singularName"]),
            kind: text(&resource["kind"]),
            namespaced: resource["namespaced"] == true,
            short_names: texts(&resource["shortNames"]),
            categories: texts(&resource["categories"]),
            listable: texts(&resource["verbs"]).iter().any(|verb| verb == "list"),
        })
        .collect()
}

/// The items of a list; nothing when it is not one.
pub(super) fn array(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// A text; empty when it is not one.
pub(super) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn texts(value: &Value) -> Vec<String> {
    array(value).iter().map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn discovery() -> Discovery {
        let core = json!({"items": [{"metadata": {}, "versions": [{"version": "v1", "resources": [
            {"resource": "persistentvolumeclaims", "singularResource": "persistentvolumeclaim", "scope": "Namespaced",
             "responseKind": {"kind": "PersistentVolumeClaim"}, "shortNames": ["pvc"], "verbs": ["list"]},
            {"resource": "pods", "singularResource": "pod", "scope": "Namespaced", "responseKind": {"kind": "Pod"},
             "shortNames": ["po"], "categories": ["all"], "verbs": ["list"]}]}]}]});
        let classes = json!({"resources": [
            {"name": "storageclasses", "singularName": "storageclass", "namespaced": false, "kind": "StorageClass",
             "shortNames": ["sc"], "verbs": ["list"]},
            {"name": "volumeattachments", "singularName": "volumeattachment", "namespaced": false,
             "kind": "VolumeAttachment", "verbs": ["list"]},
            {"name": "volumeattachments/status", "namespaced": false, "kind": "VolumeAttachment"}]});
        let mut resources = aggregated(&core);
        resources.extend(plain("storage.k8s.io", "v1", &classes));
        Discovery { resources }
    }

    #[test]
    fn people_have_many_names_for_a_kind() {
        let discovery = discovery();
        for (word, plural) in [
            ("pvc", "persistentvolumeclaims"),
            ("PersistentVolumeClaim", "persistentvolumeclaims"),
            ("persistentvolumeclaims", "persistentvolumeclaims"),
            ("po", "pods"),
            ("sc", "storageclasses"),
            ("storageclasses.storage.k8s.io", "storageclasses"),
            ("storageclass.v1.storage.k8s.io", "storageclasses"),
            ("va", "volumeattachments"),
        ] {
            assert_eq!(discovery.named(word).unwrap().plural, plural, "{word}");
        }
        let sentence = discovery.named("storageclas").unwrap_err().to_string();
        assert_eq!(sentence, "the server has no kind `storageclas`; did you mean storageclass?");
        let sentence = discovery.named("pvcs").unwrap_err().to_string();
        assert_eq!(sentence, "the server has no kind `pvcs`; did you mean pvc?");
        for (word, names) in [
            ("deploy", "deployments.apps"),
            ("StatefulSet", "statefulsets.apps"),
            ("svc", "services"),
            ("jobs.batch", "jobs.batch"),
            ("ingresses.v1.networking.k8s.io", "ingresses.networking.k8s.io"),
        ] {
            let sentence = discovery.named(word).unwrap_err().to_string();
            let starts =
                format!("the server has no kind `{word}`; longshore up does not serve {names}: ");
            assert!(sentence.starts_with(&starts), "{sentence}");
        }
        let sentence = discovery.named("deployments.example.com").unwrap_err().to_string();
        assert_eq!(sentence, "the server has no kind `deployments.example.com`");
        let sentence = discovery.of_manifest("apps/v1", "Deployment").unwrap_err().to_string();
        assert!(
            sentence.contains("in apps/v1`; longshore up does not serve deployments.apps: "),
            "{sentence}"
        );
        assert!(discovery.named("pvc.apps").is_err());
        assert_eq!(discovery.named_or_category("all").unwrap()[0].plural, "pods");
        assert!(discovery.named_or_category("nothing").is_err());
    }

    #[test]
    fn manifests_need_group_and_version() {
        let discovery = discovery();
        assert!(discovery.of_manifest("v1", "Pod").is_ok());
        let wrong = discovery.of_manifest("storage.k8s.io/v1beta1", "StorageClass").unwrap_err();
        assert!(wrong.to_string().ends_with("did you mean StorageClass in storage.k8s.io/v1?"));
    }

    #[test]
    fn paths() {
        let discovery = discovery();
        let claim = discovery.named("pvc").unwrap();
        assert_eq!(
            claim.object("demo", "data"),
            "/api/v1/namespaces/demo/persistentvolumeclaims/data"
        );
        assert_eq!(claim.collection(None), "/api/v1/persistentvolumeclaims");
        assert_eq!(claim.display(), "persistentvolumeclaim");
        let class = discovery.named("sc").unwrap();
        assert_eq!(class.object("demo", "a/b"), "/apis/storage.k8s.io/v1/storageclasses/a%2Fb");
        assert_eq!(class.display(), "storageclass.storage.k8s.io");
    }
}
