//! The policy of one backend as a value that never changes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::arguments::ArgumentRules;
use super::hooks::{Hook, Hooks, Kind};
use super::names::NamePattern;
use super::results::{PlacedRule, ResultRules, Rule};
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
    /// Steps that the file took.
    pub load_steps: u32,
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
    /// None where the policy has no hook: then nothing of Lua is kept.
    pub(super) hooks: Option<Arc<Hooks>>,
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
    /// The server is told and has `grace` to answer; then its generation stays, and the call does not count any more.
    Keep { grace: Duration },
}

impl OnCancel {
    /// What holds without `on_cancel`: a server that does not answer a cancellation would else hold its instance,
    /// and everyone who waits for it, for as long as it likes.
    pub const RECYCLE: Self = Self::Recycle { grace: Self::GRACE };
    /// How long a server has to answer a cancellation where the policy does not say.
    pub const GRACE: Duration = Duration::from_secs(2);
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
    /// Each report of progress gives the call its deadline anew, up to this from its arrival; `None`: none does.
    pub progress_ceiling: Option<Duration>,
    pub arguments: ArgumentRules,
    pub results: ResultRules,
    /// Asked before a call is sent. A tool without one costs no Lua.
    pub(super) on_call: Option<Hook>,
    /// Asked about a result before the rules.
    pub(super) on_result: Option<Hook>,
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
    pub progress_ceiling: Option<Duration>,
    pub arguments: ArgumentRules,
}

/// A result rule and the tools that it is for; no tools means every payload of the server.
#[derive(Clone, Debug)]
pub(super) struct ToolsAndRule {
    pub tools: Option<Vec<Mention>>,
    pub placed: PlacedRule,
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

    /// The names by which verdicts tell what decided, of everything in the file that can: places of argument rules, hooks
    /// and rules for results.
    pub fn rule_names(&self) -> Vec<String> {
        let arguments = self.tools.settings.iter().flat_map(|settings| settings.arguments.places());
        let hooks = self.hooks.iter().flat_map(|hooks| hooks.mentions()).map(Mention::place);
        let results = self.results.iter().map(|result| result.placed.place.to_string());
        let mut names: Vec<String> = arguments.map(str::to_owned).chain(hooks).chain(results).collect();
        let mut known = std::collections::HashSet::new();
        names.retain(|name| known.insert(name.clone()));
        names
    }

    /// The names of the hooks `on_call` and `on_result` that are asked for a tool.
    pub fn hook_names(&self, tool: &str) -> [Option<String>; 2] {
        [Kind::OnCall, Kind::OnResult]
            .map(|kind| Some(Hooks::find(self.hooks.as_ref()?, kind, tool)?.place().to_string()))
    }

    /// Why [`Self::shows`] says no, with file and line where there is one; nothing when it says yes.
    pub fn why_hidden(&self, tool: &str) -> Option<String> {
        match self.tools.exclude.iter().find(|mention| mention.pattern.matches(tool)) {
            Some(Mention { pattern, file, line, .. }) => {
                Some(format!("'{}' in tools.exclude at {}:{line}", pattern.as_str(), file.display()))
            }
            None if !self.shows(tool) => Some(format!("no name in tools.allow of {} fits it", self.path.display())),
            None => None,
        }
    }

    /// All settings whose pattern matches the tool, the more specific over the more general, argument by argument.
    pub fn plan(&self, tool: &str) -> ToolPlan {
        let hook = |kind| Hooks::find(self.hooks.as_ref()?, kind, tool);
        let mut plan = ToolPlan {
            deadline: None,
            progress_ceiling: None,
            arguments: ArgumentRules::default(),
            results: self.rules_for(tool),
            on_call: hook(Kind::OnCall),
            on_result: hook(Kind::OnResult),
        };
        for settings in self.tools.settings.iter().filter(|settings| settings.tools.pattern.matches(tool)) {
            plan.deadline = settings.deadline.or(plan.deadline);
            plan.progress_ceiling = settings.progress_ceiling.or(plan.progress_ceiling);
            plan.arguments = plan.arguments.overlaid_by(&settings.arguments);
        }
        plan
    }

    /// What holds for a request that is no call of a tool: the rules for every payload.
    pub fn plan_for_all(&self) -> ToolPlan {
        let results = self.results_for_all.clone();
        ToolPlan {
            deadline: None,
            progress_ceiling: None,
            arguments: ArgumentRules::default(),
            results,
            on_call: None,
            on_result: None,
        }
    }

    /// Whether requests without a session can be given a scope key by the policy.
    pub fn has_scope_key(&self) -> bool {
        self.scope_hook().is_some()
    }

    pub(super) fn scope_hook(&self) -> Option<Hook> {
        Hooks::find(self.hooks.as_ref()?, Kind::ScopeKey, "")
    }

    /// The same policy with `isolate = true`: each call of a hook starts from the file as it was loaded.
    pub fn isolated(&self) -> Self {
        Self { hooks: self.hooks.as_ref().map(|hooks| Arc::new(hooks.isolated())), ..self.clone() }
    }

    /// Rules without a `tools` filter: for payloads that belong to no tool, such as errors, notifications, requests.
    pub fn rules_for_all(&self) -> &ResultRules {
        &self.results_for_all
    }

    /// Whether large images or sounds of any tool become links, which somebody must serve then.
    pub fn links_media(&self) -> bool {
        self.results.iter().any(|result| matches!(result.placed.rule, Rule::Media(_)))
    }

    /// One fault for each pattern that matches none of the catalog's tools, and for each hook that no call can reach.
    pub fn check_names(&self, known: &[&str]) -> Vec<Diagnostic> {
        let settings = self.tools.settings.iter().map(|settings| &settings.tools);
        let rules = self.results.iter().filter_map(|result| result.tools.as_ref()).flatten();
        let hooks = self.hooks.iter().flat_map(|hooks| hooks.mentions());
        let hidden = hooks.clone().filter(|mention| {
            let mut tools = known.iter().filter(|tool| mention.pattern.matches(tool)).peekable();
            tools.peek().is_some() && !tools.any(|tool| self.shows(tool))
        });
        let mentions = self.tools.allow.iter().flatten().chain(&self.tools.exclude).chain(settings).chain(rules);
        let unknown = mentions
            .chain(hooks)
            .filter(|mention| !known.iter().any(|tool| mention.pattern.matches(tool)))
            .map(|mention| mention.matches_nothing(known));
        unknown.chain(hidden.map(Mention::is_hidden)).collect()
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
        self.results.iter().filter(is_for).map(|result| result.placed.clone()).collect()
    }
}

impl ToolPlan {
    /// Whether a call has to wait for a hook's verdict.
    pub fn has_on_call(&self) -> bool {
        self.on_call.is_some()
    }

    pub fn has_on_result(&self) -> bool {
        self.on_result.is_some()
    }
}

impl Mention {
    fn place(&self) -> String {
        format!("{}:{}", self.file.display(), self.line)
    }

    fn is_hidden(&self) -> Diagnostic {
        let message =
            format!("'{}' in {} is not shown to clients, so its hook never runs", self.pattern.as_str(), self.field);
        Diagnostic::new(&self.file, Some(self.line), message)
    }

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
