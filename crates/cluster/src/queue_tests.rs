use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

fn queue(name: &str) -> WorkQueue<String> {
    WorkQueue::new(name, QueueOptions::backoff(Duration::from_secs(1), Duration::from_secs(300)))
}

fn no_span(_: &String, _: u32) -> Span {
    Span::none()
}

/// 10,000 adds of one key, the key itself slow and added again all the time: the other key is
/// handed out right after the pass in flight.
#[tokio::test(start_paused = true)]
async fn ten_thousand_items_of_one_key_do_not_delay_another() {
    let queue = queue("fair");
    for _ in 0..10_000 {
        queue.add("busy".to_owned());
    }
    queue.add("quiet".to_owned());
    assert_eq!(queue.depth(), 2, "equal keys are queued once");
    let order = Arc::new(Mutex::new(Vec::new()));
    let (seen, again) = (order.clone(), queue.clone());
    let never = CancellationToken::new();
    let run = queue.run_until(1, &never, no_span, move |key: String| {
        let (seen, again) = (seen.clone(), again.clone());
        async move {
            seen.lock().push(key.clone());
            if key == "quiet" {
                again.shut_down();
                return Outcome::Done;
            }
            for _ in 0..10_000 {
                again.add(key.clone());
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
            Outcome::Again
        }
    });
    run.await;
    assert_eq!(*order.lock(), ["busy", "quiet"]);
}

#[tokio::test(start_paused = true)]
async fn one_key_is_never_worked_on_twice_at_once() {
    let queue = queue("single");
    let (now, most, passes) = (
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicUsize::new(0)),
    );
    queue.add("a".to_owned());
    let (q, m, t) = (queue.clone(), most.clone(), passes.clone());
    let never = CancellationToken::new();
    let run = queue.run_until(8, &never, no_span, move |key: String| {
        let (now, most, passes, queue) = (now.clone(), m.clone(), t.clone(), q.clone());
        async move {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            queue.add(key);
            tokio::time::sleep(Duration::from_millis(10)).await;
            now.fetch_sub(1, Ordering::SeqCst);
            if passes.fetch_add(1, Ordering::SeqCst) == 20 {
                queue.shut_down();
            }
            Outcome::Done
        }
    });
    run.await;
    assert_eq!(most.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_a_failure_of_that_key_alone() {
    let queue = queue("panic");
    queue.add("bad".to_owned());
    let (q, attempts) = (queue.clone(), Arc::new(AtomicUsize::new(0)));
    let counted = attempts.clone();
    let started = Instant::now();
    queue
        .run_until(2, &CancellationToken::new(), no_span, move |_key: String| {
            let (queue, attempts) = (q.clone(), counted.clone());
            async move {
                if attempts.fetch_add(1, Ordering::SeqCst) < 2 {
                    panic!("boom");
                }
                queue.shut_down();
                Outcome::Done
            }
        })
        .await;
    assert_eq!(attempts.load(Ordering::SeqCst), 3);
    assert_eq!(started.elapsed().as_secs(), 3, "backoff of 1 s and 2 s");
    assert_eq!(queue.requeues(&"bad".to_owned()), 0);
}

#[tokio::test(start_paused = true)]
async fn a_retry_backs_off_until_the_key_is_done() {
    let queue = queue("retry");
    let key = "a".to_owned();
    assert_eq!(queue.add_rate_limited(key.clone()), Duration::from_secs(1));
    let item = queue.next().await.expect("open");
    item.finish(Outcome::retry("no"));
    assert_eq!(queue.requeues(&key), 2);
    let before = Instant::now();
    let item = queue.next().await.expect("open");
    assert_eq!(before.elapsed().as_secs(), 2);
    item.finish(Outcome::Done);
    assert_eq!((queue.requeues(&key), queue.pending()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn the_earlier_of_two_delays_counts_and_an_add_beats_both() {
    let queue = queue("delay");
    let key = || "a".to_owned();
    queue.add_after(key(), Duration::from_secs(10));
    queue.add_after(key(), Duration::from_secs(5));
    queue.add_after(key(), Duration::from_secs(20));
    let start = Instant::now();
    queue.next().await.expect("open").finish(Outcome::After(Duration::from_secs(7)));
    assert_eq!(start.elapsed().as_secs(), 5);
    queue.add(key());
    queue.next().await.expect("open").finish(Outcome::Done);
    assert_eq!(start.elapsed().as_secs(), 5);
    assert_eq!(queue.pending(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_item_requeues_its_key() {
    let queue = queue("drop");
    queue.add("a".to_owned());
    let worker = queue.clone();
    let task = tokio::spawn(async move {
        worker
            .run_until(1, &CancellationToken::new(), no_span, |_| std::future::pending::<Outcome>())
            .await;
    });
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(queue.depth(), 0);
    task.abort();
    let item = queue.next().await.expect("open");
    assert_eq!(item.key(), "a");
}

#[tokio::test(start_paused = true)]
async fn shutdown_finishes_passes_in_flight_and_starts_none() {
    let queue = queue("stop");
    queue.add("a".to_owned());
    queue.add("b".to_owned());
    let stop = CancellationToken::new();
    let finished = Arc::new(AtomicUsize::new(0));
    let (count, token) = (finished.clone(), stop.clone());
    queue
        .run_until(1, &stop, no_span, move |_| {
            let (count, token) = (count.clone(), token.clone());
            async move {
                token.cancel();
                tokio::time::sleep(Duration::from_secs(3)).await;
                count.fetch_add(1, Ordering::SeqCst);
                Outcome::Done
            }
        })
        .await;
    assert_eq!(finished.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn metrics_show_depth_age_and_adds() {
    let metrics = Metrics::new();
    let queue = WorkQueue::new("claims", QueueOptions::default().with_metrics(&metrics));
    queue.add(1u32);
    queue.add(2u32);
    let _item = queue.next().await.expect("open");
    tokio::time::advance(Duration::from_secs(4)).await;
    assert_eq!((queue.depth(), queue.oldest_age()), (1, Duration::from_secs(4)));
    let text = metrics.render();
    for line in [
        "workqueue_depth{name=\"claims\"} 1",
        "workqueue_adds_total{name=\"claims\"} 2",
        "workqueue_longest_running_processor_seconds{name=\"claims\"} 4",
        "longshore_workqueue_oldest_age_seconds{name=\"claims\"} 4",
    ] {
        assert!(text.contains(line), "{line} is missing in\n{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_bucket_spaces_retries_of_many_keys() {
    let options = QueueOptions { bucket: Some((10.0, 1)), ..QueueOptions::controller() };
    let queue = WorkQueue::new("bucket", options);
    assert_eq!(queue.add_rate_limited(1u32), Duration::from_millis(5));
    assert_eq!(queue.add_rate_limited(2u32), Duration::from_millis(100));
    assert_eq!(queue.add_rate_limited(3u32), Duration::from_millis(200));
}
