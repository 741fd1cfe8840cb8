//! FlexVolumes: the controller records the new size, the node resizes the filesystem.

use longshore_cluster::clock;
use longshore_core::{
    expand::flex::{
        FlexStep, forget_old_size, mark_growing, mark_grown, mark_node_pending, set_size,
    },
    model::{
        Quantity, VolumeMode,
        kinds::{Claim, Volume},
    },
};
use serde_json::Value;

use super::{ExpandError, Expander};

impl Expander {
    /// Takes one step for the claim of a FlexVolume; `claim` and `volume` are as the API has them.
    pub(super) async fn flex_step(
        &self,
        seen: &Claim,
        claim: Value,
        volume: Value,
        driver: &str,
        step: FlexStep,
    ) -> Result<(), ExpandError> {
        let done = match step {
            FlexStep::LeaveToNode => Ok(()),
            FlexStep::ForgetOldSize => self.forget_old_size(volume).await,
            FlexStep::AskNodeAgain => self.ask_node(claim).await,
            FlexStep::Grow(target) => self.grow(seen, claim, volume, driver, target).await,
        };
        if let Err(error) = &done
            && !error.is_conflict()
        {
            self.recorder.warning(seen, "VolumeResizeFailed", error.to_string());
        }
        done
    }

    async fn forget_old_size(&self, mut volume: Value) -> Result<(), ExpandError> {
        if forget_old_size(&mut volume) {
            self.api.update::<Volume>(&volume).await.map_err(ExpandError::SaveSize)?;
        }
        Ok(())
    }

    /// The claim first: whoever looks at the larger volume finds out why it is larger.
    async fn grow(
        &self,
        seen: &Claim,
        mut claim: Value,
        mut volume: Value,
        driver: &str,
        target: Quantity,
    ) -> Result<(), ExpandError> {
        mark_growing(&mut claim, driver, target, &clock::seconds(clock::now()));
        let mut claim = self.save_status(claim).await?;
        let on_node = seen.volume_mode() != &VolumeMode::Block;
        let before = seen.status.capacity.get("storage").copied().filter(|_| on_node);
        if set_size(&mut volume, target, before) {
            self.api.update::<Volume>(&volume).await.map_err(ExpandError::SaveSize)?;
        }
        if on_node {
            return self.ask_node(claim).await;
        }
        mark_grown(&mut claim, target);
        self.save_status(claim).await?;
        let text = format!("ExpandVolume succeeded for volume {}", seen.metadata.key());
        self.recorder.normal(seen, "VolumeResizeSuccessful", text);
        Ok(())
    }

    async fn ask_node(&self, mut claim: Value) -> Result<(), ExpandError> {
        mark_node_pending(&mut claim, &clock::seconds(clock::now()));
        self.save_status(claim).await.map(|_| ())
    }

    async fn save_status(&self, claim: Value) -> Result<Value, ExpandError> {
        let saved = self.api.update_status::<Claim>(&claim).await.map_err(ExpandError::SaveSize)?;
        self.claims.assume(&saved);
        Ok(saved)
    }
}
