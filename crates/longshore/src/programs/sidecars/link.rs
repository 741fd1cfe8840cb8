//! The one connection to the driver: lost and found again, for all controllers at once.

use std::sync::Arc;
use std::time::Duration;

use longshore_controllers::{Driver, DriverError};
use longshore_core::backoff::Backoff;
use longshore_core::words;
use longshore_csi::Client;
use tokio::sync::watch;

/// Pauses between attempts to reach a driver that is away.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));

/// How often an absence is logged.
const REPORT_EVERY: u32 = 30;

/// A driver on one connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Connected {
    pub(super) driver: Driver,
    /// How many connections were lost before this one.
    pub(super) number: u64,
}

/// The connection as the controllers see it; none while the driver is away.
pub(super) type Connection = Option<Arc<Connected>>;

/// Another driver has taken the socket.
#[derive(Debug, thiserror::Error)]
#[error(
    "the CSI driver was {was} and is {now} since it is connected again; leases and volumes of both would be mixed up, exiting"
)]
pub(super) struct Renamed {
    was: String,
    now: String,
}

/// Looks after the connection.
pub(super) struct Link {
    csi: Client,
    timeout: Duration,
    connection: watch::Sender<Connection>,
}

impl Link {
    /// Waits until the driver is ready and has said who it is and what it can do, however long that takes.
    pub(super) async fn open(csi: Client, timeout: Duration) -> (Self, Arc<Connected>) {
        let first = reach(&csi, timeout).await;
        let connection = watch::Sender::new(Some(first.clone()));
        (Self { csi, timeout, connection }, first)
    }

    pub(super) fn connection(&self) -> watch::Receiver<Connection> {
        self.connection.subscribe()
    }

    /// Keeps the connection, until another driver is behind it.
    pub(super) async fn keep(self, driver: &str) -> Renamed {
        let mut losses = self.csi.connection_losses();
        loop {
            let number = self.connection.borrow().as_ref().map_or(0, |now| now.number);
            // The sender lives as long as the client.
            let _ = losses.wait_for(|losses| *losses != number).await;
            tracing::warn!(
                driver,
                "the driver is away: no controller begins anything until it is back"
            );
            self.connection.send_replace(None);
            let now = reach(&self.csi, self.timeout).await;
            if now.driver.name != driver {
                return Renamed { was: driver.to_owned(), now: now.driver.name.clone() };
            }
            tracing::info!(driver, "the driver is back");
            self.connection.send_replace(Some(now));
        }
    }
}

/// Asks until the driver answers.
async fn reach(csi: &Client, timeout: Duration) -> Arc<Connected> {
    let losses = csi.connection_losses();
    let mut pauses = PAUSES.series();
    for attempt in 0_u32.. {
        let number = *losses.borrow();
        match Driver::describe_when_ready(csi, timeout).await {
            // Lost while it was asked: what it said may be the word of the one before.
            Ok(driver) if *losses.borrow() == number => {
                return Arc::new(Connected { driver, number });
            }
            Ok(_) => {}
            Err(error) => report(attempt, &error),
        }
        tokio::time::sleep(pauses.pause()).await;
    }
    unreachable!("it asks for ever")
}

fn report(attempt: u32, error: &DriverError) {
    if attempt.is_multiple_of(REPORT_EVERY) {
        let error = words::causes(error);
        tracing::warn!(error, "the driver does not answer; it is asked again");
    }
}
