//! The load. Requests are made ahead and answers are not parsed, so that the load generator, which
//! shares the machine, costs little, and the same for both.

use std::{
    sync::{
        Barrier,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;

use super::side::Side;
use crate::bench::process;

const PATH: &str = "/api/v1/persistentvolumes";

/// Resident memory.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Memory {
    pub rss_kib: u64,
    /// Without pages of files.
    pub anonymous_kib: u64,
}

impl Memory {
    pub fn of(pid: u32) -> Result<Self> {
        let (rss_kib, anonymous_kib) = process::resident_and_anonymous(pid)?;
        Ok(Self { rss_kib, anonymous_kib })
    }
}

/// A volume as a provisioner writes it.
fn volume(number: usize) -> String {
    format!(
        r#"{{"apiVersion":"v1","kind":"PersistentVolume","metadata":{{"name":"pvc-{number:08}-5c1f-4e0b-9d52-0123456789ab","annotations":{{"pv.kubernetes.io/provisioned-by":"bench.example.com","volume.kubernetes.io/provisioner-deletion-secret-name":"","volume.kubernetes.io/provisioner-deletion-secret-namespace":""}}}},"spec":{{"accessModes":["ReadWriteOnce"],"capacity":{{"storage":"1Gi"}},"claimRef":{{"apiVersion":"v1","kind":"PersistentVolumeClaim","name":"claim-{number}","namespace":"default","resourceVersion":"{number}","uid":"{number:08}-5c1f-4e0b-9d52-0123456789ab"}},"csi":{{"driver":"bench.example.com","fsType":"ext4","volumeAttributes":{{"storage.kubernetes.io/csiProvisionerIdentity":"1767225600000-1234-bench.example.com"}},"volumeHandle":"handle-{number:08}"}},"persistentVolumeReclaimPolicy":"Delete","storageClassName":"bench","volumeMode":"Filesystem"}}}}"#
    )
}

/// Durable creates per second, with so many writers on a connection each.
pub fn creates(side: &Side, writers: usize, time: Duration) -> Result<f64> {
    let next = AtomicUsize::new(side.made.get());
    let (barrier, stop) = (Barrier::new(writers + 1), AtomicBool::new(false));
    let (count, seconds) = std::thread::scope(|scope| -> Result<_> {
        let threads: Vec<_> = (0..writers)
            .map(|_| {
                let connection = side.server.connect();
                let (next, barrier, stop) = (&next, &barrier, &stop);
                scope.spawn(move || -> Result<usize> {
                    barrier.wait();
                    let mut connection = connection?;
                    let mut count = 0;
                    while !stop.load(Ordering::Relaxed) {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        connection.post(PATH, &volume(number))?;
                        count += 1;
                    }
                    Ok(count)
                })
            })
            .collect();
        barrier.wait();
        let start = Instant::now();
        std::thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
        let mut count = 0;
        for thread in threads {
            count += thread.join().map_err(|_| anyhow::anyhow!("a writer panicked"))??;
        }
        Ok((count, start.elapsed().as_secs_f64()))
    })?;
    side.made.set(next.into_inner());
    Ok(count as f64 / seconds)
}

/// Creates volumes until there are so many.
pub fn fill(side: &Side, objects: usize) -> Result<()> {
    let next = AtomicUsize::new(side.made.get());
    let missing = objects.saturating_sub(count(side)?);
    let end = side.made.get() + missing;
    std::thread::scope(|scope| -> Result<()> {
        let threads: Vec<_> = (0..16)
            .map(|_| {
                let (next, server) = (&next, &side.server);
                scope.spawn(move || -> Result<()> {
                    let mut connection = server.connect()?;
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= end {
                            return Ok(());
                        }
                        super::go_on()?;
                        connection.post(PATH, &volume(number))?;
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().map_err(|_| anyhow::anyhow!("a writer panicked"))??;
        }
        Ok(())
    })?;
    side.made.set(end);
    check_count(side, objects)
}

/// How many volumes there are.
fn count(side: &Side) -> Result<usize> {
    let list = side.server.connect()?.call("GET", &format!("{PATH}?limit=1"), None)?;
    let first = list["items"].as_array().map_or(0, Vec::len);
    Ok(first + list["metadata"]["remainingItemCount"].as_u64().unwrap_or(0) as usize)
}

/// Fails unless there are so many volumes.
pub fn check_count(side: &Side, objects: usize) -> Result<()> {
    let there = count(side)?;
    ensure!(there == objects, "{} has {there} volumes instead of {objects}", side.label);
    Ok(())
}

/// Lists everything a few times; the median time, and the size of an answer.
pub fn list(side: &Side, objects: usize, times: usize) -> Result<(f64, usize)> {
    let mut connection = side.server.connect()?;
    let mut seconds = Vec::new();
    let mut size = 0;
    for _ in 0..times {
        let start = Instant::now();
        let text = connection.get(PATH)?;
        seconds.push(start.elapsed().as_secs_f64());
        let found = text.windows(12).filter(|part| part == b"volumeHandle").count();
        // Fields' owners name it, too.
        ensure!(found >= objects, "a list of {found} volumes instead of {objects}");
        size = text.len();
    }
    seconds.sort_by(f64::total_cmp);
    Ok((seconds[seconds.len() / 2], size))
}

/// How fast changes reach many watchers.
pub struct FanOut {
    pub events_per_second: f64,
    pub median_seconds: f64,
}

/// Makes `changes` volumes while `watchers` watch, then one at a time for the delay.
pub fn fan_out(side: &Side, watchers: usize, changes: usize) -> Result<FanOut> {
    let version = side.server.connect()?.call("GET", &format!("{PATH}?limit=1"), None)?;
    let version = version["metadata"]["resourceVersion"].as_str().context("a version")?.to_owned();
    let path = format!("{PATH}?watch=1&resourceVersion={version}&timeoutSeconds=600");
    let (sender, seen) = mpsc::channel();
    let mut closers = Vec::new();
    std::thread::scope(|scope| {
        for _ in 0..watchers {
            let mut watch = side.server.connect()?.watch(&path)?;
            closers.extend(watch.closer());
            let sender = sender.clone();
            scope.spawn(move || {
                // An end is what the closers are for.
                while let Ok(event) = watch.next() {
                    if event.starts_with(b"{\"type\":\"ADDED\"") && sender.send(()).is_err() {
                        return;
                    }
                }
            });
        }
        let measured = measure(side, watchers, changes, &seen);
        drop(closers);
        measured
    })
}

fn measure(
    side: &Side,
    watchers: usize,
    changes: usize,
    seen: &mpsc::Receiver<()>,
) -> Result<FanOut> {
    let wait = |events: usize| -> Result<()> {
        for _ in 0..events {
            seen.recv_timeout(Duration::from_secs(60)).context("a watcher saw nothing")?;
        }
        Ok(())
    };
    let mut connection = side.server.connect()?;
    let mut create = || -> Result<()> {
        let number = side.made.get();
        side.made.set(number + 1);
        connection.post(PATH, &volume(number))
    };
    create()?;
    wait(watchers)?;
    let start = Instant::now();
    for _ in 0..changes {
        create()?;
    }
    wait(watchers * changes)?;
    let events_per_second = (watchers * changes) as f64 / start.elapsed().as_secs_f64();
    let mut delays = Vec::new();
    for _ in 0..20 {
        let start = Instant::now();
        create()?;
        wait(watchers)?;
        delays.push(start.elapsed().as_secs_f64());
    }
    delays.sort_by(f64::total_cmp);
    Ok(FanOut { events_per_second, median_seconds: delays[delays.len() / 2] })
}
