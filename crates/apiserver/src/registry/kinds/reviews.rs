//! Reviews: a client asks who it is or what it may do, and the response is never stored.

use k8s_openapi::api::{authentication::v1 as authentication, authorization::v1 as authorization};

use super::prelude::*;

const AUTHENTICATION: GroupVersion = ("authentication.k8s.io", "v1");
const AUTHORIZATION: GroupVersion = ("authorization.k8s.io", "v1");

/// What all reviews have in common.
const REVIEW: BuiltinKind = BuiltinKind {
    group_version: AUTHENTICATION,
    names: names("SelfSubjectReview", "selfsubjectreviews"),
    scope: Scope::Cluster,
    verbs: &["create"],
    subresources: &[],
    storage: Storage::Transient,
    typed: of::<authentication::SelfSubjectReview>,
    traits: Traits::PLAIN,
    rules: || Arc::new(NoRules),
    table: PLAIN,
    selectors: &[],
    quantities: &[],
    patch_keys: &[],
    facts: &[],
    protobuf: &[],
};

const fn names(kind: &'static str, plural: &'static str) -> Names {
    Names { kind, plural, short: &[], categories: &[] }
}

pub(super) static SELF_SUBJECT: BuiltinKind = BuiltinKind {
    protobuf: &[
        "authentication.SelfSubjectReview: 1 metadata meta.ObjectMeta, \
         2 status authentication.SelfSubjectReviewStatus",
        "authentication.SelfSubjectReviewStatus: 1 userInfo authentication.UserInfo",
        "authentication.UserInfo: 1 username s, 2 uid s, 3 groups []s",
    ],
    ..REVIEW
};

pub(super) static TOKEN: BuiltinKind = BuiltinKind {
    group_version: AUTHENTICATION,
    names: names("TokenReview", "tokenreviews"),
    scope: Scope::Cluster,
    typed: of::<authentication::TokenReview>,
    protobuf: &[
        "authentication.TokenReview: 1 metadata meta.ObjectMeta, \
         2 spec authentication.TokenReviewSpec, 3 status authentication.TokenReviewStatus",
        "authentication.TokenReviewSpec: 1 token s, 2 audiences []s",
        "authentication.TokenReviewStatus: 1 authenticated b, 2 user authentication.UserInfo, \
         3 error s, 4 audiences []s",
    ],
    ..REVIEW
};

pub(super) static LOCAL_ACCESS: BuiltinKind = BuiltinKind {
    group_version: AUTHORIZATION,
    names: names("LocalSubjectAccessReview", "localsubjectaccessreviews"),
    scope: Scope::Namespaced,
    typed: of::<authorization::LocalSubjectAccessReview>,
    protobuf: &[include_str!("local_access_protobuf.txt")],
    ..REVIEW
};

pub(super) static SELF_ACCESS: BuiltinKind = BuiltinKind {
    group_version: AUTHORIZATION,
    names: names("SelfSubjectAccessReview", "selfsubjectaccessreviews"),
    scope: Scope::Cluster,
    typed: of::<authorization::SelfSubjectAccessReview>,
    protobuf: &[
        "authorization.SelfSubjectAccessReview: 1 metadata meta.ObjectMeta, \
         2 spec authorization.SelfSubjectAccessReviewSpec, \
         3 status authorization.SubjectAccessReviewStatus",
        "authorization.SelfSubjectAccessReviewSpec: \
         1 resourceAttributes authorization.ResourceAttributes, \
         2 nonResourceAttributes authorization.NonResourceAttributes",
    ],
    ..REVIEW
};

pub(super) static SELF_RULES: BuiltinKind = BuiltinKind {
    group_version: AUTHORIZATION,
    names: names("SelfSubjectRulesReview", "selfsubjectrulesreviews"),
    scope: Scope::Cluster,
    typed: of::<authorization::SelfSubjectRulesReview>,
    protobuf: &[include_str!("self_rules_protobuf.txt")],
    ..REVIEW
};

pub(super) static ACCESS: BuiltinKind = BuiltinKind {
    group_version: AUTHORIZATION,
    names: names("SubjectAccessReview", "subjectaccessreviews"),
    scope: Scope::Cluster,
    typed: of::<authorization::SubjectAccessReview>,
    protobuf: &["authorization.SubjectAccessReview: 1 metadata meta.ObjectMeta, \
         2 spec authorization.SubjectAccessReviewSpec, \
         3 status authorization.SubjectAccessReviewStatus"],
    ..REVIEW
};
