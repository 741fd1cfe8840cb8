//! On a plain directory in the place of the mounted export, and the API in memory.

use longshore_apiserver::{ApiServer, Config};
use serde_json::Value;

use super::{super::testing::request, *};

struct Lab {
    dir: tempfile::TempDir,
    nfs: Nfs,
    _server: ApiServer,
}

impl Lab {
    async fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("longshore-nfs-").tempdir().unwrap();
        let base = Arc::new(Base::open(dir.path()).unwrap());
        let server =
            ApiServer::open(Config { snapshot_kinds: false, ..Config::memory() }).await.unwrap();
        let export = Export { server: "server".into(), path: "/export".into() };
        let nfs = Nfs::new(base, export, Api::new(server.client()));
        Self { dir, nfs, _server: server }
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.dir.path()).unwrap().map(Result::unwrap);
        let mut names: Vec<_> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.retain(|name| name != ".longshore-trash");
        names.sort();
        names
    }

    /// Makes a volume and puts a file into it.
    async fn made(&self, parameters: Value) -> Volume {
        let request = request(json!({}), json!({"parameters": parameters}));
        let made = self.nfs.provision(&request).await.unwrap();
        let volume: Volume = serde_json::from_value(made.volume).unwrap();
        let directory = self.nfs.directory_of(&volume).unwrap();
        std::fs::write(self.dir.path().join(directory.to_string()).join("file"), "x").unwrap();
        volume
    }

    async fn saved(&self, name: &str, path: &str) {
        let volume = json!({"metadata": {"name": name}, "spec": {
            "capacity": {"storage": "1Mi"}, "accessModes": ["ReadWriteMany"],
            "nfs": {"server": "server", "path": path}}});
        self.nfs.api.create::<Volume>(&volume).await.unwrap();
    }
}

#[tokio::test]
async fn a_volume_names_the_export() {
    let lab = Lab::new().await;
    let class = json!({"reclaimPolicy": "Retain", "mountOptions": ["nfsvers=4.1"],
        "parameters": {"unknown": "passed over"}});
    let request = request(json!({"spec": {"accessModes": ["ReadWriteMany"]}}), class);
    let made = lab.nfs.provision(&request).await.unwrap();
    assert_eq!(lab.nfs.provision(&request).await.unwrap(), made, "a repeated request");
    let spec = &made.volume["spec"];
    assert_eq!(spec["nfs"], json!({"server": "server", "path": "/export/team-data-pvc-u1"}));
    assert_eq!(spec["mountOptions"], json!(["nfsvers=4.1"]));
    assert_eq!(spec["persistentVolumeReclaimPolicy"], "Retain");
    assert_eq!(spec["accessModes"], json!(["ReadWriteMany"]));
    assert_eq!(lab.names(), ["team-data-pvc-u1"]);
}

#[tokio::test]
async fn what_becomes_of_the_directory() {
    let directory = "team-data-pvc-u1";
    let archived = "archived-team-data-pvc-u1";
    for (parameters, left) in [
        (json!({}), Some(archived)),
        (json!({"archiveOnDelete": "true"}), Some(archived)),
        (json!({"archiveOnDelete": "false"}), None),
        (json!({"onDelete": "delete"}), None),
        (json!({"onDelete": "retain"}), Some(directory)),
        (json!({"onDelete": "retain", "archiveOnDelete": "false"}), Some(directory)),
        (json!({"onDelete": "delete", "archiveOnDelete": "true"}), None),
        (json!({"onDelete": "", "archiveOnDelete": "false"}), None),
    ] {
        let lab = Lab::new().await;
        let volume = lab.made(parameters.clone()).await;
        for _ in 0..2 {
            lab.nfs.delete(&volume).await.unwrap();
        }
        let left: Vec<&str> = left.into_iter().collect();
        assert_eq!(lab.names(), left, "{parameters}");
        if let [name] = left[..] {
            let file = lab.dir.path().join(name).join("file");
            assert_eq!(std::fs::read_to_string(file).unwrap(), "x", "{parameters}");
        }
    }
}

#[tokio::test]
async fn wrong_parameters_are_named_and_nothing_is_made() {
    let lab = Lab::new().await;
    for (parameters, part) in [
        (json!({"onDelete": "shred"}), "parameter onDelete: \"shred\" is not delete or retain"),
        (json!({"onDelete": "archive"}), "parameter onDelete"),
        (json!({"archiveOnDelete": "perhaps"}), "parameter archiveOnDelete"),
        (json!({"pathPattern": "../${.PVC.name}"}), "parameter pathPattern: the directory"),
        (json!({"pathPattern": "/${.PVC.name}"}), "begins with /"),
        (json!({"pathPattern": "a//${.PVC.name}"}), "empty part"),
        (json!({"pathPattern": "${.PVC.labels.app}"}), "no label \"app\""),
        (json!({"pathPattern": "${.PVC.annotations.path}/x"}), "no annotation \"path\""),
        (
            json!({"pathPattern": "${.PVC.nane}"}),
            "parameter pathPattern: ${.PVC.nane} is not known",
        ),
    ] {
        let request = request(json!({}), json!({"parameters": parameters}));
        let refused = lab.nfs.provision(&request).await.unwrap_err();
        assert!(matches!(refused, ProvisionError::Infeasible(_)));
        assert!(refused.to_string().contains(part), "{parameters}: {refused}");
    }
    let tricky = json!({"metadata": {"annotations": {"path": "../../etc"}}});
    let class = json!({"parameters": {"pathPattern": "${.PVC.annotations.path}"}});
    let refused = lab.nfs.provision(&request(tricky, class)).await.unwrap_err();
    assert!(refused.to_string().contains(". or .."), "{refused}");
    assert_eq!(lab.names(), Vec::<String>::new());
}

#[tokio::test]
async fn a_link_in_the_export_leads_nowhere() {
    let lab = Lab::new().await;
    let elsewhere = tempfile::Builder::new().prefix("longshore-nfs-").tempdir().unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), lab.dir.path().join("team")).unwrap();
    let class = json!({"parameters": {"pathPattern": "${.PVC.namespace}/${.PVC.name}"}});
    let refused = lab.nfs.provision(&request(json!({}), class)).await.unwrap_err();
    assert!(refused.to_string().contains("symbolic links are not followed"), "{refused}");
    assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn only_what_is_on_our_export_is_touched() {
    let lab = Lab::new().await;
    let volume = lab.made(json!({"onDelete": "delete"})).await;
    type Change = fn(&mut Volume);
    let rows: [Change; 5] = [
        |volume| volume.spec.nfs.as_mut().unwrap().server = "another".into(),
        |volume| volume.spec.nfs.as_mut().unwrap().path = "/other/team-data-pvc-u1".into(),
        |volume| volume.spec.nfs.as_mut().unwrap().path = "/export".into(),
        |volume| volume.spec.nfs.as_mut().unwrap().path = "/export/../etc".into(),
        |volume| volume.spec.nfs = None,
    ];
    for change in rows {
        let mut changed = volume.clone();
        change(&mut changed);
        let refused = lab.nfs.delete(&changed).await;
        assert!(matches!(refused, Err(DeleteError::Failed(_))), "{changed:?}");
    }
    assert_eq!(lab.names(), ["team-data-pvc-u1"]);
}

#[tokio::test]
async fn the_last_volume_of_a_shared_directory_takes_it_away() {
    let lab = Lab::new().await;
    let pattern = json!({"pathPattern": "${.PVC.namespace}", "onDelete": "delete"});
    let volume = lab.made(pattern).await;
    for (other, path) in [("same", "/export/team"), ("below", "/export/team/data")] {
        lab.saved(other, path).await;
        lab.nfs.delete(&volume).await.unwrap();
        assert_eq!(lab.names(), ["team"], "{other}");
        let key = ObjectKey::cluster(other);
        let patch = json!({"metadata": {"finalizers": null}});
        lab.nfs.api.patch::<Volume>(&key, longshore_cluster::Patch::Merge(&patch)).await.unwrap();
        lab.nfs.api.delete::<Volume>(&key, &Default::default()).await.unwrap();
    }
    lab.saved("beside", "/export/team-2").await;
    lab.nfs.delete(&volume).await.unwrap();
    assert_eq!(lab.names(), Vec::<String>::new());
}

#[tokio::test]
async fn archives_do_not_take_each_others_names() {
    let lab = Lab::new().await;
    let pattern = || json!({"pathPattern": "${.PVC.namespace}/${.PVC.name}"});
    for _ in 0..2 {
        let volume = lab.made(pattern()).await;
        lab.nfs.delete(&volume).await.unwrap();
    }
    assert_eq!(lab.names(), ["archived-data", "archived-pvc-u1", "team"]);
}

#[tokio::test]
async fn volumes_of_another_provisioner_follow_their_class() {
    let lab = Lab::new().await;
    for (class, left) in [("kept", "team-data-pvc-u1"), ("gone", "archived-team-data-pvc-u1")] {
        if class == "kept" {
            let object = json!({"metadata": {"name": class}, "provisioner": "p",
                "parameters": {"onDelete": "retain"}});
            lab.nfs.api.create::<StorageClass>(&object).await.unwrap();
        }
        let mut volume = lab.made(json!({})).await;
        volume.metadata.annotations.clear();
        volume.spec.storage_class_name = class.into();
        lab.nfs.delete(&volume).await.unwrap();
        assert_eq!(lab.names(), [left]);
    }
}

#[tokio::test]
async fn a_pattern_cannot_name_what_another_claim_left() {
    let lab = Lab::new().await;
    std::fs::create_dir(lab.dir.path().join("archived-team")).unwrap();
    for pattern in ["archived-team", "archived-team/inner", "archived-${.PVC.namespace}"] {
        let request = request(json!({}), json!({"parameters": {"pathPattern": pattern}}));
        let error = lab.nfs.provision(&request).await.unwrap_err().to_string();
        assert!(error.contains("deleted claims"), "{pattern}: {error}");
    }
    assert_eq!(lab.names(), ["archived-team"]);
}
