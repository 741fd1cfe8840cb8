//! Bodies: patches, objects, what goes to subresources, and protobuf.

use serde_json::{Value, json};

use crate::input::Input;
use crate::soup::Soup;
use crate::world::World;

/// A JSON patch.
pub fn steps(soup: &mut Soup) -> Vec<u8> {
    let count = soup.below(6);
    let ops = ["add", "replace", "remove", "test", "copy", "move", "x"];
    let list: Vec<Value> = (0..count)
        .map(|_| {
            let op = *soup.pick(&ops);
            let mut step = json!({"op": op, "path": soup.pointer()});
            if soup.chance(80) {
                step["value"] = soup.value(3);
            }
            if soup.chance(50) {
                step["from"] = json!(soup.pointer());
            }
            step
        })
        .collect();
    json!(list).to_string().into_bytes()
}

fn known(world: &World, path: &str) -> Option<Value> {
    world.objects.get(path).cloned()
}

/// Part of an object, bent, with directives now and then.
pub fn partial(soup: &mut Soup, world: &World, path: &str) -> Vec<u8> {
    let mut value = match known(world, path).filter(|_| soup.chance(75)) {
        Some(mut object) => {
            for _ in 0..soup.few() {
                soup.bend(&mut object);
            }
            object
        }
        None => soup.value(5),
    };
    if soup.chance(40) && value.is_object() {
        let pieces = [
            json!({"$patch": "replace"}),
            json!({"$patch": "delete"}),
            json!({"spec": {"$retainKeys": ["a"], "containers": [{"$patch": "delete", "name": "c"}]}}),
            json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a", 1, null]}}),
            json!({"spec": {"$setElementOrder/containers": [{"name": "c"}, {}, 1]}}),
            json!({"spec": {"containers": [{"name": "c", "$patch": "replace"}, {"$patch": "merge"}]}}),
            json!({"spec": {"volumes": [{"name": "v", "$retainKeys": ["name"]}]}}),
            json!({"metadata": {"ownerReferences": [{"uid": null, "$patch": "delete"}]}}),
        ];
        for (key, piece) in soup.pick(&pieces).as_object().cloned().unwrap_or_default() {
            value[key] = piece;
        }
    }
    value.to_string().into_bytes()
}

/// A configuration to apply, as JSON or as YAML.
pub fn applied(soup: &mut Soup, world: &World, path: &str) -> Vec<u8> {
    let mut value = known(world, path).unwrap_or_else(|| soup.value(4));
    if let Some(meta) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        for field in ["managedFields", "uid", "resourceVersion", "creationTimestamp"] {
            if soup.chance(90) {
                meta.remove(field);
            }
        }
    }
    for _ in 0..soup.few() {
        soup.bend(&mut value);
    }
    if soup.chance(70) {
        return value.to_string().into_bytes();
    }
    let pieces = [
        "a: &a [x, x]\nb: [*a, *a]\n",
        "? complex\n: key\n",
        "--- \n...\n---\n",
        "a: !!binary x\n",
        "a: 1\na: 2\n",
        "<<: {a: 1}\n",
        "y: yes\nn: off\n",
        "- [",
        "\t",
        "%YAML 1.1\n---\n{}",
        "a: |\n  x\n",
    ];
    let mut text = value.to_string().replace(',', ",\n").into_bytes();
    let piece = *soup.pick(&pieces);
    let at = if soup.chance(50) { 0 } else { text.len() };
    text.splice(at..at, piece.bytes());
    text
}

/// An object to create or to replace.
pub fn object(soup: &mut Soup, world: &World) -> Input {
    let paths: Vec<&String> = world.objects.keys().collect();
    let path = (*soup.pick(&paths)).clone();
    let mut value = world.objects[&path].clone();
    for _ in 0..soup.few() {
        soup.bend(&mut value);
    }
    let create = soup.chance(50);
    if let Some(meta) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        if soup.chance(80) {
            meta.remove("resourceVersion");
        }
        if create && soup.chance(80) {
            meta.insert("name".into(), json!(["y", "z", "w"][soup.below(3)]));
        }
    }
    let place = path.rsplit_once('/').map_or("", |(place, _)| place).to_owned();
    let (method, path) = if create { ("POST", place) } else { ("PUT", path) };
    let validation =
        *soup.pick(&["", "?fieldValidation=Strict", "?dryRun=All", "?fieldValidation=x"]);
    let content_type = *soup.pick(&["application/json", "application/yaml", "", "x/y"]);
    Input {
        method: method.into(),
        path: format!("{path}{validation}"),
        content_type: content_type.into(),
        body: value.to_string().into_bytes(),
        ..Input::default()
    }
}

/// Subresources, reviews and deletions.
pub fn below(soup: &mut Soup, world: &World) -> Input {
    let pods = "/api/v1/namespaces/default/pods/x";
    let reviews = "/apis/authorization.k8s.io/v1";
    let own =
        json!({"spec": {"resourceAttributes": {"verb": "get", "resource": "pods", "name": "x"}}});
    let rows: [(&str, String, Value); 11] = [
        ("POST", format!("{pods}/binding"), json!({"target": {"kind": "Node", "name": "x"}})),
        ("POST", format!("{pods}/eviction"), json!({"deleteOptions": {"gracePeriodSeconds": 1}})),
        ("DELETE", pods.into(), json!({"gracePeriodSeconds": 1, "preconditions": {"uid": "x"}})),
        (
            "DELETE",
            world.target(soup, "delete"),
            json!({"propagationPolicy": "Orphan", "dryRun": ["All"]}),
        ),
        (
            "POST",
            "/api/v1/namespaces/default/serviceaccounts/x/token".into(),
            json!({"spec": {"audiences": ["a"], "expirationSeconds": 600, "boundObjectRef": {"kind": "Pod", "name": "x"}}}),
        ),
        ("POST", format!("{reviews}/selfsubjectaccessreviews"), own.clone()),
        ("POST", format!("{reviews}/subjectaccessreviews"), own.clone()),
        (
            "POST",
            format!("{reviews}/selfsubjectrulesreviews"),
            json!({"spec": {"namespace": "default"}}),
        ),
        ("POST", format!("{reviews}/namespaces/default/localsubjectaccessreviews"), own),
        (
            "POST",
            "/apis/authentication.k8s.io/v1/tokenreviews".into(),
            json!({"spec": {"token": "a.b.c"}}),
        ),
        (
            "PUT",
            "/apis/example.com/v1/namespaces/default/walks/x/scale".into(),
            json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "x"}, "spec": {"replicas": 3}}),
        ),
    ];
    let (method, mut path, mut body) = soup.pick(&rows).clone();
    for _ in 0..soup.few() {
        soup.bend(&mut body);
    }
    if soup.chance(40) {
        let number = soup.number();
        let names =
            ["gracePeriodSeconds", "dryRun", "orphanDependents", "tailLines", "sinceSeconds"];
        path = format!("{path}?{}={}", soup.pick(&names), crate::input::encode(number));
    }
    Input {
        method: method.into(),
        path,
        content_type: "application/json".into(),
        body: body.to_string().into_bytes(),
        ..Input::default()
    }
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push((value as u8 & 0x7f) | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A field of a message: random content under a plausible number.
fn message(soup: &mut Soup, depth: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..soup.below(6) {
        let number = 1 + soup.below(14) as u64;
        match soup.below(if depth == 0 { 4 } else { 6 }) {
            0 => {
                varint(number << 3, &mut out);
                varint(soup.number().parse().unwrap_or(soup.below(1000) as u64), &mut out);
            }
            1 => {
                varint(number << 3 | [1, 3, 4, 5, 6, 7][soup.below(6)], &mut out);
                (0..soup.below(9)).for_each(|_| out.push(soup.byte()));
            }
            2 | 3 => bytes(number, soup.word().as_bytes(), &mut out),
            _ => {
                let inner = message(soup, depth - 1);
                bytes(number, &inner, &mut out);
            }
        }
    }
    out
}

fn bytes(number: u64, content: &[u8], out: &mut Vec<u8>) {
    varint(number << 3 | 2, out);
    varint(content.len() as u64, out);
    out.extend_from_slice(content);
}

/// A body in Kubernetes protobuf: an envelope around made-up messages.
pub fn protobuf(soup: &mut Soup, world: &World) -> Input {
    let kinds = [
        ("v1", "ConfigMap", "configmaps"),
        ("v1", "Pod", "pods"),
        ("v1", "Secret", "secrets"),
        ("v1", "PersistentVolumeClaim", "persistentvolumeclaims"),
        ("v1", "Event", "events"),
        ("coordination.k8s.io/v1", "Lease", "leases"),
        ("v1", "ServiceAccount", "serviceaccounts"),
        ("storage.k8s.io/v1", "CSIStorageCapacity", "csistoragecapacities"),
        ("v1", "Node", "x"),
    ];
    let (version, kind, plural) = *soup.pick(&kinds);
    let base = if version == "v1" { "/api/v1".to_owned() } else { format!("/apis/{version}") };
    let mut path = format!("{base}/namespaces/default/{plural}");
    let mut method = "POST";
    if soup.chance(20) {
        (method, path) = ("DELETE", world.target(soup, "delete"));
    }
    let mut types = Vec::new();
    bytes(1, version.as_bytes(), &mut types);
    bytes(2, kind.as_bytes(), &mut types);
    // The name first, so that some get further than the check of names.
    let mut meta = Vec::new();
    bytes(1, soup.word().as_bytes(), &mut meta);
    meta.extend(message(soup, 2));
    let mut object = Vec::new();
    bytes(1, &meta, &mut object);
    object.extend(message(soup, 4));
    let mut body = b"k8s\0".to_vec();
    bytes(1, &types, &mut body);
    bytes(2, &object, &mut body);
    if soup.chance(40) {
        soup.scramble(&mut body);
    }
    Input {
        method: method.into(),
        path,
        content_type: "application/vnd.kubernetes.protobuf".into(),
        body,
        ..Input::default()
    }
}
