//! The calls that are out, by the broker's id.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::oneshot;

use super::outbox::Outbox;
use crate::core::limits::TreeLimit;
use crate::protocol::answer::Answer;
use crate::protocol::call::{Progress, same_id};
use crate::protocol::logging::LogLevel;
use crate::protocol::raw::members;

/// Who sent a call: the client's session (or request, for clients without one), its own id for the call, raw, and
/// until when it waits for the answer.
#[derive(Clone, Debug)]
pub struct Caller {
    pub client: u128,
    pub id: Bytes,
    pub deadline: Instant,
    /// Whether it can be told anything before the answer.
    pub hears: bool,
    /// The least severe log message that it hears; `None`: it hears none.
    pub logs: Option<LogLevel>,
    pub answers: CanAnswer,
    pub extension: Option<Extension>,
}

/// What a report of progress does to a deadline: from then on so much, but not beyond `until`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extension {
    pub by: Duration,
    pub until: Instant,
}

/// What a client can be asked by a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CanAnswer {
    pub roots: bool,
    pub sampling: bool,
    pub elicitation: bool,
}

impl CanAnswer {
    /// By the capabilities that it declares, raw.
    pub fn declared(capabilities: &str) -> Self {
        let [roots, sampling, elicitation] = members(capabilities, ["roots", "sampling", "elicitation"])
            .unwrap_or_default()
            .map(|found| found.is_some());
        Self { roots, sampling, elicitation }
    }

    pub fn takes(self, method: &str) -> bool {
        match method {
            "roots/list" => self.roots,
            "sampling/createMessage" => self.sampling,
            "elicitation/create" => self.elicitation,
            _ => false,
        }
    }
}

impl Caller {
    pub fn is(&self, client: u128, id: &str) -> bool {
        self.client == client && same_id(&self.id, id)
    }
}

/// How a call ended, as its caller sees it.
#[derive(Debug)]
pub enum Outcome {
    Answered(Answer),
    /// The answer was one line of `len` bytes, over the limit of `max`, and was passed over.
    TooLarge {
        len: u64,
        max: usize,
    },
    Cancelled,
    /// Its deadline passed before its caller had looked at the clock.
    TimedOut,
    Lost(Loss),
}

/// Why no answer will come to a call that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The server's process ended.
    Exited,
    /// The server went over this limit, and was ended for it.
    OverLimit(TreeLimit),
    /// The conversation broke while the process lived on, or the generation was stopped because of another call.
    Recycled,
    /// The generation was stopped for a reload, a disable or a shutdown before the answer came.
    Drained,
}

/// One call that is out.
pub(super) struct Entry {
    pub caller: Option<Caller>,
    reply: Option<oneshot::Sender<Outcome>>,
    /// The client's progress token, raw, if it wants progress.
    token: Option<Bytes>,
    /// What its caller hears before the answer; `None` if it hears nothing, and once nobody listens.
    notices: Option<Arc<Outbox>>,
    /// Its caller is answering what the server asked, and hears nothing meanwhile.
    is_parked: bool,
    /// When the call is cancelled, whoever waits for it or nobody; `None` once it has been.
    deadline: Option<Instant>,
    /// What is held while the call is out; dropped with the entry.
    held: Box<dyn Any + Send>,
}

impl Entry {
    pub fn new(
        caller: Option<Caller>,
        reply: oneshot::Sender<Outcome>,
        token: Option<Bytes>,
        notices: Arc<Outbox>,
        held: Box<dyn Any + Send>,
    ) -> Self {
        let deadline = caller.as_ref().map(|caller| caller.deadline);
        let notices = caller.as_ref().is_some_and(|caller| caller.hears).then_some(notices);
        Self { caller, reply: Some(reply), token, notices, is_parked: false, deadline, held }
    }

    pub fn into_held(self) -> Box<dyn Any + Send> {
        self.held
    }

    /// Tells the caller, if one waits; `false` if the answer came too late for anybody.
    pub fn finish(mut self, outcome: Outcome) -> bool {
        self.reply.take().is_some_and(|reply| reply.send(outcome).is_ok())
    }

    /// Hands progress to the caller; `false` if it does not want it or does not keep up. The call may take longer for
    /// it, if its caller lets it.
    pub fn progress(&mut self, progress: &Progress) -> bool {
        let extension = self.caller.as_ref().and_then(|caller| caller.extension);
        if let (Some(Extension { by, until }), Some(deadline)) = (extension, &mut self.deadline) {
            *deadline = (*deadline).max((Instant::now() + by).min(until));
        }
        match (&self.token, &self.notices) {
            // Of the request that it was parked by, the token is over; of the next one it has none yet.
            (Some(token), Some(to)) if !self.is_parked => to.push(progress.with_token(token)),
            _ => false,
        }
    }

    /// Its caller went away to come back with an answer.
    pub fn park(&mut self) {
        self.is_parked = true;
    }

    /// Its caller is back by another request, and wants progress under the token of that.
    pub fn resume(&mut self, token: Option<Bytes>, now: Caller) {
        self.is_parked = false;
        self.token = token;
        if let Some(caller) = &mut self.caller {
            let Caller { id, logs, answers, .. } = now;
            *caller = Caller { id, logs, answers, ..caller.clone() };
        }
    }

    /// Nobody waits any more. The entry stays until the server answers, so that what it holds is held that long.
    fn abandon(&mut self) -> Option<oneshot::Sender<Outcome>> {
        self.notices = None;
        self.reply.take()
    }
}

/// Whose calls there have been.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Users {
    #[default]
    None,
    One(u128),
    Many,
}

/// All calls that are out. Bounded by the leases of the slot, which each call holds one of.
#[derive(Default)]
pub(super) struct Pending {
    entries: HashMap<u64, Entry>,
    users: Users,
    /// When somebody will look for calls whose deadline has passed.
    look_at: Option<Instant>,
    is_closed: bool,
}

impl Pending {
    /// Whether the conversation is over: then nothing can be sent any more.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Whether somebody must look at the clock earlier than planned, because of the deadline of this call.
    pub fn insert(&mut self, id: u64, entry: Entry) -> bool {
        let is_earlier = entry.deadline.is_some_and(|deadline| self.look_at.is_none_or(|planned| deadline < planned));
        if is_earlier {
            self.look_at = entry.deadline;
        }
        if let Some(Caller { client, .. }) = &entry.caller {
            self.users = match self.users {
                Users::None => Users::One(*client),
                Users::One(known) if known == *client => Users::One(known),
                Users::One(_) | Users::Many => Users::Many,
            };
        }
        self.entries.insert(id, entry);
        is_earlier
    }

    /// When the call is due; `None` if it is not out or was given up.
    pub fn deadline(&self, id: u64) -> Option<Instant> {
        self.entries.get(&id)?.deadline
    }

    pub fn remove(&mut self, id: u64) -> Option<Entry> {
        self.entries.remove(&id)
    }

    pub fn get_mut(&mut self, id: u64) -> Option<&mut Entry> {
        self.entries.get_mut(&id)
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Calls that were given up and that the server still works on.
    pub fn given_up(&self) -> usize {
        self.entries.values().filter(|entry| entry.caller.is_some() && entry.deadline.is_none()).count()
    }

    /// Ends the conversation: nothing can be sent any more, and everything that was out is handed over.
    pub fn close(&mut self) -> Vec<Entry> {
        self.is_closed = true;
        self.entries.drain().map(|(_, entry)| entry).collect()
    }

    /// Nobody waits for the call any more; it goes on until its deadline.
    pub fn abandon(&mut self, id: u64) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.abandon();
        }
    }

    /// Gives up on the call; its caller's reply channel, if it still waited. `None` if the call is not out or was
    /// given up before.
    pub fn give_up(&mut self, id: u64) -> Option<Option<oneshot::Sender<Outcome>>> {
        let entry = self.entries.get_mut(&id)?;
        entry.deadline.take()?;
        Some(entry.abandon())
    }

    /// The calls of `client` with its id `id`: more than one where a client reuses an id that is still out.
    pub fn of_caller(&self, client: u128, id: Option<&str>) -> Vec<u64> {
        let is_meant = |caller: &Caller| match id {
            Some(id) => caller.is(client, id),
            None => caller.client == client,
        };
        let mut ids: Vec<u64> =
            self.entries.iter().filter(|(_, e)| e.caller.as_ref().is_some_and(is_meant)).map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids
    }

    /// What the caller of the newest call hears whose caller is meant, of those that somebody listens to, or of those
    /// whose callers will come back.
    pub fn newest(&self, is_parked: bool, is_meant: impl Fn(&Caller) -> bool) -> Option<Arc<Outbox>> {
        let heard = self.entries.iter().filter_map(|(id, entry)| {
            let is_one = entry.is_parked == is_parked && entry.caller.as_ref().is_some_and(&is_meant);
            Some((id, entry.notices.as_ref().filter(|_| is_one)?))
        });
        heard.max_by_key(|(id, _)| **id).map(|(_, notices)| notices.clone())
    }

    /// The client of every call so far, if it is one alone: of a server that others have used, nobody can tell whom a
    /// message is about that comes late.
    pub fn sole_client(&self) -> Option<u128> {
        match self.users {
            Users::One(client) => Some(client),
            Users::None | Users::Many => None,
        }
    }

    /// Calls whose deadline has passed, and the next moment to look again.
    pub fn overdue(&mut self, now: Instant) -> (Vec<u64>, Option<Instant>) {
        let timed = self.entries.iter().filter_map(|(id, entry)| Some((*id, entry.deadline?)));
        let due = timed.clone().filter(|(_, at)| *at <= now).map(|(id, _)| id).collect();
        self.look_at = timed.map(|(_, at)| at).filter(|at| *at > now).min();
        (due, self.look_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(deadline: Instant) -> (Entry, oneshot::Receiver<Outcome>) {
        let (reply, outcome) = oneshot::channel();
        let caller = Caller {
            client: 1,
            id: Bytes::from_static(b"7"),
            deadline,
            hears: true,
            logs: None,
            answers: CanAnswer::default(),
            extension: None,
        };
        (Entry::new(Some(caller), reply, None, Arc::default(), Box::new(())), outcome)
    }

    #[test]
    fn a_call_is_due_at_its_deadline_whether_or_not_its_caller_looks() {
        let now = Instant::now();
        let (soon, later) = (now + Duration::from_secs(1), now + Duration::from_secs(5));
        let mut pending = Pending::default();
        let ((first, waits), (second, _left)) = (entry(later), entry(soon));
        assert!(pending.insert(1, first), "somebody must look now that there is a deadline");
        assert!(pending.insert(2, second), "and earlier than planned");
        assert!(!pending.insert(3, entry(later).0));
        assert_eq!(pending.overdue(now), (vec![], Some(soon)));
        assert_eq!(pending.overdue(soon), (vec![2], Some(later)));
        let mut due = pending.overdue(later).0;
        due.sort_unstable();
        assert_eq!(due, [1, 2, 3], "until they are given up");
        assert!(pending.give_up(1).is_some_and(|reply| reply.is_some()));
        assert!(pending.give_up(1).is_none(), "once");
        assert_eq!((pending.len(), pending.given_up()), (3, 1), "it stays out until the server answers");
        drop(waits);
    }

    #[test]
    fn an_abandoned_call_keeps_its_deadline() {
        let deadline = Instant::now();
        let mut pending = Pending::default();
        pending.insert(1, entry(deadline).0);
        pending.abandon(1);
        assert_eq!(pending.overdue(deadline).0, [1]);
    }
}
