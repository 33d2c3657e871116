//! What is said to the script and what it may answer: `deploy/windows/sweep.ps1`, documented there and in
//! `docs/reference/windows.md`.

use base64::Engine as _;
use serde::{Deserialize, Serialize};

use super::marker::Marker;
use crate::ownership::wire::Survivor;

const SCRIPT: &str = include_str!("../../../deploy/windows/sweep.ps1");

/// Processes that one request asks to be ended; more are found again by the next query.
pub(super) const BATCH_LEN_MAX: usize = 128;
/// Characters of a name, as `taskmgr` shows it, that are kept.
const NAME_LEN_MAX: usize = 64;
/// Characters of the kind of an error, which is the name of a .NET type.
const ERROR_LEN_MAX: usize = 80;

/// The arguments of `powershell.exe`.
///
/// The whole script is the argument: a file below `\\wsl$` is refused by the default execution policy, and what comes by
/// standard input (`-Command -`) is taken line by line as if it were typed, which breaks blocks and leaves no input for
/// the request. In base64 it passes WSL's quoting and Windows' own untouched.
pub(super) fn arguments() -> Vec<String> {
    let utf16: Vec<u8> = essence(SCRIPT).encode_utf16().flat_map(u16::to_le_bytes).collect();
    let plain = ["-NoLogo", "-NoProfile", "-NonInteractive", "-OutputFormat", "Text", "-EncodedCommand"];
    let encoded = base64::engine::general_purpose::STANDARD.encode(utf16);
    plain.map(str::to_owned).into_iter().chain([encoded]).collect()
}

/// The script without comments and indentation: with them it would come near the 32,767 characters that Windows takes
/// for a command line (CreateProcess).
fn essence(script: &str) -> String {
    let lines = script.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// A process on the Windows side: what is needed to mean this one and no other, and to name it to an operator.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Found {
    pub pid: u32,
    /// Ticks of 100 ns; 0 when Windows does not tell, and then it cannot be ended.
    pub created: u64,
    pub name: String,
}

impl From<Found> for Survivor {
    fn from(found: Found) -> Self {
        Self { pid: found.pid, start_time: found.created, comm: found.name, state: '?', windows: true }
    }
}

/// Why an answer is none.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoAnswer {
    /// The script says that Windows refused; the kind of the error.
    Refused(String),
    /// It is not what the contract describes.
    Nonsense,
}

#[derive(Serialize)]
#[serde(tag = "action", rename_all = "lowercase")]
enum Request<'a> {
    Query { marker: String },
    Terminate { marker: String, processes: Vec<Named<'a>> },
}

#[derive(Serialize)]
struct Named<'a> {
    pid: u32,
    created: &'a str,
}

pub(super) fn query(marker: &Marker) -> Vec<u8> {
    bytes(&Request::Query { marker: marker.to_string() })
}

pub(super) fn terminate(marker: &Marker, found: &[Found]) -> Vec<u8> {
    let created: Vec<String> = found.iter().map(|process| process.created.to_string()).collect();
    let processes = found.iter().zip(&created).map(|(process, created)| Named { pid: process.pid, created }).collect();
    bytes(&Request::Terminate { marker: marker.to_string(), processes })
}

fn bytes(request: &Request<'_>) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(request).expect("numbers and text are JSON");
    bytes.push(b'\n');
    bytes
}

/// Either list alone answers its own request: one that is missing is not an empty one.
#[derive(Deserialize)]
struct Answer {
    ok: bool,
    #[serde(default)]
    error: String,
    processes: Option<Vec<AnsweredProcess>>,
    results: Option<Vec<AnsweredResult>>,
}

#[derive(Deserialize)]
struct AnsweredProcess {
    pid: u32,
    created: String,
    name: String,
}

#[derive(Deserialize)]
struct AnsweredResult {
    outcome: Outcome,
}

/// What became of a process that was to be ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Outcome {
    Terminated,
    /// It had ended by itself.
    Gone,
    /// The pid is another process's by now, or it does not carry the marker any more: it was left alone.
    Mismatch,
    Error,
}

/// Who carries the marker.
pub(super) fn found(answer: &[u8]) -> Result<Vec<Found>, NoAnswer> {
    let found =
        |AnsweredProcess { pid, created, name }| Some(Found { pid, created: ticks(&created)?, name: shown(&name) });
    let processes = well(answer)?.processes.ok_or(NoAnswer::Nonsense)?;
    processes.into_iter().map(found).collect::<Option<_>>().ok_or(NoAnswer::Nonsense)
}

/// What became of each that was to be ended.
pub(super) fn outcomes(answer: &[u8]) -> Result<Vec<Outcome>, NoAnswer> {
    let results = well(answer)?.results.ok_or(NoAnswer::Nonsense)?;
    Ok(results.into_iter().map(|result| result.outcome).collect())
}

/// An answer that says that all went well.
fn well(answer: &[u8]) -> Result<Answer, NoAnswer> {
    // The console of Windows may put a byte order mark before its first output.
    let answer = answer.strip_prefix("\u{feff}".as_bytes()).unwrap_or(answer);
    match serde_json::from_slice::<Answer>(answer) {
        Ok(answer) if answer.ok => Ok(answer),
        Ok(Answer { error, .. }) => Err(NoAnswer::Refused(kind_of(&error))),
        Err(_) => Err(NoAnswer::Nonsense),
    }
}

/// Digits alone: a sign or a blank would not be what the script compares with.
fn ticks(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// Fit for a terminal, whatever a program is called.
fn shown(name: &str) -> String {
    name.chars().take(NAME_LEN_MAX).map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// The name of a type and no more, whatever an answer says: nothing of a command line can be in it.
fn kind_of(error: &str) -> String {
    error.chars().take(ERROR_LEN_MAX).filter(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_fits_on_a_command_line_of_windows_and_is_plain() {
        let length: usize = arguments().iter().map(|argument| argument.len() + 3).sum();
        assert!(length < 16_000, "{length} of 32,767 characters, which include the path of the program");
        assert!(SCRIPT.is_ascii(), "a code page must not matter");
        assert!(!SCRIPT.contains("@'") && !SCRIPT.contains("@\""), "a here-string does not survive that");
        let encoded = arguments().pop().unwrap();
        let bytes = base64::engine::general_purpose::STANDARD.decode(encoded).unwrap();
        let units: Vec<u16> = bytes.chunks(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect();
        let script = String::from_utf16(&units).unwrap();
        assert!(script.contains("FROM Win32_Process'") && script.ends_with("exit 0\n") && !script.contains("# "));
    }

    #[test]
    fn requests_are_one_line_each() {
        let marker = Marker::of("git", "0a", 7).unwrap();
        let found = [Found { pid: 4, created: 638_000_000_000_000_001, name: "chrome.exe".to_owned() }];
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        assert_eq!(text(query(&marker)), "{\"action\":\"query\",\"marker\":\"lazy-mcp\\\\git-0a-7\"}\n");
        assert_eq!(
            text(terminate(&marker, &found)),
            "{\"action\":\"terminate\",\"marker\":\"lazy-mcp\\\\git-0a-7\",\"processes\":[{\"pid\":4,\"created\":\"638000000000000001\"}]}\n"
        );
    }

    #[track_caller]
    fn check(answer: &str, expected: Result<usize, &str>) {
        let expected = expected.map_err(|kind| match kind {
            "" => NoAnswer::Nonsense,
            kind => NoAnswer::Refused(kind.to_owned()),
        });
        assert_eq!(found(answer.as_bytes()).map(|found| found.len()), expected, "{answer}");
    }

    #[test]
    fn only_a_whole_answer_is_one() {
        check(r#"{"ok":true,"processes":[]}"#, Ok(0));
        check("\u{feff}{\"ok\":true,\"processes\":[]}\r\n", Ok(0));
        check(r#"{"ok":true,"processes":[{"pid":4,"created":"0","name":"a"}]}"#, Ok(1));
        for nonsense in [
            "",
            "[]",
            "null",
            "{}",
            r#"{"ok":true}"#,
            r#"{"ok":true,"results":[]}"#,
            r#"{"processes":[]}"#,
            r#"{"ok":true,"processes":null}"#,
            r#"{"ok":true,"processes":[]} and more"#,
            r#"{"ok":true,"processes":[{"pid":4,"name":"a"}]}"#,
            r#"{"ok":true,"processes":[{"pid":-4,"created":"1","name":"a"}]}"#,
            r#"{"ok":true,"processes":[{"pid":4,"created":"+1","name":"a"}]}"#,
            r#"{"ok":true,"processes":[{"pid":4,"created":"","name":"a"}]}"#,
            r#"{"ok":true,"processes":{"pid":4,"created":"1","name":"a"}}"#,
        ] {
            check(nonsense, Err(""));
        }
        check(r#"{"ok":false,"error":"CimException"}"#, Err("CimException"));
        check(r#"{"ok":false,"error":"no: C:\\secret --token"}"#, Err("noCsecrettoken"));
    }

    #[test]
    fn names_are_short_and_printable() {
        let answer =
            format!(r#"{{"ok":true,"processes":[{{"pid":4,"created":"1","name":"a\u001b[2J{}"}}]}}"#, "x".repeat(99));
        let name = &found(answer.as_bytes()).unwrap()[0].name;
        assert!(name.starts_with("a?[2Jx") && name.len() == NAME_LEN_MAX, "{name}");
    }
}
