//! A long, mean day in the life of a broker, at random and by a seed: calls, cancellations, clients that go away,
//! sessions that end, and servers, keepers, browsers and the broker itself being killed.
//!
//!     cargo test --test soak -- --seconds 3600 --seed 7 --rounds-of 20
//!
//! After each round everything comes to rest, and what is left is looked at from outside: no process, no keeper, no
//! descriptor, no directory, no journal entry, no cgroup, no growth. The same seed makes the same choices; what they
//! meet is up to the machine. `tests/run.sh soak` runs a minute of it; `cargo test` alone does not.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the report of a program")]

mod browser;
mod calls;
mod dice;
mod mix;
mod rest;
#[path = "../support/mod.rs"]
mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Parser;

use crate::mix::World;
use crate::rest::Rest;

#[derive(Parser)]
#[command(about = "Random use and abuse of a real broker, by a seed")]
struct Args {
    /// No round begins after this long; the one that runs comes to its end.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Another one at each run, unless it is given.
    #[arg(long)]
    seed: Option<u64>,
    /// Actions in a round.
    #[arg(long, default_value_t = 40)]
    rounds_of: usize,
    /// Leaves the real browser out, although it is installed.
    #[arg(long)]
    no_browser: bool,
    /// Prints each action when it is done.
    #[arg(long, short)]
    verbose: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let seed = args.seed.unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is past 1970");
        u64::from(now.subsec_nanos()) ^ now.as_secs()
    });
    println!("soak: {} s, seed {seed}", args.seconds);
    let mut world = World::new(seed, !args.no_browser, args.verbose);
    let done = catch_unwind(AssertUnwindSafe(|| run(&mut world, &args)));
    match done {
        Ok(rounds) => {
            world.finish();
            println!("soak: {rounds} passed, 0 failed");
            ExitCode::SUCCESS
        }
        Err(_) => {
            eprintln!("--- the last actions, the newest last");
            world.history().for_each(|action| eprintln!("{action}"));
            eprintln!("--- the end of broker.log\n{}", world.log_tail());
            let whole = std::env::temp_dir().join(format!("lazy-mcp-soak-{seed}.log"));
            if std::fs::write(&whole, world.broker.log()).is_ok() {
                eprintln!("the whole of broker.log: {}", whole.display());
            }
            eprintln!("to run it again: cargo test --test soak -- --seed {seed} --rounds-of {}", args.rounds_of);
            world.clear_away();
            println!("soak: 0 passed, 1 failed");
            ExitCode::FAILURE
        }
    }
}

/// The number of rounds.
fn run(world: &mut World, args: &Args) -> usize {
    let end = Instant::now() + Duration::from_secs(args.seconds);
    let mut rest = Rest::default();
    let mut rounds = 0;
    while rounds == 0 || Instant::now() < end {
        rounds += 1;
        let begun = Instant::now();
        let actions = world.round(args.rounds_of);
        world.settle();
        let seen = rest.check(world);
        println!("round {rounds}: {actions}; {seen}; {:.1} s", begun.elapsed().as_secs_f64());
    }
    println!("calls: {}", world.tally().describe());
    for tool in ["echo", "sleep", "pid"].into_iter().chain(world.has_browser().then_some("browser_navigate")) {
        assert!(world.tally().answered(tool) > 0, "no `{tool}` was ever answered: {}", world.tally().describe());
    }
    rounds
}
