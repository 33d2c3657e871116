//! The text of a policy file, and on which line a field of a constructor stands.
//!
//! Luau only knows the line of a call. To name the line of the offending key, the table constructors are found in the
//! source by a scanner of Luau's tokens (strings, long brackets, comments as in the Luau grammar). It reads no
//! expressions: a key that it cannot find is reported at the line of the call.

use std::path::PathBuf;

/// One step from a constructor's table to the offending value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Key(String),
    /// Counted from 1, as in Lua.
    Item(usize),
}

impl Step {
    pub fn key(&self) -> Option<&str> {
        match self {
            Self::Key(key) => Some(key),
            Self::Item(_) => None,
        }
    }
}

#[derive(Debug)]
pub(super) struct Source {
    /// The path as people know it.
    pub path: PathBuf,
    tables: Vec<Table>,
}

/// A `{ … }` in the source.
#[derive(Debug)]
struct Table {
    /// The last name of the function that it is an argument of: `backend` of `broker.backend {`.
    called: Option<String>,
    first_line: usize,
    last_line: usize,
    fields: Vec<Field>,
}

#[derive(Debug)]
struct Field {
    step: Step,
    line: usize,
    /// The first table inside the value, by its place in [`Source::tables`].
    table: Option<usize>,
}

impl Source {
    pub fn new(path: PathBuf, text: &str) -> Self {
        Self { path, tables: tables(&tokens(text)) }
    }

    /// The line of the value at `steps` in the table given to `constructor` at `call_line`, or the nearest line above it
    /// in the nesting that could be found.
    pub fn line_of(&self, constructor: &str, call_line: usize, steps: &[Step]) -> usize {
        let is_called = |table: &&Table| {
            table.called.as_deref() == Some(constructor) && (table.first_line..=table.last_line).contains(&call_line)
        };
        let calls: Vec<&Table> = self.tables.iter().filter(is_called).collect();
        // Several calls on one line: the one that knows the most of the steps is meant.
        let found = calls
            .iter()
            .map(|table| self.follow(table, steps))
            .max_by_key(|(known, line)| (*known, usize::MAX - line.abs_diff(call_line)));
        match found {
            Some((known, line)) if known > 0 => line,
            Some(_) => call_line,
            None => self.only_line_of(steps).unwrap_or(call_line),
        }
    }

    fn follow<'a>(&'a self, mut table: &'a Table, steps: &[Step]) -> (usize, usize) {
        let mut line = table.first_line;
        for (known, step) in steps.iter().enumerate() {
            let Some(field) = table.fields.iter().find(|field| field.step == *step) else { return (known, line) };
            line = field.line;
            match field.table {
                Some(inner) => table = &self.tables[inner],
                None => return (known + 1, line),
            }
        }
        (steps.len(), line)
    }

    /// A table that came through a variable: its key is found if it is spelled once in the file.
    fn only_line_of(&self, steps: &[Step]) -> Option<usize> {
        let key = steps.iter().rev().find(|step| matches!(step, Step::Key(_)))?;
        let mut lines = self.tables.iter().flat_map(|table| &table.fields).filter(|field| field.step == *key);
        lines.next().filter(|_| lines.next().is_none()).map(|field| field.line)
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Token<'a> {
    Name(&'a str),
    Text(&'a str),
    /// A number, or a byte of punctuation.
    Other(u8),
}

struct Placed<'a> {
    token: Token<'a>,
    line: usize,
}

fn tokens(text: &str) -> Vec<Placed<'_>> {
    let bytes = text.as_bytes();
    let mut tokens = Vec::new();
    let (mut at, mut line) = (0, 1);
    while let Some(&byte) = bytes.get(at) {
        let (token, end) = match byte {
            b'-' if bytes[at..].starts_with(b"--") => (None, end_of_comment(bytes, at)),
            b'[' => match end_of_long_bracket(bytes, at) {
                Some(end) => (text.get(at..end).map(|text| Token::Text(text.trim_matches(['[', ']', '=']))), end),
                None => (Some(Token::Other(byte)), at + 1),
            },
            b'"' | b'\'' | b'`' => {
                let end = end_of_string(bytes, at);
                (text.get(at + 1..end.max(at + 2) - 1).map(Token::Text), end)
            }
            b'0'..=b'9' => (Some(Token::Other(byte)), end_of_word(bytes, at)),
            b'A'..=b'Z' | b'a'..=b'z' | b'_' => {
                let end = end_of_word(bytes, at);
                (Some(Token::Name(&text[at..end])), end)
            }
            b' ' | b'\t' | b'\r' | b'\n' | 0x80.. => (None, at + 1),
            _ => (Some(Token::Other(byte)), at + 1),
        };
        if let Some(token) = token {
            tokens.push(Placed { token, line });
        }
        let end = end.min(bytes.len());
        line += bytes[at..end].iter().filter(|byte| **byte == b'\n').count();
        at = end;
    }
    tokens
}

fn end_of_word(bytes: &[u8], at: usize) -> usize {
    at + bytes[at..].iter().take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_').count()
}

fn end_of_comment(bytes: &[u8], at: usize) -> usize {
    let long = (bytes.get(at + 2) == Some(&b'[')).then(|| end_of_long_bracket(bytes, at + 2)).flatten();
    long.unwrap_or_else(|| memchr::memchr(b'\n', &bytes[at..]).map_or(bytes.len(), |step| at + step))
}

/// The end of `[[…]]` or `[=[…]=]`, if one starts at `at`.
fn end_of_long_bracket(bytes: &[u8], at: usize) -> Option<usize> {
    let level = bytes[at + 1..].iter().take_while(|byte| **byte == b'=').count();
    (bytes.get(at + 1 + level) == Some(&b'[')).then_some(())?;
    let close = format!("]{}]", "=".repeat(level));
    let inner = at + level + 2;
    Some(memchr::memmem::find(&bytes[inner..], close.as_bytes()).map_or(bytes.len(), |step| inner + step + close.len()))
}

/// Behind the closing quotation mark; strings of `"` and `'` end with their line at the latest.
fn end_of_string(bytes: &[u8], at: usize) -> usize {
    let quote = bytes[at];
    let mut end = at + 1;
    while let Some(&byte) = bytes.get(end) {
        match byte {
            b'\\' => end += 2,
            b'\n' if quote != b'`' => return end,
            _ if byte == quote => return end + 1,
            _ => end += 1,
        }
    }
    bytes.len()
}

/// A bracket that is still open while the tables are read.
struct Open {
    /// `None` for a parenthesis or an index.
    table: Option<usize>,
    /// A key or an item can start here.
    expects_field: bool,
    items: usize,
}

fn tables(tokens: &[Placed<'_>]) -> Vec<Table> {
    let mut tables: Vec<Table> = Vec::new();
    let mut open: Vec<Open> = Vec::new();
    for (at, Placed { token, line }) in tokens.iter().enumerate() {
        if let Some(inner) = open.last_mut()
            && let Some(table) = inner.table
            && inner.expects_field
            && *token != Token::Other(b'}')
        {
            inner.expects_field = false;
            let step = key_at(&tokens[at..]).unwrap_or_else(|| {
                inner.items += 1;
                Step::Item(inner.items)
            });
            tables[table].fields.push(Field { step, line: *line, table: None });
        }
        match token {
            Token::Other(b'{') => {
                let this = tables.len();
                let parent = open.iter().rev().find_map(|open| open.table);
                if let Some(field) = parent.and_then(|parent| tables[parent].fields.last_mut()) {
                    field.table.get_or_insert(this);
                }
                let called = called_before(&tokens[..at]);
                tables.push(Table { called, first_line: *line, last_line: usize::MAX, fields: Vec::new() });
                open.push(Open { table: Some(this), expects_field: true, items: 0 });
            }
            Token::Other(b'(' | b'[') => open.push(Open { table: None, expects_field: false, items: 0 }),
            Token::Other(b'}' | b')' | b']') => {
                if let Some(table) = open.pop().and_then(|open| open.table) {
                    tables[table].last_line = *line;
                }
            }
            Token::Other(b',' | b';') => {
                if let Some(inner) = open.last_mut() {
                    inner.expects_field = true;
                }
            }
            _ => {}
        }
    }
    tables
}

/// `name =` or `["name"] =`.
fn key_at(tokens: &[Placed<'_>]) -> Option<Step> {
    let token = |at: usize| tokens.get(at).map(|placed| &placed.token);
    let (key, next) = match (token(0)?, token(1), token(2)) {
        (Token::Name(name), _, _) => (name, 1),
        (Token::Other(b'['), Some(Token::Text(name)), Some(Token::Other(b']'))) => (name, 3),
        _ => return None,
    };
    let is_assigned = token(next) == Some(&Token::Other(b'=')) && token(next + 1) != Some(&Token::Other(b'='));
    is_assigned.then(|| Step::Key((*key).to_owned()))
}

/// The function that a table is given to: a name right before the brace, or before a parenthesis in between.
fn called_before(tokens: &[Placed<'_>]) -> Option<String> {
    const KEYWORDS: [&str; 10] = ["return", "and", "or", "not", "in", "do", "then", "else", "until", "while"];
    let tokens = match tokens.split_last() {
        Some((Placed { token: Token::Other(b'('), .. }, before)) => before,
        _ => tokens,
    };
    match tokens.last()?.token {
        Token::Name(name) if !KEYWORDS.contains(&name) => Some(name.to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"--!strict
-- broker.backend { scope = 1 }
local names = { "cookie", -- [[ ]]
  "authorization" }
local text = [==[ scope = "x" ]] { ]==] .. 'a\'{' .. `{names[1]}`
--[[ broker.backend {
  scope = 2 } ]]
return broker.backend {
  api = 1,
  ["scope"] = "session",
  queue = { limit = 32,
    wait_seconds = 60 };
  tools = {
    exclude = { "a",
      "b" },
    settings = { x = { arguments = { url = broker.url_rule { schemes = { "a" },
      hosts = 1 } } } },
  },
  results = { broker.redact_keys { keys = names }, broker.limit_text({
    max_bytes = 5 }) },
  on_call = { f = function(call) local y = 1; return { api = 2 } end },
}
"#;

    #[track_caller]
    fn check(constructor: &str, call_line: usize, steps: &[&str], expected: usize) {
        let steps: Vec<Step> =
            steps.iter().map(|step| step.parse().map_or_else(|_| Step::Key((*step).to_owned()), Step::Item)).collect();
        assert_eq!(Source::new("p.lua".into(), TEXT).line_of(constructor, call_line, &steps), expected, "{steps:?}");
    }

    #[test]
    fn keys_are_found_at_their_own_line() {
        check("backend", 8, &["api"], 9);
        check("backend", 8, &["scope"], 10);
        check("backend", 8, &["queue", "limit"], 11);
        check("backend", 8, &["queue", "wait_seconds"], 12);
        check("backend", 8, &["tools", "exclude", "2"], 15);
        check("backend", 8, &["tools", "settings", "x", "arguments", "url"], 16);
        check("backend", 8, &["results", "2"], 19);
        check("url_rule", 16, &["hosts"], 17);
        check("limit_text", 19, &["max_bytes"], 20);
        check("backend", 8, &["on_call", "f"], 21);
    }

    #[test]
    fn what_is_not_found_is_reported_nearby() {
        check("backend", 8, &["nothing"], 8);
        check("backend", 8, &["queue", "nothing"], 11);
        check("redact_text", 3, &["nothing"], 3);
    }
}
