//! Two lanes, and one attachment in one lane at a time.

use std::collections::{HashMap, HashSet};

use longshore_cluster::{Context, QueueOptions, WorkQueue};
use longshore_core::model::kinds::VolumeAttachment;
use parking_lot::Mutex;

/// Where an attachment is worked on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Lane {
    Attach,
    Detach,
}

impl Lane {
    /// Where an attachment belongs.
    pub(super) fn of(attachment: &VolumeAttachment) -> Self {
        if attachment.metadata.deleting() { Self::Detach } else { Self::Attach }
    }

    /// The lane's word in log lines.
    pub(super) fn step(self) -> &'static str {
        match self {
            Self::Attach => "attach",
            Self::Detach => "detach",
        }
    }
}

/// The queues of both lanes and who is in them.
pub(super) struct Lanes {
    attach: WorkQueue<String>,
    detach: WorkQueue<String>,
    /// Attachments being worked on, with the lanes that asked for them meanwhile.
    busy: Mutex<HashMap<String, HashSet<Lane>>>,
    /// Attachments about which the driver's own list disagrees.
    forced: Mutex<HashSet<String>>,
}

impl Lanes {
    pub(super) fn new(context: &Context, options: &QueueOptions) -> Self {
        Self {
            attach: context.queue("csi-attacher-va", options.clone()),
            detach: context.queue("csi-attacher-va-detach", options.clone()),
            busy: Mutex::default(),
            forced: Mutex::default(),
        }
    }

    pub(super) fn queue(&self, lane: Lane) -> &WorkQueue<String> {
        match lane {
            Lane::Attach => &self.attach,
            Lane::Detach => &self.detach,
        }
    }

    /// Takes an attachment into a lane until the permit is dropped. `None` while it is in the other
    /// one; it is queued again when it leaves there.
    pub(super) fn enter<'a>(&'a self, lane: Lane, name: &str) -> Option<Permit<'a>> {
        let mut busy = self.busy.lock();
        if let Some(asking) = busy.get_mut(name) {
            asking.insert(lane);
            return None;
        }
        busy.insert(name.to_owned(), HashSet::new());
        Some(Permit { lanes: self, name: name.to_owned() })
    }

    /// Makes the next pass repeat the call even if the status says that it is done.
    pub(super) fn force(&self, name: &str) {
        self.forced.lock().insert(name.to_owned());
    }

    pub(super) fn take_force(&self, name: &str) -> bool {
        self.forced.lock().remove(name)
    }
}

/// An attachment in a lane.
pub(super) struct Permit<'a> {
    lanes: &'a Lanes,
    name: String,
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let asking = self.lanes.busy.lock().remove(&self.name);
        for lane in asking.unwrap_or_default() {
            self.lanes.queue(lane).add(self.name.clone());
        }
    }
}
