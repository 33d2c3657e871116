//! The loop: who carries the marker, end them, who carries it now.

use std::time::{Duration, Instant};

use super::WindowsSide;
use super::contract::{self, BATCH_LEN_MAX, Found, NoAnswer, Outcome};
use super::helper::{self, ask};
use crate::ownership::wire::{SURVIVORS_MAX, Survivor};

/// With less than this left nobody could answer.
const LEAST_BUDGET: Duration = Duration::from_millis(50);
/// A process that was ended is gone within this, mostly.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What a sweep of a Windows side came to.
#[derive(Debug)]
pub(in crate::ownership) enum WindowsSweep {
    /// Windows said that nobody carries the marker.
    Empty { terminated: usize },
    /// Not so, or Windows did not say it.
    Busy {
        /// Who was seen last; nobody when the first question was not answered.
        survivors: Vec<Survivor>,
        /// Continues "not proved: ".
        reason: String,
    },
}

/// Ends who carries the marker and asks again, until nobody does or `budget` is over. Blocks for that long and at most
/// half a second more; a question that is not answered ends it at once.
pub(in crate::ownership) fn sweep(side: &WindowsSide, budget: Duration) -> WindowsSweep {
    if budget < LEAST_BUDGET {
        return busy(Vec::new(), Some("no time was left to ask Windows"));
    }
    let deadline = Instant::now() + budget;
    let mut pause = FIRST_PAUSE;
    let mut terminated = 0;
    let mut seen = Vec::new();
    loop {
        let found = match query(side, deadline) {
            Ok(found) if found.is_empty() => return WindowsSweep::Empty { terminated },
            Ok(found) => found,
            Err(reason) => return busy(seen, Some(&reason)),
        };
        if Instant::now() + pause >= deadline {
            return busy(found, None);
        }
        match terminate(side, &found, deadline) {
            Ok(ended) => terminated += ended,
            Err(reason) => return busy(found, Some(&reason)),
        }
        seen = found;
        wait(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn query(side: &WindowsSide, deadline: Instant) -> Result<Vec<Found>, String> {
    let answer = ask(side, &contract::query(&side.marker), deadline).map_err(|error| error.to_string())?;
    contract::found(&answer).map_err(|error| explain(side, error))
}

/// How many were ended. Who was not is found by the next query, whatever the reason.
fn terminate(side: &WindowsSide, found: &[Found], deadline: Instant) -> Result<usize, String> {
    // Without a time of creation a number could be anybody's by now.
    let mut named: Vec<Found> = found.iter().filter(|process| process.created != 0).cloned().collect();
    named.truncate(BATCH_LEN_MAX);
    if named.is_empty() {
        return Ok(0);
    }
    let answer = ask(side, &contract::terminate(&side.marker, &named), deadline).map_err(|error| error.to_string())?;
    let outcomes = contract::outcomes(&answer).map_err(|error| explain(side, error))?;
    Ok(outcomes.into_iter().filter(|outcome| *outcome == Outcome::Terminated).count())
}

fn explain(side: &WindowsSide, error: NoAnswer) -> String {
    let name = helper::name(side);
    match error {
        NoAnswer::Refused(kind) => format!("{name} says that Windows did not answer: {kind}"),
        NoAnswer::Nonsense => format!("{name} did not answer as agreed"),
    }
}

fn busy(seen: Vec<Found>, reason: Option<&str>) -> WindowsSweep {
    let count = match seen.len() {
        0 => None,
        1 => Some("1 process still runs on the Windows side".to_owned()),
        len => Some(format!("{len} processes still run on the Windows side")),
    };
    let reason = count.into_iter().chain(reason.map(str::to_owned)).collect::<Vec<_>>().join("; ");
    WindowsSweep::Busy { survivors: seen.into_iter().take(SURVIVORS_MAX).map(Survivor::from).collect(), reason }
}

#[expect(clippy::disallowed_methods, reason = "Windows sends no event; it is asked again after a while")]
fn wait(pause: Duration) {
    std::thread::sleep(pause);
}
