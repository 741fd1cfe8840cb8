//! Creation.

use serde_json::Value;

use super::security::Admission;
use super::update::{settle, whole};
use super::{
    Core, MAX_ATTEMPTS, Outcome, Part, Target, WriteOptions, Written, decode, judge, write_failed,
};
use crate::access::Author;
use crate::apply::FieldSet;
use crate::error::{ApiResult, Status};
use crate::registry::{Resource, is_terminating, meta};
use crate::size_limits::check_memory;
use crate::store::{Expect, Key, Write, WriteError};

/// What kind of request creates the object.
pub(super) enum Origin {
    /// One that asks for it.
    Create,
    /// An update of an object that is not there.
    Update,
    /// An apply, of these fields.
    Apply(FieldSet),
}

/// How many generated names are tried.
const MAX_NAMES: usize = 8;

impl Core {
    /// Creates an object.
    pub(crate) async fn create(
        &self,
        target: &Target,
        body: Value,
        duplicate_fields: &[String],
        options: WriteOptions<'_>,
    ) -> ApiResult<Outcome> {
        self.create_as(target, body, duplicate_fields, options, Origin::Create).await
    }

    /// Creates an object; an applied one belongs to its applier as far as it was sent.
    pub(super) async fn create_as(
        &self,
        target: &Target,
        body: Value,
        duplicate_fields: &[String],
        options: WriteOptions<'_>,
        origin: Origin,
    ) -> ApiResult<Outcome> {
        let resource = &target.resource;
        let unasked = !matches!(origin, Origin::Create);
        let applied = match origin {
            Origin::Apply(fields) => Some(fields),
            Origin::Create | Origin::Update => None,
        };
        let (decoded, field_warnings) = decode(resource, body, duplicate_fields, options)?;
        let managed = self.first_managers(resource, &decoded, options, applied);
        check_place(target, &decoded)?;
        let generated = is_generated(&decoded);
        let mut names_tried = 0;
        let mut decoded = Some(decoded);
        for _ in 0..MAX_ATTEMPTS {
            // Only another name, or a namespace that changed, calls for a second try.
            let again = generated || resource.namespaced;
            let Some(object) = (if again { decoded.clone() } else { decoded.take() }) else {
                break;
            };
            let (mut object, guard) = self.prepare(target, object, options.author)?;
            if let Some(author) = options.author.filter(|_| unasked) {
                author.check_create(target)?;
            }
            let admission = Admission {
                resource,
                namespace: &target.namespace,
                name: object["metadata"]["name"].as_str().unwrap_or_default(),
                new: &object,
                old: None,
            };
            let admitted = self.admit_security(&admission)?;
            let managers = managed.clone().put_into(&mut object);
            let mut warnings = field_warnings.clone();
            warnings.extend(resource.strategy.warnings(&object));
            warnings.extend(admitted);
            let object = resource.to_storage(object);
            check_memory(&object, &resource.kind)?;
            let (object, managers) = settle(object, managers)?;
            let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            let key = resource.key(&target.namespace, &name);
            if options.dry_run {
                if self.store.head(&key).is_some() {
                    return Err(Status::already_exists(resource, &name));
                }
                return Ok(Outcome::of(Written::Dry(whole(object, managers)?), warnings));
            }
            let mut write = Write {
                key: key.clone(),
                expect: Expect::Absent,
                object,
                managers,
                delete: false,
                guards: guard.into_iter().collect(),
                room: options.room(&resource.storage, Part::Main),
            };
            match self.write_kept(&mut write).await {
                Ok(stored) => return Ok(Outcome::stored(stored, write, warnings)),
                Err(WriteError::Conflict(changed)) if changed == key => {
                    names_tried += 1;
                    if !generated || names_tried == MAX_NAMES {
                        self.store.settled(&key).await;
                        return Err(Status::already_exists(resource, &name));
                    }
                }
                // The namespace changed meanwhile: look at it again.
                Err(WriteError::Conflict(_)) => {}
                Err(failed) => return Err(write_failed(&failed)),
            }
        }
        Err(Status::too_many_requests("the namespace keeps changing, try again", 1))
    }

    /// Everything between decoding and storing.
    fn prepare(
        &self,
        target: &Target,
        mut object: Value,
        author: Option<Author<'_>>,
    ) -> ApiResult<(Value, Option<(Key, u64)>)> {
        let resource = &target.resource;
        let cx = self.context();
        meta::prepare_create(&mut object, resource, &target.namespace, &self.env);
        if resource.traits.status
            && !resource.traits.status_at_creation
            && let Some(map) = object.as_object_mut()
        {
            map.remove("status");
        }
        resource.strategy.prepare_create(&mut object, &cx);
        let guard = self.admit_namespace(resource, &target.namespace, &object)?;
        if let Some(author) = author {
            author.check_grant(target, &object, None)?;
        }
        resource.strategy.admit_create(&mut object, &cx)?;
        let mut causes = meta::validate_create(&object, resource);
        causes.extend(resource.strategy.validate_create(&object));
        judge(resource, &object, causes)?;
        Ok((object, guard))
    }

    /// The namespace must be there, and must still be so when the object is written.
    fn admit_namespace(
        &self,
        resource: &Resource,
        namespace: &str,
        object: &Value,
    ) -> ApiResult<Option<(Key, u64)>> {
        if !resource.namespaced {
            return Ok(None);
        }
        let key = self.registry().core("namespaces").key("", namespace);
        let found = self
            .store
            .head(&key)
            .ok_or_else(|| Status::not_found_named("", "namespaces", namespace))?;
        if is_terminating(&found.value()) {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            return Err(Status::namespace_terminating(resource, name, namespace));
        }
        Ok(Some((key, found.revision)))
    }
}

fn is_generated(object: &Value) -> bool {
    object["metadata"]["name"].as_str().unwrap_or_default().is_empty()
}

/// The body may repeat the path, but not contradict it.
fn check_place(target: &Target, object: &Value) -> ApiResult<()> {
    let meta = &object["metadata"];
    let namespace = meta["namespace"].as_str().unwrap_or_default();
    if !namespace.is_empty() && namespace != target.namespace {
        return Err(Status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    if meta["resourceVersion"].as_str().is_some_and(|v| !v.is_empty()) {
        return Err(Status::bad_request(
            "resourceVersion should not be set on objects to be created",
        ));
    }
    Ok(())
}
