//! What the file of a kind needs: the parts of a declaration, and the checks that rules are made of.

pub(super) use std::sync::Arc;

pub(super) use k8s_openapi::api::{core::v1 as core, storage::v1 as storage};
pub(super) use serde_json::{Map, Value, json};

pub(super) use crate::error::{ApiResult, Cause, Causes, Status};
pub(super) use crate::registry::builtin::*;
pub(super) use crate::registry::codec::{Misfit, of, typed};
pub(super) use crate::registry::rules::*;
pub(super) use crate::registry::strategy::*;
pub(super) use crate::registry::table::*;
pub(super) use crate::registry::{Conversion, Subresource, go_values, names};
