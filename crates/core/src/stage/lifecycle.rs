//! The life of a pod's containers: what to start next, and what the pod's phase is.

use std::time::Duration;

use crate::backoff::Backoff;

/// `spec.restartPolicy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RestartPolicy {
    /// Restart whatever ends.
    #[default]
    Always,
    /// Restart what fails.
    OnFailure,
    /// Restart nothing.
    Never,
}

impl RestartPolicy {
    /// Reads the API's word; unset means `Always`.
    #[must_use]
    pub fn parse(word: &str) -> Self {
        match word {
            "OnFailure" => Self::OnFailure,
            "Never" => Self::Never,
            _ => Self::Always,
        }
    }

    fn restarts(self, exit_code: i32) -> bool {
        match self {
            Self::Always => true,
            Self::OnFailure => exit_code != 0,
            Self::Never => false,
        }
    }
}

/// What is known of the newest run of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Run {
    /// It never ran.
    Never,
    /// It runs as this attempt.
    Running { attempt: u32 },
    /// This attempt ended. `may_restart_at_ms` is the end of its crash-loop back-off.
    Ended { attempt: u32, exit_code: i32, may_restart_at_ms: u64 },
}

/// A container and its newest run.
#[derive(Debug, Clone, Copy)]
pub struct Container<'a> {
    pub name: &'a str,
    /// An init container that keeps running beside the others.
    pub sidecar: bool,
    /// Its newest run.
    pub run: Run,
}

/// All that the decision may depend on.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// Init containers in order.
    pub init: &'a [Container<'a>],
    pub main: &'a [Container<'a>],
    /// The pod's policy.
    pub policy: RestartPolicy,
    /// The pod is being deleted: nothing is started any more.
    pub stopping: bool,
    /// Milliseconds since the epoch.
    pub now_ms: u64,
}

/// `status.phase`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Volumes or init containers are not done.
    Pending,
    /// At least one container has started and the pod is not over.
    Running,
    /// All containers ended well and none will run again.
    Succeeded,
    /// All containers ended, one of them badly, and none will run again.
    Failed,
}

impl Phase {
    /// The API's word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }

    /// No container will run again.
    #[must_use]
    pub fn is_over(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Next {
    /// Containers to start, with their attempt number.
    pub start: Vec<(String, u32)>,
    /// Running sidecars to end because the containers they served are over.
    pub end: Vec<String>,
    /// Look again at this time.
    pub wake_at_ms: Option<u64>,
    /// The pod's phase.
    pub phase: Phase,
    /// Every init container is done.
    pub initialized: bool,
}

/// Decides what to start next.
#[must_use]
pub fn decide(view: &View<'_>) -> Next {
    let mut next = Next {
        start: Vec::new(),
        end: Vec::new(),
        wake_at_ms: None,
        phase: Phase::Pending,
        initialized: false,
    };
    let init = init_state(view, &mut next);
    next.initialized = init == Init::Done;
    match init {
        Init::Failed => next.phase = Phase::Failed,
        Init::Waiting => {}
        Init::Done => {
            for container in view.main {
                consider(view, container, view.policy, &mut next);
            }
            next.phase = main_phase(view);
        }
    }
    if next.phase.is_over() {
        next.start.clear();
        next.wake_at_ms = None;
        next.end = running_sidecars(view);
    }
    if view.stopping {
        next.start.clear();
        next.wake_at_ms = None;
    }
    next
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Init {
    Waiting,
    Failed,
    Done,
}

fn init_state(view: &View<'_>, next: &mut Next) -> Init {
    // Once a main container has run, init containers are history, except sidecars.
    let begun = view.main.iter().any(|container| container.run != Run::Never);
    for container in view.init {
        if container.sidecar {
            consider(view, container, RestartPolicy::Always, next);
            if container.run == Run::Never {
                return Init::Waiting;
            }
            continue;
        }
        match container.run {
            Run::Ended { exit_code: 0, .. } => {}
            _ if begun => {}
            Run::Ended { .. } if view.policy == RestartPolicy::Never => return Init::Failed,
            _ => {
                consider(view, container, RestartPolicy::OnFailure, next);
                return Init::Waiting;
            }
        }
    }
    Init::Done
}

fn consider(view: &View<'_>, container: &Container<'_>, policy: RestartPolicy, next: &mut Next) {
    match container.run {
        Run::Never => next.start.push((container.name.to_owned(), 0)),
        Run::Running { .. } => {}
        Run::Ended { attempt, exit_code, may_restart_at_ms } => {
            if !policy.restarts(exit_code) {
                return;
            }
            if may_restart_at_ms <= view.now_ms {
                next.start.push((container.name.to_owned(), attempt + 1));
            } else {
                next.wake_at_ms =
                    Some(next.wake_at_ms.map_or(may_restart_at_ms, |at| at.min(may_restart_at_ms)));
            }
        }
    }
}

fn main_phase(view: &View<'_>) -> Phase {
    if view.main.iter().all(|container| container.run == Run::Never) {
        return Phase::Pending;
    }
    let mut failed = false;
    for container in view.main {
        match container.run {
            Run::Running { .. } => return Phase::Running,
            Run::Never if view.stopping => failed = true,
            Run::Never => return Phase::Running,
            Run::Ended { exit_code, .. } => {
                if !view.stopping && view.policy.restarts(exit_code) {
                    return Phase::Running;
                }
                failed |= exit_code != 0;
            }
        }
    }
    if failed { Phase::Failed } else { Phase::Succeeded }
}

fn running_sidecars(view: &View<'_>) -> Vec<String> {
    let running = |container: &&Container<'_>| matches!(container.run, Run::Running { .. });
    view.init.iter().filter(running).map(|container| container.name.to_owned()).collect()
}

/// Delays of a crash loop.
const CRASH_LOOP: Backoff = Backoff::new(Duration::from_secs(10), Duration::from_secs(300));
/// A run this long ends a crash loop.
pub const BACKOFF_RESET_MS: u64 = 600_000;

/// Delay before the restart that follows `crashes` ended runs in a row.
#[must_use]
pub fn crash_delay_ms(crashes: u32) -> u64 {
    let Some(earlier) = crashes.checked_sub(2) else { return 0 };
    u64::try_from(CRASH_LOOP.after(earlier).as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(name: &str, run: Run) -> Container<'_> {
        Container { name, sidecar: false, run }
    }

    fn ended(attempt: u32, exit_code: i32) -> Run {
        Run::Ended { attempt, exit_code, may_restart_at_ms: 0 }
    }

    fn ask(init: &[Container<'_>], main: &[Container<'_>], policy: RestartPolicy) -> Next {
        decide(&View { init, main, policy, stopping: false, now_ms: 1_000 })
    }

    #[test]
    fn init_containers_run_one_after_the_other() {
        use RestartPolicy::Never;
        let main = [container("m", Run::Never)];
        let next = ask(&[container("a", Run::Never), container("b", Run::Never)], &main, Never);
        assert_eq!((next.start, next.phase), (vec![("a".into(), 0)], Phase::Pending));
        let next = ask(&[container("a", ended(0, 0)), container("b", Run::Never)], &main, Never);
        assert_eq!(next.start, vec![("b".into(), 0)]);
        let next = ask(&[container("a", ended(0, 0)), container("b", ended(0, 0))], &main, Never);
        assert_eq!((next.start, next.initialized), (vec![("m".into(), 0)], true));
        let next = ask(&[container("a", ended(0, 1)), container("b", Run::Never)], &main, Never);
        assert_eq!((next.start, next.phase), (vec![], Phase::Failed));
        let next = ask(
            &[container("a", ended(0, 1)), container("b", Run::Never)],
            &main,
            RestartPolicy::Always,
        );
        assert_eq!((next.start, next.phase), (vec![("a".into(), 1)], Phase::Pending));
    }

    #[test]
    fn phases_by_policy() {
        use Phase::*;
        use RestartPolicy::*;
        for (policy, code, phase, restarts) in [
            (Always, 0, Running, true),
            (Always, 1, Running, true),
            (OnFailure, 0, Succeeded, false),
            (OnFailure, 1, Running, true),
            (Never, 0, Succeeded, false),
            (Never, 3, Failed, false),
        ] {
            let next = ask(&[], &[container("m", ended(0, code))], policy);
            assert_eq!(next.phase, phase, "{policy:?} {code}");
            assert_eq!(
                next.start,
                if restarts { vec![("m".to_owned(), 1)] } else { vec![] },
                "{policy:?} {code}"
            );
        }
    }

    #[test]
    fn back_off_delays_the_restart() {
        let run = Run::Ended { attempt: 2, exit_code: 1, may_restart_at_ms: 5_000 };
        let next = ask(&[], &[container("m", run)], RestartPolicy::Always);
        assert_eq!(
            (next.start, next.wake_at_ms, next.phase),
            (vec![], Some(5_000), Phase::Running)
        );
        let delays: Vec<u64> = (0..9).map(crash_delay_ms).collect();
        assert_eq!(delays, [0, 0, 10_000, 20_000, 40_000, 80_000, 160_000, 300_000, 300_000]);
    }

    #[test]
    fn nothing_starts_while_stopping() {
        let main = [container("m", ended(0, 137)), container("n", Run::Running { attempt: 0 })];
        let next = decide(&View {
            init: &[],
            main: &main,
            policy: RestartPolicy::Always,
            stopping: true,
            now_ms: 0,
        });
        assert_eq!((next.start, next.phase), (vec![], Phase::Running));
        let main = [container("m", ended(0, 0))];
        let next = decide(&View {
            init: &[],
            main: &main,
            policy: RestartPolicy::Always,
            stopping: true,
            now_ms: 0,
        });
        assert_eq!(next.phase, Phase::Succeeded);
    }

    #[test]
    fn a_sidecar_runs_beside_and_ends_with_the_pod() {
        let side = |run| [Container { name: "s", sidecar: true, run }];
        let next = ask(&side(Run::Never), &[container("m", Run::Never)], RestartPolicy::Never);
        assert_eq!(next.start, vec![("s".into(), 0)]);
        let next = ask(
            &side(Run::Running { attempt: 0 }),
            &[container("m", Run::Never)],
            RestartPolicy::Never,
        );
        assert_eq!(next.start, vec![("m".into(), 0)]);
        let next = ask(
            &side(Run::Running { attempt: 0 }),
            &[container("m", ended(0, 0))],
            RestartPolicy::Never,
        );
        assert_eq!((next.end, next.phase), (vec!["s".into()], Phase::Succeeded));
    }
}
