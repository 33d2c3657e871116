//! Names that a policy mentions: patterns of tools and hosts, and sets of keys.

use globset::GlobMatcher;

/// A name, or a glob over names: `*` is any run of characters, `?` one, `[ab]` a class, `{a,b}` a choice.
#[derive(Clone, Debug)]
pub(super) struct NamePattern {
    text: String,
    matcher: Matcher,
}

/// Most patterns are plain names or `*`; only the others pay for a compiled glob.
#[derive(Clone, Debug)]
enum Matcher {
    Every,
    Exact,
    Glob(Box<GlobMatcher>),
}

impl NamePattern {
    /// The error says what is wrong with the glob.
    pub fn new(text: &str) -> Result<Self, String> {
        let matcher = match text {
            "*" => Matcher::Every,
            _ if !text.contains(['*', '?', '[', ']', '{', '}', '\\']) => Matcher::Exact,
            _ => {
                let glob = globset::GlobBuilder::new(text).empty_alternates(true).build();
                Matcher::Glob(Box::new(glob.map_err(|error| error.kind().to_string())?.compile_matcher()))
            }
        };
        Ok(Self { text: text.to_owned(), matcher })
    }

    /// Of one name, whatever characters are in it.
    pub fn exact(text: &str) -> Self {
        Self { text: text.to_owned(), matcher: Matcher::Exact }
    }

    pub fn matches(&self, name: &str) -> bool {
        match &self.matcher {
            Matcher::Every => true,
            Matcher::Exact => self.text == name,
            Matcher::Glob(glob) => glob.is_match(name),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub fn is_plain(&self) -> bool {
        matches!(self.matcher, Matcher::Exact)
    }

    /// Orders patterns from the most general to the most specific: `*`, then globs by the number of characters that
    /// they fix, then plain names.
    pub fn specificity(&self) -> (u8, usize) {
        match self.matcher {
            Matcher::Every => (0, 0),
            Matcher::Glob(_) => (1, self.text.chars().filter(|c| !matches!(c, '*' | '?')).count()),
            Matcher::Exact => (2, 0),
        }
    }
}

/// A set of keys or header names, compared without regard to ASCII case.
#[derive(Clone, Debug, Default)]
pub(super) struct NameSet {
    names: Vec<Box<str>>,
    /// Bit `n` is set when a name of `n` bytes exists (bit 63: of 63 or more): most keys are ruled out by it.
    lengths: u64,
}

impl NameSet {
    pub fn contains(&self, name: &str) -> bool {
        self.lengths & length_bit(name.len()) != 0 && self.names.iter().any(|known| known.eq_ignore_ascii_case(name))
    }

    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(|name| &**name)
    }
}

impl<S: AsRef<str>> FromIterator<S> for NameSet {
    fn from_iter<I: IntoIterator<Item = S>>(names: I) -> Self {
        let names: Vec<Box<str>> = names.into_iter().map(|name| name.as_ref().into()).collect();
        let lengths = names.iter().fold(0, |bits, name| bits | length_bit(name.len()));
        Self { names, lengths }
    }
}

fn length_bit(length: usize) -> u64 {
    1 << length.min(63)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pattern: &str, name: &str, matches: bool) {
        assert_eq!(NamePattern::new(pattern).unwrap().matches(name), matches, "{pattern} on {name}");
    }

    #[test]
    fn patterns_match_whole_names() {
        check("browser_click", "browser_click", true);
        check("browser_click", "browser_click2", false);
        check("browser_*", "browser_click", true);
        check("browser_*", "xbrowser_click", false);
        check("*", "", true);
        check("a?c", "abc", true);
        check("{a,b}_x", "b_x", true);
        check("*.example.com", "a.b.example.com", true);
        check("*.example.com", "example.com", false);
    }

    #[test]
    fn a_broken_glob_is_refused() {
        assert!(NamePattern::new("a[").is_err());
        assert!(NamePattern::new("{a").is_err());
    }

    #[test]
    fn sets_ignore_case_and_tell_near_names_apart() {
        let set: NameSet = ["Set-Cookie", "x"].into_iter().collect();
        assert!(set.contains("set-cookie") && set.contains("SET-COOKIE") && set.contains("X"));
        assert!(!set.contains("set-cookies") && !set.contains("") && !set.contains("xset-cooki"));
        let long = "k".repeat(100);
        assert!([&long].into_iter().collect::<NameSet>().contains(&long));
        assert!(![&long].into_iter().collect::<NameSet>().contains(&"k".repeat(99)));
    }
}
