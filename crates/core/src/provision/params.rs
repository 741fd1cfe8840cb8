//! StorageClass parameters: what is ours, what is the driver's, and which secrets they name.
//!
//! Keys below `csi.storage.k8s.io/` are reserved. They are consumed here and never reach the
//! driver; an unknown one is an error, so that a typo does not silently lose a secret.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::kinds::SecretRef;

/// The reserved prefix.
pub const PREFIX: &str = "csi.storage.k8s.io/";

/// The call a secret is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// CreateVolume and DeleteVolume.
    Provisioner,
    /// ControllerPublishVolume.
    ControllerPublish,
    /// NodeStageVolume.
    NodeStage,
    /// NodePublishVolume.
    NodePublish,
    /// ControllerExpandVolume.
    ControllerExpand,
    /// NodeExpandVolume.
    NodeExpand,
    /// ControllerModifyVolume.
    ControllerModify,
}

/// The fallback pair: used by every role without a pair of its own.
const DEFAULT_KEYS: Keys = Keys { role: "Default", key: "secret", deprecated: None };

/// Two keys of a class that name a secret.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Keys {
    /// The name in error texts.
    pub(crate) role: &'static str,
    /// `<key>-name` and `<key>-namespace`, after the prefix.
    pub(crate) key: &'static str,
    /// `<deprecated>Name` and `<deprecated>Namespace`, without a prefix.
    pub(crate) deprecated: Option<&'static str>,
}

impl Keys {
    /// Whether this is one of the two keys, without the prefix.
    pub(crate) fn has(&self, key: &str) -> bool {
        key.strip_prefix(self.key).is_some_and(|end| end == "-name" || end == "-namespace")
    }
}

impl Role {
    const ALL: [Self; 7] = [
        Self::Provisioner,
        Self::ControllerPublish,
        Self::NodeStage,
        Self::NodePublish,
        Self::ControllerExpand,
        Self::NodeExpand,
        Self::ControllerModify,
    ];

    fn keys(self) -> Keys {
        let (role, key, deprecated) = match self {
            Self::Provisioner => {
                ("Provisioner", "provisioner-secret", Some("csiProvisionerSecret"))
            }
            Self::ControllerPublish => (
                "ControllerPublish",
                "controller-publish-secret",
                Some("csiControllerPublishSecret"),
            ),
            Self::NodeStage => ("NodeStage", "node-stage-secret", Some("csiNodeStageSecret")),
            Self::NodePublish => {
                ("NodePublish", "node-publish-secret", Some("csiNodePublishSecret"))
            }
            Self::ControllerExpand => ("ControllerExpand", "controller-expand-secret", None),
            Self::NodeExpand => ("NodeExpand", "node-expand-secret", None),
            Self::ControllerModify => ("ControllerModify", "controller-modify-secret", None),
        };
        Keys { role, key, deprecated }
    }
}

/// What is wrong with a class's parameters.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParamError {
    /// A key with the reserved prefix that nobody knows.
    #[error(
        "failed to strip CSI Parameters of prefixed keys: found unknown parameter key \"{0}\" with reserved namespace csi.storage.k8s.io/"
    )]
    UnknownKey(String),
    /// Two keys give a filesystem type.
    #[error(
        "fstype specified in parameters with both \"fstype\" and \"csi.storage.k8s.io/fstype\" keys"
    )]
    TwoFsTypes,
    /// A secret's pair of keys is not usable.
    #[error("failed to get {}name and namespace template from params: {problem}", if *.fallback { "default " } else { "" })]
    Pair {
        /// The pair is the default one.
        fallback: bool,
        /// What is wrong with it.
        problem: PairProblem,
    },
    /// A template names variables that do not exist here.
    #[error("error resolving value \"{template}\": invalid tokens: [{}]", quoted(.tokens))]
    Tokens {
        template: String,
        /// The unknown variables.
        tokens: BTreeSet<String>,
    },
    /// The result is no name.
    #[error("{0}")]
    NotAName(String),
}

/// What is wrong with a pair of secret keys.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PairProblem {
    /// Given in the old and in the new form.
    #[error(
        "{0} secrets specified in parameters with both \"csi\" and \"csi.storage.k8s.io/\" keys"
    )]
    Twice(&'static str),
    /// Half of the pair is missing.
    #[error("either name and namespace for {0} secrets specified, Both must be specified")]
    Half(&'static str),
    /// A value is empty.
    #[error("{0} secrets specified in parameters but value of either namespace or name is empty")]
    Empty(&'static str),
}

fn quoted(tokens: &BTreeSet<String>) -> String {
    tokens.iter().map(|token| format!("\"{token}\"")).collect::<Vec<_>>().join(" ")
}

/// What a secret template may refer to.
#[derive(Debug, Clone, Copy)]
pub struct Tokens<'a> {
    /// `${pv.name}`.
    pub volume: &'a str,
    /// `${pvc.namespace}`.
    pub claim_namespace: &'a str,
    /// `${pvc.name}`.
    pub claim_name: &'a str,
    /// `${pvc.annotations['KEY']}`; none when the claim is not at hand (deletion).
    pub claim_annotations: Option<&'a BTreeMap<String, String>>,
}

/// The secret for one role, if the class names one.
///
/// # Errors
/// When the keys or their values are not usable.
pub fn secret(
    role: Role,
    parameters: &BTreeMap<String, String>,
    tokens: &Tokens<'_>,
) -> Result<Option<SecretRef>, ParamError> {
    let own = pair(&role.keys(), parameters)
        .map_err(|problem| ParamError::Pair { fallback: false, problem })?;
    let found = match own {
        Some(found) => Some(found),
        None => pair(&DEFAULT_KEYS, parameters)
            .map_err(|problem| ParamError::Pair { fallback: true, problem })?,
    };
    let Some(templates) = found else { return Ok(None) };
    let namespace = |variable: &str| namespace_token(variable, tokens);
    resolve_pair(templates, |variable| name_token(variable, tokens), namespace).map(Some)
}

/// The secret that two templates name.
pub(crate) fn resolve_pair(
    (name, namespace): (&str, &str),
    name_token: impl Fn(&str) -> Option<String>,
    namespace_token: impl Fn(&str) -> Option<String>,
) -> Result<SecretRef, ParamError> {
    Ok(SecretRef {
        namespace: resolve(namespace, namespace_token, is_label, "namespace name")?,
        name: resolve(name, name_token, is_subdomain, "secret name")?,
    })
}

/// The name and namespace templates of one pair of keys.
pub(crate) fn pair<'a>(
    keys: &Keys,
    parameters: &'a BTreeMap<String, String>,
) -> Result<Option<(&'a str, &'a str)>, PairProblem> {
    let half = |new: &str, old: &str| {
        let current = parameters.get(&format!("{PREFIX}{}-{new}", keys.key));
        let deprecated = keys.deprecated.and_then(|key| parameters.get(&format!("{key}{old}")));
        match (current, deprecated) {
            (Some(_), Some(_)) => Err(PairProblem::Twice(keys.role)),
            (found, None) | (None, found) => Ok(found.map(String::as_str)),
        }
    };
    match (half("name", "Name")?, half("namespace", "Namespace")?) {
        (None, None) => Ok(None),
        (Some(_), None) | (None, Some(_)) => Err(PairProblem::Half(keys.role)),
        (Some(name), Some(namespace)) if name.is_empty() || namespace.is_empty() => {
            Err(PairProblem::Empty(keys.role))
        }
        (Some(name), Some(namespace)) => Ok(Some((name, namespace))),
    }
}

fn namespace_token(variable: &str, tokens: &Tokens<'_>) -> Option<String> {
    match variable {
        "pv.name" => Some(tokens.volume.into()),
        "pvc.namespace" => Some(tokens.claim_namespace.into()),
        _ => None,
    }
}

fn name_token(variable: &str, tokens: &Tokens<'_>) -> Option<String> {
    if variable == "pvc.name" {
        return Some(tokens.claim_name.into());
    }
    let annotation = variable.strip_prefix("pvc.annotations['").and_then(|v| v.strip_suffix("']"));
    match annotation {
        Some(key) => tokens.claim_annotations?.get(key).cloned(),
        None => namespace_token(variable, tokens),
    }
}

fn resolve(
    template: &str,
    value_of: impl Fn(&str) -> Option<String>,
    valid: fn(&str) -> bool,
    what: &str,
) -> Result<String, ParamError> {
    let mut unknown = BTreeSet::new();
    let value = expand(template, |variable| {
        value_of(variable).unwrap_or_else(|| {
            unknown.insert(variable.to_string());
            String::new()
        })
    });
    if !unknown.is_empty() {
        return Err(ParamError::Tokens { template: template.into(), tokens: unknown });
    }
    if valid(&value) {
        return Ok(value);
    }
    Err(ParamError::NotAName(if value == template {
        format!("\"{template}\" is not a valid {what}")
    } else {
        format!("\"{template}\" resolved to \"{value}\" which is not a valid {what}")
    }))
}

/// Shell-like substitution: `${x}` and `$x`; a lone `$` stays, `${}` and an open `${` vanish.
fn expand(template: &str, mut value_of: impl FnMut(&str) -> String) -> String {
    let mut out = String::new();
    let mut rest = template;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(braced) = rest.strip_prefix('{') {
            match braced.find('}') {
                Some(0) => rest = &braced[1..],
                Some(end) => {
                    out.push_str(&value_of(&braced[..end]));
                    rest = &braced[end + 1..];
                }
                None => rest = braced,
            }
            continue;
        }
        let end =
            rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
        if end == 0 {
            out.push('$');
        } else {
            out.push_str(&value_of(&rest[..end]));
            rest = &rest[end..];
        }
    }
    out.push_str(rest);
    out
}

fn is_label(text: &str) -> bool {
    text.len() <= 63 && is_label_text(text)
}

fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_label_text)
}

fn is_label_text(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.starts_with(inner) && text.ends_with(inner) && text.chars().all(|c| inner(c) || c == '-')
}

/// The filesystem type a class asks for, or the default (which may be empty).
///
/// # Errors
/// When more than one key gives one.
pub fn fs_type(parameters: &BTreeMap<String, String>, default: &str) -> Result<String, ParamError> {
    let prefixed = format!("{PREFIX}fstype");
    let mut found = parameters
        .iter()
        .filter(|(key, _)| **key == prefixed || key.eq_ignore_ascii_case("fstype"));
    let first = found.next();
    if found.next().is_some() {
        return Err(ParamError::TwoFsTypes);
    }
    Ok(match first {
        Some((_, value)) if !value.is_empty() => value.clone(),
        _ => default.into(),
    })
}

/// The parameters that go to the driver.
///
/// # Errors
/// When a reserved key is unknown.
pub fn strip(
    parameters: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, ParamError> {
    let pairs = || Role::ALL.into_iter().map(Role::keys).chain([DEFAULT_KEYS]);
    strip_known(parameters, |own| own == "fstype" || pairs().any(|keys| keys.has(own)))
}

/// The parameters without a reserved key; each that is reserved must be known.
pub(crate) fn strip_known(
    parameters: &BTreeMap<String, String>,
    is_known: impl Fn(&str) -> bool,
) -> Result<BTreeMap<String, String>, ParamError> {
    let mut kept = BTreeMap::new();
    for (key, value) in parameters {
        match key.strip_prefix(PREFIX) {
            None => {
                kept.insert(key.clone(), value.clone());
            }
            Some(own) if is_known(own) => {}
            Some(_) => return Err(ParamError::UnknownKey(key.clone())),
        }
    }
    Ok(kept)
}

#[cfg(test)]
#[path = "params_tests.rs"]
mod tests;
