//! Reading `[vars]`, and the templates and references that other tables share with it.

use std::collections::BTreeSet;

use toml::de::DeValue;

use super::model::{Var, Vars};
use super::reader::{Entry, Section};
use super::template::{InstanceField, Placeholders, Template, is_env_name};

/// All names, those of broken entries too (a use of one is no second fault), and the sound entries.
pub(super) fn read_vars(section: &Section<'_>) -> (BTreeSet<String>, Vars) {
    let mut names = BTreeSet::new();
    let mut vars = Vars::new();
    for (name, entry) in section.entries() {
        if !is_env_name(name) {
            entry.fault("can have letters, digits and '_' in its name, no digit first");
        } else if InstanceField::named(name).is_some() {
            entry.fault("is a placeholder that the broker fills itself: choose another name");
        }
        names.insert(name.to_owned());
        if let Some(var) = read_var(&entry) {
            vars.insert(name.to_owned(), var);
        }
    }
    (names, vars)
}

fn read_var(entry: &Entry<'_>) -> Option<Var> {
    const FORMS: &str =
        "must be a string, { first_of = [..] }, { env = \"NAME\" } or { as_root = \"..\", otherwise = \"..\" }";
    let allowed = Placeholders::EnvOnly;
    match entry.value {
        DeValue::String(_) => return template(entry, allowed).map(Var::Literal),
        DeValue::Table(_) => {}
        _ => {
            entry.fault(FORMS);
            return None;
        }
    }
    let mut section = entry.section(entry.title.clone())?;
    let first_of = section.get("first_of");
    let env = section.get("env");
    let as_root = section.get("as_root");
    let otherwise = section.get("otherwise");
    let var = match (first_of, env, as_root, otherwise) {
        (Some(list), None, None, None) => candidates(&list).map(Var::FirstOf),
        (None, Some(name), None, None) => env_reference(&name).map(Var::Env),
        (None, None, Some(as_root), Some(otherwise)) => {
            let (as_root, otherwise) = (template(&as_root, allowed), template(&otherwise, allowed));
            Some(Var::ByUser { as_root: as_root?, otherwise: otherwise? })
        }
        _ => {
            if section.finish() {
                entry.fault(FORMS);
            }
            return None;
        }
    };
    section.finish();
    var
}

fn candidates(list: &Entry<'_>) -> Option<Vec<Template>> {
    let candidates = templates(list, Placeholders::EnvOnly)?;
    if candidates.is_empty() {
        list.fault("is empty: name at least one path");
    }
    for candidate in &candidates {
        let text = candidate.text();
        if text.is_empty() || (text.contains('/') && !text.starts_with('/') && !text.starts_with("${env:")) {
            list.fault(format_args!("has \"{text}\": write an absolute path, or a bare name to look up in PATH"));
        }
    }
    Some(candidates)
}

pub(super) fn template(entry: &Entry<'_>, allowed: Placeholders<'_>) -> Option<Template> {
    match Template::parse(entry.string()?, allowed) {
        Ok(template) => Some(template),
        Err(faults) => {
            faults.iter().for_each(|fault| entry.fault(format_args!("has a fault: {fault}")));
            None
        }
    }
}

pub(super) fn templates(entry: &Entry<'_>, allowed: Placeholders<'_>) -> Option<Vec<Template>> {
    // Every element is looked at before the first bad one ends it.
    let read: Vec<Option<Template>> = entry.elements()?.iter().map(|element| template(element, allowed)).collect();
    read.into_iter().collect()
}

pub(super) fn env_reference(entry: &Entry<'_>) -> Option<String> {
    let name = entry.string()?;
    if !is_env_name(name) {
        entry.fault(format_args!("is \"{name}\", which is no name for an environment variable"));
        return None;
    }
    Some(name.to_owned())
}
