//! The client commands against a real server in the same process.

mod changes;

use std::path::PathBuf;
use std::sync::Arc;

use longshore_apiserver::{ApiServer, Config};
use longshore_testing::{Captured, eventually};
use serde_json::{Value, json};

use super::session::{Ask, JSON};
use super::{
    Apply, Cascade, ClientError, Condition, Create, Delete, Describe, DryRun, Edit, Events, Follow,
    Get, Logs, Manner, Mark, Marks, Output, Patch, PatchKind, Request, Scope, Screen, Selection,
    Session, Source, Status, Wait, Word, perform,
};

struct World {
    _server: ApiServer,
    session: Arc<Session>,
    dir: tempfile::TempDir,
}

impl World {
    async fn new() -> Self {
        let server = ApiServer::open(Config::memory()).await.unwrap();
        let session = Arc::new(Session::new(server.client()));
        Self { _server: server, session, dir: tempfile::tempdir().unwrap() }
    }

    fn file(&self, text: &str) -> PathBuf {
        let path = self.dir.path().join("objects.yaml");
        std::fs::write(&path, text).unwrap();
        path
    }

    fn source(&self, text: &str) -> Source {
        Source { files: vec![self.file(text)], ..Source::default() }
    }

    /// Stdout and stderr of a request.
    async fn run(&self, request: impl Into<Request>) -> Result<(String, String), ClientError> {
        let (mut out, mut err) = (Captured::default(), Captured::default());
        let mut screen = Screen { out: &mut out, err: &mut err };
        perform(&self.session, request.into(), &mut screen).await?;
        Ok((out.text(), err.text()))
    }

    async fn apply(&self, text: &str) -> Result<String, ClientError> {
        self.run(Apply { source: self.source(text), ..Apply::default() }).await.map(|(out, _)| out)
    }

    async fn get(
        &self,
        kinds: &str,
        names: &[&str],
        output: Output,
    ) -> Result<String, ClientError> {
        self.run(get(kinds, names, output)).await.map(|(out, _)| out)
    }

    async fn live(&self, path: &str) -> Value {
        self.session.json(Ask::get("it", path.to_owned())).await.unwrap()
    }

    async fn send(
        &self,
        method: http::Method,
        path: &str,
        kind: &'static str,
        body: Value,
    ) -> Value {
        let ask = Ask {
            verb: "send",
            object: "it",
            method,
            path: path.to_owned(),
            accept: JSON,
            body: Some((kind, body)),
        };
        self.session.json(ask).await.unwrap()
    }
}

fn select(kinds: &str, names: &[&str]) -> Selection {
    let word = |kind: &str, name: Option<&&str>| Word {
        kind: kind.to_owned(),
        name: name.map(ToString::to_string),
    };
    let of_kind = |kind: &str| match names {
        [] => vec![word(kind, None)],
        names => names.iter().map(|name| word(kind, Some(name))).collect(),
    };
    Selection { words: kinds.split(',').flat_map(of_kind).collect(), ..Selection::default() }
}

fn get(kinds: &str, names: &[&str], output: Output) -> Get {
    Get { selection: select(kinds, names), output, ..Get::default() }
}

fn describe(kind: &str, names: &[&str]) -> Describe {
    Describe { selection: select(kind, names), events: true }
}

fn delete(selection: Selection) -> Delete {
    Delete {
        selection,
        wait: true,
        timeout: None,
        grace_period: None,
        force: false,
        ignore_not_found: false,
        cascade: Cascade::Background,
        dry_run: DryRun::None,
        only_names: false,
    }
}

const CLASS: &str = "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: fast}\n\
                     provisioner: demo.example.com\nvolumeBindingMode: WaitForFirstConsumer\n";
const CLAIM: &str = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata:\n  name: data\n  labels: {app: web, tier: one}\n\
                     spec:\n  accessModes: [ReadWriteOnce]\n  storageClassName: fast\n  resources: {requests: {storage: 1Gi}}\n";

#[tokio::test]
async fn apply_creates_changes_and_knows_when_nothing_is_to_do() {
    let world = World::new().await;
    let both = format!("{CLASS}---\n{CLAIM}");
    assert_eq!(
        world.apply(&both).await.unwrap(),
        "storageclass.storage.k8s.io/fast created\npersistentvolumeclaim/data created\n"
    );
    assert_eq!(
        world.apply(&both).await.unwrap(),
        "storageclass.storage.k8s.io/fast unchanged\npersistentvolumeclaim/data unchanged\n"
    );
    let path = "/api/v1/namespaces/default/persistentvolumeclaims/data";
    let by_others = json!({"metadata": {"labels": {"others": "kept"}}});
    world.send(http::Method::PATCH, path, "application/merge-patch+json", by_others).await;

    let less = CLAIM.replace(", tier: one", "");
    assert_eq!(world.apply(&less).await.unwrap(), "persistentvolumeclaim/data configured\n");
    let live = world.live(path).await;
    assert_eq!(live["metadata"]["labels"], json!({"app": "web", "others": "kept"}));
    let record =
        live["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"]
            .as_str()
            .unwrap();
    assert!(record.starts_with("{\"apiVersion\":\"v1\"") && record.ends_with("}\n"), "{record}");
}

#[tokio::test]
async fn apply_of_a_pod_twice_changes_nothing() {
    let world = World::new().await;
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers:\n  - name: main\n    image: host\n\
               \x20   command: [sleep, '1']\n";
    assert_eq!(world.apply(pod).await.unwrap(), "pod/web created\n");
    assert_eq!(world.apply(pod).await.unwrap(), "pod/web unchanged\n");
}

#[tokio::test]
async fn apply_goes_on_after_a_failure() {
    let world = World::new().await;
    let broken = CLAIM.replace("name: data", "name: bad").replace("ReadWriteOnce", "Nope");
    let source = world.source(&format!("{broken}---\n{CLASS}"));
    let (mut out, mut err) = (Captured::default(), Captured::default());
    let mut screen = Screen { out: &mut out, err: &mut err };
    let request = Apply { source, ..Apply::default() };
    let error = perform(&world.session, request.into(), &mut screen).await.unwrap_err();
    assert!(error.to_string().starts_with("cannot create persistentvolumeclaim/bad: "), "{error}");
    assert_eq!(out.text(), "storageclass.storage.k8s.io/fast created\n");

    let unknown = world.apply("apiVersion: v1\nkind: Nothing\nmetadata: {name: x}\n").await;
    assert!(matches!(unknown, Err(ClientError::UnknownKind { .. })), "{unknown:?}");
}

#[tokio::test]
async fn get_prints_tables_like_kubectl() {
    let world = World::new().await;
    world.apply(&format!("{CLASS}---\n{CLAIM}")).await.unwrap();
    let table = world.get("pvc", &[], Output::Table).await.unwrap();
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(
        lines[0],
        "NAME   STATUS    VOLUME   CAPACITY   ACCESS MODES   STORAGECLASS   VOLUMEATTRIBUTESCLASS   AGE"
    );
    assert!(
        lines[1].starts_with(
            "data   Pending                                      fast           <unset>                 "
        ),
        "{table}"
    );
    let wide = world.get("persistentvolumeclaims", &["data"], Output::Wide).await.unwrap();
    assert!(wide.lines().next().unwrap().ends_with("VOLUMEMODE"), "{wide}");
    assert!(wide.lines().nth(1).unwrap().ends_with("Filesystem"), "{wide}");

    let several = world.get("pvc,sc", &[], Output::Table).await.unwrap();
    assert!(several.contains("persistentvolumeclaim/data"), "{several}");
    assert!(several.contains("\n\nNAME"), "{several}");
    assert!(several.contains("storageclass.storage.k8s.io/fast"), "{several}");

    let mut all = get("pvc", &[], Output::Table);
    all.selection.scope = Scope::All;
    let (all, _) = world.run(all).await.unwrap();
    assert!(all.starts_with("NAMESPACE   NAME") && all.contains("\ndefault     data"), "{all}");
}

#[tokio::test]
async fn get_prints_objects() {
    let world = World::new().await;
    world.apply(CLAIM).await.unwrap();
    assert_eq!(world.get("pvc", &[], Output::Name).await.unwrap(), "persistentvolumeclaim/data\n");
    let json: Value =
        serde_json::from_str(&world.get("pvc", &["data"], Output::Json).await.unwrap()).unwrap();
    assert_eq!(json["kind"], "PersistentVolumeClaim");
    assert_eq!(json["metadata"]["managedFields"], Value::Null);
    let list: Value =
        serde_json::from_str(&world.get("pvc", &[], Output::Json).await.unwrap()).unwrap();
    assert_eq!((&list["kind"], &list["items"][0]["kind"]), (&json!("List"), &json["kind"]));
    let yaml = world.get("pvc", &["data"], Output::Yaml).await.unwrap();
    assert!(yaml.starts_with("apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata:\n"), "{yaml}");
    let back: Value = serde_saphyr::from_str(&yaml).unwrap();
    assert_eq!(back, json);
}

#[tokio::test]
async fn get_says_what_is_not_there() {
    let world = World::new().await;
    let (out, err) = world.run(get("pvc", &[], Output::Table)).await.unwrap();
    assert_eq!((out.as_str(), err.as_str()), ("", "No resources found in default namespace.\n"));
    for kinds in ["pv", "pvc,pv"] {
        let (_, err) = world.run(get(kinds, &[], Output::Table)).await.unwrap();
        assert_eq!(err, "No resources found\n", "{kinds}");
    }
    let missing = world.get("pvc", &["nope"], Output::Table).await.unwrap_err();
    assert!(missing.is_not_found());
    assert_eq!(
        missing.to_string(),
        "cannot get persistentvolumeclaim nope: persistentvolumeclaims \"nope\" not found"
    );
    let unknown = world.get("pvx", &[], Output::Table).await.unwrap_err();
    assert!(unknown.to_string().starts_with("the server has no kind `pvx`"), "{unknown}");
    let logs = Logs { pod: "nope".into(), ..Logs::default() };
    assert!(world.run(logs).await.unwrap_err().is_not_found());
}

#[tokio::test]
async fn get_watches() {
    let world = World::new().await;
    world.apply(CLAIM).await.unwrap();
    let paper = Captured::default();
    let watching = tokio::spawn({
        let (mut out, session) = (paper.clone(), world.session.clone());
        async move {
            let mut err = Captured::default();
            let mut screen = Screen { out: &mut out, err: &mut err };
            let request = Get { follow: Follow::Watch, ..get("pvc", &[], Output::Table) };
            perform(&session, request.into(), &mut screen).await
        }
    });
    eventually("the claim is listed", || paper.text().contains("data ")).await;
    world.apply(&CLAIM.replace("name: data", "name: second-claim")).await.unwrap();
    eventually("the second is, too", || paper.text().contains("\nsecond-claim")).await;
    let text = paper.text();
    assert_eq!(text.matches("STORAGECLASS").count(), 1, "one header only:\n{text}");
    watching.abort();
}

#[tokio::test]
async fn describe_shows_sections_users_and_events() {
    let world = World::new().await;
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers: [{name: main, image: host, \
               volumeMounts: [{name: v, mountPath: /data}]}]\n  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]\n";
    world.apply(&format!("{CLASS}---\n{CLAIM}---\n{pod}")).await.unwrap();
    let uid = world.live("/api/v1/namespaces/default/persistentvolumeclaims/data").await["metadata"]["uid"].clone();
    let event = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "data.1"}, "type": "Warning",
        "reason": "ProvisioningFailed", "message": "no space", "count": 3, "source": {"component": "tester"},
        "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:05:00Z",
        "involvedObject": {"kind": "PersistentVolumeClaim", "namespace": "default", "name": "data", "uid": uid},
    });
    world.send(http::Method::POST, "/api/v1/namespaces/default/events", JSON, event).await;

    let (text, _) = world.run(describe("pvc", &["data"])).await.unwrap();
    for part in [
        "Name:          data\n",
        "StorageClass:  fast\n",
        "Labels:        app=web\n               tier=one\n",
        "Used By:       web\n",
        "Events:\n  Type      Reason",
        "ProvisioningFailed",
        "(x3 over ",
        "no space\n",
    ] {
        assert!(text.contains(part), "{part:?} is missing in\n{text}");
    }
    assert!(!text.contains("last-applied"), "{text}");
    let (text, _) = world.run(describe("pod", &["web"])).await.unwrap();
    assert!(text.contains("/data from v (rw)") && text.contains("Events:"), "{text}");
    let (text, _) = world.run(describe("sc", &["fast"])).await.unwrap();
    assert!(text.contains("demo.example.com") && text.contains("Events:"), "{text}");
}

#[tokio::test]
async fn describe_keeps_secrets() {
    let world = World::new().await;
    let secret =
        "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {password: hunter2}\n";
    world.apply(secret).await.unwrap();
    let (text, _) = world.run(describe("secret", &["s"])).await.unwrap();
    assert!(text.contains("  password:  7 bytes\n"), "{text}");
    assert!(!text.contains("hunter2") && !text.contains("aHVudGVyMg"), "{text}");
}

#[tokio::test]
async fn events_are_shown_oldest_first_and_by_object() {
    let world = World::new().await;
    for (name, time, kind) in [("b", "00:05", "Warning"), ("a", "00:01", "Normal")] {
        let event = json!({
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": name}, "type": kind,
            "reason": "Tested", "message": format!("about {name}"),
            "firstTimestamp": format!("2026-01-01T{time}:00Z"),
            "lastTimestamp": format!("2026-01-01T{time}:00Z"),
            "involvedObject": {"kind": "Pod", "namespace": "default", "name": name},
        });
        world.send(http::Method::POST, "/api/v1/namespaces/default/events", JSON, event).await;
    }
    let (out, _) = world.run(Events::default()).await.unwrap();
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines[0].starts_with("LAST SEEN") && lines[0].ends_with("MESSAGE"), "{out}");
    assert!(
        lines[1].ends_with("Pod/a    about a") && lines[2].ends_with("Pod/b    about b"),
        "{out}"
    );
    let about = Some(Word { kind: "po".into(), name: Some("b".into()) });
    let (out, _) =
        world.run(Events { about, no_headers: true, ..Events::default() }).await.unwrap();
    assert_eq!(out.lines().count(), 1, "{out}");
    let types = vec!["normal".to_owned()];
    let (out, _) =
        world.run(Events { types, output: Some(Output::Name), ..Events::default() }).await.unwrap();
    assert_eq!(out, "event/a\n");
    let about = Some(Word { kind: "po".into(), name: Some("c".into()) });
    let (out, err) = world.run(Events { about, ..Events::default() }).await.unwrap();
    assert_eq!((out.as_str(), err.as_str()), ("", "No events found in default namespace.\n"));
}

#[tokio::test]
async fn status_names_a_claim_that_waits() {
    let world = World::new().await;
    world.apply(&format!("{CLASS}---\n{CLAIM}")).await.unwrap();
    let (page, _) = world.run(Status { json: false }).await.unwrap();
    assert!(page.contains("1 claim (1 waiting)"), "{page}");
    assert!(page.contains("PersistentVolumeClaim default/data"), "{page}");
    let (json, _) = world.run(Status { json: true }).await.unwrap();
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["waiting"][0]["name"], "data");
}
