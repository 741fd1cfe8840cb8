//! How much the objects of a store may take.

/// Which part of the room a write may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Room {
    /// What can be done without: the first to be refused.
    Spare,
    /// What clients ask for.
    #[default]
    Plain,
    /// What keeps the cluster going: status, leases, and what this process itself writes.
    Reserve,
}

impl Room {
    /// Up to where the store may be filled.
    fn ceiling(self, limit: usize) -> usize {
        match self {
            Self::Spare => limit - limit / 20,
            Self::Plain => limit,
            Self::Reserve => limit.saturating_add(limit / 10),
        }
    }
}

/// What is used of the room, as writers see it.
#[derive(Debug, Default)]
pub(super) struct Used {
    bytes: usize,
    /// Zero means no bound.
    limit: usize,
    /// Whether it was told that little is left.
    warned: bool,
}

impl Used {
    pub(super) fn new(bytes: usize) -> Self {
        Self { bytes, ..Self::default() }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    pub(super) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Starts from what is there.
    pub(super) fn reset(&mut self, bytes: usize) {
        self.bytes = bytes;
    }

    /// Whether there is room to replace so many bytes by so many. What does not grow always fits.
    pub(super) fn fits(&self, before: usize, after: usize, room: Room) -> bool {
        let then = self.bytes.saturating_sub(before).saturating_add(after);
        self.limit == 0 || after <= before || then <= room.ceiling(self.limit)
    }

    /// Takes note of a write.
    pub(super) fn replace(&mut self, before: usize, after: usize) {
        self.bytes = self.bytes.saturating_sub(before).saturating_add(after);
        if self.limit == 0 {
            return;
        }
        let (bytes, limit) = (self.bytes, self.limit);
        if bytes > limit / 5 * 4 && !self.warned {
            self.warned = true;
            tracing::warn!(
                bytes,
                limit,
                "the store is more than 80 % full; when it is full, creates and growing updates are \
                 refused: delete what is not needed, or raise --store-limit"
            );
        } else if bytes < limit / 4 * 3 {
            self.warned = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shrinking_writes_fit_and_growing_ones_meet_the_limit() {
        let used = Used { bytes: 1000, limit: 1000, warned: false };
        let rows = [
            (0, 1, Room::Spare, false),
            (0, 1, Room::Plain, false),
            (0, 100, Room::Reserve, true),
            (0, 101, Room::Reserve, false),
            (50, 50, Room::Spare, true),
            (50, 49, Room::Plain, true),
            (50, 51, Room::Plain, false),
        ];
        for (before, after, room, wanted) in rows {
            assert_eq!(used.fits(before, after, room), wanted, "{before} {after} {room:?}");
        }
        assert!(Used { limit: 0, ..used }.fits(0, usize::MAX, Room::Spare));
    }
}
