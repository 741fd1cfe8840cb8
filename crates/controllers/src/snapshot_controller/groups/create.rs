//! Asks a driver for a group snapshot, and makes the objects of its members.

use longshore_cluster::ListParams;
use longshore_core::{
    model::{
        ObjectKey,
        keys::annotations,
        kinds::{
            Claim, HasMeta as _, SecretRef, Volume, VolumeGroupSnapshot,
            VolumeGroupSnapshotContent, VolumeSnapshot, VolumeSnapshotContent,
        },
    },
    snapshot::{
        Failure,
        class::{self, SourceError},
        group::{
            create::{self, GroupError, Member},
            dynamic_content_name,
        },
        params::{self, Role},
    },
};
use serde_json::{Value, json};

use super::{
    super::{error::ControllerError, snapshots::Flow},
    Groups,
};

impl Groups {
    /// Gives the group snapshot the only default class of its first volume's driver.
    pub(super) async fn find_class(
        &self,
        group: &VolumeGroupSnapshot,
    ) -> Result<Flow, ControllerError> {
        match self.default_class_of(group).await {
            Ok(class) => {
                let metadata = json!({"uid": group.metadata.uid});
                let spec = json!({"volumeGroupSnapshotClassName": class});
                let patch = json!({"metadata": metadata, "spec": spec});
                self.shared.patch(&self.kinds.groups, &group.key(), &patch).await?;
                Ok(Flow::On)
            }
            Err(error) => {
                let reason = "SetDefaultGroupSnapshotClassFailed";
                let message =
                    format!("Failed to set default group snapshot class with error {error}");
                self.fail(group, &Failure { reason, message, unready: false }).await
            }
        }
    }

    async fn default_class_of(
        &self,
        group: &VolumeGroupSnapshot,
    ) -> Result<String, ControllerError> {
        let volumes = self.select(group).await?;
        let csi = volumes.first().and_then(|volume| volume.spec.csi.as_ref());
        let csi = csi.ok_or_else(|| SourceError::NotCsi(group.key().to_string()))?;
        let classes = self.kinds.classes.list();
        let classes = classes.iter().map(|class| &**class);
        Ok(class::default_group_class(classes, &csi.driver)?.to_owned())
    }

    /// The volumes of the claims that the selector finds, by the claims' names. Read live: it is done once.
    async fn select(&self, group: &VolumeGroupSnapshot) -> Result<Vec<Volume>, ControllerError> {
        let meta = &group.metadata;
        let Some(selector) = &group.spec.source.selector else { return Ok(Vec::new()) };
        let all = ListParams::default();
        let mut claims = self.shared.api.list::<Claim>(Some(&meta.namespace), &all).await?;
        claims.retain(|claim| selector.matches(&claim.metadata.labels));
        let bad = |cause: String| GroupError::Input { group: meta.name.clone(), cause };
        if claims.is_empty() {
            let none = GroupError::NothingSelected(create::selector_text(selector));
            return Err(bad(none.to_string()).into());
        }
        let mut volumes = Vec::new();
        for claim in &claims {
            let key = ObjectKey::cluster(claim.spec.volume_name.as_str());
            let volume = match key.name.is_empty() {
                true => None,
                false => self.shared.api.get::<Volume>(&key).await?,
            };
            class::volume_of(claim, volume.as_ref()).map_err(|error| bad(error.to_string()))?;
            volumes.extend(volume);
        }
        Ok(volumes)
    }

    pub(super) async fn create_content(
        &self,
        group: &VolumeGroupSnapshot,
    ) -> Result<Flow, ControllerError> {
        match self.make_content(group).await {
            Ok(()) => {
                let key = group.key();
                let text =
                    format!("Waiting for a group snapshot {key} to be created by the CSI driver.");
                self.shared.recorder.normal(group, "CreatingGroupSnapshot", text);
                Ok(Flow::On)
            }
            Err(error) if error.is_conflict() => Err(error),
            Err(error) => {
                let message = format!("failed to create group snapshot content with error {error}");
                let failure = Failure::unready("GroupSnapshotContentCreationFailed", message);
                self.fail(group, &failure).await
            }
        }
    }

    async fn make_content(&self, group: &VolumeGroupSnapshot) -> Result<(), ControllerError> {
        let volumes = self.select(group).await?;
        let class = group.spec.volume_group_snapshot_class_name.as_deref().map(ObjectKey::cluster);
        let class = class.and_then(|class| self.kinds.classes.get(&class));
        let class = class.ok_or(SourceError::NoDefault)?;
        let mut places = volumes.iter().map(|volume| self.shared.managing_node(volume));
        let first = places.next().flatten();
        // Volumes of several nodes are nobody's to snapshot as one.
        let node = first.filter(|first| places.all(|place| place.as_ref() == Some(first)));
        let content = create::content(group, &class, &volumes, node.as_ref());
        let content = content.inspect_err(|error| {
            let text = format!("Error creating group snapshot content: {error}");
            self.shared.recorder.warning(group, "CreateGroupSnapshotContentFailed", text);
        })?;
        // Before the content: a group snapshot that is deleted just then takes the content with it.
        self.keep(group).await?;
        let name = dynamic_content_name(&group.metadata.uid);
        let key = ObjectKey::cluster(&name);
        self.shared.create_or_get(&self.kinds.contents, &key, &content).await
    }

    pub(super) async fn create_members(
        &self,
        group: &VolumeGroupSnapshot,
        content: &ObjectKey,
    ) -> Result<Flow, ControllerError> {
        let Some(content) = self.kinds.contents.get(content) else { return Ok(Flow::On) };
        let secret = match self.member_secret(&content) {
            Ok(secret) => secret,
            Err(error) => {
                let failure =
                    Failure::unready("CreateGroupSnapshotContentFailed", error.to_string());
                return self.fail(group, &failure).await;
            }
        };
        for info in content.status.iter().flat_map(|status| &status.volume_snapshot_info_list) {
            let volume = self.kinds.volume_of(&content.spec.driver, &info.volume_handle);
            let volume = volume.as_deref();
            let member = create::member(group, &content, info, volume, secret.as_ref());
            self.create_member(&member).await?;
        }
        Ok(Flow::On)
    }

    fn member_secret(
        &self,
        content: &VolumeGroupSnapshotContent,
    ) -> Result<Option<SecretRef>, longshore_core::provision::params::ParamError> {
        let class = content.spec.volume_group_snapshot_class_name.as_deref();
        let class = class.and_then(|class| self.kinds.classes.get(&ObjectKey::cluster(class)));
        let Some(class) = class else { return Ok(None) };
        params::secret(Role::Group, &class.parameters, &content.metadata.name, None)
    }

    /// Each write finds what an earlier pass has written. The snapshot comes first: should the group snapshot go
    /// before all is done, the snapshot's end is the end of its content.
    async fn create_member(&self, member: &Member) -> Result<(), ControllerError> {
        let shared = &self.shared;
        let text = |object: &Value, field: &str| {
            object["metadata"][field].as_str().unwrap_or_default().to_owned()
        };
        let content = ObjectKey::cluster(text(&member.content, "name"));
        let snapshot =
            ObjectKey::new(text(&member.snapshot, "namespace"), text(&member.snapshot, "name"));
        shared.create_or_get(&shared.snapshots, &snapshot, &member.snapshot).await?;
        let Some(of) = shared.snapshots.get(&snapshot) else { return Ok(()) };
        if of.metadata.deleting() {
            return Ok(());
        }
        let mut named = member.content.clone();
        named["spec"]["volumeSnapshotRef"]["uid"] = of.metadata.uid.as_str().into();
        shared.create_or_get(&shared.contents, &content, &named).await?;
        let Some(has) = shared.contents.get(&content) else { return Ok(()) };
        if has.metadata.annotation(annotations::GROUP_SNAPSHOT_HANDLE).is_none() {
            return Ok(());
        }
        if has.spec.volume_snapshot_ref.uid != of.metadata.uid {
            let patch = json!({"spec": {"volumeSnapshotRef": {"uid": of.metadata.uid}}});
            shared.patch::<VolumeSnapshotContent>(&shared.contents, &content, &patch).await?;
        }
        if has.status.is_none() {
            shared.patch_status(&shared.contents, &content, &member.status).await?;
        }
        if of.bound_content().is_none() {
            let patch = json!({"metadata": {"uid": of.metadata.uid},
                "status": {"boundVolumeSnapshotContentName": content.name}});
            shared.patch_status::<VolumeSnapshot>(&shared.snapshots, &snapshot, &patch).await?;
        }
        Ok(())
    }
}
