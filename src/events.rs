//! What happened to the broker and its instances, as it happened: a bounded history and whoever follows it.
//!
//! Names, numbers and words of ours alone: no argument, result, URL, credential or command line can be said here
//! (invariant 13). Following costs the broker nothing: a follower reads the history from where it was, and one that is
//! slower than the history is long is told how much it missed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use serde::Serialize;
use tokio::sync::watch;

use crate::core::digest::Digest;

/// Events remembered, decisions of policies and others so many each: some hundred bytes an event, and on a busy day hours
/// of history.
const HISTORY_LEN_MAX: usize = 1000;

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Event {
    /// Counts up from 1 with the broker's start.
    pub number: u64,
    /// RFC 3339 in UTC, to the millisecond.
    pub at: String,
    #[serde(flatten)]
    pub what: What,
}

/// What happened. The names are an interface: see `docs/reference/events.md`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum What {
    /// Nothing of an earlier broker is left, and calls are served.
    BrokerReady,
    /// Why it is not ready.
    BrokerNotReady { reason: String },
    /// The first signal to end has come.
    BrokerStopping,
    /// An instance shows another state than before.
    StateChanged {
        #[serde(flatten)]
        instance: Instance,
        from: &'static str,
        to: &'static str,
    },
    /// A generation did not come up. The kind is that of `last_failure` in `/status`.
    StartFailed {
        #[serde(flatten)]
        instance: Instance,
        kind: &'static str,
    },
    /// The server's first process has ended. Its tree may not have.
    RootExited {
        #[serde(flatten)]
        instance: Instance,
        exit: String,
    },
    /// No process of the generation exists any more.
    ProvedGone {
        #[serde(flatten)]
        instance: Instance,
        killed: usize,
        ms: u64,
    },
    /// A sweep ended without a proof.
    NotProved {
        #[serde(flatten)]
        instance: Instance,
        survivors: usize,
        ms: u64,
    },
    /// The server went over a limit of its cgroup and is ended.
    OverLimit {
        #[serde(flatten)]
        instance: Instance,
        limit: String,
    },
    /// An operator has unlocked the place of an instance that is not proved gone; it is looked for on and on.
    SetAside {
        #[serde(flatten)]
        instance: Instance,
    },
    /// A revision has come into force.
    ReloadDone {
        revision: u64,
        /// Backends that are not what they were.
        changed: usize,
    },
    /// The files were refused; the revision before goes on.
    ReloadRejected { revision: u64, errors: usize },
    /// An operator has it served until the broker restarts, whatever the configuration says.
    BackendEnabled { backend: Arc<str> },
    /// An operator has it not served until the broker restarts, whatever the configuration says.
    BackendDisabled { backend: Arc<str> },
    /// An idle instance was stopped, because another needed its place.
    MadeRoom {
        #[serde(flatten)]
        instance: Instance,
    },
    /// A policy denied a call, or failed on it; it was not sent.
    CallDenied {
        #[serde(flatten)]
        decision: Decision,
    },
    /// A policy rewrote the arguments of a call.
    CallRewritten {
        #[serde(flatten)]
        decision: Decision,
    },
    /// A policy rewrote a result.
    ResultRewritten {
        #[serde(flatten)]
        decision: Decision,
    },
    /// A policy withheld a result, or failed on it.
    ResultWithheld {
        #[serde(flatten)]
        decision: Decision,
    },
}

impl What {
    /// As it is written.
    pub fn name(&self) -> &'static str {
        match self {
            Self::BrokerReady => "broker_ready",
            Self::BrokerNotReady { .. } => "broker_not_ready",
            Self::BrokerStopping => "broker_stopping",
            Self::StateChanged { .. } => "state_changed",
            Self::StartFailed { .. } => "start_failed",
            Self::RootExited { .. } => "root_exited",
            Self::ProvedGone { .. } => "proved_gone",
            Self::NotProved { .. } => "not_proved",
            Self::OverLimit { .. } => "over_limit",
            Self::SetAside { .. } => "set_aside",
            Self::MadeRoom { .. } => "made_room",
            Self::ReloadDone { .. } => "reload_done",
            Self::ReloadRejected { .. } => "reload_rejected",
            Self::BackendEnabled { .. } => "backend_enabled",
            Self::BackendDisabled { .. } => "backend_disabled",
            Self::CallDenied { .. } => "call_denied",
            Self::CallRewritten { .. } => "call_rewritten",
            Self::ResultRewritten { .. } => "result_rewritten",
            Self::ResultWithheld { .. } => "result_withheld",
        }
    }

    /// The backend that it is about; none for what happened to the broker.
    pub fn backend(&self) -> Option<&Arc<str>> {
        match self {
            Self::BackendEnabled { backend } | Self::BackendDisabled { backend } => Some(backend),
            _ => match self.decision() {
                Some(decision) => Some(&decision.backend),
                None => self.instance().map(|instance| &instance.backend),
            },
        }
    }

    /// What a policy decided, if it is about that.
    pub fn decision(&self) -> Option<&Decision> {
        match self {
            Self::CallDenied { decision }
            | Self::CallRewritten { decision }
            | Self::ResultRewritten { decision }
            | Self::ResultWithheld { decision } => Some(decision),
            _ => None,
        }
    }

    /// Whom it happened to; none for what happened to the broker or to a backend as a whole.
    pub fn instance(&self) -> Option<&Instance> {
        match self {
            Self::BrokerReady
            | Self::BrokerNotReady { .. }
            | Self::BrokerStopping
            | Self::ReloadDone { .. }
            | Self::ReloadRejected { .. }
            | Self::CallDenied { .. }
            | Self::CallRewritten { .. }
            | Self::ResultRewritten { .. }
            | Self::ResultWithheld { .. }
            | Self::BackendEnabled { .. }
            | Self::BackendDisabled { .. } => None,
            Self::StateChanged { instance, .. }
            | Self::StartFailed { instance, .. }
            | Self::RootExited { instance, .. }
            | Self::ProvedGone { instance, .. }
            | Self::NotProved { instance, .. }
            | Self::OverLimit { instance, .. }
            | Self::SetAside { instance }
            | Self::MadeRoom { instance } => Some(instance),
        }
    }
}

/// What a policy decided, without a word of the call itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Decision {
    pub backend: Arc<str>,
    /// A tool of the catalog.
    pub tool: Arc<str>,
    /// `policies/x.lua:30`, or the name of a field where no line is known.
    pub rule: String,
    /// Of the policy that decided.
    pub policy_digest: Digest,
}

/// Which instance, as operators name it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Instance {
    pub backend: Arc<str>,
    #[serde(rename = "instance")]
    pub id: String,
    pub generation: u64,
}

/// The history. Shared by all that have something to tell.
#[derive(Debug)]
pub struct EventLog {
    /// Tells this broker's numbers from those of the one before.
    epoch: String,
    state: Mutex<State>,
    last: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    history: VecDeque<Event>,
    /// What policies decided, apart: a rule that changes every result must not push the last crash out of the history.
    decisions: VecDeque<Event>,
    /// By backend, none for the broker's own, and name: of every revision so far, names that operators wrote.
    counts: BTreeMap<(Option<Arc<str>>, &'static str), u64>,
}

/// What there is to read from some place on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// Events that were forgotten before they could be read.
    pub missed: u64,
    pub events: Vec<Event>,
}

impl EventLog {
    /// `epoch`: a word that no earlier broker had, for ids that are resumed at.
    pub fn new(epoch: String) -> Self {
        Self { epoch, state: Mutex::default(), last: watch::Sender::new(0) }
    }

    pub fn record(&self, what: What) {
        let mut state = self.lock();
        let number = *self.last.borrow() + 1;
        let backend = what.backend().cloned();
        *state.counts.entry((backend, what.name())).or_default() += 1;
        let is_decision = what.decision().is_some();
        let history = if is_decision { &mut state.decisions } else { &mut state.history };
        if history.len() >= HISTORY_LEN_MAX {
            history.pop_front();
        }
        history.push_back(Event { number, at: timestamp(SystemTime::now()), what });
        // Under the lock, so that numbers are told in order.
        self.last.send_replace(number);
    }

    /// Everything after the event of this number; 0 is before the first.
    pub fn after(&self, number: u64) -> Batch {
        let state = self.lock();
        let tail = |history: &'_ VecDeque<Event>| {
            let from = history.partition_point(|event| event.number <= number);
            history.range(from..).cloned().collect::<Vec<_>>()
        };
        let mut events = tail(&state.history);
        events.extend(tail(&state.decisions));
        events.sort_unstable_by_key(|event| event.number);
        let happened = self.last.borrow().saturating_sub(number);
        Batch { missed: happened.saturating_sub(events.len() as u64), events }
    }

    /// How often each event happened since the broker's start, by backend and name.
    pub fn counts(&self) -> Vec<(Option<Arc<str>>, &'static str, u64)> {
        self.lock().counts.iter().map(|((backend, name), n)| (backend.clone(), *name, *n)).collect()
    }

    /// The number of the newest event; 0 when there is none.
    pub fn newest(&self) -> u64 {
        *self.last.borrow()
    }

    /// The number of the newest event, and of each that comes.
    pub fn follow(&self) -> watch::Receiver<u64> {
        self.last.subscribe()
    }

    /// What names an event over restarts of the broker.
    pub fn id(&self, number: u64) -> String {
        format!("{}-{number}", self.epoch)
    }

    /// The number to go on after. An id of an earlier broker, or none at all, is before everything.
    pub fn resumed(&self, id: &str) -> u64 {
        let number = id.strip_prefix(&*self.epoch).and_then(|rest| rest.strip_prefix('-')?.parse().ok());
        number.unwrap_or(0)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// RFC 3339 in UTC, to the millisecond.
pub fn timestamp(at: SystemTime) -> String {
    let at = jiff::Timestamp::try_from(at).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    format!("{at:.3}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(batch: &Batch) -> Vec<u64> {
        batch.events.iter().map(|event| event.number).collect()
    }

    #[test]
    fn a_follower_reads_on_from_where_it_was() {
        let log = EventLog::new("x".into());
        assert_eq!(log.after(0), Batch::default());
        for _ in 0..3 {
            log.record(What::BrokerReady);
        }
        assert_eq!(numbers(&log.after(0)), [1, 2, 3]);
        assert_eq!(numbers(&log.after(2)), [3]);
        assert_eq!(log.after(3), Batch::default());
        assert_eq!(*log.follow().borrow(), 3);
    }

    #[test]
    fn who_is_too_slow_is_told_what_was_missed() {
        let log = EventLog::new("x".into());
        let len = HISTORY_LEN_MAX as u64;
        for _ in 0..len + 5 {
            log.record(What::BrokerStopping);
        }
        let late = log.after(2);
        assert_eq!((late.missed, late.events.len() as u64), (3, len));
        assert_eq!(log.after(0).missed, 5);
        assert_eq!(log.after(5).missed, 0);
        assert_eq!(log.after(len).missed, 0);
    }

    #[test]
    fn decisions_push_out_no_other_event() {
        let log = EventLog::new("x".into());
        log.record(What::BrokerReady);
        let decision =
            Decision { backend: "x".into(), tool: "t".into(), rule: "r".into(), policy_digest: Digest::of(b"") };
        for _ in 0..HISTORY_LEN_MAX + 5 {
            log.record(What::ResultRewritten { decision: decision.clone() });
        }
        log.record(What::BrokerStopping);
        let all = log.after(0);
        assert_eq!(all.missed, 5);
        assert_eq!((all.events[0].what.name(), all.events.len()), ("broker_ready", HISTORY_LEN_MAX + 2));
        assert_eq!(all.events.last().map(|event| event.what.name()), Some("broker_stopping"));
        assert!(all.events.is_sorted_by_key(|event| event.number));
    }

    #[test]
    fn an_id_of_another_broker_is_before_everything() {
        let log = EventLog::new("b".into());
        assert_eq!(log.resumed(&log.id(7)), 7);
        for foreign in ["a-7", "7", "", "b-x", "b7"] {
            assert_eq!(log.resumed(foreign), 0, "{foreign}");
        }
    }

    #[test]
    fn an_event_is_flat_json() {
        let instance = Instance { backend: "x".into(), id: "ab".into(), generation: 3 };
        let event = Event { number: 1, at: "t".into(), what: What::ProvedGone { instance, killed: 2, ms: 40 } };
        assert!(serde_json::to_string(&event.what).expect("plain").contains(event.what.name()));
        assert_eq!(
            serde_json::to_string(&event).expect("plain"),
            r#"{"number":1,"at":"t","event":"proved_gone","backend":"x","instance":"ab","generation":3,"killed":2,"ms":40}"#
        );
    }
}
