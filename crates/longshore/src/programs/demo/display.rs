//! What the demo prints: a line a step, then the timeline.

use std::time::{Duration, Instant};

use longshore_core::words;

/// Collects steps and prints them as they happen.
pub(super) struct Display {
    began: Instant,
    steps: Vec<Step>,
}

struct Step {
    name: &'static str,
    at: Duration,
    took: Duration,
}

impl Display {
    pub(super) fn new() -> Self {
        Self { began: Instant::now(), steps: Vec::new() }
    }

    /// A heading.
    pub(super) fn title(&self, text: &str) {
        println!("{text}\n");
    }

    /// A remark without a duration.
    pub(super) fn note(&self, text: &str) {
        println!("\n{text}");
    }

    /// Runs one step and prints it with what it found and how long it took.
    pub(super) async fn step<T, F>(&mut self, name: &'static str, work: F) -> anyhow::Result<T>
    where
        F: Future<Output = anyhow::Result<(T, String)>>,
    {
        let started = Instant::now();
        let done = work.await;
        let took = started.elapsed();
        self.steps.push(Step { name, at: started.duration_since(self.began), took });
        match done {
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
                Err(error)
            }
        }
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

fn millis(value: Duration) -> String {
    format!("{:.1} ms", value.as_secs_f64() * 1000.0)
}
