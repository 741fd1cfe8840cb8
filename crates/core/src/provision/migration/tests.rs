use serde_json::{Value, json};

use super::*;
use crate::{
    bind::fixtures::merge,
    model::{AccessMode, kinds::StorageClass},
};

const ZONE: &str = "topology.kubernetes.io/zone";
const BETA_ZONE: &str = "failure-domain.beta.kubernetes.io/zone";

fn class(plugin: &str, parameters: Value, allowed: Value) -> StorageClass {
    serde_json::from_value(json!({"metadata": {"name": "fast"}, "parameters": parameters,
        "provisioner": format!("kubernetes.io/{plugin}"), "allowedTopologies": allowed}))
    .unwrap()
}

fn terms(key: &str, values: &[&str]) -> Value {
    json!([{"matchLabelExpressions": [{"key": key, "values": values}]}])
}

/// case: provisioner/119 class half
#[test]
fn classes() {
    let none = || json!(null);
    let aws = "topology.ebs.csi.aws.com/zone";
    let gce = "topology.gke.io/zone";
    let azure = "topology.disk.csi.azure.com/zone";
    type Row<'a> = (&'a str, Value, Value, Value, Value);
    let rows: Vec<Row<'_>> = vec![
        (
            "aws-ebs",
            json!({"type": "gp2", "fsType": "xfs", "zone": "a"}),
            none(),
            json!({"type": "gp2", "csi.storage.k8s.io/fstype": "xfs"}),
            terms(aws, &["a"]),
        ),
        (
            "aws-ebs",
            json!({"iopsPerGB": "5", "zones": "a,b"}),
            none(),
            json!({"iopsPerGB": "5", "allowautoiopspergbincrease": "true"}),
            terms(aws, &["a", "b"]),
        ),
        ("aws-ebs", json!({}), terms(BETA_ZONE, &["a"]), json!({}), terms(aws, &["a"])),
        ("aws-ebs", json!({}), terms("rack", &["a"]), json!({}), terms("rack", &["a"])),
        (
            "gce-pd",
            json!({"FSTYPE": "ext4", "replication-type": "none", "zones": "a,b"}),
            none(),
            json!({"csi.storage.k8s.io/fstype": "ext4", "replication-type": "none"}),
            terms(gce, &["a", "b"]),
        ),
        ("gce-pd", json!({}), terms(ZONE, &["a"]), json!({}), terms(gce, &["a"])),
        (
            "cinder",
            json!({"fstype": "ext4", "availability": "nova", "zone": "a"}),
            terms(ZONE, &["a"]),
            json!({"csi.storage.k8s.io/fstype": "ext4", "availability": "nova", "zone": "a"}),
            terms("topology.cinder.csi.openstack.org/zone", &["a"]),
        ),
        (
            "azure-disk",
            json!({"fsType": "ext4", "zone": "1"}),
            none(),
            json!({"fsType": "ext4"}),
            terms(azure, &[""]),
        ),
        (
            "azure-disk",
            json!({}),
            terms(ZONE, &["0", "eu-1"]),
            json!({}),
            terms(azure, &["", "eu-1"]),
        ),
        (
            "azure-file",
            json!({"fsType": "x", "zone": "1"}),
            terms(ZONE, &["1"]),
            json!({"fsType": "x", "zone": "1"}),
            terms(ZONE, &["1"]),
        ),
        (
            "vsphere-volume",
            json!({"fstype": "ext4", "storagePolicyName": "p", "DiskFormat": "thin", "datastore": "d",
                "hostFailuresToTolerate": "1", "forceProvisioning": "1", "cacheReservation": "1",
                "diskStripes": "1", "objectSpaceReservation": "1", "iopsLimit": "1", "other": "x"}),
            terms(ZONE, &["a"]),
            json!({"csi.storage.k8s.io/fstype": "ext4", "storagepolicyname": "p",
                "diskformat-migrationparam": "thin", "datastore-migrationparam": "d",
                "hostfailurestotolerate-migrationparam": "1", "forceprovisioning-migrationparam": "1",
                "cachereservation-migrationparam": "1", "diskstripes-migrationparam": "1",
                "objectspacereservation-migrationparam": "1", "iopslimit-migrationparam": "1",
                "csimigration": "true"}),
            terms("topology.csi.vmware.com/zone", &["a"]),
        ),
    ];
    for (plugin, parameters, allowed, want, want_allowed) in rows {
        let old = class(plugin, parameters, allowed);
        let new = class_to_csi(&old).unwrap();
        let want = class(plugin, want, want_allowed);
        assert_eq!(new, want, "{plugin}: {old:?}");
    }
}

#[test]
fn portworx_classes_get_their_secrets_and_a_new_name() {
    let auth = json!({"openstorage.io/auth-secret-name": "s",
        "openstorage.io/auth-secret-namespace": "ns", "repl": "2"});
    let new = class_to_csi(&class("portworx-volume", auth, json!(null))).unwrap();
    assert_eq!(new.provisioner, "pxd.portworx.com");
    assert_eq!(new.parameters.len(), 13);
    assert_eq!(new.parameters["repl"], "2");
    for role in ["provisioner", "controller-publish", "node-publish", "node-stage"] {
        let value =
            |part: &str| &new.parameters[&format!("csi.storage.k8s.io/{role}-secret-{part}")];
        assert_eq!((value("name").as_str(), value("namespace").as_str()), ("s", "ns"));
    }
}

#[test]
fn classes_that_have_no_csi_form() {
    for plugin in ["aws-ebs", "gce-pd", "azure-disk"] {
        let both = class(plugin, json!({"zone": "a"}), terms(ZONE, &["a"]));
        assert_eq!(class_to_csi(&both), Err(TranslationError::ZonesTwice));
    }
    let unknown = class("rbd", json!({}), json!(null));
    let error = class_to_csi(&unknown).unwrap_err().to_string();
    assert!(error.contains("\"kubernetes.io/rbd\""), "{error}");
}

fn volume(over: Value) -> Volume {
    let mut base = json!({"metadata": {"name": "vol"}, "spec": {"accessModes": ["ReadWriteOnce"]}});
    merge(&mut base, over);
    serde_json::from_value(base).unwrap()
}

fn affinity(terms: &[&[(&str, &[&str])]]) -> Value {
    let term = |all: &&[(&str, &[&str])]| {
        let one = |(key, values): &(&str, &[&str])| json!({"key": key, "operator": "In", "values": values});
        json!({"matchExpressions": all.iter().map(one).collect::<Vec<_>>()})
    };
    let terms: Vec<Value> = terms.iter().map(term).collect();
    json!({"required": {"nodeSelectorTerms": terms}})
}

/// Every source with the CSI source that it becomes. case: provisioner/120 and case: attacher/39
#[test]
fn sources() {
    let labelled = |key: &str, value: &str| json!({"metadata": {"labels": {key: value}}});
    let rows: Vec<(&str, Value, Value, Value)> = vec![
        (
            "aws, with the zone in its id",
            json!({}),
            json!({"awsElasticBlockStore": {"volumeID": "aws://us-east-1a/vol-77", "fsType": "ext4", "readOnly": true}}),
            json!({"driver": "ebs.csi.aws.com", "volumeHandle": "vol-77", "fsType": "ext4",
                "readOnly": true, "volumeAttributes": {"partition": "0"}}),
        ),
        (
            "aws, without zone, and bare",
            json!({}),
            json!({"awsElasticBlockStore": {"volumeID": "aws:///vol-1", "partition": 2}}),
            json!({"driver": "ebs.csi.aws.com", "volumeHandle": "vol-1", "volumeAttributes": {"partition": "2"}}),
        ),
        (
            "gce, one zone",
            labelled(ZONE, "testZone"),
            json!({"gcePersistentDisk": {"pdName": "testpd", "partition": 2}}),
            json!({"driver": "pd.csi.storage.gke.io", "volumeAttributes": {"partition": "2"},
                "volumeHandle": "projects/UNSPECIFIED/zones/testZone/disks/testpd"}),
        ),
        (
            "gce, several zones",
            labelled(BETA_ZONE, "us-central1-a__us-central1-c"),
            json!({"gcePersistentDisk": {"pdName": "pd"}}),
            json!({"driver": "pd.csi.storage.gke.io", "volumeAttributes": {"partition": ""},
                "volumeHandle": "projects/UNSPECIFIED/regions/us-central1/disks/pd"}),
        ),
        (
            "gce, nowhere in particular",
            json!({}),
            json!({"gcePersistentDisk": {"pdName": "pd", "readOnly": true}}),
            json!({"driver": "pd.csi.storage.gke.io", "readOnly": true, "volumeAttributes": {"partition": ""},
                "volumeHandle": "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/pd"}),
        ),
        (
            "azure disk",
            json!({}),
            json!({"azureDisk": {"diskURI": "/s/d", "cachingMode": "ReadOnly", "fsType": "xfs",
                "readOnly": true, "kind": "managed"}}),
            json!({"driver": "disk.csi.azure.com", "volumeHandle": "/s/d", "fsType": "xfs", "readOnly": true,
                "volumeAttributes": {"kind": "Managed", "cachingmode": "ReadOnly", "fstype": "xfs"}}),
        ),
        (
            "azure file, with all it can say",
            json!({"metadata": {"annotations": {"kubernetes.io/azure-file-resource-group": "rg"}}}),
            json!({"azureFile": {"secretName": "azure-storage-account-acc-secret", "shareName": "sh",
                "secretNamespace": "ns", "readOnly": true}}),
            json!({"driver": "file.csi.azure.com", "volumeHandle": "rg#acc#sh#vol#ns", "readOnly": true,
                "volumeAttributes": {"sharename": "sh"},
                "nodeStageSecretRef": {"name": "azure-storage-account-acc-secret", "namespace": "ns"}}),
        ),
        (
            "azure file, in the claim's namespace",
            json!({}),
            json!({"azureFile": {"secretName": "s", "shareName": "sh"}, "claimRef": {"namespace": "cns"}}),
            json!({"driver": "file.csi.azure.com", "volumeHandle": "#s#sh#vol#cns",
                "volumeAttributes": {"sharename": "sh"},
                "nodeStageSecretRef": {"name": "s", "namespace": "cns"}}),
        ),
        (
            "cinder",
            json!({}),
            json!({"cinder": {"volumeID": "c1", "fsType": "ext4", "readOnly": true}}),
            json!({"driver": "cinder.csi.openstack.org", "volumeHandle": "c1", "fsType": "ext4", "readOnly": true}),
        ),
        (
            "vsphere",
            json!({}),
            json!({"vsphereVolume": {"volumePath": "[d] a.vmdk", "fsType": "ext4", "storagePolicyName": "p"}}),
            json!({"driver": "csi.vsphere.vmware.com", "volumeHandle": "[d] a.vmdk", "fsType": "ext4",
                "volumeAttributes": {"storagepolicyname": "p"}}),
        ),
        (
            "portworx",
            json!({}),
            json!({"portworxVolume": {"volumeID": "p1", "fsType": "ext4"}}),
            json!({"driver": "pxd.portworx.com", "volumeHandle": "p1", "fsType": "ext4"}),
        ),
    ];
    for (name, over, source, want) in rows {
        let mut all = over;
        merge(&mut all, json!({"spec": source}));
        let old = volume(all);
        assert!(is_migratable(&old), "{name}");
        let new = volume_to_csi(&old).unwrap().expect(name);
        let want = serde_json::from_value(want).unwrap();
        assert_eq!(new.spec.csi, Some(want), "{name}");
        assert!(!is_migratable(&new), "{name}");
        assert_eq!(volume_to_csi(&new), Ok(None), "{name}");
    }
}

#[test]
fn portworx_secrets_come_from_annotations() {
    let over = json!({"metadata": {"annotations": {"openstorage.io/auth-secret-name": "s",
        "openstorage.io/auth-secret-namespace": "ns"}}, "spec": {"portworxVolume": {"volumeID": "p"}}});
    let csi = volume_to_csi(&volume(over)).unwrap().unwrap().spec.csi.unwrap();
    let all = [
        csi.controller_publish_secret_ref,
        csi.node_stage_secret_ref,
        csi.node_publish_secret_ref,
        csi.controller_expand_secret_ref,
        csi.node_expand_secret_ref,
    ];
    for one in all {
        let one = one.unwrap();
        assert_eq!((one.name.as_str(), one.namespace.as_str()), ("s", "ns"));
    }
}

#[test]
fn sources_that_have_no_csi_form() {
    let rows = [
        (
            json!({"awsElasticBlockStore": {"volumeID": "aws://zone/x-1"}}),
            "Invalid format for AWS volume",
        ),
        (
            json!({"awsElasticBlockStore": {"volumeID": "aws://z/a/vol-1"}}),
            "Invalid format for AWS volume",
        ),
        (
            json!({"azureDisk": {"diskURI": "d", "kind": "Dedicated"}}),
            "kind(Dedicated) is not supported",
        ),
        (
            json!({"azureFile": {"secretName": "s", "shareName": "sh"}}),
            "could not find a secret namespace",
        ),
    ];
    for (spec, want) in rows {
        let error = volume_to_csi(&volume(json!({"spec": spec}))).unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
    }
    let zones = json!({"metadata": {"labels": {ZONE: "us-east1-a__eu-west1-b"}},
        "spec": {"gcePersistentDisk": {"pdName": "pd"}}});
    let error = volume_to_csi(&volume(zones)).unwrap_err().to_string();
    assert!(error.contains("multiple or no regions"), "{error}");
}

#[test]
fn google_modes_become_what_they_were() {
    let rows: [(&[&str], &str); 5] = [
        (&["ReadOnlyMany"], "ReadOnlyMany"),
        (&["ReadWriteMany"], "ReadWriteOnce"),
        (&["ReadWriteOnce"], "ReadWriteOnce"),
        (&["ReadOnlyMany", "ReadWriteOnce"], "ReadWriteOnce"),
        (&["ReadWriteOncePod"], "ReadWriteOnce"),
    ];
    for (modes, want) in rows {
        let mut old = volume(json!({"spec": {"gcePersistentDisk": {"pdName": "pd"}}}));
        old.spec.access_modes = modes.iter().map(|mode| AccessMode::from(*mode)).collect();
        assert_eq!(
            volume_to_csi(&old).unwrap().unwrap().spec.access_modes,
            [want.into()],
            "{modes:?}"
        );
    }
}

#[test]
fn topology_to_the_driver() {
    let aws = "topology.ebs.csi.aws.com/zone";
    let disk = json!({"awsElasticBlockStore": {"volumeID": "vol-1"}});
    let vsphere = json!({"vsphereVolume": {"volumePath": "p"}});
    let vm_zone = "topology.csi.vmware.com/zone";
    let vm_region = "topology.csi.vmware.com/region";
    let region = "topology.kubernetes.io/region";
    let beta_region = "failure-domain.beta.kubernetes.io/region";
    type Row<'a> = (&'a str, &'a Value, Value, Value, Value);
    let rows: Vec<Row<'_>> = vec![
        (
            "renamed",
            &disk,
            json!({ZONE: "b"}),
            affinity(&[&[(ZONE, &["a"])]]),
            affinity(&[&[(aws, &["a"])]]),
        ),
        (
            "from labels, sorted and once",
            &disk,
            json!({ZONE: "b__a__b"}),
            json!(null),
            affinity(&[&[(aws, &["a", "b"])]]),
        ),
        (
            "added to every term",
            &disk,
            json!({ZONE: "a"}),
            affinity(&[&[("rack", &["1"])], &[("rack", &["2"])]]),
            affinity(&[&[("rack", &["1"]), (aws, &["a"])], &[("rack", &["2"]), (aws, &["a"])]]),
        ),
        (
            "old region key",
            &disk,
            json!({}),
            affinity(&[&[(BETA_ZONE, &["a"]), (beta_region, &["r"])]]),
            affinity(&[&[(aws, &["a"]), (region, &["r"])]]),
        ),
        (
            "vsphere has both",
            &vsphere,
            json!({region: "r"}),
            affinity(&[&[(ZONE, &["a"])]]),
            affinity(&[&[(vm_zone, &["a"]), (vm_region, &["r"])]]),
        ),
        ("nothing to say", &disk, json!({}), json!(null), json!(null)),
    ];
    for (name, source, labels, from, to) in rows {
        let mut spec = source.clone();
        merge(&mut spec, json!({"nodeAffinity": from}));
        let old = volume(json!({"metadata": {"labels": labels}, "spec": spec}));
        let new = volume_to_csi(&old).unwrap().unwrap();
        let want = volume(json!({"spec": {"nodeAffinity": to}}));
        assert_eq!(new.spec.node_affinity, want.spec.node_affinity, "{name}");
    }
}

fn made(driver: &str, handle: &str, over: Value) -> Value {
    let mut base = json!({"metadata": {"name": "vol", "annotations": {"a": "b"}}, "spec": {
        "capacity": {"storage": "1Gi"}, "csi": {"driver": driver, "volumeHandle": handle}}});
    merge(&mut base, over);
    base
}

/// case: provisioner/119 volume half
#[test]
fn volumes_go_back_to_their_old_form() {
    let csi = |over: Value| json!({"spec": {"csi": over}});
    let gce = "projects/p/zones/z/disks/pd-1";
    let uri = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/disks/d-1";
    let rows: Vec<(&str, &str, Value, Value)> = vec![
        (
            "ebs.csi.aws.com",
            "vol-1",
            csi(json!({"fsType": "xfs", "readOnly": true, "volumeAttributes": {"partition": "1"}})),
            json!({"awsElasticBlockStore": {"volumeID": "vol-1", "fsType": "xfs", "readOnly": true, "partition": 1}}),
        ),
        (
            "pd.csi.storage.gke.io",
            gce,
            csi(json!({"volumeAttributes": {"partition": ""}})),
            json!({"gcePersistentDisk": {"pdName": "pd-1"}}),
        ),
        (
            "cinder.csi.openstack.org",
            "c",
            csi(json!({"fsType": "ext4"})),
            json!({"cinder": {"volumeID": "c", "fsType": "ext4"}}),
        ),
        ("pxd.portworx.com", "p", csi(json!({})), json!({"portworxVolume": {"volumeID": "p"}})),
        (
            "csi.vsphere.vmware.com",
            "id",
            csi(json!({"volumeAttributes": {"initialvolumefilepath": "[d] x"}})),
            json!({"vsphereVolume": {"volumePath": "[d] x"}}),
        ),
        (
            "disk.csi.azure.com",
            uri,
            csi(
                json!({"fsType": "xfs", "volumeAttributes": {"cachingMode": "None", "fsType": "ext4"}}),
            ),
            json!({"azureDisk": {"diskName": "d-1", "diskURI": uri, "kind": "Managed", "fsType": "ext4",
                "readOnly": false, "cachingMode": "None"}}),
        ),
        (
            "disk.csi.azure.com",
            "https://acc.blob.core.windows.net/vhds/d.vhd",
            csi(json!({})),
            json!({"azureDisk": {"diskName": "d.vhd", "kind": "Managed", "fsType": "", "readOnly": false,
                "diskURI": "https://acc.blob.core.windows.net/vhds/d.vhd"}}),
        ),
        (
            "file.csi.azure.com",
            "x",
            csi(
                json!({"volumeAttributes": {"shareName": "sh"}, "nodeStageSecretRef": {"name": "s", "namespace": "ns"}}),
            ),
            json!({"azureFile": {"shareName": "sh", "secretName": "s", "secretNamespace": "ns"}}),
        ),
    ];
    for (driver, handle, over, want) in rows {
        let mut object = made(driver, handle, over);
        volume_to_in_tree(&mut object).unwrap();
        let mut expected = made(driver, handle, json!({}));
        expected["spec"].as_object_mut().unwrap().remove("csi");
        merge(&mut expected, json!({"spec": want}));
        assert_eq!(object, expected, "{driver}");
    }
    let mut object = made("file.csi.azure.com", "rg#acc#sh", json!({}));
    volume_to_in_tree(&mut object).unwrap();
    let want = json!({"shareName": "sh", "secretName": "azure-storage-account-acc-secret", "secretNamespace": "default"});
    assert_eq!(object["spec"]["azureFile"], want);
    assert_eq!(object["metadata"]["annotations"]["kubernetes.io/azure-file-resource-group"], "rg");
}

#[test]
fn topology_back_to_kubernetes() {
    let region = "topology.kubernetes.io/region";
    type Row<'a> = (&'a str, &'a str, Value, Value, Value);
    let rows: Vec<Row<'_>> = vec![
        (
            "ebs.csi.aws.com",
            "vol-1",
            affinity(&[&[("topology.ebs.csi.aws.com/zone", &["us-east-1a"])]]),
            affinity(&[&[(ZONE, &["us-east-1a"]), (region, &["us-east-1"])]]),
            json!({ZONE: "us-east-1a", region: "us-east-1"}),
        ),
        (
            "pd.csi.storage.gke.io",
            "projects/p/regions/us-central1/disks/d",
            affinity(&[
                &[("topology.gke.io/zone", &["us-central1-b"])],
                &[("topology.gke.io/zone", &["us-central1-a"])],
            ]),
            affinity(&[
                &[(ZONE, &["us-central1-b"]), (region, &["us-central1"])],
                &[(ZONE, &["us-central1-a"]), (region, &["us-central1"])],
            ]),
            json!({ZONE: "us-central1-a__us-central1-b", region: "us-central1"}),
        ),
        (
            "cinder.csi.openstack.org",
            "c",
            affinity(&[&[("topology.cinder.csi.openstack.org/zone", &["nova"])]]),
            affinity(&[&[(ZONE, &["nova"])]]),
            json!({ZONE: "nova"}),
        ),
        (
            "csi.vsphere.vmware.com",
            "v",
            affinity(&[&[
                ("topology.csi.vmware.com/region", &["r"]),
                ("topology.csi.vmware.com/zone", &["z"]),
            ]]),
            affinity(&[&[(region, &["r"]), (ZONE, &["z"])]]),
            json!({ZONE: "z", region: "r"}),
        ),
        (
            "pxd.portworx.com",
            "p",
            affinity(&[&[("px", &["1"])]]),
            affinity(&[&[("px", &["1"])]]),
            json!(null),
        ),
    ];
    for (driver, handle, from, to, labels) in rows {
        let mut object = made(driver, handle, json!({"spec": {"nodeAffinity": from}}));
        volume_to_in_tree(&mut object).unwrap();
        assert_eq!(object["spec"]["nodeAffinity"], to, "{driver}");
        assert_eq!(object["metadata"]["labels"], labels, "{driver}");
    }
}

#[test]
fn volumes_that_have_no_old_form_stay_as_they_are() {
    let zones = affinity(&[&[("topology.ebs.csi.aws.com/zone", &["somewhere"])]]);
    let nowhere = affinity(&[&[("rack", &["1"])]]);
    let rows = [
        (made("pd.csi.storage.gke.io", "disk-1", json!({})), "instead of 6"),
        (made("disk.csi.azure.com", "disk-1", json!({})), "does not name a disk"),
        (made("file.csi.azure.com", "x", json!({})), "at least contain two #"),
        (made("other.example.com", "x", json!({})), "other.example.com"),
        (
            made(
                "ebs.csi.aws.com",
                "x",
                json!({"spec": {"csi": {"volumeAttributes": {"partition": "p"}}}}),
            ),
            "partition p",
        ),
        (
            made("ebs.csi.aws.com", "x", json!({"spec": {"nodeAffinity": zones}})),
            "not a valid AWS zone",
        ),
        (
            made("ebs.csi.aws.com", "x", json!({"spec": {"nodeAffinity": nowhere}})),
            "no zones specified",
        ),
    ];
    for (mut object, want) in rows {
        let before = object.clone();
        let error = volume_to_in_tree(&mut object).unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
        assert_eq!(object, before);
    }
}

#[test]
fn regions_of_zones() {
    let aws = |zones: &[&str]| {
        topology::aws_region(&zones.iter().map(ToString::to_string).collect::<Vec<_>>()).ok()
    };
    for (zone, want) in [
        ("us-west-2a", "us-west-2"),
        ("us-gov-east-1a", "us-gov-east-1"),
        ("us-west-2-lax-1a", "us-west-2"),
        ("us-east-1-wl1-bos-wlz-1", "us-east-1"),
    ] {
        assert_eq!(aws(&[zone]).as_deref(), Some(want), "{zone}");
    }
    assert_eq!(aws(&["us-west-2a", "us-west-2b"]).as_deref(), Some("us-west-2"));
    assert_eq!(aws(&["us-west-2a", "us-east-1b"]), None);
    assert_eq!(aws(&[]), None);
}

#[test]
fn handles_are_completed_from_the_node() {
    let gce = "pd.csi.storage.gke.io";
    let node = "projects/p/zones/us-central1-a/instances/i";
    let rows = [
        (
            "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d",
            "projects/p/zones/us-central1-a/disks/d",
        ),
        ("projects/UNSPECIFIED/zones/z2/disks/d", "projects/p/zones/z2/disks/d"),
        (
            "projects/UNSPECIFIED/regions/UNSPECIFIED/disks/d",
            "projects/p/regions/us-central1/disks/d",
        ),
        ("projects/UNSPECIFIED/regions/r/disks/d", "projects/p/regions/r/disks/d"),
        ("projects/q/zones/z/disks/d", "projects/q/zones/z/disks/d"),
    ];
    for (handle, want) in rows {
        assert_eq!(repair_handle(gce, handle, node).as_deref(), Ok(want));
    }
    assert!(repair_handle(gce, "d", node).is_err());
    assert!(repair_handle(gce, rows[0].0, "node").is_err());
    assert!(repair_handle(gce, "projects/UNSPECIFIED/x/y/disks/d", node).is_err());
    assert_eq!(repair_handle("ebs.csi.aws.com", "vol-1", "n").as_deref(), Ok("vol-1"));
    assert!(repair_handle("other", "h", "n").is_err());
}
