//! Text with placeholders: `${name}` of `[vars]`, `${env:NAME}`, and what the broker knows of an instance.

use std::collections::BTreeSet;
use std::fmt;

use crate::core::diagnostic::suggestion;

/// A text whose placeholders are known to exist; they are filled when a backend starts.
///
/// `Debug` hides the text, because arguments do not belong in logs (invariant 13).
#[derive(Clone, PartialEq, Eq)]
pub struct Template {
    text: String,
    pieces: Vec<Piece>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Text(String),
    Var(String),
    Env(String),
    Instance(InstanceField),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InstanceField {
    InstanceId,
    Generation,
    InstanceDir,
    ScopeKeyHash,
    Marker,
}

impl InstanceField {
    pub(super) const ALL: [(&'static str, Self); 5] = [
        ("instance_id", Self::InstanceId),
        ("generation", Self::Generation),
        ("instance_dir", Self::InstanceDir),
        ("scope_key_hash", Self::ScopeKeyHash),
        ("marker", Self::Marker),
    ];

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, field)| *field)
    }
}

/// Which placeholders a place in the file can have.
#[derive(Clone, Copy)]
pub(super) enum Placeholders<'a> {
    /// `${env:NAME}` alone: in `[vars]` themselves.
    EnvOnly,
    /// All, with these names of `[vars]`.
    All { vars: &'a BTreeSet<String> },
}

impl Template {
    /// Checks every placeholder; the errors are sentences without a place.
    pub(super) fn parse(text: &str, allowed: Placeholders<'_>) -> Result<Self, Vec<String>> {
        let mut pieces = Vec::new();
        let mut faults = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some(at) = rest.find('$') {
            plain.push_str(&rest[..at]);
            rest = &rest[at..];
            if let Some(after) = rest.strip_prefix("$${") {
                plain.push_str("${");
                rest = after;
            } else if let Some(after) = rest.strip_prefix("${") {
                let Some((name, after)) = after.split_once('}') else {
                    faults.push("placeholder '${' without its '}' (write '$${' for the characters themselves)".into());
                    rest = "";
                    break;
                };
                match placeholder(name, allowed) {
                    Ok(piece) => {
                        if !plain.is_empty() {
                            pieces.push(Piece::Text(std::mem::take(&mut plain)));
                        }
                        pieces.push(piece);
                    }
                    Err(fault) => faults.push(fault),
                }
                rest = after;
            } else {
                plain.push('$');
                rest = &rest[1..];
            }
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            pieces.push(Piece::Text(plain));
        }
        if text.contains('\0') {
            faults.push("a NUL character cannot be passed to a program".into());
        }
        if faults.is_empty() { Ok(Self { text: text.to_owned(), pieces }) } else { Err(faults) }
    }

    /// As written in the file, placeholders unfilled.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether it depends on the instance at all, or on this of it.
    pub(super) fn has(&self, field: Option<InstanceField>) -> bool {
        self.pieces.iter().any(|piece| match piece {
            Piece::Instance(found) => field.is_none_or(|field| field == *found),
            Piece::Text(_) | Piece::Var(_) | Piece::Env(_) => false,
        })
    }

    pub(super) fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Whether it is nothing but one placeholder: then, as an argument, it vanishes when that is empty.
    pub(super) fn is_one_placeholder(&self) -> bool {
        matches!(self.pieces[..], [Piece::Var(_) | Piece::Env(_) | Piece::Instance(_)])
    }

    /// The names of `[vars]` in it.
    pub(super) fn vars(&self) -> impl Iterator<Item = &str> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Var(name) => Some(name.as_str()),
            Piece::Text(_) | Piece::Env(_) | Piece::Instance(_) => None,
        })
    }
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Template(..)")
    }
}

fn placeholder(name: &str, allowed: Placeholders<'_>) -> Result<Piece, String> {
    if let Some(env) = name.strip_prefix("env:") {
        return match is_env_name(env) {
            true => Ok(Piece::Env(env.to_owned())),
            false => Err(format!("'${{{name}}}' names no environment variable (write '${{env:NAME}}')")),
        };
    }
    let Placeholders::All { vars } = allowed else {
        return Err(format!("'${{{name}}}' cannot stand in [vars]: only '${{env:NAME}}' can"));
    };
    match InstanceField::named(name) {
        Some(field) => Ok(Piece::Instance(field)),
        None if vars.contains(name) => Ok(Piece::Var(name.to_owned())),
        None => {
            let builtin = InstanceField::ALL.iter().map(|(known, _)| *known);
            let known = vars.iter().map(String::as_str).chain(builtin).chain(["env:NAME"]);
            Err(format!("unknown placeholder '${{{name}}}'{}", suggestion(name, known)))
        }
    }
}

/// A name that `execve` and shells both take.
pub(super) fn is_env_name(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Result<usize, &str>) {
        let vars = BTreeSet::from(["chromium".to_owned()]);
        let parsed = Template::parse(text, Placeholders::All { vars: &vars });
        let found = parsed.as_ref().map(|template| template.pieces.len()).map_err(|faults| faults.join("; "));
        assert_eq!(found, expected.map_err(str::to_owned), "{text}");
    }

    #[test]
    fn placeholders_are_found_and_the_rest_is_text() {
        check("", Ok(0));
        check("plain $ text $5 }", Ok(1));
        check("${chromium}", Ok(1));
        check("a${chromium}b${env:HOME}${generation}", Ok(5));
        check("$${chromium}", Ok(1));
        check("$$", Ok(1));
    }

    #[test]
    fn faults_name_the_nearest_placeholder() {
        check("${chromum}", Err("unknown placeholder '${chromum}' (did you mean 'chromium'?)"));
        check("${instance_dri}", Err("unknown placeholder '${instance_dri}' (did you mean 'instance_dir'?)"));
        check("${env:1X}", Err("'${env:1X}' names no environment variable (write '${env:NAME}')"));
        check("${a", Err("placeholder '${' without its '}' (write '$${' for the characters themselves)"));
    }

    #[test]
    fn only_an_exact_placeholder_can_vanish() {
        let vars = BTreeSet::from(["x".to_owned()]);
        let parse = |text| Template::parse(text, Placeholders::All { vars: &vars }).unwrap();
        assert!(parse("${x}").is_one_placeholder());
        assert!(!parse("--flag=${x}").is_one_placeholder());
        assert!(!parse("").is_one_placeholder());
        assert!(!parse("$${x}").is_one_placeholder());
    }
}
