//! What the demo prints: a line a step, then the timeline.

use std::time::{Duration, Instant};

use anyhow::bail;
use longshore_core::words;
use tokio_util::sync::CancellationToken;

use super::calls::Calls;

/// Collects steps and prints them as they happen.
pub(super) struct Display {
    began: Instant,
    steps: Vec<Step>,
    /// The calls of a foreign driver, and how many of them were shown.
    calls: Option<(Calls, usize)>,
    /// Ends the step that runs.
    stop: CancellationToken,
}

struct Step {
    name: &'static str,
    at: Duration,
    took: Duration,
}

impl Display {
    pub(super) fn new(stop: &CancellationToken) -> Self {
        Self { began: Instant::now(), steps: Vec::new(), calls: None, stop: stop.clone() }
    }

    /// A heading.
    pub(super) fn title(&self, text: &str) {
        println!("{text}\n");
    }

    /// A remark without a duration.
    pub(super) fn note(&self, text: &str) {
        println!("\n{text}");
    }

    /// From now on each step is followed by the calls that it took.
    pub(super) fn record(&mut self, calls: Calls) {
        self.calls = Some((calls, 0));
    }

    /// A step that is not for this driver.
    pub(super) fn skipped(&self, name: &str, why: &str) {
        println!("  --   {name:<10} skipped: {why}");
    }

    /// Prints the calls for volumes since the last step.
    fn new_calls(&mut self) {
        let Some((calls, shown)) = &mut self.calls else { return };
        for call in calls.since(*shown).iter().filter(|call| call.is_about_volumes()) {
            let message = if call.failed() { format!(": {}", call.message) } else { String::new() };
            let took = millis(call.took);
            let code = longshore_csi::code_name(call.code);
            println!("         {:<28} {took:>9}  {code}{message}", call.method);
        }
        *shown = calls.count();
    }

    /// Runs one step, unless a signal ends it, and prints it with what it found and how long it took.
    pub(super) async fn step<T, F>(&mut self, name: &'static str, work: F) -> anyhow::Result<T>
    where
        F: Future<Output = anyhow::Result<(T, String)>>,
    {
        let stop = self.stop.clone();
        let stopped = || bail!("stopped by a signal");
        let work = async { stop.run_until_cancelled(work).await.unwrap_or_else(stopped) };
        self.step_to_its_end(name, work).await
    }

    /// The same for a step that cleans up: no signal ends it.
    pub(super) async fn step_to_its_end<T, F>(
        &mut self,
        name: &'static str,
        work: F,
    ) -> anyhow::Result<T>
    where
        F: Future<Output = anyhow::Result<(T, String)>>,
    {
        let started = Instant::now();
        let done = work.await;
        let took = started.elapsed();
        self.steps.push(Step { name, at: started.duration_since(self.began), took });
        let outcome = match done {
            Ok((value, found)) => {
                println!("  ok   {name:<10} {:>9}  {found}", millis(took));
                Ok(value)
            }
            Err(error) => {
                println!(
                    "  FAIL {name:<10} {:>9}  {}",
                    millis(took),
                    words::causes_of(error.chain())
                );
                Err(error.context(format!("step {name}")))
            }
        };
        self.new_calls();
        outcome
    }

    /// The timeline: when each step began, how long it took, as bars on one scale.
    pub(super) fn timeline(&self) {
        let total = self.began.elapsed();
        println!("\ntimeline ({} in all)", millis(total));
        for step in &self.steps {
            let column = |part: Duration| {
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "a column of a bar chart"
                )]
                let column = (part.as_secs_f64() / total.as_secs_f64() * 48.0) as usize;
                column.min(47)
            };
            let (from, width) = (column(step.at), column(step.took).max(1));
            println!(
                "  {:<10} {:>9} +{:<9} {}{}",
                step.name,
                millis(step.at),
                millis(step.took),
                " ".repeat(from),
                "=".repeat(width)
            );
        }
    }
}

pub(super) fn millis(value: Duration) -> String {
    format!("{:.1} ms", value.as_secs_f64() * 1000.0)
}
