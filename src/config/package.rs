//! Which package a command line starts.

use std::fmt;

/// A package and its exact version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Package {
    pub name: String,
    pub version: String,
}

impl fmt::Display for Package {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.version)
    }
}

/// The package that the arguments of `npx` or `uvx` name with an exact version: `name@1.2.3` or `name==1.2.3`, as the
/// first argument that is no option, or as the value of `-p`, `--package` or `--from`.
///
/// `None` when there is no such argument, or when it names a tag (`@latest`) or a range: those are no version.
pub fn package_of<'a>(args: impl IntoIterator<Item = &'a str>) -> Option<Package> {
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        match arg {
            "-p" | "--package" | "--from" => return args.next().and_then(pinned),
            _ => {}
        }
        if let Some(spec) = arg.strip_prefix("--package=").or_else(|| arg.strip_prefix("--from=")) {
            return pinned(spec);
        }
        if !arg.starts_with('-') {
            return pinned(arg);
        }
    }
    None
}

fn pinned(spec: &str) -> Option<Package> {
    // An '@' in front belongs to an npm scope.
    let (name, version) = match spec.split_once("==") {
        Some(parts) => parts,
        None => spec.rsplit_once('@').filter(|(name, _)| !name.is_empty())?,
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || "@/._-".contains(c);
    let exact = version.starts_with(|c: char| c.is_ascii_digit())
        && version.contains('.')
        && version.chars().all(|c| c.is_ascii_alphanumeric() || ".-+".contains(c));
    (exact && !name.is_empty() && name.chars().all(plain))
        .then(|| Package { name: name.to_owned(), version: version.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(args: &[&str], expected: Option<&str>) {
        let found = package_of(args.iter().copied()).map(|package| package.to_string());
        assert_eq!(found.as_deref(), expected);
    }

    #[test]
    fn an_exact_version_is_found_wherever_a_runner_takes_it() {
        check(&["-y", "@playwright/mcp@0.0.79", "--headless"], Some("@playwright/mcp 0.0.79"));
        check(&["agentation-mcp@1.2.0", "server"], Some("agentation-mcp 1.2.0"));
        check(&["-y", "--package=a@1.0.0-beta.2", "run"], Some("a 1.0.0-beta.2"));
        check(&["-p", "a@1.0.0", "run"], Some("a 1.0.0"));
        check(&["--from", "mcp-server-git==2026.10.19", "git"], Some("mcp-server-git 2026.10.19"));
        check(&["mcp-server-fetch@2026.10.24"], Some("mcp-server-fetch 2026.10.24"));
    }

    #[test]
    fn what_is_no_exact_version_is_not_guessed() {
        check(&[], None);
        check(&["-y", "@playwright/mcp"], None);
        check(&["-y", "@playwright/mcp@latest"], None);
        check(&["a@^1.2.0"], None);
        check(&["a@1"], None);
        check(&["${pkg}@1.2.0"], None);
        check(&["server.js", "mail@1.2.3"], None);
        check(&["-p"], None);
    }
}
