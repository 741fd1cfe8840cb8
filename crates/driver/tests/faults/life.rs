//! What a volume goes through before and after a driver is killed.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use longshore_csi::v1::*;
use longshore_csi::{Client, CsiError};
use longshore_driver::DriverKind;
use longshore_driver::id::{GroupId, SnapshotId, VolumeId};
use tonic::Code;

use crate::common::*;

/// A kind of life, by what it passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plot {
    /// A volume of a `shared` driver.
    Shared,
    /// An inline volume of a `local` one.
    Inline,
    /// Two volumes of a `local` one that are copied while they are mounted.
    Copies,
    /// A volume of a `shared` driver that is copied while another process has it mounted.
    Remote,
}

impl Plot {
    pub fn of(point: &str) -> Self {
        match point.split_once('.').expect("a call and a step").0 {
            "ephemeral" => Self::Inline,
            "freeze" | "holder" | "cut" | "group" => Self::Copies,
            "remote" => Self::Remote,
            _ => Self::Shared,
        }
    }

    pub fn kind(self) -> DriverKind {
        match self {
            Self::Shared | Self::Remote => DriverKind::Shared,
            Self::Inline | Self::Copies => DriverKind::Local,
        }
    }

    pub fn steps(self) -> &'static [&'static str] {
        match self {
            Self::Shared => &[
                "create",
                "modify",
                "attach",
                "stage",
                "publish",
                "grow",
                "grow on node",
                "unpublish",
                "unstage",
                "detach",
                "snapshot",
                "clone",
                "delete clone",
                "delete snapshot",
                "delete",
            ],
            Self::Inline => &["inline", "end inline"],
            Self::Copies => &[
                "create",
                "create second",
                "stage",
                "stage second",
                "snapshot",
                "group",
                "delete group",
                "delete snapshot",
                "unstage second",
                "unstage",
                "delete second",
                "delete",
            ],
            Self::Remote => &[
                "create",
                "attach",
                "stage",
                "snapshot",
                "delete snapshot",
                "unstage",
                "detach",
                "delete",
            ],
        }
    }

    /// How to take away whatever there is.
    pub fn undo(self) -> &'static [&'static str] {
        match self {
            Self::Shared => {
                &["unpublish", "unstage", "detach", "delete clone", "delete snapshot", "delete"]
            }
            Self::Inline => &["end inline"],
            Self::Copies => &[
                "delete group",
                "delete snapshot",
                "unstage second",
                "unstage",
                "delete second",
                "delete",
            ],
            Self::Remote => &["delete snapshot", "unstage", "detach", "delete"],
        }
    }

    /// Where the caller goes on after a reboot that came during a step: nothing is staged any more.
    pub fn after_reboot(self, died_in: usize) -> usize {
        let at = |step: &str| self.steps().iter().position(|one| *one == step);
        let (staged, left) = match self {
            Self::Shared => (at("stage"), at("unstage")),
            Self::Inline => (None, None),
            Self::Copies => (at("stage"), at("unstage second")),
            Self::Remote => (at("stage"), at("unstage")),
        };
        match (staged, left) {
            (Some(staged), Some(left)) if (staged..left).contains(&died_in) => staged,
            _ => died_in,
        }
    }
}

/// Why a step did not do what it should.
#[derive(Debug)]
pub enum Trouble {
    Refused(CsiError),
    Wrong(String),
}

impl Trouble {
    /// Never made, or already gone: then there is nothing to take away.
    pub fn is_nothing_there(&self) -> bool {
        matches!(self, Self::Refused(error) if error.code() == Code::NotFound)
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(error) => error.fmt(f),
            Self::Wrong(text) => text.fmt(f),
        }
    }
}

impl From<CsiError> for Trouble {
    fn from(error: CsiError) -> Self {
        Self::Refused(error)
    }
}

/// One life. Everything's id follows from its name, so it is known even when an response is lost.
pub struct Life {
    pub world: World,
    pub plot: Plot,
    staging: [String; 2],
    target: String,
    ids: [String; 2],
    clone: String,
    snapshot: String,
    group: GroupId,
    /// Something was written and flushed, and must never be lost again.
    written: AtomicBool,
}

impl Life {
    pub fn new(plot: Plot) -> Self {
        let world = World::new();
        let scope = if plot.kind() == DriverKind::Shared { "" } else { "n1" };
        let volume = |name: &str| VolumeId::for_name(scope, name).to_string();
        Self {
            plot,
            staging: ["staging", "staging-second"].map(|name| world.dir(name)),
            target: world.at("target"),
            ids: ["first", "second"].map(volume),
            clone: volume("clone"),
            snapshot: SnapshotId::for_name(scope, "s").to_string(),
            group: GroupId::for_name(scope, "g"),
            written: AtomicBool::new(false),
            world,
        }
    }

    /// Does one step.
    pub async fn step(&self, client: &Client, step: &str) -> Result<(), Trouble> {
        let (staging, id) = match step.ends_with(" second") {
            false => (&self.staging[0], &self.ids[0]),
            true => (&self.staging[1], &self.ids[1]),
        };
        match step {
            "stage" | "stage second" => {
                client.node_stage_volume(stage(id, staging, writer())).await?;
                if step == "stage" && self.plot != Plot::Shared {
                    self.keep_data(staging)?;
                }
            }
            "publish" => {
                let request = publish(id, staging, &self.target, writer());
                client.node_publish_volume(request).await?;
                self.keep_data(&self.target)?;
            }
            "snapshot" => {
                client.create_snapshot(snapshot("s", id)).await?;
                self.check_copy(&self.snapshot)?;
            }
            "group" => {
                let sources = self.ids.each_ref().map(String::as_str);
                client.create_volume_group_snapshot(group("g", &sources)).await?;
                self.check_copy(&self.members()[0])?;
            }
            "unstage" | "unstage second" => {
                client.node_unstage_volume(unstage(id, staging)).await?;
            }
            other => self.plain_step(client, other, id).await?,
        }
        Ok(())
    }

    /// A step that is one call and nothing else.
    async fn plain_step(&self, client: &Client, step: &str, id: &str) -> Result<(), CsiError> {
        match step {
            "create" => client.create_volume(create("first", 4 * MIB, writer())).await.map(drop),
            "create second" => {
                client.create_volume(create("second", 4 * MIB, writer())).await.map(drop)
            }
            "modify" => {
                let request = ControllerModifyVolumeRequest {
                    volume_id: id.to_owned(),
                    mutable_parameters: [("directIO".to_owned(), "false".to_owned())].into(),
                    ..Default::default()
                };
                client.controller_modify_volume(request).await.map(drop)
            }
            "attach" => {
                client.controller_publish_volume(attach(id, "n1", writer())).await.map(drop)
            }
            "grow" => {
                let request = ControllerExpandVolumeRequest {
                    volume_id: id.to_owned(),
                    capacity_range: at_least(8 * MIB),
                    ..Default::default()
                };
                client.controller_expand_volume(request).await.map(drop)
            }
            "grow on node" => {
                let request = grow_on_node(id, &self.staging[0], 8 * MIB);
                match client.node_expand_volume(request).await {
                    // Where the kernel does not let a mounted ext4 grow.
                    Err(error) if error.code() == Code::FailedPrecondition => Ok(()),
                    grown => grown.map(drop),
                }
            }
            "unpublish" => {
                client.node_unpublish_volume(unpublish(id, &self.target)).await.map(drop)
            }
            "detach" => client.controller_unpublish_volume(detach(id, "n1")).await.map(drop),
            "clone" => {
                let source = from_snapshot(&self.snapshot);
                let request = copy_of(source, "clone", 8 * MIB, writer());
                client.create_volume(request).await.map(drop)
            }
            "delete clone" => client.delete_volume(delete(&self.clone)).await.map(drop),
            "delete snapshot" => {
                client.delete_snapshot(delete_snapshot(&self.snapshot)).await.map(drop)
            }
            "delete group" => {
                let request = DeleteVolumeGroupSnapshotRequest {
                    group_snapshot_id: self.group.to_string(),
                    snapshot_ids: self.members().to_vec(),
                    ..Default::default()
                };
                client.delete_volume_group_snapshot(request).await.map(drop)
            }
            "delete" | "delete second" => client.delete_volume(delete(id)).await.map(drop),
            "inline" => {
                let mut request = publish(&inline_id(), "", &self.target, writer());
                let context = [("csi.storage.k8s.io/ephemeral", "true"), ("size", "4Mi")];
                for (key, value) in context {
                    request.volume_context.insert(key.to_owned(), value.to_owned());
                }
                client.node_publish_volume(request).await.map(drop)
            }
            "end inline" => {
                client.node_unpublish_volume(unpublish(&inline_id(), &self.target)).await.map(drop)
            }
            other => panic!("no step {other}"),
        }
    }

    fn members(&self) -> [String; 2] {
        let member = |id: &String| {
            let id = VolumeId::parse(id).expect("a volume's id");
            SnapshotId::in_group(&self.group, &id).to_string()
        };
        self.ids.each_ref().map(member)
    }

    /// Writes something the first time, and finds it ever after.
    fn keep_data(&self, dir: &str) -> Result<(), Trouble> {
        let path = Path::new(dir).join("data");
        if self.written.load(Ordering::SeqCst) {
            return match std::fs::read_to_string(&path) {
                Ok(text) if text == "precious" => Ok(()),
                other => Err(Trouble::Wrong(format!("data was lost: {other:?}"))),
            };
        }
        std::fs::write(&path, "precious").expect("written");
        std::fs::File::open(&path).expect("open").sync_all().expect("flushed");
        self.written.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// A copy of the first volume is a whole filesystem with the data in it.
    fn check_copy(&self, id: &str) -> Result<(), Trouble> {
        let image = self.world.pool().join(format!("{id}.img"));
        let checked = Command::new("e2fsck").arg("-fn").arg(&image).output().expect("e2fsck");
        let read = Command::new("debugfs")
            .args(["-R", "cat /data"])
            .arg(&image)
            .output()
            .expect("debugfs");
        if checked.status.success() && read.stdout == b"precious" {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&checked.stdout).into_owned();
        let text = format!("a copy is damaged: {}: {said}; read {:?}", checked.status, read.stdout);
        Err(Trouble::Wrong(text))
    }

    fn mounted(&self) -> Vec<&String> {
        let mounts = self.world.mounts();
        self.staging.iter().filter(|dir| mounts.contains(&PathBuf::from(dir))).collect()
    }

    /// No caller is left waiting.
    pub async fn check_thawed(&self) -> Result<(), String> {
        for dir in self.mounted() {
            writable(dir).await?;
        }
        Ok(())
    }

    /// Whether a filesystem is frozen at this moment.
    pub fn is_frozen(&self) -> bool {
        let fsfreeze = |how: &str, dir: &str| {
            let done = Command::new("fsfreeze").args([how, dir]).output().expect("fsfreeze");
            done.status.success()
        };
        self.mounted().into_iter().any(|dir| {
            let was_thawed = fsfreeze("--freeze", dir);
            if was_thawed {
                assert!(fsfreeze("--unfreeze", dir), "thawed again");
            }
            !was_thawed
        })
    }

    /// Whatever is left that should not be.
    pub fn leftovers(&self) -> Vec<String> {
        let mut all: Vec<String> =
            self.world.mounts().iter().map(|path| format!("mount {}", path.display())).collect();
        all.extend(self.world.loops().iter().map(|path| format!("device {}", path.display())));
        all.extend(self.world.files().into_iter().map(|name| format!("file {name}")));
        if Path::new(&self.target).exists() {
            all.push("the target".to_owned());
        }
        all
    }

    /// Leaves something in the pool that a careless driver would.
    pub fn plant(&self) {
        let name = format!(".new-{}.img", self.ids[0]);
        std::fs::write(self.world.pool().join(name), "").expect("planted");
    }
}

fn inline_id() -> String {
    format!("csi-{}", "0a".repeat(32))
}
