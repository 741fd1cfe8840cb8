//! Commands that change objects, and those that wait for changes.

use std::time::Duration;

use super::*;

#[tokio::test]
async fn delete_waits_until_the_object_is_gone() {
    let world = World::new().await;
    let held =
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: held, finalizers: [example.com/hold]}\n";
    world.apply(held).await.unwrap();
    let held = || delete(select("cm", &["held"]));
    let impatient = Delete { timeout: Some(Duration::from_millis(200)), ..held() };
    let error = world.run(impatient).await.unwrap_err();
    assert!(error.to_string().contains("configmap held is still there"), "{error}");
    assert!(error.to_string().contains("held by example.com/hold"), "{error}");

    let paper = Captured::default();
    let waiting = tokio::spawn({
        let (mut out, session) = (paper.clone(), world.session.clone());
        async move {
            let mut err = Captured::default();
            let mut screen = Screen { out: &mut out, err: &mut err };
            perform(&session, delete(select("cm", &["held"])).into(), &mut screen).await
        }
    });
    eventually("it says so", || paper.text() == "configmap \"held\" deleted\n").await;
    assert!(!waiting.is_finished(), "it is still held");
    let path = "/api/v1/namespaces/default/configmaps/held";
    let release = json!({"metadata": {"finalizers": null}});
    world.send(http::Method::PATCH, path, "application/merge-patch+json", release).await;
    tokio::time::timeout(Duration::from_secs(30), waiting).await.unwrap().unwrap().unwrap();
    assert!(world.get("cm", &["held"], Output::Name).await.unwrap_err().is_not_found());
}

#[tokio::test]
async fn delete_by_file_and_of_what_is_not_there() {
    let world = World::new().await;
    world.apply(CLASS).await.unwrap();
    let files = || Selection { files: vec![world.file(CLASS)], ..Selection::default() };
    let (out, _) = world.run(delete(files())).await.unwrap();
    assert_eq!(out, "storageclass.storage.k8s.io \"fast\" deleted\n");
    let missing = world.run(delete(files())).await.unwrap_err();
    assert!(missing.is_not_found());
    let fine = Delete { ignore_not_found: true, ..delete(select("sc", &["fast"])) };
    assert_eq!(world.run(fine).await.unwrap().0, "");
}

#[tokio::test]
async fn delete_by_labels_takes_only_what_has_them() {
    let world = World::new().await;
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: data, labels: {app: web}}\n";
    let other = map.replace("name: data", "name: other").replace("web", "db");
    world.apply(&format!("{map}---\n{other}")).await.unwrap();
    let labelled = |labels: &str| Selection { labels: Some(labels.into()), ..select("cm", &[]) };
    let (out, _) = world.run(delete(labelled("app=db"))).await.unwrap();
    assert_eq!(out, "configmap \"other\" deleted\n");
    let (out, _) = world.run(delete(labelled("app=db"))).await.unwrap();
    assert_eq!(out, "No resources found\n");
    let try_only = Delete { dry_run: DryRun::Server, ..delete(select("cm", &["data"])) };
    let (out, _) = world.run(try_only).await.unwrap();
    assert_eq!(out, "configmap \"data\" deleted (server dry run)\n");
    assert!(world.get("cm", &["data"], Output::Name).await.is_ok());
}

#[tokio::test]
async fn wait_ends_when_the_condition_holds() {
    let world = World::new().await;
    let wait = |condition: &str, millis: u64| Wait {
        selection: select("cm", &["late"]),
        condition: Condition::parse(condition).unwrap(),
        timeout: Duration::from_millis(millis),
    };
    let session = world.session.clone();
    let waiting = |request: Wait| {
        let session = session.clone();
        tokio::spawn(async move {
            let (mut out, mut err) = (Captured::default(), Captured::default());
            let mut screen = Screen { out: &mut out, err: &mut err };
            perform(&session, request.into(), &mut screen).await.map(|()| out.text())
        })
    };
    let met = "configmap/late condition met\n";
    let created = waiting(wait("create", 30_000));
    let late = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: late}\ndata: {phase: Pending}\n";
    world.apply(late).await.unwrap();
    assert_eq!(created.await.unwrap().unwrap(), met);

    let bound = waiting(wait("jsonpath={.data.phase}=Bound", 30_000));
    world.apply(&late.replace("Pending", "Bound")).await.unwrap();
    assert_eq!(bound.await.unwrap().unwrap(), met);

    let sentence =
        world.run(wait("jsonpath={.data.phase}=Gone", 50)).await.unwrap_err().to_string();
    assert_eq!(
        sentence,
        "timed out waiting for {.data.phase}=Gone on configmap/late after 50ms; it is `Bound`; \
         see `longshore describe configmap/late`"
    );
    let gone = waiting(wait("delete", 30_000));
    world.run(delete(select("cm", &["late"]))).await.unwrap();
    assert!([met, ""].contains(&gone.await.unwrap().unwrap().as_str()));
    assert_eq!(world.run(wait("delete", 50)).await.unwrap().0, "");
    assert!(world.run(wait("condition=Ready", 50)).await.unwrap_err().is_not_found());
}

#[tokio::test]
async fn patch_says_whether_something_changed() {
    let world = World::new().await;
    world.apply(CLAIM).await.unwrap();
    let patch = |kind, patch| Patch {
        selection: select("pvc", &["data"]),
        kind,
        patch,
        subresource: None,
        manner: Manner::default(),
    };
    let label = json!({"metadata": {"labels": {"x": "1"}}});
    for (kind, body, verdict) in [
        (PatchKind::Strategic, label.clone(), "patched"),
        (PatchKind::Merge, label, "patched (no change)"),
        (PatchKind::Json, json!([{"op": "remove", "path": "/metadata/labels/x"}]), "patched"),
    ] {
        let (out, _) = world.run(patch(kind, body)).await.unwrap();
        assert_eq!(out, format!("persistentvolumeclaim/data {verdict}\n"), "{kind:?}");
    }
    let bad = json!([{"op": "remove", "path": "/metadata/labels/x"}]);
    let refused = world.run(patch(PatchKind::Json, bad)).await.unwrap_err().to_string();
    assert!(refused.starts_with("cannot change persistentvolumeclaim data: "), "{refused}");
    let mut status = patch(PatchKind::Merge, json!({"status": {"phase": "Bound"}}));
    status.subresource = Some("status".into());
    world.run(status).await.unwrap();
    let live = world.live("/api/v1/namespaces/default/persistentvolumeclaims/data").await;
    assert_eq!(live["status"]["phase"], "Bound");
}

#[tokio::test]
async fn labels_are_overwritten_only_if_asked() {
    let world = World::new().await;
    world.apply(CLAIM).await.unwrap();
    let label = |key: &str, value: Option<&str>, overwrite| Mark {
        marks: Marks::Labels,
        selection: select("pvc", &["data"]),
        changes: vec![(key.to_owned(), value.map(str::to_owned))],
        overwrite,
        list: false,
        manner: Manner::default(),
    };
    let sentence = world.run(label("app", Some("db"), false)).await.unwrap_err().to_string();
    assert!(
        sentence.ends_with("has labels app=web already; change it with --overwrite"),
        "{sentence}"
    );
    for (key, value, out) in [
        ("app", Some("db"), "persistentvolumeclaim/data labeled\n"),
        ("app", Some("db"), "persistentvolumeclaim/data not labeled\n"),
        ("app", None, "persistentvolumeclaim/data unlabeled\n"),
        ("app", None, "label \"app\" not found.\npersistentvolumeclaim/data not labeled\n"),
    ] {
        assert_eq!(world.run(label(key, value, true)).await.unwrap().0, out);
    }
}

#[tokio::test]
async fn create_takes_generated_names_and_refuses_what_exists() {
    let world = World::new().await;
    let create = |text: &str| Create { source: world.source(text), ..Create::default() };
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {generateName: one-}\n";
    let (out, _) = world.run(create(map)).await.unwrap();
    assert!(
        out.starts_with("configmap/one-") && out.ends_with(" created\n") && out.len() > 23,
        "{out}"
    );
    world.run(create(CLAIM)).await.unwrap();
    let sentence = world.run(create(CLAIM)).await.unwrap_err().to_string();
    assert!(sentence.contains("already exists"), "{sentence}");
    assert!(world.apply(map).await.unwrap_err().to_string().contains("lacks its metadata.name"));
}

#[tokio::test]
async fn server_side_apply_names_the_way_out_of_a_conflict() {
    let world = World::new().await;
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\ndata: {a: b}\n";
    let apply = |text: &str, manager: &str, force_conflicts| Apply {
        source: world.source(text),
        server_side: true,
        force_conflicts,
        manner: Manner { field_manager: Some(manager.into()), ..Manner::default() },
    };
    let (out, _) = world.run(apply(map, "one", false)).await.unwrap();
    assert_eq!(out, "configmap/m serverside-applied\n");
    let changed = map.replace("a: b", "a: c");
    let sentence = world.run(apply(&changed, "two", false)).await.unwrap_err().to_string();
    assert!(sentence.contains("conflict") && sentence.contains("--force-conflicts"), "{sentence}");
    world.run(apply(&changed, "two", true)).await.unwrap();
    assert_eq!(world.live("/api/v1/namespaces/default/configmaps/m").await["data"]["a"], "c");
}

#[tokio::test]
async fn dry_runs_keep_nothing() {
    let world = World::new().await;
    for (dry_run, remark) in [(DryRun::Client, "dry run"), (DryRun::Server, "server dry run")] {
        let manner = Manner { dry_run, ..Manner::default() };
        let request = Apply { source: world.source(CLAIM), manner, ..Apply::default() };
        let (out, _) = world.run(request).await.unwrap();
        assert_eq!(out, format!("persistentvolumeclaim/data created ({remark})\n"));
    }
    assert!(world.get("pvc", &["data"], Output::Name).await.unwrap_err().is_not_found());
}

#[tokio::test]
async fn edit_reopens_what_the_server_refused() {
    let world = World::new().await;
    world
        .apply("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\ndata: {a: b}\n")
        .await
        .unwrap();
    let edit = |script: &str| {
        let editor = world.dir.path().join("editor");
        std::fs::write(
            &editor,
            format!("cp \"$1\" {}/seen\n{script}\n", world.dir.path().display()),
        )
        .unwrap();
        Edit {
            selection: select("cm", &["m"]),
            editor: format!("/bin/sh {}", editor.display()),
            json: false,
            manner: Manner::default(),
        }
    };
    let (out, err) = world.run(edit("true")).await.unwrap();
    assert_eq!((out.as_str(), err.as_str()), ("", "Edit cancelled, no changes made.\n"));
    let (out, _) = world.run(edit("sed -i 's/a: b/a: c/' \"$1\"")).await.unwrap();
    assert_eq!(out, "configmap/m edited\n");
    assert_eq!(world.live("/api/v1/namespaces/default/configmaps/m").await["data"]["a"], "c");

    // The second round mends what the first one broke.
    let (out, err) = world
        .run(edit("grep -q 'was not valid' \"$1\" && sed -i 's/a: .*/a: d/' \"$1\" || sed -i 's/a: c/a: [1]/' \"$1\""))
        .await
        .unwrap();
    assert_eq!(
        (out.as_str(), err.as_str()),
        ("configmap/m edited\n", "longshore: configmaps \"m\" is invalid\n")
    );
    let seen = std::fs::read_to_string(world.dir.path().join("seen")).unwrap();
    assert!(seen.contains("\n# configmaps \"m\" was not valid:\n# * "), "{seen}");
    assert!(seen.starts_with("# Please edit the object below."), "{seen}");

    let (_, err) = world.run(edit("printf '' > \"$1\"")).await.unwrap();
    assert_eq!(err, "Edit cancelled, saved file was empty.\n");
    let failed = world.run(edit("exit 3")).await.unwrap_err().to_string();
    assert!(failed.contains("exit status: 3") && failed.contains("KUBE_EDITOR"), "{failed}");
}
