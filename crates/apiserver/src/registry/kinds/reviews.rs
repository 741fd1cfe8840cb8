//! Reviews: a client asks who it is or what it may do, and the response is never stored.

use std::sync::Arc;

use k8s_openapi::api::{authentication::v1 as authentication, authorization::v1 as authorization};

use crate::registry::builtin::{BuiltinKind, GroupVersion, Names, Scope, Storage};
use crate::registry::codec::of;
use crate::registry::strategy::{Plain, Traits};
use crate::registry::table::PLAIN;

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
    rules: || Arc::new(Plain(Traits::PLAIN)),
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
    protobuf: &[
        "authorization.FieldSelectorAttributes: 1 rawSelector s",
        "authorization.LabelSelectorAttributes: 1 rawSelector s, \
         2 requirements []meta.LabelSelectorRequirement",
        "authorization.LocalSubjectAccessReview: 1 metadata meta.ObjectMeta, \
         2 spec authorization.SubjectAccessReviewSpec, \
         3 status authorization.SubjectAccessReviewStatus",
        "authorization.NonResourceAttributes: 1 path s, 2 verb s",
        "authorization.ResourceAttributes: 1 namespace s, 2 verb s, 3 group s, 4 version s, \
         5 resource s, 6 subresource s, 7 name s, \
         8 fieldSelector authorization.FieldSelectorAttributes, \
         9 labelSelector authorization.LabelSelectorAttributes",
        "authorization.SubjectAccessReviewSpec: \
         1 resourceAttributes authorization.ResourceAttributes, \
         2 nonResourceAttributes authorization.NonResourceAttributes, 3 user s, 4 groups []s, \
         6 uid s",
        "authorization.SubjectAccessReviewStatus: 1 allowed =b, 2 reason s, 3 evaluationError s, \
         4 denied b",
    ],
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
    protobuf: &[
        "authorization.NonResourceRule: 1 verbs []s, 2 nonResourceURLs []s",
        "authorization.ResourceRule: 1 verbs []s, 2 apiGroups []s, 3 resources []s, \
         4 resourceNames []s",
        "authorization.SelfSubjectRulesReview: 1 metadata meta.ObjectMeta, \
         2 spec authorization.SelfSubjectRulesReviewSpec, \
         3 status authorization.SubjectRulesReviewStatus",
        "authorization.SelfSubjectRulesReviewSpec: 1 namespace s",
        "authorization.SubjectRulesReviewStatus: 1 resourceRules []authorization.ResourceRule, \
         2 nonResourceRules []authorization.NonResourceRule, 3 incomplete =b, 4 evaluationError s",
    ],
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
