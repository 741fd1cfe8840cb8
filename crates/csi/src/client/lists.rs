//! Paged lists.

use std::collections::BTreeSet;

use prost::{Message, Name};
use tonic::Status;

use super::Client;
use crate::{Call, CsiError, v1};

/// A request for one page.
trait PageRequest: Message + Name + Clone + 'static {
    fn start_at(&mut self, token: String);
}

trait Page: Message + Name + Default + 'static {
    type Entry;

    /// The entries, and the token of the next page; empty on the last one.
    fn take(self) -> (Vec<Self::Entry>, String);
}

macro_rules! paged {
    ($($request:ident -> $response:ident of $entry:ty;)*) => { $(
        impl PageRequest for v1::$request {
            fn start_at(&mut self, token: String) {
                self.starting_token = token;
            }
        }

        impl Page for v1::$response {
            type Entry = $entry;

            fn take(self) -> (Vec<Self::Entry>, String) {
                (self.entries, self.next_token)
            }
        }
    )* };
}

paged! {
    ListVolumesRequest -> ListVolumesResponse of v1::list_volumes_response::Entry;
    ListSnapshotsRequest -> ListSnapshotsResponse of v1::list_snapshots_response::Entry;
    ControllerListVolumeHealthRequest -> ControllerListVolumeHealthResponse of v1::VolumeHealth;
}

impl Client {
    /// Lists all volumes. Give the client one deadline for all pages with [`Client::with_deadline`].
    ///
    /// Entries of the pages before a failure have been visited when it is returned: the list is complete only on
    /// success.
    pub async fn list_all_volumes(
        &self,
        request: v1::ListVolumesRequest,
        visit: impl FnMut(v1::list_volumes_response::Entry),
    ) -> Result<(), CsiError> {
        self.pages::<_, v1::ListVolumesResponse>(Call::ListVolumes, request, visit).await
    }

    /// Lists all snapshots that the request's filters let through, as [`Client::list_all_volumes`] does.
    pub async fn list_all_snapshots(
        &self,
        request: v1::ListSnapshotsRequest,
        visit: impl FnMut(v1::list_snapshots_response::Entry),
    ) -> Result<(), CsiError> {
        self.pages::<_, v1::ListSnapshotsResponse>(Call::ListSnapshots, request, visit).await
    }

    /// Lists the health of all volumes that the driver reports on, as [`Client::list_all_volumes`] does.
    ///
    /// Drivers leave healthy volumes out, and paging may repeat or lose an entry.
    pub async fn list_all_volume_health(
        &self,
        request: v1::ControllerListVolumeHealthRequest,
        visit: impl FnMut(v1::VolumeHealth),
    ) -> Result<(), CsiError> {
        let call = Call::ControllerListVolumeHealth;
        self.pages::<_, v1::ControllerListVolumeHealthResponse>(call, request, visit).await
    }

    async fn pages<Q: PageRequest, R: Page>(
        &self,
        call: Call,
        mut request: Q,
        mut visit: impl FnMut(R::Entry),
    ) -> Result<(), CsiError> {
        let mut tokens = BTreeSet::new();
        loop {
            let page: R = self.unary(call, request.clone()).await?;
            let (entries, next) = page.take();
            entries.into_iter().for_each(&mut visit);
            if next.is_empty() {
                return Ok(());
            }
            // A token that repeats would make this loop endless.
            if !tokens.insert(next.clone()) {
                let text = format!("the driver returned next_token {next:?} twice in one list");
                return Err(CsiError::new(call, Status::internal(text)));
            }
            request.start_at(next);
        }
    }
}
