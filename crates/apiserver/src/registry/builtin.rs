//! What a built-in kind is: one [`BuiltinKind`] in a file of its own below `kinds`.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use super::codec::{Codec, Typed};
use super::kinds::KINDS;
use super::strategy::{Strategy, Traits};
use super::table::Table;
use super::{Conversion, Resource, Subresource};

pub(super) const ALL: &[&str] =
    &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
const STATUS_VERBS: &[&str] = &["get", "patch", "update"];

/// API group and version.
pub(super) type GroupVersion = (&'static str, &'static str);

pub(super) const CORE: GroupVersion = ("", "v1");
pub(super) const STORAGE: GroupVersion = ("storage.k8s.io", "v1");

/// Everything that the server knows about a built-in kind. No part has a default, so a new kind does
/// not compile before each is stated.
pub struct BuiltinKind {
    pub group_version: GroupVersion,
    pub names: Names,
    pub scope: Scope,
    /// Verbs, sorted.
    pub verbs: &'static [&'static str],
    /// Paths below an object beside `status`, which follows from the traits.
    pub subresources: &'static [Subresource],
    pub storage: Storage,
    /// The Rust type: it checks bodies, and published schemas come from it.
    pub typed: fn() -> Typed,
    pub traits: Traits,
    pub rules: fn() -> Arc<dyn Strategy>,
    pub table: Table,
    /// Labels of field selectors beside name and namespace.
    pub selectors: &'static [&'static str],
    /// Where quantities stand, so that they are stored in their canonical form.
    pub quantities: &'static [&'static str],
    /// Lists that strategic merge patches merge: path without list elements, and key.
    pub patch_keys: &'static [(&'static str, &'static str)],
    /// How fields of its types merge and which values they take; see [`super::facts`].
    pub facts: &'static [&'static str],
    /// The protobuf messages that only this kind uses, or none if clients send it as JSON; see
    /// `http::protobuf`.
    pub protobuf: &'static [&'static str],
}

/// What a kind is called.
pub struct Names {
    pub kind: &'static str,
    pub plural: &'static str,
    pub short: &'static [&'static str],
    pub categories: &'static [&'static str],
}

impl Names {
    pub(super) const fn new(
        kind: &'static str,
        plural: &'static str,
        short: &'static [&'static str],
        categories: &'static [&'static str],
    ) -> Self {
        Self { kind, plural, short, categories }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    Cluster,
    Namespaced,
}

/// Where the objects of a kind are stored.
pub enum Storage {
    /// Under its own group and plural.
    Own,
    /// Nowhere: the response is all there is, as with reviews.
    Transient,
    /// Under the key of another version, from which they are converted.
    Version { stored_as: &'static str, conversion: Conversion },
}

impl BuiltinKind {
    /// Whether this is the kind with the `apiVersion` and `kind` that an object carries.
    pub fn is(&self, api_version: &str, kind: &str) -> bool {
        let group_version = api_version.split_once('/').unwrap_or(("", api_version));
        self.names.kind == kind && self.group_version == group_version
    }

    fn resource(&'static self) -> Resource {
        let (group, version) = self.group_version;
        let Names { kind, plural, short, categories } = self.names;
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let (storage, conversion) = match &self.storage {
            Storage::Version { stored_as, conversion } => ((*stored_as).into(), Some(*conversion)),
            _ if group.is_empty() => (plural.into(), None),
            _ => (format!("{group}/{plural}"), None),
        };
        let typed = (self.typed)();
        let mut subresources = self.subresources.to_vec();
        if self.traits.status {
            subresources.push(Subresource::new("status", ("", "", kind), STATUS_VERBS));
        }
        subresources.sort_by_key(|subresource| subresource.name);
        Resource {
            group: group.into(),
            version: version.into(),
            kind: kind.into(),
            list_kind: format!("{kind}List"),
            plural: plural.into(),
            singular: kind.to_lowercase(),
            short_names: owned(short),
            categories: owned(categories),
            namespaced: self.scope == Scope::Namespaced,
            verbs: self.verbs.to_vec(),
            subresources,
            fields: owned(self.selectors),
            storage: Arc::from(storage),
            codec: Codec::Typed { check: typed.codec, quantities: self.quantities },
            traits: self.traits,
            strategy: (self.rules)(),
            transient: matches!(self.storage, Storage::Transient),
            conversion,
            alias: conversion.is_some(),
            custom: None,
            builtin: Some((self, typed)),
            shape: OnceLock::new(),
        }
    }
}

impl Subresource {
    /// A subresource whose body is of the kind; empty group and version mean "as the resource".
    pub(super) const fn new(
        name: &'static str,
        (group, version, kind): (&'static str, &'static str, &'static str),
        verbs: &'static [&'static str],
    ) -> Self {
        let kind = (Cow::Borrowed(group), Cow::Borrowed(version), Cow::Borrowed(kind));
        Self { name, kind, verbs }
    }
}

/// Every built-in kind, in the order of discovery.
pub(super) fn resources() -> Vec<Resource> {
    KINDS.iter().map(|kind| kind.resource()).collect()
}
