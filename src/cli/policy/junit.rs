//! JUnit XML, as continuous integration reads it.

use std::fmt::Write as _;

use crate::policy::testing::TestOutcome;

/// One suite a file, in the order of the outcomes.
pub(super) fn report(outcomes: &[TestOutcome]) -> String {
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n");
    for suite in outcomes.chunk_by(|a, b| a.file == b.file) {
        let failures = suite.iter().filter(|outcome| outcome.failure.is_some()).count();
        let seconds: f64 = suite.iter().map(|outcome| outcome.took.as_secs_f64()).sum();
        let name = escaped(&suite[0].file.display().to_string());
        put(
            &mut out,
            format_args!(
                "  <testsuite name=\"{name}\" tests=\"{}\" failures=\"{failures}\" errors=\"0\" time=\"{seconds:.3}\">\n",
                suite.len()
            ),
        );
        suite.iter().for_each(|outcome| case(&mut out, &name, outcome));
        out.push_str("  </testsuite>\n");
    }
    out.push_str("</testsuites>\n");
    out
}

fn case(out: &mut String, suite: &str, outcome: &TestOutcome) {
    let (name, seconds) = (escaped(&outcome.name), outcome.took.as_secs_f64());
    let head = format!("    <testcase classname=\"{suite}\" name=\"{name}\" time=\"{seconds:.3}\"");
    match &outcome.failure {
        None => put(out, format_args!("{head}/>\n")),
        Some(fault) => {
            let text = escaped(&fault.to_string());
            put(out, format_args!("{head}>\n      <failure message=\"{text}\">{text}</failure>\n    </testcase>\n"));
        }
    }
}

/// Characters that XML cannot hold at all become U+FFFD.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' => out.push_str("&#10;"),
            '\t' => out.push(c),
            '\0'..='\u{1f}' | '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

fn put(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("writing to a string does not fail");
}
