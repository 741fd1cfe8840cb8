//! Requests in the name of others.

use serde_json::{Value, json};

use crate::*;

const SECRET: &str = "/api/v1/namespaces/kube-system/secrets/hidden";

fn as_user(headers: &[(&'static str, &str)], code: u16) -> Step {
    let headers = headers.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    Step { headers, ..get(SECRET, code) }
}

fn may(resources: &[&str], names: &[&str]) -> Value {
    json!({"apiGroups": [""], "resources": resources, "verbs": ["impersonate"], "resourceNames": names})
}

pub fn all() -> Vec<Attack> {
    const USER: &str = "Impersonate-User";
    const GROUP: &str = "Impersonate-Group";
    const UID: &str = "Impersonate-Uid";
    const EXTRA: &str = "Impersonate-Extra-Scopes";
    let masters = (GROUP, "system:masters");
    let extras = |names: &[&str]| json!({"apiGroups": ["authentication.k8s.io"], "resources": ["userextras/scopes"], "verbs": ["impersonate"], "resourceNames": names});
    let account = "system:serviceaccount:default:bot";
    vec![
        attack(
            "no right to impersonate",
            json!([]),
            vec![
                as_user(&[(USER, "root"), masters], 403),
                as_user(&[(USER, account)], 403),
                as_user(&[(USER, "system:anonymous")], 403),
                as_user(&[masters], 400),
                as_user(&[(USER, ""), masters], 400),
                as_user(&[(UID, "1")], 400),
                as_user(&[(EXTRA, "x")], 400),
            ],
        ),
        attack(
            "a user, but no group",
            json!([may(&["users"], &[])]),
            vec![
                as_user(&[(USER, "bob"), masters], 403),
                as_user(&[(USER, "bob"), (GROUP, "a"), masters], 403),
                as_user(&[(USER, "bob"), (UID, "1")], 403),
                as_user(&[(USER, "bob"), (EXTRA, "x")], 403),
                as_user(&[(USER, account)], 403),
                as_user(&[(USER, "bob")], 403),
            ],
        ),
        attack(
            "one user",
            json!([may(&["users"], &["bob"])]),
            vec![as_user(&[(USER, "alice")], 403), as_user(&[(USER, "bob"), masters], 403)],
        ),
        attack(
            "one group",
            json!([may(&["users"], &[]), may(&["groups"], &["few"])]),
            vec![
                as_user(&[(USER, "bob"), masters], 403),
                as_user(&[(USER, "bob"), (GROUP, "few"), masters], 403),
                as_user(&[(USER, "bob"), (GROUP, "few")], 403),
            ],
        ),
        attack(
            "accounts of all namespaces, but no users",
            json!([may(&["serviceaccounts"], &[])]),
            vec![
                as_user(&[(USER, "system:serviceaccount:default:bot:x")], 403),
                as_user(&[(USER, "system:serviceaccount::bot")], 403),
                as_user(&[(USER, "system:serviceaccount:default")], 403),
                as_user(&[(USER, "bob")], 403),
                as_user(&[(USER, account), masters], 403),
            ],
        ),
        Attack {
            local: json!([may(&["serviceaccounts"], &[])]),
            ..attack(
                "accounts of one namespace",
                json!([]),
                vec![as_user(&[(USER, "system:serviceaccount:kube-system:default")], 403)],
            )
        },
        attack(
            "one value of an extra",
            json!([may(&["users"], &[]), extras(&["view"])]),
            vec![
                as_user(&[(USER, "bob"), (EXTRA, "edit")], 403),
                as_user(&[(USER, "bob"), (EXTRA, "view"), (EXTRA, "edit")], 403),
                as_user(&[(USER, "bob"), ("Impersonate-Extra-Other", "view")], 403),
                as_user(&[(USER, "bob"), ("Impersonate-Extra-%73copes", "edit")], 403),
                as_user(&[(USER, "bob"), ("Impersonate-Extra-scopes%2f", "view")], 403),
            ],
        ),
        attack(
            "uids in the wrong group",
            json!([may(&["users", "uids", "userextras"], &[])]),
            vec![
                as_user(&[(USER, "bob"), (UID, "1")], 403),
                as_user(&[(USER, "bob"), (EXTRA, "x")], 403),
            ],
        ),
    ]
}
