//! A small world around one slot: callers, processes, the driver's answers, reports under way, and time.
//!
//! It knows what is true (which processes there are), the slot only what it was told. `rules.rs` compares the two.

use std::ops::Range;
use std::time::Duration;

use lazy_mcp_broker::core::generation::{Generation, Mint, Stamped};
use lazy_mcp_broker::core::lifecycle::{Effect, Event, LeaseId, Limits, PublicState, Report, Slot, Waiter, WaiterId};
use lazy_mcp_broker::core::moment::Moment;

use super::rules::Told;

/// What the world may do, and how often.
#[derive(Clone, Debug)]
pub struct Scale {
    pub limits: Limits,
    /// How long each caller is willing to wait, by its number.
    pub patience: Vec<Duration>,
    /// So many of them, the last ones, take what runs and are worth no start.
    pub guests: usize,
    /// A caller whose call is over comes again with another.
    pub comes_again: bool,
    /// Stops, replacements and reinstatements together.
    pub stops: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Caller {
    Idle,
    Waiting { id: WaiterId, deadline: Moment, starts: bool },
    Holding { id: WaiterId, generation: Generation, overdue: bool },
    Done,
}

/// The processes of one generation, until a sweep has proved that there are none. A sweep may fail as often as it
/// likes: a root that cannot be killed, a child that was left behind and a proof that went wrong look the same.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Tree {
    pub generation: Generation,
    pub root: bool,
    pub linked: bool,
    pub initialized: bool,
    /// What the slot has asked of the root: 0 nothing, 1 stdin closed, 2 terminated, 3 swept.
    pub asked: u8,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct World {
    pub now: Moment,
    pub slot: Slot,
    pub callers: Vec<Caller>,
    pub tree: Option<Tree>,
    pub place: Place,
    /// Orders that the driver has not answered yet.
    pub spawn: Option<Generation>,
    pub handshakes: Vec<Generation>,
    pub sweeps: Vec<Generation>,
    /// Of the live generation, until `stopped` or `cleanup_failed` is said because of them.
    pub sweeps_ordered: u8,
    /// Reports about processes and links: in order for each generation.
    pub mail: Vec<Stamped<Report>>,
    /// Reports of callers, in no order.
    pub caller_mail: Vec<Stamped<Report>>,
    pub last_spawned: u64,
    pub next_id: u64,
    pub stops: u8,
    pub retired: bool,
}

/// Among the live slots, as the driver keeps it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Place {
    None,
    Asked,
    Held,
}

/// Something that happens next. `usize` is a place in the list that it speaks of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Move {
    Acquire(usize),
    Abandon(usize),
    Release(usize),
    Overdue(usize),
    Admit,
    Stop,
    Replace,
    Retire,
    Reinstate,
    Evict,
    Hurry,
    Recover,
    SpawnSucceeds,
    SpawnFails,
    HandshakeEnds { at: usize, ok: bool },
    LinkBreaks,
    RootExits,
    SweepProves,
    SweepFails,
    Deliver(usize),
    DeliverFromCaller(usize),
    Wake,
    Tick,
}

/// How far time goes without a wakeup.
pub const TICK: Duration = Duration::from_millis(10);

impl World {
    pub fn new(now: Moment, scale: &Scale) -> Self {
        Self {
            now,
            slot: Slot::new(Mint::after(0)),
            callers: vec![Caller::Idle; scale.patience.len()],
            tree: None,
            place: Place::None,
            spawn: None,
            handshakes: vec![],
            sweeps: vec![],
            sweeps_ordered: 0,
            mail: vec![],
            caller_mail: vec![],
            last_spawned: 0,
            next_id: 0,
            stops: 0,
            retired: false,
        }
    }

    /// Everything that can happen next.
    pub fn moves(&self, scale: &Scale, out: &mut Vec<Move>) {
        self.moves_of_callers(scale, out);
        self.moves_of_operators(scale, out);
        self.moves_of_processes(out);
        self.moves_of_the_driver(out);
        self.deliveries(out);
        match self.slot.next_wakeup() {
            Some(at) if at <= self.now.after(TICK) => out.push(Move::Wake),
            // Pauses end without a wakeup.
            Some(_) if self.slot.public_state() == PublicState::Stopped => out.extend([Move::Wake, Move::Tick]),
            Some(_) => out.push(Move::Wake),
            None => {}
        }
        // A driver that comes late.
        if scale.comes_again {
            out.push(Move::Tick);
        }
    }

    fn moves_of_callers(&self, scale: &Scale, out: &mut Vec<Move>) {
        // Callers differ in little but their numbers, so it is enough that the first of a kind who can come does.
        let first = |mut kind: Range<usize>| kind.find(|i| self.callers[*i] == Caller::Idle).map(Move::Acquire);
        let hosts = self.callers.len() - scale.guests.min(self.callers.len());
        out.extend(first(0..hosts).into_iter().chain(first(hosts..self.callers.len())));
        for (i, caller) in self.callers.iter().enumerate() {
            match caller {
                Caller::Waiting { .. } => out.push(Move::Abandon(i)),
                Caller::Holding { overdue: false, .. } => out.extend([Move::Release(i), Move::Overdue(i)]),
                Caller::Holding { overdue: true, .. } => out.push(Move::Release(i)),
                Caller::Idle | Caller::Done => {}
            }
        }
    }

    fn moves_of_operators(&self, scale: &Scale, out: &mut Vec<Move>) {
        if self.stops < scale.stops {
            out.extend(if self.retired { &[Move::Reinstate][..] } else { &[Move::Stop, Move::Replace] });
        }
        if !self.retired {
            out.push(Move::Retire);
        }
        // At any other time these do nothing; the random walks see that.
        let state = self.slot.public_state();
        for (next, in_state) in [
            (Move::Recover, PublicState::CleanupFailed),
            (Move::Evict, PublicState::Ready),
            (Move::Hurry, PublicState::Draining),
        ] {
            if state == in_state || scale.comes_again {
                out.push(next);
            }
        }
    }

    fn moves_of_processes(&self, out: &mut Vec<Move>) {
        let Some(tree) = &self.tree else { return };
        if tree.root && tree.linked {
            out.push(Move::LinkBreaks);
        }
        if tree.root {
            out.push(Move::RootExits);
        }
    }

    fn moves_of_the_driver(&self, out: &mut Vec<Move>) {
        if self.place == Place::Asked {
            out.push(Move::Admit);
        }
        if self.spawn.is_some() {
            out.extend([Move::SpawnSucceeds, Move::SpawnFails]);
        }
        for (at, generation) in self.handshakes.iter().enumerate() {
            let answers = self.tree.as_ref().is_some_and(|tree| tree.generation == *generation && tree.root);
            if answers {
                out.push(Move::HandshakeEnds { at, ok: true });
            }
            out.push(Move::HandshakeEnds { at, ok: false });
        }
        if let Some(&generation) = self.sweeps.first()
            && !self.has_sweep_answer(generation)
        {
            out.push(Move::SweepProves);
            if self.tree.as_ref().is_some_and(|tree| tree.generation == generation) {
                out.push(Move::SweepFails);
            }
        }
    }

    fn deliveries(&self, out: &mut Vec<Move>) {
        for (i, letter) in self.mail.iter().enumerate() {
            if !self.mail[..i].iter().any(|earlier| earlier.generation() == letter.generation()) {
                out.push(Move::Deliver(i));
            }
        }
        out.extend((0..self.caller_mail.len()).map(Move::DeliverFromCaller));
    }

    /// Makes one move and says what the slot ordered, or which rule was broken.
    pub fn make(&mut self, next: Move, scale: &Scale) -> Result<Vec<Effect>, String> {
        match next {
            Move::Acquire(i) => {
                let starts = i + scale.guests < self.callers.len();
                let deadline = self.now.after(scale.patience[i]);
                let waiter = Waiter { id: WaiterId(self.next_id), deadline, starts };
                self.next_id += 1;
                self.callers[i] = Caller::Waiting { id: waiter.id, deadline, starts };
                self.tell(Event::Acquire(waiter), scale)
            }
            Move::Abandon(i) => {
                let Caller::Waiting { id, .. } = self.callers[i] else { return Err("no waiter".into()) };
                self.callers[i] = Self::over(scale);
                self.tell(Event::Abandon(id), scale)
            }
            Move::Release(i) => self.release(i, scale),
            Move::Overdue(i) => self.overdue(i),
            Move::Stop => {
                self.stops += 1;
                self.tell(Event::Stop, scale)
            }
            Move::Replace => {
                self.stops += 1;
                self.tell(Event::Replace, scale)
            }
            Move::Retire => {
                self.retired = true;
                self.tell(Event::Retire, scale)
            }
            Move::Reinstate => {
                self.stops += 1;
                self.retired = false;
                self.tell(Event::Reinstate, scale)
            }
            Move::Recover => self.tell(Event::Recover, scale),
            Move::Evict => self.tell(Event::Evict, scale),
            Move::Hurry => self.tell(Event::Hurry, scale),
            Move::Admit => {
                self.place = Place::Held;
                self.tell(Event::Admitted, scale)
            }
            Move::SpawnSucceeds | Move::SpawnFails => self.answer_spawn(next == Move::SpawnSucceeds),
            Move::HandshakeEnds { at, ok } => self.answer_handshake(at, ok),
            Move::LinkBreaks | Move::RootExits => self.fall_apart(next == Move::RootExits),
            Move::SweepProves | Move::SweepFails => self.answer_sweep(next == Move::SweepProves),
            Move::Deliver(i) => {
                let letter = self.mail.remove(i);
                self.tell(Event::From(letter), scale)
            }
            Move::DeliverFromCaller(i) => {
                let letter = self.caller_mail.remove(i);
                self.tell(Event::From(letter), scale)
            }
            Move::Wake => {
                let at = self.slot.next_wakeup().ok_or("no wakeup")?;
                self.now = self.now.max(at);
                self.tell(Event::Wake, scale)
            }
            Move::Tick => {
                self.now = self.now.after(TICK);
                Ok(vec![])
            }
        }
    }

    fn release(&mut self, i: usize, scale: &Scale) -> Result<Vec<Effect>, String> {
        let Caller::Holding { id, generation, .. } = self.callers[i] else { return Err("no lease".into()) };
        self.callers[i] = Self::over(scale);
        self.post_from_caller(generation, Report::Released(LeaseId::from(id)));
        Ok(vec![])
    }

    fn overdue(&mut self, i: usize) -> Result<Vec<Effect>, String> {
        let Caller::Holding { id, generation, overdue } = &mut self.callers[i] else { return Err("no lease".into()) };
        *overdue = true;
        let (generation, lease) = (*generation, LeaseId::from(*id));
        self.post_from_caller(generation, Report::Overdue(lease));
        Ok(vec![])
    }

    fn answer_spawn(&mut self, root: bool) -> Result<Vec<Effect>, String> {
        let generation = self.spawn.take().ok_or("no spawn is owed")?;
        // Where the root failed, something may have been left all the same.
        self.tree = Some(Tree { generation, root, linked: root, initialized: false, asked: 0 });
        self.post(generation, if root { Report::Spawned } else { Report::SpawnFailed });
        Ok(vec![])
    }

    fn answer_handshake(&mut self, at: usize, ok: bool) -> Result<Vec<Effect>, String> {
        let generation = self.handshakes.remove(at);
        if let Some(tree) = self.tree.as_mut().filter(|tree| tree.generation == generation) {
            tree.initialized = ok;
        }
        self.post(generation, if ok { Report::Initialized } else { Report::HandshakeFailed });
        Ok(vec![])
    }

    fn fall_apart(&mut self, root_exits: bool) -> Result<Vec<Effect>, String> {
        let tree = self.tree.as_mut().ok_or("no process")?;
        tree.linked = false;
        tree.root &= !root_exits;
        let generation = tree.generation;
        self.post(generation, if root_exits { Report::RootExited } else { Report::LinkLost });
        Ok(vec![])
    }

    fn answer_sweep(&mut self, proves: bool) -> Result<Vec<Effect>, String> {
        let generation = self.sweeps.remove(0);
        if !proves {
            self.post(generation, Report::TreeBusy);
            return Ok(vec![]);
        }
        if let Some(tree) = self.tree.take_if(|tree| tree.generation == generation)
            && tree.root
        {
            self.post(generation, Report::RootExited);
        }
        self.post(generation, Report::TreeEmpty);
        Ok(vec![])
    }

    /// Tells the slot, checks the rules, performs what it orders.
    pub fn tell(&mut self, event: Event, scale: &Scale) -> Result<Vec<Effect>, String> {
        let told = Told::new(self, event, scale);
        let mut effects = vec![];
        self.slot.step(self.now, event, &scale.limits, &mut effects);
        told.check_stale(self, &effects)?;
        for &effect in &effects {
            told.check_effect(self, effect)?;
            self.perform(effect, scale);
        }
        told.check_world(self)?;
        if matches!(self.slot.public_state(), PublicState::CleanupFailed | PublicState::Stopped) {
            self.sweeps_ordered = 0;
        }
        Ok(effects)
    }

    fn perform(&mut self, effect: Effect, scale: &Scale) {
        match effect {
            Effect::Admit => self.place = Place::Asked,
            Effect::Vacate => self.place = Place::None,
            Effect::Spawn(generation) => {
                self.spawn = Some(generation);
                self.last_spawned = generation.number();
                self.sweeps_ordered = 0;
            }
            Effect::Handshake(generation) => self.handshakes.push(generation),
            Effect::Grant(id, generation) => {
                if let Some(caller) = self.waiting(id) {
                    *caller = Caller::Holding { id, generation, overdue: false };
                }
            }
            Effect::Refuse(id, _) => {
                if let Some(caller) = self.waiting(id) {
                    *caller = Self::over(scale);
                }
            }
            Effect::TakeBack(generation, lease) => {
                let is_its = |caller: &Caller| matches!(caller, Caller::Holding { id, generation: of, .. } if LeaseId::from(*id) == lease && *of == generation);
                // None: its release is on its way.
                if let Some(i) = self.callers.iter().position(is_its) {
                    self.callers[i] = Self::over(scale);
                    self.post_from_caller(generation, Report::Released(lease));
                }
            }
            Effect::FailLeases(lost, _) => {
                for i in 0..self.callers.len() {
                    if let Caller::Holding { id, generation, .. } = self.callers[i]
                        && generation == lost
                    {
                        self.callers[i] = Self::over(scale);
                        self.post_from_caller(generation, Report::Released(LeaseId::from(id)));
                    }
                }
            }
            Effect::CloseStdin(_) => self.ask(1),
            Effect::Terminate(_) => self.ask(2),
            Effect::Sweep(generation) => {
                self.ask(3);
                self.sweeps_ordered = self.sweeps_ordered.saturating_add(1);
                // Who is sweeping already looks no harder when told again.
                if !self.sweeps.contains(&generation) {
                    self.sweeps.push(generation);
                }
            }
        }
    }

    fn waiting(&mut self, id: WaiterId) -> Option<&mut Caller> {
        self.callers.iter_mut().find(|caller| matches!(caller, Caller::Waiting { id: waits, .. } if *waits == id))
    }

    /// Whether somebody waits who is worth a start.
    pub fn somebody_starts(&self) -> bool {
        self.callers.iter().any(|caller| matches!(caller, Caller::Waiting { starts: true, .. }))
    }

    /// Nothing is left to happen, ever.
    pub fn is_at_rest(&self) -> bool {
        self.retired
            && self.slot.public_state() == PublicState::Stopped
            && self.tree.is_none()
            && self.place == Place::None
            && self.spawn.is_none()
            && self.handshakes.is_empty()
            && self.sweeps.is_empty()
            && self.mail.is_empty()
            && self.caller_mail.is_empty()
            && !self.callers.iter().any(|caller| matches!(caller, Caller::Waiting { .. } | Caller::Holding { .. }))
    }

    /// One answer at a time: a second one in the mail would say nothing new.
    fn has_sweep_answer(&self, of: Generation) -> bool {
        [Report::TreeBusy, Report::TreeEmpty].into_iter().any(|answer| self.mail.contains(&Stamped::new(of, answer)))
    }

    fn over(scale: &Scale) -> Caller {
        if scale.comes_again { Caller::Idle } else { Caller::Done }
    }

    fn ask(&mut self, step: u8) {
        if let Some(tree) = &mut self.tree {
            tree.asked = step;
        }
    }

    fn post(&mut self, generation: Generation, report: Report) {
        self.mail.push(Stamped::new(generation, report));
        // Stable, so reports of one generation keep their order; those of two may overtake each other anyway.
        self.mail.sort_by_key(Stamped::generation);
    }

    fn post_from_caller(&mut self, generation: Generation, report: Report) {
        self.caller_mail.push(Stamped::new(generation, report));
        self.caller_mail.sort_unstable();
    }
}
