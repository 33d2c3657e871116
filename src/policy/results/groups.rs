//! The groups of a pattern that its replacement names. A name too many stands for nothing, so that what was meant to be
//! kept would be gone, silently.

use regex_automata::util::interpolate;

use super::rules::PatternRule;
use crate::core::diagnostic::suggestion;

impl PatternRule {
    /// The error continues "'replace_with' …".
    pub fn check_groups(&self) -> Result<(), String> {
        let missing = self.named_groups().into_iter().find(|group| !self.has_group(group));
        match missing {
            Some(group) => {
                let hint = self.hint(&group);
                Err(format!("names the group '{group}', which 'pattern' does not have{hint}"))
            }
            None => Ok(()),
        }
    }

    /// Numbers first, then names; read by the parser that replaces, so that both find the same ones.
    fn named_groups(&self) -> Vec<String> {
        let (mut numbers, mut names) = (Vec::new(), Vec::new());
        interpolate::string(
            &self.replace_with,
            |number, _| numbers.push(number.to_string()),
            |name| {
                names.push(name.to_owned());
                None
            },
            &mut String::new(),
        );
        numbers.append(&mut names);
        numbers
    }

    fn has_group(&self, group: &str) -> bool {
        match group.parse::<usize>() {
            Ok(number) => number < self.pattern.captures_len(),
            Err(_) => self.pattern.capture_names().flatten().any(|name| name == group),
        }
    }

    fn hint(&self, group: &str) -> String {
        // A name ends where letters, digits and `_` do, so `$1x` is no group and a letter.
        let (number, rest) = group.split_at(group.find(|c: char| !c.is_ascii_digit()).unwrap_or(group.len()));
        if !number.is_empty() && !rest.is_empty() && self.has_group(number) {
            return format!(": write '${{{number}}}{rest}' for the group {number} and '{rest}'");
        }
        match suggestion(group, self.pattern.capture_names().flatten()) {
            none if none.is_empty() => " (a dollar is written '$$')".to_owned(),
            known => known,
        }
    }
}

#[cfg(test)]
mod tests {
    use regex::Regex;

    use super::*;

    #[track_caller]
    fn check(pattern: &str, replace_with: &str, expected: &str) {
        let rule = PatternRule { pattern: Regex::new(pattern).unwrap(), replace_with: replace_with.to_owned() };
        assert_eq!(rule.check_groups().err().unwrap_or_default(), expected, "{replace_with}");
    }

    #[test]
    fn groups_that_are_there_may_be_named() {
        for good in ["", "[redacted]", "$0", "<$1>", "${1}x", "${name}", "$name-", "$$2", "$", "$-", "${1", "5 $"] {
            check("(?<name>a)", good, "");
        }
    }

    #[test]
    fn groups_that_are_not_there_are_told() {
        let says = |group: &str, hint: &str| format!("names the group '{group}', which 'pattern' does not have{hint}");
        check("(a)", "<$2>", &says("2", " (a dollar is written '$$')"));
        check("a", "US$5", &says("5", " (a dollar is written '$$')"));
        check("(a)", "<$1x>", &says("1x", ": write '${1}x' for the group 1 and 'x'"));
        check("(a)", "${1}_$1_", &says("1_", ": write '${1}_' for the group 1 and '_'"));
        check("(?<word>a)", "$wrod", &says("wrod", " (did you mean 'word'?)"));
        check("(a)", "${}", &says("", " (a dollar is written '$$')"));
    }
}
