//! A server's stderr: always drained, so that the server never blocks on it, and remembered a little.

use std::collections::VecDeque;
use std::sync::{Arc, LazyLock, PoisonError};

use regex::Regex;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

use super::conversation::Shared;

/// Lines remembered.
const LINES_MAX: usize = 20;
/// Bytes remembered of one line.
const LINE_LEN_MAX: usize = 400;

/// Reads until the end. Ends with the pipe.
pub(super) async fn run(mut stderr: pipe::Receiver, shared: Arc<Shared>) {
    let mut buffer = vec![0; 8 * 1024];
    while let Ok(n) = stderr.read(&mut buffer).await {
        if n == 0 {
            break;
        }
        shared.tail.lock().unwrap_or_else(PoisonError::into_inner).push(&buffer[..n]);
    }
    shared.stderr_ended.cancel();
}

/// The last lines, bounded in number and length.
#[derive(Default)]
pub(super) struct Tail {
    lines: VecDeque<String>,
    unfinished: Vec<u8>,
}

impl Tail {
    fn push(&mut self, bytes: &[u8]) {
        for byte in bytes {
            match byte {
                b'\n' => self.finish_line(),
                _ if self.unfinished.len() < LINE_LEN_MAX => self.unfinished.push(*byte),
                _ => {}
            }
        }
    }

    fn finish_line(&mut self) {
        let line = String::from_utf8_lossy(&self.unfinished).trim_end().to_owned();
        self.unfinished.clear();
        if line.is_empty() {
            return;
        }
        if self.lines.len() == LINES_MAX {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    /// With what looks like a credential taken out.
    pub fn lines(&self) -> Vec<String> {
        let unfinished = String::from_utf8_lossy(&self.unfinished);
        let unfinished = Some(unfinished.trim_end()).filter(|line| !line.is_empty());
        self.lines.iter().map(String::as_str).chain(unfinished).map(redacted).collect()
    }
}

fn redacted(line: &str) -> String {
    static CREDENTIAL: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(
            r"(?i)\b((?:[\w-]*(?:token|secret|passw(?:or)?d|api[_-]?key|cookie)|authorization)[\w-]*'?\s*[=:]\s*)(?:(?:bearer|basic)\s+)?\S+|\b(bearer|basic)\s+\S{8,}|(://[^/\s:@]+:)[^@\s/]+(@)",
        )
        .expect("the pattern is constant")
    });
    CREDENTIAL.replace_all(line, "$1$2$3[redacted]$4").into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_kept_and_bounded() {
        let mut tail = Tail::default();
        for i in 0..100 {
            tail.push(format!("line {i}\r\n\n").as_bytes());
        }
        tail.push("x".repeat(10_000).as_bytes());
        let lines = tail.lines();
        assert_eq!(lines.len(), LINES_MAX + 1);
        assert_eq!((lines[0].as_str(), lines[LINES_MAX].len()), ("line 80", LINE_LEN_MAX));
    }

    #[test]
    fn credentials_do_not_stay() {
        for (line, expected) in [
            ("Authorization: Bearer abc.def", "Authorization: [redacted]"),
            ("api_key=12345 next", "api_key=[redacted] next"),
            ("GITHUB_TOKEN: ghp_x", "GITHUB_TOKEN: [redacted]"),
            ("sent bearer abcdefghij now", "sent bearer[redacted] now"),
            ("at http://user:pw@host/x", "at http://user:[redacted]@host/x"),
            ("listening on 4747", "listening on 4747"),
            ("token missing, set TOKEN", "token missing, set TOKEN"),
        ] {
            assert_eq!(redacted(line), expected);
        }
    }
}
