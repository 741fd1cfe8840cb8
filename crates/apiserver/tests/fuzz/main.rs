//! Requests that nobody in their right mind would send: patches, selectors, paths, definitions and
//! objects of them, continue tokens, protobuf and accept headers.
//!
//! Whatever comes, the server must not panic, must answer with a proper Status, must not call the
//! client's mistakes its own, and must still hold readable objects afterwards. The corpus is
//! replayed first; then new inputs are made for ten seconds, or for ten minutes with
//! `LONGSHORE_LONG=1`. `LONGSHORE_FUZZ_SEED` repeats a run; `LONGSHORE_FUZZ_COLLECT=1` goes on after a fault
//! and lists all of them.
#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(dead_code, reason = "a part of shared modules is used")]

mod bodies;
mod corpus;
mod input;
#[path = "../routes/samples.rs"]
mod samples;
mod schemas;
mod soup;
#[path = "../routes/walk.rs"]
mod walk;
mod world;

use std::time::{Duration, Instant};

use input::Input;
use soup::Soup;
use world::World;

/// A fresh world after so many inputs keeps runs short to repeat and the state small.
const INPUTS_PER_WORLD: usize = 1500;
const CHECK_EVERY: usize = 100;
/// Inputs that were answered in a new way are changed further; so many are remembered.
const MAX_KEPT: usize = 3000;

#[tokio::test(start_paused = true)]
async fn the_corpus_is_answered_properly() {
    world::catch_panics();
    let mut world = World::new().await;
    let all = corpus::load();
    assert!(all.len() >= 30, "{} inputs", all.len());
    for (name, input) in &all {
        world.send(input).await.unwrap_or_else(|why| panic!("{name}: {why}\n{input}"));
    }
    world.check().await.unwrap_or_else(|why| panic!("after the corpus: {why}"));
    // And each in a world that no other input has touched.
    for (name, input) in &all {
        let mut world = World::bare().await;
        world.send(input).await.unwrap_or_else(|why| panic!("{name}: {why}\n{input}"));
    }
    println!("{} inputs of the corpus", all.len());
}

#[tokio::test(start_paused = true)]
async fn new_inputs_are_answered_properly() {
    world::catch_panics();
    let given = std::env::var("LONGSHORE_FUZZ_SEED").ok().map(|seed| seed.parse().unwrap());
    let seed: u64 = given.unwrap_or_else(|| fastrand::u64(..));
    let long = std::env::var("LONGSHORE_LONG").is_ok_and(|value| value == "1");
    let collect = std::env::var("LONGSHORE_FUZZ_COLLECT").is_ok_and(|value| value == "1");
    let seconds = std::env::var("LONGSHORE_FUZZ_SECONDS").ok().map(|text| text.parse().unwrap());
    let time = Duration::from_secs(seconds.unwrap_or(if long { 600 } else { 10 }));
    println!("LONGSHORE_FUZZ_SEED={seed}");
    let began = Instant::now();
    let mut kept: Vec<Input> = corpus::load().into_iter().map(|(_, input)| input).collect();
    let (mut count, mut worlds) = (0, 0u64);
    let mut tally = world::Tally::default();
    while began.elapsed() < time {
        // Every world has a seed of its own, so that a failure is near the start of one.
        let world_seed = seed.wrapping_add(worlds);
        let mut soup = Soup::new(world_seed);
        let mut world = World::new().await;
        worlds += 1;
        for number in 0..INPUTS_PER_WORLD {
            if began.elapsed() >= time {
                break;
            }
            let input = match kept.is_empty() || soup.chance(60) {
                true => input::make(&mut soup, &world),
                false => {
                    let basis = soup.pick(&kept).clone();
                    input::change(&mut soup, basis, &kept)
                }
            };
            let sent = world.send(&input).await;
            count += 1;
            let answer = match sent {
                Ok(answer) => answer,
                // To see more than the first of several faults.
                Err(why) if collect => {
                    let text = format!("{why}\n{input}");
                    println!("FAULT {}", &text[..text.floor_char_boundary(1500)]);
                    break;
                }
                Err(why) => fail(&input, seed, world_seed, number, &why),
            };
            if tally.is_new(&input, &answer) && kept.len() < MAX_KEPT {
                kept.push(input.clone());
            }
            if number % CHECK_EVERY == CHECK_EVERY - 1 {
                match world.check().await {
                    Err(why) if collect => {
                        println!("FAULT after: {}", &why[..why.floor_char_boundary(3000)]);
                        break;
                    }
                    Err(why) => fail(&input, seed, world_seed, number, &why),
                    Ok(()) => {}
                }
            }
        }
    }
    println!("{count} inputs in {worlds} worlds in {:?}: {tally}", began.elapsed());
    assert!(count > 100, "only {count} inputs");
}

/// Keeps the input where it can be picked up, and says how to repeat the run.
fn fail(input: &Input, seed: u64, world: u64, number: usize, why: &str) -> ! {
    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("fuzz-failure.http");
    let kept = std::fs::write(&file, input.to_file());
    panic!(
        "{why}\nLONGSHORE_FUZZ_SEED={seed} (world {world}, input {number}), kept in {} ({kept:?}):\n{input}",
        file.display()
    );
}
