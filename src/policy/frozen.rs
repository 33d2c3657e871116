//! The policy of one backend as a value that never changes.

use std::path::PathBuf;
use std::time::Duration;

use super::arguments::ArgumentRules;
use super::names::NamePattern;
use super::results::{ResultRules, Rule};
use crate::core::diagnostic::{Diagnostic, suggestion};
use crate::core::digest::Digest;

/// What one policy file, with its imports, says about a backend.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The file as it was named to [`super::load()`].
    pub path: PathBuf,
    /// Over the name and digest of each file in [`Self::files`], so that a changed import changes it too. It does not
    /// depend on where the directory is.
    pub digest: Digest,
    /// The file itself, then its imports in the order in which they were first imported.
    pub files: Vec<(PathBuf, Digest)>,
    pub scope: Scope,
    /// How long an instance may stay without a call. Zero stops it right after the last one.
    pub idle_timeout: Duration,
    pub queue: QueueRules,
    /// Calls that one instance may work on at once; at least 1.
    pub max_concurrency: u32,
    pub on_cancel: OnCancel,
    /// What becomes of a call to a tool whose definition changed since its catalog was reviewed.
    pub drift: DriftRule,
    pub(super) tools: ToolRules,
    pub(super) results: Vec<ToolsAndRule>,
    pub(super) results_for_all: ResultRules,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// An instance for each session.
    Session,
    /// One instance for everyone.
    Singleton,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueRules {
    /// Calls that may wait for one instance; at least 1, because the first call waits for the start.
    pub len_max: usize,
    /// How long one of them may wait.
    pub wait: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnCancel {
    /// The server is told and has `grace` to answer; then its generation is stopped, and the next call starts another.
    Recycle { grace: Duration },
    /// The server is told; its generation stays whatever it does.
    Keep,
}

impl OnCancel {
    /// What holds without `on_cancel`: a server that does not answer a cancellation would else hold its instance,
    /// and everyone who waits for it, for as long as it likes.
    pub const RECYCLE: Self = Self::Recycle { grace: Duration::from_secs(2) };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriftRule {
    Refuse,
    Warn,
}

/// What holds for calls of one tool. Cheap to clone; worth keeping for the life of a snapshot.
#[derive(Clone, Debug)]
pub struct ToolPlan {
    /// From the arrival of the call to its answer, time in the queue and of a start included; `None` leaves it to the
    /// configuration.
    pub deadline: Option<Duration>,
    pub arguments: ArgumentRules,
    pub results: ResultRules,
}

/// The `tools` table. Settings are sorted from the most general pattern to the most specific.
#[derive(Clone, Debug, Default)]
pub(super) struct ToolRules {
    pub allow: Option<Vec<Mention>>,
    pub exclude: Vec<Mention>,
    pub settings: Vec<ToolSettings>,
}

#[derive(Clone, Debug)]
pub(super) struct ToolSettings {
    pub tools: Mention,
    pub deadline: Option<Duration>,
    pub arguments: ArgumentRules,
}

/// A result rule and the tools that it is for; no tools means every payload of the server.
#[derive(Clone, Debug)]
pub(super) struct ToolsAndRule {
    pub tools: Option<Vec<Mention>>,
    pub rule: Rule,
}

/// A tool pattern, and where the policy mentions it.
#[derive(Clone, Debug)]
pub(super) struct Mention {
    pub pattern: NamePattern,
    /// The field, for people: `tools.exclude`.
    pub field: String,
    pub file: PathBuf,
    pub line: usize,
}

impl Policy {
    /// Whether clients see the tool. An exclusion wins over an allowance; without `allow` every tool is allowed.
    pub fn shows(&self, tool: &str) -> bool {
        let allowed = self.tools.allow.as_ref().is_none_or(|allow| any_matches(allow, tool));
        allowed && !any_matches(&self.tools.exclude, tool)
    }

    /// All settings whose pattern matches the tool, the more specific over the more general, argument by argument.
    pub fn plan(&self, tool: &str) -> ToolPlan {
        let mut plan = ToolPlan { deadline: None, arguments: ArgumentRules::default(), results: self.rules_for(tool) };
        for settings in self.tools.settings.iter().filter(|settings| settings.tools.pattern.matches(tool)) {
            plan.deadline = settings.deadline.or(plan.deadline);
            plan.arguments = plan.arguments.overlaid_by(&settings.arguments);
        }
        plan
    }

    /// Rules without a `tools` filter: for payloads that belong to no tool, such as errors, notifications, requests.
    pub fn rules_for_all(&self) -> &ResultRules {
        &self.results_for_all
    }

    /// Whether large images or sounds of any tool become links, which somebody must serve then.
    pub fn links_media(&self) -> bool {
        self.results.iter().any(|result| matches!(result.rule, Rule::Media(_)))
    }

    /// One fault for each pattern that matches none of the catalog's tools.
    pub fn check_names(&self, known: &[&str]) -> Vec<Diagnostic> {
        let settings = self.tools.settings.iter().map(|settings| &settings.tools);
        let rules = self.results.iter().filter_map(|result| result.tools.as_ref()).flatten();
        let mentions = self.tools.allow.iter().flatten().chain(&self.tools.exclude).chain(settings).chain(rules);
        mentions
            .filter(|mention| !known.iter().any(|tool| mention.pattern.matches(tool)))
            .map(|mention| mention.matches_nothing(known))
            .collect()
    }

    /// One fault for each argument with a rule that no tool of its pattern takes: a guard that guards nothing.
    /// `takes` names the arguments of a tool; `None` where its schema does not say.
    pub fn check_arguments<'a>(&self, known: &[&str], takes: impl Fn(&str) -> Option<&'a [String]>) -> Vec<Diagnostic> {
        let mut faults = Vec::new();
        for settings in &self.tools.settings {
            let mention = &settings.tools;
            let tools: Vec<&&str> = known.iter().filter(|tool| mention.pattern.matches(tool)).collect();
            let taken: Option<Vec<&'a [String]>> = tools.iter().map(|tool| takes(tool)).collect();
            let Some(taken) = taken.filter(|taken| !taken.is_empty()) else { continue };
            let taken: Vec<&str> = taken.into_iter().flatten().map(String::as_str).collect();
            for argument in settings.arguments.names().filter(|argument| !taken.contains(argument)) {
                let hint = suggestion(argument, taken.iter().copied());
                let of = mention.pattern.as_str();
                let message =
                    format!("no tool '{of}' takes an argument '{argument}', so its rule guards nothing{hint}");
                faults.push(Diagnostic::new(&mention.file, Some(mention.line), message));
            }
        }
        faults
    }

    fn rules_for(&self, tool: &str) -> ResultRules {
        let is_for = |result: &&ToolsAndRule| result.tools.as_ref().is_none_or(|tools| any_matches(tools, tool));
        if self.results.iter().filter(is_for).all(|result| result.tools.is_none()) {
            return self.results_for_all.clone();
        }
        self.results.iter().filter(is_for).map(|result| result.rule.clone()).collect()
    }
}

impl Mention {
    fn matches_nothing(&self, known: &[&str]) -> Diagnostic {
        let text = self.pattern.as_str();
        let hint = if self.pattern.is_plain() { suggestion(text, known.iter().copied()) } else { String::new() };
        let message = format!("'{text}' in {} matches no tool of the catalog{hint}", self.field);
        Diagnostic::new(&self.file, Some(self.line), message)
    }
}

fn any_matches(mentions: &[Mention], tool: &str) -> bool {
    mentions.iter().any(|mention| mention.pattern.matches(tool))
}
