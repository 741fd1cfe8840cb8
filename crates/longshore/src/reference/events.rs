//! Reasons of the events that the programs write.

/// One reason.
#[derive(Debug)]
pub(crate) struct Reason {
    pub(crate) name: &'static str,
    /// The kinds of objects that the event is about.
    pub(crate) about: &'static str,
    /// `Normal`, `Warning` or both.
    pub(crate) level: &'static str,
    /// What it tells, and what helps.
    pub(crate) means: &'static str,
}

const fn reason(
    name: &'static str,
    about: &'static str,
    level: &'static str,
    means: &'static str,
) -> Reason {
    Reason { name, about, level, means }
}

const CLAIM: &str = "PersistentVolumeClaim";
const VOLUME: &str = "PersistentVolume";
const POD: &str = "Pod";
const SNAPSHOT: &str = "VolumeSnapshot";
const CONTENT: &str = "VolumeSnapshotContent";
const GROUP: &str = "VolumeGroupSnapshot";
const GROUP_CONTENT: &str = "VolumeGroupSnapshotContent";
const NORMAL: &str = "Normal";
const WARNING: &str = "Warning";

/// All reasons, in the order of a volume's life.
pub(crate) const REASONS: &[Reason] = &[
    reason(
        "WaitForFirstConsumer",
        CLAIM,
        NORMAL,
        "the class binds late: make a pod that uses the claim",
    ),
    reason(
        "WaitForPodScheduled",
        CLAIM,
        NORMAL,
        "a pod uses the claim and has no node yet; see the pod's events",
    ),
    reason(
        "FailedBinding",
        CLAIM,
        "Normal, Warning",
        "no volume fits and no class is set, or the named volume is taken",
    ),
    reason(
        "VolumeMismatch",
        "PersistentVolumeClaim, PersistentVolume",
        WARNING,
        "claim and volume name each other and do not fit; the text says in what",
    ),
    reason("ClaimLost", CLAIM, WARNING, "the bound volume is gone; its data may be, too"),
    reason("ClaimMisbound", CLAIM, WARNING, "two claims are bound to one volume"),
    reason(
        "ExternalProvisioning",
        CLAIM,
        NORMAL,
        "the binder waits for the provisioner of the class; see that it runs",
    ),
    reason(
        "Provisioning",
        CLAIM,
        NORMAL,
        "a provisioner has begun, or leaves the claim to a populator",
    ),
    reason("ProvisioningSucceeded", CLAIM, NORMAL, "the volume was made and saved"),
    reason(
        "ProvisioningFailed",
        CLAIM,
        WARNING,
        "the provisioner or the driver said no; the text has its words, and it is tried again",
    ),
    reason(
        "ProvisioningCleanupFailed",
        CLAIM,
        WARNING,
        "a volume that could not be saved could not be removed either: remove the storage by hand",
    ),
    reason(
        "ForeignIntent",
        "ConfigMap",
        WARNING,
        "an intent record of the leak guard came with a backup of another cluster; nothing of it is carried out here",
    ),
    reason("Scheduled", POD, NORMAL, "the pod has a node"),
    reason("FailedScheduling", POD, WARNING, "no node fits; the text counts the reasons"),
    reason("SuccessfulAttachVolume", POD, NORMAL, "the volume is on the pod's node"),
    reason(
        "FailedAttachVolume",
        POD,
        WARNING,
        "the driver said no, or another node has the volume; the text says which pods use it there",
    ),
    reason(
        "FailedMount",
        POD,
        WARNING,
        "a volume cannot be staged or published; the text has the driver's words",
    ),
    reason("FailedMapVolume", POD, WARNING, "the same for a raw block volume"),
    reason(
        "FailedUnmount",
        POD,
        WARNING,
        "a volume cannot be unmounted or unstaged; the text names the driver, the path and the processes that hold it",
    ),
    reason(
        "FailedDetach",
        "Pod, PersistentVolume",
        WARNING,
        "the driver's attacher does not take the volume off its node; the text has its words",
    ),
    reason("SuccessfulMountVolume", POD, NORMAL, "a raw block volume is mapped"),
    reason(
        "VolumePermissionChangeInProgress",
        POD,
        WARNING,
        "giving the volume's files to the pod's group takes long; `fsGroupChangePolicy: OnRootMismatch` skips it",
    ),
    reason(
        "VolumeAttachmentLimitExceeded",
        POD,
        WARNING,
        "the node has as many volumes of the driver as it takes; the pod fails, and its owner may make it elsewhere",
    ),
    reason(
        "Failed",
        POD,
        WARNING,
        "a container cannot run: another image than `host`, or a missing secret, config map or key",
    ),
    reason(
        "FailedCreatePodSandBox",
        POD,
        WARNING,
        "the pod's shim, which runs its containers, cannot be started",
    ),
    reason("Started", POD, NORMAL, "a container was started"),
    reason(
        "NotEnforced",
        POD,
        WARNING,
        "fields of the pod that this node, or the scheduler of `up`, passes over",
    ),
    reason(
        "DeadlineExceeded",
        POD,
        WARNING,
        "the pod was active for longer than its `activeDeadlineSeconds`; it failed",
    ),
    reason("Evicted", POD, WARNING, "an `emptyDir` outgrew its limit, or the pod was evicted"),
    reason(
        "UnsupportedPodSpec",
        POD,
        WARNING,
        "the named field would change the pod's isolation and cannot be honoured",
    ),
    reason("PodOSNotSupported", POD, WARNING, "`spec.os.name` is not `linux`"),
    reason("SysctlForbidden", POD, WARNING, "a sysctl that is not safe for one pod"),
    reason("AppArmor", POD, WARNING, "AppArmor profiles are not enforced here"),
    reason("InvalidContainerName", POD, WARNING, "a container's name is not a DNS label"),
    reason(
        "ExternalExpanding",
        CLAIM,
        NORMAL,
        "the claim asks for more; a resizer of the driver has to make it so",
    ),
    reason("Resizing", CLAIM, NORMAL, "the driver is asked for the new size"),
    reason(
        "FileSystemResizeRequired",
        CLAIM,
        NORMAL,
        "the volume has its new size; its node has to make the filesystem fit",
    ),
    reason(
        "VolumeResizeSuccessful",
        CLAIM,
        NORMAL,
        "the volume has its new size, or a FlexVolume was marked for its node to grow",
    ),
    reason(
        "VolumeResizeFailed",
        "Pod, PersistentVolumeClaim",
        WARNING,
        "the driver did not expand the volume, or expands it only while no pod uses it; asking for less ends a size that cannot be",
    ),
    reason(
        "VolumeModify",
        CLAIM,
        NORMAL,
        "the driver is asked for the attributes of another class",
    ),
    reason("VolumeModifySuccessful", CLAIM, NORMAL, "the volume has the attributes of the class"),
    reason(
        "VolumeModifyFailed",
        CLAIM,
        WARNING,
        "the class does not exist, or the driver did not take its attributes; naming the former class takes the change back",
    ),
    reason("VolumeModifyCanceled", CLAIM, NORMAL, "the claim names no class any more"),
    reason(
        "VolumeConditionAbnormal",
        CLAIM,
        WARNING,
        "the driver says of the volume what the message says; one of CSI up to 1.12 says it again while it lasts",
    ),
    reason(
        "VolumeConditionNormal",
        CLAIM,
        NORMAL,
        "the driver says nothing bad of the volume any more",
    ),
    reason(
        "VolumeHealthNotWritten",
        CLAIM,
        WARNING,
        "the health monitor may not write the status of claims: grant it patch on persistentvolumeclaims/status",
    ),
    reason(
        "NodeFailed",
        CLAIM,
        WARNING,
        "the node of the claim's pods has not been ready for five minutes, or is gone",
    ),
    reason("NodeRecovered", CLAIM, WARNING, "that node is ready again; a Warning, as upstream's"),
    reason(
        "NotServed",
        "any",
        WARNING,
        "no program that runs does what the object asks for; the text says which one would, and how to start it",
    ),
    reason(
        "FileSystemResizeSuccessful",
        "Pod, PersistentVolumeClaim",
        NORMAL,
        "the filesystem has its new size",
    ),
    reason(
        "FileSystemResizeFailed",
        "Pod, PersistentVolumeClaim",
        WARNING,
        "the driver did not grow the filesystem; the text says why, and whether a new pod helps",
    ),
    reason(
        "VolumeFailedDelete",
        VOLUME,
        WARNING,
        "the storage of a released volume could not be deleted; the text says why",
    ),
    reason(
        "VolumeFailedRecycle",
        VOLUME,
        "Normal, Warning",
        "volumes are never recycled: use `Delete` or `Retain`",
    ),
    reason(
        "VolumeUnknownReclaimPolicy",
        VOLUME,
        WARNING,
        "the reclaim policy is none of `Delete`, `Retain` and `Recycle`",
    ),
    reason(
        "NodeFenced",
        "Node",
        WARNING,
        "everything of an out-of-service node was ended, and its volumes are free",
    ),
    reason(
        "NodeNotStarted",
        "Node",
        WARNING,
        "the node ran at an earlier start and not now; the text names its pods and volumes",
    ),
    reason(
        "NodeNotReady",
        "Node, Pod",
        "Normal, Warning",
        "the node is not started, or does not renew its lease: start it again, or delete the pod by force",
    ),
    reason(
        "CreatingSnapshot",
        SNAPSHOT,
        NORMAL,
        "the content is made; the snapshotter of the driver has to take the snapshot",
    ),
    reason("SnapshotCreated", SNAPSHOT, NORMAL, "the driver has cut the snapshot"),
    reason("SnapshotReady", SNAPSHOT, NORMAL, "volumes can be made from the snapshot"),
    reason(
        "GetSnapshotClassFailed",
        SNAPSHOT,
        WARNING,
        "the class that the snapshot names does not exist; it begins when the class does",
    ),
    reason(
        "SetDefaultSnapshotClassFailed",
        SNAPSHOT,
        WARNING,
        "the snapshot names no class, and the volume's driver has no default class, or more than one; or the claim is not bound yet",
    ),
    reason("SnapshotValidationError", SNAPSHOT, WARNING, "the snapshot needs exactly one source"),
    reason(
        "SnapshotFinalizerError",
        SNAPSHOT,
        WARNING,
        "a finalizer could not be written; it is tried again",
    ),
    reason(
        "ErrorPVCFinalizer",
        SNAPSHOT,
        WARNING,
        "the source claim keeps its finalizer for now; it is tried again",
    ),
    reason(
        "SnapshotContentCreationFailed",
        SNAPSHOT,
        WARNING,
        "the content was not made; the text says what of claim, volume or class does not fit",
    ),
    reason("CreateSnapshotContentFailed", SNAPSHOT, WARNING, "the API server refused the content"),
    reason(
        "SnapshotContentMissing",
        SNAPSHOT,
        WARNING,
        "the content is not there, or is lost; a snapshot that was cut is never cut again",
    ),
    reason(
        "SnapshotContentMismatch",
        SNAPSHOT,
        WARNING,
        "the content is dynamic where one with a handle was asked for, or the other way round",
    ),
    reason("SnapshotContentMisbound", SNAPSHOT, WARNING, "the content is of another snapshot"),
    reason(
        "SnapshotMisbound",
        SNAPSHOT,
        WARNING,
        "the content does not point back to the snapshot",
    ),
    reason(
        "SnapshotBindFailed",
        SNAPSHOT,
        WARNING,
        "the content could not be bound; it is tried again",
    ),
    reason(
        "SnapshotHandleSet",
        SNAPSHOT,
        WARNING,
        "a content that the controller makes must not have a snapshot handle",
    ),
    reason(
        "SnapshotStatusUpdateFailed",
        SNAPSHOT,
        WARNING,
        "the status could not be written; it is tried again",
    ),
    reason(
        "SnapshotDeletePending",
        "VolumeSnapshot, VolumeGroupSnapshot",
        WARNING,
        "a claim is being restored from it, or it belongs to a group snapshot; it goes when that is over",
    ),
    reason(
        "SnapshotContentObjectDeleteError",
        SNAPSHOT,
        WARNING,
        "the content could not be deleted; it is tried again",
    ),
    reason(
        "ContentValidationError",
        CONTENT,
        WARNING,
        "the content needs exactly one of volume handle and snapshot handle",
    ),
    reason(
        "SnapshotCreationFailed",
        CONTENT,
        WARNING,
        "the driver did not take the snapshot; the text has its words, and it is tried again",
    ),
    reason(
        "SnapshotContentCheckandUpdateFailed",
        CONTENT,
        WARNING,
        "the same for a later try, or the driver does not know the snapshot",
    ),
    reason(
        "SnapshotDeleteError",
        "VolumeSnapshotContent, VolumeGroupSnapshot",
        WARNING,
        "the driver, or the API server for a member of a group, did not delete the snapshot; it is tried again",
    ),
    reason(
        "CreatingGroupSnapshot",
        GROUP,
        NORMAL,
        "the content is made; the snapshotter of the driver has to take the group snapshot",
    ),
    reason("GroupSnapshotCreated", GROUP, NORMAL, "the driver has cut all members at one moment"),
    reason("GroupSnapshotReady", GROUP, NORMAL, "volumes can be made from the members"),
    reason(
        "GetGroupSnapshotClassFailed",
        GROUP,
        WARNING,
        "the class that the group snapshot names does not exist",
    ),
    reason(
        "SetDefaultGroupSnapshotClassFailed",
        GROUP,
        WARNING,
        "no default class of the driver, or more than one; or a claim is not bound yet",
    ),
    reason(
        "GroupSnapshotValidationError",
        GROUP,
        WARNING,
        "the group snapshot needs exactly one source",
    ),
    reason(
        "GroupSnapshotFinalizerError",
        GROUP,
        WARNING,
        "a finalizer could not be written; it is tried again",
    ),
    reason(
        "GroupSnapshotContentCreationFailed",
        GROUP,
        WARNING,
        "the content was not made: no claim is selected, or one does not fit",
    ),
    reason(
        "CreateGroupSnapshotContentFailed",
        GROUP,
        WARNING,
        "a selected volume is not of the class's driver, or a secret cannot be named",
    ),
    reason("GroupSnapshotContentMissing", GROUP, WARNING, "the content is not there, or is lost"),
    reason(
        "GroupSnapshotContentMismatch",
        GROUP,
        WARNING,
        "the content is dynamic where one with handles was asked for",
    ),
    reason(
        "GroupSnapshotContentMisbound",
        GROUP,
        WARNING,
        "the content is of another group snapshot",
    ),
    reason(
        "GroupSnapshotMisbound",
        GROUP,
        WARNING,
        "the content does not point back to the group snapshot",
    ),
    reason(
        "GroupSnapshotBindFailed",
        GROUP,
        WARNING,
        "the content could not be bound; it is tried again",
    ),
    reason(
        "GroupSnapshotHandleSet",
        GROUP,
        WARNING,
        "a content that the controller makes must not have handles",
    ),
    reason(
        "GroupSnapshotStatusUpdateFailed",
        GROUP,
        WARNING,
        "the status could not be written; it is tried again",
    ),
    reason(
        "GroupSnapshotContentObjectDeleteError",
        GROUP,
        WARNING,
        "the content could not be deleted; it is tried again",
    ),
    reason(
        "GroupContentValidationError",
        GROUP_CONTENT,
        WARNING,
        "the content needs exactly one of volume handles and group snapshot handles",
    ),
    reason(
        "GroupSnapshotCreationFailed",
        GROUP_CONTENT,
        WARNING,
        "the driver did not take the group snapshot; the text has its words, and it is tried again",
    ),
    reason(
        "GroupSnapshotContentCheckandUpdateFailed",
        GROUP_CONTENT,
        WARNING,
        "the same for a later try, or the driver does not know the group snapshot",
    ),
    reason(
        "GroupSnapshotDeleteError",
        GROUP_CONTENT,
        WARNING,
        "the driver did not delete the group snapshot; it is tried again",
    ),
    reason("LeaderElection", "Lease", NORMAL, "another process became the leader"),
];
