use super::*;

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(k, v)| ((*k).to_string(), (*v).to_string())).collect()
}

fn tokens(annotations: Option<&BTreeMap<String, String>>) -> Tokens<'_> {
    Tokens {
        volume: "pv",
        claim_namespace: "ns",
        claim_name: "claim",
        claim_annotations: annotations,
    }
}

const NAME: &str = "csi.storage.k8s.io/provisioner-secret-name";
const NAMESPACE: &str = "csi.storage.k8s.io/provisioner-secret-namespace";

#[test]
fn secrets_are_named_by_parameters_and_templates() {
    let notes = map(&[("akey", "avalue")]);
    type Want<'a> = Result<Option<(&'a str, &'a str)>, &'a str>;
    type Row<'a> = (&'a str, &'a [(&'a str, &'a str)], Want<'a>);
    let cases: &[Row<'_>] = &[
        ("none", &[], Ok(None)),
        ("case: provisioner/62 name only", &[(NAME, "s")], Err("Both must be specified")),
        ("case: provisioner/62 namespace only", &[(NAMESPACE, "s")], Err("Both must be specified")),
        (
            "case: provisioner/62 old name only",
            &[("csiProvisionerSecretName", "s")],
            Err("Both must be specified"),
        ),
        (
            "case: provisioner/62 old namespace only",
            &[("csiProvisionerSecretNamespace", "s")],
            Err("Both must be specified"),
        ),
        ("case: provisioner/62 both empty", &[(NAME, ""), (NAMESPACE, "")], Err("is empty")),
        (
            "case: provisioner/62 both generations",
            &[
                (NAME, "s"),
                (NAMESPACE, "n"),
                ("csiProvisionerSecretName", "s"),
                ("csiProvisionerSecretNamespace", "n"),
            ],
            Err("with both \"csi\" and \"csi.storage.k8s.io/\" keys"),
        ),
        (
            "case: provisioner/62 bad name",
            &[(NAME, "bad name"), (NAMESPACE, "n")],
            Err("\"bad name\" is not a valid secret name"),
        ),
        (
            "case: provisioner/62 bad namespace",
            &[(NAME, "s"), (NAMESPACE, "bad ns")],
            Err("\"bad ns\" is not a valid namespace name"),
        ),
        (
            "case: provisioner/63",
            &[("csiProvisionerSecretName", "s"), (NAMESPACE, "n")],
            Ok(Some(("s", "n"))),
        ),
        (
            "case: provisioner/64",
            &[
                (NAME, "static-${pv.name}-${pvc.namespace}-${pvc.name}-${pvc.annotations['akey']}"),
                (NAMESPACE, "static-${pv.name}-${pvc.namespace}"),
            ],
            Ok(Some(("static-pv-ns-claim-avalue", "static-pv-ns"))),
        ),
        (
            "case: provisioner/65",
            &[(NAME, "s"), (NAMESPACE, "${pvc.name}${bar}")],
            Err(
                "error resolving value \"${pvc.name}${bar}\": invalid tokens: [\"bar\" \"pvc.name\"]",
            ),
        ),
        (
            "case: provisioner/66 annotation absent",
            &[(NAME, "${pvc.annotations['other']}"), (NAMESPACE, "n")],
            Err("invalid tokens"),
        ),
        (
            "case: provisioner/66 annotation present",
            &[(NAME, "${pvc.annotations['akey']}"), (NAMESPACE, "n")],
            Ok(Some(("avalue", "n"))),
        ),
        (
            "case: provisioner/68",
            &[
                ("csi.storage.k8s.io/secret-name", "${pvc.name}"),
                ("csi.storage.k8s.io/secret-namespace", "n"),
            ],
            Ok(Some(("claim", "n"))),
        ),
        (
            "resolved to something that is no name",
            &[(NAME, "-${pvc.name}"), (NAMESPACE, "n")],
            Err("\"-${pvc.name}\" resolved to \"-claim\" which is not a valid secret name"),
        ),
    ];
    for (name, parameters, want) in cases {
        let got = secret(Role::Provisioner, &map(parameters), &tokens(Some(&notes)));
        match (got, want) {
            (Ok(got), Ok(want)) => {
                let got = got.as_ref().map(|s| (s.name.as_str(), s.namespace.as_str()));
                assert_eq!(got, *want, "{name}");
            }
            (Err(got), Err(want)) => {
                assert!(got.to_string().contains(want), "{name}: {got}");
            }
            (got, want) => panic!("{name}: got {got:?}, want {want:?}"),
        }
    }
}

#[test]
fn default_secret_serves_every_role() {
    let parameters = map(&[
        ("csi.storage.k8s.io/secret-name", "${pvc.name}"),
        ("csi.storage.k8s.io/secret-namespace", "n"),
    ]);
    for role in Role::ALL {
        let got = secret(role, &parameters, &tokens(None)).unwrap();
        assert_eq!(got, Some(SecretRef { name: "claim".into(), namespace: "n".into() }));
    }
}

#[test]
fn templates_expand_as_in_go() {
    let cases = [
        ("a$b-c", "a<b>-c"),
        ("$", "$"),
        ("a$ b", "a$ b"),
        ("${}x", "x"),
        ("${open", "open"),
        ("${a.b}$c_1.", "<a.b><c_1>."),
    ];
    for (template, want) in cases {
        assert_eq!(expand(template, |v| format!("<{v}>")), want, "{template}");
    }
}

#[test]
fn the_filesystem_type_comes_from_one_parameter() {
    type Row<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a str, Result<&'a str, ParamError>);
    let cases: &[Row<'_>] = &[
        (
            "case: provisioner/55",
            &[("fstype", "ext3"), ("csi.storage.k8s.io/fstype", "ext4")],
            "",
            Err(ParamError::TwoFsTypes),
        ),
        ("case: provisioner/57 default", &[], "ext4", Ok("ext4")),
        ("case: provisioner/57 no default", &[], "", Ok("")),
        ("case: provisioner/57 class wins", &[("FsType", "xfs")], "ext4", Ok("xfs")),
        ("empty value", &[("csi.storage.k8s.io/fstype", "")], "ext4", Ok("ext4")),
    ];
    for (name, parameters, default, want) in cases {
        let got = fs_type(&map(parameters), default);
        assert_eq!(got, want.clone().map(String::from), "{name}");
    }
}

#[test]
fn the_driver_gets_only_its_own_parameters() {
    let all_known: Vec<(String, String)> = Role::ALL
        .into_iter()
        .map(Role::keys)
        .chain([DEFAULT_KEYS])
        .flat_map(|k| [format!("{PREFIX}{}-name", k.key), format!("{PREFIX}{}-namespace", k.key)])
        .chain([format!("{PREFIX}fstype")])
        .map(|key| (key, "x".into()))
        .collect();
    // case: provisioner/60 known keys go, deprecated keys stay, unknown reserved keys are errors
    assert_eq!(strip(&all_known.into_iter().collect()), Ok(BTreeMap::new()));
    let old = map(&[("csiProvisionerSecretName", "s"), ("csiNodeStageSecretNamespace", "n")]);
    assert_eq!(strip(&old), Ok(old.clone()));
    let unknown = strip(&map(&[("csi.storage.k8s.io/surprise", "x")])).unwrap_err();
    assert_eq!(unknown, ParamError::UnknownKey("csi.storage.k8s.io/surprise".into()));
    // case: provisioner/59
    let value = map(&[("foo", "csi.storage.k8s.io/fstype")]);
    assert_eq!(strip(&value), Ok(value.clone()));
    // The prefixed key is ours, the bare one the driver's
    let both = map(&[("csi.storage.k8s.io/fstype", "ext3"), ("pool", "a")]);
    assert_eq!(strip(&both), Ok(map(&[("pool", "a")])));
    let bare = map(&[("fstype", "ext3")]);
    assert_eq!(strip(&bare), Ok(bare.clone()));
}
