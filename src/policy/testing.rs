//! Tests of policies: files `test_*.lua` that return functions named `test_*`.
//!
//! A test asks about calls and results by the very functions that judge real ones. Each runs several times: with
//! policies that were loaded for it alone, and with policies that have answered before. Both must come to the same
//! answers, or the policy remembers something, and what it decides depends on who called before.
//!
//! Test machines are those of policies with `pcall`, a larger budget, `broker.load_policy` and `expect`.
//!
//! - `subject.rs` is the policy under test, with what the configuration and the catalog say about its backend.
//! - `machine.rs` is the machine of a test file; `views.rs` what a test holds; `expect.rs` what it claims; `given.rs` what
//!   JSON it can give.
//!
//! Not here: which files there are, and how a report looks.

mod expect;
mod given;
mod machine;
mod subject;
mod views;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use self::given::{Unusable, check_payload};
pub use self::subject::{CallSeen, PayloadSeen, Refusal, Schemas, Subject};

use self::machine::{Ended, TestFile};
use super::hooks::THREADS_MAX;
use crate::core::diagnostic::Diagnostic;

/// What one test came to.
#[derive(Clone, Debug)]
pub struct TestOutcome {
    pub file: PathBuf,
    /// Of the function; that of the file alone when it could not be run at all.
    pub name: String,
    pub failure: Option<Diagnostic>,
    /// Of the test and of the hooks that it asked.
    pub steps: u64,
    pub took: Duration,
    pub seen: Vec<Seen>,
    /// The backends whose policies it loaded, or wanted to.
    pub loaded: BTreeSet<String>,
}

/// A question that a test asked, and the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub backend: String,
    pub tool: String,
    /// What denied, withheld or rewrote, and the hook that was asked.
    pub reached: Vec<String>,
    /// The whole answer, to be compared.
    answer: String,
}

/// Loads the policy of a backend by its name, each time anew. The error is for whoever reads the test's failure.
pub type LoadSubject<'a> = dyn Fn(&str) -> Result<Subject, String> + 'a;

/// Where a run of a test gets its policies from, and what it saw of them.
#[derive(Default)]
struct Policies {
    loaded: BTreeMap<String, Arc<Subject>>,
    wanted: BTreeSet<String>,
}

/// Runs the tests of a file whose names `is_wanted`, in the order in which they stand there. Blocks for as long as they
/// take, each for some seconds at most, on a thread with room for deeply nested sources.
pub fn run_file(path: &Path, load: &LoadSubject<'_>, is_wanted: &dyn Fn(&str) -> bool) -> Vec<TestOutcome> {
    let began = Instant::now();
    let broken = |fault: Diagnostic, loaded, took| TestOutcome {
        file: path.to_owned(),
        name: path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
        failure: Some(fault),
        steps: 0,
        took,
        seen: Vec::new(),
        loaded,
    };
    let policies = Policies::shared(load);
    let listed = TestFile::read(path).and_then(|file| {
        let names = file.names(&policies)?;
        Ok((file, names))
    });
    let (file, names) = match listed {
        Ok(listed) => listed,
        Err(fault) => return vec![broken(fault, policies.0.take().wanted, began.elapsed())],
    };
    let wanted = names.iter().filter(|name| is_wanted(name));
    let mut outcomes: Vec<TestOutcome> = wanted.map(|name| file.outcome(name, load)).collect();
    let warm = Policies::shared(load);
    let passed = || outcomes.iter().filter(|outcome| outcome.failure.is_none());
    // So that every policy of the file has answered every question before.
    passed().for_each(|outcome| drop(file.run(&outcome.name, &warm)));
    // One more than there are threads for hooks: each has a machine of its own, and some machine is asked again then.
    for _ in 0..=THREADS_MAX {
        for outcome in outcomes.iter_mut().filter(|outcome| outcome.failure.is_none()) {
            outcome.failure = file.difference(outcome, &file.run(&outcome.name, &warm));
        }
    }
    outcomes
}

type Shared<'a> = (Rc<RefCell<Policies>>, &'a LoadSubject<'a>);

impl Policies {
    fn shared<'a>(load: &'a LoadSubject<'a>) -> Shared<'a> {
        (Rc::default(), load)
    }
}

impl TestFile {
    fn outcome(&self, name: &str, load: &LoadSubject<'_>) -> TestOutcome {
        let began = Instant::now();
        let policies = Policies::shared(load);
        let Ended { failure, steps, seen } = self.run(name, &policies);
        let loaded = policies.0.take().wanted;
        TestOutcome {
            file: self.path.clone(),
            name: name.to_owned(),
            failure,
            steps,
            took: began.elapsed(),
            seen,
            loaded,
        }
    }

    fn difference(&self, fresh: &TestOutcome, warm: &Ended) -> Option<Diagnostic> {
        let differing = fresh.seen.iter().zip(&warm.seen).find(|(fresh, warm)| fresh != warm);
        let about = match (&warm.failure, differing) {
            (_, Some((fresh, warm))) => format!(
                "about {} of {}: {} when asked first, {} later",
                fresh.tool, fresh.backend, fresh.answer, warm.answer
            ),
            (Some(failure), None) => format!("it passes when it runs first and fails later: {}", failure.message),
            (None, None) if fresh.seen.len() != warm.seen.len() => "it asks other questions later".to_owned(),
            (None, None) => return None,
        };
        let message = format!(
            "the policy does not answer the same each time ({about}): it keeps something between calls, which it must not"
        );
        Some(Diagnostic::new(&self.path, None, message))
    }
}
